"""What training a stage will take, estimated from steps that were really done."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from cascade_kit import shaping
from cascade_kit.grpo import train
from cascade_kit.policy import REFERENCE, Policy
from cascade_kit.problem import Problem
from cascade_kit.records import StepRecord
from cascade_kit.session_folder import read_facts, read_steps
from cascade_kit.stage import Stage


@dataclass(frozen=True)
class Basis:
    """What was measured, an answer."""

    seconds: float  # rollout, scoring and update together
    tokens: float
    words: str  # what it was measured on


@dataclass(frozen=True)
class Costs:
    """An estimate for the training of one stage; evaluation is not included."""

    steps: int
    answers: int  # in all
    tokens: int  # sampled, in all
    seconds: float
    basis: str  # what the estimate rests on

    def summary(self) -> str:
        """The estimate in one sentence."""
        minutes = f"{self.seconds:.0f} s" if self.seconds < 120 else f"{self.seconds / 60:.0f} min"
        return (
            f"{self.steps} steps, {self.answers:,} answers, about {self.tokens:,} tokens and "
            f"{minutes}, judging by {self.basis}."
        )

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>"


def costs_of(stage: Stage, basis: Basis, *, reward_model_missing: bool = False) -> Costs:
    """Scale what was measured to a stage; answers are taken to be as long, up to its limit."""
    answers = stage.steps * stage.prompts * stage.answers
    tokens = round(answers * min(basis.tokens, stage.max_new_tokens))
    more = "; the reward model is trained before, and its time is not included"
    words = basis.words + more * reward_model_missing
    return Costs(stage.steps, answers, tokens, answers * basis.seconds, words)


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
