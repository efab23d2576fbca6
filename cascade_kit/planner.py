"""What a run will need: peak memory by part and phase, and time, from a model's shape alone.

    plan("qwen2.5-7b", "t4")                  the five stages with their default settings
    plan("my_model/", "16GB", [stage], rank=32)

No weights are loaded, and for the models of presets.json no network is needed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from cascade_kit import plan_parts as parts
from cascade_kit.plan_inputs import find_device, read_config
from cascade_kit.plan_parts import Machine, Shape
from cascade_kit.plan_phases import Load, Parts, phases
from cascade_kit.plan_text import plan_html, plan_words
from cascade_kit.plan_time import Device, step_seconds
from cascade_kit.presets import find_preset, presets
from cascade_kit.run_data import EVAL_ITEMS
from cascade_kit.stage import Stage, cascade

CONTEXT = {True: 600 << 20, False: 500 << 20}  # CUDA's own memory; on a CPU the imported libraries
ALLOCATOR = 0.05  # of the peak: what a GPU's allocator holds besides, in pieces
PROMPT_TOKENS = 512  # of the longest prompts, where a stage has no cap of its own
LONGEST = 16_384  # new tokens: the search for what fits goes no further


@dataclass(frozen=True)
class StagePlan:
    """The forecast for one stage."""

    stage: Stage
    prompt_tokens: int  # of the longest prompts, as assumed
    phases: dict[str, Parts]  # phase -> part -> bytes, which add up to the phase's peak
    seconds: dict[str, float]  # of a step's rollout and update; empty: not known
    fits: bool
    remedies: tuple[str, ...]  # where it does not fit: settings that would, each on its own
    longest: int | None  # where it fits: new tokens that would still fit

    @property
    def peak(self) -> int:
        """Bytes of the phase that needs most."""
        return max(sum(found.values()) for found in self.phases.values())

    @property
    def stage_seconds(self) -> float | None:
        return self.stage.steps * sum(self.seconds.values()) if self.seconds else None


@dataclass(frozen=True)
class Plan:
    """The forecast for a run: show it, or read `stages`, `peak`, `reserved` and `fits`."""

    model: str
    shape: Shape
    machine: Machine
    device: Device
    merged: bool  # whether a merged copy decodes
    stages: tuple[StagePlan, ...]

    @property
    def peak(self) -> int:
        """The most bytes in tensors, over all stages."""
        return max(stage.peak for stage in self.stages)

    @property
    def reserved(self) -> int:
        """The most that the allocator holds: on a GPU 5 % more than the tensors, an assumption."""
        return reserved(self.peak, self.machine)

    @property
    def needed(self) -> int:
        """`reserved` with CUDA's own memory, or that of the libraries on a CPU."""
        return self.reserved + CONTEXT[self.machine.cuda]

    @property
    def fits(self) -> bool:
        return all(stage.fits for stage in self.stages)

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values, in bytes and seconds."""
        return {
            "model": self.model,
            "parameters": self.shape.parameters,
            "bits": self.machine.bits,
            "rank": self.machine.rank,
            "dtype": str(self.machine.dtype).removeprefix("torch."),
            "decoding": "merged" if self.merged else "layers",
            "device": self.device.name,
            "memory": self.device.memory,
            "peak": self.peak,
            "reserved": self.reserved,
            "needed": self.needed,
            "fits": self.fits,
            "stages": [
                {
                    "stage": found.stage.settings(),
                    "prompt_tokens": found.prompt_tokens,
                    "phases": found.phases,
                    "peak": found.peak,
                    "fits": found.fits,
                    "remedies": list(found.remedies),
                    "longest": found.longest,
                    "seconds_per_step": found.seconds,
                }
                for found in self.stages
            ],
        }

    def __str__(self) -> str:
        return plan_words(self)

    def _repr_html_(self) -> str:
        return plan_html(self)


def plan(
    model: str | Path = "micro",
    gpu: str | int = "t4",
    stages: Sequence[Stage] | None = None,
    *,
    bits: int = 4,
    rank: int = 16,
    dtype: torch.dtype | None = None,
    prompt_tokens: int | None = None,
    eval_items: int | None = None,
    decoding: Literal["auto", "merged", "layers"] = "auto",
) -> Plan:
    """Predict the peak memory of every phase and the time of `stages` (default: all five).

    `gpu` is t4, l4, a100, h100, cpu, or the memory alone: bytes or a word such as 16GB. Prompts are
    taken to be `prompt_tokens` long, by default as long as the stage allows, or 512; answers as
    long as they may be; a domain is evaluated on `eval_items`. Raises ValueError for a model
    without a readable configuration.
    """
    if bits not in (4, 8, 16) or rank < 1:
        raise ValueError(f"bits={bits}, rank={rank}: bits are 4, 8 or 16, the rank at least 1")
    shape, device = Shape.of(read_config(model)), find_device(gpu)
    machine = Machine(bits, rank, dtype or device.dtype, device.cuda)
    merged = parts.is_merged(shape, machine) if decoding == "auto" else decoding == "merged"
    tier = "micro" if str(model) == "micro" else "real"
    stages = cascade(tier=tier) if stages is None else stages
    judged = any(stage.needs_reward_model for stage in stages)
    loads = [
        Load(
            shape,
            machine,
            stage,
            _prompt_length(shape, stage, prompt_tokens),
            merged,
            eval_items or EVAL_ITEMS[tier],
            judged,
        )
        for stage in stages
    ]
    forecasts = tuple(_stage_plan(load, device) for load in loads)
    preset = find_preset(str(model))
    return Plan(preset.hub if preset else str(model), shape, machine, device, merged, forecasts)


def reserved(peak: int, machine: Machine) -> int:
    """What the allocator holds when tensors take `peak` bytes."""
    return round(peak * (1 + ALLOCATOR)) if machine.cuda else peak


def _prompt_length(shape: Shape, stage: Stage, wanted: int | None) -> int:
    room = shape.config.max_position_embeddings - stage.max_new_tokens
    if room < 1:
        raise ValueError(
            f"stage {stage.name!r}: max_new_tokens={stage.max_new_tokens} leaves no room for a "
            f"prompt: the model has {shape.config.max_position_embeddings} positions"
        )
    return min(room, wanted or stage.max_prompt_tokens or PROMPT_TOKENS)


# ---- what fits -----------------------------------------------------------------------------------


def _stage_plan(load: Load, device: Device) -> StagePlan:
    found = phases(load)
    fits = _fits(load, device)
    return StagePlan(
        load.stage,
        load.prompt_tokens,
        found,
        step_seconds(load, device),
        fits,
        () if fits else tuple(_remedies(load, device)),
        _longest(load, device) if fits else None,
    )


def _fits(load: Load, device: Device) -> bool:
    peak = max(sum(found.values()) for found in phases(load).values())
    needed = reserved(peak, load.machine) + CONTEXT[load.machine.cuda]
    return device.memory is None or needed <= device.memory


def _with_stage(name: str) -> Callable[[Load, int], Load]:
    return lambda load, value: replace(load, stage=load.stage.changed(**{name: value}))


def _with_machine(name: str) -> Callable[[Load, int], Load]:
    def changed(load: Load, value: int) -> Load:
        machine = replace(load.machine, **{name: value})
        return replace(load, machine=machine, merged=parts.is_merged(load.shape, machine))

    return changed


def _remedies(load: Load, device: Device) -> Iterator[str]:
    """Settings that would let the stage fit, each on its own; else together; else another model."""
    alone = False
    for name, now, least, change in _settings(load):
        for value in _halves(now, least):
            if _fits(change(load, value), device):
                alone = True
                yield f"{name} {value} (now {now})"
                break
    if not alone:
        yield _together(load, device) or _largest_preset(load, device)


def _settings(load: Load) -> tuple[tuple[str, int, int, Callable[[Load, int], Load]], ...]:
    """(name, value, least useful value, how to change it) of what memory depends on."""
    stage, machine = load.stage, load.machine
    return (
        ("--max-new-tokens", stage.max_new_tokens, 64, _with_stage("max_new_tokens")),
        ("max_prompt_tokens", load.prompt_tokens, 128, lambda x, v: replace(x, prompt_tokens=v)),
        ("--answers", stage.answers, 4, _with_stage("answers")),
        ("--prompts", stage.prompts, 1, _with_stage("prompts")),
        ("--eval-items", load.eval_items, 8, lambda x, v: replace(x, eval_items=v)),
        ("--rank", machine.rank, 4, _with_machine("rank")),
        ("--bits", machine.bits, 4, _with_machine("bits")),
    )


def _together(load: Load, device: Device) -> str | None:
    """Settings that let the stage fit once all of them are lowered, each by half at a time."""
    lowered: dict[str, int] = {}
    while True:
        possible = [x for x in _settings(load) if x[1] // 2 >= x[2]]
        if not possible:
            return None
        for name, now, _, change in possible:
            load = change(load, now // 2)
            lowered[name] = now // 2
            if _fits(load, device):
                return ", ".join(f"{name} {value}" for name, value in lowered.items()) + " together"


def _halves(now: int, least: int) -> Iterator[int]:
    while now // 2 >= least:
        now //= 2
        yield now


def _largest_preset(load: Load, device: Device) -> str:
    for preset in sorted(presets().values(), key=lambda preset: -preset.parameters):
        shape = Shape.of(read_config(preset.name))
        merged = parts.is_merged(shape, load.machine)
        smaller = shape.parameters < load.shape.parameters
        if smaller and _fits(replace(load, shape=shape, merged=merged), device):
            return f"a smaller model: {preset.name}"
    return "a device with more memory"


def _longest(load: Load, device: Device) -> int:
    """The most new tokens, in steps of 64, that fit the device and the model's positions."""
    change = _with_stage("max_new_tokens")
    room = min(LONGEST, load.shape.config.max_position_embeddings - load.prompt_tokens)
    low, high = 0, max(0, room - load.stage.max_new_tokens) // 64
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(change(load, load.stage.max_new_tokens + 64 * middle), device):
            low = middle
        else:
            high = middle - 1
    return load.stage.max_new_tokens + 64 * low
