"""One row of a data file and typed access to its columns.

Every fault is a ValueError whose one line names file, line and column and says what to do. Nothing
here knows what the columns mean.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

JSON_NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
# Columns in which public rows carry their own name, in the order of preference.
NAME_COLUMNS = ("id", "task_id", "instance_id", "key")


@dataclass(frozen=True)
class Row:
    """One JSON object of a file and where it stands."""

    path: str
    line: int  # counted from 1
    values: Mapping[str, Any]
    id: str = ""  # file below the data folder and line, "mbpp/mbpp.jsonl:17": the problem's id
    unit: str = "line"  # what `line` counts: "row" of a table without lines, "item" of a generator

    @property
    def name(self) -> str:
        """The row's own id where it has one, else its line."""
        for column in NAME_COLUMNS:
            if isinstance(self.values.get(column), str | int):
                return str(self.values[column])
        return f"{self.unit} {self.line}"

    def fault(self, message: str) -> ValueError:
        return ValueError(f"{self.path}, {self.unit} {self.line}: {message}")

    def value(self, *columns: str) -> Any:
        """The value of the first of these columns that the row has."""
        for column in columns:
            if column in self.values:
                return self.values[column]
        raise self.fault(missing_words(columns, self.values))

    def text(self, *columns: str) -> str:
        """A text that is not blank."""
        value = self.value(*columns)
        column = next(column for column in columns if column in self.values)
        if not isinstance(value, str):
            raise self.wrong_type(column, value, "a text")
        if not value.strip():
            raise self.fault(f"column {column!r} is blank; fill it or delete the row")
        return value

    def text_or_number(self, column: str) -> str:
        """A text or a number, as text; it may be blank."""
        value = self.value(column)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.wrong_type(column, value, "a text or a number")
        return str(value)

    def number(self, *columns: str) -> float:
        """A number, not as text."""
        value = self.value(*columns)
        if isinstance(value, bool) or not isinstance(value, int | float):
            column = next(column for column in columns if column in self.values)
            raise self.wrong_type(column, value, "a number")
        return value

    def json(self, column: str) -> Any:
        """The value of a column that may be written as JSON text, as some public rows do."""
        value = self.value(column)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise self.fault(
                f"column {column!r} is text but not JSON; correct or delete the row"
            ) from None

    def texts(self, column: str) -> list[str]:
        """A list of texts; it may be empty."""
        value = self.value(column)
        if not isinstance(value, list):
            raise self.wrong_type(column, value, "a list of texts")
        for item in value:
            if not isinstance(item, str):
                raise self.wrong_type(column, item, "a list of texts", inside=True)
        return value

    def files(self, column: str) -> dict[str, str]:
        """An object of file paths and contents, at least one."""
        value = self.value(column)
        wanted = "an object of file paths and their text"
        if not isinstance(value, dict):
            raise self.wrong_type(column, value, wanted)
        for text in value.values():
            if not isinstance(text, str):
                raise self.wrong_type(column, text, wanted, inside=True)
        if not value:
            raise self.fault(f"column {column!r} is empty; fill it or delete the row")
        return value

    def wrong_type(
        self, column: str, value: Any, wanted: str, *, inside: bool = False
    ) -> ValueError:
        """The fault of a column (or of something inside it) that holds another type."""
        found = JSON_NAMES.get(type(value), type(value).__name__)
        where = f"something in column {column!r} is" if inside else f"column {column!r} holds"
        return self.fault(f"{where} {found}, but {wanted} is needed; correct or delete the row")


def missing_words(alternatives: Iterable[str], columns: Iterable[str]) -> str:
    """Says that a column is missing, names its nearest match and what to do."""
    alternatives, columns = list(alternatives), list(columns)
    wanted = " or ".join(repr(column) for column in alternatives)
    close = nearest(alternatives, columns)
    if close:
        return f"column {wanted} is missing; did you mean {close!r}? Then rename that column"
    held = ", ".join(columns[:12]) or "none"
    return (
        f"column {wanted} is missing (columns here: {held}); "
        "add it, or move the file out of the data folder"
    )


def nearest(wanted: Iterable[str], columns: Iterable[str]) -> str | None:
    """The column whose name is closest to one of the wanted names, if any is close."""
    by_lower_case = {column.lower(): column for column in columns}
    for name in wanted:
        close = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.8)
        if close:
            return by_lower_case[close[0]]
    return None
