"""swe_tests: real test runs in the sandbox, answers that attack the judge, the shared cases."""

import json
import os
import time
from pathlib import Path

import pytest

from cascade_kit.verifiers import swe_tests
from cascade_kit.verifiers.sandbox import isolation
from cascade_kit.verifiers.swe_tests import (
    grade_swe,
    run_swe_tests,
    task_from_row,
)
from cascade_kit.verifiers.swe_tree import node_id, plant, with_original_tests

SHARED = Path(
    os.environ.get("CASCADE_SHARED", Path(__file__).resolve().parents[1].parent / "shared")
)
CALC = """def mean(xs):
    total = 0
    for x in xs:
        total += x
    return total / len(xs)


def clamp(x, lo, hi):
    return min(lo, max(x, hi))
"""
BODY = "return min(lo, max(x, hi))"
GOOD = CALC.replace(BODY, "return max(lo, min(x, hi))")
TESTS = """import unittest

import pytest

from calc import clamp, mean


def test_inside():
    assert clamp(5, 0, 10) == 5


@pytest.mark.parametrize("x", [11, 12])
def test_high(x):
    assert clamp(x, 0, 10) == 10


class TestMean(unittest.TestCase):
    def test_mean(self):
        for x in (1, 2):
            with self.subTest(x=x):
                self.assertEqual(mean([x]), x)
"""
BASE = {"calc.py": CALC, "tests/test_calc.py": TESTS}
FAIL = ["tests.test_calc::test_inside", "tests/test_calc.py::test_high"]
PASS = ["tests.test_calc.TestMean::test_mean"]

needs_sandbox = pytest.mark.skipif(
    isolation().name == "none", reason="no isolation layer works here"
)


def run(calc: str, files: dict[str, str] | None = None, **options) -> swe_tests.SweReport:
    return run_swe_tests(
        {**BASE, "calc.py": calc, **(files or {})}, FAIL, PASS, original=BASE, **options
    )


def rows(name: str) -> list[dict]:
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip("no shared data: set CASCADE_SHARED to the folder that holds it")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---- the tree -----------------------------------------------------------------------------------


def test_node_ids():
    files = {"tests/test_a.py": "", "src/tests/test_b.py": ""}
    assert node_id("tests.test_a::t", files) == "tests/test_a.py::t"
    assert node_id("tests.test_a.C.D::t[x.y::z]", files) == "tests/test_a.py::C::D::t[x.y::z]"
    assert node_id("tests/test_a.py::C::t", files) == "tests/test_a.py::C::t"
    with pytest.raises(ValueError, match="is in no file of the tree"):
        node_id("tests.test_c::t", files)


def test_what_decides_the_tests_is_put_back():
    files = {"a.py": "1", "tests/test_a.py": "t", "tests/data.txt": "d", "conftest.py": "c"}
    changes = {
        "a.py": "2", "tests/test_a.py": "", "tests/data.txt": "", "conftest.py": "",
        "tests/new.py": "", "pytest.ini": "", "b/conftest.py": "", "sitecustomize.py": "",
        "pytest.py": "", "_pytest/x.py": "", "unittest/__init__.py": "", "src/json.py": "",
        "__pycache__/a.pyc": "", "b.py": "new", "docs/x.txt": "new", "pkg/json.py": "new",
    }  # fmt: skip
    tree = with_original_tests(files, {**files, **changes}, ["tests/test_a.py"], (".", "src"))
    new = {"a.py": "2", "b.py": "new", "docs/x.txt": "new", "pkg/json.py": "new"}
    assert tree == {**files, **new}
    gone = with_original_tests(files, {"a.py": "2"}, ["tests/test_a.py"])
    assert gone == {**files, "a.py": "2"}


