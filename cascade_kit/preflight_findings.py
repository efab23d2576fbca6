"""What a pre-flight found, in numbers and words, and the rules that judge it.

The rules, in short. *Refused* is what cannot train, or trains on something else than it says:
every answer cut off, a reward without any spread in three draws, sampled probabilities that are
not those of the update, a gradient that is zero or not finite, a verifier that fails in every
group. The rest is a warning.

A flat reward proves nothing: at a start of 2 % one batch of 32 in two has no right answer. After
three draws (96 answers in groups of 8) the share of right answers on these prompts is below 3.8 %
with 95 % confidence, and a run on rows of unknown difficulty is refused, since it may well idle to
its end. The kit's own problems only get a warning: their difficulty is known, and the stages on
them were seen to start from less. A reward that is flat although the verdicts differ is a fault of
the reward and refused in any case.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, Literal

MUCH_TRUNCATED = 0.2  # share of answers
LOW_START = 0.1  # share of right answers
LITTLE_SPREAD = 0.25  # share of groups
MANY_UNREAD = 0.5  # share of answers
NEARLY_GREEDY = 1.5  # distinct answers a group, on average

GO_ON = "to train regardless: --skip-preflight, or skip_preflight=True"


class PreflightRefused(ValueError):
    """A stage that would not learn; the message holds the reasons and what to change."""


@dataclass(frozen=True)
class Finding:
    """One thing that a pre-flight noticed, with the setting to change."""

    level: Literal["refuse", "warn", "note"]
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True)
class Example:
    """One sampled answer and what was said of it."""

    problem: str  # its id
    prompt: str
    answer: str
    verdict: str


@dataclass(frozen=True)
class Preflight:
    """What some sampled answers say about a stage. Shares lie in [0, 1], times are seconds."""

    stage: str
    prompts: int  # groups, over all draws
    answers: int  # in all
    draws: int  # batches of other prompts; more than one if the reward was flat
    max_new_tokens: int
    temperature: float
    success: float | None  # share of right answers; None where nobody can judge
    interval: tuple[float, float] | None  # 95 %, of the mean over these very prompts
    spread: float | None  # share of groups with an advantage; None if no group could be scored
    verdicts_differ: bool  # within some group, before the stage's reward
    truncated: float  # share of answers cut at max_new_tokens
    unread: float  # share of answers in which the verifier found nothing to judge
    distinct: float  # different answers a group, mean
    reasons: tuple[tuple[str, int], ...]  # the commonest verdicts
    errors: tuple[str, ...]  # one for every row whose verifier raised
    failed: float  # share of groups whose verifier raised
    gap: float  # largest |update - rollout| log-probability
    tolerance: float  # what the gap may be in this arithmetic
    grad_norm: float  # of the mean log-probability
    tail: str  # the end of the encoded prompt, decoded
    seconds: float
    stage_seconds: float  # an estimate for the training of the whole stage
    judge: str  # whose verdicts they are
    generated: bool  # problems of the kit, whose difficulty is known
    examples: tuple[Example, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def refused(self) -> bool:
        return any(f.level == "refuse" for f in self.findings)

    def of_level(self, *levels: str) -> list[Finding]:
        return [f for f in self.findings if f.level in levels]

    def check(self) -> None:
        """Raise PreflightRefused if the stage should not be trained as it stands."""
        if self.refused:
            reasons = ". ".join(str(f) for f in self.of_level("refuse"))
            raise PreflightRefused(f"pre-flight of {self.stage}: {reasons}. {GO_ON}")

    def rows(self) -> list[tuple[str, str]]:
        """The numbers in words, a row each."""
        each = self.answers // self.prompts
        spread = "unknown" if self.spread is None else f"{self.spread:.0%} of groups"
        reasons = ", ".join(f"{why} ({count})" for why, count in self.reasons)
        return [
            ("answers", f"{self.answers} to {self.prompts} prompts ({each} each, {_draws(self)}), "
             f"at most {self.max_new_tokens} tokens, temperature {self.temperature:g}"),
            ("right", f"{right_words(self)}, judged by {self.judge}"),
            ("spread of rewards", spread),
            ("cut off", f"{self.truncated:.0%}"),
            ("nothing to judge in", f"{self.unread:.0%}"),
            ("distinct answers", f"{self.distinct:.1f} a group of {each}"),
            ("verdicts", reasons or "none"),
            ("log-prob gap", f"{self.gap:.1e} (may be {self.tolerance:g})"),
            ("prompts end with", repr(self.tail)),
            ("time", f"{self.seconds:.1f} s for this; about {_duration(self.stage_seconds)} for "
             "the stage, without evaluation"),
        ]  # fmt: skip

    def __str__(self) -> str:
        lines = [f"Pre-flight of {self.stage}: {'refused' if self.refused else 'may run'}"]
        lines += [f"  {name:20} {value}" for name, value in self.rows()]
        lines += [f"  {f.level + ':':20} {f}" for f in self.findings]
        for example in self.examples:
            said = " ".join(example.answer.split())[:120]
            lines.append(f"  {'example':20} {example.problem} [{example.verdict}] {said}")
        if self.refused:
            lines.append(f"  {GO_ON}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Tables; whatever a model or a row may have written is escaped."""
        rows = "".join(
            f"<tr><th scope='row'>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self.rows()
        )
        found = "".join(
            f"<li><b>{f.level}</b>: {escape(f.what)}<br><i>{escape(f.remedy)}</i></li>"
            for f in self.findings
        )
        shown = "".join(
            f"<tr><td>{escape(e.problem)}</td><td><pre>{escape(e.prompt)}</pre></td>"
            f"<td><pre>{escape(e.answer)}</pre></td><td>{escape(e.verdict)}</td></tr>"
            for e in self.examples
        )
        state = "refused" if self.refused else "may run"
        return (
            f"<table><caption>Pre-flight of {escape(self.stage)}: {state}</caption>{rows}</table>"
            f"<ul>{found}</ul><table><caption>Some answers</caption><tr><th scope='col'>problem"
            "</th><th scope='col'>prompt</th><th scope='col'>answer</th><th scope='col'>verdict"
            f"</th></tr>{shown}</table>"
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {"refused": self.refused} | asdict(self)


def judged(found: Preflight) -> Preflight:
    """The same with its findings."""
    rules = (_verifier, _truncation, _flat, _start, _form, _sampling, _update, _notes)
    return replace(found, findings=tuple(f for rule in rules for f in rule(found)))


def right_words(found: Preflight) -> str:
    """ "16 % (6 % to 33 % on these prompts)"."""
    if found.success is None:
        return "unknown"
    low, high = found.interval
    return f"{found.success:.0%} ({low:.1%} to {high:.1%} on these prompts)"


def _draws(found: Preflight) -> str:
    return "one draw" if found.draws == 1 else f"{found.draws} draws"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# ---- the rules -----------------------------------------------------------------------------------


def _verifier(found: Preflight) -> Iterator[Finding]:
    if not found.errors:
        return
    named = "; ".join(found.errors[:3])
    if found.failed == 1.0:
        yield Finding(
            "refuse",
            f"the verifier raised in every group ({named})",
            "training would stop at its first step: mend the reward or the rows",
        )
    else:
        yield Finding(
            "warn",
            f"the verifier raised in {found.failed:.0%} of the groups ({named})",
            "training stops at such a row: mend it or take it out",
        )


def _truncation(found: Preflight) -> Iterator[Finding]:
    if found.truncated == 1.0:
        yield Finding(
            "refuse",
            f"all {found.answers} answers were cut off at {found.max_new_tokens} tokens",
            "raise max_new_tokens (--max-new-tokens), or ask for short answers; if the model never "
            "ends a turn, its end-of-turn token is missing from the tokenizer",
        )
    elif found.truncated > MUCH_TRUNCATED:
        yield Finding(
            "warn",
            f"{found.truncated:.0%} of the answers were cut off at {found.max_new_tokens} tokens",
            "raise max_new_tokens (--max-new-tokens)",
        )


def _flat(found: Preflight) -> Iterator[Finding]:
    if found.spread is None:
        return
    if found.spread == 0.0 and found.truncated < 1.0:  # else cutting explains it
        yield _flat_finding(found)
    elif 0.0 < found.spread < LITTLE_SPREAD:
        yield Finding(
            "warn",
            f"only {found.spread:.0%} of the groups have a spread of rewards; the others teach "
            "nothing",
            "more answers a prompt (--answers), or rows that are neither always nor never solved "
            '(filter="batch" replaces flat groups)',
        )


def _flat_finding(found: Preflight) -> Finding:
    seen = f"the reward is flat in all {found.prompts} groups ({found.answers} answers)"
    if found.verdicts_differ:
        return Finding(
            "refuse",
            f"{seen} although the verdicts differ",
            "the stage's reward gives one number for all: set another reward=",
        )
    level = "warn" if found.generated else "refuse"
    if found.success == 1.0:
        return Finding(level, f"{seen}: every answer is right", "raise difficulty, or harder rows")
    if found.success == 0.0:
        seen += f": none is right, so that at most {found.interval[1]:.1%} are on these prompts"
    return Finding(
        level,
        seen,
        "easier rows or --data easy, worked examples in the prompt, a lower difficulty, more "
        "answers a prompt (--answers), or a larger model",
    )


def _start(found: Preflight) -> Iterator[Finding]:
    if found.success is not None and found.success < LOW_START and found.spread:
        yield Finding(
            "warn",
            f"the start is below {LOW_START:.0%}: {right_words(found)} are right",
            "expect a slow beginning: more answers a prompt (--answers), more steps (--steps), or "
            "easier rows",
        )


def _form(found: Preflight) -> Iterator[Finding]:
    if found.unread > MANY_UNREAD:
        yield Finding(
            "warn",
            f"in {found.unread:.0%} of the answers the verifier found nothing to judge "
            f"({found.reasons[0][0]})",
            "say the form in the prompt or show worked examples"
            + (", or raise max_new_tokens" if found.truncated > MUCH_TRUNCATED else ""),
        )


def _sampling(found: Preflight) -> Iterator[Finding]:
    if not found.gap <= found.tolerance:  # a NaN too
        yield Finding(
            "refuse",
            f"the log-probabilities of sampling and update differ by up to {found.gap:.2g} nats "
            f"(at most {found.tolerance:g} in this arithmetic): what answers is not what learns",
            "leave temperature, top-p and weights of the decoding model as the kit sets them; "
            'load_policy(decoding="layers") samples with the very layers of the update',
        )
    if found.distinct <= NEARLY_GREEDY:
        yield Finding(
            "warn",
            f"a group has {found.distinct:.1f} different answers on average: nearly greedy",
            "raise temperature, or take prompts with more than one way to answer",
        )


def _update(found: Preflight) -> Iterator[Finding]:
    if not 0.0 < found.grad_norm < float("inf"):
        yield Finding(
            "refuse",
            f"the gradient of the adapter is {found.grad_norm:g}",
            "load the policy with load_policy(); in float16 try dtype=bfloat16 or float32",
        )


def _notes(found: Preflight) -> Iterator[Finding]:
    if found.judge != "the stage's reward":
        yield Finding("note", f"the verdicts are those of {found.judge}")
