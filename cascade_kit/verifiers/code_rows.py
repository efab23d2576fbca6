"""Rows of public code data sets as jobs of `python_tests`: how each set states its tests.

Known formats: HumanEval and HumanEvalFix (`prompt`, `test`, `entry_point`), MBPP (`test_list`),
QuixBugs (`pytest`), and rows with `tests` or `io` as in the cases of this project.
"""

import ast
import json
from collections.abc import Mapping
from typing import Any

from .code_extract import complete_program, definitions, extract_code, preamble
from .python_tests import ProgramJob, TestsJob

# The support files that the test files of QuixBugs import (its node.py and conftest.py).
QUIXBUGS_SETUP = """
class Node:
    def __init__(self, value=None, successor=None, successors=None, predecessors=None,
                 incoming_nodes=None, outgoing_nodes=None):
        self.value = value
        self.successor = successor
        self.successors = [] if successors is None else successors
        self.predecessors = [] if predecessors is None else predecessors
        self.incoming_nodes = [] if incoming_nodes is None else incoming_nodes
        self.outgoing_nodes = [] if outgoing_nodes is None else outgoing_nodes
"""
# What those files use of pytest, and a loop over their test functions.
QUIXBUGS_FRAME = """
import math, types

class _Skip(Exception): pass

class _Approx:
    def __init__(self, value, rel=1e-6, abs=1e-12):
        self.value, self.rel, self.abs = value, rel or 1e-6, abs or 1e-12
    def __eq__(self, other):
        if isinstance(self.value, (list, tuple)):
            parts = [_Approx(part, self.rel, self.abs) for part in self.value]
            return list(other) == parts
        return math.isclose(other, self.value, rel_tol=self.rel, abs_tol=self.abs)

def _skip(reason=""):
    raise _Skip(reason)

def _parametrize(names, rows):
    def decorate(function):
        function.rows = [row if "," in names else (row,) for row in rows]
        return function
    return decorate

pytest = types.SimpleNamespace(approx=_Approx, skip=_skip, use_correct=False, run_slow=False,
    mark=types.SimpleNamespace(parametrize=_parametrize, timeout=lambda *a, **k: lambda f: f))

def _run(name, index):
    function = globals()[name]
    try:
        function(*getattr(function, "rows", [()])[index])
    except _Skip:
        pass
"""


def job_of_row(row: Mapping[str, Any], completion: str) -> TestsJob | ProgramJob:
    """The job that grades `completion` on a row of a known data set.

    Raises ValueError, with the row's id, for a row that has no tests in a known form.
    """
    if "pytest" in row:
        return quixbugs_job(row, completion)
    if "test_list" in row:
        return mbpp_job(row, completion)
    if "test" in row and "prompt" in row:
        return humaneval_job(row, completion)
    task = row.get("ground_truth") or row.get("task") or row
    entry_point = {**row, **(row.get("task") or {})}.get("entry_point")
    code = extract_code(completion, entry_point)
    if task.get("io"):
        return ProgramJob(code, task["io"])
    if task.get("tests"):
        return TestsJob(code, task["tests"], entry_point, task.get("setup", ""))
    name = row.get("id", row.get("task_id", "?"))
    raise ValueError(f"row {name}: no tests; give `tests`, `io`, `test_list`, `test` or `pytest`")


def humaneval_job(row: Mapping[str, Any], completion: str) -> TestsJob:
    """HumanEval: helpers of the prompt are the tests' own, so that an answer cannot swap them."""
    prompt, name = row["prompt"], row["entry_point"]
    code = complete_program(prompt, completion, name)
    return TestsJob(code, row["test"], name, preamble(prompt, name))


def mbpp_job(row: Mapping[str, Any], completion: str) -> TestsJob:
    """MBPP: the asserts name the function; there is no entry point of its own."""
    tests = [*row["test_list"], *row.get("challenge_test_list", ())]
    name = called_name(tests[0], row.get("code", ""))
    return TestsJob(extract_code(completion, name), tests, name, row.get("test_setup_code", ""))


def called_name(test: str, reference: str) -> str | None:
    """The function that a test calls: one that the reference defines, else the first call."""
    calls = [node.func for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    names = [function.id for function in calls if isinstance(function, ast.Name)]
    known = [name for name in names if name in definitions(reference.replace("\r\n", "\n"))]
    return (known or names or [None])[0]


def quixbugs_job(row: Mapping[str, Any], completion: str) -> TestsJob:
    """QuixBugs: the test file without its imports, one test for each case of each function."""
    body = [
        node
        for node in ast.parse(row["pytest"]).body
        if not isinstance(node, (ast.Import, ast.ImportFrom)) and not _chooses_program(node)
    ]
    lines = (row["json_testcases"] or "").splitlines()
    cases = [json.loads(line) for line in lines if line.strip()]
    cases = [[given if isinstance(given, list) else [given], wanted] for given, wanted in cases]
    load = f"def load_json_testcases(name): return {cases!r}\n"
    frame = QUIXBUGS_FRAME + load + ast.unparse(ast.Module(body, []))
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    tests = [
        f"_run({function.name!r}, {index})"
        for function in functions
        if function.name.startswith("test")
        for index in range(len(cases) if function.decorator_list and cases else 1)
    ]
    tests[0] = f"{frame}\n{tests[0]}"
    code = extract_code(completion, row["name"])
    return TestsJob(code, tests, row["name"], QUIXBUGS_SETUP)


def _chooses_program(node: ast.stmt) -> bool:
    """`if pytest.use_correct: from ... import f`: here the name comes from the answer."""
    return isinstance(node, ast.If) and "use_correct" in ast.unparse(node.test)
