"""From scores to rewards: the group and batch rules of the paper, as pure functions.

Every function takes a `GroupScores` and gives rewards (P, G): P prompts, G answers a prompt. A
Stage names one of them in `reward`; the advantages are computed from what it returns.
"""

from dataclasses import dataclass

import numpy as np

EPSILON = 1e-4


@dataclass(frozen=True)
class GroupScores:
    """What is known about the answers of one step, each array (P, G)."""

    values: np.ndarray  # the domain's own reward
    reward_model: np.ndarray | None = None  # raw scores, if the stage has a reward model
    code_switch: np.ndarray | None = None  # True where an answer leaves the prompt's script


def verifier(scores: GroupScores) -> np.ndarray:
    """The domain's own reward, unchanged."""
    return scores.values


def verifier_or_minus_one(scores: GroupScores) -> np.ndarray:
    """The domain's own reward, and -1 for an answer that switches languages: math (4.5.2)."""
    return _with_switch(scores, -1.0)


def verifier_or_zero(scores: GroupScores) -> np.ndarray:
    """The domain's own reward, and 0 for an answer that switches languages: code (4.6.2).

    Not -1 here: in a group without a right answer that would reward the wrong ones that are clean.
    """
    return _with_switch(scores, 0.0)


def _with_switch(scores: GroupScores, reward: float) -> np.ndarray:
    if scores.code_switch is None:
        return scores.values
    return np.where(scores.code_switch, reward, scores.values)


def group_normalised(scores: np.ndarray) -> np.ndarray:
    """(score - group mean) / (group std + 1e-4), over the whole group.

    A spread below 1e-4 is rounding, not preference: such a group is all 0.
    """
    mean = scores.mean(axis=1, keepdims=True)
    flat = np.ptp(scores, axis=1, keepdims=True) < EPSILON
    normalised = (scores - mean) / (scores.std(axis=1, ddof=1, keepdims=True) + EPSILON)
    return np.where(flat, 0.0, normalised)


def penalise_code_switch(scores: np.ndarray, code_switch: np.ndarray | None) -> np.ndarray:
    """An answer that switches languages gets the lowest score of the batch minus 10 (4.3.2)."""
    if code_switch is None:
        return scores
    return np.where(code_switch, scores.min() - 10.0, scores)


def preference(scores: GroupScores) -> np.ndarray:
    """The reward-model score with the code-switch penalty (paper, section 4.3.2)."""
    return penalise_code_switch(_reward_model(scores), scores.code_switch)


def preference_tanh(scores: GroupScores) -> np.ndarray:
    """tanh of the group-normalised reward-model score, for small reward models (section 6.3).

    The code-switch penalty comes first; the tanh then bounds how far one answer can stand out.
    """
    return np.tanh(group_normalised(preference(scores)))


def gated_preference(scores: GroupScores) -> np.ndarray:
    """R_IF + sigmoid(normalised reward-model score) where R_IF = 1, else 0 (section 4.4.2).

    The reward model's mean and std are those of the whole group, passing or not.
    """
    ranked = 1.0 / (1.0 + np.exp(-group_normalised(_reward_model(scores))))
    return np.where(scores.values >= 1.0, 1.0 + ranked, 0.0)


def _reward_model(scores: GroupScores) -> np.ndarray:
    if scores.reward_model is None:
        raise ValueError(
            "this reward needs a reward model: a run trains one where there are preference pairs; "
            "without them choose reward=shaping.verifier"
        )
    return scores.reward_model


# The rewards that ask the reward model; the runner makes sure that there is one.
NEEDS_REWARD_MODEL = (preference, preference_tanh, gated_preference)
