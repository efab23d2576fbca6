"""Chat with any finished stage, and compare the answers of two."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from cascade_kit.live.answers import control, end_text, fault_text, page, sentence
from cascade_kit.problem import Problem, Score
from cascade_kit.report_html import table

NOBODY = "no second stage"
MOST_ANSWERS = 8


def chat(session: Any, prompts: Sequence[str | Problem] = ()) -> Any:
    """Return a panel that asks the start or a finished stage, or two of them at once.

    `session` has `finished` (their names) and `answers` (see Session); `prompts` are offered as
    examples, and an answer to an unchanged example Problem is scored. All stages get the same
    random numbers; another draw gives other ones.
    """
    from ipywidgets import HTML, BoundedIntText, Button, Dropdown, Textarea, VBox

    finished = list(session.finished)
    if not finished:
        return HTML(page(sentence("No stage can be asked yet; evaluate the start first.")))
    examples = {p.prompt if isinstance(p, Problem) else p: p for p in prompts}
    texts = list(examples)
    stage = control(Dropdown, "Stage", options=finished, value=finished[-1])
    second = control(Dropdown, "Compare with", options=[NOBODY, *finished])
    example = control(Dropdown, "Example", options=_shortened(texts))
    prompt = control(Textarea, "Prompt", rows=4, value=texts[0] if texts else "")
    prompt.layout.width = "99%"
    count = control(BoundedIntText, "Answers each", value=1, min=1, max=MOST_ANSWERS)
    draw = control(BoundedIntText, "Draw", value=0, min=0, max=1_000_000)
    ask = Button(description="Ask")
    shown = HTML(page(sentence("Write a prompt, then press Ask.")))

    def take_example(_: Any) -> None:
        if example.value is not None:
            prompt.value = texts[example.value]

    def answer(_: Any) -> None:
        if not prompt.value.strip():
            shown.value = page(sentence("The prompt is empty; write one, then press Ask."))
            return
        names = list(dict.fromkeys(n for n in (stage.value, second.value) if n != NOBODY))
        asked = examples.get(prompt.value, prompt.value)
        shown.value = page(sentence(f"Asking {' and '.join(names)} ..."))
        try:
            shown.value = page(answers_page(session, asked, names, count.value, draw.value))
        except Exception as error:  # shown, as a callback's traceback would be lost
            shown.value = page(fault_text(error))

    example.observe(take_example, "value")
    ask.on_click(answer)
    return VBox([stage, second, *[example] * bool(texts), prompt, count, draw, ask, shown])


def answers_page(
    session: Any, asked: str | Problem, stages: Sequence[str], samples: int = 1, draw: int = 0
) -> str:
    """Return the answers of one or more stages to a prompt in columns, escaped."""
    replies = {
        name: session.answers(asked, stage=name, samples=samples, draw=draw)[0] for name in stages
    }
    rows: list[list[str]] = []
    for sample in range(samples):
        number = f" {sample + 1}" if samples > 1 else ""
        column = [group[sample] for group in replies.values()]
        rows.append([f"answer{number}", *(reply.text for reply in column)])
        if column[0].score is not None:
            rows.append([f"verdict{number}", *(_verdict(reply.score) for reply in column)])
        rows.append([f"end{number}", *(_end(reply) for reply in column)])
    head = ("", *(f"after {name}" for name in replies))
    return sentence(replies_words(replies)) + table("Answers to the prompt above", head, rows)


def replies_words(replies: Mapping[str, Sequence[Any]]) -> str:
    """Return in one sentence who answered at what length, and whether two say the same."""
    lengths = {name: fmean(reply.tokens for reply in group) for name, group in replies.items()}
    words = " and ".join(f"{name} with {length:.0f} tokens" for name, length in lengths.items())
    said = [tuple(reply.text for reply in group) for group in replies.values()]
    average = " on average" * (len(said[0]) > 1)
    same = ("; they say the same" if said[0] == said[1] else "; they differ") if said[1:] else ""
    return f"Answered by {words}{average}{same}."


def _verdict(score: Score) -> str:
    return f"{score.value:.4g}: {score.why}" if score.why else f"{score.value:.4g}"


def _end(reply: Any) -> str:
    return f"{end_text(reply.stopped)} after {reply.tokens} tokens"


def _shortened(texts: Sequence[str], most: int = 70) -> list[tuple[str, int]]:
    lines = [" ".join(text.split()) for text in texts]
    return [
        (f"{i}: {line[:most]}{'...' * (len(line) > most)}", i - 1)
        for i, line in enumerate(lines, start=1)
    ]
