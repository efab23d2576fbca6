"""What a plan is asked about: a model's configuration, and a device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cascade_kit.loading import MICRO, model_source, quiet_libraries
from cascade_kit.plan_time import DEVICES, GIB, Device
from cascade_kit.presets import find_preset, nearest_preset, presets

UNITS = {"": 1, "gb": 10**9, "gib": GIB, "mb": 10**6, "mib": 1 << 20}


def read_config(model: str | Path) -> Any:
    """transformers' configuration of a preset, a folder, a GGUF file or a Hub id."""
    from transformers import AutoConfig

    quiet_libraries()
    if str(model) == "micro":
        return AutoConfig.from_pretrained(MICRO)
    if preset := find_preset(str(model)):
        return AutoConfig.for_model(**preset.config)
    path = Path(model).expanduser()
    if "/" not in str(model) and not path.exists():
        raise ValueError(
            f"no model is called {model}; give a Hub id, a model folder, a .gguf file or a short "
            f"name: {', '.join(presets())}. The nearest is {nearest_preset(str(model))}"
        )
    try:
        if path.suffix == ".gguf" and path.is_file():  # its header is enough
            return AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        return AutoConfig.from_pretrained(model_source(model))
    except (OSError, KeyError) as error:
        raise ValueError(
            f"no configuration of {model} can be read (is it a Hub id, and is there a network?); "
            f"the nearest model whose shape is known without one is {nearest_preset(str(model))}"
        ) from error


def find_device(gpu: str | int) -> Device:
    """A device of the table, or one of which only the memory is known."""
    word = str(gpu).lower().replace(" ", "")
    if word == "cpu":
        return replace(DEVICES["cpu"], memory=_installed_memory())
    if word in DEVICES:
        return DEVICES[word]
    number = word.rstrip("gimb")
    try:
        memory = int(float(number) * UNITS[word[len(number) :]])
    except (ValueError, KeyError, OverflowError):
        memory = 0
    if memory < 1:
        raise ValueError(
            f"--gpu {gpu} is not known: give {', '.join(DEVICES)}, or its memory, as 16GB or bytes"
        )
    return Device(str(gpu), memory, torch.bfloat16)


def _installed_memory() -> int | None:
    import os

    names = getattr(os, "sysconf_names", {})  # not on Windows
    if "SC_PAGE_SIZE" not in names or "SC_PHYS_PAGES" not in names:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
