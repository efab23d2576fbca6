"""Sampled answers to look at: before and after a stage, or in a chat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from cascade_kit.policy import Policy
from cascade_kit.problem import Problem, Score
from cascade_kit.rollout import rollouts
from cascade_kit.stage import Stage


@dataclass(frozen=True)
class Reply:
    """One sampled answer; `score` is None where the prompt is a text and not a problem."""

    stage: str  # whose policy gave it; "" for the policy as it is now
    problem: Problem
    text: str
    score: Score | None
    stopped: bool  # False if it was cut at the length limit
    tokens: int


def sample_replies(
    policy: Policy,
    problems: Sequence[Problem],
    stages: Mapping[str, Stage],  # domain -> how long its answers may be, how they are scored
    *,
    stage: str,
    samples: int,
    seed: int,
    draw: int,
    temperature: float,
    max_new_tokens: int,  # of a prompt that belongs to no domain
) -> list[list[Reply]]:
    """`samples` replies to each problem, with the random numbers of the evaluation for draw 0."""
    found = []
    for domain, group in groupby(problems, key=lambda problem: problem.domain):
        asked = list(group)
        home = stages.get(domain)
        answers = rollouts(
            policy,
            asked,
            samples,
            max_new_tokens=home.max_new_tokens if home else max_new_tokens,
            temperature=temperature,
            thinking=home.thinking if home else None,
            key=f"{seed}/eval/{domain}" + f"/draw {draw}" * bool(draw),
        )
        flat = [answer for row in answers for answer in row]
        scores: Sequence[Score | None] = [None] * len(flat)
        if home:
            scores = home.domain.score(
                [a.problem for a in flat], [a.text for a in flat], [a.thinking for a in flat]
            )
        replies = [
            Reply(stage, a.problem, a.text, score, a.stopped, len(a.completion_ids))
            for a, score in zip(flat, scores, strict=True)
        ]
        found += [replies[i : i + samples] for i in range(0, len(replies), samples)]
    return found
