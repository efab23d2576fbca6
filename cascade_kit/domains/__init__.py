"""The five domains of the cascade: where problems come from and how an answer is scored.

A domain is two functions. `generate(rng, difficulty)` makes one small problem for the embedded
model; `reward(problem, completion)` scores any answer to a problem of the domain, generated or
loaded from public data, and can be called by hand in a notebook cell.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cascade_kit.problem import Problem, Score
from cascade_kit.verifiers.thinking import answer_part

# Share of the generated problems in each split, in hash buckets of 0..99. The prompts of the
# supervised start and of the RL stages are disjoint, as in the paper (section 4).
SPLITS = {"sft": range(0, 50), "train": range(50, 80), "eval": range(80, 100)}


@dataclass(frozen=True)
class Domain:
    """One domain: its name, its generator of small problems and its reward."""

    name: str
    generate: Callable[[random.Random, int], Problem]  # (rng, difficulty 1..3) -> Problem
    reward: Callable[[Problem, str], Score]
    score_batch: Callable[[Sequence[Problem], Sequence[str]], list[Score]] | None = None

    def problems(
        self, split: str, n: int, *, seed: int = 0, difficulty: int = 2, fewer: bool = False
    ) -> list[Problem]:
        """`n` distinct generated problems of a split; the same arguments give the same list.

        A problem belongs to the split that the hash of its prompt falls into, so no prompt is in
        two splits whatever the seed. With `fewer`, a domain that has less than `n` gives what it
        has; else that is a ValueError.
        """
        if split not in SPLITS:
            raise ValueError(f"split {split!r} does not exist; choose one of {', '.join(SPLITS)}")
        if difficulty not in (1, 2, 3):
            raise ValueError(f"difficulty {difficulty!r} is not 1, 2 or 3")
        rng = random.Random(f"{self.name}/{split}/{seed}/{difficulty}")
        found: dict[str, Problem] = {}
        misses = 0  # draws in a row that gave nothing new
        while len(found) < n:
            problem = self.generate(rng, difficulty)
            if bucket(problem.prompt) in SPLITS[split] and problem.id not in found:
                found[problem.id] = problem
                misses = 0
            elif (misses := misses + 1) > 5000:
                if fewer and found:
                    break
                raise ValueError(
                    f"domain {self.name!r} has only about {len(found)} distinct {split} problems "
                    f"of difficulty {difficulty}; ask for fewer than {n}"
                )
        return list(found.values())

    def score(
        self,
        problems: Sequence[Problem],
        completions: Sequence[str],
        thinking: Sequence[bool | None] | None = None,
    ) -> list[Score]:
        """Scores of many answers, in order; in one batch where the domain can do that.

        A reward sees what follows the thought. `thinking` tells which completions were asked to
        think: one of those without a thought that ends is no answer.
        """
        asked = thinking or [None] * len(completions)
        answers = [
            answer_part(c, thinking=t is True) for c, t in zip(completions, asked, strict=True)
        ]
        if self.score_batch is not None:
            return self.score_batch(problems, answers)
        return [self.reward(p, a) for p, a in zip(problems, answers, strict=True)]


def bucket(text: str) -> int:
    """Hash bucket 0..99 of a text, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100


def problem_id(domain: str, prompt: str) -> str:
    """A short stable id: the domain and eight hex digits of the prompt's hash."""
    return f"{domain}-{hashlib.sha256(prompt.encode()).hexdigest()[:8]}"
