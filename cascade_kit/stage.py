"""A stage is data: what to train on, for how long, with which reward. Order is the experiment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from typing import Any, Literal

import numpy as np

from cascade_kit import shaping
from cascade_kit.chat import Thinking
from cascade_kit.domains import Domain
from cascade_kit.domains.code import CODE
from cascade_kit.domains.easy import EASY_CODE, EASY_INSTRUCT, EASY_MATH, EASY_RLHF, EASY_SWE
from cascade_kit.domains.instruct import INSTRUCT
from cascade_kit.domains.math import MATH
from cascade_kit.domains.rlhf import RLHF
from cascade_kit.domains.swe import SWE
from cascade_kit.shaping import GroupScores


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One RL stage. `dataclasses.replace(stage, steps=10)` makes a variant."""

    name: str  # names the folder and the row of the matrix
    domain: Domain  # where problems come from and how answers are scored
    steps: int = 30  # optimiser steps; each uses one fresh batch of rollouts
    prompts: int = 16  # P, prompts per step
    answers: int = 8  # G, answers per prompt; advantages are relative within a group
    max_new_tokens: int = 256
    learning_rate: float = 2e-5
    temperature: float = 1.0  # top-p is 1, so that log-probabilities are those of the sampler
    kl_coef: float = 0.0  # weight of the k3 estimate; 0 keeps no reference in memory
    loss: Literal["token", "sequence"] = "token"  # mean over all tokens, or over answers
    overlong_filter: bool = False  # True: truncated answers leave the loss, not the baseline
    reward: Callable[[GroupScores], np.ndarray] = shaping.verifier  # scores -> rewards, (P, G)
    difficulty: int = 2  # of generated problems, 1..3
    thinking: Thinking = None  # "on", "off", or "half" of the prompts; None: the template's default

    def __post_init__(self) -> None:
        at_least = {"steps": 1, "prompts": 1, "answers": 2, "max_new_tokens": 1}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                reason = " (an advantage compares the answers of a group)" * (name == "answers")
                raise ValueError(
                    f"stage {self.name!r}: {name}={getattr(self, name)} is too small; "
                    f"use at least {least}{reason}"
                )
        if self.learning_rate <= 0 or self.temperature <= 0 or self.kl_coef < 0:
            raise ValueError(
                f"stage {self.name!r}: learning_rate and temperature must be above 0 and "
                "kl_coef at least 0"
            )
        if self.thinking not in (None, "on", "off", "half"):
            raise ValueError(f"stage {self.name!r}: thinking is None, 'on', 'off' or 'half'")
        if self.loss not in ("token", "sequence"):
            raise ValueError(f"stage {self.name!r}: loss is 'token' or 'sequence'")

    @property
    def needs_reward_model(self) -> bool:
        return self.reward in shaping.NEEDS_REWARD_MODEL

    def fast(self) -> "Stage":
        """The same stage for a first look or a test: two steps of small groups."""
        return replace(self, steps=2, prompts=min(self.prompts, 4), answers=min(self.answers, 4))

    def settings(self) -> dict[str, Any]:
        """Every field as a plain JSON value."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {"domain": self.domain.name, "reward": self.reward.__name__}

    def __str__(self) -> str:
        settings = ", ".join(f"{k}={v}" for k, v in self.settings().items() if k != "name")
        return f"Stage {self.name}: {settings}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th scope='row'>{escape(k)}</th><td>{escape(str(v))}</td></tr>"
            for k, v in self.settings().items()
        )
        return f"<table><caption>Stage {escape(self.name)}</caption>{rows}</table>"


ORDER = ("rlhf", "instruct", "math", "code", "swe")  # as published in Cascade 1

# Settings for `micro`: short answers, and a learning rate at which LoRA on a model this small
# moves within tens of steps (at ten times the paper's rate it learns nothing in 20 steps).
MICRO_STAGES = (
    Stage(
        name="rlhf", domain=RLHF, max_new_tokens=64, learning_rate=1e-3,
        kl_coef=1e-3, loss="sequence", reward=shaping.preference_tanh,
    ),
    Stage(name="instruct", domain=INSTRUCT, max_new_tokens=64, learning_rate=1e-3),
    Stage(name="math", domain=MATH, max_new_tokens=48, learning_rate=1e-3),
    Stage(name="code", domain=CODE, max_new_tokens=48, learning_rate=1e-3),
    Stage(name="swe", domain=SWE, steps=40, max_new_tokens=96, learning_rate=1e-3),
)  # fmt: skip

# Settings for small real models on generated problems: an answer takes seconds on a CPU, so that a
# step has few of them, and 20 steps move an adapter only at a high rate.
EASY_STAGES = (
    Stage(
        name="rlhf", domain=EASY_RLHF, steps=20, prompts=4, max_new_tokens=48, learning_rate=3e-4,
        kl_coef=1e-3, loss="sequence", reward=shaping.preference_tanh,
    ),
    Stage(
        name="instruct", domain=EASY_INSTRUCT, steps=20, prompts=4, max_new_tokens=48,
        learning_rate=3e-4,
    ),
    Stage(
        name="math", domain=EASY_MATH, steps=20, prompts=4, max_new_tokens=24, learning_rate=3e-4,
    ),
    Stage(
        name="code", domain=EASY_CODE, steps=20, prompts=4, max_new_tokens=48, learning_rate=3e-4,
    ),
    Stage(
        name="swe", domain=EASY_SWE, steps=20, prompts=4, max_new_tokens=64, learning_rate=3e-4,
    ),
)  # fmt: skip

# Settings for real models: the paper's tables with ten times its learning rates, the usual
# translation from full fine-tuning to LoRA; lengths, batches and steps are scaled to one GPU.
REAL_STAGES = (
    Stage(
        name="rlhf", domain=RLHF, steps=40, prompts=8, max_new_tokens=256, learning_rate=2e-5,
        kl_coef=1e-3, loss="sequence", reward=shaping.preference_tanh, thinking="half",
    ),
    Stage(
        name="instruct", domain=INSTRUCT, steps=40, prompts=8, max_new_tokens=384,
        learning_rate=2e-5, thinking="off",
    ),
    Stage(
        name="math", domain=MATH, steps=40, prompts=8, max_new_tokens=512, learning_rate=2e-5,
        overlong_filter=True,
    ),
    Stage(name="code", domain=CODE, steps=40, prompts=8, max_new_tokens=512, learning_rate=4e-5),
    Stage(
        name="swe", domain=SWE, steps=40, prompts=8, answers=16, max_new_tokens=512,
        learning_rate=2.5e-5, overlong_filter=True,
    ),
)  # fmt: skip


Tier = Literal["micro", "easy", "real"]  # the embedded model; generated, for real models; your rows
TIERS: dict[Tier, tuple[Stage, ...]] = {
    "micro": MICRO_STAGES,
    "easy": EASY_STAGES,
    "real": REAL_STAGES,
}


def cascade(order: Sequence[str] = ORDER, *, tier: Tier = "micro", **overrides: Any) -> list[Stage]:
    """The stages in an order of names, each at most once, with fields overridden in all of them."""
    known = {stage.name: stage for stage in TIERS[tier]}
    for i, name in enumerate(order):
        if name not in known:
            raise ValueError(f"unknown stage {name!r}; choose from {', '.join(known)}")
        if name in order[:i]:
            raise ValueError(f"stage {name!r} stands twice in the order; each may run once")
    if not order:
        raise ValueError(f"the order is empty; name at least one of {', '.join(known)}")
    return [replace(known[name], **overrides) for name in order]
