"""What a constraint is, and which keyword arguments it may be given.

Data sets pad `kwargs` with None and write counts as floats (5.0): both are read, everything else
that does not fit raises, since a check with a guessed argument would reward the wrong thing.
"""

import operator
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade_kit.verifiers import ifeval_language

RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "at least": operator.ge,
    "less than": operator.lt,
    "at most": operator.le,
    "more than": operator.gt,
    "exactly": operator.eq,
}


@dataclass(frozen=True)
class Constraint:
    """One instruction type: `check(completion, **kwargs)`, mended, and the official verdict.

    `required` maps each keyword argument to its kind (a key of KINDS); `official` is None where the
    official checker and `check` agree; `description` is filled with the keyword arguments.
    """

    check: Callable[..., bool]
    required: Mapping[str, str]
    description: str
    official: Callable[..., bool] | None = None
    optional: Mapping[str, str] = field(default_factory=dict)

    def words(self, kwargs: Mapping[str, Any]) -> str:
        """The instruction in words, such as "answer with at least 20 words"."""
        return self.description.format(**kwargs)


def resolve_kwargs(name: str, constraint: Constraint, kwargs: Any) -> dict[str, Any]:
    """`kwargs` checked and cleaned for `constraint`; ValueError names what is missing or wrong."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ValueError(f"{name}: kwargs must be an object, not {type(kwargs).__name__}")
    given = {key: value for key, value in (kwargs or {}).items() if value is not None}
    missing = [key for key in constraint.required if key not in given]
    if missing:
        raise ValueError(f"{name}: missing kwargs {', '.join(missing)}; given: {sorted(given)}")
    kinds = {**constraint.required, **constraint.optional}
    unknown = sorted(set(given) - set(kinds))
    if unknown:
        raise ValueError(
            f"{name}: unknown kwargs {', '.join(unknown)}; it takes {sorted(kinds) or 'none'}"
        )
    resolved = {}
    for key, value in given.items():
        try:
            resolved[key] = KINDS[kinds[key]](value)
        except ValueError as fault:
            raise ValueError(f"{name}: {key}={value!r}: {fault}") from None
    return resolved


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError("must be a whole number")
    if value < 0:
        raise ValueError("must not be negative")
    return int(value)


def _positive(value: Any) -> int:
    if _count(value) == 0:
        raise ValueError("must be at least 1")
    return int(value)


def _percentage(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ValueError("must be a number from 0 to 100")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a non-empty string")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a non-empty list of strings")
    return tuple(_text(item) for item in value)


def _letter(value: Any) -> str:
    if not isinstance(value, str) or len(unicodedata.normalize("NFC", value.strip())) != 1:
        raise ValueError("must be one character")
    return unicodedata.normalize("NFC", value.strip())


def _relation(value: Any) -> str:
    if value not in RELATIONS:
        raise ValueError(f"must be one of {', '.join(RELATIONS)}")
    return value


def _language(value: Any) -> str:
    ifeval_language.codes(_text(value))
    return value


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "count": _count,  # 0, 1, 2, ...
    "positive": _positive,  # 1, 2, ...
    "percentage": _percentage,
    "text": _text,
    "texts": _texts,
    "letter": _letter,
    "relation": _relation,
    "language": _language,
}
