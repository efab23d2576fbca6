"""Loss and gradients against TRL's GRPO (dapo) on the same completions and rewards.

TRL's own code turns our rewards into advantages and our completions into a loss; only its
generation is replaced by the answers that our rollouts sampled. Float64, so that what is left is
the arithmetic and not the rounding.
"""

import copy
from dataclasses import replace

import pytest
import torch

from cascade_kit import grpo
from cascade_kit.domains.math import MATH
from cascade_kit.loading import load_policy
from cascade_kit.policy import POLICY
from cascade_kit.problem import Score
from cascade_kit.rollout import rollouts
from cascade_kit.stage import cascade

trl = pytest.importorskip("trl", reason="TRL is a development dependency: pip install -e .[dev]")

REWARDS = [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.25, 1.0], [0.0, -1.0, 0.0, 0.5]]  # one flat group


def trl_trainer(policy, problems, folder, *, temperature: float, mask_truncated: bool):
    from datasets import Dataset

    rows = [{"prompt": [{"role": "user", "content": p.prompt}]} for p in problems]
    config = trl.GRPOConfig(
        output_dir=str(folder), loss_type="dapo", beta=0.0, num_generations=4,
        per_device_train_batch_size=4 * len(rows), gradient_accumulation_steps=1,
        max_completion_length=22, temperature=temperature, bf16=False, report_to=[],
        gradient_checkpointing=False, use_cpu=True, mask_truncated_completions=mask_truncated,
    )  # fmt: skip
    flat = iter([reward for group in REWARDS for reward in group])
    return trl.GRPOTrainer(
        model=policy.model,
        reward_funcs=lambda completions, **_: [next(flat) for _ in completions],
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
    )


def in_float64(patch) -> None:
    """Let TRL's fused head, which accumulates in float32 whatever the model's dtype, use float64.

    In float32 it differs from ours by 1.2e-6 of the largest gradient, which is its rounding.
    """
    from trl.kernels import chunked_logprob

    class Torch64:
        def __getattr__(self, name):
            return torch.float64 if name == "float32" else getattr(torch, name)

    patch.setattr(chunked_logprob, "torch", Torch64())
    patch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.parametrize(("temperature", "mask_truncated"), [(1.0, False), (1.3, True)])
def test_loss_and_gradients_equal_trls(tmp_path, monkeypatch, temperature, mask_truncated):
    policy = load_policy(bits=16, dtype=torch.float64)
    stage = replace(
        cascade(["math"])[0], prompts=3, answers=4, max_new_tokens=22, temperature=temperature,
        overlong_filter=mask_truncated,
    )  # fmt: skip
    problems = MATH.problems("train", 3, seed=1)
    groups = rollouts(policy, problems, 4, max_new_tokens=22, key="trl", temperature=temperature)
    flat = [r for group in groups for r in group]

    # Ours.
    advantages = grpo.group_advantages(torch.tensor(REWARDS, dtype=torch.float64)).flatten()
    answers = [
        grpo.Answer(r, Score(0.0), reward, advantage.item())
        for r, reward, advantage in zip(flat, sum(REWARDS, []), advantages, strict=True)
    ]
    parameters = policy.adapter_parameters(POLICY)
    still = torch.optim.SGD(parameters.values(), lr=0.0)
    stats = grpo.update(policy, still, stage, answers)
    scale = max(1.0, stats.grad_norm)  # undo the clipping
    ours = {name: p.grad.clone() * scale for name, p in parameters.items()}

    # TRL's, on a copy with the same weights.
    twin = copy.copy(policy)
    twin.model = copy.deepcopy(policy.model)
    trainer = trl_trainer(
        twin, problems, tmp_path, temperature=temperature, mask_truncated=mask_truncated
    )
    texts = [[{"role": "assistant", "content": r.text}] for r in flat]
    trainer._generate = lambda prompts: (
        [list(r.prompt_ids) for r in flat], [list(r.completion_ids) for r in flat], None, texts,
        None, {}, None, None,
    )  # fmt: skip
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = [row for row in trainer.train_dataset for _ in range(4)]
    batch = trainer._generate_and_score_completions(inputs)
    # TRL keeps rewards in float32; the loss is then compared on the same advantages.
    assert torch.allclose(batch["advantages"].double(), advantages, rtol=1e-6, atol=1e-6)
    batch["advantages"] = advantages
    with monkeypatch.context() as patch:
        in_float64(patch)
        loss = trainer._compute_loss(trainer.model, batch)
        trainer.model.zero_grad()
        loss.backward()
    assert 0 < sum(not r.stopped for r in flat) < len(flat)
    theirs = dict(trainer.model.named_parameters())

    assert stats.loss == pytest.approx(loss.item(), rel=1e-6, abs=1e-12)
    largest = max(float(g.abs().max()) for g in ours.values())
    difference = max(float((ours[n] - theirs[n].grad).abs().max()) for n in ours)
    assert largest > 1e-3
    assert difference <= 1e-6 * largest, difference / largest
