"""Real data: a folder of JSONL files becomes train and eval problems of the five domains.

The file layer: which files are read, what was left out and why, and the split by hash. What a
format is stands in data_formats.py, how a row becomes a problem in data_rows.py.
"""

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_kit import data_formats
from cascade_kit.data_columns import Row
from cascade_kit.data_rows import Dropped
from cascade_kit.domains import SPLITS, bucket
from cascade_kit.problem import PreferencePair, Problem

Item = Problem | PreferencePair
NAMES_SHOWN = 8  # ids of dropped rows in one line of notes


@dataclass(frozen=True)
class DataSet:
    """What a data folder holds, by split and domain; a domain without a file is not a key."""

    train: Mapping[str, tuple[Problem, ...]]
    eval: Mapping[str, tuple[Problem, ...]]
    train_pairs: tuple[PreferencePair, ...]  # for the reward model; empty without such a file
    eval_pairs: tuple[PreferencePair, ...]
    notes: tuple[str, ...]  # a line a file: what it was taken for, what was dropped and why
    generated: bool = False  # the kit made the problems, so that their difficulty is known


@dataclass(frozen=True)
class TokenCap:
    """The longest prompt that is kept, in tokens; without a limit every prompt is."""

    count: Callable[[str], int] | None
    limit: int | None

    def check(self, item: Item, name: str) -> Item | Dropped:
        if self.count is None or self.limit is None:
            return item
        tokens = self.count(item.prompt)
        reason = f"a prompt over the cap of {self.limit} tokens"
        return item if tokens <= self.limit else Dropped(reason, name, tokens)


def load_data(
    folder: str | Path,
    *,
    token_count: Callable[[str], int] | None = None,
    max_prompt_tokens: int | None = None,
    seed: int = 0,
) -> DataSet:
    """Reads every *.jsonl below `folder`; the seed orders the rows, the prompt's hash splits them.

    `token_count` gives the tokens of a prompt; rows with more than `max_prompt_tokens` are left
    out. Bad input is a ValueError of one line that says what to do.
    """
    if max_prompt_tokens is not None and token_count is None:
        raise ValueError("max_prompt_tokens needs token_count, a function that counts the tokens")
    folder, cap = Path(folder), TokenCap(token_count, max_prompt_tokens)
    items: dict[str, list[Item]] = defaultdict(list)
    dropped: dict[str, list[Dropped]] = defaultdict(list)
    notes = []
    for path in _data_files(folder):
        name = path.relative_to(folder).as_posix()
        rows = _rows(path, name)
        columns = list(dict.fromkeys(column for row in rows for column in row.values))
        kind = data_formats.BY_NAME.get(data_formats.recognise(columns) or "")
        reason = _reason_to_skip(kind, rows, columns)
        if kind is None or reason:
            notes.append(f"{name}: skipped, {reason}")
            continue
        kept, left_out = _read(kind, rows, cap)
        items[kind.domain] += kept
        dropped[kind.domain] += left_out
        notes.append(f"{name}: {len(kept)} {kind.domain} rows ({kind.name}){_drop_words(left_out)}")
    if not items:
        raise ValueError(
            f"{folder}: no file holds rows that can be trained on ({'; '.join(notes[:3])}); "
            "see data_samples/README.md for the columns of each domain"
        )
    return _split(folder, items, dropped, notes, seed)


def load_rows(path: str | Path) -> list[dict[str, Any]]:
    """The JSON objects of a JSONL file, blank lines left out; faults name the file and the line."""
    return [dict(row.values) for row in _rows(Path(path), "")]


def _data_files(folder: Path) -> list[Path]:
    """Sorted; hidden files and folders (checkpoints of notebooks, version control) do not count."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"data folder {folder} {what}; give a folder that holds *.jsonl files")
    paths = (p.relative_to(folder) for p in folder.rglob("*.jsonl") if not p.is_dir())
    visible = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    if not visible:
        raise ValueError(f"data folder {folder} holds no *.jsonl file; put one a domain into it")
    return [folder / path for path in sorted(visible, key=Path.as_posix)]


def _rows(path: Path, name: str) -> list[Row]:
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give a JSONL file")
    rows = []
    for line, content in enumerate(path.read_bytes().split(b"\n"), start=1):
        if content.strip():
            rows.append(Row(str(path), line, parse_line(content, path, line), f"{name}:{line}"))
    if not rows:
        raise ValueError(f"{path} is empty; write one JSON object a line into it, or remove it")
    return rows


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


def _reason_to_skip(
    kind: data_formats.Format | None, rows: Sequence[Row], columns: Sequence[str]
) -> str:
    """Why a file is not read, "" if it is; raises where one column seems to be misspelt."""
    recorded = sorted(data_formats.RECORDED_ANSWERS & set(columns))
    if recorded:
        return f"it holds recorded model answers (columns: {', '.join(recorded)})"
    if kind is None:
        data_formats.refuse_near_miss(rows, columns)
        return f"its columns fit no format: {', '.join(columns[:8])}"
    if kind.domain != "instruct":
        return kind.skipped_since
    return _unknown_constraints(rows)


def _unknown_constraints(rows: Sequence[Row]) -> str:
    from cascade_kit.verifiers.ifeval import CONSTRAINTS

    used = Counter(identifier for row in rows for identifier in row.texts("instruction_id_list"))
    unknown = sorted(set(used) - set(CONSTRAINTS))
    if not unknown:
        return ""
    more = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
    return f"it uses constraints without a checker: {', '.join(unknown[:4])}{more}"


def _read(
    kind: data_formats.Format, rows: Sequence[Row], cap: TokenCap
) -> tuple[list[Item], list[Dropped]]:
    kept, left_out = [], []
    for row in rows:
        item = kind.read(row)
        if not isinstance(item, Dropped):
            item = cap.check(item, row.name)
        (left_out if isinstance(item, Dropped) else kept).append(item)
    return kept, left_out


def _drop_words(dropped: Sequence[Dropped]) -> str:
    """Counts and ids of the dropped rows by reason, to append to a note."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for row in dropped:
        by_reason[row.reason].append(row.name)
    return "".join(
        f"; {len(names)} dropped for {reason} ({', '.join(names[:NAMES_SHOWN])}"
        f"{', ...' if len(names) > NAMES_SHOWN else ''})"
        for reason, names in by_reason.items()
    )


