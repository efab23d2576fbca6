"""The algorithm against numbers computed by hand, and on the real embedded model."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from cascade_kit import grpo, shaping
from cascade_kit.curriculum import Curriculum
from cascade_kit.domains import Domain
from cascade_kit.domains.math import MATH
from cascade_kit.domains.rlhf import RLHF
from cascade_kit.loading import load_policy
from cascade_kit.policy import POLICY
from cascade_kit.problem import Score
from cascade_kit.rollout import rollouts
from cascade_kit.stage import Stage, cascade


@pytest.fixture(scope="module")
def problems():
    return MATH.problems("train", 40)


def math_stage(**changes) -> Stage:
    return replace(cascade(["math"])[0], **{"steps": 2, "prompts": 4, "answers": 4, **changes})


# ---- by hand -----------------------------------------------------------------------------------


def test_advantages_are_the_group_normalised_rewards():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 1.0]])
    advantages = grpo.group_advantages(rewards)
    # Group 1: mean 1/2, Bessel-corrected std sqrt(4 * 1/4 / 3).
    high = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert advantages[0].tolist() == pytest.approx([high, -high, -high, high], rel=1e-6)
    assert advantages[1].tolist() == [0.0] * 4
    # Group 3: mean 1/4, squared deviations 3/16 + 9/16 = 3/4, std sqrt(1/4).
    assert advantages[2].tolist() == pytest.approx([-0.25 / 0.5001] * 3 + [0.75 / 0.5001], rel=1e-6)


def test_a_group_with_a_tiny_spread_is_flat():
    rewards = torch.tensor([[1.0, 1.0 + 1e-9], [1.0, 1.0 + 1e-6]], dtype=torch.float64)
    advantages = grpo.group_advantages(rewards)
    assert advantages[0].tolist() == [0.0, 0.0]
    assert advantages[1, 1] > 0


def test_k3_by_hand():
    estimate = grpo.kl_estimate(torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)]))
    assert estimate.item() == pytest.approx(0.5 + math.log(2) - 1)
    assert grpo.kl_estimate(torch.zeros(3), torch.zeros(3)).tolist() == [0.0] * 3


def test_policy_loss_and_its_gradient_by_hand():
    logps = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -2.0])
    weights = torch.tensor([0.25, 0.25, 0.5])
    loss = grpo.policy_loss(logps, advantages, weights)
    assert loss.item() == pytest.approx(-(0.25 + 0.25 - 1.0))  # the ratio is 1
    loss.backward()
    assert logps.grad.tolist() == [-0.25, -0.25, 1.0]


def test_the_kl_term_pulls_towards_the_reference():
    logps = torch.tensor([-1.0], requires_grad=True)
    reference = torch.tensor([-1.5])
    loss = grpo.policy_loss(logps, torch.zeros(1), torch.ones(1), reference, kl_coef=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(0.1 * (math.exp(-0.5) + 0.5 - 1))
    assert logps.grad.item() == pytest.approx(0.1 * (1 - math.exp(-0.5)))


def test_token_and_sequence_weights():
    lengths = torch.tensor([3, 1])
    # Eight tokens and three answers were sampled; the flat group's are not among these.
    assert grpo.token_weights(lengths, "token", 8, 3).tolist() == pytest.approx([1 / 8] * 4)
    by_answer = grpo.token_weights(lengths, "sequence", 8, 3)
    assert by_answer.tolist() == pytest.approx([1 / 9] * 3 + [1 / 3])


# ---- shaping -----------------------------------------------------------------------------------


def test_tanh_shaping_by_hand():
    scores = shaping.GroupScores(values=np.zeros((1, 2)), reward_model=np.array([[1.0, 3.0]]))
    # mean 2, Bessel-corrected std sqrt(2)
    expected = math.tanh(1 / (math.sqrt(2) + 1e-4))
    assert shaping.preference_tanh(scores)[0].tolist() == pytest.approx([-expected, expected])


def test_a_code_switch_costs_ten_below_the_lowest_of_the_batch():
    scores = shaping.GroupScores(
        values=np.zeros((2, 2)),
        reward_model=np.array([[1.0, 3.0], [-2.0, 5.0]]),
        code_switch=np.array([[False, True], [False, False]]),
    )
    assert shaping.preference(scores).tolist() == [[1.0, -12.0], [-2.0, 5.0]]


def test_the_verifier_gates_and_the_reward_model_ranks():
    scores = shaping.GroupScores(
        values=np.array([[1.0, 0.0, 1.0]]), reward_model=np.array([[0.0, 9.0, 3.0]])
    )
    rewards = shaping.gated_preference(scores)[0]
    std = np.std([0.0, 9.0, 3.0], ddof=1) + 1e-4  # of the whole group, passing or not
    assert rewards.tolist() == pytest.approx(
        [1 + 1 / (1 + math.exp(4 / std)), 0.0, 1 + 1 / (1 + math.exp(1 / std))]
    )


def test_rewards_that_need_a_reward_model_say_so_before_any_work(problems):
    stage = math_stage(reward=shaping.gated_preference)
    with pytest.raises(ValueError, match="needs a reward model"):
        next(grpo.train(load_policy(), stage, problems))


# ---- on the model ------------------------------------------------------------------------------


def answers_of(policy, stage, problems, rewards) -> list[grpo.Answer]:
    """Sampled answers with given rewards (P, G)."""
    groups = rollouts(
        policy, problems, stage.answers, max_new_tokens=stage.max_new_tokens, key="test"
    )
    advantages = grpo.group_advantages(torch.tensor(rewards))
    return [
        grpo.Answer(rollout, Score(0.0), reward, advantage.item())
        for group, row, values in zip(groups, rewards, advantages, strict=True)
        for rollout, reward, advantage in zip(group, row, values, strict=True)
    ]


def gradients(policy, stage, answers) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one update, before clipping and without moving the policy."""
    parameters = policy.adapter_parameters(POLICY)
    still = torch.optim.SGD(parameters.values(), lr=0.0)
    stats = grpo.update(policy, still, stage, answers)
    scale = max(1.0, stats.grad_norm)  # undo the clipping
    return stats.loss, {name: p.grad * scale for name, p in parameters.items()}


