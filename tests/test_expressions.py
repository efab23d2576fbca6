"""The evaluator of plain expressions: the same verdicts as Python, and nothing else is let in."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_kit.domains import functions
from cascade_kit.verifiers.expressions import evaluate_one_liner, grade_one_liners
from cascade_kit.verifiers.plain_expressions import Forbidden

VALUES = {  # body of `def f(x): return ...` -> value for x = 7, or for the list or text given
    "x + 2": 9,
    "x * x - x // 2 % 3": 49 - 0,
    "-x ** 2": -49,
    "x / 2": 3.5,
    "divmod(x, 4)": (1, 3),
    "x > 3 and x < 9": True,
    "x < 3 or 'no'": "no",
    "1 < x <= 7 != 8": True,
    "not x": False,
    "'odd' if x % 2 else 'even'": "odd",
    "max(x, 5, key=abs)": 7,
    "sorted([3, x, 1], reverse=True)": [7, 3, 1],
    "[a * 2 for a in range(x) if a % 3 == 0]": [0, 6, 12],
    "sum(a for a in [1, 2, x])": 10,
    "len('abc') + len([1])": 4,
    "'aXb'.lower().replace('x', '-').split('-')": ["a", "b"],
    "'-'.join(['a', 'b'])": "a-b",
    "'hello'[1:4][::-1]": "lle",
    "{1: 'a', x: 'b'}[7]": "b",
    "{1, 2} | {x}": {1, 2, 7},
    "(1, 2) + (x,)": (1, 2, 7),
    "f'{x}!'": "7!",
    "str(x) * 3": "777",
    "list(zip([1, 2], 'ab'))": [(1, "a"), (2, "b")],
    "1 << x": 128,
    "x in [1, 7] and 2 not in (1,)": True,
    "None": None,
    "[[1, 2], [3]][0][-1]": 2,
    "pow(x, 3, 5)": 3,
    "round(x / 3, 2)": 2.33,
    "any([0, x]) and all([])": True,
}


@pytest.mark.parametrize("body", VALUES)
def test_values(body):
    assert evaluate_one_liner(f"def f(x):\n    return {body}", ["f(7)"]) == [VALUES[body]]


def test_functions_of_one_file_may_call_each_other():
    code = '"""Two."""\ndef g(x: int) -> int:\n    """Double."""\n    return x * 2\n'
    code += "def f(x): return g(g(x)) + 1"
    assert evaluate_one_liner(code, ["f(3)", "g(4)"]) == [13, 8]
    factorial = "def f(n): return 1 if n < 2 else n * f(n - 1)"
    assert evaluate_one_liner(factorial, ["f(10)"]) == [3628800]


FORBIDDEN = [
    "import os\ndef f(x): return x",
    "x = 1\ndef f(x): return x",
    "def f(x):\n    y = x\n    return y",
    "def f(x):\n    print(x)\n    return x",
    "def f(x, y=2): return x",
    "def f(*x): return x",
    "@staticmethod\ndef f(x): return x",
    "def f(x: open): return x",
    "async def f(x): return x",
    "class f: pass",
    "def f(x): return (lambda: x)()",
    "def f(x): return __import__('os')",
    "def f(x): return open('a')",
    "def f(x): return eval('1')",
    "def f(x): return print(x)",
    "def f(x): return getattr(x, 'real')",
    "def f(x): return x.__class__",
    "def f(x): return x.__add__(1)",
    "def f(x): return ().__class__.__bases__[0].__subclasses__()",
    "def f(x): return '{0.__class__}'.format(x)",
    "def f(x): return max",
    "def f(x): return [max][0](1, 2)",
    "def f(x): return max(*[1, 2])",
    "def f(x): return (y := x)",
    "def f(x): return b'a'",
    "def f(x): return ...",
    "def f(x): return [1].append(x)",
    "def f(x): return sorted([1, 2], key=print)",
    "def f(x): return 9 ** 9 ** 9",
    "def f(x): return 'a' * 10 ** 9",
    "def f(x): return 10 ** 9 * [0]",
    "def f(x): return 1 << 10 ** 9",
    "def f(x): return pow(3, 10 ** 9)",
    "def f(x): return round(5, -10 ** 9)",
    "def f(x): return f(x)",
    "def f(x): return sum(range(10 ** 9))",
    "def f(x): return [1 for a in range(9999) for b in range(9999)]",
    "def f(x): return [[1] * 9999 == [1] * 9999 for a in range(9999)]",
    "def f(x): return '%1000000000d' % x",
    "def f(x): return f'{x:1000000000}'",
    "def f(x): return 'a'.center(10 ** 9)",
    "def f(x): return ('a' * 9999).replace('', 'b' * 9999)",
    "def f(x): return ''.join('a' * 9999 for a in range(9999))",
    "def g(x): return (x, x)\ndef h(x): return g(g(g(g(x))))\n"
    "def k(x): return h(h(h(h(x))))\ndef f(x): return {k(1)}",
    "def f(x): return " + "-" * 4000 + "1",
    "def f(x): return " + "+".join("1" * 3000),
    "#" * 20_000,
]


@pytest.mark.parametrize("code", FORBIDDEN, ids=lambda code: code[-60:])
def test_forbidden(code):
    started = time.monotonic()
    report = grade_one_liners(code, ["assert f(1) == 1", "assert f(2) == 2"])
    assert (report.status, bool(report.detail)) == ("forbidden", True)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): return x + 1",
        "def g(x): return x",
        "def f(x): return y",
        "def f(x): return x / 0",
        "def f(x): return [][x]",
        "def f(x): return {}[x]",
        "def f(x): return 'a' + x",
        "def f(x): return int('a')",
        "def f(): return 1",
        "def f(x) return x",
        "def f(x): return 2.0 ** 99999",
    ],
)
def test_failed(code):
    report = grade_one_liners(code, ["assert f(1) == 1", "assert f(2) == 2"])
    assert (report.status, report.passed, report.total) == ("failed", 0, 2)


def test_verdicts_and_errors():
    tests = ["assert f(2, 3) == 5", "assert f(1, 1) == 2", "assert abs(f(0.1, 0.2) - 0.3) < 1e-9"]
    assert grade_one_liners("def f(a, b): return a + b", tests).status == "passed"
    half = grade_one_liners("def f(a, b): return a * b + (a == 2) * -1", tests)
    assert (half.status, half.passed, half.total) == ("failed", 1, 3)
    assert "f(1, 1)" in half.detail
    assert grade_one_liners(None, tests).status == "no code"
    with pytest.raises(ValueError, match="no tests"):
        grade_one_liners("def f(a, b): return a", [])
    with pytest.raises(Forbidden, match="plain arguments"):
        evaluate_one_liner("def f(a, b=1): return a", ["f(1)"])
    with pytest.raises(ZeroDivisionError):
        evaluate_one_liner("def f(a): return 1 / a", ["f(0)"])


def test_agrees_with_python_on_the_functions_of_the_small_cascade():
    rng = random.Random(0)
    for difficulty in (1, 2, 3):
        for _ in range(100):
            function = functions.draw(rng, difficulty)
            tests = function.asserts(rng)
            assert grade_one_liners(function.source(), tests).status == "passed"
            wrong = function.source(functions.mistaken(rng, function))
            outcomes = [_holds(wrong, line) for line in tests]
            report = grade_one_liners(wrong, tests)
            assert (report.passed, report.total) == (sum(outcomes), len(outcomes))


def _holds(code: str, line: str) -> bool:
    """What Python itself says; the code is of this project, never a model's."""
    namespace: dict = {}
    exec(code, namespace)
    try:
        exec(line, namespace)
    except Exception:
        return False
    return True


NUMBERS = st.one_of(st.integers(-20, 20).map(str), st.sampled_from(["x", "y", "2.5", "True"]))
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+ - * / // % < == >= and or".split()), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda part: f"abs({part})"),
        st.tuples(inner, inner).map(lambda parts: f"max({parts[0]}, {parts[1]})"),
        st.tuples(inner, inner).map(lambda parts: f"[{parts[0]}, {parts[1]}]"),
        st.tuples(inner, inner, inner).map("({0[0]} if {0[1]} else {0[2]})".format),
        inner.map(lambda part: f"sorted([{part}])"),
        inner.map(lambda part: f"len(str({part}))"),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_agrees_with_python_on_any_expression(expression):
    code = f"def f(x, y):\n    return {expression}"
    namespace: dict = {}
    exec(code, namespace)
    try:
        expected = namespace["f"](3, -2)
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        with pytest.raises(type(error)):
            evaluate_one_liner(code, ["f(3, -2)"])
        return
    (value,) = evaluate_one_liner(code, ["f(3, -2)"])
    assert repr(value) == repr(expected)
