r"""Decides whether two normalised answers are the same, part by part.

Times, words, matrices, equations, lists, tuples, sets and intervals are taken apart here. What is
left are leaves: plain numbers are compared exactly, any other leaf goes to `leaf(gold, answer)`,
which the worker process answers with math-verify (math_worker.py).

Choices that another grader might make differently: 1,234 is a number, `1, 234` a list; a bare list
and a set have no order, a tuple has; `x = 5` answers 5; a unit and the base of 52_8 may be left
out, never changed; 50\% is 0.5 and answers 50; six decimals of 1/3 are 1/3, three are not.
"""

import re
from collections.abc import Callable

from cascade_kit.verifiers.math_notation import (
    choice_letter,
    clock,
    is_words,
    squeeze,
    starts_with_choice,
    word_key,
)
from cascade_kit.verifiers.math_quantity import (
    parse_quantity,
    peel_unit,
    same_quantity,
    units_differ,
)
from cascade_kit.verifiers.math_structure import (
    TUPLES,
    distinct,
    in_order,
    items,
    kinds_agree,
    named,
    names_only,
    sides,
    split_list,
    split_top,
)

Leaf = Callable[[str, str], bool]

MAX_DEPTH = 40  # brackets inside brackets; a real answer has three or four
MAX_ITEMS = 200  # unordered lists are matched in quadratic time

_RELATION = re.compile(r"\\(?:le|ge|ne|cup|cap|setminus|in)(?![a-z])|\\mathbb|[<>]")
_MATRIX = re.compile(
    r"^[\[(]?\s*\\begin\s*\{([pbB]?matrix|array)\}(?:\s*\{[clr|\s]*\})?(.*)"
    r"\\end\s*\{\1\}\s*[\])]?$",
    re.DOTALL,
)
_BASE = re.compile(r"(\d[0-9A-F]*)(?:_\s*\{?\s*(\d+)\s*\}?)?")
_WORDS_FOR = {
    "allrealnumbers": r"(-\infty,\infty)",
    "allreals": r"(-\infty,\infty)",
    "nosolution": r"\emptyset",
    "nosolutions": r"\emptyset",
    "norealsolutions": r"\emptyset",
    "emptyset": r"\emptyset",
}


# Each rule answers True or False, or None where it has no opinion.


