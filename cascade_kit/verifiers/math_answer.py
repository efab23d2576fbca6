r"""The math reward: is the answer of a completion the gold answer?

    >>> grade_answer("0.5", r"Hence the probability is \boxed{\frac12}.").value
    1.0

Plain numbers, lists, tuples and words are decided here in microseconds; everything else by
math-verify in a worker process (math_worker.py): started at the first need, kept warm, ended at
the deadline, closed at exit. No signals are used in this process, so graders run in threads and
notebooks.
"""

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from cascade_kit.problem import Score
from cascade_kit.verifiers.math_compare import MAX_DEPTH, leaves, same
from cascade_kit.verifiers.math_extract import (
    ExtractMode,
    boxes,
    extract_answer,
    linked_boxes,
)
from cascade_kit.verifiers.math_notation import normalise, plain_words
from cascade_kit.verifiers.math_structure import is_list, nesting
from cascade_kit.verifiers.thinking import answer_part

MAX_ANSWER = 1000  # characters; longer answers are wrong unless the gold is long as well
WALL_FACTOR = 10  # the CPU timer of the worker is the deadline, the clock only a backstop
MAX_GOLD_WORDS = 12

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from cascade_kit.verifiers.math_worker import main; main()"
)


class _Died(Exception):
    """The worker ended without a reply; `timeout` tells why."""

    def __init__(self, code: int | None, *, timeout: bool) -> None:
        super().__init__(f"the math worker ended with code {code}")
        self.timeout = timeout


class _Worker:
    """One math_worker process and the thread that reads its replies."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, "PYTHONHASHSEED": "0"},  # sympy's choices follow the hash seed
            start_new_session=True,  # Ctrl-C is for the training loop
        )
        self.replies: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        if not self.replies.get():
            raise RuntimeError(
                "the math worker did not start; try `python -c 'import math_verify'` and, if that "
                "fails, `pip install math-verify`"
            )

    def _read(self) -> None:
        for line in self.process.stdout:
            self.replies.put(line)
        self.replies.put("")  # the process has ended

    def ask(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The reply to a job. Raises _Died, after which the worker is gone."""
        try:
            self.process.stdin.write(json.dumps({**job, "seconds": seconds}) + "\n")
            self.process.stdin.flush()
            line = self.replies.get(timeout=seconds * WALL_FACTOR)
        except queue.Empty:
            self.close()
            raise _Died(None, timeout=True) from None
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        code = self.process.wait()
        self.close()
        raise _Died(code, timeout=_is_cpu_timer(code))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:  # an unsent job of a worker that died
                continue


def _is_cpu_timer(code: int) -> bool:
    return -code == getattr(signal, "SIGPROF", 0)


_idle: list[_Worker] = []
_lock = threading.Lock()


def _take() -> _Worker:
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.owner == os.getpid() and worker.process.poll() is None:
                return worker
    return _Worker()


def close_workers() -> None:
    """Ends the idle worker processes; the next comparison starts a new one."""
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.owner == os.getpid():
                worker.close()


atexit.register(close_workers)


