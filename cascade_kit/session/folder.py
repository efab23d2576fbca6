"""The run folder of the notebooks: what is finished in it, and how it stays one true sequence.

Every stage folder but the last one belongs to a finished stage, and each stage started from the one
before it. Training a stage anew therefore moves what followed aside; nothing is deleted.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_kit.cascade import START, Run, run_settings
from cascade_kit.checks import check_lengths
from cascade_kit.data import DataSet
from cascade_kit.policy import Policy
from cascade_kit.records import StepRecord
from cascade_kit.run_files import write_json
from cascade_kit.run_logs import read_lines
from cascade_kit.stage import ORDER, Stage

FACTS = "stage.json"  # how a stage was really trained, and how far it came
SUMMARIES = ("matrix.json", "matrix.png", "report.html")
SAME = ("model", "seed", "samples")  # must not differ between the sessions of one folder
PATIENCE = 60.0  # seconds, beside ten steps, after which a silent training counts as stopped


def stored_run(folder: Path) -> dict[str, Any]:
    """The content of `run.json`, empty for a new folder.

    Raises ValueError for a folder of something else, or a run in an order that is not the kit's.
    """
    path = folder / "run.json"
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} exists and is no run folder; choose another folder=")
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    if tuple(stored["order"][: len(ORDER)]) != ORDER:
        raise ValueError(
            f"{folder} holds a run in another order ({', '.join(stored['order'])}); "
            "choose another folder="
        )
    return stored


def prepared_run(
    folder: Path,
    stored: Mapping[str, Any],
    policy: Policy,
    data: DataSet,
    wanted: Stage,
    evaluated: Sequence[Stage],
    seed: int,
) -> Run:
    """The runner, once it is sure that it fits what the folder holds; nothing is written yet."""
    check_lengths(policy, data, evaluated)
    facts = run_settings(policy, data, [], evaluated, seed=seed)
    check_same(folder, stored, facts)
    return Run(
        folder, policy, data, [wanted], evaluated, merged(folder, stored, facts, wanted.name)
    )


def check_same(folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ValueError if new rows would not compare with those that the folder holds."""
    if not stored:
        return
    changed = [key for key in SAME if stored[key] != wanted[key]]
    for key in ("bits", "trainable_parameters"):
        changed += [key] * (stored["policy"][key] != wanted["policy"][key])
    items = stored["eval_items"]
    for name, count in wanted["eval_items"].items():
        # The reader's own domain may get more problems: its column is then evaluated again.
        if name in ORDER and items.get(name, count) != count:
            changed.append(f"{items[name]} held-out {name} items there, {count} now")
    if changed:
        raise ValueError(
            f"{folder} was made with other settings ({'; '.join(changed)}); open it with the same "
            "ones, or choose another folder="
        )


def check_untouched(folder: Path, name: str, seed: int) -> None:
    """Raise ValueError if the folder holds results, to which its seed belongs."""
    start = folder / f"0-{START}"
    stages = [path for path in folder.glob("[0-9]*-*") if path != start]
    if stages or any(start.glob("eval/*")):
        raise ValueError(
            f"{folder} holds what was trained or evaluated with another seed; keep it, and take "
            f"another folder: open_session({name!r}, seed={seed}, folder=...)"
        )


