"""Attention in which query heads share their key head, as the model means it, without copies.

Llama-like models have fewer key than query heads. Under a mask transformers' `sdpa` repeats keys
and values for every query head first: in decoding that copies the whole cache at every token.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "grouped_sdpa"  # what `attn_implementation` calls it


def grouped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options,
) -> tuple[torch.Tensor, None]:
    """Queries (B, heads, T, D) over keys and values (B, key heads, L, D) -> (B, T, heads, D)."""
    rows, heads, length, width = query.shape
    if length == 1:  # the heads of a group are as many queries of their one key head
        queries = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
        found = scaled_dot_product_attention(
            queries, key, value, attn_mask=attention_mask, scale=scaling
        )
        return found.reshape(rows, 1, heads, width), None
    if query.device.type != "cpu":  # there only slow kernels take groups and a mask together
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    found = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling,
        is_causal=attention_mask is None, enable_gqa=True,
    )  # fmt: skip
    return found.transpose(1, 2).contiguous(), None


def register() -> str:
    """Make it known to transformers; returns its name."""
    AttentionInterface.register(NAME, grouped_sdpa)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
