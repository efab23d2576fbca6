"""Verdicts on one-line functions without running them, where no sandbox is to be had.

`def f(a, b): return <expression>` is read, not run: see plain_expressions.py for what an expression
may hold. The verdict is the one that running the code would give, or "forbidden" with the reason
where the code holds anything else.
"""

import ast
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .plain_expressions import PLAIN_TYPES, Evaluation, Forbidden, OneLine
from .python_tests import TestReport

SOURCE_LIMIT = 10_000  # characters of code


def grade_one_liners(code: str | None, asserts: Sequence[str]) -> TestReport:
    """The verdict of lines such as `assert f(2, 3) == 5` on a file of one-line functions.

    >>> grade_one_liners("def f(a, b):\\n    return a + b", ["assert f(2, 3) == 5"]).status
    'passed'
    >>> grade_one_liners("import os", ["assert f(2, 3) == 5"]).status
    'forbidden'
    """
    total = len(asserts)
    if not total:
        raise ValueError("there are no tests, so nothing could fail: give at least one")
    if code is None:
        return TestReport("no code", 0, total, "the completion holds no Python code")
    passed, why = 0, ""
    try:
        functions = one_line_functions(code)
        for line in asserts:
            problem = failure(functions, line)
            passed += problem is None
            why = why or problem or ""
    except SyntaxError as error:
        return TestReport("failed", 0, total, f"SyntaxError: {error}")
    except Forbidden as error:
        return TestReport("forbidden", passed, total, str(error))
    return TestReport("passed" if passed == total else "failed", passed, total, why)


def evaluate_one_liner(code: str, calls: Sequence[str]) -> list[Any]:
    """The values of calls such as `f(2, 3)` on a file of one-line functions.

    Raises Forbidden for anything else than plain expressions, and what the expression itself
    raises (ZeroDivisionError, IndexError, ...).

    >>> evaluate_one_liner("def f(a, b): return max(a, b) * 2", ["f(2, 3)"])
    [6]
    """
    functions = one_line_functions(code)
    return [Evaluation(functions).value(ast.parse(call, mode="eval").body, {}) for call in calls]


def failure(functions: Mapping[str, OneLine], line: str) -> str | None:
    """Why an assert line does not hold, None if it does."""
    statements = ast.parse(line.strip()).body
    if len(statements) != 1 or not isinstance(statements[0], ast.Assert):
        raise Forbidden(f"not a single assert: {line.strip()[:80]}")
    try:
        holds = bool(Evaluation(functions).value(statements[0].test, {}))
    except RecursionError:
        raise Forbidden("an expression is nested too deep") from None
    except (ArithmeticError, LookupError, TypeError, ValueError, NameError) as error:
        return f"{line.strip()[:200]}: {type(error).__name__} {error}"
    return None if holds else f"{line.strip()[:200]}: AssertionError"


def one_line(node: ast.FunctionDef) -> OneLine:
    """A definition as one function of plain arguments and one expression."""
    arguments = node.args
    others = [*arguments.posonlyargs, *arguments.kwonlyargs, *arguments.defaults]
    if others or arguments.vararg or arguments.kwarg or node.decorator_list:
        raise Forbidden(f"{node.name}: only plain arguments are known")
    annotations = [node.returns, *(argument.annotation for argument in arguments.args)]
    if not all(map(_is_type_name, annotations)):
        raise Forbidden(f"{node.name}: only annotations like int or list are known")
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        raise Forbidden(f"{node.name}: its body is more than one return")
    names = tuple(argument.arg for argument in arguments.args)
    return OneLine(node.name, names, body[0].value or ast.Constant(None))


def _is_type_name(node: ast.expr | None) -> bool:
    names = {kind.__name__ for kind in PLAIN_TYPES}
    return node is None or (isinstance(node, ast.Name) and node.id in names)


def one_line_functions(code: str) -> dict[str, OneLine]:
    """The functions of a file that holds nothing else."""
    if len(code) > SOURCE_LIMIT:
        raise Forbidden(f"more than {SOURCE_LIMIT} characters of code")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<answer>", "exec", dont_inherit=True)  # finds more than parsing does
            body = ast.parse(code).body
    except SyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise Forbidden(f"unreadable code: {type(error).__name__}") from error
    functions = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = one_line(node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            raise Forbidden(f"line {node.lineno} is no one-line function")
    return functions
