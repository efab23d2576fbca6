"""Loss scaling for float16, whose smallest positive number is 6e-8: most gradients are below it.

The loss is multiplied before the backward and the gradients are divided after it, in the float32 of
the LoRA weights. The factor is a power of two, so that it changes no digit; it halves when a
gradient overflows, and that step is left out. Other dtypes need none of it and get none.
"""

import math
from collections.abc import Sequence

import torch
from torch.nn.utils import clip_grad_norm_

START = 2.0**15
GROWS_AFTER = 200  # good steps until a factor that may have been too small doubles
LARGEST = 2.0**24


class LossScale:
    """The factor of a policy's losses; `factor` is None where none is needed."""

    def __init__(self, dtype: torch.dtype):
        self.factor = START if dtype == torch.float16 else None
        self.good_steps = 0  # since the factor last changed

    def backward(self, loss: torch.Tensor) -> None:
        """The backward of a loss, or of a part of it, scaled."""
        (loss if self.factor is None else loss * self.factor).backward()

    def step(self, optimizer: torch.optim.Optimizer, parameters: Sequence, most: float) -> float:
        """Clip the gradients to norm `most` and step; returns the norm before clipping.

        NaN says that gradients overflowed and the step was left out. Raises ValueError when they
        do so however small the factor is.
        """
        if self.factor is None:
            norm = clip_grad_norm_(parameters, most).item()
            optimizer.step()
            return norm
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= self.factor
        norm = clip_grad_norm_(parameters, most).item()
        if not math.isfinite(norm):
            self._shrink()
            return math.nan
        optimizer.step()
        self.good_steps += 1
        if self.good_steps == GROWS_AFTER:
            self.factor, self.good_steps = min(2 * self.factor, LARGEST), 0
        return norm

    def _shrink(self) -> None:
        if self.factor <= 1.0:
            raise ValueError(
                "this model overflows in float16 whatever the scale of the loss; use --dtype "
                "float32, or bfloat16 on a GPU that has it"
            )
        self.factor, self.good_steps = self.factor / 2, 0
