"""Where rows come from: files of four kinds, folders of them, the Hub, and reasoning-gym.

    folder or file         *.jsonl, *.json (an array), *.csv, *.parquet
    hub:OWNER/NAME[:CONFIG][@SPLIT]   a data set of the Hugging Face Hub (or a folder of one)
    gym:TASK[:COUNT]       generated problems of reasoning-gym

Everything becomes tables of `Row`s. What the columns mean is decided in data_formats.py.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cascade_kit.data_columns import Row, nearest

Use = Literal["split", "train", "eval"]  # "split": a part of the rows is held out
SUFFIXES = (".jsonl", ".csv", ".parquet")  # searched for in folders; .json only where it is named
HUB = re.compile(r"hub:(?P<name>[^:@]+)(?::(?P<config>[^:@]+))?(?:@(?P<split>[^:@]+))?")
GYM = re.compile(r"gym:(?P<task>\w+)(?::(?P<count>\d+))?")
GYM_COUNT = 500  # training problems of a gym task; a fifth as many to evaluate
# reasoning-gym draws item i from seed + i: evaluation seeds lie above all that training can reach.
GYM_BLOCK, GYM_EVAL_SEED = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Table:
    """The rows of one file, split or task; `use` says which side they may go to."""

    name: str  # what the notes call it
    rows: Sequence[Row]
    use: Use = "split"


def read_source(
    source: str | Path, *, prefix: str = "", split: str = "train", seed: int = 0
) -> list[Table]:
    """The tables of one source, in order. `split` is read of a Hub data set that names none.

    `prefix` starts the ids of the rows. Raises ValueError with what to do.
    """
    text = str(source)
    if text.startswith("hub:"):
        return [_hub_table(text, split)]
    if text.startswith("gym:"):
        return _gym_tables(text, seed)
    return list(_local_tables(Path(source), prefix))


def _local_tables(path: Path, prefix: str) -> Iterator[Table]:
    if path.is_file():
        files, top = [path], path.parent
    else:
        files, top = _data_files(path), path
    for file in files:
        name = prefix + file.relative_to(top).as_posix()
        yield Table(name, read_file(file, name))


def _data_files(folder: Path) -> list[Path]:
    """Sorted; hidden files and folders (checkpoints of notebooks, version control) do not count."""
    if not folder.is_dir():
        hub = re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder))
        remedy = f" (of the Hub: hub:{folder})" if hub else ""
        raise ValueError(
            f"data folder {folder} does not exist; give a folder that holds *.jsonl files, a "
            f"*.jsonl, *.json, *.csv or *.parquet file, hub:OWNER/NAME{remedy} or gym:TASK"
        )
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.suffix in SUFFIXES)
    visible = [p for p in found if not any(part.startswith(".") for part in p.parts)]
    if not visible:
        raise ValueError(
            f"data folder {folder} holds no *.jsonl file; put one a domain into it "
            "(*.csv and *.parquet are read too)"
        )
    files = [folder / path for path in sorted(visible, key=Path.as_posix)]
    return [path for path in files if path.is_file()]


def read_file(path: Path, name: str = "") -> list[Row]:
    """The rows of one file, by its suffix; anything but .json, .csv and .parquet is JSONL."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give a JSONL file")
    readers = {".json": _json_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}
    rows = list(readers.get(path.suffix.lower(), _jsonl_rows)(path, name))
    if not rows:
        raise ValueError(f"{path} is empty; write one JSON object a line into it, or remove it")
    return rows


def _jsonl_rows(path: Path, name: str) -> Iterator[Row]:
    for line, content in enumerate(path.read_bytes().split(b"\n"), start=1):
        if content.strip():
            yield Row(str(path), line, parse_line(content, path, line), f"{name}:{line}")


