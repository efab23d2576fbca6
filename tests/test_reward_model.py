"""The reward model: second adapter and head on the policy's own base."""

import json
import math

import numpy as np
import pytest
import torch

from cascade_kit.domains.rlhf import RLHF, preference_pairs, reward
from cascade_kit.loading import load_policy
from cascade_kit.policy import POLICY, REWARD_MODEL
from cascade_kit.reward_model import RewardModel, bradley_terry_loss
from cascade_kit.rollout import rollouts


@pytest.fixture(scope="module")
def trained():
    policy = load_policy()
    model = RewardModel(policy)
    records = list(model.train(preference_pairs("train", 480), learning_rate=1e-3))
    return policy, model, records


def test_bradley_terry_by_hand():
    loss = bradley_terry_loss(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]))
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(2)) / 2)


def test_it_learns_to_rank_held_out_pairs(trained):
    _, model, records = trained
    assert records[0].loss == pytest.approx(math.log(2), abs=0.3)
    # Chance is 0.5 with a standard error of 0.035: five of these above it.
    assert model.accuracy(preference_pairs("eval", 200)) >= 0.68


def test_training_it_leaves_the_policy_alone(trained):
    policy, _, _ = trained
    assert policy.adapter_hash(POLICY) == load_policy().adapter_hash(POLICY)
    assert policy.model.active_adapter == POLICY
    trainable = [n for n, p in policy.model.named_parameters() if p.requires_grad]
    assert trainable
    assert all(".policy." in name for name in trainable)


def test_scores_do_not_depend_on_batch_or_order(trained):
    _, model, _ = trained
    pairs = preference_pairs("eval", 12)
    prompts, texts = [p.prompt for p in pairs], [p.chosen for p in pairs]
    together = model.score(prompts, texts)
    model.batch_tokens = 1
    alone = model.score(prompts[::-1], texts[::-1])[::-1]
    model.batch_tokens = 8192
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_rollouts_and_their_texts_score_alike_when_finished(trained):
    policy, model, _ = trained
    groups = rollouts(policy, RLHF.problems("eval", 4), 2, max_new_tokens=64, key="k")
    finished = [r for group in groups for r in group if r.stopped]
    assert finished
    by_text = model.score([r.problem.prompt for r in finished], [r.text for r in finished])
    np.testing.assert_allclose(model(finished), by_text, atol=1e-4)


def test_an_unfinished_answer_is_judged_as_it_stands(trained):
    policy, model, _ = trained
    (group,) = rollouts(policy, RLHF.problems("eval", 1), 1, max_new_tokens=3, key="k")
    assert not group[0].stopped
    ids = model._rollout_ids(group[0])
    assert ids[-1] == group[0].completion_ids[-1]
    assert ids[-1] not in policy.stop_ids


def test_only_the_text_after_the_thinking_is_judged(trained):
    _, model, _ = trained
    assert model.encode("Hi", "<think>rude thoughts</think>\nHello.") == model.encode(
        "Hi", "Hello."
    )


def test_a_long_row_keeps_its_end(trained):
    _, model, _ = trained
    row = model.encode("Describe the sea.", "The sea is deep and blue.")
    model.max_tokens = 10
    cut = model.score_ids([row])
    model.max_tokens = 2048
    np.testing.assert_allclose(cut, model.score_ids([row[-10:]]), atol=1e-5)


def test_it_comes_back_from_its_folder(trained, tmp_path):
    _, model, _ = trained
    model.save(tmp_path / "reward_model", held_out_accuracy=0.9)
    facts = json.loads((tmp_path / "reward_model" / "reward_model.json").read_text())
    assert facts == {"held_out_accuracy": 0.9}
    other_policy = load_policy(seed=7)
    other = RewardModel(other_policy, seed=7)
    other.load(tmp_path / "reward_model")
    assert other_policy.adapter_hash(REWARD_MODEL) == model.policy.adapter_hash(REWARD_MODEL)
    np.testing.assert_allclose(
        other.score(["Hi"], ["Hello."]), model.score(["Hi"], ["Hello."]), atol=1e-5
    )


def test_pairs_are_disjoint_deterministic_and_mostly_true():
    train, held_out = preference_pairs("train", 300), preference_pairs("eval", 300)
    assert train == preference_pairs("train", 300)
    assert not {p.prompt for p in train} & {p.prompt for p in held_out}
    problems = {p.prompt: p for p in RLHF.problems("train", 300)}
    differences = [
        reward(problems[p.prompt], p.chosen).value - reward(problems[p.prompt], p.rejected).value
        for p in train
    ]
    assert 0.88 < np.mean(np.array(differences) > 0) < 1.0  # a judge with noise
    assert min(abs(d) for d in differences) >= 0.1 - 1e-9
