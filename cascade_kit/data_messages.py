"""Chat messages in a column: `role` and `content`, or `from` and `value`."""

from typing import Any

from cascade_kit.data_columns import Row


def user_text(row: Row, column: str) -> str | None:
    """The one user turn of a column that is a text or a list of messages; None for several turns.

    A system text, where there is one, stands before the request: prompts are one user turn.
    """
    if isinstance(row.value(column), str):
        return row.text(column)
    return only_turn(messages(row, column))


def only_turn(turns: list[tuple[str, str]]) -> str | None:
    """The text of (role, text) turns if only one of them is not a system text, and a user's."""
    if [role for role, _ in turns if role != "system"] != ["user"]:
        return None
    return "\n\n".join(text for _, text in turns)


def messages(row: Row, column: str) -> list[tuple[str, str]]:
    value = row.value(column)
    if not isinstance(value, list):
        raise row.wrong_type(column, value, "a text, a message or a list of messages")
    if not value:
        raise row.fault(f"column {column!r} is empty; fill it or delete the row")
    return [message(row, column, entry) for entry in value]


def message(row: Row, column: str, message: Any) -> tuple[str, str]:
    """Role ("user", "assistant", "system", ...) and text of one message in either spelling."""
    wanted = "a message with role and content (or from and value)"
    if not isinstance(message, dict):
        raise row.wrong_type(column, message, wanted, inside=True)
    role = message.get("role", message.get("from"))
    text = message.get("content", message.get("value"))
    if not isinstance(role, str) or not isinstance(text, str):
        raise row.fault(f"column {column!r} needs {wanted}, both as text; correct the row")
    return {"human": "user", "gpt": "assistant"}.get(role, role), text
