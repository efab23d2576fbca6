"""Shared prompts, packing and chunks: the same numbers as one plain row an answer."""

import math

import pytest
import torch

from cascade_kit import budgets, logprobs
from cascade_kit.domains.math import MATH
from cascade_kit.domains.swe import SWE
from cascade_kit.loading import load_policy
from cascade_kit.policy import POLICY
from cascade_kit.problem import Problem
from cascade_kit.rollout import Rollout, rollouts


def answer(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Rollout:
    return Rollout(Problem("p", "math", ""), 0, prompt, completion, (), 0.0, True, "")


def sampled(policy, samples: int = 5) -> list[Rollout]:
    """Answers to prompts of very different lengths."""
    problems = [*MATH.problems("train", 5), *SWE.problems("train", 2)]
    groups = rollouts(policy, problems, samples, max_new_tokens=25, key="test")
    return [r for group in groups for r in group]


def gradients(policy, path, answers, *, split: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probabilities in the order of `answers` and the gradients of a weighted sum of them."""
    parameters = list(policy.adapter_parameters(POLICY).values())
    for parameter in parameters:
        parameter.grad = None
    place = {id(a): i for i, a in enumerate(answers)}
    found = [torch.empty(0)] * len(answers)
    batches = logprobs.micro_batches(policy, answers)
    rows_of = [batch.rows for batch in batches] if split else [[[a] for a in answers]]
    for rows in rows_of:
        flat = [a for row in rows for a in row]
        pieces = path(policy, rows, 0.8).split([len(a.completion_ids) for a in flat])
        weighted = [piece.sum() * math.sin(1 + place[id(a)]) for a, piece in zip(flat, pieces)]  # noqa: B905
        sum(weighted).backward()
        for a, piece in zip(flat, pieces, strict=True):
            found[place[id(a)]] = piece.detach()
    return torch.cat(found), [p.grad.clone() for p in parameters]


def moved(policy) -> None:
    """Move the adapter off its start, where B = 0 hides the gradient of A."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.adapter_parameters(POLICY).values():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += 0.02 * noise


@pytest.mark.parametrize(
    ("bits", "dtype", "tolerance"), [(4, torch.float32, 1e-5), (16, torch.float64, 1e-9)]
)
@pytest.mark.parametrize("limit", [4096, 200, 60])
def test_shared_prompts_equal_plain_rows(bits, dtype, tolerance, limit, monkeypatch, request):
    policy = load_policy(bits=bits, dtype=dtype)
    moved(policy)
    if dtype == torch.float64:
        request.getfixturevalue("float64_norms")
    answers = sampled(policy)
    expected, plain = gradients(policy, logprobs.plain_logps, answers, split=False)
    monkeypatch.setattr(policy, "tokens_per_forward", lambda: limit)
    logps, packed = gradients(policy, logprobs.answer_logps, answers, split=True)
    assert (logps - expected).abs().max() <= tolerance * expected.abs().max()
    largest = max(g.abs().max() for g in plain)
    assert all(g.abs().max() > 0 for g in plain)
    for one, other in zip(packed, plain, strict=True):
        assert (one - other).abs().max() <= tolerance * largest


def test_the_mask_by_hand():
    owner = torch.tensor([[0, 0, 1, 1, 2, -1]])
    seen = logprobs.shared_prompt_mask(owner)[0, 0].int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],  # padding: whatever it sees, it must see something
    ]


def test_the_prompt_is_forwarded_once_and_the_last_tokens_never():
    rows = logprobs.rows_by_prompt(
        [answer((1, 2, 3), (4, 5)), answer((7,), (8,)), answer((1, 2, 3), (6, 6, 6))], 100, 4
    )
    assert [[a.completion_ids for a in row] for row in rows] == [[(8,)], [(4, 5), (6, 6, 6)]]
    assert [logprobs.row_tokens(row) for row in rows] == [1, 3 + 1 + 2]


def test_rows_respect_the_limit_unless_the_prompt_fills_it():
    answers = [answer((1,) * 10, (2,) * 11) for _ in range(6)]
    assert [len(row) for row in logprobs.rows_by_prompt(answers, 30, 4)] == [2, 2, 2]
    # Eleven of twenty: kept together, up to twice the limit with four layers.
    long = [answer((1,) * 11, (2,) * 11) for _ in range(6)]
    assert [len(row) for row in logprobs.rows_by_prompt(long, 20, 4)] == [2, 2, 2]


