"""What a notebook opens: one stage of the cascade, in the run folder that all notebooks share.

    session = open_session("math")           # says which stage it continues from
    live.watch(session.train())              # again after an interrupt: goes on where it stopped
    live.watch(session.evaluate())           # every row and domain that is missing
    session.matrix()

Nothing is computed before an iterator is run. The order is the kit's five stages; a stage of the
reader's own comes last.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from html import escape
from pathlib import Path
from typing import Any

from cascade_kit import settings
from cascade_kit.cascade import START, Event, Run, read_rows
from cascade_kit.checks import check_data, check_lengths, check_prompt_caps
from cascade_kit.forgetting import ForgettingMatrix
from cascade_kit.loading import load_policy
from cascade_kit.policy import REWARD_MODEL, Policy
from cascade_kit.preflight import Preflight
from cascade_kit.problem import Problem
from cascade_kit.run_data import stages_for, tier_of
from cascade_kit.run_files import write_json
from cascade_kit.session.answers import Reply, sample_replies
from cascade_kit.session.costs import (
    Basis,
    Costs,
    costs_of,
    note_evaluation,
    probed_basis,
    recorded_basis,
    recorded_evaluation,
)
from cascade_kit.session.data import (
    chosen_stage,
    recorded_stage,
    session_data,
    training_data,
    untrained_data,
)
from cascade_kit.session.folder import (
    check_untouched,
    is_finished,
    make_room,
    note_facts,
    prepared_run,
    read_facts,
    read_steps,
    stage_folders,
    stored_run,
    what_was_trained,
)
from cascade_kit.session.training import Training, how_trained, known_to_run, recorded
from cascade_kit.session.weights import draw_start, keeping_weights
from cascade_kit.stage import ORDER, Stage


def open_session(
    stage: str | Stage,
    *,
    folder: Path | str | None = None,
    problems: Sequence[Problem] = (),
    model: str = "micro",
    seed: int = 0,
    eval_items: int | None = None,
    again: bool = False,
) -> "Session":
    """Open a stage by name, or one of the reader's own, and say what it continues from.

    The policy comes from the newest finished stage before it in the order, else from the shipped
    start. A stage that is finished is loaded instead, unless `again` asks to train it anew.
    `problems` are those of an own stage, and every third is held out; without them its domain
    generates some. Raises ValueError before anything is written.
    """
    kit = {s.name: s for s in stages_for(model)}
    wanted = chosen_stage(stage, kit)
    place = Path(folder) if folder else settings.notebook_folder()
    stored = stored_run(place)
    evaluated = [*kit.values(), *([] if wanted.name in kit else [wanted])]
    data = session_data(wanted, evaluated, problems, eval_items)
    check_data(data, [], evaluated)
    policy = load_policy(model, seed=seed)
    run = prepared_run(place, stored, policy, data, wanted, evaluated, seed)
    return Session(run, wanted, again=again)


class Session:
    """One stage in the shared run folder, with the policy that it trains."""

    def __init__(self, run: Run, stage: Stage, *, again: bool = False):
        self._probes: dict[str, Basis] = {}  # stage -> one step of it that was tried
        self._begin(run, stage, again)

    def _begin(self, run: Run, stage: Stage, again: bool) -> None:
        """Take up a stage: write what the folder lacks, load the policy, say where it stands."""
        self.run = run
        self.stage = stage  # may be replaced before training; see `configure`
        self.name = stage.name
        self._again = again
        self._training: Training | None = None
        self._preflight: tuple[Stage, Preflight] | None = None
        self._own_problems = run.data.train[stage.name]
        run.folder.mkdir(parents=True, exist_ok=True)
        start = self.folders[START] / "adapter"
        if not is_finished(self.folders[START]):
            run.policy.save_adapter(start)
        self._write_run()
        if self.is_finished and not again:
            self.stage = recorded_stage(stage, self.facts.get("settings", {}))
            run.policy.load_adapter(self.folders[self.name] / "adapter")
        else:
            run.policy.load_adapter(self.folders[self.continues] / "adapter")
        print(self.sentence())

    # ---- where it stands ---------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self.run.policy

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def order(self) -> list[str]:
        return self.run.settings["order"]

    @property
    def folders(self) -> dict[str, Path]:
        return stage_folders(self.folder, self.order)

    @property
    def facts(self) -> dict[str, Any]:
        """How this stage was trained, as its folder says; empty if it was not."""
        return read_facts(self.folders[self.name])

    @property
    def finished(self) -> list[str]:
        """The start and the finished stages, in order: the rows of the matrix."""
        return [name for name, path in self.folders.items() if is_finished(path)]

    @property
    def is_finished(self) -> bool:
        return is_finished(self.folders[self.name])

    @property
    def continues(self) -> str:
        """The newest finished stage before this one; "sft" is the shipped start."""
        before = self.order[: self.order.index(self.name)]
        return ([START] + [name for name in before if name in self.finished])[-1]

    @property
    def _lacks_reward_model(self) -> bool:
        return not (self.folders["rlhf"] / "reward_model" / "reward_model.json").exists()

    def sentence(self) -> str:
        """Where this stage stands, in one sentence."""
        if self.is_finished and not self._again:
            steps = len(read_steps(self.folders[self.name]))
            return (
                f"{self.name} is finished ({steps} steps) and was loaded from {self.folder}; it "
                f"is not trained again unless you ask for it with again=True."
            )
        if self.continues == START:
            why = f"as {self.folder} holds no earlier stage that is finished"
            return f"{self.name} starts from the shipped start, {why}."
        why = f"the newest finished stage before it in {self.folder}"
        return f"{self.name} continues from {self.continues}, {why}."

    def configure(self, **changes: Any) -> Stage:
        """Change settings before training: `session.configure(steps=10)`. Returns the stage."""
        known = [f.name for f in fields(Stage) if f.name not in ("name", "domain")]
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise ValueError(f"a stage has no setting {unknown[0]!r}; choose from {known}")
        self.stage = replace(self.stage, **changes)
        return self.stage

    def choose(self, stage: str | None = None, *, seed: int | None = None) -> Stage:
        """Switch to another stage of the kit, or to another seed, in the same run folder.

        As `open_session` would, with the same sentence; a training that was left is closed. Another
        seed draws another start, and keeps this stage's settings; it is possible only while the
        folder holds nothing evaluated or trained. Raises ValueError before anything is changed.
        """
        old, kit = self.run, {s.name: s for s in self.run.evaluated if s.name in ORDER}
        name = self.name if stage is None else stage
        seed = old.seed if seed is None else seed
        if (name, seed) == (self.name, old.seed):
            return self.stage
        if name not in (self.name, *kit):
            raise ValueError(
                f"the kit has no stage {name!r}; choose from {', '.join(kit)}, or open one of your "
                "own with open_session(STAGE, problems=...)"
            )
        stays = name == self.name
        wanted = self.stage if stays else chosen_stage(name, kit)
        evaluated = old.evaluated if stays else list(kit.values())
        own = self._own_problems if stays else ()
        data = untrained_data(old.data, name, [s.name for s in evaluated], own)
        stored = stored_run(self.folder)
        if seed != old.seed:
            check_untouched(self.folder, name, seed)
            stored = {}
        run = prepared_run(self.folder, stored, self.policy, data, wanted, evaluated, seed)
        self._close_training("is closed")
        if seed != old.seed:
            draw_start(self.policy, seed)
            self.policy.save_adapter(self.folders[START] / "adapter")
        self._begin(run, wanted, False)
        return self.stage

    def problems(self, count: int = 5, domain: str | None = None) -> list[Problem]:
        """The first held-out problems of this stage's domain, or of another."""
        return list(self.run.data.eval[domain or self.name][:count])

    def __repr__(self) -> str:
        return f"Session {self.name} in {self.folder}: finished {', '.join(self.finished)}"

    def _repr_html_(self) -> str:
        rows = {
            "stage": self.name,
            "continues from": self.continues,
            "finished": ", ".join(self.finished),
            "run folder": self.folder,
        }
        cells = "".join(
            f"<tr><th scope='row'>{escape(k)}</th><td>{escape(str(v))}</td></tr>"
            for k, v in rows.items()
        )
        return f"<table><caption>Session</caption>{cells}</table>"

    # ---- training ----------------------------------------------------------------------------

    def preflight(self) -> Preflight:
        """What a few answers say about training this stage from where it would start.

        `train` refuses a stage whose last pre-flight refused it, at the same settings. The reward
        model of a stage that needs one is trained later, by `train`.
        """
        self._check_stage()
        own, tier = self._own_problems, tier_of(self.run.policy.name)
        self.run.data = training_data(self.run.data, self.stage, own, self.run.seed, tier)
        with self.weights_of(self.continues):
            self._preflight = self.stage, self.run.preflight(self.stage)
        return self._preflight[1]

    def train(self, *, again: bool = False, skip_preflight: bool = False) -> Iterator[Event]:
        """Train the stage; the reward model comes first if the stage needs one.

        A training that was left between two steps goes on exactly there, its earlier steps being
        shown first, as long as kernel and settings are the same; else it starts over. A finished
        stage is shown from its record. Later stages are moved aside, since they came from another
        start.
        """
        self._check_stage()
        self._check_seed()
        again, self._again = again or self._again, False
        resting = self._resting
        if resting and (again or not resting.can_go_on(self.stage)):
            self._close_training("starts over")
        if not self._resting:
            if self.is_finished and not again:
                print(self.sentence())
                yield from recorded(self.name, self.folders[self.name])
                return
            if self._preflight and self._preflight[0] == self.stage and not skip_preflight:
                self._preflight[1].insist()
            self._training = Training(self.stage, self.folders[self.name], self._train())
        yield from self._training.go_on()

    @property
    def _resting(self) -> Training | None:
        return None if self._training is None or self._training.ended else self._training

    def _check_stage(self) -> None:
        if self.stage.name != self.name:
            raise ValueError(
                f"this session is for {self.name!r}; open_session({self.stage.name!r}) opens the "
                "other stage"
            )

    def _check_seed(self) -> None:
        seed = stored_run(self.folder).get("seed", self.run.seed)
        if seed != self.run.seed:
            raise ValueError(
                f"another session gave {self.folder} the seed {seed}; open this one again with it: "
                f"open_session({self.name!r}, seed={seed})"
            )

    def _close_training(self, fate: str) -> None:
        """End a training that rests, and say so."""
        if self._resting:
            print(f"The training of {self.name} that was left {fate}.")
            self._resting.close()

    def _train(self) -> Iterator[Event]:
        """The work itself: from the stage before to a finished folder."""
        run, base = self.run, self.continues
        run.data = training_data(
            run.data, self.stage, self._own_problems, run.seed, tier_of(run.policy.name)
        )
        # A step cannot hold more prompts than there are; what is recorded is what is done.
        most = len(run.data.train[self.name])
        stage = replace(self.stage, prompts=min(self.stage.prompts, most))
        check_data(run.data, [stage], [stage])
        check_lengths(self.policy, run.data, [stage])
        check_prompt_caps(self.policy, run.data, [stage])
        moved = make_room(self.folder, self.order, self.name)
        if moved:
            print(moved)
        print(f"Training {self.name} from {base}.")
        self.policy.load_adapter(self.folders[base] / "adapter")
        run.stages = known_to_run(stage, run.evaluated, self.folders)
        if stage.needs_reward_model:
            if REWARD_MODEL in self.policy.model.peft_config and self._lacks_reward_model:
                self.policy.remove_adapter(REWARD_MODEL)  # of a training that was cut off
            yield from run.reward_model()
        folder, started = self.folders[self.name], time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "stage.json", how_trained(run, stage, base))
        self._write_run()
        yield from run.train(stage)
        seconds = round(time.perf_counter() - started, 1)
        note_facts(folder, state="finished", seconds=seconds)
        self._write_run()

    def _write_run(self) -> None:
        """Write `run.json`; its stages are those whose folders are there, as they were trained."""
        self.run.settings |= what_was_trained(self.run.settings, self.folders, self.name)
        write_json(self.folder / "run.json", self.run.settings)

    # ---- evaluation --------------------------------------------------------------------------

    def evaluate(self) -> Iterator[Event]:
        """Test every finished stage on every domain where that is missing; then write the matrix.

        Rows that are there are kept; this stage's own row is told in any case. Each domain is saved
        before the next one, so an evaluation that was left goes on where it stopped.
        """
        self._check_seed()
        rows = self.finished
        told = self.name if self.name in rows else self.continues
        if told != self.name:
            print(f"{self.name} is not finished, so it has no row yet.")
        domains = [s.name for s in self.run.evaluated]
        changed = not (self.folder / "report.html").exists()
        for row in rows:
            missing = [d for d in domains if not self._is_evaluated(row, d)]
            changed = changed or bool(missing)
            shown = domains if row == told else missing
            for done, domain in enumerate(shown, start=1):
                score = self._score(row, domain, domain in missing)
                yield Event("evaluated", row, done, len(shown), domain, score)
        if changed:
            self.run.finish()

    def _is_evaluated(self, row: str, domain: str) -> bool:
        wanted = [problem.id for problem in self.run.data.eval[domain]]
        return list(read_rows(self.folders[row], domain)) == wanted

    def _score(self, row: str, domain: str, missing: bool) -> float:
        if missing:
            with self.weights_of(row):
                started = time.perf_counter()
                (event,) = self.run.evaluate(row, [domain])
                note_evaluation(self.folders[row], domain, time.perf_counter() - started)
            return event.score
        scores = [item.score for item in read_rows(self.folders[row], domain).values()]
        return sum(scores) / len(scores)

    def matrix(self) -> ForgettingMatrix:
        """The forgetting matrix of all rows evaluated so far."""
        return self.run.matrix()

    # ---- looking at answers ------------------------------------------------------------------

    def weights_of(self, stage: str | None) -> contextlib.AbstractContextManager[None]:
        """Inside, the policy is that of a finished stage ("sft": the start); None changes nothing.

        Afterwards it is as it was before, in the middle of a training too.
        """
        if stage is None:
            return keeping_weights(self.policy)
        if stage not in self.finished:
            raise ValueError(f"{stage!r} is not finished; choose from {', '.join(self.finished)}")
        return keeping_weights(self.policy, self.folders[stage] / "adapter")

    def answers(
        self,
        problems: Sequence[Problem | str] | Problem | str,
        *,
        stage: str | None = None,
        samples: int = 1,
        draw: int = 0,
        temperature: float = 1.0,
        max_new_tokens: int | None = None,  # else as in the domain's evaluation
    ) -> list[list[Reply]]:
        """Sample answers of a finished stage, or of the policy as it is: `samples` a problem.

        Problems are scored, texts (a chat) are not. A stage's answers to held-out problems are
        those of its evaluation; another `draw` gives other ones. All stages get the same random
        numbers, so that before and after compare.
        """
        asked = [problems] if isinstance(problems, Problem | str) else list(problems)
        asked = [Problem(f"chat {p}", "", p) if isinstance(p, str) else p for p in asked]
        longest = max_new_tokens or self.stage.max_new_tokens
        known = {s.name: s for s in self.run.evaluated}
        if max_new_tokens:
            known = {name: replace(s, max_new_tokens=longest) for name, s in known.items()}
        with self.weights_of(stage):
            return sample_replies(
                self.policy, asked, known, stage=stage or "", samples=samples, seed=self.run.seed,
                draw=draw, temperature=temperature, max_new_tokens=longest,
            )  # fmt: skip

    # ---- costs -------------------------------------------------------------------------------

    def costs(self, stage: Stage | None = None) -> Costs:
        """What training this stage, or a variant of it, will take; see `Costs.basis`.

        From the steps that this folder has recorded of it, else from one step that is tried and
        thrown away, once a session.
        """
        stage, run = stage or self.stage, self.run
        basis = recorded_basis(self.folders[self.name]) or self._probes.get(self.name)
        if basis is None:
            problems = training_data(
                run.data, stage, self._own_problems, run.seed, tier_of(run.policy.name)
            ).train[self.name]
            with self.weights_of(None):
                basis = probed_basis(self.policy, stage, problems, run.seed)
            self._probes[self.name] = basis
        return costs_of(
            stage,
            basis,
            reward_model_missing=stage.needs_reward_model and self._lacks_reward_model,
            evaluation_seconds=recorded_evaluation(
                [self.folders[row] for row in self.finished], [s.name for s in run.evaluated]
            ),
        )
