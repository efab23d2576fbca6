"""Evaluation rows, and the win rate where only a reward model can judge."""

import pytest

from cascade_kit.domains.math import MATH
from cascade_kit.domains.rlhf import RLHF
from cascade_kit.evaluate import evaluate
from cascade_kit.loading import load_policy
from cascade_kit.problem import Problem


@pytest.fixture(scope="module")
def policy():
    return load_policy()


def test_an_item_scores_the_mean_of_its_samples(policy):
    problems = MATH.problems("eval", 6)
    rows = evaluate(policy, MATH, problems, max_new_tokens=48, samples=5)
    assert [row.id for row in rows] == [p.id for p in problems]
    for problem, row in zip(problems, rows, strict=True):
        verdicts = [MATH.reward(problem, text).value for text in row.completions]
        assert list(row.samples) == verdicts
        assert row.score == pytest.approx(sum(verdicts) / 5)
    assert 0 < sum(row.score for row in rows) < 6


def test_the_same_seed_gives_the_same_answers_and_greedy_others(policy):
    problems = MATH.problems("eval", 8)
    first, again, other, greedy = (
        [row.completions for row in evaluate(policy, MATH, problems, max_new_tokens=40, **options)]
        for options in ({}, {}, {"seed": 1}, {"greedy": True})
    )
    assert first == again
    assert first != other
    assert first != greedy


def by_length(rollouts):
    """A stand-in for a reward model that likes long answers."""
    import numpy as np

    return np.array([float(len(r.text)) for r in rollouts])


REAL = [Problem(f"real-{i}", "rlhf", text) for i, text in enumerate(("Hi there!", "Who are you?"))]


def test_the_start_ties_with_itself(policy):
    rows = evaluate(policy, RLHF, REAL, max_new_tokens=12, samples=2, reward_model=by_length)
    assert all(row.samples == (0.5, 0.5) and row.score == 0.5 for row in rows)
    assert all(row.judge == tuple(float(len(c)) for c in row.completions) for row in rows)


def test_later_rows_are_compared_with_the_start_sample_by_sample(policy):
    from dataclasses import replace

    options = {"max_new_tokens": 12, "samples": 2, "reward_model": by_length}
    rows = evaluate(policy, RLHF, REAL, **options)
    start = {
        row.id: replace(row, judge=(row.judge[0] - 1, row.judge[1] + 1)) for row in rows
    }  # the first sample wins now, the second loses
    later = evaluate(policy, RLHF, REAL, start=start, **options)
    assert all(row.samples == (1.0, 0.0) and row.score == 0.5 for row in later)


def test_without_a_judge_it_says_what_is_missing(policy):
    with pytest.raises(ValueError, match="give preference pairs"):
        evaluate(policy, RLHF, REAL, max_new_tokens=4)


def test_a_reward_model_score_is_not_taken_for_success(policy):
    """Training on real preference data logs no success where nobody knows it."""
    from cascade_kit.grpo import train
    from cascade_kit.stage import cascade

    stage = cascade(["rlhf"], steps=1, prompts=2, answers=4, max_new_tokens=8)[0]
    record, answers = next(train(policy, stage, REAL, reward_model=by_length))
    assert record.success_mean is None
    assert record.reward_mean == pytest.approx(sum(len(a.rollout.text) for a in answers) / 8)
    assert all(a.row(1)["success"] is None for a in answers)
