"""A training of a session: what its folder says of it, and how it rests between two steps."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cascade_kit.cascade import Event, Run
from cascade_kit.checks import data_hash
from cascade_kit.session.folder import note_facts, read_facts, read_steps
from cascade_kit.stage import Stage


@dataclass
class Training:
    """A training that may rest between two steps; its source then waits where it was left."""

    stage: Stage
    folder: Path
    source: Iterator[Event]  # a generator that does the work
    events: list[Event] = field(default_factory=list)  # so far
    ended: bool = False

    def go_on(self) -> Iterator[Event]:
        """What was done before, then the work from there."""
        if self.events:
            self._note("training")
        try:
            yield from tuple(self.events)
            for event in self.source:
                self.events.append(event)
                yield event
        except BaseException as error:
            if not self.ended:  # by another iterator, or closed
                self._note("interrupted")
                # Left between two steps, the source waits; after anything else it has ended.
                self.ended = not isinstance(error, GeneratorExit)
            raise
        self.ended = True

    def can_go_on(self, stage: Stage) -> bool:
        """Whether settings and files are as the training left them; another notebook may have
        trained an earlier stage meanwhile, which moves this one aside."""
        done = sum(event.kind == "step" for event in self.events)
        logged = len(read_steps(self.folder)) if done else 0
        return stage == self.stage and logged == done

    def close(self) -> None:
        """End it where it rests."""
        self.source.close()
        self.ended = True
        self._note("interrupted")

    def _note(self, state: str) -> None:
        if read_facts(self.folder):
            note_facts(self.folder, state=state)


def recorded(name: str, stage_folder: Path) -> Iterator[Event]:
    """The steps of a finished training, as it showed them."""
    steps = read_steps(stage_folder)
    for record in steps:
        yield Event("step", name, record.step, len(steps), record=record)


def known_to_run(
    stage: Stage, evaluated: Sequence[Stage], folders: Mapping[str, Path]
) -> list[Stage]:
    """The stages of the runner: it looks for a reward model where the rlhf stage left one."""
    if stage.name == "rlhf" or not (folders["rlhf"] / "reward_model").exists():
        return [stage]
    return [next(s for s in evaluated if s.name == "rlhf"), stage]


def how_trained(run: Run, stage: Stage, base: str) -> dict[str, Any]:
    """The content of `stage.json` for a training that starts now, from what stage `base` left."""
    return {
        "settings": stage.settings(),
        "continues": base,
        "seed": run.seed,
        "data_hash": data_hash(run.data),
        "pairs": [len(run.data.train_pairs), len(run.data.eval_pairs)],
        "policy": run.policy.describe(),
        "threads": torch.get_num_threads(),
        "versions": run.settings["versions"],
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "state": "training",
    }
