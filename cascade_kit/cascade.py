"""The runner: stages in order on one policy, every domain re-tested after each, one run folder.

    run = Run.create(out, policy, data, stages, seed=0)
    for event in run.go():          # or step by step: run.evaluate(...), run.train(...)
        ...
    print(run.matrix())

Every result is on disk before the next step starts: a crash loses at most the step in progress.
"""

import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cascade_kit.checkpoint import newest_checkpoint, write_checkpoint
from cascade_kit.checks import (
    check_data,
    check_free,
    check_lengths,
    check_prompt_caps,
    data_hash,
    has_truth,
    stored_settings,
)
from cascade_kit.data import DataSet
from cascade_kit.evaluate import EvalRow, evaluate
from cascade_kit.forgetting import ForgettingMatrix
from cascade_kit.grpo import train
from cascade_kit.policy import REFERENCE, Policy
from cascade_kit.preflight import Preflight, preflight
from cascade_kit.records import Answer, StepRecord
from cascade_kit.reward_model import RewardModel
from cascade_kit.run_files import append_lines, keep_steps, write_json, write_lines
from cascade_kit.run_logs import matrix_of, read_lines, read_stages
from cascade_kit.stage import Stage
from cascade_kit.training_state import TrainingState

START = "sft"  # the name of the row before any RL
CHECKPOINTS = "checkpoints"  # the folder of a stage in training
CHECKPOINT_EVERY = 5  # steps


@dataclass(frozen=True)
class Event:
    """What the runner just did, for whoever watches: a bar, a log, a notebook."""

    kind: str  # "reward model", "pre-flight", "step", "evaluated", "finished"
    stage: str  # the row of the matrix it belongs to
    done: int = 0  # of `total`, within this kind
    total: int = 0
    domain: str = ""  # of an evaluation
    score: float | None = None  # of an evaluation, a held-out accuracy or a step's mean
    record: StepRecord | None = None
    report: Preflight | None = None


