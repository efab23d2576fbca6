"""What a pre-flight found, as records, a table and lines of text."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

from cascade_kit.report_html import listed, quoted, table

Level = Literal["refuse", "warn", "note"]


class PreflightRefused(ValueError):
    """A stage that cannot learn anything as it stands; the message has reasons and remedies."""


@dataclass(frozen=True)
class Finding:
    """One thing that was seen, and the setting to change."""

    level: Level  # "refuse": training would be in vain; "warn": it may be; "note": good to know
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}" + (f" -> {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class Fault:
    """A row whose reward raised an exception, which would stop a training."""

    problem_id: str
    error: str  # type and message
    completion: str


@dataclass(frozen=True)
class Example:
    """One sampled answer, to look at."""

    prompt: str
    completion: str
    reward: float | None  # after shaping; None where it could not be scored
    why: str
    stopped: bool


@dataclass(frozen=True)
class Preflight:
    """What the sampled answers of a stage tell. Shares lie in [0, 1]; None: it cannot be told."""

    stage: str
    draws: int  # batches of other prompts; more than one where the reward was flat
    prompts: int
    answers: int  # in all
    scored: int  # answers of groups that could be scored
    pass_rate: float | None  # mean success
    interval: tuple[float, float] | None  # 95 %, exact, for these prompts
    spread: float | None  # share of groups with a non-zero advantage
    truncated: float  # share of answers cut at max_new_tokens
    unreadable: float  # share of scored answers in which the verifier finds nothing to judge
    reasons: dict[str, int]  # the commonest words of the verifier
    distinct: float  # different answers to a prompt, mean
    template_tail: str  # the end of an encoded prompt, decoded
    faults: tuple[Fault, ...]
    gap: float  # largest |update - rollout| log-probability, nats
    tolerance: float  # of the gap, for this arithmetic
    seconds: dict[str, float]  # rollout, score, forward
    estimate_seconds: float  # of the stage's training
    examples: tuple[Example, ...]
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> bool:
        return any(finding.level == "refuse" for finding in self.findings)

    @property
    def warnings(self) -> list[Finding]:
        """What to change, refusals first."""
        return [f for level in ("refuse", "warn") for f in self.findings if f.level == level]

    def insist(self) -> None:
        """Raise PreflightRefused if the stage is hopeless as it stands."""
        if self.refused:
            told = "; ".join(f"{f.what} ({f.remedy})" for f in self.warnings if f.level == "refuse")
            raise PreflightRefused(
                f"the pre-flight refuses stage {self.stage!r}: {told}. To train it all the same: "
                "--skip-preflight, or skip_preflight=True"
            )

    def rows(self) -> list[tuple[str, str]]:
        """The measures in words."""
        took = sum(self.seconds.values())
        rate = "unknown, no verifier tells"
        if self.pass_rate is not None and self.interval is not None:
            low, high = self.interval
            rate = f"{self.pass_rate:.1%} (95 % interval {low:.1%} to {high:.1%}, these prompts)"
        return [
            ("answers", f"{self.answers} to {self.prompts} prompts, {self.draws} draw(s)"),
            ("pass rate", rate),
            ("groups with a spread", "unknown" if self.spread is None else f"{self.spread:.0%}"),
            ("truncated", f"{self.truncated:.0%}"),
            ("nothing to judge", f"{self.unreadable:.0%}"),
            ("verifier says", ", ".join(f"{why} x {n}" for why, n in self.reasons.items())),
            ("distinct answers a prompt", f"{self.distinct:.1f}"),
            ("prompt ends with", repr(self.template_tail)),
            ("verifier errors", str(len(self.faults))),
            ("log-prob gap", f"{self.gap:.2g} nats (up to {self.tolerance:g} is rounding)"),
            ("time", f"{took:.1f} s; training takes about {self.estimate_seconds / 60:.1f} min"),
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"refused": self.refused}

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows())
        lines = [f"Pre-flight of {self.stage}: {self.verdict()}"]
        lines += [f"  {name:{width}}  {value}" for name, value in self.rows()]
        lines += [f"  {finding}" for finding in self.findings]
        for example in self.examples:
            lines.append(f"  {example_words(example)}: {example.completion[:200]!r}")
        return "\n".join(lines)

    def verdict(self) -> str:
        if self.refused:
            return "refused"
        return "may run, with warnings" if self.warnings else "may run"

    def _repr_html_(self) -> str:
        title = f"Pre-flight of {self.stage}: {self.verdict()}"
        shown = "".join(
            quoted(f"{escape_newlines(e.prompt)[-160:]} - {example_words(e)}", e.completion)
            for e in self.examples
        )
        return (
            table(title, ("measure", "found"), self.rows())
            + listed([str(finding) for finding in self.findings])
            + f"<details><summary>{escape(str(len(self.examples)))} answers</summary>"
            + f"{shown}</details>"
        )


def example_words(example: Example) -> str:
    reward = "not scored" if example.reward is None else f"reward {example.reward:.2f}"
    return f"{reward}, {example.why}" + ", cut off" * (not example.stopped)


def escape_newlines(text: str) -> str:
    return " ".join(text.split())
