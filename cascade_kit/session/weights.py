"""The weights of a session's policy: put back after a look, or drawn anew for another seed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from cascade_kit.policy import POLICY, Policy

DRAWN = "drawn"  # an adapter that exists for a moment


@contextlib.contextmanager
def keeping_weights(policy: Policy, adapter: Path | None = None) -> Iterator[None]:
    """Put the policy's weights back afterwards; inside they are those of `adapter`, if given."""
    parameters = policy.adapter_parameters(POLICY)
    kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    try:
        if adapter is not None:
            policy.load_adapter(adapter)
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(kept[name])


def draw_start(policy: Policy, seed: int) -> None:
    """Give the policy the very adapter that `load_policy(seed=seed)` draws: A random, B zero.

    The base stays in memory as it is.
    """
    torch.manual_seed(seed)
    policy.add_adapter(DRAWN)
    policy.add_adapter(POLICY, copy_of=DRAWN)
    policy.remove_adapter(DRAWN)
