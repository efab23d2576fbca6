"""Stage panel: choose a stage, its settings and the seed, and see what they cost before the run.

It only configures. Training is started by a cell, as a callback waits while a cell runs.
"""

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from cascade_kit.live.answers import control, page, sentence
from cascade_kit.stage import ORDER, Stage

LABELS = {
    "stage": "Stage",
    "steps": "Steps",
    "prompts": "Prompts a step",
    "answers": "Answers a prompt",
    "max_new_tokens": "Tokens an answer",
    "seed": "Seed",
}
LARGEST_SEED = 2**31 - 1


def stage_panel(session: Any) -> Any:
    """Return a panel over a session: changes go through its `choose` and `configure`.

    A value that the session refuses is put back, with the reason. The costs are those of
    `session.costs()`, which may try one step the first time.
    """
    from ipywidgets import HTML, VBox

    controls = stage_controls(session)
    where, answer, costs = HTML(), HTML(), HTML()

    def change(name: str, value: Any) -> None:
        stays = current(session, name)
        if value == stays:
            return
        try:
            said = put(session, name, value)
        except ValueError as error:
            controls[name].value = stays
            answer.value = page(sentence(f"Refused: {error}. {LABELS[name]} stays {stays}."))
            return
        show(said)

    def show(said: str) -> None:
        for name, widget in controls.items():
            widget.value = current(session, name)  # another stage brings its own settings
        where.value = page(*(sentence(line) for line in said.splitlines()))
        answer.value = page(sentence(stage_words(session.stage, session.run.seed)))
        try:
            costs.value = page(session.costs()._repr_html_())
        except ValueError as error:
            costs.value = page(sentence(f"This stage cannot run: {error}"))

    for name, widget in controls.items():
        widget.observe(lambda event, name=name: change(name, event["new"]), "value")
    show(session.sentence())
    return VBox([where, *controls.values(), answer, costs])


def stage_controls(session: Any) -> dict[str, Any]:
    """Return the labelled controls by the name of what they set."""
    from ipywidgets import BoundedIntText, Dropdown, IntText

    stages = [*([] if session.name in ORDER else [session.name]), *ORDER]  # an own stage first
    kinds = {
        "stage": (Dropdown, {"options": stages}),
        "seed": (BoundedIntText, {"min": 0, "max": LARGEST_SEED}),
    }
    controls = {}
    for name, label in LABELS.items():
        kind, limits = kinds.get(name, (IntText, {}))
        controls[name] = control(kind, label, value=current(session, name), **limits)
    return controls


def current(session: Any, name: str) -> Any:
    """Return the session's value of what a control sets."""
    if name == "stage":
        return session.name
    return session.run.seed if name == "seed" else getattr(session.stage, name)


def put(session: Any, name: str, value: Any) -> str:
    """Set one value and return what the session says; ValueError if it refuses."""
    if name not in ("stage", "seed"):
        session.configure(**{name: value})
        return session.sentence()
    with redirect_stdout(StringIO()) as said:  # in a callback, prints go to no cell
        session.choose(**{name: value})
    return said.getvalue()


def stage_words(stage: Stage, seed: int) -> str:
    """Return what will be trained, in one sentence."""
    count = stage.steps * stage.prompts * stage.answers
    return (
        f"The next training of {stage.name} takes {stage.steps} steps of {stage.prompts} prompts "
        f"with {stage.answers} answers each: {count} answers of at most {stage.max_new_tokens} "
        f"tokens, seed {seed}."
    )
