"""Sampling: exact, shared, and independent of the company an answer keeps."""

import math

import numpy as np
import pytest
import torch

from cascade_kit import budgets, decoding
from cascade_kit import rollout as rollout_module
from cascade_kit.domains.math import MATH
from cascade_kit.domains.swe import SWE
from cascade_kit.loading import load_policy
from cascade_kit.problem import Problem
from cascade_kit.rollout import draw_tokens, rollouts


@pytest.fixture(scope="module")
def policy():
    return load_policy()


@pytest.fixture(scope="module")
def problems():
    return [*MATH.problems("eval", 5), *SWE.problems("eval", 2)]


def test_greedy_decoding_equals_generate(policy, problems):
    groups = rollouts(policy, problems, 1, max_new_tokens=40, key="k", greedy=True)
    for problem, (rollout,) in zip(problems, groups, strict=True):
        ids = torch.tensor([policy.encode_prompt(problem.prompt)])
        expected = policy.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=sorted(policy.stop_ids),
            pad_token_id=0,
        )[0, ids.shape[1] :]
        assert rollout.completion_ids == tuple(expected.tolist())


def test_recorded_log_probabilities_are_the_models_own(policy, problems):
    for group in rollouts(policy, problems, 3, max_new_tokens=30, key="k", temperature=0.7):
        for r in group:
            ids = torch.tensor([r.prompt_ids + r.completion_ids])
            with torch.no_grad():
                logits = policy.model(input_ids=ids).logits[0] / 0.7
            logps = logits.log_softmax(-1)[len(r.prompt_ids) - 1 : -1]
            own = logps[torch.arange(len(r.logps)), torch.tensor(r.completion_ids)]
            assert (own - torch.tensor(r.logps)).abs().max() < 1e-4
            entropy = -(logps.exp() * logps).sum(-1).mean().item()
            assert r.entropy == pytest.approx(entropy, abs=1e-3)


def test_answers_do_not_depend_on_their_company(policy, problems):
    together = rollouts(policy, problems, 4, max_new_tokens=30, key="k")
    alone = [rollouts(policy, [p], 4, max_new_tokens=30, key="k")[0] for p in problems]
    narrow = rollouts(policy, problems, 4, max_new_tokens=30, key="k", cache_bytes=1)
    pairs = [
        (a, other)
        for groups in (alone, narrow)
        for x, y in zip(together, groups, strict=True)
        for a, other in zip(x, y, strict=True)
    ]
    different = [(a, b) for a, b in pairs if a.completion_ids != b.completion_ids]
    assert len(different) <= 0.01 * len(pairs)
    for a, b in different:  # only where rounding moves an edge across the uniform
        assert distance_to_an_edge(policy, a, b, key="k") < 1e-4


def distance_to_an_edge(policy, a, b, *, key: str) -> float:
    """How far the uniform of the first token in which two answers differ is from an edge."""
    pairs = zip(a.completion_ids, b.completion_ids, strict=False)
    step = next(i for i, (one, other) in enumerate(pairs) if one != other)
    uniform = rollout_module._uniforms([a.problem.id], a.sample + 1, step + 1, key)[a.sample, step]
    ids = torch.tensor([a.prompt_ids + a.completion_ids[:step]])
    with torch.no_grad():
        cumulative = policy.model(input_ids=ids).logits[0, -1].double().softmax(-1).cumsum(-1)
    return (cumulative - uniform).abs().min().item()


def logps_of(policy, problems, **options) -> tuple[list, torch.Tensor]:
    flat = [r for g in rollouts(policy, problems, 3, key="k", **options) for r in g]
    return [r.completion_ids for r in flat], torch.tensor([x for r in flat for x in r.logps])


def test_the_adapted_layers_and_the_merged_copy_sample_the_same(policy, problems, tmp_path):
    layers = load_policy(decoding="layers")
    policy.save_adapter(tmp_path)
    layers.load_adapter(tmp_path)
    one, logps = logps_of(policy, problems, max_new_tokens=20)
    other, through = logps_of(layers, problems, max_new_tokens=20)
    assert one == other
    assert (logps - through).abs().max() < 1e-4


def test_static_shapes_sample_the_same(policy, problems, monkeypatch):
    """What a CUDA graph replays, without the graph: whole cache, fixed places, late looks."""
    one, logps = logps_of(policy, problems, max_new_tokens=40)
    sample = rollout_module._sample_batch
    monkeypatch.setattr(
        rollout_module, "_sample_batch", lambda *arguments: sample(*arguments, static=True)
    )
    other, static = logps_of(policy, problems, max_new_tokens=40)
    assert one == other
    assert (logps - static).abs().max() < 1e-4


