"""Rewards as numbers: Bradley-Terry, one reward a completion, group advantages, batch settings.

Plain Python. A missing score is None and stays out of every mean; a fault of the data or of the
settings raises ValueError with the remedy.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FLAT = 1e-8  # a group whose rewards differ by less teaches nothing
STD_EPSILON = 1e-4  # as in grpo.py: added to the Bessel-corrected standard deviation


# -- rewards --------------------------------------------------------------------------------------


def _finite(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return float(value)


def _differences(chosen: Any, rejected: Any, margin: float) -> list[float]:
    one = list(chosen) if isinstance(chosen, Sequence) else [chosen]
    two = list(rejected) if isinstance(rejected, Sequence) else [rejected]
    if len(one) != len(two) or not one:
        raise ValueError(f"{len(one)} chosen and {len(two)} rejected rewards: give them in pairs")
    return [
        _finite(a, "reward_chosen") - _finite(b, "reward_rejected") - margin
        for a, b in zip(one, two, strict=True)
    ]


def bradley_terry_loss(chosen: Any, rejected: Any, margin: float = 0.0) -> float:
    """-log sigmoid(chosen - rejected - margin), mean over pairs; finite for every finite reward."""
    losses = [
        max(-gap, 0.0) + math.log1p(math.exp(-abs(gap)))
        for gap in _differences(chosen, rejected, margin)
    ]
    return math.fsum(losses) / len(losses)


def bradley_terry_probability(first: float, second: float) -> float:
    """sigmoid(first - second): how likely the first answer is preferred; no overflow."""
    gap = _differences(first, second, 0.0)[0]
    small = math.exp(-abs(gap))
    return 1 / (1 + small) if gap >= 0 else small / (1 + small)


def pair_accuracy(chosen: Sequence[float], rejected: Sequence[float]) -> float:
    """The share of pairs whose chosen answer scores higher; a tie counts one half."""
    gaps = _differences(list(chosen), list(rejected), 0.0)
    return sum(1.0 if gap > 0 else 0.5 if gap == 0 else 0.0 for gap in gaps) / len(gaps)


def check_rewards(returned: Any, n_completions: int, name: str = "reward function") -> list:
    """`returned` as a list of one number or None per completion; anything else raises."""
    if hasattr(returned, "tolist"):  # a tensor or an array
        returned = returned.tolist()
    if isinstance(returned, str) or not isinstance(returned, Sequence):
        raise ValueError(f"{name} returned {type(returned).__name__}: return a list of rewards")
    if len(returned) != n_completions:
        raise ValueError(
            f"{name} returned {len(returned)} rewards for {n_completions} completions: return one "
            "for each"
        )
    for position, value in enumerate(returned):
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"{name}: reward {position} is {value!r}: return a number or None")
    return list(returned)


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of one group, in order, and what the log should tell about the group."""

    advantages: tuple[float, ...]
    dead: bool  # no spread among the scored answers: nothing to learn
    unscored: int  # answers without a finite reward; their advantage is 0


def group_advantages(rewards: Sequence[float | None], scale_by_std: bool = True) -> GroupAdvantages:
    """Reward minus group mean, over the Bessel-corrected std + 1e-4 if asked for.

    None, NaN and infinite rewards are left out of mean and std and get advantage 0, with a warning.
    """
    scored = [value for value in rewards if value is not None and math.isfinite(value)]
    unscored = len(rewards) - len(scored)
    if unscored:
        warnings.warn(
            f"{unscored} of {len(rewards)} rewards of a group are missing or not finite: they are "
            "left out of the baseline",
            stacklevel=2,
        )
    if len(scored) < 2 or max(scored) - min(scored) < FLAT:
        return GroupAdvantages((0.0,) * len(rewards), dead=True, unscored=unscored)
    mean = math.fsum(scored) / len(scored)
    variance = math.fsum((value - mean) ** 2 for value in scored) / (len(scored) - 1)
    scale = math.sqrt(variance) + STD_EPSILON if scale_by_std else 1.0
    advantages = tuple(
        (value - mean) / scale if value is not None and math.isfinite(value) else 0.0
        for value in rewards
    )
    return GroupAdvantages(advantages, dead=False, unscored=unscored)


def has_end(completion_ids: Sequence[int], end_ids: int | Sequence[int]) -> bool:
    """Whether the completion, without its prompt, holds one of the end-of-turn tokens."""
    ends = {end_ids} if isinstance(end_ids, int) else set(end_ids)
    return any(token in ends for token in completion_ids)


def penalise_missing_end(
    score: float | None, has_eos: bool, missing_eos_penalty: float | None
) -> float | None:
    """The score, less the penalty where the answer was cut off before its end of turn."""
    if missing_eos_penalty is not None and _finite(missing_eos_penalty, "penalty") < 0:
        raise ValueError("missing_eos_penalty is subtracted: give a positive number")
    if score is None or has_eos or missing_eos_penalty is None:
        return score
    return score - missing_eos_penalty


# -- settings -------------------------------------------------------------------------------------


def check_batch(
    per_device_train_batch_size: int,
    num_generations: int,
    num_processes: int = 1,
    gradient_accumulation_steps: int = 1,
) -> dict[str, Any]:
    """Prompts a step for a batch that is counted in completions, as TRL does; ValueError if none.

    The completions of one step (devices x batch x accumulation) must hold whole groups.
    """
    values = {
        "per_device_train_batch_size": per_device_train_batch_size,
        "num_generations": num_generations,
        "num_processes": num_processes,
        "gradient_accumulation_steps": gradient_accumulation_steps,
    }
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    if num_generations < 2:
        raise ValueError(
            "num_generations must be at least 2: an advantage compares the answers to one prompt"
        )
    total = num_processes * per_device_train_batch_size * gradient_accumulation_steps
    if total % num_generations:
        valid = [size for size in range(2, total + 1) if total % size == 0]
        per_device = num_generations // math.gcd(
            num_generations, num_processes * gradient_accumulation_steps
        )
        raise ValueError(
            f"{total} completions a step ({num_processes} x {per_device_train_batch_size} x "
            f"{gradient_accumulation_steps}) are no multiple of num_generations={num_generations}: "
            f"set per_device_train_batch_size to a multiple of {per_device}, raise "
            f"gradient_accumulation_steps, or choose num_generations from {valid or 'none'}"
        )
    return {"ok": True, "completions": total, "prompts": total // num_generations}
