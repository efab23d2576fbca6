"""What the training of a stage changes while it goes: adapter, optimiser, curriculum and step.

    state = TrainingState(policy, stage, problems, seed=0)
    state.restore(newest_checkpoint(folder))        # in another process: the run goes on from there
    for record, answers in train(policy, stage, problems, state=state): ...
        write_checkpoint(folder, state.step, *state.parts())

The random numbers of a step follow from seed, stage and step, and the reference of a KL term is the
policy that the stage started from, so neither is part of a checkpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cascade_kit.checkpoint import Checkpoint, DamagedCheckpoint
from cascade_kit.curriculum import Curriculum
from cascade_kit.policy import POLICY, REFERENCE, Policy
from cascade_kit.problem import Problem
from cascade_kit.stage import Stage

ADAPTER, OPTIMIZER = "adapter/", "optimizer/"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what AdamW keeps of a parameter


class TrainingState:
    """The state of one stage in training; it starts from the policy as it is now."""

    def __init__(self, policy: Policy, stage: Stage, problems: Sequence[Problem], *, seed: int = 0):
        self._parameters = {
            name: p for name, p in policy.adapter_parameters(POLICY).items() if p.requires_grad
        }
        if not self._parameters:
            raise ValueError("no parameter is trainable; load the policy with load_policy()")
        self._loss_scale = policy.loss_scale
        self.step = 0  # the last one that is done
        self.optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=stage.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.curriculum = Curriculum(
            problems,
            stage,
            seed,
            prompt_tokens=lambda p: policy.prompt_tokens(p.prompt, p.examples),
            positions=policy.max_positions,
        )
        if stage.kl_coef > 0:
            policy.add_adapter(REFERENCE, copy_of=POLICY)

    def parts(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and plain facts, as `write_checkpoint` takes them."""
        tensors = {ADAPTER + name: p.detach() for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            kept = self.optimizer.state.get(parameter, {})  # empty before the first update
            tensors |= {f"{OPTIMIZER}{key}/{name}": kept[key] for key in MOMENTS if kept}
        scale = [self._loss_scale.factor, self._loss_scale.good_steps]
        return tensors, {"curriculum": self.curriculum.state(), "loss_scale": scale}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on after the step of a checkpoint.

        Raises DamagedCheckpoint if it holds other parameters, and ValueError if it knows problems
        that the data lack; then nothing was changed.
        """
        wanted = {ADAPTER + name: p.shape for name, p in self._parameters.items()}
        found = {n: t.shape for n, t in checkpoint.tensors.items() if n.startswith(ADAPTER)}
        if found != wanted:
            raise DamagedCheckpoint(
                f"the checkpoint of step {checkpoint.step} is of another model or rank; resume "
                "with the settings that the stage was started with"
            )
        self.curriculum.restore(checkpoint.state["curriculum"])
        self._loss_scale.factor, self._loss_scale.good_steps = checkpoint.state["loss_scale"]
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(checkpoint.tensors[ADAPTER + name])
                moments = self._moments(checkpoint.tensors, name, parameter.device)
                if moments:
                    self.optimizer.state[parameter] = moments
        self.step = checkpoint.step

    @staticmethod
    def _moments(
        tensors: Mapping[str, torch.Tensor], name: str, device: torch.device
    ) -> dict[str, torch.Tensor]:
        kept = {key: tensors.get(f"{OPTIMIZER}{key}/{name}") for key in MOMENTS}
        # AdamW counts its steps on the CPU, wherever the parameter is.
        return {
            key: value.clone() if key == "step" else value.to(device, copy=True)
            for key, value in kept.items()
            if value is not None
        }
