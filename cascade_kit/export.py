"""Export: what a run has trained, in folders that plain peft and plain transformers load.

    python -m cascade_kit export runs/NAME --out DIR --merged

    DIR/README.md     a model card with the forgetting matrix
    DIR/adapter/      the PEFT adapter of a stage
    DIR/merged/       (on request) an ordinary model folder, see export_merge.py

The folder appears as a whole or not at all.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cascade_kit.export_card import card
from cascade_kit.export_merge import base_source, check_fits, write_merged
from cascade_kit.run_files import write_json, write_whole

Precision = Literal["auto", "bfloat16", "float16", "float32"]


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    folder: Path
    stage: str
    adapter: Path
    merged: Path | None  # None if it was not asked for
    card: Path
    notes: tuple[str, ...]  # what to know, such as a run that is not finished

    def __str__(self) -> str:
        written = [f"adapter of {self.stage}: {self.adapter}"]
        written += [f"merged model: {self.merged}"] * (self.merged is not None)
        return "\n".join([*self.notes, *written, f"model card: {self.card}"])


def export(
    run_folder: Path | str,
    out: Path | str,
    *,
    stage: str | None = None,
    merged: bool = False,
    model: Path | str | None = None,
    dtype: Precision = "auto",
) -> Exported:
    """Write a stage's adapter, a model card and, with `merged`, a whole model into folder `out`.

    `stage` is the last finished one unless named. `model` says where the base model lies if the
    run's own name for it does not: a run remembers of a local folder or file its name only.
    `dtype` is that of the merged weights; "auto" is the run's if that has 16 bits, else bfloat16.
    Raises ValueError, before anything is written, for a folder that is no run, a stage that is not
    finished, another base model, an `out` in use or too small a disk.
    """
    run_folder, out = Path(run_folder), Path(out)
    run = read_run(run_folder)
    finished = finished_stages(run_folder, run)
    name = chosen(run_folder, finished, stage)
    check_unused(out)
    adapter = finished[name] / "adapter"
    if merged or model is not None:
        source = base_source(run["model"], model)
        # A Hub id is only written down, unless its weights are needed.
        if merged or Path(source).is_dir():
            check_fits(adapter, source)
    hub = str(model) if model is not None and not Path(model).expanduser().exists() else None
    notes = unfinished(run, finished)
    with whole_folder(out) as partial:
        copy_adapter(adapter, partial / "adapter", hub)
        precision = None
        if merged:
            precision = write_merged(run["policy"], adapter, source, partial / "merged", dtype)
        text = card(run_folder, run, name, base=hub or run["model"], merged=precision, notes=notes)
        write_whole(partial / "README.md", text)
    return Exported(
        out, name, out / "adapter", out / "merged" if merged else None, out / "README.md", notes
    )


def read_run(folder: Path) -> dict[str, Any]:
    """The content of `run.json`; ValueError where there is none."""
    path = folder / "run.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no run.json: give the folder that `run --out` wrote")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); give another run folder") from error


def finished_stages(folder: Path, run: Mapping[str, Any]) -> dict[str, Path]:
    """Name -> folder of every trained stage whose adapter is there, in order; not the start."""
    places = {name: folder / f"{k}-{name}" for k, name in enumerate(run["order"], start=1)}
    return {
        name: place
        for name, place in places.items()
        if (place / "adapter" / "adapter_config.json").is_file()  # written last
    }


def chosen(folder: Path, finished: Mapping[str, Path], stage: str | None) -> str:
    """The stage to export: the one named, else the last; ValueError names the finished ones."""
    if not finished:
        raise ValueError(f"{folder} has no finished stage yet; go on with `run --resume --out`")
    if stage is not None and stage not in finished:
        raise ValueError(f"{folder} has no finished stage {stage!r}; it has {', '.join(finished)}")
    return stage or list(finished)[-1]


def unfinished(run: Mapping[str, Any], finished: Mapping[str, Path]) -> tuple[str, ...]:
    """A sentence about stages of the order that have not been trained; empty if all are."""
    missing = [name for name in run["order"] if name not in finished]
    if not missing:
        return ()
    return (f"The run is not finished: {', '.join(missing)} not trained yet.",)


def check_unused(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty; choose another --out, or remove it")


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to fill beside `out`, which takes its name in the end; after a fault it is gone."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        yield partial
        if out.exists():
            out.rmdir()  # empty, see check_unused; Windows renames onto nothing that exists
        partial.rename(out)
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def copy_adapter(source: Path, target: Path, base: str | None) -> None:
    """Copy the two files of a PEFT folder; `base` replaces the base model that it names."""
    target.mkdir()
    shutil.copyfile(source / "adapter_model.safetensors", target / "adapter_model.safetensors")
    config = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
    if base is not None:
        config["base_model_name_or_path"] = base
    write_json(target / "adapter_config.json", config)
