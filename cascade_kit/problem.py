"""Problem and Score: the two records every domain speaks.

A domain turns its data into `Problem`s and answers `reward(problem, completion) -> Score`. Nothing
here knows what a verifier or a model is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One task: what the model is asked, and what only the reward may look at."""

    id: str  # stable across runs and processes; part of every log line
    domain: str  # "rlhf", "instruct", "math", "code" or "swe"
    prompt: str  # the user turn, before the chat template
    target: Mapping[str, Any] = field(default_factory=dict)  # gold answer, tests, constraints, ...
    examples: tuple[tuple[str, str], ...] = ()  # worked ones: (user, assistant) turns before it


DERIVED = -1.0  # no success lies there: derive it from the value


@dataclass(frozen=True)
class Score:
    """The verdict on one completion.

    `value` is what the optimiser sees. `success`, in [0, 1], is what the forgetting matrix
    averages; left out, it is `value` clipped to [0, 1] (a SWE answer of -1 counts as 0). It is
    None where no verifier can tell, only a reward model.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)  # named parts, weight-0 parts included
    why: str = ""  # one short phrase a person can read: "wrong answer: 7", "no box"
    success: float | None = DERIVED

    def __post_init__(self) -> None:
        if self.success == DERIVED:
            object.__setattr__(self, "success", min(max(self.value, 0.0), 1.0))

    def _repr_html_(self) -> str:
        success = "unknown" if self.success is None else self.success
        rows = [("value", self.value), ("success", success), *self.parts.items(), ("why", self.why)]
        cells = "".join(
            f"<tr><th scope='row'>{escape(str(k))}</th>"
            f"<td>{escape(f'{v:.4g}' if isinstance(v, float) else str(v))}</td></tr>"
            for k, v in rows
        )
        return f"<table><caption>Score</caption>{cells}</table>"


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one prompt, the better one first."""

    id: str
    prompt: str  # the user turn
    chosen: str
    rejected: str
