"""History: what a watched run left behind, as a table, a sentence and records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from cascade_kit.records import StepRecord
from cascade_kit.report_html import table

SHOWN = 8  # longer step tables show the first 3 and the last 5 steps
COLUMNS = (
    "step", "reward", "success", "all right", "all wrong", "length", "truncated", "gradient norm",
    "seconds",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class History:
    """The steps and scores that `watch` or `attach` saw."""

    steps: Mapping[str, tuple[StepRecord, ...]] = field(default_factory=dict)  # stage -> records
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # row -> domain -> mean
    total: int = 0  # steps the stage was to have, where it ended in them; else 0
    interrupted: bool = False  # True if it was stopped before its end
    state: str = ""  # one sentence, where there is more to say

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """All step records in order."""
        return tuple(record for records in self.steps.values() for record in records)

    def summary(self) -> str:
        """What happened, in a few plain sentences."""
        from cascade_kit.plots import training_finding

        found = []
        for stage, records in self.steps.items():
            finding = training_finding([vars(record) for record in records], stage)
            found.append(f"{finding}.")
        for row, scores in self.scores.items():
            told = ", ".join(f"{domain} {score:.2f}" for domain, score in scores.items())
            found.append(f"After {row}: {told}.")
        if self.state:
            found.append(f"{self.state}.")
        elif self.interrupted:
            found.append(f"Interrupted {self._where()}.")
        return " ".join(found) or "Nothing happened yet."

    def _where(self) -> str:
        if not self.steps or not self.total:
            return "before the end"
        return f"after step {self.records[-1].step} of {self.total}"

    def __repr__(self) -> str:
        return f"History: {self.summary()}"

    def _repr_html_(self) -> str:
        tables = [steps_table(stage, records) for stage, records in self.steps.items()]
        if self.scores:
            tables.append(scores_table(self.scores))
        return "".join(tables) + f"<p>{escape(self.summary())}</p>"


def steps_table(stage: str, records: tuple[StepRecord, ...]) -> str:
    """The first and the last steps of a stage as an HTML table."""
    shown = records if len(records) <= SHOWN else (*records[:3], *records[3 - SHOWN :])
    left_out = f", {len(records) - SHOWN} steps in the middle left out" * (
        len(shown) < len(records)
    )
    caption = f"{f'Stage {stage}' if stage else 'Training'}: {len(records)} steps{left_out}"
    return table(caption, COLUMNS, [step_row(record) for record in shown])


def step_row(record: StepRecord) -> tuple[Any, ...]:
    return (
        record.step, record.reward_mean, record.success_mean, record.all_right, record.all_wrong,
        record.length_mean, record.truncated, record.grad_norm, sum(record.seconds.values()),
    )  # fmt: skip


def scores_table(scores: Mapping[str, Mapping[str, float]]) -> str:
    """Held-out scores as an HTML table, a row a stage."""
    domains = list(dict.fromkeys(domain for row in scores.values() for domain in row))
    rows = [(name, *(row.get(domain) for domain in domains)) for name, row in scores.items()]
    return table("Score on held-out problems", ("after", *domains), rows)
