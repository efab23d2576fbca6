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
  - a stage's `filter` and `phases` are in curriculum.py and stage.py; with the batch filter, groups
    whose rewards are all equal are replaced by further prompts, at most three times a step and
    none twice; if there are still too few, the step is smaller
  - the denominator is the tokens of all answers that the overlong filter leaves; answers that it
    removes still count in the mean and std of their group
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from cascade_kit.domains.rlhf import has_foreign_script
from cascade_kit.logprobs import answer_logps, micro_batches
from cascade_kit.policy import REFERENCE, Policy
from cascade_kit.problem import Problem, Score
from cascade_kit.records import FLAT, Answer, StepRecord, UpdateStats, record
from cascade_kit.rollout import Rollout, rollouts
from cascade_kit.shaping import GroupScores
from cascade_kit.stage import Stage
from cascade_kit.training_state import TrainingState

RewardModel = Callable[[Sequence[Rollout]], np.ndarray]  # N answers -> raw scores (N,)
MOST_DRAWS = 4  # of prompts in a step with the batch filter; then it makes do with what it has


# ---- the four functions of the algorithm -------------------------------------------------------


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards (P, G) -> advantages (P, G): (r - group mean) / (Bessel-corrected std + 1e-4)."""
    mean = rewards.mean(dim=1, keepdim=True)
    spread = rewards.amax(1, keepdim=True) - rewards.amin(1, keepdim=True)
    advantages = (rewards - mean) / (rewards.std(dim=1, keepdim=True) + 1e-4)
    return torch.where(spread < FLAT, torch.zeros_like(advantages), advantages)


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

    All tensors are (N,), an entry a token; `weights` is the share of a token in the mean (see
    `token_weights`). The ratio is exp(logp - itself) = 1: its
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
    state: TrainingState | None = None,
) -> Iterator[tuple[StepRecord, list[Answer]]]:
    """Train the policy adapter on a stage, yielding a record and the answers of every step.

    `problems` are the stage's training problems; `reward_model` is asked only by stages whose
    reward needs it; `state` is one that was restored, to go on from. Raises ValueError before any
    work if something is missing.
    """
    check_ready(policy, stage, problems, reward_model)
    state = state or TrainingState(policy, stage, problems, seed=seed)
    curriculum = state.curriculum
    for step in range(state.step + 1, stage.steps + 1):
        now, seconds = stage.at(step), dict.fromkeys(("rollout", "score", "update"), 0.0)
        groups: list[list[Answer]] = []
        tried: set[str] = set()
        for draw in range(MOST_DRAWS if stage.filter == "batch" else 1):
            batch = curriculum.draw(now, stage.prompts - len(groups), tried)
            if not batch:  # a small pool: the step has tried every problem
                break
            tried |= {problem.id for problem in batch}

            # 1. Sample G answers to each of P prompts.
            with timed(seconds, "rollout"):
                sampled = rollouts(
                    policy,
                    batch,
                    now.answers,
                    max_new_tokens=now.max_new_tokens,
                    temperature=now.temperature,
                    thinking=now.thinking,
                    key=f"{seed}/{stage.name}/{step}" + f"/{draw}" * (draw > 0),
                )

            # 2. Score them.
            with timed(seconds, "score"):
                scores, rewards = score_groups(now, sampled, reward_model)

            # 3. Compare each answer with its group.
            drawn = compared(sampled, scores, rewards)
            curriculum.tell(success_rates(drawn))
            if stage.filter == "batch":
                groups += [group for group in drawn if any(a.advantage for a in group)]
                if len(groups) == stage.prompts:
                    break

        # 4. One gradient step.
        answers = [answer for group in groups or drawn for answer in group]
        with timed(seconds, "update"):
            stats = update(policy, state.optimizer, now, answers)
        state.step = step
        yield record(step, now, answers, stats, seconds, len(tried), curriculum), answers


@contextlib.contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add the time that the block takes to a part of `seconds`."""
    started = time.perf_counter()
    yield
    seconds[part] += time.perf_counter() - started