def parse_line(content: bytes, path: Path, line: int) -> dict[str, Any]:
    """The JSON object of one line; a fault is a ValueError that names the file and the line."""
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None
    except (ValueError, RecursionError) as fault:
        message = str(fault).partition(": line 1 ")[0]
        raise ValueError(
            f"{path}, line {line}: not valid JSON ({message}); write one JSON object a line"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(
            f"{path}, line {line}: not a JSON object; write one object with columns a line"
        )
    return value


def _json_rows(path: Path, name: str) -> Iterator[Row]:
    """A JSON array of objects, or lines of them under the wrong suffix."""
    text = _text(path)
    if not text.lstrip().startswith("["):
        yield from _jsonl_rows(path, name)
        return
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise ValueError(
            f"{path}: not valid JSON ({fault}); give an array of objects, or one object a line as "
            "*.jsonl"
        ) from None
    yield from _numbered(values, str(path), name)


def _csv_rows(path: Path, name: str) -> Iterator[Row]:
    """A table with a header; rows are counted as a spreadsheet does, the header is row 1."""
    text = _text(path)
    header_line = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t", key=header_line.count)
    table = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        records = list(table)
    except csv.Error as fault:
        raise ValueError(
            f"{path}, line {table.line_num}: not valid CSV ({fault}); close the quotes and double "
            "those inside a cell"
        ) from None
    header = [column.strip() for column in records[0]] if records else []
    if len(set(header)) < len(header) or not all(header):
        raise ValueError(f"{path}: each column needs its own name in the first row")
    for number, cells in enumerate(records[1:], start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, row {number}: {len(cells)} cells for {len(header)} columns; put a cell "
                f"that holds {delimiter!r} in double quotes"
            )
        values = dict(zip(header, cells, strict=True))
        yield Row(str(path), number, values, f"{name}:{number}", "row")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8 text; save the file as UTF-8") from None


def _parquet_rows(path: Path, name: str) -> Iterator[Row]:
    try:
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError:
        raise ValueError(
            f'{path}: Parquet needs pyarrow; pip install "cascade-kit[data]", or save the rows as '
            "JSONL"
        ) from None
    try:
        values = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.lib.ArrowException, OSError) as fault:
        message = str(fault).partition("\n")[0]
        raise ValueError(f"{path}: not a Parquet file ({message}); save it again") from None
    yield from _numbered(values, str(path), name)


def _numbered(values: Iterable[Any], where: str, name: str) -> Iterator[Row]:
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            raise ValueError(f"{where}, row {number}: not an object; give objects with columns")
        yield Row(where, number, value, f"{name}:{number}", "row")


def _hub_table(source: str, default_split: str) -> Table:
    """One split through `datasets`, which downloads it once and then reads its cache."""
    match = HUB.fullmatch(source)
    if not match:
        raise ValueError(f"{source!r} is no data set; write hub:OWNER/NAME[:CONFIG][@SPLIT]")
    try:
        import datasets
    except ImportError:
        raise ValueError(f'{source} needs datasets; pip install "cascade-kit[data]"') from None
    name, config = match["name"], match["config"]
    split = match["split"] or default_split
    try:
        rows = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as fault:
        message = " ".join(str(fault).split())
        raise ValueError(
            f"{source}: could not be loaded ({message[:300]}); check the name, its configuration "
            f"(hub:{name}:CONFIG), the split (hub:{name}@SPLIT, read: {split}) and the connection"
        ) from None
    table = list(_numbered(rows, source, source))
    if not table:
        raise ValueError(f"{source}: split {split} is empty; name another one as hub:{name}@SPLIT")
    return Table(source, table)


def _gym_tables(source: str, seed: int) -> list[Table]:
    """Problems of one task from two blocks of seeds that cannot meet."""
    match = GYM.fullmatch(source)
    if not match:
        raise ValueError(f"{source!r} is no gym task; write gym:TASK or gym:TASK:COUNT")
    task, count = match["task"], int(match["count"] or GYM_COUNT)
    if not 5 <= count <= GYM_BLOCK:
        raise ValueError(f"{source}: COUNT must be between 5 and {GYM_BLOCK}")
    train = _gym_rows(source, task, count, seed % 1000 * GYM_BLOCK)
    held_out = _gym_rows(source, task, count // 5, GYM_EVAL_SEED)
    return [Table(f"{source} train", train, "train"), Table(f"{source} eval", held_out, "eval")]


def _gym_rows(source: str, task: str, count: int, seed: int) -> list[Row]:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ValueError(f'{source} needs reasoning-gym; pip install "cascade-kit[gym]"') from None
    if task not in DATASETS:
        close = nearest([task], DATASETS)
        some = ", ".join(sorted(DATASETS)[:8])
        hint = f"did you mean gym:{close}?" if close else f"choose another, such as {some}"
        raise ValueError(f"{source}: reasoning-gym has no task {task!r}; {hint}")
    entries = reasoning_gym.create_dataset(task, size=count, seed=seed)
    return [
        Row(source, i, _gym_values(task, entry), f"gym/{task}:{seed + i - 1}", "item")
        for i, entry in enumerate(entries, start=1)
    ]


def _gym_values(task: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {"gym_task": task, "question": entry["question"], "gym_entry": entry}
