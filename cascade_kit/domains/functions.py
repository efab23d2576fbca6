"""Small one-line Python functions in words and in code, shared by the code and SWE domains."""

import random
from dataclasses import dataclass

FUNCTION_NAMES = (
    "calc check count fetch find fix give join keep load make mix move pack pick play read send "
    "show solve sort_it take test turn use work".split()
)
NUMBERS, LISTS, TEXTS = "abnxyz", ("items", "values", "xs"), ("s", "text", "word")

# Words, expression, argument kinds (n number, l list, t text); {k} is a constant from 2 to 9.
KINDS = (
    ("{0} plus {k}", "{0} + {k}", "n"),
    ("{0} minus {k}", "{0} - {k}", "n"),
    ("{0} times {k}", "{0} * {k}", "n"),
    ("the square of {0}", "{0} * {0}", "n"),
    ("the remainder of {0} divided by {k}", "{0} % {k}", "n"),
    ("the absolute value of {0}", "abs({0})", "n"),
    ("the larger of {0} and {k}", "max({0}, {k})", "n"),
    ("the smaller of {0} and {k}", "min({0}, {k})", "n"),
    ("whether {0} is greater than {k}", "{0} > {k}", "n"),
    ("whether {0} is less than {k}", "{0} < {k}", "n"),
    ("the sum of {0} and {1}", "{0} + {1}", "nn"),
    ("the difference of {0} and {1}", "{0} - {1}", "nn"),
    ("the product of {0} and {1}", "{0} * {1}", "nn"),
    ("the larger of {0} and {1}", "max({0}, {1})", "nn"),
    ("the smaller of {0} and {1}", "min({0}, {1})", "nn"),
    ("whether {0} equals {1}", "{0} == {1}", "nn"),
    ("the number of items in {0}", "len({0})", "l"),
    ("the sum of the items in {0}", "sum({0})", "l"),
    ("the largest item in {0}", "max({0})", "l"),
    ("the smallest item in {0}", "min({0})", "l"),
    ("the first item in {0}", "{0}[0]", "l"),
    ("the last item in {0}", "{0}[-1]", "l"),
    ("{0} in sorted order", "sorted({0})", "l"),
    ("{0} in upper case", "{0}.upper()", "t"),
    ("{0} in lower case", "{0}.lower()", "t"),
    ("the length of {0}", "len({0})", "t"),
    ("the reverse of {0}", "{0}[::-1]", "t"),
    ("the first letter of {0}", "{0}[0]", "t"),
)
# Difficulty 3 composes: the words of a second step applied to the number of the first.
SECOND_STEPS = ((" plus {k}", " + {k}"), (" minus {k}", " - {k}"), (" times {k}", " * {k}"))


@dataclass(frozen=True)
class OneLiner:
    """A function `def name(arguments): return expression` and what it does in words."""

    name: str
    arguments: tuple[str, ...]
    words: str
    expression: str
    kinds: str  # one letter an argument: n number, l list, t text

    @property
    def header(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})"

    def source(self, expression: str | None = None) -> str:
        """The function's two lines, with another expression in place if one is given."""
        return f"def {self.header}:\n    return {expression or self.expression}\n"

    def asserts(self, rng: random.Random, n: int = 4) -> list[str]:
        """`n` assert lines with the expected values written out."""
        lines = []
        for _ in range(n):
            values = [_value(rng, kind) for kind in self.kinds]
            # The expressions are the constants of this file, never model text.
            expected = eval(self.expression, dict(zip(self.arguments, values, strict=True)))
            call = ", ".join(map(repr, values))
            lines.append(f"assert {self.name}({call}) == {expected!r}")
        return lines


def draw(rng: random.Random, difficulty: int) -> OneLiner:
    """A random function; difficulty 1 has numbers only, 3 may compose two steps."""
    kinds = [k for k in KINDS if difficulty > 1 or set(k[2]) == {"n"}]
    words, expression, argument_kinds = rng.choice(kinds)
    arguments = _arguments(rng, argument_kinds)
    k = rng.randint(2, 9)
    words, expression = (t.format(*arguments, k=k) for t in (words, expression))
    if difficulty == 3 and argument_kinds == "n" and " " not in expression and rng.random() < 0.5:
        more_words, more = rng.choice(SECOND_STEPS)
        k = rng.randint(2, 9)
        words, expression = words + more_words.format(k=k), expression + more.format(k=k)
    return OneLiner(rng.choice(FUNCTION_NAMES), arguments, words, expression, argument_kinds)


def mistaken(rng: random.Random, function: OneLiner) -> str:
    """A plausible wrong expression for the function: another operation on the same arguments."""
    candidates = [e for _, e, kinds in KINDS if kinds == function.kinds]
    for _ in range(100):
        wrong = rng.choice(candidates).format(*function.arguments, k=rng.randint(2, 9))
        if _differs(rng, function, wrong):
            return wrong
    raise AssertionError(f"no wrong expression found for {function.expression}")


def _differs(rng: random.Random, function: OneLiner, expression: str) -> bool:
    """Whether two expressions disagree on more than half of twelve random inputs."""
    disagreements = 0
    for _ in range(12):
        names = dict(
            zip(function.arguments, (_value(rng, kind) for kind in function.kinds), strict=True)
        )
        disagreements += eval(function.expression, dict(names)) != eval(expression, dict(names))
    return disagreements > 6


def _arguments(rng: random.Random, kinds: str) -> tuple[str, ...]:
    pools = {"n": NUMBERS, "l": LISTS, "t": TEXTS}
    if kinds == "nn":
        return tuple(rng.sample(NUMBERS, 2))
    return tuple(rng.choice(pools[kind]) for kind in kinds)


def _value(rng: random.Random, kind: str) -> int | list[int] | str:
    if kind == "n":
        return rng.randint(-9, 20)
    if kind == "l":
        return [rng.randint(-9, 20) for _ in range(rng.randint(3, 5))]
    return "".join(rng.choice("abcdeXYZ") for _ in range(rng.randint(4, 7)))
