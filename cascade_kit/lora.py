"""The forward of an adapted layer, base(x) + s B A x, in one pass over its output.

peft computes the same sum with four passes (B A x, times s, a copy of base(x), the addition) and
the backward with one more. On a CPU they cost as much as the adapter's products.
"""

import types
from typing import Any

import torch
from torch.nn.functional import linear


def adapted_forward(layer: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """x (..., in) -> (..., out) through the base layer and its one active adapter, if it is on."""
    base = layer.base_layer(x, *args, **kwargs)
    if layer.disable_adapters:
        return base
    (adapter,) = layer.active_adapters
    down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight  # (r, in), (out, r)
    low = linear(x.to(down.dtype), down)  # (..., r)
    scale = layer.scaling[adapter]
    if base.dtype != up.dtype:  # a 16-bit base under an adapter in float32
        return base + (linear(low, up) * scale).to(base.dtype)
    flat = torch.addmm(base.flatten(0, -2), low.flatten(0, -2), up.T, alpha=scale)
    return flat.view(base.shape)


def use_adapted_forward(layers: list[Any]) -> None:
    """Give these peft layers the forward above. It has no dropout and no merged weights."""
    for layer in layers:
        layer.forward = types.MethodType(adapted_forward, layer)
