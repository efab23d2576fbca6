"""The forgetting matrix: what every domain scores after every stage, and what each stage changed.

Rows are stages (row 0, "sft", is the start), columns are domains. The metrics in this file are pure
functions of an array of scores (S+1, D); `ForgettingMatrix` adds intervals from the scores of the
single items. Write R[i, d] for the score on domain d after stage i, and let stages 1..T train the
domains d_1..d_T: in any order, and not necessarily all D of them. A metric that is undefined (too
few stages) is None, never NaN.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cascade_kit import matrix_words
from cascade_kit.intervals import (
    Interval,
    all_binary,
    mean_change_interval,
    paired_share_interval,
    score_interval,
)

ItemScores = Mapping[str, Sequence[float]]  # item id -> its k sampled answers' scores in [0, 1]
Scores = np.ndarray | Sequence[Sequence[float]]  # (S+1, D)

# Stage-by-stage scores in points of Nemotron-Cascade (arXiv:2512.13607v2, tables 2, 4-8), reduced
# to each stage's own benchmark. Rows: SFT, RLHF, IF-RL, Math RL, Code RL, SWE RL. One run each and
# no error bars in the source.
PAPER_STAGES = ("sft", "rlhf", "instruct", "math", "code", "swe")
PAPER_DOMAINS = PAPER_STAGES[1:]
PAPER_BENCHMARKS = (
    "ArenaHard",
    "IFEval strict",
    "AIME25",
    "LiveCodeBench v6",
    "SWE-bench Verified",
)
PAPER_MATRICES: dict[str, tuple[tuple[float, ...], ...]] = {
    "8B unified": (
        (70.0, 70.8, 72.8, 56.7, 26.1),
        (90.1, 50.1, 75.0, 67.2, 28.2),
        (88.0, 90.4, 75.2, 66.7, 28.3),
        (87.0, 92.1, 81.9, 67.4, 30.6),
        (87.8, 90.7, 80.5, 71.5, 31.6),
        (87.9, 90.2, 80.1, 71.1, 37.2),
    ),
    "8B-Thinking": (
        (71.7, 66.3, 71.6, 56.7, 30.2),
        (89.9, 45.5, 75.1, 67.3, 33.3),
        (86.3, 83.3, 72.3, 65.9, 32.4),
        (84.0, 84.7, 80.2, 68.1, 32.5),
        (85.4, 83.1, 81.8, 71.0, 33.3),
        (85.8, 83.7, 81.4, 71.4, 38.5),
    ),
    "14B-Thinking": (
        (76.9, 69.8, 81.1, 63.1, 34.5),
        (93.1, 56.2, 81.8, 72.3, 38.8),
        (90.2, 81.3, 82.3, 72.7, 38.4),
        (89.3, 84.3, 83.3, 72.4, 39.7),
        (89.8, 81.8, 83.5, 74.8, 39.6),
        (89.5, 81.9, 83.3, 74.6, 43.1),
    ),
}


def trained_columns(
    scores: Scores, stages: Sequence[str], domains: Sequence[str]
) -> tuple[np.ndarray, list[int]]:
    """Return R (T+1, D) as floats and the columns of d_1..d_T; ValueError if the shapes disagree.

    `stages` are the row names, the start first; each later one names the domain it trained.
    """
    r = np.asarray(scores, dtype=float)
    if r.shape != (len(stages), len(domains)):
        raise ValueError(
            f"scores have shape {r.shape} but there are {len(stages)} rows and {len(domains)} "
            "domains: give one row for the start and one a stage, one column a domain"
        )
    if not np.isfinite(r).all():
        raise ValueError("scores hold a NaN or infinity: evaluate every domain after every stage")
    unknown = [stage for stage in stages[1:] if stage not in domains]
    if unknown:
        raise ValueError(f"stage {unknown[0]!r} is no column: name each row by its trained domain")
    return r, [list(domains).index(stage) for stage in stages[1:]]


def acc(scores: Scores, stages: Sequence[str], domains: Sequence[str]) -> float | None:
    """ACC: mean final score of the trained domains, 1/T sum_i R[T, d_i] (GEM, arXiv:1706.08840)."""
    r, columns = trained_columns(scores, stages, domains)
    return _mean([r[-1, d] for d in columns])


def bwt(scores: Scores, stages: Sequence[str], domains: Sequence[str]) -> float | None:
    """BWT: 1/(T-1) sum_{i<T} (R[T, d_i] - R[i, d_i]); negative = later stages hurt (GEM).

    GEM's formula; its published code divides by T.
    """
    r, columns = trained_columns(scores, stages, domains)
    return _mean([r[-1, d] - r[i, d] for i, d in enumerate(columns[:-1], start=1)])


def fwt(scores: Scores, stages: Sequence[str], domains: Sequence[str]) -> float | None:
    """FWT: 1/(T-1) sum_{i=2..T} (R[i-1, d_i] - R[0, d_i]): help received before the own stage.

    GEM compares with a random initialisation; a language model starts from SFT, so row 0 is used.
    """
    r, columns = trained_columns(scores, stages, domains)
    return _mean([r[i, d] - r[0, d] for i, d in enumerate(columns[1:], start=1)])


def forgetting(scores: Scores, stages: Sequence[str], domains: Sequence[str]) -> float | None:
    """Forgetting F_T: 1/(T-1) sum_{j<T} max_{1<=l<T} (R[l, d_j] - R[T, d_j]); lower is better.

    Chaudhry et al. 2018, arXiv:1801.10112. The maximum runs over all stages before the last, those
    before d_j was trained included.
    """
    r, columns = trained_columns(scores, stages, domains)
    return _mean([r[1:-1, d].max() - r[-1, d] for d in columns[:-1]])


def largest_drop_before_training(
    scores: Scores, stages: Sequence[str], domains: Sequence[str]
) -> dict[str, Any] | None:
    """Return {domain, stage, drop > 0}: the largest one-stage fall of a domain not yet trained.

    BWT and forgetting do not see it. A domain that no stage trains counts as not yet trained in
    every row. None if no such domain fell.
    """
    r, columns = trained_columns(scores, stages, domains)
    falls = [
        (r[i - 1, d] - r[i, d], domain, stages[i])
        for i in range(1, len(stages))
        for d, domain in enumerate(domains)
        if d not in columns[:i]
    ]
    drop, domain, stage = max(falls, key=lambda fall: fall[0], default=(0.0, "", ""))
    return {"domain": domain, "stage": stage, "drop": float(drop)} if drop > 1e-12 else None


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


@dataclass(frozen=True)
class Change:
    """What one stage did to one domain, on the same items before and after."""

    mean: float  # mean over items of after - before
    low: float | None  # 95 % interval of that mean; None where only scores are known
    high: float | None
    lost: int | None  # items whose mean score fell
    gained: int | None  # items whose mean score rose


def paired_change(before: ItemScores, after: ItemScores) -> Change:
    """Compare the same items before and after; ValueError if the item ids differ.

    One binary answer an item: exact interval on the discordant pairs. Several or graded answers:
    t on the differences of item means. Both stay honest without any change (see intervals.py).
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())[0]
        raise ValueError(f"item {odd!r} was scored in one row only: evaluate the same items again")
    differences = [_item_mean(after[item]) - _item_mean(before[item]) for item in before]
    lost = sum(difference < -1e-12 for difference in differences)
    gained = sum(difference > 1e-12 for difference in differences)
    if all_binary([*before.values(), *after.values()]):
        low, high = paired_share_interval(lost, gained, len(differences))
    else:
        low, high = mean_change_interval(differences)
    return Change(math.fsum(differences) / len(differences), low, high, lost, gained)


