"""How many bytes each part of a training step takes, from a model's shape alone.

The formulas follow what this kit's code allocates: loading.py (weights), grpo.py (gradients,
optimiser), decoding.py (merged copy, cache), logprobs.py (activations, logits). They are written
for decoder-only transformers with gated MLPs, as Llama and Qwen are; tests compare them with
tensors that really exist.

Letters: H hidden width, I MLP width, V vocabulary, b bytes of a number in the model's dtype.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from cascade_kit import budgets

BLOCK, SECOND_BLOCK = 64, 256  # weights that share an NF4 scale; scales that share a scale
CODES = 4 * 16 + 4 * 256  # bytes of the code tables that every quantised layer has of its own


@dataclass(frozen=True)
class Shape:
    """What of a model decides its memory."""

    config: Any  # transformers' configuration
    linears: tuple[tuple[int, int], ...]  # (in, out) of every layer that carries LoRA
    other: int  # parameters that stay as they are: embeddings, head, norms, biases

    @classmethod
    def of(cls, config: Any) -> "Shape":
        """Of a configuration: the model is built without storage, so that nothing is guessed."""
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        head = model.get_output_embeddings()
        linears = tuple(
            (layer.in_features, layer.out_features)
            for layer in model.modules()
            if isinstance(layer, torch.nn.Linear) and layer is not head
        )
        total = sum(parameter.numel() for parameter in model.parameters())
        return cls(config, linears, total - sum(i * o for i, o in linears))

    @property
    def linear(self) -> int:
        """Weights of all linear layers."""
        return sum(i * o for i, o in self.linears)

    @property
    def parameters(self) -> int:
        return self.linear + self.other

    @property
    def layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def hidden(self) -> int:
        return self.config.hidden_size

    @property
    def wide(self) -> int:
        """I: the widest that a layer becomes."""
        return max(max(pair) for pair in self.linears)

    @cached_property
    def head_width(self) -> int:
        width = getattr(self.config, "head_dim", None)
        return width or self.hidden // self.config.num_attention_heads

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.config.num_attention_heads * self.head_width

    @property
    def key(self) -> int:
        """Width of all key heads together."""
        heads = getattr(self.config, "num_key_value_heads", None)
        return (heads or self.config.num_attention_heads) * self.head_width


@dataclass(frozen=True)
class Machine:
    """How the arithmetic is done."""

    bits: int = 4
    rank: int = 16
    dtype: torch.dtype = torch.bfloat16
    cuda: bool = True

    @property
    def b(self) -> int:
        return self.dtype.itemsize


# ---- what is there all the time ------------------------------------------------------------------


def linear_bytes(shape: Shape, machine: Machine) -> int:
    """The frozen linear weights. NF4: half a byte, and a scale for 64 of them, in 4 bytes, or on a
    GPU in one byte with a scale of its own for 256."""
    if machine.bits == 16:
        return machine.b * shape.linear
    if machine.bits == 8:
        return shape.linear + 4 * sum(o for _, o in shape.linears)
    total = 0
    for i, o in shape.linears:
        scales = -(-i * o // BLOCK)
        nested = scales + 4 * -(-scales // SECOND_BLOCK) if machine.cuda else 4 * scales
        total += i * o // 2 + nested + (CODES if machine.cuda else 4 * 16)
    return total


def other_bytes(shape: Shape, machine: Machine) -> int:
    """Embeddings, head, norms and biases, which are never quantised."""
    return machine.b * shape.other


def adapter_bytes(shape: Shape, machine: Machine) -> int:
    """One adapter in float32: A (r, in) and B (out, r) for every linear layer."""
    return 4 * machine.rank * sum(i + o for i, o in shape.linears)


def is_merged(shape: Shape, machine: Machine) -> bool:
    """Whether a merged copy decodes."""
    return machine.b * shape.linear <= budgets.largest_merged(machine.dtype)


def tokens_per_forward(shape: Shape, machine: Machine) -> int:
    return budgets.tokens_per_forward(shape.config, machine.dtype, shape.linear)


# ---- decoding ------------------------------------------------------------------------------------


def cache_bytes(shape: Shape, machine: Machine, rows: int, length: int) -> int:
    """Keys and values of a batch: every row has room for `length` tokens from the start."""
    return rows * length * budgets.cache_bytes_per_token(shape.config, machine.dtype)


def draw_bytes(shape: Shape, rows: int) -> int:
    """The next token's logits, log-probabilities and probabilities in float32, and the latter and
    their cumulative sum in float64."""
    return (4 + 4 + 4 + 8 + 8) * rows * shape.config.vocab_size


def filling_bytes(shape: Shape, machine: Machine) -> int:
    """While a layer of the merged copy is filled: its unpacked weight, the adapter's product in
    float32, and that in the model's dtype."""
    return (2 * machine.b + 4) * max(i * o for i, o in shape.linears)


