"""Rows with two answers of which one is better: chat pairs, HelpSteer2 and HelpSteer3."""

from collections.abc import Sequence
from dataclasses import replace

from cascade_kit.data_columns import Row, missing_words
from cascade_kit.data_messages import message, messages, only_turn, user_text
from cascade_kit.data_rows import Dropped
from cascade_kit.problem import PreferencePair

TURN_MARK = "<extra_id_1>"  # between the turns of HelpSteer2's longer conversations


def read_preference(row: Row) -> PreferencePair | Dropped:
    """Pairs as strings, as one message (`conversations` before it) or as lists of messages."""
    prompt = only_turn(_conversation(row))
    return _pair(row, prompt, _answer(row, "chosen"), _answer(row, "rejected"))


def _pair(row: Row, prompt: str | None, chosen: str, rejected: str) -> PreferencePair | Dropped:
    if prompt is None or TURN_MARK in prompt:
        return Dropped("a conversation of more than one user turn", row.name)
    if chosen == rejected:
        return Dropped("two answers that are the same", row.name)
    return PreferencePair(row.id, prompt, chosen, rejected)


def read_compared_answers(row: Row) -> PreferencePair | Dropped:
    """HelpSteer3, or the preference part of HelpSteer2: two answers and which is how much better.

    A negative number prefers the first answer; ties (0) are dropped, as in the paper.
    """
    column = "context" if "context" in row.values else "prompt"
    apart = "_" if "preference_strength" in row.values else ""
    answers = [row.text(f"response{apart}{i}") for i in (1, 2)]
    strength = row.number("preference_strength" if apart else "overall_preference")
    prompt = user_text(row, column)
    if strength == 0:
        return Dropped("a tie between the two answers", row.name)
    return _pair(row, prompt, *(answers if strength < 0 else reversed(answers)))


def pair_rated_answers(rows: Sequence[Row]) -> list[Row]:
    """HelpSteer2: the rated answers of a prompt become one row with the best and the worst of them.

    A prompt with a single answer gives a row without the second one's text, which is then dropped.
    """
    by_prompt: dict[str, list[Row]] = {}
    for row in rows:
        by_prompt.setdefault(row.text("prompt"), []).append(row)
    return [_best_and_worst(prompt, group) for prompt, group in by_prompt.items()]


def _best_and_worst(prompt: str, group: Sequence[Row]) -> Row:
    rated = sorted(group, key=lambda row: row.number("helpfulness"))
    worst, best = rated[0], rated[-1]
    values = {
        "prompt": prompt,
        "response1": best.text("response"),
        "response2": worst.text("response"),
        "overall_preference": worst.number("helpfulness") - best.number("helpfulness"),
    }
    return replace(group[0], values=values)


def _conversation(row: Row) -> list[tuple[str, str]]:
    """(role, text) of the turns before the answer."""
    chosen = row.values.get("chosen")
    if "prompt" in row.values or "conversations" in row.values:
        column = "prompt" if "prompt" in row.values else "conversations"
        if isinstance(row.values[column], list):
            return messages(row, column)
        return [("user", row.text(column))]
    if isinstance(chosen, list) and len(chosen) > 1:
        return messages(row, "chosen")[:-1]
    raise row.fault(missing_words(["prompt"], row.values))


def _answer(row: Row, column: str) -> str:
    value = row.value(column)
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return message(row, column, value)[1]
    return messages(row, column)[-1][1]
