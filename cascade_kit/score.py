"""Bulk scoring of recorded answers: one verdict a row, in input order, and a summary.

What an answer is worth is decided by the verifiers, how a row states its task by score_columns.py.
This file hands rows to them, a few at a time, and counts.

A fault of a row or of a verifier stops the run with the row's line and id, after the verdicts on
all rows before it: a 0 in its place would look like a verdict.
"""

import contextlib
import json
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from cascade_kit.data import parse_line
from cascade_kit.data_columns import Row
from cascade_kit.score_columns import (
    Options,
    PairScorer,
    Verdict,
    agreements,
    answer_lengths,
    canonical_domain,
    name_of,
    score_row,
)

READ_AHEAD = 4  # rows a worker that wait for their turn
WAITS = ("math", "code", "swe")  # domains whose verdicts are waited for: threads help only these
IDS_SHOWN = 8


class VerifierStopped(ValueError):
    """A verifier failed on a row, which the message names; no verdict on it may be made up."""


def score_rows(
    domain: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    extract: str = "auto",
    official: bool = False,
    allow_unsafe: bool = False,
    workers: int = 2,
    pair_scorer: PairScorer = answer_lengths,
) -> Iterator[Verdict]:
    """A verdict {"id", "value", "parts", "why", ...} for each row, in order.

    `domain` is math, instruct, code, swe or preference. A list of completions gives lists of
    values, parts and reasons. Raises ValueError with the row's position and id.

    >>> rows = [{"id": "a", "ground_truth": "18", "completion": "So she makes $18.\\nA: 18"}]
    >>> [(verdict["id"], verdict["value"]) for verdict in score_rows("math", rows)]
    [('a', 1.0)]
    """
    domain = canonical_domain(domain)
    options = Options(extract, official, allow_unsafe, pair_scorer)
    numbered = (Row("rows", line, values) for line, values in enumerate(rows, start=1))
    return in_order(
        lambda row: verdict_on(domain, row, options), numbered, threads(domain, workers)
    )


def score_lines(
    domain: str, path: Path, options: Options, *, workers: int = 2, keep_going: bool = False
) -> Iterator[Verdict]:
    """`score_rows` for the lines of a JSONL file.

    With `keep_going` a row at fault gets value None, the fault as `why` and `"fault": True`; a
    verifier at fault stops the run all the same.
    """
    domain = canonical_domain(domain)

    def verdict(numbered: tuple[int, bytes]) -> Verdict:
        row = Row(str(path), numbered[0], {})
        try:
            row = replace(row, values=parse_line(numbered[1], path, row.line))
            return verdict_on(domain, row, options)
        except VerifierStopped:
            raise
        except ValueError as fault:
            if not keep_going:
                raise
            return {
                "id": name_of(row),
                "value": None,
                "parts": {},
                "why": str(fault),
                "fault": True,
            }

    return in_order(verdict, numbered_lines(path), threads(domain, workers))


