r"""Compares leaves - what is not a plain number - with math-verify's parser and sympy.

Two expressions are equal if they agree to 40 digits at several points. That is relative, never
absolute: math-verify compares to a fixed number of decimals and so calls 1/2006! and 1/2004!
equal. What has no value (f(x), sets of symbols) is left to math-verify's own comparison.
Imported by the worker process only (math_worker.py): it may take long, or for ever.
"""

import re
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify.grader import should_treat_as_complex
from sympy.core.sympify import SympifyError

from cascade_kit.verifiers.math_notation import has_words, word_key
from cascade_kit.verifiers.math_quantity import parse_quantity, rounds_to
from cascade_kit.verifiers.math_structure import split_top

# What sympy and the LaTeX parser raise on expressions they cannot handle. Such an answer is not
# equal; anything else is a fault of this code and reaches the parent as an error.
_LIBRARY_ERRORS = (
    ArithmeticError, AttributeError, LookupError, NotImplementedError, RecursionError,
    SympifyError, TypeError, ValueError,
)  # fmt: skip

_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_READING = ConversionConfig(lowercase_symbols=False)
MAX_BITS = 1e6
_DIGITS = 50
_POINTS = ((7, 5), (-11, 3), (13, 9), (-3, 17))


class BadGold(ValueError):
    """The reference answer itself cannot be read."""


class TooLarge(Exception):
    """A number with more than MAX_BITS bits; working it out may never end."""


def log2_size(expression: Any) -> float:
    """An upper estimate of log2 |expression|, without working it out. Raises TooLarge."""
    if isinstance(expression, sympy.Integer):
        return float(int(expression).bit_length())
    sizes = [log2_size(part) for part in getattr(expression, "args", ())]
    if isinstance(expression, sympy.Pow | sympy.factorial | sympy.binomial):
        count = 2 ** min(sizes[-1] if isinstance(expression, sympy.Pow) else sizes[0], 64.0)
        size = count * max(sizes[0], 1.0)
    else:
        size = sum(sizes)
    if size > MAX_BITS:
        raise TooLarge
    return size


@lru_cache(maxsize=256)
def read(latex: str) -> Any:
    """The sympy object a leaf writes, decimals made exact, or None. Raises TooLarge."""
    if re.search(r"[$#@&]|(?<![_^\d])\d+\s+\d|\.\d+\.", latex):  # the parser reads `1 2` as 3
        return None
    latex = re.sub(r"(\d+(?:\.\d+)?)\s*\^\{\\circ\}", r"(\\frac{\1\\pi}{180})", latex)
    try:
        parsed = latex2sympy(
            latex,
            is_real=not should_treat_as_complex(latex),
            normalization_config=_SPELLING,
            conversion_config=_READING,
        )
    except MemoryError:
        raise
    except Exception:  # the parser raises a bare Exception for what it cannot read
        return None
    if not isinstance(parsed, sympy.Basic | sympy.MatrixBase):
        return None
    log2_size(parsed)
    floats = {number: sympy.Rational(str(number)) for number in parsed.atoms(sympy.Float)}
    return parsed.xreplace(floats) if floats else parsed


def _value(expression: Any, values: dict[Any, Any]) -> Any:
    """The number an expression has at a point, to `_DIGITS` digits, or None."""
    try:
        number = expression.xreplace(values).doit()
        if sympy.I not in values.values():  # the third root of -8 is -2, not 1 + 1.73i
            number = sympy.real_root(number)
        if isinstance(number, sympy.Rational):
            return number
        number = sympy.N(number, _DIGITS)
    except _LIBRARY_ERRORS:
        return None
    finite = number.is_number and not number.has(sympy.nan, sympy.zoo, sympy.oo)
    return number if finite else None