def merged(
    folder: Path, stored: Mapping[str, Any], facts: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """`run.json` for a session of stage `name` in a folder that may hold an own stage already.

    A second own stage takes the place of the first, whose domain this session does not know.
    """
    own = [path.name.split("-")[1] for path in folder.glob(f"{len(ORDER) + 1}-*")]
    order = [*ORDER, *(own if name in ORDER else [name])]
    if not stored:
        return {**facts, "order": order}
    columns = {s["name"]: s for s in [*stored["evaluated"], *facts["evaluated"]]}
    return {
        **facts,
        "order": order,
        "stages": stored["stages"],
        "evaluated": [column for column in columns.values() if column["name"] in order],
        "eval_items": {
            n: count
            for n, count in {**stored["eval_items"], **facts["eval_items"]}.items()
            if n in order
        },
        "started": stored["started"],
    }


def what_was_trained(
    facts: Mapping[str, Any], folders: Mapping[str, Path], name: str
) -> dict[str, Any]:
    """`stages` and `order` of `run.json`: the stages whose folders are there, as they were trained.

    `facts` holds what the file said before, for stages that the command line trained.
    """
    known = {settings["name"]: settings for settings in facts["stages"]}
    trained = {stage: read_facts(path) for stage, path in folders.items()}
    known |= {stage: found["settings"] for stage, found in trained.items() if found}
    there = [stage for stage in facts["order"] if stage in known and folders[stage].exists()]
    order = [stage for stage in facts["order"] if stage in (*ORDER, name, *there)]
    return {"stages": [known[stage] for stage in there], "order": order}


def is_finished(stage_folder: Path) -> bool:
    return (stage_folder / "adapter" / "adapter_config.json").exists()  # written last


def stage_folders(folder: Path, order: Sequence[str]) -> dict[str, Path]:
    """Where the start and every stage of the order lie, or would lie."""
    return {name: folder / f"{place}-{name}" for place, name in enumerate((START, *order))}


def read_facts(stage_folder: Path) -> dict[str, Any]:
    """The stage's `stage.json`; empty where there is none (a run of the command line)."""
    path = stage_folder / FACTS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def note_facts(stage_folder: Path, **facts: Any) -> None:
    """Add facts to the stage's `stage.json`."""
    write_json(stage_folder / FACTS, read_facts(stage_folder) | facts)


def read_steps(stage_folder: Path) -> list[StepRecord]:
    """The steps that a stage has logged so far."""
    try:
        return [StepRecord(**row) for row in read_lines(stage_folder / "steps.jsonl")]
    except TypeError as error:
        raise ValueError(
            f"{stage_folder / 'steps.jsonl'} was written by another version of the kit ({error}); "
            "train the stage anew"
        ) from error


def make_room(folder: Path, order: Sequence[str], name: str) -> str:
    """Move aside what cannot stay when stage `name` is trained; a sentence, or "" for nothing.

    These are the stage's own finished folder, later stages (they came from another start) and
    earlier ones that never finished. A reward model stays: it does not depend on the policy.
    """
    folders = stage_folders(folder, order)
    place = order.index(name)
    leaving = [n for n in order[:place] if folders[n].exists() and not is_finished(folders[n])]
    leaving += [name] * is_finished(folders[name])
    leaving += [n for n in order[place + 1 :] if folders[n].exists()]
    # An own stage of another session, which took the same place.
    others = [p for p in folder.iterdir() if re.fullmatch(r"\d+-\w+", p.name)]
    folders |= {p.name.split("-")[1]: p for p in others if p not in folders.values()}
    leaving += [n for n in folders if n not in (START, *order)]
    if not leaving:
        return ""
    aside = fresh_folder(folder)
    for other in leaving:
        source = folders[other]
        move(source, aside / source.name)
        if other == name and (aside / source.name / "reward_model").exists():
            move(aside / source.name / "reward_model", source / "reward_model")
    # A domain that only a moved stage brought along has no column any more.
    for column in (n for n in leaving if n not in ORDER):
        for path in [*folder.glob(f"*-*/eval/{column}.jsonl")]:
            move(path, aside / path.relative_to(folder))
    for path in (folder / file for file in SUMMARIES):
        if path.exists():
            move(path, aside / path.name)
    return f"Moved to {aside}: {', '.join(leaving)} (made from another start, or not finished)."


def fresh_folder(folder: Path) -> Path:
    stamp = time.strftime("replaced-%Y%m%d-%H%M%S")
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 1000)))
    return next(folder / name for name in names if not (folder / name).exists())


def move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


# ---- a look from outside -----------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """The state of a stage as its folder tells it, for any process that looks."""

    stage: str
    steps: tuple[StepRecord, ...]
    total: int  # steps the stage was to have; 0 if unknown
    scores: dict[str, float]  # domain -> mean held-out score, as far as evaluated
    ended: str  # "finished", "interrupted", "silent" (no sign of life), "" while it runs
    ending: str  # the same in words

    @property
    def state(self) -> str:
        """Where the stage stands, in words."""
        of = f" of {self.total}" if self.total else ""
        return f"{self.stage}: step {len(self.steps)}{of}, {self.ending}"


def newest_stage(folder: Path) -> str:
    """The stage that logged a step last; ValueError if none has."""
    logs = list(folder.glob("*-*/steps.jsonl"))
    if not logs:
        raise ValueError(f"{folder} holds no trained step yet; train a stage first, or name a run")
    return max(logs, key=lambda path: path.stat().st_mtime).parent.name.split("-", 1)[1]


def look(folder: Path, stage: str) -> Seen:
    """Read the state of one stage of a run folder; ValueError if it has none."""
    found = list(folder.glob(f"*-{stage}/steps.jsonl"))
    if not found:
        raise ValueError(f"{folder} holds no steps of a stage {stage!r}")
    path = found[0].parent
    steps, facts = tuple(read_steps(path)), read_facts(path)
    total = planned_steps(folder, stage, facts)
    scores = {}
    for file in sorted((path / "eval").glob("*.jsonl")):
        values = [row["score"] for row in read_lines(file)]
        scores[file.stem] = sum(values) / len(values)
    age = time.time() - found[0].stat().st_mtime
    each = sum(sum(r.seconds.values()) for r in steps[-5:]) / max(1, len(steps[-5:]))
    silence = f"{age:.0f} s" if age < 120 else f"{age / 60:.0f} min"
    if is_finished(path):
        ended, ending = "finished", "finished"
    elif facts.get("state") == "interrupted":
        ended, ending = "interrupted", "interrupted"
    elif age > PATIENCE + 10 * each:
        ended, ending = "silent", f"no step for {silence}: it seems to have stopped"
    else:
        ended, ending = "", f"the last one {silence} ago: it seems to be running"
    return Seen(stage, steps, total, scores, ended, ending)


def planned_steps(folder: Path, stage: str, facts: Mapping[str, Any]) -> int:
    """How many steps the stage was to have, from its own facts or from `run.json`; 0 if unknown."""
    path = folder / "run.json"
    stages = json.loads(path.read_text(encoding="utf-8"))["stages"] if path.is_file() else []
    planned = {settings["name"]: settings["steps"] for settings in stages}
    return facts["settings"]["steps"] if "settings" in facts else planned.get(stage, 0)
