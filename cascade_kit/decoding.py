"""Decoding: the weights that answers are sampled with, and a batch of answers in progress.

Weights: a merged copy, dequantise(the very 4-bit weights) + B.A.scale in the dtype of the
arithmetic, where it fits, else the 4-bit layers themselves. Both are the policy of the update up to
rounding (6e-6 nats in float32). The original weights would be 0.05 nats off, and peft's merge on
4-bit layers 0.4, and it damages the base.

Axes: P prompts, B rows, L cache places, H hidden width.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicLayer

from cascade_kit.budgets import reading_tokens
from cascade_kit.policy import Policy, base_weight, lora_layers

# ---- the weights ---------------------------------------------------------------------------------


@contextlib.contextmanager
def decoding_model(policy: Policy, adapter: str) -> Iterator[Any]:
    """The causal language model to sample an adapter's answers with."""
    if policy.decoding == "merged":
        yield merged_copy(policy, adapter)
    else:
        with policy.using(adapter):
            yield policy.model.get_base_model()


def merged_copy(policy: Policy, adapter: str) -> Any:
    """A plain causal LM with an adapter merged into dequantised weights, made once and refilled.

    It shares embeddings, norms and biases with the base; its linear weights are extra memory.
    """
    if policy.merged is None:
        policy.merged = _empty_copy(policy)
    targets = dict(policy.merged.named_modules())
    with torch.no_grad():
        for name, layer in lora_layers(policy.model.get_base_model()):
            weight = targets[name].weight
            weight.copy_(base_weight(layer.get_base_layer(), weight.dtype))
            weight += layer.get_delta_weight(adapter).to(weight.dtype)
    return policy.merged


def _empty_copy(policy: Policy) -> Any:
    """A model of the same configuration: shared small parameters, room for linear weights."""
    import copy

    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    base = policy.model.get_base_model()
    config = copy.deepcopy(base.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with init_empty_weights(include_buffers=False):
        plain = AutoModelForCausalLM.from_config(config, attn_implementation=policy.attention)
    state = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in base.state_dict(keep_vars=True).items()
        if "lora_" not in name
    }
    for name, layer in lora_layers(base):
        shape = (layer.out_features, layer.in_features)
        state[f"{name}.weight"] = torch.empty(shape, dtype=policy.dtype, device=policy.device)
    names = plain.state_dict().keys()
    plain.load_state_dict({k: v for k, v in state.items() if k in names}, assign=True)
    plain.tie_weights()
    return plain.to(policy.device).requires_grad_(False).eval()


# ---- answers in progress -------------------------------------------------------------------------


class Decoding:
    """A batch of rows that grow by a token a step, on one cache.

    With `static` every step has the same shapes and reads the whole cache, as a CUDA graph needs;
    without, a step reads what is written so far. Call `prefill`, `repeat`, then `step` after
    `step`, and `keep` when rows are finished.
    """

    def __init__(self, model: Any, capacity: int, *, static: bool = False):
        self.model = model
        self.capacity = capacity
        self.static = static
        self.written = 0  # places of the cache in use
        self.place = torch.zeros(1, dtype=torch.long, device=model.device)  # the next one
        layers = range(model.config.num_hidden_layers)
        self.cache = Cache(layers=[BufferedLayer(capacity) for _ in layers])
        self.captures = static and model.device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read the prompts, each once; returns the hidden states (P, H) of their last tokens."""
        device = self.model.device
        # Right-padded: with causal attention the padding behind a prompt changes nothing.
        ids = pad_sequence([torch.tensor(p, device=device) for p in prompts], batch_first=True)
        last = torch.tensor([len(p) - 1 for p in prompts], device=device)
        self.positions = last + 1  # (B,) the position of each row's next token
        self.visible = torch.arange(self.capacity, device=device)[None] <= last[:, None]
        hidden = torch.zeros(0)
        width = max(1, reading_tokens(self.model.dtype) // len(prompts))
        for start in range(0, ids.shape[1], width):  # long prompts in pieces
            piece = self.model.base_model(
                input_ids=ids[:, start : start + width], past_key_values=self.cache, use_cache=True
            ).last_hidden_state  # (P, width, H)
            inside = (last - start).clamp(0, piece.shape[1] - 1)
            found = piece[torch.arange(len(prompts), device=device), inside]
            hidden = torch.where((last >= start)[:, None], found, hidden) if start else found
        self.written = ids.shape[1]
        self.place.fill_(self.written)
        return hidden

    def repeat(self, times: int) -> None:
        """Give every row `times` copies, side by side."""
        self.cache.batch_repeat_interleave(times)
        self.positions = self.positions.repeat_interleave(times)
        self.visible = self.visible.repeat_interleave(times, 0)
        if self.static:
            for layer in self.cache.layers:
                layer.fix(self.place)

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only."""
        self.cache.batch_select_indices(rows)
        self.positions, self.visible = self.positions[rows], self.visible[rows]
        self._graph = None

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append a token (B,) to every row; returns its hidden states (B, H)."""
        self.visible.index_fill_(1, self.place, True)
        self.written += 1
        hidden = self._replay(tokens) if self.captures else self._forward(tokens)
        self.positions += 1
        self.place += 1
        return hidden

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        end = self.capacity if self.static else self.written
        return self.model.base_model(
            input_ids=tokens[:, None],
            position_ids=self.positions[:, None],
            attention_mask=self.visible[:, None, None, :end],
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, 0]

    def _replay(self, tokens: torch.Tensor) -> torch.Tensor:
        """The step as one CUDA graph: a launch a token instead of hundreds."""
        if self._graph is None:
            try:
                self._capture(tokens)
            except RuntimeError as error:  # a model may do in a step what no graph can hold
                self.captures = False
                reason = str(error).splitlines()[0]
                warnings.warn(f"decoding without a CUDA graph, slower: {reason}", stacklevel=2)
                return self._forward(tokens)
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._hidden.clone()

    def _capture(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # capture wants everything initialised
            self._forward(self._tokens)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._hidden = self._forward(self._tokens)
        self._graph = graph


class BufferedLayer(DynamicLayer):
    """Keys and values of one layer in a buffer of fixed capacity.

    A new token is one write; transformers' growing cache copies everything for every token.
    """

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.place: torch.Tensor | None = None

    def fix(self, place: torch.Tensor) -> None:
        """From now on write at `place` (1,), a tensor that moves, and return all of the buffer."""
        self.place = place
        for buffer in self._buffers:
            # A place that nobody wrote is masked, but 0 x NaN would still be NaN.
            buffer[:, :, self.keys.shape[-2] :] = 0
        self.keys, self.values = self._buffers

    def update(self, key_states, value_states, *args, **kwargs):
        if self.place is not None:
            for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
                buffer.index_copy_(2, self.place, states)
            return self.keys, self.values
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