def test_planted_tests_are_named_like_the_others_and_beside_marked_files():
    tree = {"tests/test_a.py": TESTS, "tests/test_b.py": "pytestmark = 1\ndef test_x(): pass\n"}
    planted = plant(tree, ["tests/test_a.py", "tests/test_b.py"])
    assert len(planted) == 6
    assert tree["tests/test_b.py"] == "pytestmark = 1\ndef test_x(): pass\n"
    assert len(tree) == 3
    assert tree["tests/test_a.py"].startswith(TESTS)


# ---- runs ---------------------------------------------------------------------------------------


@needs_sandbox
def test_right_and_wrong_patches():
    right = run(GOOD)
    assert (right.passed, right.why) == (True, "passed")
    assert set(right.outcomes.values()) == {"passed"}
    wrong = run(CALC)
    assert not wrong.passed
    assert wrong.outcomes[FAIL[0]] == wrong.outcomes[FAIL[1]] == "failed"
    assert wrong.outcomes[PASS[0]] == "passed"
    half = run(GOOD.replace("min(x, hi)", "min(x, 11)"))
    assert half.outcomes[FAIL[1]] == "failed"  # one of two parameter sets
    assert run(GOOD.replace("total / len(xs)", "total / len(xs) + (xs == [2])")).passed is False


@needs_sandbox
def test_harmless_answers_pass():
    chatty = "import sys\nprint('x' * 999)\nsys.stderr.write('y')\n" + GOOD
    assert run(chatty).why == "passed"
    extra = {"tests/test_calc.py": "", "conftest.py": "1/0", "setup.cfg": "[tool:pytest]\nx=1"}
    assert run(GOOD, extra).why == "passed"


ATTACKS = {
    "exit": "import os\nos._exit(0)\n",
    "system exit": "import sys\nsys.exit(0)\n",
    "exit at the end": "import atexit, os\natexit.register(lambda: os._exit(0))\n",
    "skip": "import pytest\npytest.skip('later', allow_module_level=True)\n",
    "runtest": "import _pytest.python as p\np.Function.runtest = lambda self: None\n",
    "runtest by name": (
        "import _pytest.python as p\no = p.Function.runtest\n"
        "p.Function.runtest = lambda s: 'mean' in s.nodeid and o(s) or None\n"
    ),
    "code object": (
        "import _pytest.python as p\ndef f(self):\n    pass\n"
        "p.Function.runtest.__code__ = f.__code__\n"
    ),
    "report class": (
        "import _pytest.reports as r\nr.TestReport.outcome = property(\n"
        "    lambda s: 'passed' if 'inside' in s.nodeid or 'high' in s.nodeid else s.o,\n"
        "    lambda s, v: setattr(s, 'o', v))\n"
    ),
    "call info": (
        "import _pytest.runner as r\no = r.CallInfo.from_call.__func__\n"
        "r.CallInfo.from_call = classmethod(\n"
        "    lambda c, f, when, reraise=None: o(c, (lambda: 0) if when == 'call' else f, when))\n"
    ),
    "unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n",
    "builtins": "import builtins\nbuiltins.AssertionError = ValueError\n",
    "own test module": (
        "import sys, importlib.machinery as m\n"
        "class L:\n    def create_module(s, spec): pass\n"
        "    def exec_module(s, x): exec('def test_inside(): pass', x.__dict__)\n"
        "class F:\n    def find_spec(s, n, p=None, t=None):\n"
        "        if 'test_calc' in n: return m.ModuleSpec(n, L())\n"
        "sys.meta_path.insert(0, F())\n"
    ),
    "forged lines": (
        "import os\nfor i in range(1, 20):\n"
        "    try: os.write(i, b'\\x1e0\\x1f1\\x1fphase\\x1ftests/test_calc.py::test_inside"
        "\\x1fcall\\x1fpassed\\n4 passed\\n')\n    except OSError: pass\n"
    ),
    "trace": "import sys\nsys.settrace(lambda *a: None)\n",
    "flood": "import os\nwhile True: os.write(1, b'x' * 65536)\n",
    "kill": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, 9)\n",
}