class Run:
    """One cascade in one folder: `run.json`, a folder a stage, and at the end the matrix."""

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        data: DataSet,
        stages: Sequence[Stage],
        evaluated: Sequence[Stage],
        settings: Mapping[str, Any],
    ):
        self.folder = folder
        self.policy = policy
        self.data = data
        self.stages = list(stages)
        self.evaluated = list(evaluated)  # one stage a domain: its lengths hold in evaluation too
        self.settings = dict(settings)
        self.seed = settings["seed"]
        self.checkpoint_every = CHECKPOINT_EVERY
        self._reward_model: RewardModel | None = None

    @classmethod
    def create(
        cls,
        folder: Path,
        policy: Policy,
        data: DataSet,
        stages: Sequence[Stage],
        *,
        domains: Sequence[Stage] = (),
        seed: int = 0,
        samples: int = 1,
        resume: bool = False,
    ) -> "Run":
        """A new run folder, or with `resume` an existing one, whose finished stages are kept.

        `domains` lists stages whose domains are evaluated besides. Raises ValueError, before
        anything is written, for a folder in use, other settings on resume, or missing data.
        """
        evaluated = list({s.domain.name: s for s in [*stages, *domains]}.values())
        check_data(data, stages, evaluated)
        check_lengths(policy, data, evaluated)
        check_prompt_caps(policy, data, stages)
        # A step cannot hold more prompts than there are; what is recorded is what is done.
        stages = [
            replace(s, prompts=min(s.prompts, len(data.train[s.domain.name]))) for s in stages
        ]
        settings = run_settings(policy, data, stages, evaluated, seed=seed, samples=samples)
        if resume:
            settings = stored_settings(folder, settings)
        else:
            check_free(folder)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "run.json", settings)
        return cls(folder, policy, data, stages, evaluated, settings)

    # ---- one step at a time ------------------------------------------------------------------

    def stage_folder(self, name: str) -> Path:
        """`K-NAME`: 0 for the start, then the place in the order."""
        place = 0 if name == START else self.settings["order"].index(name) + 1
        return self.folder / f"{place}-{name}"

    def evaluate(self, name: str, domains: Sequence[str] | None = None) -> Iterator[Event]:
        """Test every domain, or some, with the policy as it is now, as row `name` of the matrix."""
        start = self.stage_folder(START)
        tested = [s for s in self.evaluated if domains is None or s.domain.name in domains]
        for i, stage in enumerate(tested, start=1):
            domain = stage.domain
            problems = self.data.eval[domain.name]
            rows = evaluate(
                self.policy,
                domain,
                problems,
                max_new_tokens=stage.max_new_tokens,
                seed=self.seed,
                samples=self.settings["samples"],
                thinking=stage.thinking,
                reward_model=self._reward_model,
                start=None if name == START else read_rows(start, domain.name),
            )
            write_lines(
                self.stage_folder(name) / "eval" / f"{domain.name}.jsonl",
                [asdict(row) for row in rows],
            )
            score = sum(row.score for row in rows) / len(rows)
            yield Event("evaluated", name, i, len(tested), domain.name, score)

    def reward_model(self) -> Iterator[Event]:
        """Train the reward model, once a run, if a stage or an evaluation asks it."""
        needed = [s for s in self.stages if s.needs_reward_model]
        judged = [s for s in self.evaluated if not has_truth(self.data.eval[s.domain.name])]
        if self._reward_model is not None or not (needed or judged):
            return
        home = next((s.name for s in self.stages if s.domain.name == "rlhf"), START)
        model = RewardModel(self.policy, seed=self.seed)
        folder = self.stage_folder(home) / "reward_model"
        if (folder / "reward_model.json").exists():  # written last
            model.load(folder)
            self._reward_model = model
            return
        rate = max(s.learning_rate for s in [*needed, *judged])
        pairs = self.data.train_pairs
        total = -(-len(pairs) // 32)
        for record in model.train(pairs, learning_rate=rate, seed=self.seed):
            yield Event("reward model", home, record.step, total, score=record.accuracy)
        accuracy = model.accuracy(self.data.eval_pairs)
        model.save(
            folder,
            held_out_accuracy=accuracy,
            held_out_pairs=len(self.data.eval_pairs),
            train_pairs=len(pairs),
        )
        self._reward_model = model
        yield Event("reward model", home, total, total, score=accuracy)

    def preflight(self, stage: Stage) -> Preflight:
        """What a few answers of the policy as it is now say about training a stage."""
        return preflight(
            self.policy,
            stage,
            self.data.train[stage.domain.name],
            reward_model=self._reward_model,
            seed=self.seed,
            generated=self.data.generated,
        )

    def train(self, stage: Stage, *, resume: bool = False) -> Iterator[Event]:
        """Train one stage from the policy as it is now; its adapter is saved at the end.

        A checkpoint is written every few steps, and when the training is left between two steps.
        With `resume` the stage goes on from the newest one that its folder holds.
        """
        folder = self.stage_folder(stage.name)
        folder.mkdir(parents=True, exist_ok=True)
        problems = self.data.train[stage.domain.name]
        try:
            state = TrainingState(self.policy, stage, problems, seed=self.seed)
            checkpoint = newest_checkpoint(folder / CHECKPOINTS) if resume else None
            if checkpoint:
                state.restore(checkpoint)
            for log in ("rollouts.jsonl", "steps.jsonl"):  # what came after it is done again
                keep_steps(folder / log, state.step)
            steps = train(
                self.policy,
                stage,
                problems,
                seed=self.seed,
                reward_model=self._reward_model,
                state=state,
            )
            yield from self._logged(folder, stage, state, steps)
        finally:  # also when it is closed between two steps
            if REFERENCE in self.policy.model.peft_config:
                self.policy.remove_adapter(REFERENCE)
        self.policy.save_adapter(folder / "adapter")
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)

    def _logged(
        self,
        folder: Path,
        stage: Stage,
        state: TrainingState,
        steps: Iterator[tuple[StepRecord, list[Answer]]],
    ) -> Iterator[Event]:
        """Log every step and write the checkpoints."""
        saved = state.step
        try:
            for record, answers in steps:
                append_lines(folder / "rollouts.jsonl", [a.row(record.step) for a in answers])
                append_lines(folder / "steps.jsonl", [asdict(record)])
                if record.step % self.checkpoint_every == 0:
                    write_checkpoint(folder / CHECKPOINTS, state.step, *state.parts())
                    saved = state.step
                yield Event("step", stage.name, record.step, stage.steps, record=record)
        except GeneratorExit:  # left between two steps
            if state.step > saved:
                write_checkpoint(folder / CHECKPOINTS, state.step, *state.parts())
            raise

    # ---- the whole cascade -------------------------------------------------------------------

    def go(self, *, skip_preflight: bool = False) -> Iterator[Event]:
        """Evaluate the start, then train each stage and evaluate every domain again.

        Finished stages are loaded, not trained again; one that was cut off goes on from its newest
        checkpoint. Before a training a pre-flight looks at some answers and writes
        `preflight.json`; it raises PreflightRefused for a hopeless stage, unless `skip_preflight`
        lets it only report.
        """
        yield from self.reward_model()
        start = self.stage_folder(START) / "adapter"
        if (start / "adapter_config.json").exists():
            self.policy.load_adapter(start)
        else:
            self.policy.save_adapter(start)
        if not self.evaluated_already(START):
            yield from self.evaluate(START)
        for stage in self.stages:
            adapter = self.stage_folder(stage.name) / "adapter"
            if (adapter / "adapter_config.json").exists():  # written last
                self.policy.load_adapter(adapter)
            else:
                if not (self.stage_folder(stage.name) / CHECKPOINTS).exists():
                    yield self.checked(stage, skip_preflight)
                yield from self.train(stage, resume=True)
            if not self.evaluated_already(stage.name):
                yield from self.evaluate(stage.name)
        self.finish()
        yield Event("finished", self.stages[-1].name)

    def checked(self, stage: Stage, skip_preflight: bool) -> Event:
        """The pre-flight of a stage, on disk."""
        report = self.preflight(stage)
        folder = self.stage_folder(stage.name)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "preflight.json", report.to_json())
        if not skip_preflight:
            report.insist()
        return Event("pre-flight", stage.name, 1, 1, report=report)

    def evaluated_already(self, name: str) -> bool:
        names = [s.domain.name for s in self.evaluated]
        rows = {domain: read_rows(self.stage_folder(name), domain) for domain in names}
        return all(len(rows[domain]) == len(self.data.eval[domain]) for domain in names)

    def matrix(self) -> ForgettingMatrix:
        """The forgetting matrix of the rows evaluated so far."""
        matrix = matrix_of(read_stages(self.folder))
        if matrix is None:
            raise ValueError(f"{self.folder} holds no evaluation yet; evaluate the start first")
        return matrix

    def finish(self) -> None:
        """Write `matrix.json`, `matrix.png` and `report.html`."""
        from cascade_kit.plots import figure_png, plot_matrix
        from cascade_kit.report import write_report

        matrix = self.matrix()
        write_json(self.folder / "matrix.json", matrix.to_json())
        picture = plot_matrix(matrix, self.settings["labels"], stacked=True)
        (self.folder / "matrix.png").write_bytes(figure_png(picture))
        write_report(self.folder)


