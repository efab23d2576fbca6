"""Reward sandbox: write an answer to a problem and see the verdict that training would see."""

import json
import random
from collections.abc import Sequence
from typing import Any

from cascade_kit.domains import Domain, topics
from cascade_kit.domains.swe import fenced
from cascade_kit.live.answers import control, fault_text, page, sentence, text_block
from cascade_kit.micro.demonstrations import compose
from cascade_kit.problem import Problem, Score
from cascade_kit.report_html import folded, table
from cascade_kit.stage import Stage

GENERATED = 5  # problems offered when none are given


def reward_sandbox(stage: Stage | Domain, problems: Sequence[Problem] | None = None) -> Any:
    """Return a panel that scores what is typed, by the same call as training.

    Without `problems` it offers five generated training problems.
    """
    from ipywidgets import HTML, Button, Dropdown, HBox, Textarea, VBox

    domain = stage.domain if isinstance(stage, Stage) else stage
    offered = offered_problems(stage, problems)
    choice = control(Dropdown, "Problem", options=[(p.id, i) for i, p in enumerate(offered)])
    answer = control(Textarea, "Answer", placeholder="type or paste an answer", rows=6)
    answer.layout.width = "99%"
    fill, press = Button(description="Fill in a right answer"), Button(description="Score")
    fill.layout.width = "14em"
    task, verdict = HTML(), HTML()

    def show_problem(_: Any = None) -> None:
        problem = offered[choice.value]
        task.value = page(problem_page(problem))
        fill.disabled = right_answer(problem) is None
        verdict.value = page(sentence("Write an answer, then press Score."))

    def write_right_answer(_: Any) -> None:
        answer.value = right_answer(offered[choice.value]) or ""
        verdict.value = page(sentence("Press Score; then change something and score it again."))

    def score(_: Any) -> None:
        try:
            (found,) = domain.score([offered[choice.value]], [answer.value])
        except Exception as error:  # a reader's own reward may raise anything: all of it is shown
            verdict.value = page(fault_text(error))
            return
        verdict.value = page(score_page(found), _proxy_note(stage))

    choice.observe(show_problem, "value")
    fill.on_click(write_right_answer)
    press.on_click(score)
    show_problem()
    return VBox([choice, task, answer, HBox([fill, press]), verdict])


def offered_problems(
    stage: Stage | Domain, problems: Sequence[Problem] | None = None
) -> list[Problem]:
    """The problems given, else a few generated ones; ValueError if there are none."""
    if problems is None:
        if isinstance(stage, Stage):
            return stage.domain.problems("train", GENERATED, difficulty=stage.difficulty)
        return stage.problems("train", GENERATED)
    if not problems:
        raise ValueError("there is no problem to score; give at least one")
    return list(problems)


def problem_page(problem: Problem) -> str:
    """The prompt, and folded what only the reward may look at with a right answer to it."""
    known = [
        (name, value if isinstance(value, str) else json.dumps(value, default=str, indent=1))
        for name, value in problem.target.items()
    ]
    parts = [table("What the reward knows", ("name", "value"), known)] if known else []
    right = right_answer(problem)
    if right is not None:
        parts.append(text_block("A right answer", right))
    hidden = folded("What a right answer is (the model never sees this)", "".join(parts))
    turns = "\n\n".join(f"User: {user}\nAssistant: {said}" for user, said in problem.examples)
    shown = text_block("Worked examples before the prompt", turns) if turns else ""
    return shown + text_block("Prompt", problem.prompt) + (hidden if parts else "")


def right_answer(problem: Problem) -> str | None:
    """An answer that earns full reward, or None where the problem does not hold one."""
    target, rng = problem.target, random.Random(problem.id)
    if problem.domain == "math" and "answer" in target:
        return rf"\boxed{{{target['answer']}}}"
    if problem.domain == "code" and "solution" in target:
        return fenced(target["solution"], "python")
    if problem.domain == "swe" and "gold_files" in target:
        return _edits(target["files"], target["gold_files"])
    if problem.domain == "instruct" and "topic" in target:
        identifiers, arguments = target["instruction_id_list"], target["kwargs"]
        constraints = dict(zip(identifiers, arguments, strict=True))
        return compose(target["topic"], constraints, rng)
    if problem.domain == "rlhf" and "topic" in target:
        facts = topics.sentence(rng, target["topic"], 2)
        return f"{topics.OPENERS[0]} {facts} {topics.CLOSERS[0]}"
    return None


def _edits(files: dict[str, str], gold: dict[str, str]) -> str | None:
    """Whole files as SEARCH/REPLACE blocks; None if a file is new, empty or deleted."""
    changed = [path for path in {**files, **gold} if files.get(path) != gold.get(path)]
    if not all(files.get(path) and gold.get(path) for path in changed):
        return None
    return "\n".join(
        f"### {path}\n<<<<<<< SEARCH\n{files[path].removesuffix(chr(10))}\n=======\n"
        f"{gold[path].removesuffix(chr(10))}\n>>>>>>> REPLACE"
        for path in changed
    )


def score_page(score: Score) -> str:
    """A verdict in one sentence, then its value, success and parts as a table."""
    success = "unknown" if score.success is None else f"{score.success:.4g}"
    because = f" because: {score.why}" if score.why else ""
    said = f"Reward {score.value:.4g}, success {success}{because}."
    return sentence(said) + score._repr_html_()


def _proxy_note(stage: Stage | Domain) -> str:
    if not isinstance(stage, Stage) or not stage.needs_reward_model:
        return ""
    return sentence(
        "Only the evaluator knows this preference: in training a reward model stands in for it."
    )