def _close(one: Any, other: Any) -> bool:
    """Equal exactly if both are rational, else to 40 significant digits."""
    if isinstance(one, sympy.Rational) and isinstance(other, sympy.Rational):
        return one == other
    larger = max(abs(sympy.N(one, _DIGITS)), abs(sympy.N(other, _DIGITS)))
    scale = larger if one != 0 and other != 0 else 1
    return bool(abs(one - other) <= sympy.Float(10, _DIGITS) ** -40 * scale)


def _points(symbols: list[Any]) -> list[dict[Any, Any]]:
    if not symbols:
        return [{}]
    if [str(symbol) for symbol in symbols] == ["i"]:
        return [{symbols[0]: sympy.I}]
    return [
        {
            symbol: sympy.I if str(symbol) == "i" else sympy.Rational(top + 2 * index, bottom)
            for index, symbol in enumerate(symbols)
        }
        for top, bottom in _POINTS
    ]


def equal_values(gold: Any, answer: Any) -> bool | None:
    """True or False if both sides have values to compare, None if they have not."""
    by_name = {str(symbol): symbol for symbol in gold.free_symbols | answer.free_symbols}
    renamed = {s: by_name[str(s)] for s in gold.free_symbols | answer.free_symbols}
    gold, answer = gold.xreplace(renamed), answer.xreplace(renamed)
    compared = 0
    for point in _points([by_name[name] for name in sorted(by_name)]):
        values = _value(gold, point), _value(answer, point)
        if None in values:
            continue
        if not _close(*values):
            return False
        compared += 1
    return True if compared else None


def _equal_decimals(gold: str, answer: str, gold_value: Any, answer_value: Any) -> bool:
    """True if one side is a plain decimal and the other rounds to it at six digits or more."""
    for written, exact in ((answer, gold_value), (gold, answer_value)):
        number = parse_quantity(written)
        if number and number.places and not exact.is_Rational:
            value = _value(exact, {})
            if value is not None and value.is_real:
                return rounds_to(Fraction(str(value)), number.value, number.places)
    return False


def _interval(text: str) -> Any:
    r"""The set a piece writes: an interval, `\{...\}`, `\mathbb{R}`, `\emptyset`; None if none."""
    text = text.strip()
    if text in (r"\mathbb{R}", r"\mathbb R"):
        return sympy.S.Reals
    if text == r"\emptyset":
        return sympy.S.EmptySet
    is_set = text.startswith(r"\{") and text.endswith(r"\}")
    if not is_set and (text[:1] not in ("(", "[") or text[-1:] not in (")", "]")):
        return None
    ends = [read(part) for part in split_top(text[2:-2] if is_set else text[1:-1], ",")]
    if None in ends or not (is_set or len(ends) == 2):
        return None
    if is_set:
        return sympy.FiniteSet(*ends)
    return sympy.Interval(*ends, text[0] == "(", text[-1] == ")")


def _inequality(text: str) -> tuple[str, Any] | None:
    """(variable, solutions) of `x >= 2` or `0 < x < 1`, else None."""
    pieces = re.split(r"(\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])|[<>=])", text)
    sides = [read(side.strip()) for side in pieces[::2]]
    if len(sides) < 2 or None in sides:
        return None
    make = {
        r"\le": sympy.Le, r"\ge": sympy.Ge, r"\ne": sympy.Ne, "<": sympy.Lt, ">": sympy.Gt,
        "=": sympy.Eq,
    }  # fmt: skip
    triples = zip(sides, pieces[1::2], sides[1:], strict=False)
    relations = [make[sign](left, right) for left, sign, right in triples]
    names = {str(symbol) for side in sides for symbol in side.free_symbols}
    if len(names) != 1:
        return None
    return names.pop(), reduce(sympy.Intersection, (r.as_set() for r in relations))


