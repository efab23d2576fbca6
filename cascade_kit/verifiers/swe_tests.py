"""Runs FAIL_TO_PASS and PASS_TO_PASS of a patched repository in the sandbox, and the SWE reward.

What keeps the verdict honest. Test files, conftest.py files, pytest's settings and everything in
the tests' folder are the originals; new files that Python or pytest would load by themselves are
left out. Every test must be reported, once, in all three phases, in lines signed with a key that
is gone before patched code runs; printed text, `os._exit(0)`, skips and exit codes prove nothing.
Each test file also gets tests that must fail, under names that look like its own: where one passes
or is missing, the answer has replaced the judge. The tools (pytest, unittest, builtins) must be
unchanged after every test.

What remains. Test and patched code share one process, as pytest wants it. Code written against
this very file could find the reporting object in memory and use it, and a returned object may call
itself equal to everything. Nothing of that leaves the sandbox; it can only earn a wrong reward.
"""

import hashlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_kit.problem import Score
from cascade_kit.verifiers.patch_text import PatchFormat, Tags
from cascade_kit.verifiers.patches import Files, PatchVerdict, judge_patch, score_patch
from cascade_kit.verifiers.sandbox import Execution, run_command
from cascade_kit.verifiers.swe_tree import RUNNER_PACKAGES, node_id, plant, with_original_tests

RUNNER = Path(__file__).with_name("swe_runner.py")
CPU_SECONDS = 30.0  # of the whole run
TEST_CPU_SECONDS = 10.0  # of one test: CPU time, as a verdict must not depend on the load
TEST_WALL_SECONDS = 30  # of one test (pytest-timeout), for tests that only wait
MEMORY_MB = 1024
OUTPUT_KB = 4096
PYTEST_FAILED = 1  # pytest's exit code when tests failed, as the planted ones must


@dataclass(frozen=True)
class SweTask:
    """One repository with a fault, as a row of a data set gives it."""

    files: Files
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    gold_files: Files | None = None  # files the gold patch changes, whole
    pythonpath: tuple[str, ...] = (".",)
    packages: tuple[str, ...] = ()  # installed packages the repository needs, by import name
    symlinks: tuple[str, ...] = ()  # paths of the repository that are symbolic links

    @property
    def tests(self) -> tuple[str, ...]:
        return (*self.fail_to_pass, *self.pass_to_pass)


@dataclass(frozen=True)
class SweReport:
    """The outcome of one run of the tests."""

    passed: bool
    why: str
    outcomes: Mapping[str, str] = field(default_factory=dict)  # id -> passed, failed or missing
    seconds: float = 0.0


def task_from_row(row: Mapping[str, Any]) -> SweTask:
    """A mini-SWE row (`buggy_tree`) or a case row (`task.repo_files`). Raises ValueError."""
    task = row.get("task", row)
    files = task.get("buggy_tree", task.get("repo_files"))
    if not files:
        raise ValueError(f"row {row.get('id')!r} has no buggy_tree or repo_files; add the files")
    symlink = row.get("harness", {}).get("symlink", ())
    return SweTask(
        files=files,
        fail_to_pass=tuple(task.get("FAIL_TO_PASS", ())),
        pass_to_pass=tuple(task.get("PASS_TO_PASS", ())),
        gold_files=task.get("gold_files"),
        pythonpath=tuple(task.get("pythonpath", (".",))),
        packages=tuple(task.get("packages", ())),
        symlinks=tuple(symlink[:1]),
    )


def _job(key: bytes, *fields: Sequence[str]) -> bytes:
    """The job file: fields between NULs, their entries between line ends."""
    return "\x00".join([key.hex(), *("\n".join(field) for field in fields)]).encode()