def test_a_step_that_cannot_be_captured_is_computed_all_the_same(policy, problems, monkeypatch):
    """Provoked for real: there is no CUDA here, so the capture fails as it may on a GPU."""
    one, _ = logps_of(policy, problems[:2], max_new_tokens=8)
    sample, init = rollout_module._sample_batch, decoding.Decoding.__init__

    def capturing(self, *arguments, **options):
        init(self, *arguments, **options)
        self.captures = True

    monkeypatch.setattr(decoding.Decoding, "__init__", capturing)
    monkeypatch.setattr(
        rollout_module, "_sample_batch", lambda *arguments: sample(*arguments, static=True)
    )
    with pytest.warns(UserWarning, match="decoding without a CUDA graph"):
        other, _ = logps_of(policy, problems[:2], max_new_tokens=8)
    assert one == other


def test_long_prompts_are_read_in_pieces(policy, problems, monkeypatch):
    one, logps = logps_of(policy, problems, max_new_tokens=10)
    longest = max(len(policy.encode_prompt(p.prompt)) for p in problems)
    monkeypatch.setattr(budgets, "READING_TOKENS", 13 * len(problems))
    widths = []
    monkeypatch.setattr(
        policy.merged.base_model, "forward", seeing(policy.merged.base_model.forward, widths)
    )
    other, pieces = logps_of(policy, problems, max_new_tokens=10)
    assert widths[: -(-longest // 13)] == [13] * (longest // 13) + [longest % 13] * (
        longest % 13 > 0
    )
    assert one == other
    assert (logps - pieces).abs().max() < 1e-4


def seeing(forward, widths: list[int]):
    def wrapped(**inputs):
        widths.append(inputs["input_ids"].shape[1])
        return forward(**inputs)

    return wrapped


def test_groups_keep_their_order_and_their_problem(policy, problems):
    groups = rollouts(policy, problems, 3, max_new_tokens=5, key="k")
    assert [[r.problem.id for r in group] for group in groups] == [[p.id] * 3 for p in problems]
    assert all([r.sample for r in group] == [0, 1, 2] for group in groups)


def test_the_key_decides_the_answers(policy, problems):
    first, again, other = (
        rollouts(policy, problems[:2], 4, max_new_tokens=20, key=key) for key in ("a", "a", "b")
    )
    texts = [[[r.text for r in group] for group in groups] for groups in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]


def test_answers_end_at_their_first_stop_token(policy, problems):
    flat = [r for g in rollouts(policy, problems, 4, max_new_tokens=60, key="k") for r in g]
    assert any(r.stopped for r in flat)
    for r in flat:
        stops = [i for i, token in enumerate(r.completion_ids) if token in policy.stop_ids]
        assert stops == ([len(r.completion_ids) - 1] if r.stopped else [])
        assert r.stopped or len(r.completion_ids) == 60
        assert "<|im_end|>" not in r.text


def test_sampled_tokens_follow_the_distribution():
    """Chi-square on a toy vocabulary of five."""
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.07, 0.03])
    n = 20_000
    uniforms = torch.from_numpy(np.random.default_rng(0).random(n))
    tokens, logps, entropy = draw_tokens(probabilities.log().expand(n, 5), uniforms)
    counts = torch.bincount(tokens, minlength=5)
    expected = probabilities * n
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert statistic < 18.47  # 99.9 % quantile, 4 degrees of freedom
    assert torch.allclose(logps, probabilities.log()[tokens])
    assert entropy[0].item() == pytest.approx(-(probabilities * probabilities.log()).sum().item())


def test_the_token_is_the_inverse_cumulative_distribution():
    logits = torch.tensor([[math.log(0.25), math.log(0.5), math.log(0.25)]])
    drawn = [
        draw_tokens(logits, torch.tensor([u], dtype=torch.float64))[0].item()
        for u in (0.0, 0.2499, 0.2501, 0.7499, 0.7501, 0.999999)
    ]
    assert drawn == [0, 0, 1, 1, 2, 2]


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for u in (0.0, 0.5, 1 - 1e-16):
        token, logp, entropy = draw_tokens(logits, torch.tensor([u], dtype=torch.float64))
        assert (token.item(), logp.item(), entropy.item()) == (1, 0.0, 0.0)


def test_a_prompt_without_room_for_an_answer_is_refused(policy):
    problem = Problem("long", "math", "word " * 5000)
    with pytest.raises(ValueError, match="the prompt of long .* exceeds the model's 4096"):
        rollouts(policy, [problem], 2, max_new_tokens=10, key="k")