def test_update_equals_the_plain_objective(problems, float64_norms):
    """Against the formula written out with full logits, one answer at a time."""
    policy = load_policy(bits=16, dtype=torch.float64)
    stage = math_stage(overlong_filter=True, max_new_tokens=24)
    rewards = [[1.0, 0.0, 0.0, 0.5], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
    answers = answers_of(policy, stage, problems[:3], rewards)
    assert 0 < sum(not a.rollout.stopped for a in answers) < len(answers), "need some of both"
    loss, found = gradients(policy, stage, answers)

    kept = [a for a in answers if a.rollout.stopped]
    tokens = sum(len(a.rollout.completion_ids) for a in kept)
    objective = torch.zeros((), dtype=torch.float64)
    for a in kept:
        prompt, answer = a.rollout.prompt_ids, a.rollout.completion_ids
        logits = policy.model(input_ids=torch.tensor([prompt + answer])).logits[0]
        logps = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        chosen = logps[torch.arange(len(answer)), torch.tensor(answer)]
        objective = objective + a.advantage * chosen.sum()
    parameters = policy.adapter_parameters(POLICY)
    expected = torch.autograd.grad(-objective / tokens, parameters.values())
    surrogate = -sum(a.advantage * len(a.rollout.completion_ids) for a in kept) / tokens
    assert loss == pytest.approx(surrogate, rel=1e-9, abs=1e-12)
    largest = max(g.abs().max() for g in expected)
    for gradient, name in zip(expected, parameters, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-9 * float(largest))


def test_micro_batches_change_nothing(problems, monkeypatch, float64_norms):
    policy = load_policy(bits=16, dtype=torch.float64)
    stage = math_stage()
    rewards = np.random.default_rng(0).random((4, 4)).tolist()
    answers = answers_of(policy, stage, problems[:4], rewards)
    _, whole = gradients(policy, stage, answers)
    # With a limit of 20 a prompt alone is too long: its activations are recomputed.
    for limit in (120, 20):
        monkeypatch.setattr(policy, "tokens_per_forward", lambda limit=limit: limit)
        _, cut = gradients(policy, stage, answers)
        for name in whole:
            torch.testing.assert_close(cut[name], whole[name], rtol=1e-9, atol=1e-12)


def test_every_lora_parameter_changes_and_no_base_parameter_does(problems):
    policy = load_policy()
    base = {n: p.detach().clone() for n, p in policy.model.named_parameters() if "lora_" not in n}
    lora = {n: p.detach().clone() for n, p in policy.adapter_parameters(POLICY).items()}
    records = list(grpo.train(policy, math_stage(learning_rate=1e-3), problems))
    assert [r.step for r, _ in records] == [1, 2]
    for name, parameter in policy.adapter_parameters(POLICY).items():
        assert not torch.equal(parameter, lora[name]), f"{name} did not change"
    now = dict(policy.model.named_parameters())
    assert all(torch.equal(now[name], before) for name, before in base.items())


def test_records_hold_what_the_step_did(problems):
    policy = load_policy()
    record, answers = next(grpo.train(policy, math_stage(), problems))
    assert len(answers) == 16
    assert record.tokens == sum(len(a.rollout.completion_ids) for a in answers)
    assert record.success_mean == pytest.approx(np.mean([a.score.success for a in answers]))
    assert record.logprob_gap < 1e-4
    assert 0 < record.entropy < math.log(1024)
    assert set(record.seconds) == {"rollout", "score", "update"}
    rewards = np.array([a.reward for a in answers]).reshape(4, 4)
    flat = np.ptp(rewards, axis=1) < 1e-8
    assert record.all_right + record.all_wrong == pytest.approx(flat.mean())
    json.dumps(answers[0].row(1))


def test_kl_is_zero_at_the_first_step_and_grows(problems):
    policy = load_policy()
    stage = math_stage(kl_coef=1e-3, learning_rate=1e-3, steps=2)
    first, second = (record for record, _ in grpo.train(policy, stage, problems))
    assert first.kl == pytest.approx(0.0, abs=1e-9)
    assert second.kl > 1e-6


def test_a_reward_for_one_word_is_learnt_in_seconds():
    """A bandit: an answer is right if its first word is one that the start gives now and then."""
    bandit = Domain(
        "bandit", RLHF.generate, lambda problem, text: Score(float(text.startswith("Certainly")))
    )
    stage = Stage(
        name="bandit", domain=bandit, steps=12, prompts=8, answers=16, max_new_tokens=2,
        learning_rate=3e-3,
    )  # fmt: skip
    steps = grpo.train(load_policy(), stage, RLHF.problems("train", 40))
    means = [record.reward_mean for record, _ in steps]
    assert means[0] < 0.3
    assert means[-1] > 0.8


SAME_SEED = """
import json, sys
from dataclasses import asdict, replace
import torch
from cascade_kit import grpo
from cascade_kit.domains.math import MATH
from cascade_kit.loading import load_policy
from cascade_kit.stage import cascade
torch.set_num_threads(1)
policy = load_policy(seed=3)
stage = replace(cascade(["math"])[0], steps=2, prompts=4, answers=4)
for record, answers in grpo.train(policy, stage, MATH.problems("train", 40), seed=3):
    row = asdict(record)
    del row["seconds"], row["peak_memory_mb"]
    print(json.dumps([row, [a.row(record.step) for a in answers]]))
print(policy.adapter_hash())
"""


def test_the_same_seed_gives_the_same_records_in_two_processes():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SAME_SEED], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert outputs[0].count("\n") == 3
    assert outputs[0] == outputs[1]


def test_problems_are_not_repeated_within_an_epoch(problems):
    stage = math_stage()
    curriculum = Curriculum(problems, stage, 0)
    drawn = [p.id for _ in range(10) for p in curriculum.draw(stage, 4)]
    assert sorted(drawn) == sorted(p.id for p in problems)  # ten steps of four: one epoch
    again = [p.id for p in curriculum.draw(stage, 4)]
    assert again != drawn[:4]
    other_seed = [p.id for p in Curriculum(problems, stage, 1).draw(stage, 4)]
    assert other_seed != drawn[:4]


def test_rounding_is_not_taken_for_preference():
    raw = np.array([[1.0, 1.0 + 1e-6, 1.0, 1.0]])
    scores = shaping.GroupScores(values=np.zeros((1, 4)), reward_model=raw)
    assert shaping.preference_tanh(scores).tolist() == [[0.0] * 4]
