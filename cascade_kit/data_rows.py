r"""How a row of each public format becomes a Problem or a preference pair.

A reader takes one `Row` and gives a record, or a `Dropped` with the reason. The words of the
prompts are decided here: the user turn only, ending with the form in which the reward expects the
answer (`\boxed{}`, a python block). Preference pairs, programs with standard input and repositories
have readers of their own: data_preferences.py, data_programs.py, data_repositories.py.
"""

import ast
import builtins
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cascade_kit.data_columns import Row, nearest
from cascade_kit.data_messages import user_text
from cascade_kit.domains.swe import fenced
from cascade_kit.problem import PreferencePair, Problem

BOXED = "Put the final answer in \\boxed{}."
STUB = "Complete this Python function."
PYTHON_BLOCK = "Answer with the whole function in one ```python block."


@dataclass(frozen=True)
class Dropped:
    """A row that was read and left out."""

    reason: str  # completes "3 rows dropped: ..."
    name: str  # the row's own id or its line
    prompt_tokens: int | None = None  # for rows over the token cap


Reader = Callable[[Row], "Problem | PreferencePair | Dropped"]


def read_question(row: Row) -> Problem | Dropped:
    """GSM8K-like: the gold answer is the whole column or what follows the last `####` in it."""
    return _math_problem(row, row.text("question"), row.text_or_number("answer").split("####")[-1])


def read_competition_problem(row: Row) -> Problem | Dropped:
    """MATH-like: `problem` and a final `answer` in LaTeX."""
    return _math_problem(row, row.text("problem"), row.text_or_number("answer"))


def read_worked_solution(row: Row) -> Problem | Dropped:
    """MATH as first published: the answer is the last box of the worked solution."""
    from cascade_kit.verifiers.math_extract import extract_answer

    answer = extract_answer(row.text("solution"), "boxed")
    if answer is None:
        return Dropped("a solution without \\boxed{}", row.name)
    return _math_problem(row, row.text("problem"), answer)


def read_asked_question(row: Row) -> Problem | Dropped:
    """The plain table that a teacher has: `prompt` and the final `answer`."""
    return _math_problem(row, row.text("prompt"), row.text_or_number("answer"))


def read_gym_item(row: Row) -> Problem:
    """reasoning-gym: the task's own scorer judges what the answer has in its box."""
    prompt = f"{clean(row.text('question'))}\n{BOXED}"
    target = {"gym_task": row.text("gym_task"), "gym_entry": row.value("gym_entry")}
    return Problem(row.id, "math", prompt, target)


def _math_problem(row: Row, question: str, answer: str) -> Problem | Dropped:
    from cascade_kit.verifiers.math_answer import check_gold

    answer = answer.strip()
    try:
        check_gold(answer)
    except ValueError:
        return Dropped("a gold answer that cannot be parsed", row.name)
    prompt = clean(question)
    if "\\boxed" not in prompt:
        prompt += f"\n{BOXED}"
    return Problem(row.id, "math", prompt, {"answer": answer})


def read_instructions(row: Row) -> Problem | Dropped:
    """IFEval-like: one kwargs object a constraint; the keys that hold null are not used."""
    from cascade_kit.verifiers.ifeval import CONSTRAINTS, validate_constraints

    prompt, identifiers = user_text(row, "prompt"), row.texts("instruction_id_list")
    arguments = _constraint_arguments(row, len(identifiers))
    if prompt is None:
        return Dropped("a conversation of more than one user turn", row.name)
    unknown = next((name for name in identifiers if name not in CONSTRAINTS), None)
    if unknown is not None:
        close = nearest([unknown], CONSTRAINTS)
        hint = f", nearest: {close}" if close else ""
        return Dropped(f"a constraint without a checker ({unknown}{hint})", row.name)
    try:
        validate_constraints(identifiers, arguments, prompt=prompt)
    except ValueError:
        return Dropped("constraints that contradict each other or cannot be checked", row.name)
    target = {"instruction_id_list": identifiers, "kwargs": arguments}
    return Problem(row.id, "instruct", prompt, target)


def _constraint_arguments(row: Row, count: int) -> list[dict[str, Any]]:
    value, wanted = row.value("kwargs"), "a list of objects, one a constraint,"
    if not isinstance(value, list):
        raise row.wrong_type("kwargs", value, wanted)
    if len(value) != count or not count:
        raise row.fault(
            f"column 'kwargs' has {len(value)} entries for {count} constraints in "
            "'instruction_id_list'; give one object a constraint, at least one"
        )
    for entry in value:
        if entry is not None and not isinstance(entry, dict):
            raise row.wrong_type("kwargs", entry, wanted, inside=True)
    return [
        {key: item for key, item in (entry or {}).items() if item is not None} for entry in value
    ]


def read_assert_task(row: Row) -> Problem | Dropped:
    """MBPP-like: the first assert is shown, since the text does not name the function."""
    text, tests = clean(row.text("text", "prompt")), row.texts("test_list")
    if not tests:
        raise row.fault("column 'test_list' is empty; add an assert or delete the row")
    if not all(compiles(test) for test in tests):
        return Dropped("tests that are not Python", row.name)
    entry_point = called_function(tests[0], str(row.values.get("code", "")))
    if entry_point is None:
        return Dropped("a first assert that calls no function of one's own", row.name)
    hint = f"\nYour code should satisfy: {clean(tests[0])}" if entry_point not in text else ""
    setup = row.texts("test_imports") if "test_imports" in row.values else []
    target = {
        "tests": tests,
        "entry_point": entry_point,
        "setup": "\n".join([*setup, str(row.values.get("test_setup_code") or "")]).strip(),
        "format": "asserts",
    }
    # Rows made for the embedded model: their answers can be checked without a sandbox.
    if row.values.get("one_liner") is True:
        target["one_liner"] = True
    return Problem(row.id, "code", f"{text}{hint}\n{PYTHON_BLOCK}", target)


def called_function(test: str, solution: str = "") -> str | None:
    """The function that an assert tests: one that the solution defines, else no builtin."""
    calls = [node.func for node in ast.walk(_parsed(test)) if isinstance(node, ast.Call)]
    names = [call.id for call in calls if isinstance(call, ast.Name)]
    defined = {n.name for n in _parsed(solution).body if isinstance(n, ast.FunctionDef)}
    own = [n for n in names if n in defined] or [n for n in names if not hasattr(builtins, n)]
    return own[0] if own else None


def compiles(source: str) -> bool:
    """Whether this Python can parse a text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError):  # ValueError: a null byte
        return False
    return True


def _parsed(source: str) -> ast.Module:
    """The syntax tree; an empty one for what this Python cannot parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # public solutions hold "\d" in plain strings
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):  # ValueError: a null byte
            return ast.Module([], [])


def read_function_stub(row: Row) -> Problem | Dropped:
    """HumanEval-like: a header with docstring to complete, and a `check(candidate)`."""
    stub, entry_point = row.text("prompt"), row.text("entry_point")
    if not compiles(row.text("test")):
        return Dropped("tests that are not Python", row.name)
    if f"def {entry_point}" not in stub:
        return Dropped("a prompt that does not begin the function it names", row.name)
    return Problem(
        row.id,
        "code",
        f"{STUB}\n{fenced(stub.strip(), 'python')}\n{PYTHON_BLOCK}",
        {
            "tests": row.text("test"),
            "entry_point": entry_point,
            "setup": "",
            "format": "humaneval",
            "prompt_code": stub,
        },
    )


def clean(text: str) -> str:
    return text.replace("\r\n", "\n").strip()