def _package_folders() -> list[str]:
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _signed_records(stdout: str, key: bytes) -> tuple[list[list[str]], bool]:
    """(records in order, True if all marked lines are properly signed and numbered)."""
    records: list[list[str]] = []
    for line in stdout.split("\n"):
        _, marked, signed = line.rpartition("\x1e")
        if not marked:
            continue
        mac, _, body = signed.partition("\x1f")
        right = hashlib.blake2b(body.encode(), key=key, digest_size=16).hexdigest()
        number, *fields = body.split("\x1f")
        if not secrets.compare_digest(mac.encode(), right.encode()) or number != str(len(records)):
            return records, False
        records.append(fields)
    return records, True


def _outcomes(records: list[list[str]]) -> dict[str, dict[str, str]]:
    """node id -> phase -> outcome; a phase reported twice becomes "twice"."""
    phases: dict[str, dict[str, str]] = {}
    for kind, *fields in records:
        if kind == "phase":
            test, phase, outcome = fields
            seen = phases.setdefault(test, {})
            if phase != "subtest":
                seen[phase] = "twice" if phase in seen else outcome
            elif outcome == "failed":
                seen[phase] = outcome
    return phases


def _outcome(test: str, phases: Mapping[str, Mapping[str, str]]) -> str:
    """passed, failed or missing, for a test or all parameter sets of it."""
    runs = [found for name, found in phases.items() if test in (name, name.partition("[")[0])]
    if not runs:
        return "missing"
    complete = {"setup": "passed", "call": "passed", "teardown": "passed"}
    return "passed" if all(run == complete for run in runs) else "failed"


def _tampering(records: list[list[str]], planted: set[str], returncode: int | None) -> str:
    """Why a run in which everything passed is not believed; "" if it is."""
    changed = next((fields[1] for fields in records if fields[0] == "tampered"), "")
    if changed:
        return f"the answer changes {changed}"
    phases = _outcomes(records)
    for test in planted:
        if phases.get(test, {}).get("call", "missing") in ("passed", "missing", "twice"):
            return "a test that must fail did not fail"
    ended = records[-1][0] == "end" and records[-1][1] == str(PYTEST_FAILED)
    return "" if ended and returncode == PYTEST_FAILED else "the test run ended early"


def _report(
    execution: Execution, key: bytes, tests: Mapping[str, str], planted: set[str]
) -> SweReport:
    """The verdict on one execution; `tests` maps the row's ids to node ids."""
    records, genuine = _signed_records(execution.stdout, key)
    if not records or records[0][0] != "start":
        raise RuntimeError(
            "pytest did not start in the sandbox; `pip install pytest pytest-timeout` for "
            f"{sys.executable}: {execution.stderr.strip()[-300:]}"
        )
    phases = _outcomes(records)
    outcomes = {test: _outcome(node, phases) for test, node in tests.items()}
    failed = next((test for test, outcome in outcomes.items() if outcome != "passed"), None)
    if execution.status in ("timeout", "memory", "output"):
        why = execution.status
    elif ["stopped"] in records:
        why = f"timeout: {failed}"
    elif not genuine:
        why = "forbidden: the answer writes results of its own"
    elif tampering := _tampering(records, planted, execution.returncode):
        why = f"{outcomes[failed]}: {failed}" if failed else f"forbidden: {tampering}"
    else:
        why = f"{outcomes[failed]}: {failed}" if failed else "passed"
    return SweReport(why == "passed" and not failed, why, outcomes, execution.seconds)


