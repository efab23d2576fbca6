"""Which rows of a domain train and which evaluate, and what repeats is left out."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cascade_kit.data_overlap import N, overlapping
from cascade_kit.data_rows import Dropped
from cascade_kit.data_sources import Use
from cascade_kit.domains import SPLITS, bucket
from cascade_kit.problem import PreferencePair, Problem

Item = Problem | PreferencePair
NAMES_SHOWN = 8  # ids of dropped rows in one line of notes


@dataclass
class Pile:
    """What has been read for one domain, by the side it may go to."""

    items: dict[Use, list[Item]] = field(default_factory=lambda: defaultdict(list))
    dropped: list[Dropped] = field(default_factory=list)

    def all(self) -> list[Item]:
        return [item for items in self.items.values() for item in items]


@dataclass(frozen=True)
class Sides:
    """The two sides of one domain; no prompt is on both."""

    train: tuple[Problem, ...]
    eval: tuple[Problem, ...]
    train_pairs: tuple[PreferencePair, ...]
    eval_pairs: tuple[PreferencePair, ...]
    note: str  # how many there are and what was left out


def split_domain(
    where: str, domain: str, pile: Pile | None, named: Pile | None, seed: int
) -> Sides:
    """Splits the rows of a domain, or takes the `named` ones to evaluate; ValueError if too few."""
    pile = pile or Pile()
    own = pile.all() if named else [*pile.items["split"], *pile.items["train"]]
    held_out = named.all() if named else pile.items["eval"]
    fixed = {_key(item.prompt) for item in held_out}
    items = [*held_out, *(item for item in own if _key(item.prompt) not in fixed)]
    distinct = _first_of_each(items, _whole_item)
    problems = _first_of_each(map(_problem, distinct), lambda problem: _key(problem.prompt))
    if len(problems) < (1 if named and not own else 2):
        raise ValueError(_too_few_words(where, domain, problems, pile.dropped))
    eval_keys = fixed
    if not named and (pile.items["split"] or not fixed):
        eval_keys = fixed | _eval_keys(_key(item.prompt) for item in pile.items["split"])
    rng = random.Random(f"{domain}/{seed}")
    train, evaluated = _parts(problems, eval_keys, rng)
    kept = _without_overlap(where, domain, train, evaluated)
    train_pairs, eval_pairs = (), ()
    if domain == "rlhf":
        keys = {_key(problem.prompt) for problem in kept}
        ours, theirs = _parts(_pairs(distinct), eval_keys, rng)
        train_pairs = tuple(pair for pair in ours if _key(pair.prompt) in keys)
        eval_pairs = tuple(theirs)
    repeated = len(held_out) + len(own) - len(distinct if domain == "rlhf" else problems)
    note = f"{len(kept)} train and {len(evaluated)} eval problems"
    note += f"; {repeated} rows repeat another and were dropped" if repeated else ""
    if len(kept) < len(train):
        note += f"; {len(train) - len(kept)} train prompts share {N} words in a row with an eval "
        note += "prompt and were dropped"
    return Sides(tuple(kept), tuple(evaluated), train_pairs, eval_pairs, note)


def _without_overlap(
    where: str, domain: str, train: Sequence[Problem], evaluated: Sequence[Problem]
) -> list[Problem]:
    same = overlapping([p.prompt for p in train], [p.prompt for p in evaluated])
    if train and len(same) == len(train):
        raise ValueError(
            f"{where}: each {domain} row to train on shares {N} words in a row with an evaluation "
            "row; name other rows as --eval-data, or add rows to train on"
        )
    return [problem for i, problem in enumerate(train) if i not in same]


def _pairs(items: Iterable[Item]) -> list[PreferencePair]:
    return [item for item in items if isinstance(item, PreferencePair)]


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
    where: str, domain: str, problems: Sequence[Problem], dropped: Sequence[Dropped]
) -> str:
    missing = 2 - len(problems)
    tokens = sorted(row.prompt_tokens for row in dropped if row.prompt_tokens is not None)
    remedy = f"add {domain} rows, or move the file out of the folder"
    if len(tokens) >= missing:
        remedy = f"raise the cap on prompt tokens to {tokens[missing - 1]} or more, or {remedy}"
    return (
        f"{where}: too few {domain} rows are left ({len(problems)} distinct, at least two are "
        f"needed to train and to evaluate){drop_words(dropped)}; {remedy}"
    )


def drop_words(dropped: Sequence[Dropped]) -> str:
    """Counts and ids of the dropped rows by reason, to append to a note."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for row in dropped:
        by_reason[row.reason].append(row.name)
    return "".join(
        f"; {len(names)} dropped for {reason} ({', '.join(names[:NAMES_SHOWN])}"
        f"{', ...' if len(names) > NAMES_SHOWN else ''})"
        for reason, names in by_reason.items()
    )
