"""What a training step leaves behind: the answers with their scores, and one record of numbers."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from cascade_kit.curriculum import Curriculum
from cascade_kit.problem import Score
from cascade_kit.rollout import Rollout
from cascade_kit.stage import Stage

FLAT = 1e-8  # a group is flat when its largest reward exceeds its smallest by less


@dataclass(frozen=True)
class StepRecord:
    """What one step did. Shares lie in [0, 1], times are seconds, memory is in MB."""

    step: int  # 1, 2, ...
    reward_mean: float  # the stage's score before shaping
    reward_std: float
    success_mean: float | None  # what the matrix would count; None where only a model judges
    parts: dict[str, float]  # mean of every part of the scores
    all_right: float  # share of flat groups whose answers all succeed
    all_wrong: float  # share of the other flat groups
    kl: float | None  # k3 estimate towards the stage's start; None without a KL term
    entropy: float  # of the sampled distribution, nats a token
    grad_norm: float  # before clipping; 0 without an update
    learning_rate: float
    length_mean: float  # answer tokens, stop token included
    truncated: float  # share of answers cut at max_new_tokens
    tokens: int  # of these answers; those that the batch filter replaced are not among them
    logprob_gap: float | None  # largest |update - rollout| log-probability; None if no forward ran
    loss: float
    seconds: dict[str, float]  # rollout, score, update
    peak_memory_mb: float | None  # None where the platform does not tell
    max_new_tokens: int | None = None  # in this step: a phase may shorten the stage's
    max_prompt_tokens: int | None = None
    temperature: float | None = None
    refilled: int = 0  # prompts that were tried in place of groups without a gradient
    left_out: int = 0  # problems that the epoch filter keeps out of this epoch
    readmitted: int = 0  # problems of this epoch that it let in again
    skipped: int = 0  # updates left out because gradients overflowed in float16


@dataclass(frozen=True)
class Answer:
    """One answer of a step with everything the update and the log need."""

    rollout: Rollout
    score: Score
    reward: float  # after shaping
    advantage: float

    def row(self, step: int) -> dict:
        """The line of `rollouts.jsonl`."""
        problem = self.rollout.problem
        examples = {"examples": problem.examples} if problem.examples else {}
        thinking = self.rollout.thinking
        return {
            "step": step,
            "problem_id": problem.id,
            "sample": self.rollout.sample,
            **examples,
            **({} if thinking is None else {"thinking": thinking}),
            "prompt": problem.prompt,
            "completion": self.rollout.text,
            "value": self.score.value,
            "parts": dict(self.score.parts),
            "why": self.score.why,
            "success": self.score.success,
            "reward": self.reward,
            "advantage": self.advantage,
            "tokens": len(self.rollout.completion_ids),
            "stop": "stop" if self.rollout.stopped else "length",
        }


@dataclass(frozen=True)
class UpdateStats:
    """What the update measured; the fields are those of StepRecord."""

    loss: float
    grad_norm: float
    kl: float | None
    logprob_gap: float | None
    skipped: int = 0


def record(
    step: int,
    stage: Stage,
    answers: Sequence[Answer],
    stats: UpdateStats,
    seconds: dict[str, float],
    tried: int,
    curriculum: Curriculum,
) -> StepRecord:
    """Sum up one step: `stage` as it was in force, `tried` prompts drawn in all."""
    rewards = np.array([a.reward for a in answers]).reshape(-1, stage.answers)  # (P, G)
    values = np.array([a.score.value for a in answers])
    successes = [a.score.success for a in answers if a.score.success is not None]
    lengths = [len(a.rollout.completion_ids) for a in answers]
    flat = np.ptp(rewards, axis=1) < FLAT
    solved = np.array([a.score.success == 1.0 for a in answers]).reshape(rewards.shape)
    right = flat & solved.all(axis=1)
    return StepRecord(
        step=step,
        reward_mean=float(values.mean()),
        reward_std=float(values.std()),
        success_mean=float(np.mean(successes)) if successes else None,
        parts=mean_parts([a.score for a in answers]),
        all_right=float(right.mean()),
        all_wrong=float((flat & ~right).mean()),
        entropy=float(np.mean([a.rollout.entropy for a in answers])),
        learning_rate=stage.learning_rate,
        length_mean=float(np.mean(lengths)),
        truncated=float(np.mean([not a.rollout.stopped for a in answers])),
        tokens=sum(lengths),
        seconds={name: round(value, 4) for name, value in seconds.items()},
        peak_memory_mb=peak_memory_mb(),
        max_new_tokens=stage.max_new_tokens,
        max_prompt_tokens=stage.max_prompt_tokens,
        temperature=stage.temperature,
        refilled=max(0, tried - stage.prompts),
        left_out=curriculum.left_out,
        readmitted=curriculum.readmitted,
        **asdict(stats),
    )


def mean_parts(scores: Sequence[Score]) -> dict[str, float]:
    """Mean of every part over the scores that have it."""
    found: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.parts.items():
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def peak_memory_mb() -> float | None:
    """Largest memory so far: of the GPU's allocator, else of the process; None on Windows."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
