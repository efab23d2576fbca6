"""Models by short names, with their shapes, without network and weights.

presets.json holds for each name the Hub id, the published number of parameters and the fields of
the published config.json that shape the model. The numbers are facts of the models, not choices.
"""

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


def hub_id(model: str) -> str:
    """What the Hub calls a model: a short name's id, anything else as it stands."""
    preset = presets().get(model.lower())
    return preset.hub if preset else model