@needs_sandbox
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_from_the_patched_module_earn_nothing(name):
    report = run(ATTACKS[name] + CALC)
    assert not report.passed
    assert report.why.split(":")[0] in ("failed", "missing", "forbidden", "output")


FILE_ATTACKS = {
    "conftest.py": "def pytest_pyfunc_call(pyfuncitem):\n    return True\n",
    "tests/conftest.py": "def pytest_pyfunc_call(pyfuncitem):\n    return True\n",
    "sitecustomize.py": "import os\nos._exit(0)\n",
    "pytest.py": "def main(*a, **k):\n    print('4 passed')\n    return 0\n",
    "unittest/__init__.py": "class TestCase:\n    pass\n",
    "pytest.ini": "[pytest]\naddopts = -k nothing\n",
    "tests/test_calc.py": "def test_inside(): pass\n",
}


@needs_sandbox
@pytest.mark.parametrize("path", FILE_ATTACKS)
def test_attacks_by_new_or_changed_files_earn_nothing(path):
    assert run(CALC, {path: FILE_ATTACKS[path]}).outcomes[FAIL[0]] == "failed"


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "while True:\n        try: mean([1] * 999)\n        except BaseException: pass",
        "import time; time.sleep(1000)",
        "a = []\n    while True: a.append(bytearray(10**7))",
    ],
)
def test_answers_without_end_are_ended(body):
    started = time.monotonic()
    assert not run(CALC.replace(BODY, body)).passed
    assert time.monotonic() - started < 120


@needs_sandbox
def test_a_time_limit_for_the_whole_run():
    report = run("while True: pass\n" + CALC, cpu_seconds=2)
    assert (report.passed, report.why) == (False, "timeout")


@needs_sandbox
def test_only_named_packages_can_be_imported():
    user = "import packaging, mpmath\n" + GOOD
    assert not run(user).passed
    assert run(user, packages=["mpmath"]).passed


@needs_sandbox
def test_the_same_patch_gets_the_same_verdict():
    assert {run(GOOD).why for _ in range(5)} == {"passed"}


def test_faults_of_the_row_are_errors():
    with pytest.raises(ValueError, match="has no tests to run"):
        run_swe_tests(BASE, [], [])
    with pytest.raises(ValueError, match="is in no file of the tree"):
        run_swe_tests(BASE, ["tests.test_nothing::t"], [])
    with pytest.raises(ValueError, match="row 'r1' has no buggy_tree"):
        task_from_row({"id": "r1"})


def test_a_sandbox_without_pytest_is_an_error_not_a_zero(monkeypatch):
    monkeypatch.setattr(swe_tests, "_package_folders", lambda: ["/nowhere"])
    if isolation().name == "none":
        pytest.skip("no isolation layer works here")
    with pytest.raises(RuntimeError, match="pip install pytest pytest-timeout"):
        run(GOOD)


# ---- public rows and cases ----------------------------------------------------------------------


def _wrong_patch(row: dict) -> str:
    """A diff that only adds a comment to the file that the gold patch changes."""
    path = row["source_files"][0]
    first = row["buggy_tree"][path].split("\n")[0]
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1,2 @@\n {first}\n+# looked at\n"


@needs_sandbox
@pytest.mark.slow
def test_mini_swe_gold_passes_and_other_patches_do_not():
    for row in rows("swe_mini_exec/tasks.jsonl"):
        task = task_from_row(row)
        assert grade_swe(task, row["gold_patch"]).why == "passed", row["id"]
        assert grade_swe(task, "").value == -1.0
        wrong = grade_swe(task, _wrong_patch(row))
        assert (wrong.value, wrong.parts["applies"]) == (0.0, 1.0), row["id"]


@needs_sandbox
def test_one_mini_swe_row():
    row = next(r for r in rows("swe_mini_exec/tasks.jsonl") if r["id"].startswith("tomli"))
    task = task_from_row(row)
    assert grade_swe(task, row["gold_patch"]).why == "passed"
    assert grade_swe(task, _wrong_patch(row)).value == 0.0
