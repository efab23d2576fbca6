"""The curriculum: which problems a step trains on, and which ones an epoch leaves out.

    curriculum = Curriculum(problems, stage, seed)
    batch = curriculum.draw(stage.at(step), stage.prompts)
    curriculum.tell({"math-1f": 0.25})           # the share of right answers, by problem

A problem that is always or never solved has no gradient. The *epoch filter* (Nemotron-Cascade,
section 4.5.2) leaves out what the policy solved always or never when it saw it last, and lets some
of it in again: a hard one with 10 %, since it may have become possible, an easy one with 1 %, so
that it is not forgotten within the stage. The *batch filter* (of DAPO) is in grpo.train: groups
without a gradient are replaced by further problems.

Every draw follows from seed, stage, epoch and what was told, so that `state` is all that another
process needs to go on.
"""

import random
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cascade_kit.domains.swe import with_noise
from cascade_kit.problem import Problem
from cascade_kit.stage import Stage

HARD_AGAIN, EASY_AGAIN = 0.10, 0.01  # the chance of a problem that was left out to come back


class Curriculum:
    """A shuffled pass over the problems per epoch, no repetition within one.

    `left_out` and `readmitted` tell what the epoch filter did to the current epoch: how many
    problems it keeps out, and how many it let in again although they were solved always or never.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        stage: Stage,
        seed: int,
        *,
        prompt_tokens: Callable[[Problem], int] = lambda problem: len(problem.prompt),
        positions: int = sys.maxsize,
    ):
        """`positions` is what a prompt and its answer have room in; noise must not overrun it."""
        self._problems = {p.id: p for p in problems}
        if len(self._problems) < len(problems):
            raise ValueError(
                f"stage {stage.name!r}: two of its problems have the same id; give each its own"
            )
        self._stage = stage
        self._key = f"{seed}/{stage.name}"
        self._prompt_tokens = prompt_tokens
        self._positions = positions
        self._rates: dict[str, float] = {}  # problem -> share of right answers when last seen
        self._epoch = -1
        self._order: list[str] = []
        self._position = 0
        self._cap: int | None = None  # of the prompts in this epoch's order
        self.left_out = self.readmitted = 0

    def draw(self, now: Stage, count: int, tried: Collection[str] = ()) -> list[Problem]:
        """The next `count` problems under the settings in force, or all if there are fewer.

        None of the ids `tried`, those of the step so far, is drawn again. What an epoch has left
        over after its last full draw is not used. Raises ValueError if every prompt is longer than
        the phase allows.
        """
        if now.max_prompt_tokens != self._cap or self._epoch < 0:
            self._begin_epoch(now)
        count = min(count, len(set(self._order) - set(tried)))
        if self._position + count > len(self._order):
            self._begin_epoch(now)
            self._order.sort(key=set(tried).__contains__)  # stable: these come last
            count = min(count, len(set(self._order) - set(tried)))
        drawn = self._order[self._position : self._position + count]
        self._position += count
        return [self._shown(self._problems[identifier], now) for identifier in drawn]

    def tell(self, rates: Mapping[str, float]) -> None:
        """Note the share of right answers, in [0, 1], of the problems that were tried."""
        self._rates.update(rates)

    def state(self) -> dict[str, Any]:
        """Everything that is not in the arguments, as plain JSON."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "order": list(self._order),
            "cap": self._cap,
            "left_out": self.left_out,
            "readmitted": self.readmitted,
            "rates": dict(self._rates),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`; ValueError if it knows problems that are not there any more."""
        missing = [i for i in state["order"] if i not in self._problems]
        if missing:
            raise ValueError(
                f"the stage was started with other problems ({missing[0]} is missing); resume it "
                "with the same data"
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self._order, self._cap = list(state["order"]), state["cap"]
        self.left_out, self.readmitted = state["left_out"], state["readmitted"]
        self._rates = dict(state["rates"])

    def _begin_epoch(self, now: Stage) -> None:
        self._epoch += 1
        self._position, self._cap = 0, now.max_prompt_tokens
        short = [i for i, p in self._problems.items() if self._fits(p, now)]
        if not short:
            raise ValueError(
                f"stage {now.name!r}: every prompt has more than max_prompt_tokens="
                f"{now.max_prompt_tokens} tokens; raise it, or bring shorter rows"
            )
        self._order = self._admitted(short) if self._stage.filter == "epoch" else short
        random.Random(f"{self._key}/epoch {self._epoch}").shuffle(self._order)

    def _admitted(self, identifiers: list[str]) -> list[str]:
        """What the epoch filter lets through; at least enough for one step, drawn from the rest."""
        rng = random.Random(f"{self._key}/filter {self._epoch}")
        chance = {0.0: HARD_AGAIN, 1.0: EASY_AGAIN}
        drawn = {i: rng.random() for i in identifiers}
        kept = [i for i in identifiers if drawn[i] < chance.get(self._rates.get(i), 1.0)]
        lacking = min(self._stage.prompts, len(identifiers)) - len(kept)
        if lacking > 0:
            rest = sorted(set(identifiers) - set(kept), key=drawn.__getitem__)
            kept += rest[:lacking]
        self.left_out = len(identifiers) - len(kept)
        self.readmitted = sum(self._rates.get(i) in chance for i in kept)
        return kept

    def _fits(self, problem: Problem, now: Stage) -> bool:
        most = now.max_prompt_tokens
        return most is None or self._prompt_tokens(problem) <= most

    def _shown(self, problem: Problem, now: Stage) -> Problem:
        """The problem as the step shows it: for SWE with files that the fix does not need."""
        if not now.noisy_files:
            return problem
        most = min(now.max_prompt_tokens, self._positions - now.max_new_tokens)
        return with_noise(problem, now.noisy_files, lambda p: self._prompt_tokens(p) <= most)
