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
from transformers.cache_utils import Cache, DynamicLayer

from cascade_kit.policy import POLICY, Policy
from cascade_kit.problem import Problem

CACHE_BYTES = 1 << 30  # keys and values of one batch; a setting, never read off free memory


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
    text: str  # without the stop token


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
    cache_bytes: int = CACHE_BYTES,
) -> list[list[Rollout]]:
    """`samples` answers to each problem, in order: a list of P groups of G rollouts.

    `key` names the random stream, for example "seed/math/12"; the problem's id and the sample's
    number are added to it. Raises ValueError for a prompt that leaves no room for an answer.
    """
    prompts = [policy.encode_prompt(problem.prompt) for problem in problems]
    for problem, ids in zip(problems, prompts, strict=True):
        if len(ids) + max_new_tokens > policy.max_positions:
            raise ValueError(
                f"the prompt of {problem.id} has {len(ids)} tokens: with {max_new_tokens} new "
                f"tokens it exceeds the model's {policy.max_positions}; lower --max-new-tokens "
                "or drop the row"
            )
    decoder = policy.decoder(adapter)
    groups: list[list[Rollout]] = [[] for _ in problems]
    for batch in _batches(prompts, samples, max_new_tokens, decoder.config, cache_bytes):
        uniforms = _uniforms([problems[i].id for i in batch], samples, max_new_tokens, key)
        drawn = _sample_batch(
            decoder, [prompts[i] for i in batch], samples, uniforms, policy.stop_ids,
            temperature, greedy,
        )  # fmt: skip
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
                    text,
                )  # fmt: skip
            )
    return groups


def _batches(prompts, samples: int, max_new_tokens: int, config, cache_bytes: int):
    """Indices of prompts by length, in batches whose cache stays within the memory budget."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bytes_per_token = 2 * 4 * config.num_hidden_layers * heads * width
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
    decoder, prompts, samples, uniforms, stop: frozenset[int], temperature, greedy
) -> list[tuple[list[int], list[float], float]]:
    """Answers to a batch of prompts as (ids, log-probabilities, mean entropy), row by row."""
    device = decoder.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    capacity = int(lengths.max()) + uniforms.shape[1]
    cache = Cache(layers=[BufferedLayer(capacity) for _ in range(decoder.config.num_hidden_layers)])

    # Prefill, right-padded: with causal attention the padding behind a prompt changes nothing.
    padded = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(p, device=device) for p in prompts], batch_first=True
    )  # (P, L)
    hidden = decoder.base_model(
        input_ids=padded, past_key_values=cache, use_cache=True
    ).last_hidden_state
    hidden = hidden[torch.arange(len(prompts), device=device), lengths - 1]  # (P, H)

    hidden = hidden.repeat_interleave(samples, 0)  # (B, H), B = P*G
    cache.batch_repeat_interleave(samples)
    positions = lengths.repeat_interleave(samples)  # (B,) the next token's position
    visible = torch.arange(capacity, device=device)[None] < positions[:, None]  # (B, capacity)
    written = padded.shape[1]
    rows = torch.arange(len(prompts) * samples, device=device)  # which answer a batch row is
    alive = torch.ones_like(rows, dtype=torch.bool)
    uniforms = uniforms.to(device)
    stop_tensor = torch.tensor(sorted(stop), device=device)
    drawn: list[tuple[list[int], list[float], list[float]]] = [([], [], []) for _ in rows]

    for step in range(uniforms.shape[1]):
        logits = decoder.get_output_embeddings()(hidden).float() / temperature  # (B, V)
        tokens, logps, entropy = draw_tokens(logits, None if greedy else uniforms[rows, step])
        _record(drawn, rows, alive, tokens, logps, entropy)
        alive &= ~torch.isin(tokens, stop_tensor)
        if not alive.any() or step == uniforms.shape[1] - 1:
            break
        if alive.sum() <= 0.75 * len(rows):  # compacting copies the cache: do it now and then
            keep = alive.nonzero()[:, 0]
            cache.batch_select_indices(keep)
            rows, tokens, positions, visible = (t[keep] for t in (rows, tokens, positions, visible))
            alive = alive[keep]
        visible[:, written] = True
        written += 1
        hidden = decoder.base_model(
            input_ids=tokens[:, None],
            position_ids=positions[:, None],
            attention_mask=visible[:, None, None, :written],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, 0]
        positions = positions + 1
    return [(ids, logps, sum(entropies) / len(ids)) for ids, logps, entropies in drawn]


def _record(drawn, rows, alive, tokens, logps, entropy) -> None:
    columns = (rows[alive], tokens[alive], logps[alive], entropy[alive])
    for row, token, logp, nats in zip(*(c.tolist() for c in columns), strict=True):
        ids, row_logps, entropies = drawn[row]
        ids.append(token)
        row_logps.append(logp)
        entropies.append(nats)


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


class BufferedLayer(DynamicLayer):
    """Keys and values of one layer in a buffer of fixed capacity.

    A new token is one write; transformers' growing cache copies everything for every token.
    """

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity

    def update(self, key_states, value_states, *args, **kwargs):
        length = self.keys.shape[-2] if self.is_initialized else 0
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [self._room(key_states), self._room(value_states)]
        end = length + key_states.shape[-2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, length:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._move([t.repeat_interleave(repeats, 0) for t in (self.keys, self.values)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._move([t[indices] for t in (self.keys, self.values)])

    def _move(self, states: list[torch.Tensor]) -> None:
        """Take over other rows: new buffers with the same room behind them."""
        length = states[0].shape[-2]
        self._buffers = [self._room(s) for s in states]
        for buffer, s in zip(self._buffers, states, strict=True):
            buffer[:, :, :length] = s
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)

    def _room(self, states: torch.Tensor) -> torch.Tensor:
        batch, heads, _, width = states.shape
        return states.new_empty(batch, heads, self.capacity, width)
