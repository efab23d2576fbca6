"""GRPO, on-policy: the algorithm of the cascade, top to bottom.

    for each step:
      1. sample G answers to each of P prompts           rollout.rollouts
      2. score them                                      domain.score, reward model, shaping
      3. compare each answer with its group              group_advantages
      4. one gradient step on  A . log pi                policy_loss, update

Objective (Nemotron-Cascade, arXiv 2512.13607, eq. 1): the mean over all answer tokens of the
advantage times the log-probability. One rollout batch makes exactly one update, so the importance
ratio is 1 and clipping never acts.

Where this differs from the paper or fills its silence:
  - the std of a group is Bessel-corrected and gets 1e-4 added (the paper prints a plain std)
  - AdamW betas (0.9, 0.95) are the paper's; weight decay 0, gradient clip 1.0, a constant rate
    without warm-up and a fresh optimiser per stage are ours
  - sampling is at the stage's temperature with top-p 1 (the paper uses 0.95): then the
    log-probabilities in the loss are those of the distribution that was sampled
  - KL, where a stage has it, is the k3 estimate inside the loss, towards the policy that the
    stage started from
  - groups whose rewards are all equal have no gradient; their forward is left out unless a KL
    term needs it, and their tokens stay in the denominator
  - the denominator is the tokens of all answers that the overlong filter leaves; answers that it
    removes still count in the mean and std of their group
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

from cascade_kit.domains.rlhf import has_foreign_script
from cascade_kit.policy import POLICY, REFERENCE, Policy
from cascade_kit.problem import Problem, Score
from cascade_kit.records import FLAT, Answer, StepRecord, UpdateStats, record
from cascade_kit.rollout import Rollout, rollouts
from cascade_kit.shaping import GroupScores
from cascade_kit.stage import Stage

CHUNK = 1024  # positions whose logits exist at a time

RewardModel = Callable[[Sequence[Rollout]], np.ndarray]  # N answers -> raw scores (N,)


# ---- the four functions of the algorithm -------------------------------------------------------


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards (P, G) -> advantages (P, G): (r - group mean) / (Bessel-corrected std + 1e-4)."""
    mean = rewards.mean(dim=1, keepdim=True)
    spread = rewards.amax(1, keepdim=True) - rewards.amin(1, keepdim=True)
    advantages = (rewards - mean) / (rewards.std(dim=1, keepdim=True) + 1e-4)
    return torch.where(spread < FLAT, torch.zeros_like(advantages), advantages)


