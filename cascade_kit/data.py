"""Real data: rows of files, the Hub or reasoning-gym become problems of the five domains.

What was left out and why, which rows train and which evaluate. Where rows come from stands in
data_sources.py, what a format is in data_formats.py, how a row becomes a problem in data_rows.py,
how training rows are kept apart from evaluation rows in data_split.py and data_overlap.py.

A row that cannot be what its file says (a missing column, another type, a blank question) stops
the load: the file is wrong. Content that public data sets are known to hold among good rows (a gold
answer that is no answer, tests that do not parse, constraints without a checker, ties) is left out
and counted in the notes.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_kit import data_formats
from cascade_kit.data_columns import Row
from cascade_kit.data_rows import Dropped
from cascade_kit.data_sources import Table, parse_line, read_file, read_source
from cascade_kit.data_split import Item, Pile, drop_words, split_domain
from cascade_kit.problem import PreferencePair, Problem

__all__ = ["DataSet", "load_data", "load_rows", "parse_line"]


@dataclass(frozen=True)
class DataSet:
    """What the sources hold, by split and domain; a domain without rows is not a key."""

    train: Mapping[str, tuple[Problem, ...]]
    eval: Mapping[str, tuple[Problem, ...]]
    train_pairs: tuple[PreferencePair, ...]  # for the reward model; empty without such a file
    eval_pairs: tuple[PreferencePair, ...]
    notes: tuple[str, ...]  # a line a table: what it was taken for, what was dropped and why
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
    *sources: str | Path,
    eval_sources: Sequence[str | Path] = (),
    token_count: Callable[[str], int] | None = None,
    max_prompt_tokens: int | None = None,
    seed: int = 0,
) -> DataSet:
    """Reads every source; the seed orders the rows, the prompt's hash splits them.

    A domain that has rows in `eval_sources` is evaluated on these alone. Training prompts that
    share nine words in a row with an evaluation prompt are left out. `token_count` gives the tokens
    of a prompt; rows with more than `max_prompt_tokens` are left out. Bad input is a ValueError of
    one line that says what to do.
    """
    if not sources:
        raise ValueError("no data: name a folder, a file, hub:OWNER/NAME or gym:TASK")
    if max_prompt_tokens is not None and token_count is None:
        raise ValueError("max_prompt_tokens needs token_count, a function that counts the tokens")
    cap, where = TokenCap(token_count, max_prompt_tokens), ", ".join(map(str, sources))
    several = len(sources) + len(eval_sources) > 1
    piles, notes = _read_all(sources, cap, "train", several, seed)
    if not piles:
        raise ValueError(_nothing_words(where, notes))
    named, more = _read_all(eval_sources, cap, "test", several, seed)
    if eval_sources and not named:
        raise ValueError(_nothing_words(", ".join(map(str, eval_sources)), more))
    notes += [f"eval: {note}" for note in more]
    sides = {
        domain: split_domain(where, domain, piles.get(domain), named.get(domain), seed)
        for domain in sorted({*piles, *named})
    }
    return DataSet(
        train={domain: side.train for domain, side in sides.items() if side.train},
        eval={domain: side.eval for domain, side in sides.items()},
        train_pairs=tuple(pair for side in sides.values() for pair in side.train_pairs),
        eval_pairs=tuple(pair for side in sides.values() for pair in side.eval_pairs),
        notes=(*notes, *(f"{domain}: {side.note}" for domain, side in sides.items())),
    )


def load_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of one file; faults name the file and the line."""
    return [dict(row.values) for row in read_file(Path(path))]


def _read_all(
    sources: Sequence[str | Path], cap: TokenCap, split: str, several: bool, seed: int
) -> tuple[dict[str, Pile], list[str]]:
    """Everything that the sources hold, by domain, and a note a table."""
    piles: dict[str, Pile] = defaultdict(Pile)
    notes = []
    for source in sources:
        # Ids of rows begin with the source where two of them may hold files of one name.
        prefix = f"{Path(source).name}/" if several else ""
        for table in read_source(source, prefix=prefix, split=split, seed=seed):
            notes.append(_add_table(table, cap, piles))
    return dict(piles), notes


def _add_table(table: Table, cap: TokenCap, piles: dict[str, Pile]) -> str:
    """Puts the problems of a table on the piles; the note that says what became of it."""
    rows = table.rows
    columns = list(dict.fromkeys(column for row in rows for column in row.values))
    kind = data_formats.BY_NAME.get(data_formats.recognise(columns) or "")
    reason = _reason_to_skip(kind, rows, columns)
    if kind is None or reason:
        return f"{table.name}: skipped, {reason}"
    kept, left_out = _read(kind, kind.join(rows) if kind.join else rows, cap)
    pile = piles[kind.domain]
    pile.items[table.use] += kept
    pile.dropped += left_out
    return f"{table.name}: {len(kept)} {kind.domain} rows ({kind.name}){drop_words(left_out)}"


def _nothing_words(where: str, notes: Sequence[str]) -> str:
    return (
        f"{where}: no file holds rows that can be trained on ({'; '.join(notes[:3])}); "
        "see data_samples/README.md for the columns of each domain"
    )


def _reason_to_skip(
    kind: data_formats.Format | None, rows: Sequence[Row], columns: Sequence[str]
) -> str:
    """Why a file is not read, "" if it is; raises where one column seems to be misspelt."""
    recorded = sorted(data_formats.RECORDED_ANSWERS & set(columns))
    if recorded and kind is None:
        return f"it holds recorded model answers (columns: {', '.join(recorded)})"
    if kind is None:
        data_formats.refuse_near_miss(rows, columns)
        return f"its columns fit no format: {', '.join(columns[:8])}"
    if kind.domain != "instruct":
        return kind.skipped_since
    return _unknown_constraints(rows)


def _unknown_constraints(rows: Sequence[Row]) -> str:
    """Why a file is skipped in which every row has a constraint that nothing can check."""
    from cascade_kit.verifiers.ifeval import CONSTRAINTS

    lists = [row.texts("instruction_id_list") for row in rows]
    unknown = sorted({name for names in lists for name in names} - set(CONSTRAINTS))
    if any(set(names) <= set(CONSTRAINTS) for names in lists):
        return ""  # the reader leaves out the others one by one
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