def region(text: str) -> tuple[str, Any] | None:
    """(variable or "", set of reals) of intervals, unions and inequalities, else None."""
    text = re.sub(r"^[A-Za-z]\w*\s*\\in(?![a-z])\s*", "", text)
    text = re.sub(r"\\text\s*\{\s*(or|and)\s*\}", r" \1 ", text)
    for word, combine in (("or", sympy.Union), ("and", sympy.Intersection)):
        parts = re.split(rf"\s,?\s*{word}\s", text)
        if len(parts) > 1:
            sets = [region(part) for part in parts]
            names = {found[0] for found in sets if found}
            return None if None in sets or len(names) > 1 else (
                names.pop(), reduce(combine, [found[1] for found in sets])
            )  # fmt: skip
    if re.search(r"[<>]|\\(?:le|ge|ne)(?![a-z])", text):
        return _inequality(text)
    signs = {r"\cup": sympy.Union, r"\cap": sympy.Intersection, r"\setminus": sympy.Complement}
    pieces = re.split(r"(\\cup|\\cap|\\setminus)(?![a-z])", text)
    total = _interval(pieces[0])
    for sign, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        part = _interval(piece)
        if total is None or part is None:
            return None
        total = signs[sign](total, part)
    return None if total is None else ("", total)


def _same_region(gold: str, answer: str) -> bool | None:
    """Set equality if both sides are regions of the real line, else None."""
    try:
        regions = region(gold), region(answer)
        if None in regions:
            return None
        (gold_name, gold_set), (answer_name, answer_set) = regions
        if gold_name and answer_name and gold_name != answer_name:
            return False
        difference = sympy.SymmetricDifference(gold_set, answer_set)
        return bool(gold_set == answer_set or difference.is_empty)
    except _LIBRARY_ERRORS:
        return None


def _same_equation(gold: Any, answer: Any) -> bool:
    """True if the two equations differ by a constant factor: y = 2x + 3 and 2x - y + 3 = 0."""
    ratio = (gold.lhs - gold.rhs) / (answer.lhs - answer.rhs)
    symbols = sorted(ratio.free_symbols, key=str)
    values = [_value(ratio, point) for point in _points(symbols)]
    known = [value for value in values if value is not None and value != 0]
    return len(known) > 1 and all(_close(known[0], value) for value in known[1:])


def leaf(gold: str, answer: str) -> bool:
    """True if two parts that are not plain numbers are equal. Raises BadGold."""
    try:
        found = _same_region(gold, answer)
        if found is not None:
            return found
        gold_value, answer_value = read(gold), read(answer)
    except TooLarge:  # equal only if written alike, which `same` has looked at
        return False
    if gold_value is None:
        if not has_words(gold):
            raise BadGold(gold)
        return word_key(gold) == word_key(answer)
    if answer_value is None:
        return False
    try:
        return _same_objects(gold, answer, gold_value, answer_value)
    except _LIBRARY_ERRORS:
        return False


def _same_objects(gold: str, answer: str, gold_value: Any, answer_value: Any) -> bool:
    endless = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if gold_value.has(*endless) or answer_value.has(*endless):
        return bool(gold_value == answer_value)  # inf - inf is no difference to compare
    if isinstance(gold_value, sympy.Eq) and isinstance(answer_value, sympy.Eq):
        return _same_equation(gold_value, answer_value)
    if isinstance(gold_value, sympy.Expr) and isinstance(answer_value, sympy.Expr):
        equal = equal_values(gold_value, answer_value)
        if equal is not None:
            return equal or _equal_decimals(gold, answer, gold_value, answer_value)
    return math_verify.verify(gold_value, answer_value, timeout_seconds=None)


def _readable(text: str) -> bool:
    """True if a leaf of a gold answer can be compared at all."""
    try:
        return has_words(text) or region(text) is not None or read(text) is not None
    except TooLarge:
        return True
    except _LIBRARY_ERRORS:
        return read(text) is not None


def check(leaves: list[str]) -> None:
    """Raises BadGold for the first leaf that neither math-verify nor `region` can read."""
    for text in leaves:
        if not _readable(text):
            raise BadGold(text)
