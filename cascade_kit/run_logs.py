"""Read back what a run folder holds, finished or not: step logs, evaluations and the matrix."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_kit.forgetting import ForgettingMatrix
from cascade_kit.stage import ORDER

Row = Mapping[str, Any]


@dataclass(frozen=True)
class StageFolder:
    """One `K-STAGE/` folder of a run, read."""

    name: str  # "sft", "rlhf", ...
    steps: tuple[Row, ...]  # one row an optimiser step; none for the start
    evals: Mapping[str, Mapping[str, Row]]  # domain -> item id -> {id, score, completions, ...}


def read_stages(folder: Path) -> list[StageFolder]:
    """Read the `K-STAGE/` folders in the order of K; logs not written yet count as empty."""
    found = [(re.fullmatch(r"(\d+)-(.+)", path.name), path) for path in folder.iterdir()]
    numbered = sorted((int(match[1]), match[2], path) for match, path in found if match)
    return [
        StageFolder(
            name,
            tuple(read_lines(path / "steps.jsonl")),
            {
                file.stem: {str(row["id"]): row for row in read_lines(file)}
                for file in sorted((path / "eval").glob("*.jsonl"))
            },
        )
        for _, name, path in numbered
    ]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL log; a missing file has none, a torn last line is left out.

    A crash can cut the last line short; a broken line anywhere else raises ValueError.
    """
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line.decode("utf-8"))
        except ValueError as error:
            if number == len(lines):  # no newline after it: the crash came while it was written
                return
            raise ValueError(f"{path}:{number}: not JSON ({error}): remove the line") from error


def read_matrix(folder: Path, stages: Sequence[StageFolder]) -> ForgettingMatrix | None:
    """Read matrix.json, else build the matrix of the rows evaluated so far; None without any."""
    if (folder / "matrix.json").is_file():
        return ForgettingMatrix.from_json((folder / "matrix.json").read_text(encoding="utf-8"))
    return matrix_of(stages)


def matrix_of(stages: Sequence[StageFolder]) -> ForgettingMatrix | None:
    """Build the matrix of the rows evaluated so far; None without any."""
    if not stages or not stages[0].evals:
        return None
    first = stages[0].evals
    complete = stages[:1]
    for stage in stages[1:]:
        known = stage.name in first
        if not known or any(stage.evals.get(d, {}).keys() != first[d].keys() for d in first):
            break
        complete = [*complete, stage]
    trained = [stage.name for stage in complete[1:]]
    domains = [name for name in trained if name in first]
    usual = [*ORDER, *first]  # a domain of one's own comes last
    domains += sorted((name for name in first if name not in domains), key=usual.index)
    items = {
        (stage.name, domain): {key: item_scores(row) for key, row in rows.items()}
        for stage in complete
        for domain, rows in stage.evals.items()
    }
    return ForgettingMatrix.from_items([stage.name for stage in complete], domains, items)


def item_scores(row: Row) -> tuple[float, ...]:
    """Return the sample scores of an eval row: `samples`, else its one `score`."""
    return tuple(row["samples"]) if row.get("samples") else (row["score"],)