def _ask(job: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """The worker's reply, None at the deadline. Raises RuntimeError after two crashes."""
    reply: dict[str, Any] = {}
    for _ in range(2):  # a crash or a full memory may be left over from an earlier job
        worker = _take()
        try:
            reply = worker.ask(job, seconds)
        except _Died as death:
            if death.timeout:
                return None
            reply = {"crash": str(death)}
            continue
        if "memory" in reply:
            worker.close()
            continue
        with _lock:
            _idle.append(worker)
        return reply
    if "memory" in reply:
        return reply
    raise RuntimeError(f"{reply['crash']} twice on {job}; report this pair to the project")


class _NeedsWorker(Exception):
    """A leaf is not a plain number."""


def _no_leaf(gold: str, answer: str) -> bool:
    raise _NeedsWorker


def _gold_fault(gold: object, why: str) -> ValueError:
    return ValueError(f"gold answer {gold!r} {why}; correct or drop the row")


def check_gold(gold: str, deadline_s: float = 3.0) -> None:
    """Raises ValueError for a gold answer that is empty, cut off, prose or not readable as math."""
    if not isinstance(gold, str):
        raise _gold_fault(gold, "is not a string")
    _check_text(gold, deadline_s)


@lru_cache(maxsize=65536)
def _check_text(gold: str, deadline_s: float) -> None:
    text = normalise(gold)
    if not any(c.isalnum() for c in plain_words(text)):
        raise _gold_fault(gold, "is empty")
    plain = text.replace(r"\{", "").replace(r"\}", "")
    if plain.count("{") != plain.count("}"):
        raise _gold_fault(gold, "has a brace that does not close")
    if len(plain_words(text).split()) > MAX_GOLD_WORDS and not text.startswith("\\begin"):
        raise _gold_fault(gold, "is prose, not an answer")
    parts = leaves(text)
    if parts:
        reply = _ask({"op": "check", "leaves": parts}, deadline_s)
        if reply is None or "memory" in reply:
            raise _gold_fault(gold, f"takes more than {deadline_s} s or too much memory to read")
        if "bad_gold" in reply:
            raise _gold_fault(gold, f"cannot be parsed at {reply['bad_gold']!r}")


def _compare(gold: str, answer: str, deadline_s: float) -> tuple[bool, str]:
    """(equal, reason in words) of a gold answer and an answer as written."""
    if answer.strip() == gold.strip():
        return True, "correct"
    if len(answer) > MAX_ANSWER + 2 * len(gold):
        return False, "answer too long"
    if nesting(answer) > MAX_DEPTH:
        return False, "answer nested too deeply"
    gold_text, answer_text = normalise(gold), normalise(answer)
    try:
        equal = same(gold_text, answer_text, _no_leaf)
    except _NeedsWorker:
        job = {"op": "same", "gold": gold_text, "answer": answer_text}
        reply = _ask(job, deadline_s)
        if reply is None or "memory" in reply:
            return False, "memory" if reply else "timeout"
        if "bad_gold" in reply:
            raise _gold_fault(gold, f"cannot be parsed at {reply['bad_gold']!r}") from None
        equal = reply["equal"]
    return equal, "correct" if equal else f"wrong answer: {answer[:80]}"


def grade_answer(
    gold: str, completion: str, *, extract: ExtractMode = "boxed", deadline_s: float = 3.0
) -> Score:
    r"""1 if the completion's answer equals `gold`, else 0; parts: correct, boxed (a box exists).

    `deadline_s` is CPU time of the comparison; reached, the score is 0 with why="timeout". Where
    the gold is a list, boxes joined by commas, "and" or "or" count as one answer. Raises
    ValueError for a gold that cannot be used and RuntimeError if the worker crashes twice.
    """
    check_gold(gold)
    boxed = float(bool(boxes(answer_part(completion))))
    answer = extract_answer(completion, extract)
    if answer is None:
        return Score(
            0.0, {"correct": 0.0, "boxed": boxed}, "no box" if extract == "boxed" else "no answer"
        )
    equal, why = _compare(gold, answer, deadline_s)
    linked = linked_boxes(completion) if boxed and not equal and extract != "last" else []
    if len(linked) > 1 and is_list(normalise(gold)):
        equal, why = _compare(gold, ", ".join(linked), deadline_s)
    return Score(float(equal), {"correct": float(equal), "boxed": boxed}, why)


def grade_many(
    pairs: Iterable[tuple[str, str]],
    *,
    extract: ExtractMode = "boxed",
    deadline_s: float = 3.0,
    workers: int = 1,
) -> list[Score]:
    """One Score for each (gold, completion), in input order, by `workers` threads.

    Raises what `grade_answer` raises, the position of the pair added to a ValueError.
    """

    def grade(numbered: tuple[int, tuple[str, str]]) -> Score:
        position, (gold, completion) = numbered
        try:
            return grade_answer(gold, completion, extract=extract, deadline_s=deadline_s)
        except ValueError as fault:
            raise ValueError(f"pair {position}: {fault}") from fault

    if workers <= 1:
        return [grade(numbered) for numbered in enumerate(pairs)]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(grade, enumerate(pairs)))