def numbered_lines(path: Path) -> list[tuple[int, bytes]]:
    """(line from 1, its bytes) of every line that is not blank."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give a JSONL file")
    lines = enumerate(path.read_bytes().split(b"\n"), start=1)
    found = [(line, content) for line, content in lines if content.strip()]
    if not found:
        raise ValueError(f"{path} is empty; write one JSON object a line into it")
    return found


def verdict_on(domain: str, row: Row, options: Options) -> Verdict:
    """`score_row`, where every fault tells the place and the id of its row."""
    try:
        return score_row(domain, row, options)
    except ValueError as fault:
        raise ValueError(located(row, str(fault))) from fault
    except Exception as fault:  # whatever else a verifier raises is its own fault: say where
        words = (
            str(fault) if isinstance(fault, RuntimeError) else f"{type(fault).__name__}: {fault}"
        )
        raise VerifierStopped(located(row, words)) from fault


def located(row: Row, words: str) -> str:
    """The words with the place and the id of the row, each once."""
    place = f"{row.path}, line {row.line}"
    words = words.removeprefix(place).removeprefix(": ")
    name = str(name_of(row))
    if name == f"line {row.line}":
        return f"{place}: {words}"
    return f"{place}, row {name}: {words.removeprefix(f'row {name}: ')}"


def threads(domain: str, workers: int) -> int:
    """The threads to use; one where the work is done in this process, as by a reward model."""
    if workers < 1:
        raise ValueError(f"{workers} workers can do nothing; use at least one")
    return workers if domain in WAITS else 1


def in_order(function: Callable, items: Iterable, workers: int) -> Iterator:
    """`map` by `workers` threads, a few items ahead; a fault comes after the results before it."""
    waiting: deque[Future] = deque()
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= READ_AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # after a fault, or when the caller wants no more
            for future in waiting:
                future.cancel()


# ---- the command ---------------------------------------------------------------------------------


def score_file(
    domain: str,
    path: Path,
    out: Path | None,
    options: Options,
    *,
    workers: int = 2,
    keep_going: bool = False,
    pairs_name: str = "pair accuracy",
) -> "Tally":
    """Writes the verdicts as JSON lines to `out`, or to stdout without one, with a progress bar."""
    from tqdm import tqdm

    tally = Tally(pairs_name)
    verdicts = score_lines(domain, path, options, workers=workers, keep_going=keep_going)
    with opened(out, path) as sink, tqdm(total=len(numbered_lines(path)), unit="row") as bar:
        for verdict in verdicts:
            print(json.dumps(verdict, allow_nan=False), file=sink, flush=True)
            tally.add(verdict)
            bar.update()
    return tally


def reward_model_scorer(folder: Path, model: str | None = None) -> PairScorer:
    """Scores by a trained reward model: the folder that a run saved it to, or the run's own.

    `model` names the base model where the one noted in the folder is not found by its name.
    """
    from cascade_kit.loading import load_policy
    from cascade_kit.reward_model import RewardModel

    places = [folder, *sorted(folder.glob("*/reward_model"))]
    place = next((place for place in places if (place / "head.safetensors").is_file()), None)
    if place is None:
        raise ValueError(
            f"{folder} holds no reward model; name the folder RUN/1-rlhf/reward_model of a run"
        )
    adapter = json.loads((place / "adapter_config.json").read_text(encoding="utf-8"))
    run = place.parent.parent / "run.json"
    settings = json.loads(run.read_text(encoding="utf-8")) if run.is_file() else {}
    policy = load_policy(
        model or adapter["base_model_name_or_path"],
        bits=settings.get("policy", {}).get("bits", 4),
        rank=adapter["r"],
        alpha=adapter["lora_alpha"],
    )
    reward_model = RewardModel(policy)
    reward_model.load(place)
    return reward_model.score


def opened(out: Path | None, rows: Path) -> contextlib.AbstractContextManager[TextIO]:
    """The file to write to. Raises ValueError rather than write over the rows."""
    if out is None:
        return contextlib.nullcontext(sys.stdout)
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file")
    if out.resolve() == rows.resolve():
        raise ValueError(f"--out {out} would overwrite the rows; name another file")
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.open("w", encoding="utf-8")


class Tally:
    """The counts of the summary line, verdict by verdict."""

    def __init__(self, pairs_name: str = "pair accuracy") -> None:
        self.pairs_name = pairs_name
        self.pairs = False
        self.rows = 0
        self.values: dict[str, list[float]] = defaultdict(list)  # by subset
        self.without_value: Counter[str] = Counter()  # by reason
        self.same: dict[str, list[bool]] = defaultdict(list)  # by field: is it the known verdict?
        self.differing: dict[str, None] = {}  # ids in order

    @property
    def faults(self) -> int:
        return self.without_value["at fault"]

    def add(self, verdict: Verdict) -> None:
        self.rows += 1
        self.pairs |= "rejected" in verdict["parts"]
        value = verdict["value"]
        if value is None:
            self.without_value["at fault" if "fault" in verdict else verdict["why"]] += 1
        else:
            self.values[verdict.get("subset", "")] += value if isinstance(value, list) else [value]
        for field, known in verdict.get("known", {}).items():
            same = agreements(verdict.get(field), known)
            self.same[field] += same
            if not all(same):
                self.differing[str(verdict["id"])] = None

    def words(self) -> str:
        """The summary: rows, mean value, agreement with verdicts known beforehand."""
        values = [value for group in self.values.values() for value in group]
        parts = [f"{self.rows} rows"]
        parts += [f"{count} {reason}" for reason, count in self.without_value.items()]
        if values:
            name = self.pairs_name if self.pairs else "mean value"
            parts.append(f"{name} {sum(values) / len(values):.4f}")
        if len(self.values) > 1:
            means = {name: sum(group) / len(group) for name, group in self.values.items() if group}
            ordered = sorted(means.items(), key=lambda entry: entry[0] == "")
            words = ", ".join(f"{name or 'others'} {mean:.3f}" for name, mean in ordered)
            parts.append(f"of which {words}")
        for field, same in self.same.items():
            name = "known verdicts" if field == "value" else f"known {field} verdicts"
            share = f" ({sum(same) / len(same):.2%})" if same else ""
            parts.append(f"agrees with {sum(same)} of {len(same)} {name}{share}")
        if self.differing:
            shown = ", ".join(list(self.differing)[:IDS_SHOWN])
            more = len(self.differing) - IDS_SHOWN
            parts.append(f"differs on {shown}" + (f" and {more} more" if more > 0 else ""))
        return "; ".join(parts)
