"""Our forward of an adapted layer and our attention against peft's and transformers' own."""

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from cascade_kit.attention import grouped_sdpa
from cascade_kit.loading import load_policy
from cascade_kit.lora import adapted_forward
from cascade_kit.policy import POLICY, REFERENCE, lora_layers


@pytest.fixture(scope="module", params=[4, 8, 16])
def policy(request):
    policy = load_policy(bits=request.param)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.adapter_parameters(POLICY).values():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return policy


def through(policy, layer, forward, x):
    """Output, and gradients of input and adapter, of a weighted sum of the output."""
    x = x.clone().requires_grad_()
    parameters = [layer.lora_A[POLICY].weight, layer.lora_B[POLICY].weight]
    output = forward(x)
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape)
    return output.detach(), *torch.autograd.grad((output * weights).sum(), [x, *parameters])


def test_an_adapted_layer_equals_pefts(policy):
    x = torch.randn(2, 7, 192, generator=torch.Generator().manual_seed(1))
    name, layer = lora_layers(policy.model)[0]
    assert name.endswith("q_proj")
    ours = through(policy, layer, lambda x: adapted_forward(layer, x), x)
    pefts = through(policy, layer, lambda x: type(layer).forward(layer, x), x)
    for one, other in zip(ours, pefts, strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_every_adapted_layer_uses_it(policy):
    layers = [layer for _, layer in lora_layers(policy.model)]
    assert layers
    assert all(layer.forward.__func__ is adapted_forward for layer in layers)


def test_the_active_adapter_counts_and_a_disabled_one_does_not(policy):
    _, layer = lora_layers(policy.model)[0]
    x = torch.randn(1, 3, 192, generator=torch.Generator().manual_seed(2))
    policy.add_adapter(REFERENCE)  # fresh: its B is 0
    with torch.no_grad():
        base = layer.base_layer(x)
        assert (layer(x) - base).abs().max() > 1e-3
        with policy.using(REFERENCE):
            torch.testing.assert_close(layer(x), base)
        with policy.model.disable_adapter():
            torch.testing.assert_close(layer(x), base)
    policy.remove_adapter(REFERENCE)


def test_a_16_bit_base_keeps_its_dtype_under_a_float32_adapter():
    policy = load_policy(bits=16, dtype=torch.bfloat16)
    _, layer = lora_layers(policy.model)[0]
    adapter = {p.dtype for p in policy.adapter_parameters(POLICY).values()}
    x = torch.randn(1, 3, 192).to(torch.bfloat16)
    assert adapter == {torch.float32}
    assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("masked", [True, False])
def test_grouped_attention_equals_transformers_own(length, masked):
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 6, length, 8, generator=generator)
    key, value = torch.randn(2, 2, 3, 9, 8, generator=generator)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    mask = torch.ones(2, 1, length, 9, dtype=torch.bool).tril(9 - length) if masked else None
    ours, _ = grouped_sdpa(module, query, key, value, mask, scaling=0.3)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert ours.shape == (2, length, 6, 8)
    torch.testing.assert_close(ours, theirs)
