"""Checkpoints of a stage in training: written whole or not at all, checked when they are read.

    STAGE/checkpoints/000010/
      tensors.safetensors    adapter and optimiser
      state.json             plain facts: step, data cursor, filter, ...
      manifest.json          sha256 of both

A checkpoint is made in a folder that is never read and renamed when all of it is on the disk. The
last two are kept: where the newest is damaged, the one before it serves, and the steps between are
done again. They give the same numbers, since the random numbers of a step follow from seed, stage
and step alone.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

KEPT = 2
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


class DamagedCheckpoint(ValueError):
    """A checkpoint whose files are not those that were written."""


@dataclass(frozen=True)
class Checkpoint:
    """What a stage needs to go on after `step`."""

    step: int
    tensors: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    passed_over: tuple[str, ...] = ()  # newer ones that are damaged, with what is wrong with them


def write_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]
) -> Path:
    """Write the checkpoint of a step into `folder` and remove all but the last two.

    Raises OSError (a full disk, a read-only folder) with the older checkpoints untouched.
    """
    from safetensors.torch import save

    target = folder / f"{step:06d}"
    partial = folder / f"{target.name}.partial"
    for leftover in folder.glob("*.partial"):
        shutil.rmtree(leftover)
    partial.mkdir(parents=True)
    contents = {
        TENSORS: save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}),
        STATE: json.dumps({"step": step, **state}, indent=1, allow_nan=False).encode(),
    }
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    contents[MANIFEST] = json.dumps(sums, indent=1).encode()
    try:
        for name, data in contents.items():
            write_durably(partial / name, data)
        sync_folder(partial)
        if target.exists():  # damaged, or of a try that was passed over
            shutil.rmtree(target)
        partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)  # what a full disk needs most is room
        raise
    sync_folder(folder)
    for old in sorted(checkpoints(folder))[:-KEPT]:
        shutil.rmtree(old)
    return target


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if no checkpoint was finished.

    Raises DamagedCheckpoint if there are some and all are damaged.
    """
    damaged: list[str] = []
    for path in sorted(checkpoints(folder), reverse=True):
        try:
            step, tensors, state = read_checkpoint(path)
        except DamagedCheckpoint as error:
            damaged.append(str(error))
            continue
        return Checkpoint(step, tensors, state, tuple(damaged))
    if damaged:
        raise DamagedCheckpoint(
            f"no checkpoint in {folder} can be read ({'; '.join(damaged)}); remove that folder, "
            "and the stage starts again from the stage before it"
        )
    return None


def read_checkpoint(path: Path) -> tuple[int, dict[str, torch.Tensor], dict[str, Any]]:
    """Step, tensors and facts of one checkpoint; DamagedCheckpoint if a byte of it is another."""
    from safetensors.torch import load

    try:
        sums = json.loads((path / MANIFEST).read_bytes())
        contents = {name: (path / name).read_bytes() for name in (TENSORS, STATE)}
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{path.name}: {error}") from error
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != sums.get(name):
            raise DamagedCheckpoint(f"{path.name}: {name} is not what was written")
    state = json.loads(contents[STATE])
    return state.pop("step"), load(contents[TENSORS]), state


def checkpoints(folder: Path) -> Iterator[Path]:
    """The finished checkpoints in a folder, in no order."""
    return (p for p in folder.glob("*") if p.is_dir() and p.name.isdecimal())


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; Windows cannot and need not."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