def _split(
    folder: Path,
    items: Mapping[str, list[Item]],
    dropped: Mapping[str, list[Dropped]],
    notes: list[str],
    seed: int,
) -> DataSet:
    train: dict[str, tuple[Problem, ...]] = {}
    held_out: dict[str, tuple[Problem, ...]] = {}
    pairs: tuple[list[PreferencePair], list[PreferencePair]] = ([], [])
    for domain in sorted(items):
        distinct = _first_of_each(items[domain], _whole_item)
        problems = _first_of_each(map(_problem, distinct), lambda problem: _key(problem.prompt))
        if len(problems) < 2:
            raise ValueError(_too_few_words(folder, domain, problems, dropped[domain]))
        eval_keys = _eval_keys(_key(problem.prompt) for problem in problems)
        rng = random.Random(f"{domain}/{seed}")
        train[domain], held_out[domain] = map(tuple, _parts(problems, eval_keys, rng))
        if domain == "rlhf":
            pairs = _parts(distinct, eval_keys, rng)
        repeated = len(items[domain]) - len(distinct if domain == "rlhf" else problems)
        more = f"; {repeated} rows repeat another and were dropped" if repeated else ""
        notes.append(
            f"{domain}: {len(train[domain])} train and {len(held_out[domain])} eval problems{more}"
        )
    return DataSet(train, held_out, tuple(pairs[0]), tuple(pairs[1]), tuple(notes))


def _first_of_each(items: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
    first: dict[Any, Any] = {}
    for item in items:
        first.setdefault(key(item), item)
    return list(first.values())


def _whole_item(item: Item) -> tuple[str, ...]:
    """Problems repeat each other when the prompts do, pairs only when the answers do as well."""
    if isinstance(item, Problem):
        return (_key(item.prompt),)
    return (_key(item.prompt), item.chosen, item.rejected)


def _problem(item: Item) -> Problem:
    """The prompt of a pair is an rlhf problem without a true preference."""
    return item if isinstance(item, Problem) else Problem(item.id, "rlhf", item.prompt)


def _key(prompt: str) -> str:
    """Prompts that differ in white space only belong to the same split."""
    return " ".join(prompt.split())


def _eval_keys(keys: Iterable[str]) -> set[str]:
    """The prompts to hold out: the last fifth of the hash buckets, but never none and never all."""
    ordered = sorted(
        set(keys), key=lambda key: (bucket(key), hashlib.sha256(key.encode()).digest())
    )
    first = next((i for i, k in enumerate(ordered) if bucket(k) in SPLITS["eval"]), len(ordered))
    return set(ordered[min(max(first, 1), len(ordered) - 1) :])


def _parts(items: Iterable[Any], eval_keys: set[str], rng: random.Random) -> tuple[list, list]:
    """Train and eval part, each in an order that mixes the files."""
    parts: tuple[list, list] = ([], [])
    for item in items:
        parts[_key(item.prompt) in eval_keys].append(item)
    for part in parts:
        rng.shuffle(part)
    return parts


def _too_few_words(
    folder: Path, domain: str, problems: Sequence[Problem], dropped: Sequence[Dropped]
) -> str:
    missing = 2 - len(problems)
    tokens = sorted(row.prompt_tokens for row in dropped if row.prompt_tokens is not None)
    remedy = f"add {domain} rows, or move the file out of the folder"
    if len(tokens) >= missing:
        remedy = f"raise the cap on prompt tokens to {tokens[missing - 1]} or more, or {remedy}"
    return (
        f"{folder}: too few {domain} rows are left ({len(problems)} distinct, at least two are "
        f"needed to train and to evaluate){_drop_words(dropped)}; {remedy}"
    )