def test_masks_stay_within_their_budget(monkeypatch):
    monkeypatch.setattr(logprobs, "MASK_BYTES", 5 * 40 * 40)
    answers = [answer((1,) * 10, (2,) * 11) for _ in range(6)]
    assert [len(row) for row in logprobs.rows_by_prompt(answers, 1000, 4)] == [3, 3]


@pytest.mark.parametrize("groups", [16, 32])
def test_little_of_a_batch_is_padding(groups):
    policy = load_policy()
    problems = MATH.problems("train", groups)
    answers = [a for g in rollouts(policy, problems, 8, max_new_tokens=48, key="p") for a in g]
    batches = list(logprobs.micro_batches(policy, answers))
    lengths = [[logprobs.row_tokens(row) for row in batch.rows] for batch in batches]
    forwarded = sum(len(batch) * max(batch) for batch in lengths)
    assert sum(map(sum, lengths)) >= 0.9 * forwarded
    assert all(len(batch) * max(batch) <= policy.tokens_per_forward() for batch in lengths)
    assert sum(len(row) for batch in batches for row in batch.rows) == len(answers)


def test_another_attention_is_refused():
    policy = load_policy()
    policy.model.get_base_model().config._attn_implementation = "eager"
    with pytest.raises(ValueError, match="'eager'.*load_policy"):
        logprobs.answer_logps(policy, [[answer((5, 6), (7,))]], 1.0)


# ---- the head ------------------------------------------------------------------------------------


def test_log_probabilities_are_those_of_the_sampled_distribution():
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, math.log(3.0)]])
    ids = torch.tensor([0, 1])
    assert logprobs.token_logps(logits, ids).exp().tolist() == pytest.approx([0.25, 0.75])
    # At temperature 1/2 the odds are squared: 1 to 9.
    assert logprobs.token_logps(logits, ids, 0.5).exp().tolist() == pytest.approx([0.1, 0.9])


def test_chunks_equal_autograd_through_all_logits(monkeypatch):
    monkeypatch.setattr(budgets, "LOGIT_POSITIONS", 3)
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 11, bias=True, dtype=torch.float64).requires_grad_(False)
    hidden = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 11, (7,))
    found = logprobs.chunked_logps(head, hidden, ids, 0.7)
    expected = logprobs.token_logps(head(hidden), ids, 0.7)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(7, dtype=torch.float64)
    (one,) = torch.autograd.grad((found * weights).sum(), hidden)
    (other,) = torch.autograd.grad((expected * weights).sum(), hidden)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("chunk", "budget"), [(16, 1 << 30), (1024, 4 * 50 * 16)])
def test_full_logits_never_exist(chunk, budget, monkeypatch):
    """The head's largest output is a chunk, for any vocabulary and number of tokens."""
    monkeypatch.setattr(budgets, "LOGIT_POSITIONS", chunk)
    monkeypatch.setattr(budgets, "LOGIT_BYTES", budget)
    head = torch.nn.Linear(4, 50, bias=False).requires_grad_(False)
    sizes = []
    head.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.shape[0]))
    hidden = torch.randn(100, 4, requires_grad=True)
    logprobs.chunked_logps(head, hidden, torch.zeros(100, dtype=torch.long), 1.0).sum().backward()
    assert sizes == [16] * 6 + [4]  # and none in the backward


def test_gradients_that_meet_add_up_in_a_fixed_order():
    """The backward of plain indexing adds duplicates in the order in which threads come by: now and
    then other bytes for the same seed, on a busy machine, where no test would wait for it."""
    policy = load_policy()
    problems = MATH.problems("train", 1)
    group = rollouts(policy, problems, 4, max_new_tokens=8, key="t")[0]
    seen, waiting = set(), [logprobs.answer_logps(policy, [group], 1.0).grad_fn]
    while waiting:
        node = waiting.pop()
        seen.add(node)
        waiting += [n for n, _ in node.next_functions if n is not None and n not in seen]
    names = {type(node).__name__ for node in seen}
    assert "IndexSelectBackward0" in names
    assert "IndexBackward0" not in names
