"""Code rewards: does a program pass its tests?

`extract_code` finds the program in a completion, `run_tests` and `run_programs` give the verdict.
An answer runs in a process of its own inside the sandbox, its tests in another one, and only the
tests' process gives a verdict: see inside/judge.py for what an answer can and cannot do to it.

Objects of an answer's own classes stay in its process; the tests use them through stand-ins, only
where the tests name a class of the answer. Comparing two such objects is then the answer's own
`__eq__`, because that is what such tests are about; against plain data it has no say.

An answer that reaches for files, the network or other processes gets an error and goes on: it
fails only if its results are wrong, and harms nothing. Only an answer whose first failure is such
an error is called "forbidden".
"""

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from . import layers, pool, sandbox
from .code_extract import complete_program, extract_code
from .inside.instrument import count_asserts

__all__ = [
    "ProgramJob",
    "TestReport",
    "TestsJob",
    "complete_program",
    "extract_code",
    "run_programs",
    "run_tests",
    "run_tests_many",
]

CODE_LIMIT = 1_000_000  # characters
Status = Literal["passed", "failed", "timeout", "memory", "forbidden", "no code"]


@dataclass(frozen=True)
class TestReport:
    """The verdict on one answer. `passed` counts single tests; only all of them make a pass."""

    __test__ = False  # its name must not make pytest collect it

    status: Status
    passed: int
    total: int
    detail: str = ""  # for the log, never for the model: it may quote the tests


@dataclass(frozen=True)
class TestsJob:
    """A program and the Python tests that call it.

    `tests` is a list of independent pieces of code, or one text (then with a function
    `check(candidate)`, which is called here if the text does not do so). `setup` runs before them;
    its imports, functions and classes are known to the answer as well, so it holds no secrets.
    """

    __test__ = False
    code: str | None
    tests: Sequence[str] | str
    entry_point: str | None = None
    setup: str = ""


@dataclass(frozen=True)
class ProgramJob:
    """A program and pairs of standard input and expected standard output."""

    code: str | None
    io: Sequence[Mapping[str, str]]  # "stdin" and "stdout"


def run_tests(
    code: str | None,
    tests: Sequence[str] | str,
    entry_point: str | None = None,
    setup: str = "",
    *,
    cpu_seconds: float = 5,
    memory_mb: int = 512,
    allow_unsafe: bool = False,
) -> TestReport:
    """The verdict of Python tests on a program. Tests that do not parse raise ValueError."""
    job = TestsJob(code, tests, entry_point, setup)
    return grade(job, cpu_seconds=cpu_seconds, memory_mb=memory_mb, allow_unsafe=allow_unsafe)


def run_programs(
    code: str | None,
    io: Sequence[Mapping[str, str]],
    *,
    cpu_seconds: float = 5,
    memory_mb: int = 512,
    allow_unsafe: bool = False,
) -> TestReport:
    """The verdict on a program that reads standard input and writes standard output.

    Blanks at the ends of lines and empty lines at the end do not count; an exit code but 0 fails.
    """
    job = ProgramJob(code, io)
    return grade(job, cpu_seconds=cpu_seconds, memory_mb=memory_mb, allow_unsafe=allow_unsafe)