def token_logps(logits: torch.Tensor, ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities (...) of ids (...) under softmax(logits (..., V) / temperature)."""
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    return scaled.gather(-1, ids[..., None])[..., 0] - scaled.logsumexp(-1)


def kl_estimate(logps: torch.Tensor, reference_logps: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(policy || reference) per token: e^d - d - 1, d = reference - policy.

    Never negative, unbiased for samples of the policy (Schulman 2020, joschu.net/blog/kl-approx).
    """
    difference = reference_logps - logps
    return difference.exp() - difference - 1


def policy_loss(
    logps: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    reference_logps: torch.Tensor | None = None,
    kl_coef: float = 0.0,
) -> torch.Tensor:
    """-sum of weights * (ratio * A - kl_coef * k3): a scalar.

    All tensors are (B, T); `advantages` may be (B, 1). `weights` is 0 off the answers and else the
    share of a token in the mean (see `token_weights`). The ratio is exp(logp - itself) = 1: its
    value never matters, its gradient is that of log pi.
    """
    ratio = (logps - logps.detach()).exp()
    objective = ratio * advantages
    if reference_logps is not None:
        objective = objective - kl_coef * kl_estimate(logps, reference_logps)
    return -(objective * weights).sum()


# ---- the loop ----------------------------------------------------------------------------------


def train(
    policy: Policy,
    stage: Stage,
    problems: Sequence[Problem],
    *,
    seed: int = 0,
    reward_model: RewardModel | None = None,
) -> Iterator[tuple[StepRecord, list[Answer]]]:
    """Train the policy adapter on a stage, yielding a record and the answers of every step.

    `problems` are the stage's training problems; `reward_model` is asked only by stages whose
    reward needs it. Raises ValueError before any work if something is missing.
    """
    parameters = check_ready(policy, stage, problems, reward_model)
    optimizer = torch.optim.AdamW(
        parameters, lr=stage.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    if stage.kl_coef > 0:
        policy.add_adapter(REFERENCE, copy_of=POLICY)
    for step in range(1, stage.steps + 1):
        batch = draw_problems(problems, stage, seed, step)

        # 1. Sample G answers to each of P prompts.
        started = time.perf_counter()
        groups = rollouts(
            policy,
            batch,
            stage.answers,
            max_new_tokens=stage.max_new_tokens,
            temperature=stage.temperature,
            key=f"{seed}/{stage.name}/{step}",
        )
        sampled = time.perf_counter()

        # 2. Score them.
        scores, rewards = score_groups(stage, groups, reward_model)
        scored = time.perf_counter()

        # 3. Compare each answer with its group.
        advantages = group_advantages(torch.from_numpy(rewards))
        answers = [
            Answer(rollout, score, float(reward), float(advantage))
            for group in zip(groups, scores, rewards, advantages, strict=True)
            for rollout, score, reward, advantage in zip(*group, strict=True)
        ]

        # 4. One gradient step.
        stats = update(policy, optimizer, stage, answers)
        seconds = {
            "rollout": sampled - started,
            "score": scored - sampled,
            "update": time.perf_counter() - scored,
        }
        yield record(step, stage, answers, rewards, stats, seconds), answers


def check_ready(
    policy: Policy,
    stage: Stage,
    problems: Sequence[Problem],
    reward_model: RewardModel | None,
) -> list[torch.nn.Parameter]:
    """The trainable parameters; ValueError if the stage cannot be trained as it stands."""
    if stage.needs_reward_model and reward_model is None:
        raise ValueError(
            f"stage {stage.name!r} uses {stage.reward.__name__}, which needs a reward model: pass "
            "reward_model=..., or choose reward=shaping.verifier"
        )
    if not problems:
        raise ValueError(f"stage {stage.name!r} has no training problems; give it some rows")
    parameters = [p for p in policy.adapter_parameters(POLICY).values() if p.requires_grad]
    if not parameters:
        raise ValueError("no parameter is trainable; load the policy with load_policy()")
    return parameters


def draw_problems(problems: Sequence[Problem], stage: Stage, seed: int, step: int) -> list[Problem]:
    """The P problems of a step: a fresh shuffle per epoch, no repetition within an epoch."""
    size = min(stage.prompts, len(problems))
    epoch, position = divmod(step - 1, len(problems) // size)
    order = list(problems)
    random.Random(f"{seed}/{stage.name}/epoch {epoch}").shuffle(order)
    return order[position * size : (position + 1) * size]


def score_groups(
    stage: Stage, groups: list[list[Rollout]], reward_model: RewardModel | None
) -> tuple[list[list[Score]], np.ndarray]:
    """Scores and rewards (P, G) of P groups of G rollouts, in order."""
    flat = [rollout for group in groups for rollout in group]
    scores = stage.domain.score([r.problem for r in flat], [r.text for r in flat])
    shape = (len(groups), stage.answers)
    ranked = None
    if stage.needs_reward_model:
        ranked = np.asarray(reward_model(flat), dtype=np.float64)
        pairs = zip(scores, ranked, strict=True)
        scores = [_with_reward_model(stage, score, float(value)) for score, value in pairs]
    switched = [
        has_foreign_script(r.text) and not has_foreign_script(r.problem.prompt) for r in flat
    ]
    rewards = stage.reward(
        GroupScores(
            values=np.array([s.value for s in scores], dtype=np.float64).reshape(shape),
            reward_model=None if ranked is None else ranked.reshape(shape),
            code_switch=np.array(switched).reshape(shape),
        )
    )
    grouped = [scores[i : i + stage.answers] for i in range(0, len(scores), stage.answers)]
    return grouped, rewards


def _with_reward_model(stage: Stage, score: Score, value: float) -> Score:
    """A score with the reward model's verdict as a part; it is the value where it alone counts."""
    parts = {**score.parts, "reward_model": value}
    if stage.domain.name != "rlhf":
        return replace(score, parts=parts)
    if score.success is not None:
        parts["true_preference"] = score.success  # logged, never trained on
    return replace(score, value=value, parts=parts)


# ---- the update --------------------------------------------------------------------------------


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, stage: Stage, answers: Sequence[Answer]
) -> UpdateStats:
    """One optimiser step on a batch of answers, in micro-batches of bounded size."""
    counted = [a for a in answers if a.rollout.stopped or not stage.overlong_filter]
    tokens = sum(len(a.rollout.completion_ids) for a in counted)
    needed = [a for a in counted if a.advantage != 0.0 or stage.kl_coef > 0]
    if not needed:
        return UpdateStats(loss=0.0, grad_norm=0.0, kl=None, logprob_gap=None)
    loss, kl_sum, gap = 0.0, 0.0, 0.0
    optimizer.zero_grad(set_to_none=True)
    limit = policy.tokens_per_forward()
    for batch in micro_batches(needed, limit):
        rows = [a.rollout for a in batch]
        reference = None
        if stage.kl_coef > 0:
            with torch.no_grad(), policy.using(REFERENCE):
                reference, _ = completion_logps(policy, rows, stage.temperature)
        with policy.recomputing(_row_length(batch[-1]) > limit):
            logps, mask = completion_logps(policy, rows, stage.temperature)
            advantages = logps.new_tensor([[a.advantage] for a in batch])
            weights = token_weights(mask, stage.loss, tokens, len(counted))
            part = policy_loss(logps, advantages, weights, reference, stage.kl_coef)
            part.backward()
        loss += part.item()
        with torch.no_grad():
            gap = max(gap, ((logps - sampled_logps(rows, logps)) * mask).abs().max().item())
            if reference is not None:
                kl_sum += (kl_estimate(logps, reference) * mask).sum().item()
    grad_norm = clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0).item()
    optimizer.step()
    return UpdateStats(loss, grad_norm, kl_sum / tokens if stage.kl_coef > 0 else None, gap)


def token_weights(mask: torch.Tensor, loss: str, tokens: int, answers: int) -> torch.Tensor:
    """The share of each token (B, T) in the mean over `tokens`, or over `answers` answers."""
    if loss == "token":
        return mask / tokens
    return mask / (mask.sum(1, keepdim=True) * answers)


def micro_batches(answers: Sequence[Answer], limit: int) -> list[list[Answer]]:
    """Answers by length, cut so that rows times the longest row stays within `limit` tokens."""
    batches: list[list[Answer]] = []
    for answer in sorted(answers, key=_row_length):
        if not batches or (len(batches[-1]) + 1) * _row_length(answer) > limit:
            batches.append([])
        batches[-1].append(answer)
    return batches


def _row_length(answer: Answer) -> int:
    return len(answer.rollout.prompt_ids) + len(answer.rollout.completion_ids)


def completion_logps(
    policy: Policy, rows: Sequence[Rollout], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities (B, T) of the answers' tokens and their mask, right-padded."""
    device = policy.device
    sequences = [torch.tensor(r.prompt_ids + r.completion_ids) for r in rows]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(device)
    # Right padding needs no attention mask: causal attention never looks behind a real token.
    hidden = policy.backbone(input_ids=ids, use_cache=False).last_hidden_state  # (B, L, H)
    lengths = torch.tensor([len(r.completion_ids) for r in rows], device=device)
    starts = torch.tensor([len(r.prompt_ids) for r in rows], device=device)
    offsets = torch.arange(int(lengths.max()), device=device)[None]  # (1, T)
    real = offsets < lengths[:, None]  # (B, T)
    position = (starts[:, None] + offsets)[real]  # (N,), N answer tokens in the batch
    row = torch.arange(len(rows), device=device)[:, None].expand_as(real)[real]
    # The token at position i is predicted by the hidden state at i - 1.
    flat = chunked_logps(policy.head, hidden[row, position - 1], ids[row, position], temperature)
    return flat.new_zeros(real.shape).masked_scatter(real, flat), real.to(flat.dtype)


def chunked_logps(
    head: torch.nn.Module, hidden: torch.Tensor, ids: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Log-probabilities (N,) of ids (N,) from hidden states (N, H), a chunk of logits at a time.

    Each chunk is recomputed in the backward; otherwise its logits would be kept until then and
    chunking would save nothing.
    """

    def chunk(h: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return token_logps(head(h), i, temperature)

    pieces = zip(hidden.split(CHUNK), ids.split(CHUNK), strict=True)
    return torch.cat([checkpoint(chunk, h, i, use_reentrant=False) for h, i in pieces])


def sampled_logps(rows: Sequence[Rollout], like: torch.Tensor) -> torch.Tensor:
    """The log-probabilities that the rollouts recorded, padded like `like` (B, T)."""
    padded = torch.zeros_like(like)
    for i, r in enumerate(rows):
        padded[i, : len(r.logps)] = padded.new_tensor(r.logps)
    return padded
