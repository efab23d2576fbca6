"""Bulk scoring of recorded answers: one verdict a row, in input order.

Rows come in the public formats (GSM8K, MATH, IFEval, IFBench, MBPP, HumanEval, HumanEvalFix,
QuixBugs, mini-SWE, preference pairs) with a `completion` or `response`, or with the fields of the
reward cases in tests/cases. What an answer is worth is decided by the verifiers; this file only
hands rows to them and counts. How a row states its task and its known verdict: score_columns.py.

A fault of a row or of a verifier stops the run with the row's line and id: a 0 in its place would
look like a verdict.
"""

import contextlib
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from cascade_kit.data import _parse as parse_line
from cascade_kit.data_columns import Row
from cascade_kit.score_columns import (
    DOMAINS,
    Options,
    PairScorer,
    Verdict,
    answer_lengths,
    canonical_domain,
    name_of,
    score_row,
)

READ_AHEAD = 4  # rows a worker that wait for their turn
IDS_SHOWN = 8


class VerifierStopped(ValueError):
    """A verifier failed; the message names the row, and no verdict on it may be made up."""


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
    values, parts and reasons. Raises ValueError with the row's position and id for a row or a
    verifier at fault, after the verdicts on all rows before it.

    >>> rows = [{"id": "a", "ground_truth": "18", "completion": "So she makes $18.\\nA: 18"}]
    >>> [(verdict["id"], verdict["value"]) for verdict in score_rows("math", rows)]
    [('a', 1.0)]
    """
    domain = canonical_domain(domain)
    options = Options(extract, official, allow_unsafe, pair_scorer)
    numbered = (Row("rows", line, values) for line, values in enumerate(rows, start=1))
    return in_order(lambda row: verdict_on(domain, row, options), numbered, workers)


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
            return {"id": name_of(row), "value": None, "parts": {}, "why": str(fault), "fault": True}

    return in_order(verdict, numbered_lines(path), workers)


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
    """`score_row` with every fault told with the place and the id of the row."""
    try:
        return score_row(domain, row, options)
    except ValueError as fault:
        raise ValueError(located(row, str(fault))) from fault
    except Exception as fault:  # anything else is the verifier's own: stop, but say where
        words = str(fault) if isinstance(fault, RuntimeError) else f"{type(fault).__name__}: {fault}"
        raise VerifierStopped(located(row, words)) from fault


def located(row: Row, words: str) -> str:
    place = f"{row.path}, line {row.line}"
    return f"{place}, row {name_of(row)}: {words.removeprefix(place).lstrip(': ')}"


def in_order[T, R](function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """`map` by some threads, a few items ahead; a fault comes after the results before it."""


def in_order(function: Callable, items: Iterable, workers: int) -> Iterator:
    """`map` by `workers` threads, a few items ahead; a fault comes after the results before it."""
    if workers < 1:
        raise ValueError(f"{workers} workers can do nothing; use at least one")
    return _in_order(function, items, workers)


def _in_order(function: Callable, items: Iterable, workers: int) -> Iterator:
    waiting: deque[Future] = deque()
    with ThreadPoolExecutor(max_workers=workers) as threads:
        try:
            for item in items:
                waiting.append(threads.submit(function, item))
                if len(waiting) >= READ_AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # after a fault, or when the caller stops early
            for future in waiting:
                future.cancel()


# ---- the command ---------------------------------------------------------------------------------