def run_swe_tests(
    files: Files,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    *,
    original: Files | None = None,
    pythonpath: Sequence[str] = (".",),
    packages: Sequence[str] = (),
    cpu_seconds: float = CPU_SECONDS,
    memory_mb: int = MEMORY_MB,
    allow_unsafe: bool = False,
) -> SweReport:
    """Whether every listed test passes on the patched tree `files`.

    `original` is the tree before the patch; test files come from it. `packages` are the installed
    packages the repository needs, by import name; others cannot be imported. Raises ValueError for
    a test that is in no file, RuntimeError without pytest, and what `run_command` raises.
    """
    original = files if original is None else original
    tests = {test: node_id(test, original) for test in (*fail_to_pass, *pass_to_pass)}
    if not tests:
        raise ValueError("a row without FAIL_TO_PASS and PASS_TO_PASS has no tests to run")
    test_files = {node.partition("::")[0] for node in tests.values()}
    tree = with_original_tests(original, files, test_files, pythonpath)
    planted = plant(tree, test_files)
    paths = sorted({node.partition("::")[0] for node in {*tests.values(), *planted}})
    arguments = [
        "-q", "--tb=no", "--no-summary", "-o", "addopts=",
        "-p", "no:cacheprovider", "-p", "pytest_timeout",
        f"--timeout={TEST_WALL_SECONDS}", "--rootdir=.", *paths,
    ]  # fmt: skip
    key, runner = secrets.token_bytes(32), f"run_{secrets.token_hex(4)}.py"
    job = _job(
        key,
        pythonpath,
        _package_folders(),
        [*RUNNER_PACKAGES, *packages],
        [str(TEST_CPU_SECONDS), str(TEST_WALL_SECONDS)],
        arguments,
        [*tests.values(), *planted],
    )
    execution = run_command(
        [sys.executable, "-S", "-s", "-P", runner],
        {**tree, runner: RUNNER.read_text(encoding="utf-8"), "swe_job.txt": job},
        cpu_seconds=cpu_seconds,
        memory_mb=memory_mb,
        output_kb=OUTPUT_KB,
        allow_unsafe=allow_unsafe,
    )
    return _report(execution, key, tests, planted)


def _score(task: SweTask, verdict: PatchVerdict, threshold: float, allow_unsafe: bool) -> Score:
    def tests_pass(patched: Files) -> tuple[bool, str]:
        report = run_swe_tests(
            patched,
            task.fail_to_pass,
            task.pass_to_pass,
            original=task.files,
            pythonpath=task.pythonpath,
            packages=task.packages,
            allow_unsafe=allow_unsafe,
        )
        return report.passed, report.why

    return score_patch(verdict, tests_pass if task.tests else None, threshold=threshold)


def grade_swe(
    task: SweTask,
    completion: str,
    *,
    format: PatchFormat = "auto",
    tags: Tags = "required",
    threshold: float = 0.0,
    allow_unsafe: bool = False,
) -> Score:
    """The SWE reward of one answer: by its tests where the task has some, else by similarity."""
    verdict = judge_patch(
        task.files, completion, task.gold_files, format=format, tags=tags, symlinks=task.symlinks
    )
    return _score(task, verdict, threshold, allow_unsafe)


def completion_of(row: Mapping[str, Any]) -> str:
    """The completion of a case row; a long one is given as a template and a repeated line."""
    if row.get("completion") is not None:
        return row["completion"]
    recipe = row["completion_generator"]
    lines = (recipe["repeat"].replace("{i}", str(i)) for i in range(recipe["times"]))
    return recipe["template"].replace(recipe["placeholder"], "".join(lines))


def swe_verdict(row: Mapping[str, Any], *, allow_unsafe: bool = False) -> dict[str, Any]:
    """All that shared/cases/swe.jsonl expects of a case row, by its field names.

    format_ok, applies, similarity, tests_pass, resolved (None where they do not exist), swe_rl
    (the execution-free reward of SWE-RL: -1 or the similarity), reward, why, files (patched tree).
    """
    task, completion = task_from_row(row), completion_of(row)
    patch = judge_patch(
        task.files,
        completion,
        task.gold_files,
        format=row.get("format", "auto"),
        symlinks=task.symlinks,
    )
    score = _score(task, patch, 0.0, allow_unsafe)
    ran = bool(task.tests) and patch.applies
    return {
        "format_ok": patch.format_ok,
        "applies": patch.applies,
        "similarity": patch.similarity,
        "tests_pass": score.value == 1.0 if ran else None,
        "resolved": score.value == 1.0 if task.tests else None,
        "swe_rl": patch.similarity if patch.applies else -1.0,
        "reward": score.value,
        "why": score.why,
        "files": patch.files,
    }
