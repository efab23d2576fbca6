"""Settings of memory: how much of it each part of a step may take.

They follow from a model's configuration and dtype alone, never from the memory that happens to be
free: the same run makes the same batches everywhere. planner.py predicts peaks from the same rules.
"""

from typing import Any

import torch

# For float32, on a CPU. A GPU computes in 16 bits and has less memory: see the functions below.
ACTIVATION_BYTES = 2 << 30  # of a forward with backward
MERGED_BYTES = 4 << 30  # the largest merged copy that is made for decoding
LOGIT_POSITIONS = 1024  # whose logits exist at a time in an update, fewer where the vocabulary
LOGIT_BYTES = 128 << 20  # is large: their float32 logits take at most this much
READING_TOKENS = 8192  # padding included, in a forward without backward
CACHE_BYTES = 1 << 30  # keys and values of a batch of answers in progress, in any dtype


def tokens_per_forward(config: Any, dtype: torch.dtype, linear: int, most: int = 4096) -> int:
    """How many tokens (padding included) a forward with backward may hold at a time.

    At most `most`, and for larger models as many as keep their activations within
    `activation_bytes`. `linear` is the number of weights in linear layers.
    """
    per_token = config.num_hidden_layers * layer_bytes(config, dtype)
    return max(1, min(most, activation_bytes(dtype, linear) // per_token))


def layer_bytes(config: Any, dtype: torch.dtype) -> int:
    """What a layer keeps of a token for the backward, about: 16 hidden and 3 MLP widths in float32.

    In 16 bits 20 and 5 of them, since the float32 adapters keep their inputs in float32.
    """
    hidden, wide = (16, 3) if dtype.itemsize >= 4 else (20, 5)
    width = hidden * config.hidden_size + wide * getattr(config, "intermediate_size", 0)
    return dtype.itemsize * width


def activation_bytes(dtype: torch.dtype, linear: int) -> int:
    """The most that activations may take beside `linear` weights: 2 GiB in float32.

    In 16 bits every four weights, 2 bytes in NF4, take one byte off: a 7B keeps 0.5 GB and trains
    on a GPU of 8 GB.
    """
    if dtype.itemsize >= 4:
        return ACTIVATION_BYTES
    return max(ACTIVATION_BYTES // 8, ACTIVATION_BYTES - linear // 4)


def largest_merged(dtype: torch.dtype) -> int:
    """The largest merged copy for decoding: 4 GiB, in 16 bits 1 GiB."""
    return MERGED_BYTES if dtype.itemsize >= 4 else MERGED_BYTES // 4


def reading_tokens(dtype: torch.dtype) -> int:
    """How many tokens a forward without backward may hold at a time."""
    return READING_TOKENS if dtype.itemsize >= 4 else READING_TOKENS // 8


def logit_positions(dtype: torch.dtype, vocabulary: int) -> int:
    """Of how many positions the logits may exist at a time in an update."""
    allowed = LOGIT_BYTES if dtype.itemsize >= 4 else LOGIT_BYTES // 2
    return max(1, min(LOGIT_POSITIONS, allowed // (4 * vocabulary)))


def cache_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * dtype.itemsize * config.num_hidden_layers * heads * width
