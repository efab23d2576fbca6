"""Rollouts: prompts -> sampled answers, with the log-probability of every sampled token.

Each prompt is prefilled once and its cache repeated for its group; finished answers leave the
batch. An answer is a function of (seed, stage, step, prompt, sample): its uniforms are drawn up
front and each token is the inverse of the cumulative distribution at its uniform, so neighbours in
the batch and the batch size change nothing but rounding.

Axes: P prompts, G answers a prompt, B rows in a batch, L cache length, V vocabulary.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cascade_kit.budgets import CACHE_BYTES, cache_bytes_per_token
from cascade_kit.chat import Thinking
from cascade_kit.decoding import Decoding, decoding_model
from cascade_kit.policy import POLICY, Policy
from cascade_kit.problem import Problem


@dataclass(frozen=True)
class Rollout:
    """One sampled answer."""

    problem: Problem
    sample: int  # 0..G-1, the answer's number in its group
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]  # with the stop token, if there is one
    logps: tuple[float, ...]  # log-probability of each token under the sampled distribution
    entropy: float  # mean over the tokens, in nats
    stopped: bool  # False: cut at max_new_tokens
    text: str  # without the stop token, but with the opening of a thought that the prompt holds
    thinking: bool | None = None  # whether it was asked to think; None: the template's default


def rollouts(
    policy: Policy,
    problems: Sequence[Problem],
    samples: int,
    *,
    max_new_tokens: int,
    key: str,
    temperature: float = 1.0,
    adapter: str = POLICY,
    greedy: bool = False,
    thinking: Thinking = None,
    cache_bytes: int = CACHE_BYTES,
) -> list[list[Rollout]]:
    """`samples` answers to each problem, in order: a list of P groups of G rollouts.

    `key` names the random stream, for example "seed/math/12"; the problem's id and the sample's
    number are added to it. `thinking` switches the model's thinking on or off, or on for one half
    of the problems ("half"), where the chat template can. Raises ValueError for a prompt that
    leaves no room for an answer.
    """
    modes = policy.chat.choose(thinking, [problem.id for problem in problems], key)
    prompts = [
        policy.encode_prompt(problem.prompt, problem.examples, mode)
        for problem, mode in zip(problems, modes, strict=True)
    ]
    openings = {mode: policy.chat.opening(mode) for mode in set(modes)}
    for problem, ids in zip(problems, prompts, strict=True):
        if len(ids) + max_new_tokens > policy.max_positions:
            raise ValueError(
                f"the prompt of {problem.id} has {len(ids)} tokens: with {max_new_tokens} new "
                f"tokens it exceeds the model's {policy.max_positions}; lower --max-new-tokens "
                "or drop the row"
            )
    groups: list[list[Rollout]] = [[] for _ in problems]
    with decoding_model(policy, adapter) as model:
        for batch in _batches(prompts, samples, max_new_tokens, model, cache_bytes):
            drawn = _sample_batch(
                model,
                [prompts[i] for i in batch],
                _uniforms([problems[i].id for i in batch], samples, max_new_tokens, key),
                policy.stop_ids,
                temperature,
                greedy,
            )
            for row, (ids, logps, entropy) in enumerate(drawn):
                i, sample = batch[row // samples], row % samples
                stopped = ids[-1] in policy.stop_ids
                text = policy.decode(ids[:-1] if stopped else ids)
                groups[i].append(
                    Rollout(
                        problems[i],
                        sample,
                        tuple(prompts[i]),
                        tuple(ids),
                        tuple(logps),
                        entropy,
                        stopped,
                        openings[modes[i]] + text,
                        modes[i],
                    )
                )
    return groups


def _batches(prompts, samples: int, max_new_tokens: int, model, cache_bytes: int):
    """Indices of prompts by length, in batches whose cache stays within the memory budget."""
    bytes_per_token = cache_bytes_per_token(model.config, model.dtype)
    batch: list[int] = []
    for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        length = len(prompts[i]) + max_new_tokens  # the longest of the batch, since sorted
        if batch and (len(batch) + 1) * samples * length * bytes_per_token > cache_bytes:
            yield batch
            batch = []
        batch.append(i)
    yield batch


def _uniforms(ids: Sequence[str], samples: int, length: int, key: str) -> torch.Tensor:
    """Uniforms in [0, 1) for every token of every answer: (P*G, length), float64."""
    rows = []
    for identifier in ids:
        for sample in range(samples):
            digest = hashlib.sha256(f"{key}/{identifier}/{sample}".encode()).digest()
            stream = np.random.Generator(np.random.Philox(int.from_bytes(digest[:16], "big")))
            rows.append(stream.random(length))
    return torch.from_numpy(np.stack(rows))


@torch.inference_mode()
def _sample_batch(
    model, prompts, uniforms, stop: frozenset[int], temperature, greedy, *, static=None
) -> list[tuple[list[int], list[float], float]]:
    """Answers as (ids, log-probabilities, mean entropy): B rows, B / P to each of the P prompts.

    `uniforms` is (B, longest answer). On a GPU decoding is static and the host looks only now and
    then whether rows are finished, since every look waits for the device.
    """
    device = model.device
    static = device.type == "cuda" if static is None else static
    look_every = 16 if static else 1
    rows_total, longest = uniforms.shape
    capacity = max(map(len, prompts)) + longest
    decoding = Decoding(model, capacity, static=static)
    hidden = decoding.prefill(prompts).repeat_interleave(rows_total // len(prompts), 0)  # (B, H)
    decoding.repeat(rows_total // len(prompts))

    rows = torch.arange(rows_total, device=device)  # which answer a row of the batch is
    alive = torch.ones_like(rows, dtype=torch.bool)
    uniforms = uniforms.to(device)
    stop_ids = torch.tensor(sorted(stop), device=device)
    ids = torch.zeros(rows_total, longest, dtype=torch.long, device=device)
    logps, entropies = torch.zeros(2, rows_total, longest, device=device)
    lengths = torch.zeros_like(rows)

    for step in range(longest):
        logits = model.get_output_embeddings()(hidden).float() / temperature  # (B, V)
        tokens, chosen, nats = draw_tokens(logits, None if greedy else uniforms[rows, step])
        ids[rows, step], logps[rows, step], entropies[rows, step] = tokens, chosen, nats
        lengths[rows] += alive
        alive &= ~torch.isin(tokens, stop_ids)
        if step == longest - 1:
            break
        if step % look_every == look_every - 1:
            living = int(alive.sum())
            if not living:
                break
            if living <= 0.75 * len(rows):  # dropping rows copies the cache: do it now and then
                keep = alive.nonzero()[:, 0]
                decoding.keep(keep)
                rows, tokens, alive = rows[keep], tokens[keep], alive[keep]
        hidden = decoding.step(tokens)

    columns = zip(*(t.tolist() for t in (ids, logps, entropies, lengths)), strict=True)
    return [(i[:n], p[:n], sum(e[:n]) / n) for i, p, e, n in columns]


def draw_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, their log-probabilities and the entropies of the distributions, each (B,).

    `logits` (B, V) are divided by the temperature already. A token is the inverse of the
    cumulative distribution at its uniform (B,); without uniforms it is the most likely one.
    """
    logps = torch.log_softmax(logits, dim=-1)
    probabilities = logps.exp()
    entropy = -(probabilities * logps.clamp(min=-1e30)).sum(-1)
    if uniforms is None:
        tokens = logps.argmax(-1)
    else:
        # float64: a float32 sum over a large vocabulary is off by more than rare tokens weigh.
        cumulative = probabilities.double().cumsum(-1)
        targets = uniforms[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, targets, right=True)[:, 0]
        tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens, logps.gather(-1, tokens[:, None])[:, 0], entropy
