"""What training a stage will take, estimated from steps that were really done."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from cascade_kit import shaping
from cascade_kit.grpo import train
from cascade_kit.policy import REFERENCE, Policy
from cascade_kit.problem import Problem
from cascade_kit.records import StepRecord
from cascade_kit.run_files import write_json
from cascade_kit.session.folder import read_facts, read_steps
from cascade_kit.stage import Stage

SECONDS = "seconds.json"  # beside a row's evaluations: domain -> how long its test took


@dataclass(frozen=True)
class Basis:
    """What was measured, an answer."""

    seconds: float  # rollout, scoring and update together
    tokens: float
    words: str  # what it was measured on


@dataclass(frozen=True)
class Costs:
    """An estimate for the training of one stage; evaluation comes on top."""

    steps: int
    answers: int  # in all
    tokens: int  # sampled, in all
    seconds: float
    basis: str  # what the estimate rests on
    evaluation_seconds: float | None = None  # a row of the matrix; None before one was timed

    def summary(self) -> str:
        """The estimate in two sentences."""
        evaluation = "; it has not been timed in this run folder yet"
        if self.evaluation_seconds is not None:
            evaluation = f": about {duration(self.evaluation_seconds)} for each row of the matrix"
        return (
            f"{self.steps} steps, {self.answers:,} answers, about {self.tokens:,} tokens and "
            f"{duration(self.seconds)}, judging by {self.basis}. Evaluation comes on top"
            f"{evaluation}."
        )

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def costs_of(
    stage: Stage,
    basis: Basis,
    *,
    reward_model_missing: bool = False,
    evaluation_seconds: float | None = None,
) -> Costs:
    """Scale what was measured to a stage; answers are taken to be as long, up to its limit."""
    answers = stage.steps * stage.prompts * stage.answers
    tokens = round(answers * min(basis.tokens, stage.max_new_tokens))
    more = "; the reward model is trained before, and its time is not included"
    words = basis.words + more * reward_model_missing
    seconds = answers * basis.seconds
    return Costs(stage.steps, answers, tokens, seconds, words, evaluation_seconds)


def note_evaluation(stage_folder: Path, domain: str, seconds: float) -> None:
    """Record how long the test of one domain took."""
    path = stage_folder / "eval" / SECONDS
    write_json(path, read_evaluation(stage_folder) | {domain: round(seconds, 2)})


def read_evaluation(stage_folder: Path) -> dict[str, float]:
    """Domain -> seconds of its test; empty for a row that the command line wrote."""
    path = stage_folder / "eval" / SECONDS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def recorded_evaluation(rows: Iterable[Path], domains: Sequence[str]) -> float | None:
    """Seconds to test all domains, as the newest rows took; None if one was never timed."""
    known: dict[str, float] = {}
    for stage_folder in rows:
        known |= read_evaluation(stage_folder)
    return sum(known[name] for name in domains) if known.keys() >= set(domains) else None


def recorded_basis(stage_folder: Path) -> Basis | None:
    """From the steps that a stage has logged in this run folder; None without any."""
    steps = read_steps(stage_folder)
    settings = read_facts(stage_folder).get("settings")
    if not steps or not settings:
        return None
    each = settings["prompts"] * settings["answers"]
    return basis_of(steps, each, f"the {len(steps)} steps recorded in {stage_folder}")


def probed_basis(policy: Policy, stage: Stage, problems: Sequence[Problem], seed: int) -> Basis:
    """From one step that really trains; the caller puts the weights back.

    A reward model is left out: it need not be there yet.
    """
    reward = shaping.verifier if stage.needs_reward_model else stage.reward
    prompts = min(stage.prompts, len(problems))
    one = replace(stage, steps=1, prompts=prompts, reward=reward)
    steps = [record for record, _ in train(policy, one, problems, seed=seed)]
    if REFERENCE in policy.model.peft_config:
        policy.remove_adapter(REFERENCE)
    words = f"one step of {prompts} x {stage.answers} answers that was tried and thrown away"
    return basis_of(steps, prompts * stage.answers, words)


def basis_of(steps: Sequence[StepRecord], answers: int, words: str) -> Basis:
    """Means over steps of `answers` answers each."""
    seconds = sum(sum(record.seconds.values()) for record in steps)
    tokens = sum(record.tokens for record in steps)
    return Basis(seconds / len(steps) / answers, tokens / len(steps) / answers, words)