def forward_bytes(shape: Shape, machine: Machine, tokens: int, *, adapted: bool) -> int:
    """What a forward without backward holds at its widest, in the MLP.

    An adapted layer adds two float32 products of its adapter to its output.
    """
    wide = 3 * machine.b * shape.wide
    if adapted:
        wide = (2 * machine.b + 8 if machine.b < 4 else 12) * shape.wide
    # The embeddings, the layer's input, the residual and its norm; rotations of the heads.
    narrow = machine.b * (4 * shape.hidden + 2 * shape.head_width)
    return tokens * (wide + narrow) + unpacked_bytes(shape, machine, adapted)


def unpacked_bytes(shape: Shape, machine: Machine, adapted: bool = True) -> int:
    """The largest linear weight in the model's dtype: quantised layers unpack it to multiply."""
    if machine.bits == 16 or not adapted:
        return 0
    return machine.b * max(i * o for i, o in shape.linears)


# ---- the update ----------------------------------------------------------------------------------


def saved_bytes(shape: Shape, machine: Machine, *, masked: bool) -> int:
    """What a layer keeps of one token for the backward.

    In 16 bits the norms and each float32 adapter keep a float32 copy of their input; in float32
    layers that read the same tensor share it. On a GPU attention under a mask keeps keys and values
    repeated for every query head.
    """
    hidden, query, wide = shape.hidden, shape.query, shape.wide
    keys = query if machine.cuda and masked else shape.key
    small = 4 * (7 * machine.rank + shape.config.num_attention_heads + 2)
    norms = 4 * (query + shape.key) * has_head_norms(shape.config)
    if machine.b >= 4:
        return 4 * (2 * hidden + 2 * hidden + 2 * query + 2 * keys + 4 * wide) + small + norms
    full = 2 * hidden + 5 * hidden + query + wide
    return 4 * full + machine.b * (2 * query + 2 * keys + 3 * wide) + small + norms


def has_head_norms(config: Any) -> bool:
    """Whether queries and keys are normalised, as in Qwen3."""
    return config.model_type.startswith(("qwen3", "gemma3", "olmo2"))


def activation_bytes(
    shape: Shape, machine: Machine, tokens: int, *, masked: bool, recompute: bool
) -> tuple[int, int]:
    """(kept through the forward, added in the backward) for a micro-batch of `tokens`.

    Recomputed layers keep their input, and one at a time comes to life again in the backward.
    """
    layer = tokens * saved_bytes(shape, machine, masked=masked)
    last = tokens * 4 * shape.hidden  # the last norm's input
    if recompute:
        return last + shape.layers * tokens * machine.b * shape.hidden, layer
    return last + shape.layers * layer, 0


def backward_bytes(shape: Shape, machine: Machine, tokens: int) -> int:
    """Gradients in flight in the MLP, and the weight that is unpacked for them."""
    return tokens * 4 * shape.wide + unpacked_bytes(shape, machine)


def chunk_bytes(shape: Shape, machine: Machine, answer_tokens: int) -> int:
    """Logits of the positions that are worked on at a time: in the model's dtype, and two float32
    tensors of the same shape."""
    vocabulary = shape.config.vocab_size
    return (
        min(answer_tokens, budgets.logit_positions(machine.dtype, vocabulary))
        * vocabulary
        * (machine.b + 8)
    )
