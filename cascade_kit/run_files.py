"""Write what a run folder holds, so that a crash leaves a file whole, or not there."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_kit.run_logs import read_lines


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1) + "\n")


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either there as a whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def keep_steps(path: Path, step: int) -> None:
    """Cut a log after a step; without any step left it is removed."""
    rows = [row for row in read_lines(path) if row["step"] <= step]
    if rows:
        write_lines(path, rows)
    else:
        path.unlink(missing_ok=True)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
