r"""Plain numbers, read exactly: `1,234`, `\frac12`, `2\frac{1}{2}`, `1e-8`, `50\%`, `5 cm`.

fractions.Fraction holds the value, so that most answers need no computer algebra and 1e-8 is not
2e-8. Works on normalised text (math_notation.py).
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 400  # longer numbers are left to the worker process, which has a deadline


@dataclass(frozen=True)
class Quantity:
    """A plain number as written."""

    value: Fraction
    places: int | None = None  # decimals written, None for integers and fractions
    percent: bool = False
    unit: str = ""  # canonical name if known, the words themselves otherwise
    scale: int = 0  # 6 for "3 million"; already contained in value


_WHOLE_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_THOUSANDS = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d{1,3}(?: \d{3})+(?:\.\d*)?)"
_ANY = rf"[+-]?\s*(?:{_THOUSANDS}|{_DECIMAL})"
_PLAIN = re.compile(rf"(?:{_DECIMAL}|{_THOUSANDS})")
_FRACTION = re.compile(
    rf"\\frac\s*\{{\s*({_ANY})\s*\}}\s*\{{\s*({_ANY})\s*\}}|({_DECIMAL})\s*/\s*({_DECIMAL})"
)
_MIXED = re.compile(r"(\d+)\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d+)\s+(\d+)\s*/\s*(\d+)")
_SCIENTIFIC = re.compile(
    rf"(?:({_DECIMAL})\s*(?:\\times|\\cdot|\*|x)\s*)?10\s*\^\s*(?:\{{\s*([+-]?\d+)\s*\}}|(\d))"
    rf"|({_DECIMAL})[eE]([+-]?\d+)"
)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}")
_CURRENCY = re.compile(r"^([+-]?)\s*(?:\\text\{\s*(?:\\?\$|USD|Rs\.?)\s*\}|\\?\$|€|£|USD\b)\s*")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_UNIT = re.compile(
    r"\s*(?:\\text\s*\{\s*([^{}]*?)\s*\}|(?<=[\d}\s])([A-Za-z]{2,}\.?(?: [A-Za-z]{2,}\.?)*))"
    r"\s*(?:\^\s*\{?\d\}?)?$"
)
_UNIT_NAMES = {
    name: names.split()[0]
    for names in (
        "mm millimeter millimetre", "cm centimeter centimetre", "meter m metre",
        "km kilometer kilometre", "inch in inche", "foot ft feet", "yard yd", "mile mi",
        "mg milligram", "gram g", "kg kilogram", "pound lb", "ounce oz", "ton tonne",
        "second s sec", "minute min", "hour h hr", "day", "week", "month", "year yr",
        "dollar usd", "cent", "euro eur", "liter l litre", "ml milliliter millilitre",
        "mph", "kph", "degree", "radian rad", "celsius", "fahrenheit",
    )
    for name in names.split()
}  # fmt: skip
_KNOWN_UNITS = frozenset(_UNIT_NAMES.values())
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_NOT_UNITS = re.compile(
    r"\b(?:and|or|to|by|if|base|solutions?|mod|than|except|all|no|pi|sqrt|sin|cos|tan|log|ln|exp"
    r"|theta|inf)\b",
    re.IGNORECASE,
)


def unit_name(words: str) -> str:
    """The canonical name of a unit, or the words unchanged: `square centimeters` is `cm`."""
    core = re.sub(r"\^.*|\b(?:square|sq|cubic|cu)\b\.?", "", words.casefold()).strip(" .")
    for candidate in (core, core.removesuffix("s"), core.split(" ")[0].removesuffix("s")):
        if candidate in _UNIT_NAMES:
            return _UNIT_NAMES[candidate]
    return words.strip()


def units_differ(one: str, other: str) -> bool:
    """True if both units are known and are not the same."""
    return one != other and {one, other} <= _KNOWN_UNITS


def _unit_words(text: str) -> tuple[int, str] | None:
    """(start, words) of the unit a text ends with; letters that may be variables are no unit."""
    found = _UNIT.search(text)
    if not found or found.start() == 0:
        return None
    in_text = found[1] is not None
    words = found[1] if in_text else found[2]
    if _NOT_UNITS.search(words):
        return None
    spaced = in_text or text[found.start(2) - 1] == " "
    long_words = spaced and all(len(word) > 2 for word in words.split())
    if not in_text and not long_words and unit_name(words) not in _KNOWN_UNITS:
        return None
    return found.start(), words


def peel_unit(text: str) -> tuple[str, str, bool]:
    r"""(rest, unit, percent) with `\$`, `\%`, `^{\circ}` and trailing unit words taken off."""
    bare = _CURRENCY.sub(r"\1", text)
    unit = "dollar" if bare != text and "$" in text else ""
    if bare.endswith(r"\%"):
        return bare[:-2].strip(), unit, True
    if r"\circ" in bare and _TRIGONOMETRY.search(bare):
        return bare.strip(), unit, False
    if found := re.search(r"\^\{\\circ\}\s*(?:\\text\{\s*)?([CF]?)(?:\s*\})?$", bare):
        scale = {"C": "celsius", "F": "fahrenheit", "": "degree"}[found[1]]
        return bare[: found.start()].strip(), scale, False
    if named := _unit_words(bare):
        return bare[: named[0]].strip(), unit or unit_name(named[1]), False
    return bare.strip(), unit, False


def _exact(digits: str) -> Fraction:
    return Fraction(re.sub(r"[, ]", "", digits))


def _ratio(numerator: str, denominator: str) -> Fraction | None:
    below = _exact(denominator)
    return None if below == 0 else _exact(numerator) / below


def _unsigned(text: str) -> tuple[Fraction, int | None] | None:
    """(value, decimals written) of an unsigned plain number."""
    if _PLAIN.fullmatch(text):
        whole, dot, decimals = text.partition(".")
        return _exact(f"{whole or '0'}.{decimals or '0'}"), len(decimals) if dot else None
    value: Fraction | None = None
    if match := _FRACTION.fullmatch(text):
        value = _ratio(match[1] or match[3], match[2] or match[4])
    elif match := _MIXED.fullmatch(text):
        whole, top, bottom = (int(group) for group in match.groups() if group)
        value = whole + Fraction(top, bottom) if 0 < top < bottom else None
    elif match := _SCIENTIFIC.fullmatch(text):
        exponent = int(match[2] or match[3] or match[5])
        if abs(exponent) <= MAX_DIGITS:
            value = _exact(match[1] or match[4] or "1") * Fraction(10) ** exponent
    elif match := _REPEATING.fullmatch(text):
        whole, fixed, cycle = match.groups()
        value = _exact(f"{whole or '0'}.{fixed or '0'}")
        value += Fraction(int(cycle), 10 ** len(fixed) * (10 ** len(cycle) - 1))
    return None if value is None else (value, None)


def parse_quantity(text: str) -> Quantity | None:
    """The plain number a normalised text writes, or None if it is anything else."""
    if len(text) > MAX_DIGITS:
        return None
    if whole := _WHOLE_TEXT.fullmatch(text):
        text = whole[1].strip()
    number, unit, percent = peel_unit(text)
    first, _, rest = unit.partition(" ")
    power = _SCALES.get(first.casefold(), 0)
    sign = -1 if number.startswith("-") else 1
    read = _unsigned(re.sub(r"^[+-]\s*", "", number))
    if read is None:
        return None
    value, places = sign * read[0] * 10**power, read[1]
    return Quantity(value, places, percent, unit_name(rest) if power else unit, power)


def rounds_to(exact: Fraction, rounded: Fraction, places: int) -> bool:
    """True if `rounded`, written with `places` decimals, is `exact` to six digits or more."""
    significant = len(str(abs(int(rounded * 10**places))))
    enough = significant >= 4 and max(significant, places) >= 6
    return enough and abs(exact - rounded) * 2 * 10**places <= 1


def _terminates(value: Fraction) -> bool:
    """True if the decimals of `value` end: its denominator divides a power of ten."""
    return 10 ** value.denominator.bit_length() % value.denominator == 0


def _near(gold: Quantity, answer: Quantity, value: Fraction) -> bool:
    """True if one side is a fraction without finite decimals and the other its decimals."""
    if gold.places is None and answer.places is not None:
        return not _terminates(gold.value) and rounds_to(gold.value, value, answer.places)
    if answer.places is None and gold.places is not None:
        return not _terminates(value) and rounds_to(value, gold.value, gold.places)
    return False


def same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """Exact equality; a percent sign, a unit or a scale word may be missing, never different."""
    if units_differ(gold.unit, answer.unit):
        return False
    candidates = [answer.value]
    if answer.percent != gold.percent:
        # "50%" for "50" repeats the unit asked for; "0.5%" for "0.5" is another number
        factor = 100 if gold.percent else Fraction(1, 100)
        candidates = [answer.value * factor] + [answer.value] * (abs(gold.value) >= 1)
    if answer.scale and not gold.scale:
        candidates.append(answer.value / 10**answer.scale)
    return any(gold.value == value or _near(gold, answer, value) for value in candidates)