def check_ready(
    policy: Policy,
    stage: Stage,
    problems: Sequence[Problem],
    reward_model: RewardModel | None,
) -> None:
    """Raise ValueError if the stage cannot be trained as it stands."""
    if stage.needs_reward_model and reward_model is None:
        raise ValueError(
            f"stage {stage.name!r} uses {stage.reward.__name__}, which needs a reward model: pass "
            "reward_model=..., or choose reward=shaping.verifier"
        )
    policy.chat.check_mode(stage.thinking)
    if not problems:
        raise ValueError(f"stage {stage.name!r} has no training problems; give it some rows")


def compared(
    groups: list[list[Rollout]], scores: list[list[Score]], rewards: np.ndarray
) -> list[list[Answer]]:
    """P groups of G answers with their advantages; `rewards` is (P, G)."""
    advantages = group_advantages(torch.from_numpy(rewards))
    return [
        [Answer(r, score, float(reward), float(a)) for r, score, reward, a in zip(*of, strict=True)]
        for of in zip(groups, scores, rewards, advantages, strict=True)
    ]


def success_rates(groups: list[list[Answer]]) -> dict[str, float]:
    """The share of answers that fully succeed, by problem; without those nobody can judge."""
    return {
        group[0].rollout.problem.id: float(np.mean([a.score.success == 1.0 for a in group]))
        for group in groups
        if group[0].score.success is not None
    }


def score_groups(
    stage: Stage, groups: list[list[Rollout]], reward_model: RewardModel | None
) -> tuple[list[list[Score]], np.ndarray]:
    """Scores and rewards (P, G) of P groups of G rollouts, in order."""
    flat = [rollout for group in groups for rollout in group]
    scores = stage.domain.score(
        [r.problem for r in flat], [r.text for r in flat], [r.thinking for r in flat]
    )
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
    advantage_of = {id(a.rollout): a.advantage for a in needed}
    for batch in micro_batches(policy, [a.rollout for a in needed]):
        rollouts = [rollout for row in batch.rows for rollout in row]
        lengths = torch.tensor([len(r.completion_ids) for r in rollouts], device=policy.device)
        reference = None
        if stage.kl_coef > 0:
            with torch.no_grad(), policy.using(REFERENCE):
                reference = answer_logps(policy, batch.rows, stage.temperature)
        with policy.recomputing(batch.recompute):
            logps = answer_logps(policy, batch.rows, stage.temperature)  # (N,)
            advantages = logps.new_tensor([advantage_of[id(r)] for r in rollouts])
            part = policy_loss(
                logps,
                advantages.repeat_interleave(lengths),
                token_weights(lengths, stage.loss, tokens, len(counted)).to(logps.dtype),
                reference,
                stage.kl_coef,
            )
            policy.loss_scale.backward(part)
        loss += part.item()
        with torch.no_grad():
            sampled = logps.new_tensor([logp for r in rollouts for logp in r.logps])
            gap = max(gap, (logps - sampled).abs().max().item())
            if reference is not None:
                kl_sum += kl_estimate(logps, reference).sum().item()
    grad_norm = policy.loss_scale.step(optimizer, optimizer.param_groups[0]["params"], 1.0)
    skipped = int(math.isnan(grad_norm))
    kl = kl_sum / tokens if stage.kl_coef > 0 else None
    return UpdateStats(loss, 0.0 if skipped else grad_norm, kl, gap, skipped)


def token_weights(lengths: torch.Tensor, loss: str, tokens: int, answers: int) -> torch.Tensor:
    """The share (N,) of each token of answers of these lengths in the mean over `tokens`
    ("token"), or over the tokens of an answer and then over `answers` ("sequence")."""
    share = 1 / (lengths.double() * answers)
    if loss == "token":
        share = torch.full_like(share, 1 / tokens)
    return share.repeat_interleave(lengths)
