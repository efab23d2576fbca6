r"""The parts of a normalised answer: lists, tuples, sets, assignments, `\pm`; no verdicts."""

import re
from collections.abc import Sequence

from cascade_kit.verifiers.math_notation import is_words, squeeze

TUPLES = ("()", "[]", "(]", "[)")
_CONNECTOR = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*|\s*;\s*"
)
_NAME = re.compile(  # a left side that only names the answer: x, x_1, f(x), \angle ABC, |AB|, (x,y)
    r"(?:\\(?:angle|triangle|overline|operatorname|text)\s*)*"
    r"(?:\{[^{}]*\}|\\?[A-Za-z]+'*(?:_\{?\w+\}?)?(?:\^\{?-1\}?)?(?:\([^()=]*\))?"
    r"|\|[A-Z]+\||\((?:\s*[A-Za-z]\w*\s*,?)+\))"
)


def nesting(text: str) -> int:
    """The deepest bracket nesting."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def split_top(text: str, separator: str) -> list[str]:
    """`text` split at `separator` outside all brackets, parts stripped."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"\\[A-Za-z]+|{re.escape(separator)}|[(\[{{}}\])]", text):
        if match[0] == separator:
            if depth == 0:
                parts.append(text[start : match.start()].strip())
                start = match.end()
        elif len(match[0]) == 1:
            depth += 1 if match[0] in "([{" else -1
    return [*parts, text[start:].strip()]


def split_list(text: str) -> list[str]:
    """The items of a bare list; a comma inside 1,234 does not split."""
    text = _CONNECTOR.sub(", ", text)
    if re.fullmatch(r"[+-]?(?:\\?\$)?\d{1,3}(?:,\d{3})+(?:\.\d*)?", text):
        return [text]
    if ", " in text:  # "1,234, 5,678": commas without a blank are thousands separators
        text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return [part for part in split_top(text, ",") if part]


def bracketed(text: str) -> tuple[str, str]:
    r"""(kind, inside): kind is "{}" for a set, "()", "[]", "(]", "[)", or "" if bare."""
    if text.startswith(r"\{") and text.endswith(r"\}") and len(text) > 3:
        kind, inside = "{}", text[2:-2]
    elif len(text) > 2 and text[0] in "([" and text[-1] in ")]":
        kind, inside = text[0] + text[-1], text[1:-1]
    else:
        return "", text
    depth = 0
    for character in inside:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:  # the first bracket closes before the end: (1,2),(3,4)
            return "", text
    return kind, inside.strip()


def expand_signs(items: Sequence[str]) -> list[str]:
    r"""Every `a \pm b` as `a + b` and `a - b`; the signs of one item go together."""
    expanded: list[str] = []
    for item in items:
        if not re.search(r"\\(?:pm|mp)(?![a-z])", item):
            expanded.append(item)
            continue
        for plus, minus in (("+", "-"), ("-", "+")):
            signed = re.sub(r"\\pm\s*", plus, re.sub(r"\\mp\s*", minus, item))
            expanded.append(re.sub(r"^\+|(?<=[(,=])\s*\+", "", signed).strip())
    return expanded


def sides(text: str) -> tuple[str, str] | None:
    """(first left side, last right side) of `a = b` or `a = b = c`, else None."""
    parts = split_top(text, "=")
    return (parts[0], parts[-1]) if len(parts) > 1 and all(parts) else None


def names_only(left: str) -> bool:
    """True if a left side names the answer or is a finished calculation: x, f(x), 2+3."""
    return bool(_NAME.fullmatch(left)) or is_words(left) or not re.search(r"[A-Za-z]", left)


def named(text: str) -> tuple[str, str]:
    """(name, value) of `x = 5`; the name is "" for anything else."""
    parts = sides(text)
    return (squeeze(parts[0]), parts[1]) if parts and names_only(parts[0]) else ("", text)


def items(text: str) -> tuple[str, list[tuple[str, str]]]:
    """(bracket kind, [(name, value), ...]) of a list, tuple, set or single answer."""
    kind, inside = bracketed(text)
    if kind == "{}":
        return kind, [("", item) for item in expand_signs(split_top(inside, ","))]
    if kind and len(split_top(inside, ",")) > 1:
        if r"\pm" not in inside:
            return kind, [("", item) for item in split_top(inside, ",")]
        return "", [("", item) for item in expand_signs([text])]
    if kind == "()":
        text = inside
    return "", [named(item) for item in expand_signs(split_list(text))]


def in_order(kind: str, items: list[tuple[str, str]]) -> list[str]:
    """The values; those of `y = 2, x = 1` in the order of their names."""
    names = [name for name, _ in items]
    if kind == "" and all(names) and len(set(names)) == len(names):
        items = sorted(items)
    return [value for _, value in items]


def distinct(values: list[str]) -> list[str]:
    return list({squeeze(value): value for value in values}.values())


def kinds_agree(gold_kind: str, answer_kind: str, length: int) -> bool:
    """True if two bracket kinds, one of them a tuple or interval, may hold the same answer."""
    if gold_kind == answer_kind:
        return True
    if "" in (gold_kind, answer_kind):  # brackets left out, or added to a plain list
        return {gold_kind, answer_kind} <= {"", "()"} or (gold_kind == "" and answer_kind == "[]")
    return {gold_kind, answer_kind} == {"()", "[]"} and length > 2  # a vector, not an interval


def is_list(text: str) -> bool:
    """True for several values: `1, 2`, a set, `+-3`; a tuple is one value."""
    kind, parts = items(text)
    return kind in ("", "{}") and len(parts) > 1
