"""A stage is data: what to train on, for how long, with which reward. Order is the experiment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
class Phase:
    """What is other in the first part of a stage; None leaves a setting as the stage has it."""

    until: float  # the phase ends after this share of the stage's steps, in (0, 1), rounded
    max_new_tokens: int | None = None
    max_prompt_tokens: int | None = None
    noisy_files: int | None = None
    temperature: float | None = None
    overlong_filter: bool | None = None

    def changes(self) -> dict[str, Any]:
        """The settings that the phase replaces."""
        return {k: v for k, v in vars(self).items() if k != "until" and v is not None}

    def following(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> "Phase":
        """The phase after its stage's settings went from `old` to `new`: a length keeps its share
        of the stage's, any other setting that was changed is the stage's from now on."""
        own = self.changes()
        for name in own.keys() & new.keys():
            scaled = name in LENGTHS and old[name] and new[name]
            own[name] = max(1, round(own[name] * new[name] / old[name])) if scaled else None
        return Phase(until=self.until, **own)


LENGTHS = ("max_new_tokens", "max_prompt_tokens")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One RL stage. `dataclasses.replace(stage, steps=10)` makes a variant; if it has phases,
    `stage.changed(max_new_tokens=128)` makes one whose phases follow."""

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
    # Of prompts without a gradient: "epoch" acts from the second pass over the problems on, so only
    # where there are fewer than steps x prompts of them; "batch" in every step.
    filter: Literal["none", "epoch", "batch"] = "none"
    max_prompt_tokens: int | None = None  # longer prompts are not trained on
    noisy_files: int = 0  # SWE rows: files in the prompt, besides those that the fix touches
    thinking: Thinking = None  # "on", "off", or "half" of the prompts; None: the template's default
    phases: tuple[Phase, ...] = ()  # what is other at first, in order; then the above holds

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
        if self.filter not in ("none", "epoch", "batch"):
            raise ValueError(f"stage {self.name!r}: filter is 'none', 'epoch' or 'batch'")
        cap = self.max_prompt_tokens
        if (cap is not None and cap < 1) or self.noisy_files < 0:
            raise ValueError(
                f"stage {self.name!r}: max_prompt_tokens must be at least 1 (None: no cap) and "
                "noisy_files at least 0"
            )
        if self.noisy_files and cap is None:
            raise ValueError(
                f"stage {self.name!r}: noisy_files={self.noisy_files} needs max_prompt_tokens, up "
                "to which they fill the prompts"
            )
        self._check_phases()

    def _check_phases(self) -> None:
        ends = [phase.until for phase in self.phases]
        if ends != sorted(set(ends)) or not all(0 < end < 1 for end in ends):
            raise ValueError(
                f"stage {self.name!r}: phases end at {ends}; give shares of the steps between 0 "
                "and 1, each larger than the one before (after the last one the stage's own "
                "settings hold)"
            )
        for phase in self.phases:
            replace(self, phases=(), **phase.changes())  # raises for an impossible setting
            if (phase.max_new_tokens or 0) > self.max_new_tokens:
                raise ValueError(
                    f"stage {self.name!r}: a phase has max_new_tokens={phase.max_new_tokens}, more "
                    f"than the stage's {self.max_new_tokens}, which the evaluation uses; raise the "
                    "stage's, lower the phase's, or let it follow with stage.changed(...)"
                )

    def at(self, step: int) -> "Stage":
        """The stage with the settings that hold at a step (1, 2, ...), without phases."""
        for steps, phase in self._spans():
            if step in steps:
                return replace(self, phases=(), **phase.changes())
        return replace(self, phases=())

    def changed(self, **changes: Any) -> "Stage":
        """A variant whose phases follow: lengths keep their share of the stage's, every other
        setting that is given holds in all phases."""
        phases = changes.pop("phases", None)
        if phases is None:
            phases = tuple(phase.following(vars(self), changes) for phase in self.phases)
        return replace(self, phases=phases, **changes)

    def _spans(self) -> Iterator[tuple[range, Phase]]:
        """The steps of every phase; a short stage may leave none to one."""
        first = 1
        for phase in self.phases:
            after = round(phase.until * self.steps) + 1
            yield range(first, after), phase
            first = after

    @property
    def needs_reward_model(self) -> bool:
        return self.reward in shaping.NEEDS_REWARD_MODEL

    def fast(self) -> "Stage":
        """The same stage for a first look or a test: two steps of small groups."""
        return replace(self, steps=2, prompts=min(self.prompts, 4), answers=min(self.answers, 4))

    def settings(self) -> dict[str, Any]:
        """Every field as a plain JSON value."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        phases = [{"until": phase.until, **phase.changes()} for phase in self.phases]
        return values | {
            "domain": self.domain.name,
            "reward": self.reward.__name__,
            "phases": phases,
        }

    def _phase_words(self) -> dict[str, str]:
        """What is other in which steps: {"steps 1-15": "max_new_tokens=320, temperature=1.0"}."""
        words = {}
        for steps, phase in self._spans():
            if steps and (found := phase.changes()):
                when = f"steps {steps[0]}-{steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
                words[when] = ", ".join(f"{k}={v}" for k, v in found.items())
        return words

    def __str__(self) -> str:
        plain = {k: v for k, v in self.settings().items() if k not in ("name", "phases")}
        phases = "".join(f"; {steps}: {words}" for steps, words in self._phase_words().items())
        return f"Stage {self.name}: " + ", ".join(f"{k}={v}" for k, v in plain.items()) + phases

    def _repr_html_(self) -> str:
        plain = {k: v for k, v in self.settings().items() if k != "phases"}
        rows = "".join(
            f"<tr><th scope='row'>{escape(k)}</th><td>{escape(str(v))}</td></tr>"
            for k, v in (plain | self._phase_words()).items()
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

# Settings for real models: the tables of the paper's unified 8B model (T15-T20) with ten times its
# learning rates, the usual translation from full fine-tuning to LoRA. Temperatures, group sizes,
# filters and penalties are the paper's; lengths, batches and steps are scaled to one GPU: 512 new
# tokens stand for its 40K (math) or 48K (code), with the same shares in the phases of a stage.
REAL_STAGES = (
    Stage(
        name="rlhf", domain=RLHF, steps=40, prompts=8, max_new_tokens=256, learning_rate=2e-5,
        temperature=0.6, kl_coef=1e-3, loss="sequence", reward=shaping.preference_tanh,
        thinking="half",
    ),
    Stage(
        name="instruct", domain=INSTRUCT, steps=40, prompts=8, max_new_tokens=384,
        learning_rate=2e-5, temperature=0.6, filter="batch", thinking="off",
    ),
    # 24K, 32K, 40K over 500 steps: compress (what is cut off leaves the loss), stabilise, extend.
    Stage(
        name="math", domain=MATH, steps=40, prompts=8, max_new_tokens=512, learning_rate=2e-5,
        temperature=0.8, filter="epoch", reward=shaping.verifier_or_minus_one,
        phases=(
            Phase(until=0.38, max_new_tokens=320, temperature=1.0, overlong_filter=True),
            Phase(until=0.86, max_new_tokens=416, temperature=1.0),
        ),
    ),
    # 44K, then 48K; at which of the 90 steps is not known, so at half of them. Nor is a filter
    # known for code: it is that of math.
    Stage(
        name="code", domain=CODE, steps=40, prompts=8, max_new_tokens=512, learning_rate=4e-5,
        temperature=0.8, filter="epoch", reward=shaping.verifier_or_zero,
        phases=(Phase(until=0.5, max_new_tokens=464, temperature=1.0),),
    ),
    # Prompts of 16K, then 24K tokens, filled up with other files: at most five with the one that
    # most fixes touch.
    Stage(
        name="swe", domain=SWE, steps=40, prompts=8, answers=16, max_new_tokens=512,
        learning_rate=2.5e-5, max_prompt_tokens=1536, noisy_files=4,
        phases=(Phase(until=0.5, max_prompt_tokens=1024, overlong_filter=True),),
    ),
)  # fmt: skip


Tier = Literal["micro", "easy", "real"]  # the embedded model; generated, for real models; your rows
TIERS: dict[Tier, tuple[Stage, ...]] = {
    "micro": MICRO_STAGES,
    "easy": EASY_STAGES,
    "real": REAL_STAGES,
}


def cascade(order: Sequence[str] = ORDER, *, tier: Tier = "micro", **overrides: Any) -> list[Stage]:
    """The stages in an order of names, each at most once, with fields overridden in all of them.

    Phases follow, see `Stage.changed`.
    """
    known = {stage.name: stage for stage in TIERS[tier]}
    for i, name in enumerate(order):
        if name not in known:
            raise ValueError(f"unknown stage {name!r}; choose from {', '.join(known)}")
        if name in order[:i]:
            raise ValueError(f"stage {name!r} stands twice in the order; each may run once")
    if not order:
        raise ValueError(f"the order is empty; name at least one of {', '.join(known)}")
    return [known[name].changed(**overrides) for name in order]
