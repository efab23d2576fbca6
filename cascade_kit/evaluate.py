"""Evaluation: every domain on the same held-out items, with the same random numbers in every row.

The score of an item is the mean over k answers sampled at temperature 1. The uniforms of an answer
depend on (seed, domain, item, sample) alone, so two rows of the matrix differ only by what the
policy learnt, and their comparison can be paired item by item.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from cascade_kit.chat import Thinking
from cascade_kit.domains import Domain
from cascade_kit.policy import POLICY, Policy
from cascade_kit.problem import Problem, Score
from cascade_kit.reward_model import RewardModel
from cascade_kit.rollout import Rollout, rollouts

TIE = 1e-4  # reward-model scores that are closer are equal


@dataclass(frozen=True)
class EvalRow:
    """One held-out item after one stage: the line of `eval/DOMAIN.jsonl`."""

    id: str
    score: float  # mean of `samples`, in [0, 1]
    samples: tuple[float, ...]  # success of each of the k answers
    prompt: str
    completions: tuple[str, ...]
    why: tuple[str, ...]  # what the verifier said of each
    stopped: tuple[bool, ...]
    judge: tuple[float, ...] = ()  # raw reward-model scores, where they decide


def evaluate(
    policy: Policy,
    domain: Domain,
    problems: Sequence[Problem],
    *,
    max_new_tokens: int,
    seed: int = 0,
    samples: int = 1,
    greedy: bool = False,
    thinking: Thinking = None,
    adapter: str = POLICY,
    reward_model: RewardModel | None = None,
    start: Mapping[str, EvalRow] | None = None,
) -> list[EvalRow]:
    """Rows of all items of one domain, in order.

    Preference items without a true preference are scored by win rate against the start's answer to
    the same item, judged by the reward model: 1 for a higher score, 0.5 for a tie. `start` holds
    the rows of the start by id, or is None when this is the start.
    """
    groups = rollouts(
        policy,
        problems,
        samples,
        max_new_tokens=max_new_tokens,
        key=f"{seed}/eval/{domain.name}",
        greedy=greedy,
        thinking=thinking,
        adapter=adapter,
    )
    flat = [rollout for group in groups for rollout in group]
    scores = iter(
        domain.score([r.problem for r in flat], [r.text for r in flat], [r.thinking for r in flat])
    )
    rows = [_row(group, [next(scores) for _ in group]) for group in groups]
    if any(value is None for row in rows for value in row.samples):
        rows = list(_win_rates(rows, groups, reward_model, start))
    return rows


def _row(group: Sequence[Rollout], scores: Sequence[Score]) -> EvalRow:
    successes = tuple(score.success for score in scores)
    known = [s for s in successes if s is not None]
    return EvalRow(
        id=group[0].problem.id,
        score=sum(known) / len(known) if known else 0.5,
        samples=successes,
        prompt=group[0].problem.prompt,
        completions=tuple(r.text for r in group),
        why=tuple(score.why for score in scores),
        stopped=tuple(r.stopped for r in group),
    )


def _win_rates(
    rows: Sequence[EvalRow],
    groups: Sequence[Sequence[Rollout]],
    reward_model: RewardModel | None,
    start: Mapping[str, EvalRow] | None,
) -> Iterator[EvalRow]:
    if reward_model is None:
        raise ValueError(
            "preference items without a true preference are judged by a reward model: give "
            "preference pairs to train one"
        )
    judged = iter(reward_model([r for group in groups for r in group]).tolist())
    for row in rows:
        own = tuple(next(judged) for _ in row.completions)
        other = own if start is None else start[row.id].judge
        # The same answer in another batch scores differently by rounding: that is a tie.
        wins = tuple(
            0.5 if abs(a - b) < TIE else float(a > b) for a, b in zip(own, other, strict=True)
        )
        yield EvalRow(
            **{**asdict(row), "samples": wins, "score": sum(wins) / len(wins), "judge": own}
        )
