"""Progress: the events seen so far, and what a bar, a line of text or a figure says about them."""

import time
from dataclasses import dataclass
from html import escape

from cascade_kit.cascade import Event
from cascade_kit.live.history import History
from cascade_kit.preflight_report import Preflight
from cascade_kit.records import StepRecord

VERBS = {
    "reward model": "reward model of",
    "pre-flight": "pre-flight of",
    "step": "train",
    "evaluated": "test after",
}


@dataclass(frozen=True)
class Status:
    """What is going on, as text beside a bar; plain text where nothing shows HTML."""

    before: tuple[str, ...]  # a line for every phase that has ended
    words: str
    done: int
    total: int  # 0: unknown, no bar

    def __repr__(self) -> str:
        return "\n".join([*self.before, self.words])

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{escape(line)}</div>" for line in self.before)
        bar = ""
        if self.total:
            # Inside a label the bar has a name for screen readers. The words get a line of their
            # own, so that what follows does not jump when they grow.
            bar = f'<progress value="{self.done}" max="{self.total}"></progress><br>'
        return f"{lines}<div><label>{bar}{escape(self.words)}</label></div>"


class Progress:
    """Collects events; a phase is a run of events of one kind and stage."""

    def __init__(self) -> None:
        self.steps: dict[str, list[StepRecord]] = {}
        self.scores: dict[str, dict[str, float]] = {}
        self.before: list[str] = []
        self.event: Event | None = None
        self.ending = ""  # how it ended, once it has
        self._started = time.monotonic()

    @property
    def phase(self) -> tuple[str, str]:
        return (self.event.kind, self.event.stage) if self.event else ("", "")

    def add(self, event: Event) -> None:
        """Take in an event."""
        if self.event is not None and self.phase != (event.kind, event.stage):
            self.before.append(self.words())
            self._started = time.monotonic()
        self.event = event
        if event.record is not None:
            self.steps.setdefault(event.stage, []).append(event.record)
        if event.kind == "evaluated":
            self.scores.setdefault(event.stage, {})[event.domain] = event.score

    def records(self) -> list[StepRecord]:
        """The steps of the stage that was trained last."""
        return list(self.steps.values())[-1] if self.steps else []

    def words(self) -> str:
        """One line about the phase that is running, or about the end."""
        event = self.event
        if event is None:
            return self.ending or "waiting for the first step"
        if event.kind == "finished":
            return "finished"
        of = f"{event.done} of {event.total}" if event.total else f"{event.done}"
        told = [self.title(), f"{'step ' * (event.kind == 'step')}{of}", self.numbers()]
        told += [self.ending or time_words(self.seconds(), self.seconds_left())]
        return ", ".join(part for part in told if part)

    def title(self) -> str:
        """ "train math": what the running phase does."""
        kind, stage = self.phase
        return f"{VERBS.get(kind, kind)} {stage}".strip()

    def numbers(self) -> str:
        """The numbers of the last event in words."""
        event = self.event
        if event.record is not None:
            r = event.record
            success = "" if r.success_mean is None else f", success {r.success_mean:.2f}"
            return (
                f"reward {r.reward_mean:.2f}{success}, length {r.length_mean:.0f}, "
                f"gradient norm {r.grad_norm:.2f}"
            )
        if event.kind == "evaluated":
            scores = self.scores[event.stage]
            return ", ".join(f"{domain} {score:.2f}" for domain, score in scores.items())
        if event.report is not None:
            return report_words(event.report)
        return "" if event.score is None else f"pairs right {event.score:.2f}"

    def seconds(self) -> float:
        """Time spent in this phase; of steps the time they took, even if they are shown again."""
        if self.phase[0] == "step":
            return sum(map(step_seconds, self.records()))
        if self.event is not None and self.event.report is not None:  # its only event is its end
            return sum(self.event.report.seconds.values())
        return time.monotonic() - self._started

    def seconds_left(self) -> float | None:
        """An estimate from the last steps, or from the phase so far; None without a total."""
        event = self.event
        if event is None or not event.total or not event.done:
            return None
        recent = [step_seconds(r) for r in self.records()[-5:]] if event.kind == "step" else []
        each = sum(recent) / len(recent) if recent else self.seconds() / event.done
        return each * (event.total - event.done)

    def status(self) -> Status:
        event = self.event
        done, total = (event.done, event.total) if event else (0, 0)
        return Status(tuple(self.before), self.words(), done, total)

    def history(self, *, interrupted: bool = False, state: str = "") -> History:
        steps = {stage: tuple(records) for stage, records in self.steps.items()}
        total = self.event.total if self.event is not None and self.phase[0] == "step" else 0
        return History(steps, dict(self.scores), total, interrupted, state)


def report_words(report: Preflight) -> str:
    """The verdict of a pre-flight, and what it found besides notes."""
    findings = [str(finding) for finding in report.findings if finding.level != "note"]
    return "; ".join([report.verdict(), *findings])


def step_seconds(record: StepRecord) -> float:
    return sum(record.seconds.values())


def time_words(seconds: float, left: float | None) -> str:
    """ "14 s, about 20 s left"."""
    rest = "" if left is None else f", about {left:.0f} s left" if left > 0 else ", done"
    return f"{seconds:.0f} s{rest}"