def run_tests_many(
    jobs: Sequence[TestsJob | ProgramJob],
    workers: int = 2,
    *,
    cpu_seconds: float = 5,
    memory_mb: int = 512,
    allow_unsafe: bool = False,
) -> list[TestReport]:
    """The verdicts on many programs, in input order; one sandboxed parent a worker."""
    with ThreadPoolExecutor(max_workers=max(1, workers)) as threads:
        futures = [
            threads.submit(
                grade, job, cpu_seconds=cpu_seconds, memory_mb=memory_mb, allow_unsafe=allow_unsafe
            )
            for job in jobs
        ]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def grade(
    job: TestsJob | ProgramJob,
    *,
    cpu_seconds: float = 5,
    memory_mb: int = 512,
    allow_unsafe: bool = False,
    layer: layers.Isolation | None = None,
) -> TestReport:
    """The verdict on one job; `cpu_seconds` is for all its tests together.

    An answer that only sleeps is stopped after as many seconds, whatever the machine's load; ten
    times as much wall clock is the backstop.
    """
    total, answer_part, tests_part = parts(job)
    if job.code is None:
        return TestReport("no code", 0, total, "the completion holds no Python code")
    if len(job.code) > CODE_LIMIT:
        return TestReport("failed", 0, total, f"more than {CODE_LIMIT} characters of code")
    layer = layer or sandbox.chosen_layer(allow_unsafe)
    limits = {
        "limits": {
            "cpu_seconds": cpu_seconds,
            "idle_seconds": cpu_seconds,
            "wall_seconds": sandbox.WALL_CLOCK_FACTOR * cpu_seconds,
            "memory_mb": 2 * memory_mb + 256,  # both processes and what they share, counted twice
            "processes": sandbox.PROCESS_LIMIT,
        },
        "process_limits": {
            "memory_mb": memory_mb,
            "cpu_seconds": cpu_seconds,
            "file_mb": pool.ANSWER_MB,
            "open_files": 64,
            "processes": layers.process_limit(layer, sandbox.PROCESS_LIMIT),
        },
    }
    verdict = pool.shared_pool(layer).verdict(limits, answer_part, tests_part)
    if "bad tests" in verdict:
        raise ValueError(f"{verdict['bad tests']}: mend the tests of this row")
    return TestReport(verdict["verdict"], verdict["passed"], total, verdict["detail"])


def parts(job: TestsJob | ProgramJob) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """(number of tests, what the answer's process is told, what the judging process is told)."""
    if isinstance(job, ProgramJob):
        if not job.io:
            raise ValueError("a program without a pair of input and output: give at least one")
        return (
            len(job.io),
            {"kind": "program", "code": job.code},
            {"kind": "program", "io": [dict(case) for case in job.io]},
        )
    whole = isinstance(job.tests, str)
    tests = [with_call_of_check(job.tests, job.entry_point)] if whole else list(job.tests)
    if not any(test.strip() for test in tests):
        raise ValueError("there are no tests, so nothing could fail: give at least one")
    setup = job.setup.replace("\r\n", "\n")
    tests = [test.replace("\r\n", "\n") for test in tests]
    return (
        count_asserts(tests[0]) if whole else len(tests),
        {"kind": "functions", "code": job.code, "setup": shared_setup(setup)},
        {
            "kind": "functions",
            "setup": setup,
            "tests": tests,
            "whole": whole,
            "entry_point": job.entry_point,
        },
    )


def with_call_of_check(tests: str, entry_point: str | None) -> str:
    """The tests, with a call of their function `check` at the end unless they have one."""
    try:
        body = ast.parse(tests).body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the tests do not parse: {error}: mend the tests of this row") from error
    has_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in body)
    calls = (node for node in body if isinstance(node, ast.Expr))
    called = any("check(" in ast.unparse(node) for node in calls)
    if has_check and not called:
        if not entry_point:
            raise ValueError("the tests define check(candidate): name the entry point to check")
        return f"{tests}\n\ncheck({entry_point})\n"
    return tests


def shared_setup(setup: str) -> str:
    """The definitions of a set-up that need nothing of the answer: the answer gets them too."""
    try:
        body = ast.parse(setup).body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the set-up does not parse: {error}: mend it in this row") from error
    kept: list[ast.stmt] = []
    known = set(dir(builtins))
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            known |= {(name.asname or name.name).partition(".")[0] for name in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            if set(names_needed_now(node)) - known:
                continue
            known.add(node.name)
        else:
            continue
        kept.append(node)
    return ast.unparse(ast.Module(kept, []))


def names_needed_now(node: ast.AST) -> Iterator[str]:
    """Names that a definition reads while it is being made: bases, decorators, defaults."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for name, value in ast.iter_fields(node):
        if is_function and name == "body":  # read only when it is called
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from names_needed_now(part)