def _item_mean(samples: Sequence[float]) -> float:
    return math.fsum(samples) / len(samples)


def _check_items(place: str, items: ItemScores) -> None:
    if not items:
        raise ValueError(f"{place}: no items to score: evaluate at least one item")
    for item, samples in items.items():
        if not samples or not all(0.0 <= score <= 1.0 for score in samples):
            raise ValueError(
                f"{place}: item {item!r} has scores {list(samples)}: the matrix needs at least one "
                "and each in [0, 1] (Score.success)"
            )


@dataclass(frozen=True)
class ForgettingMatrix:
    """Scores (S+1, D) after every stage with their intervals, and the change each stage made."""

    stages: tuple[str, ...]  # row names: "sft", then the domain trained by each stage
    domains: tuple[str, ...]  # column names
    scores: tuple[tuple[float, ...], ...]  # (S+1, D) mean over items of the mean of k answers
    n: tuple[tuple[int | None, ...], ...]  # (S+1, D) number of items; None where unknown
    interval: tuple[tuple[Interval | None, ...], ...]  # (S+1, D) 95 % [low, high] of each score
    change: tuple[tuple[Change, ...] | None, ...]  # (S+1, D) against the row above; row 0 None

    def __post_init__(self) -> None:
        trained_columns(self.scores, self.stages, self.domains)
        if len(set(self.stages)) < len(self.stages) or len(set(self.domains)) < len(self.domains):
            raise ValueError("a stage or domain is named twice: give each row and column one name")

    @classmethod
    def from_items(
        cls,
        stages: Sequence[str],
        domains: Sequence[str],
        items: Mapping[tuple[str, str], ItemScores],
    ) -> "ForgettingMatrix":
        """Build the matrix from `items[stage, domain]`; the same items in every row of a column."""
        grid = [[items[stage, domain] for domain in domains] for stage in stages]
        for stage, row in zip(stages, grid, strict=True):
            for domain, cell in zip(domains, row, strict=True):
                _check_items(f"{domain} after {stage}", cell)
        return cls(
            tuple(stages),
            tuple(domains),
            _each(grid, lambda cell: _item_mean([_item_mean(s) for s in cell.values()])),
            _each(grid, len),
            _each(grid, lambda cell: score_interval(list(cell.values()))),
            (
                None,
                *(tuple(map(paired_change, *pair)) for pair in zip(grid, grid[1:], strict=False)),
            ),
        )

    @classmethod
    def from_scores(
        cls, stages: Sequence[str], domains: Sequence[str], scores: Scores
    ) -> "ForgettingMatrix":
        """Build a matrix of bare scores in [0, 1] (a published table): no n and no intervals."""
        grid = [[float(score) for score in row] for row in scores]
        changes = [
            tuple(Change(b - a, None, None, None, None) for a, b in zip(above, row, strict=True))
            for above, row in zip(grid, grid[1:], strict=False)
        ]
        unknown = _each(grid, lambda score: None)
        return cls(
            tuple(stages), tuple(domains), _each(grid, float), unknown, unknown, (None, *changes)
        )

    @property
    def metrics(self) -> dict[str, Any]:
        """Return acc, bwt, fwt, forgetting (float or None) and largest_drop_before_training."""
        functions = (acc, bwt, fwt, forgetting, largest_drop_before_training)
        return {f.__name__: f(self.scores, self.stages, self.domains) for f in functions}

    def to_json(self) -> dict[str, Any]:
        """Return the content of matrix.json: lists, numbers and null only."""
        return {
            "stages": list(self.stages),
            "domains": list(self.domains),
            "scores": [list(row) for row in self.scores],
            "n": [list(row) for row in self.n],
            "interval": [[cell and list(cell) for cell in row] for row in self.interval],
            "change": [row and [asdict(cell) for cell in row] for row in self.change],
            "metrics": self.metrics,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> "ForgettingMatrix":
        """Read what `to_json` wrote (the mapping or its text); metrics are computed afresh."""
        data = json.loads(data) if isinstance(data, str) else data
        missing = [
            key
            for key in ("stages", "domains", "scores", "n", "interval", "change")
            if key not in data
        ]
        if missing:
            raise ValueError(f"the matrix has no {missing[0]!r}: run the cascade again to write it")
        return cls(
            tuple(data["stages"]),
            tuple(data["domains"]),
            _each(data["scores"], float),
            _each(data["n"], lambda cell: cell),
            _each(data["interval"], lambda cell: cell and tuple(cell)),
            tuple(row and tuple(Change(**cell) for cell in row) for row in data["change"]),
        )

    def summary(self) -> str:
        """Return the finding in one or two plain sentences."""
        return matrix_words.summary(self)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one flat dict a cell, ready for `pandas.DataFrame(matrix.to_rows())`."""
        return matrix_words.cell_rows(self)

    def __str__(self) -> str:
        return matrix_words.text_tables(self)

    def _repr_html_(self) -> str:
        return matrix_words.html_tables(self)


def _each(grid: Sequence[Sequence[Any]], function: Callable[[Any], Any]) -> tuple[tuple, ...]:
    return tuple(tuple(function(cell) for cell in row) for row in grid)
