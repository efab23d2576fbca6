"""Stage panel: choose the settings of a session's stage and see what they cost before the run.

It only configures. Training is started by a cell, as a callback waits while a cell runs.
"""

from typing import Any

from cascade_kit.live.answers import control, page, sentence
from cascade_kit.stage import Stage

LABELS = {
    "steps": "Steps",
    "prompts": "Prompts a step",
    "answers": "Answers a prompt",
    "max_new_tokens": "Tokens an answer",
}
ELSEWHERE = (
    "Another stage needs its own session, open_session(NAME), and another seed its own run folder, "
    "open_session(NAME, seed=1, folder=FOLDER)."
)


def stage_panel(session: Any) -> Any:
    """Return a panel over `session.stage`: every change goes through `session.configure`.

    A value that the stage refuses is put back, with the reason. The costs are those of
    `session.costs()`, which may try one step the first time.
    """
    from ipywidgets import HTML, IntText, VBox

    controls = {
        name: control(IntText, label, value=getattr(session.stage, name))
        for name, label in LABELS.items()
    }
    answer, costs = HTML(), HTML()

    def change(name: str, value: int) -> None:
        stays = getattr(session.stage, name)
        if value == stays:
            return
        try:
            session.configure(**{name: value})
        except ValueError as error:
            controls[name].value = stays
            answer.value = page(sentence(f"Refused: {error}. {LABELS[name]} stays {stays}."))
            return
        show()

    def show() -> None:
        answer.value = page(sentence(stage_words(session.stage, session.run.seed)))
        try:
            costs.value = page(session.costs()._repr_html_())
        except ValueError as error:
            costs.value = page(sentence(f"This stage cannot run: {error}"))

    for name, widget in controls.items():
        widget.observe(lambda event, name=name: change(name, event["new"]), "value")
    show()
    where = page(sentence(session.sentence()), sentence(ELSEWHERE))
    return VBox([HTML(where), *controls.values(), answer, costs])


def stage_words(stage: Stage, seed: int) -> str:
    """Return what will be trained, in one sentence."""
    count = stage.steps * stage.prompts * stage.answers
    return (
        f"The next training of {stage.name} takes {stage.steps} steps of {stage.prompts} prompts "
        f"with {stage.answers} answers each: {count} answers of at most {stage.max_new_tokens} "
        f"tokens, seed {seed}."
    )
