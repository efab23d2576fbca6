"""code: one Python function, 1 only if all its unit tests pass (paper, section 4.6.2).

Answers run in the sandbox, in a process of their own. One-line functions of the embedded model
are first tried with an evaluator of plain expressions, which runs nothing: it gives the same
verdict in microseconds, and it lets the small cascade work where no sandbox is to be had.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from cascade_kit import settings
from cascade_kit.domains import Domain, functions, problem_id
from cascade_kit.problem import Problem, Score


def generate(rng: random.Random, difficulty: int) -> Problem:
    """One one-line function to write, with four hidden asserts."""
    function = functions.draw(rng, difficulty)
    prompt = f"Write a Python function {function.header} that returns {function.words}."
    # The asserts follow from the prompt alone, so that equal prompts have equal tests.
    tests = function.asserts(random.Random(prompt))
    return Problem(
        id=problem_id("code", prompt),
        domain="code",
        prompt=prompt,
        target={
            "tests": tests,
            "entry_point": function.name,
            "solution": function.source(),
            "one_liner": True,
        },
    )


def reward(problem: Problem, completion: str) -> Score:
    """1 if every test passes, else 0; `passed` (weight 0) is the share of tests that do.

    >>> target = {"tests": ["assert f(2) == 3"], "entry_point": "f", "one_liner": True}
    >>> problem = Problem("c", "code", "Write f(x) that returns x plus 1.", target)
    >>> right, wrong = ("def f(x):\\n    return x + 1", "def f(x):\\n    return x + 2")
    >>> [reward(problem, text).value for text in (right, wrong, "no code")]
    [1.0, 0.0, 0.0]
    """
    return score_batch([problem], [completion])[0]


def score_batch(problems: Sequence[Problem], completions: Sequence[str]) -> list[Score]:
    """Scores of many answers, in order; those that need the sandbox run two at a time."""
    from cascade_kit.verifiers.python_tests import run_tests_many

    jobs = [tests_job(p, c) for p, c in zip(problems, completions, strict=True)]
    pairs = zip(problems, jobs, strict=True)
    reports = [evaluated(p.target, job.code, p.target.get("tests", ())) for p, job in pairs]
    rest = [i for i, report in enumerate(reports) if report is None]
    run = run_tests_many([jobs[i] for i in rest], allow_unsafe=settings.allow_unsafe())
    for i, report in zip(rest, run, strict=True):
        reports[i] = report
    return [score_of(report) for report in reports]


def run_asserts(target: Mapping[str, Any], code: str | None, asserts: Sequence[str]):
    """The report of assert lines on one program, by the evaluator if it can tell."""
    from cascade_kit.verifiers.python_tests import run_tests

    report = evaluated(target, code, asserts)
    return report or run_tests(code, asserts, allow_unsafe=settings.allow_unsafe())


def tests_job(problem: Problem, completion: str):
    """The program in a completion together with the problem's tests."""
    from cascade_kit.verifiers.python_tests import (
        ProgramJob,
        TestsJob,
        complete_program,
        extract_code,
    )

    target = problem.target
    if "io" in target:  # a program with standard input and output
        return ProgramJob(extract_code(completion), target["io"])
    entry_point = target.get("entry_point")
    if "prompt_code" in target:  # HumanEval: the answer may be the body alone
        code = complete_program(target["prompt_code"], completion, entry_point)
    else:
        code = extract_code(completion, entry_point)
    return TestsJob(code, target["tests"], entry_point, target.get("setup", ""))


def evaluated(target: Mapping[str, Any], code: str | None, tests: Sequence[str]):
    """The evaluator's verdict on a one-line function, or None where only a sandbox can tell.

    Without a sandbox, what the evaluator cannot read fails with that reason.
    """
    from cascade_kit.verifiers.expressions import grade_one_liners
    from cascade_kit.verifiers.sandbox import isolation

    if code is None or not target.get("one_liner"):
        return None
    report = grade_one_liners(code, tests)
    without_sandbox = isolation().name == "none" and not settings.allow_unsafe()
    return report if report.status != "forbidden" or without_sandbox else None


def score_of(report) -> Score:
    """The score that a test report stands for."""
    share = report.passed / report.total if report.total else 0.0
    value = float(report.status == "passed")
    return Score(value, {"all tests": value, "passed": share}, why=report.status)


CODE = Domain("code", generate, reward, score_batch)
