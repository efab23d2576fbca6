"""Which constraints cannot hold together: found when a prompt is loaded, not after a flat run.

Only proofs count: bounds on one quantity that leave no value, pairs that exclude each other, two
texts for one place, and a demanded text that a ban forbids. What is merely hard is left alone.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cascade_kit.verifiers import ifeval_checks as checks
from cascade_kit.verifiers import ifeval_language
from cascade_kit.verifiers.ifeval_text import folded

Pair = tuple[str, Mapping[str, Any]]  # a constraint id and its resolved kwargs

_EXCLUSIVE = (
    ("change_case:english_capital", "change_case:english_lowercase"),
    ("detectable_format:json_format", "combination:two_responses"),
    ("detectable_format:json_format", "combination:repeat_prompt"),
    ("detectable_format:json_format", "detectable_format:number_bullet_lists"),
    ("startend:quotation", "combination:repeat_prompt"),
)
_ONE_PLACE = {  # what two constraints of one type may not answer differently
    "combination:repeat_prompt": "prompt_to_repeat",
    "startend:end_checker": "end_phrase",
    "length_constraints:nth_paragraph_first_word": "first_word",
}
_BOUNDS = {
    "length_constraints:number_words": lambda k: [("words", k["relation"], k["num_words"])],
    "length_constraints:number_sentences": lambda k: [
        ("sentences", k["relation"], k["num_sentences"])
    ],
    "count:word_count_range": lambda k: [
        ("words", "at least", k["min_words"]),
        ("words", "at most", k["max_words"]),
    ],
    "keywords:frequency": lambda k: [
        (f"keyword {folded(k['keyword'])}", k["relation"], k["frequency"])
    ],
    "keywords:existence": lambda k: [
        (f"keyword {folded(word)}", "at least", 1) for word in k["keywords"]
    ],
    "keywords:letter_frequency": lambda k: [
        (f"letter {k['letter'].lower()}", k["let_relation"], k["let_frequency"])
    ],
    "change_case:capital_word_frequency": lambda k: [
        ("capital words", k["capital_relation"], k["capital_frequency"])
    ],
    "change_case:english_lowercase": lambda k: [("capital words", "exactly", 0)],
    "change_case:english_capital": lambda k: [("capital words", "at least", 1)],
    "length_constraints:number_paragraphs": lambda k: [
        ("paragraphs between ***", "exactly", k["num_paragraphs"])
    ],
    "length_constraints:nth_paragraph_first_word": lambda k: [
        ("paragraphs between blank lines", "exactly", k["num_paragraphs"])
    ],
    "detectable_format:number_bullet_lists": lambda k: [
        ("bullet points", "exactly", k["num_bullets"])
    ],
}
_AT_LEAST_ONE = ("words", "sentences", "paragraphs between ***", "paragraphs between blank lines")


def refuse_conflicts(constraints: Sequence[Pair]) -> None:
    """Raise ValueError naming the first pair of constraints that no answer can satisfy."""
    _refuse_empty_ranges(constraints)
    for first, second in itertools.combinations(constraints, 2):
        reason = _excludes(first, second) or _excludes(second, first)
        if reason:
            raise ValueError(f"contradictory constraints {first[0]} and {second[0]}: {reason}")


def _refuse_empty_ranges(constraints: Sequence[Pair]) -> None:
    bounds: dict[str, list[float]] = {}
    asked: dict[str, list[str]] = defaultdict(list)
    for name, kwargs in constraints:
        for quantity, relation, number in _quantities(name, kwargs):
            floor = 1 if quantity in _AT_LEAST_ONE else 0
            low, high = bounds.setdefault(quantity, [floor, float("inf")])
            least, most = _range(relation, number)
            bounds[quantity] = [max(low, least), min(high, most)]
            asked[quantity].append(f"{relation} {number}")
            if bounds[quantity][0] > bounds[quantity][1]:
                wishes = " and ".join(asked[quantity])
                raise ValueError(
                    f"contradictory constraints on {quantity}: {wishes} ({name}); remove one"
                )


def _range(relation: str, number: int) -> tuple[float, float]:
    return {
        "at least": (number, float("inf")),
        "more than": (number + 1, float("inf")),
        "less than": (0, number - 1),
        "at most": (0, number),
        "exactly": (number, number),
    }[relation]


def _quantities(name: str, kwargs: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(quantity, relation, number) for everything that a constraint bounds."""
    return _BOUNDS[name](kwargs) if name in _BOUNDS else []


def _excludes(first: Pair, second: Pair) -> str | None:
    """Why `second` cannot hold once `first` does, or None."""
    names = (first[0], second[0])
    if names in _EXCLUSIVE:
        return _exclusive_reason(first, second)
    return _other_language(first, second) or _other_text(first, second) or _banned(first, second)


def _exclusive_reason(first: Pair, second: Pair) -> str | None:
    if second[1].get("num_bullets") == 0:
        return None
    opening = second[1].get("prompt_to_repeat", "").strip()[:1]
    if (first[0] == "startend:quotation" and opening in ('"', "“")) or opening in ("{", "["):
        return None
    return "one excludes the other"


def _other_language(first: Pair, second: Pair) -> str | None:
    languages = []
    for name, kwargs in (first, second):
        if name.startswith("change_case:english"):
            languages.append({"en"})
        elif name == "language:response_language":
            languages.append(set(ifeval_language.codes(kwargs["language"])))
    if len(languages) == 2 and not languages[0] & languages[1]:
        return "two languages"
    return None


def _other_text(first: Pair, second: Pair) -> str | None:
    key = _ONE_PLACE.get(first[0])
    if key is None or first[0] != second[0]:
        return None
    if first[1].get("nth_paragraph") != second[1].get("nth_paragraph"):
        return None
    one, two = folded(first[1][key]), folded(second[1][key])
    fits = {
        "end_phrase": one.endswith(two) or two.endswith(one),
        "prompt_to_repeat": one.startswith(two) or two.startswith(one),
        "first_word": one.startswith(two) or two.startswith(one),
    }[key]
    return None if fits else f"two different texts for {key}"


def _banned(demand: Pair, ban: Pair) -> str | None:
    for text in _demanded_texts(*demand):
        if not _allows(ban, text):
            return f"{text[:60]!r} is demanded by one and forbidden by the other"
    return None


def _demanded_texts(name: str, kwargs: Mapping[str, Any]) -> Iterator[str]:
    if name == "keywords:existence":
        yield from kwargs["keywords"]
    elif name == "keywords:frequency":
        least, _ = _range(kwargs["relation"], kwargs["frequency"])
        if least > 0:
            yield kwargs["keyword"]
    else:
        keys = ("prompt_to_repeat", "end_phrase", "first_word", "postscript_marker")
        yield from (kwargs[key] for key in keys if key in kwargs)


def _allows(ban: Pair, text: str) -> bool:
    """Whether a text that holds `text` can still satisfy `ban`, which more text never mends."""
    name, kwargs = ban
    relation = kwargs.get("relation", kwargs.get("let_relation"))
    bounded = relation in ("less than", "at most")
    if name == "punctuation:no_comma":
        return checks.no_comma(text)
    if name == "keywords:forbidden_words":
        return checks.forbidden_words(text, **kwargs)
    if name == "keywords:frequency" and bounded:
        return checks.keywords_frequency(text, **kwargs)
    if name == "keywords:letter_frequency" and bounded:
        return checks.letter_frequency(text, **kwargs)
    if name == "length_constraints:number_words" and bounded:
        return checks.number_words(text, **kwargs)
    return True
