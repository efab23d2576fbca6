r"""How a row of each public format becomes a Problem or a preference pair.

A reader takes one `Row` and gives a record, or a `Dropped` with the reason. The words of the
prompts are decided here: the user turn only, ending with the form in which the reward expects the
answer (`\boxed{}`, a python block, SEARCH/REPLACE blocks).
"""

import ast
import builtins
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cascade_kit.data_columns import Row, missing_words
from cascade_kit.data_patch import apply_gold_patch
from cascade_kit.domains.swe import ask_repair, fenced
from cascade_kit.problem import PreferencePair, Problem

PYTHON_BLOCK = "Answer with the whole function in one ```python block."
DEFAULT_TEST_RUN = "python -m pytest -q"


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


def _math_problem(row: Row, question: str, answer: str) -> Problem | Dropped:
    from cascade_kit.verifiers.math_answer import check_gold

    answer = answer.strip()
    try:
        check_gold(answer)
    except ValueError:
        return Dropped("a gold answer that cannot be parsed", row.name)
    prompt = _clean(question)
    if "\\boxed" not in prompt:
        prompt += "\nPut the final answer in \\boxed{}."
    return Problem(row.id, "math", prompt, {"answer": answer})


def read_instructions(row: Row) -> Problem | Dropped:
    """IFEval-like: one kwargs object a constraint; the keys that hold null are not used."""
    from cascade_kit.verifiers.ifeval import validate_constraints

    prompt, identifiers = row.text("prompt"), row.texts("instruction_id_list")
    arguments = _constraint_arguments(row, len(identifiers))
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
    text, tests = _clean(row.text("text", "prompt")), row.texts("test_list")
    if not tests:
        raise row.fault("column 'test_list' is empty; add an assert or delete the row")
    entry_point = called_function(tests[0], str(row.values.get("code", "")))
    if entry_point is None:
        return Dropped("a first assert that calls no function of one's own", row.name)
    hint = f"\nYour code should satisfy: {_clean(tests[0])}" if entry_point not in text else ""
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


def _parsed(source: str) -> ast.Module:
    """The syntax tree; an empty one for what this Python cannot parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # public solutions hold "\d" in plain strings
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):  # ValueError: a null byte
            return ast.Module([], [])


def read_function_stub(row: Row) -> Problem:
    """HumanEval-like: a header with docstring to complete, and a `check(candidate)`."""
    stub = row.text("prompt")
    return Problem(
        row.id,
        "code",
        f"Complete this Python function.\n{fenced(stub.strip(), 'python')}\n{PYTHON_BLOCK}",
        {
            "tests": row.text("test"),
            "entry_point": row.text("entry_point"),
            "setup": "",
            "format": "humaneval",
            "prompt_code": stub,
        },
    )


def read_repository_task(row: Row) -> Problem | Dropped:
    """mini-SWE: the issue and the files that the gold change touches are shown, nothing else."""
    issue, files = row.text("problem_statement"), row.files("buggy_tree")
    changes = _gold_changes(row, files)
    changed = [path for path, text in changes.items() if files.get(path) != text]
    if not changed:
        return Dropped("a gold change that changes nothing", row.name)
    gold = {path: text for path, text in {**files, **changes}.items() if text is not None}
    issue, shown = _clean(issue), [path for path in changed if path in files]
    return Problem(
        row.id,
        "swe",
        ask_repair(issue, files, shown),
        {
            "issue": issue,
            "files": files,
            "shown": shown,
            "gold_files": gold,
            "fail_to_pass": row.texts("FAIL_TO_PASS"),
            "pass_to_pass": row.texts("PASS_TO_PASS"),
            "run": row.text("run") if "run" in row.values else DEFAULT_TEST_RUN,
            "pythonpath": row.texts("pythonpath") if "pythonpath" in row.values else ["."],
        },
    )


def _gold_changes(row: Row, files: dict[str, str]) -> Mapping[str, str | None]:
    """The files of the gold change, as given or by applying the gold patch; None is deleted."""
    if "gold_files" in row.values:
        return row.files("gold_files")
    try:
        return apply_gold_patch(row.text("gold_patch"), files)
    except ValueError as fault:
        raise row.fault(
            f"column 'gold_patch' does not apply to 'buggy_tree' ({fault}); correct or delete "
            "the row"
        ) from None


def read_preference(row: Row) -> PreferencePair | Dropped:
    """Pairs as strings, as one message (`conversations` before it) or as lists of messages."""
    turns = _conversation(row)
    if [role for role, _ in turns if role != "system"] != ["user"]:
        return Dropped("a conversation of more than one user turn", row.name)
    chosen, rejected = _answer(row, "chosen"), _answer(row, "rejected")
    if chosen == rejected:
        return Dropped("two answers that are the same", row.name)
    # A system text, where there is one, stands before the request: prompts are one user turn.
    return PreferencePair(row.id, "\n\n".join(text for _, text in turns), chosen, rejected)


def _conversation(row: Row) -> list[tuple[str, str]]:
    """(role, text) of the turns before the answer."""
    chosen = row.values.get("chosen")
    if "prompt" in row.values or "conversations" in row.values:
        column = "prompt" if "prompt" in row.values else "conversations"
        if isinstance(row.values[column], list):
            return _messages(row, column)
        return [("user", row.text(column))]
    if isinstance(chosen, list) and len(chosen) > 1:
        return _messages(row, "chosen")[:-1]
    raise row.fault(missing_words(["prompt"], row.values))


def _answer(row: Row, column: str) -> str:
    value = row.value(column)
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _message(row, column, value)[1]
    return _messages(row, column)[-1][1]


def _messages(row: Row, column: str) -> list[tuple[str, str]]:
    value = row.value(column)
    if not isinstance(value, list):
        raise row.wrong_type(column, value, "a text, a message or a list of messages")
    if not value:
        raise row.fault(f"column {column!r} is empty; fill it or delete the row")
    return [_message(row, column, entry) for entry in value]


def _message(row: Row, column: str, message: Any) -> tuple[str, str]:
    """Role ("user", "assistant", "system", ...) and text of one message in either spelling."""
    wanted = "a message with role and content (or from and value)"
    if not isinstance(message, dict):
        raise row.wrong_type(column, message, wanted, inside=True)
    role = message.get("role", message.get("from"))
    text = message.get("content", message.get("value"))
    if not isinstance(role, str) or not isinstance(text, str):
        raise row.fault(f"column {column!r} needs {wanted}, both as text; correct the row")
    return {"human": "user", "gpt": "assistant"}.get(role, role), text


def _clean(text: str) -> str:
    return text.replace("\r\n", "\n").strip()
