"""Models by short names, with their shapes: what a plan needs, without network and weights.

presets.json holds for each name the Hub id, the published number of parameters and the fields of
the published config.json that shape the model. The numbers are facts of the models, not choices.
"""

import difflib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("presets.json")


@dataclass(frozen=True)
class Preset:
    """A model that has a short name."""

    name: str
    hub: str  # its id on the Hub
    parameters: int  # as published, shared embeddings counted once
    config: dict[str, Any]  # transformers' fields, with `model_type`


@cache
def presets() -> dict[str, Preset]:
    """All presets by short name, small ones first within a family."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Preset(name, **fields) for name, fields in stored.items()}


def find_preset(model: str) -> Preset | None:
    """The preset with this short name or Hub id, in any case of letters; None if there is none."""
    wanted = model.lower()
    for preset in presets().values():
        if wanted in (preset.name, preset.hub.lower()):
            return preset
    return None


def hub_id(model: str) -> str:
    """What the Hub calls a model: a short name's id, anything else as it stands."""
    preset = presets().get(model.lower())
    return preset.hub if preset else model


def nearest_preset(model: str) -> str:
    """The short name that a model's name resembles most, for a message."""
    wanted = model.lower().rsplit("/", 1)[-1].removesuffix(".gguf").removesuffix("-instruct")
    return difflib.get_close_matches(wanted, presets(), n=1, cutoff=0.0)[0]