def _numbers(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    gold_number, answer_number = parse_quantity(gold), parse_quantity(answer)
    if gold_number is None or answer_number is None:
        return None
    return same_quantity(gold_number, answer_number)


def _other_bases(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    gold_digits, answer_digits = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if not gold_digits or not answer_digits or not (gold_digits[2] or answer_digits[2]):
        return None
    same_base = gold_digits[2] is None or answer_digits[2] in (None, gold_digits[2])
    return same_base and gold_digits[1].lstrip("0") == answer_digits[1].lstrip("0")


def _times(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    gold_time, answer_time = clock(gold), clock(answer)
    if gold_time is None or answer_time is None:
        return None
    if gold_time[2] and answer_time[2]:
        return gold_time == answer_time
    hours_later = (gold_time[0] - answer_time[0]) % 24
    afternoon = {gold_time[2], answer_time[2]} == {"p", ""} and hours_later == 12
    return (hours_later == 0 or afternoon) and gold_time[1] == answer_time[1]


def _ratios(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    gold_parts, answer_parts = split_top(gold, ":"), split_top(answer, ":")
    if len(gold_parts) == len(answer_parts) == 1 or not all(gold_parts + answer_parts):
        return None
    left, right = ([parse_quantity(p) for p in parts] for parts in (gold_parts, answer_parts))
    if any(part is None or part.value == 0 for part in left + right):
        same_parts = zip(gold_parts, answer_parts, strict=False)
        equal_length = len(gold_parts) == len(answer_parts)
        return equal_length and all(same(g, a, leaf, depth + 1) for g, a in same_parts)
    left_values, right_values = [p.value for p in left], [p.value for p in right]
    if 1 in (len(left), len(right)):  # 3:2 is 3/2
        longer = max(left_values, right_values, key=len)
        single = min(left_values, right_values, key=len)[0]
        return len(longer) == 2 and longer[0] / longer[1] == single
    factor = left_values[0] / right_values[0]
    return len(left) == len(right) and left_values == [value * factor for value in right_values]


def _words(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    letter = choice_letter(gold)
    if letter:
        answer_letter = choice_letter(answer)
        if answer_letter or starts_with_choice(answer, letter):
            return not answer_letter or answer_letter == letter
    gold_key, answer_key = word_key(gold), word_key(answer)
    if gold_key in _WORDS_FOR or answer_key in _WORDS_FOR:
        gold, answer = _WORDS_FOR.get(gold_key, gold), _WORDS_FOR.get(answer_key, answer)
        return same(gold, answer, leaf, depth + 1) if gold_key != answer_key else True
    if re.fullmatch(r"[A-Za-z]", gold) and re.fullmatch(r"[A-Za-z]", answer):
        return False  # a choice or a variable; no algebra can make them the same
    if is_words(gold) or is_words(answer):
        return bool(gold_key) and gold_key == word_key(named(answer)[1])
    return None


def _matrices(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    gold_match, answer_match = _MATRIX.fullmatch(gold), _MATRIX.fullmatch(answer)
    if not gold_match or not answer_match:
        return None
    gold_rows, answer_rows = (
        [row.split("&") for row in match[2].split(r"\\") if row.strip()]
        for match in (gold_match, answer_match)
    )
    if [len(row) for row in gold_rows] != [len(row) for row in answer_rows]:
        return False
    pairs = zip(sum(gold_rows, []), sum(answer_rows, []), strict=True)
    return all(same(g.strip(), a.strip(), leaf, depth + 1) for g, a in pairs)


def _regions(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    if not _RELATION.search(gold) and not _RELATION.search(answer):
        return None
    bare = [re.sub(r"^[A-Za-z]\w*\s*\\in(?![a-z])\s*", "", text) for text in (gold, answer)]
    if bare == [gold, answer] or all(_RELATION.search(text) for text in bare):
        return leaf(gold, answer)
    return same(bare[0], bare[1], leaf, depth + 1)


def _equations(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    if len(split_list(gold)) > 1 or len(split_list(answer)) > 1:
        return None
    gold_sides, answer_sides = sides(gold), sides(answer)
    if gold_sides and answer_sides:
        if squeeze(gold_sides[0]) == squeeze(answer_sides[0]):
            return same(gold_sides[1], answer_sides[1], leaf, depth + 1)
        return leaf(gold, answer)
    if gold_sides:
        return names_only(gold_sides[0]) and same(gold_sides[1], answer, leaf, depth + 1)
    if answer_sides:  # "3x + 4y + 14 = 0" does not answer 0
        usable = names_only(answer_sides[0]) or answer_sides[1] != "0"
        return usable and same(gold, answer_sides[1], leaf, depth + 1)
    return None


def _lists(gold: str, answer: str, leaf: Leaf, depth: int) -> bool | None:
    (gold_kind, gold_items), (answer_kind, answer_items) = items(gold), items(answer)
    gold_values, answer_values = (
        in_order(gold_kind, gold_items), in_order(answer_kind, answer_items)
    )  # fmt: skip
    if (gold_values, answer_values) == ([gold], [answer]):
        return None
    if gold_kind == answer_kind == "{}":
        gold_values, answer_values = distinct(gold_values), distinct(answer_values)
    if len(gold_values) != len(answer_values) or len(gold_values) > MAX_ITEMS:
        return False
    if gold_kind in TUPLES or answer_kind in TUPLES:
        if not kinds_agree(gold_kind, answer_kind, len(gold_values)):
            return False
        pairs = zip(gold_values, answer_values, strict=True)
        return all(same(g, a, leaf, depth + 1) for g, a in pairs)
    names = [{name for name, _ in items if name} for items in (gold_items, answer_items)]
    if len(names[0]) == len(names[1]) == len(gold_values) > 1:  # x=1, y=2 on both sides
        pairs = zip(gold_values, answer_values, strict=True)
        return names[0] == names[1] and all(same(g, a, leaf, depth + 1) for g, a in pairs)
    return _same_unordered(gold_values, answer_values, leaf, depth)


def _same_unordered(gold: list[str], answer: list[str], leaf: Leaf, depth: int) -> bool:
    """Greedy matching, which is enough because `same` is an equivalence."""
    left = list(answer)
    for value in gold:
        found = next(
            (i for i, other in enumerate(left) if same(value, other, leaf, depth + 1)), None
        )
        if found is None:
            return False
        del left[found]
    return True


_RULES = (
    _numbers, _other_bases, _times, _words, _ratios, _equations, _matrices, _regions, _lists,
)  # fmt: skip


def same(gold: str, answer: str, leaf: Leaf, depth: int = 0) -> bool:
    """True if two normalised answers agree. Raises whatever `leaf` raises."""
    if squeeze(gold) == squeeze(answer):
        return True
    if depth > MAX_DEPTH:
        return False
    for rule in _RULES:
        verdict = rule(gold, answer, leaf, depth)
        if verdict is not None:
            return verdict
    gold_bare, gold_unit, _ = peel_unit(gold)
    answer_bare, answer_unit, _ = peel_unit(answer)
    if units_differ(gold_unit, answer_unit):
        return False
    if (gold_bare, answer_bare) != (gold, answer):
        return same(gold_bare, answer_bare, leaf, depth + 1)
    if (based := _BASE.fullmatch(gold)) and based[2]:  # math-verify would read 52_8 as 52
        return False
    return leaf(gold, answer)


def leaves(text: str, depth: int = 0) -> list[str]:
    """The parts of a normalised gold answer that only the worker can read."""
    if parse_quantity(text) or clock(text) or is_words(text) or choice_letter(text):
        return []
    if _BASE.fullmatch(text) or depth > MAX_DEPTH:
        return []
    if matrix := _MATRIX.fullmatch(text):
        cells = [cell.strip() for row in matrix[2].split(r"\\") for cell in row.split("&")]
        return [part for cell in cells if cell for part in leaves(cell, depth + 1)]
    if _RELATION.search(text):
        return [text]
    if len(ratio := split_top(text, ":")) > 1 and all(ratio):
        return [part for side in ratio for part in leaves(side, depth + 1)]
    values = [value for _, value in items(text)[1]] or [text]
    bare = peel_unit(text)[0]
    values = [bare] if values == [text] and bare and bare != text else values
    if values == [text]:
        return [text]
    return [part for value in values for part in leaves(value, depth + 1)]
