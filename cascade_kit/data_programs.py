"""TACO-like rows: a task with inputs and outputs, for a whole program or for one function."""

from typing import Any

from cascade_kit.data_columns import Row
from cascade_kit.data_rows import PYTHON_BLOCK, Dropped, clean
from cascade_kit.problem import Problem

PROGRAM_FORM = (
    "Read from standard input and write to standard output. "
    "Answer with the whole program in one ```python block."
)


def read_program_task(row: Row) -> Problem | Dropped:
    """`question`, and `input_output` with `inputs`, `outputs` and perhaps `fn_name`.

    With `fn_name`, each input is the list of the function's arguments; else inputs and outputs are
    what a program reads and writes. `input_output` may be JSON text, as in the public files.
    """
    question, tests = clean(row.text("question")), row.json("input_output")
    if not isinstance(tests, dict):
        raise row.wrong_type("input_output", tests, "an object with inputs and outputs")
    inputs, outputs = (_tests(row, tests, key) for key in ("inputs", "outputs"))
    if not inputs or len(inputs) != len(outputs):
        return Dropped("no tests, or inputs and outputs of different number", row.name)
    name = tests.get("fn_name")
    starter = str(row.values.get("starter_code") or "").strip()
    if not name:
        return _program(row, question, inputs, outputs)
    if "class " in starter:
        return Dropped("a task that asks for a method of a class", row.name)
    if not all(isinstance(arguments, list) for arguments in inputs):
        return Dropped("inputs that are not lists of arguments", row.name)
    return _function(row, question, str(name), inputs, outputs)


def _tests(row: Row, tests: dict[str, Any], key: str) -> list[Any]:
    value = tests.get(key)
    if not isinstance(value, list):
        raise row.fault(f"column 'input_output' needs a list {key!r}; correct or delete the row")
    return value


def _program(row: Row, question: str, inputs: list, outputs: list) -> Problem:
    pairs = [
        {"stdin": _lines(given), "stdout": _lines(wanted)}
        for given, wanted in zip(inputs, outputs, strict=True)
    ]
    target = {"io": pairs, "entry_point": None, "format": "program"}
    return Problem(row.id, "code", f"{question}\n{PROGRAM_FORM}", target)


def _lines(value: Any) -> str:
    """What is read or written: a text, or the lines of one."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _function(row: Row, question: str, name: str, inputs: list, outputs: list) -> Problem:
    # Public rows wrap an output in a list of one, but not always: both forms pass.
    tests = [
        f"assert {name}(*{given!r}) in {[wanted, *_unwrapped(wanted)]!r}"
        for given, wanted in zip(inputs, outputs, strict=True)
    ]
    target = {"tests": tests, "entry_point": name, "setup": "", "format": "asserts"}
    return Problem(row.id, "code", f"{question}\nName the function {name}.\n{PYTHON_BLOCK}", target)


def _unwrapped(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) and len(wanted) == 1 else []
