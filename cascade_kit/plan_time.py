"""How long a stage takes: a rough estimate from tokens, operations and bytes.

Nothing here is measured on the machine in question; the shares of a GPU's published speed that are
reached are assumptions. Expect it to be right within a factor of two or three.
"""

from dataclasses import dataclass

import torch

from cascade_kit import plan_parts as parts
from cascade_kit.logprobs import row_tokens
from cascade_kit.plan_phases import Load

BANDWIDTH_REACHED, OPERATIONS_REACHED = 0.6, 0.3  # shares of the published figures
# Kernels of a layer, and the shortest time of one: replayed in a graph, or launched by Python.
DECODING_KERNELS, ADAPTED_KERNELS, UPDATE_KERNELS = 35, 80, 300
REPLAYED, LAUNCHED = 2.5e-6, 6e-6


@dataclass(frozen=True)
class Device:
    """What a plan knows of a machine; speeds are None where only the memory is known."""

    name: str
    memory: int | None  # bytes that torch reports, which is less than the label says
    dtype: torch.dtype
    cuda: bool = True
    bandwidth: float | None = None  # bytes a second
    operations: float | None = None  # dense, a second, in `dtype`


GIB = 1 << 30
DEVICES = {
    device.name: device
    for device in (
        Device("t4", int(14.74 * GIB), torch.float16, True, 320e9, 65e12),
        Device("l4", int(22.03 * GIB), torch.bfloat16, True, 300e9, 121e12),
        Device("a100", int(39.56 * GIB), torch.bfloat16, True, 1555e9, 312e12),  # the 40 GB one
        Device("h100", int(79.1 * GIB), torch.bfloat16, True, 3350e9, 989e12),
        Device("cpu", None, torch.float32, False, 20e9 / 0.6, 100e9 / 0.3),  # two cores
    )
}


def step_seconds(load: Load, device: Device) -> dict[str, float]:
    """Seconds of a step's rollout and update; empty where the device's speed is not known."""
    if device.bandwidth is None or device.operations is None:
        return {}
    return {"rollout": _rollout(load, device), "update": _update(load, device)}


def _rollout(load: Load, device: Device) -> float:
    shape, machine, stage = load.shape, load.machine, load.stage
    weights = shape.linear + shape.hidden * shape.config.vocab_size
    traffic = machine.b * weights if load.merged else _unpacking(load) + machine.b * weights
    rows = min(stage.prompts, load.batch_prompts) * stage.answers
    half_full = load.prompt_tokens + stage.max_new_tokens // 2
    traffic += parts.cache_bytes(shape, machine, rows, half_full)
    token = _work(device, 2 * weights * rows, traffic)
    kernels = DECODING_KERNELS if load.merged else ADAPTED_KERNELS
    token += shape.layers * kernels * REPLAYED * device.cuda
    batches = -(-stage.prompts // load.batch_prompts)
    reading = _work(device, 2 * shape.linear * stage.prompts * load.prompt_tokens, 0)
    return reading + batches * stage.max_new_tokens * token


def _update(load: Load, device: Device) -> float:
    shape, machine = load.shape, load.machine
    head = shape.hidden * shape.config.vocab_size
    # A reference reads every batch once more; the frozen weights get no gradient.
    forwards = 1 + (load.stage.kl_coef > 0)
    seconds = 0.0
    for batch in load.micro_batches():
        passes = forwards + 1 + batch.recompute
        tokens = sum(map(row_tokens, batch.rows))
        predicted = sum(len(answer.completion_ids) for row in batch.rows for answer in row)
        operations = 2 * shape.linear * tokens * passes + 4 * head * predicted
        traffic = passes * (_unpacking(load) + machine.b * shape.linear)
        seconds += _work(device, operations, traffic)
        seconds += shape.layers * UPDATE_KERNELS * LAUNCHED * device.cuda
    return seconds


def _unpacking(load: Load) -> int:
    """Reading the quantised weights and writing them in the model's dtype."""
    if load.machine.bits == 16:
        return 0
    return parts.linear_bytes(load.shape, load.machine) + load.machine.b * load.shape.linear


def _work(device: Device, operations: float, traffic: float) -> float:
    return max(
        operations / (OPERATIONS_REACHED * device.operations),
        traffic / (BANDWIDTH_REACHED * device.bandwidth),
    )