def run_settings(
    policy: Policy,
    data: DataSet,
    stages: Sequence[Stage],
    evaluated: Sequence[Stage],
    *,
    seed: int,
    samples: int = 1,
) -> dict[str, Any]:
    """The content of `run.json`: everything the numbers of a run depend on."""
    proxies = [s.domain.name for s in evaluated if not has_truth(data.eval[s.domain.name])]
    return {
        "model": policy.name,
        "labels": {name: f"{name} (proxy)" for name in proxies},  # judged by a reward model
        "policy": policy.describe(),
        "order": [s.name for s in stages],
        "stages": [s.settings() for s in stages],
        "evaluated": [s.settings() for s in evaluated],
        "eval_items": {s.domain.name: len(data.eval[s.domain.name]) for s in evaluated},
        "samples": samples,
        "pairs": [len(data.train_pairs), len(data.eval_pairs)],
        "data_hash": data_hash(data),
        "seed": seed,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "data": list(data.notes),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:  # bitsandbytes may be missing where nothing is quantised
            return "not installed"

    names = ("torch", "transformers", "peft", "bitsandbytes", "math-verify")
    return {"python": platform.python_version()} | {name: installed(name) for name in names}


def read_rows(folder: Path, domain: str) -> dict[str, EvalRow]:
    """The evaluation rows of one stage folder by item id."""
    rows = read_lines(folder / "eval" / f"{domain}.jsonl")
    return {row["id"]: EvalRow(**row) for row in rows}
