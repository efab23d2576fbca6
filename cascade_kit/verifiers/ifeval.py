"""Instruction following: the 25 IFEval constraint types and IFBench's, checked without a model.

A row has two lists of one length, `instruction_id_list` and `kwargs`; an id may stand in it twice
and keeps its own arguments. The reward is 1 only if every constraint holds strictly.

Known faults of the official checker (google-research/instruction_following_eval) that are mended
here; `official=True` reproduces them, to compare with published figures (ifeval_official.py; each
is told beside the function in ifeval_checks.py):

- keywords are unescaped regular expressions found inside longer words; forbidden words that begin
  or end with a sign ("$5", "C++") are never found;
- letter_frequency drew a random letter for signs such as "#" and "!" (until 2025);
- langdetect was not seeded, judges capitals and short texts badly, and text without letters passes;
- words are runs of \\w: "don't" is two, and vowel signs cut Hindi words; capital words are treebank
  tokens: AT&T is two;
- sentences end at "1." and "i.e.";
- ***bold italics*** divide paragraphs; the nth paragraph is looked up in a list that was not the
  one counted;
- [ ], [1] and [text](link) are placeholders; --- and -5 and *emphasis* are bullets; 2 * 3 * 4 is a
  highlight and ***one*** is two; each mention of "Section 1" is a section, empty or not;
- "P.P.S." holds a "P.S.", and an empty postscript passes;
- all three options at once are a constrained response; NaN is JSON, a ```jSoN fence is not;
- "Cats." and "cats" are two different responses; a repeated prompt needs no answer after it;
- "recall me" ends with "call me"; "Yes," she said, "no." is wrapped in quotation marks, curly
  quotes are none; only the ASCII comma is a comma.

Where the instruction itself is vague the official reading is kept: section, highlight and
placeholder numbers are minima, text around a constrained response is allowed, and a repeated prompt
may differ in case. IFBench types that need a large word list or a tagger (odd_even_syllables,
start_verb) are unknown here and refused like any unknown id.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_kit.problem import Score
from cascade_kit.verifiers import ifeval_checks as checks
from cascade_kit.verifiers import ifeval_official as official_checks
from cascade_kit.verifiers.ifbench import IFBENCH_CONSTRAINTS
from cascade_kit.verifiers.ifeval_conflicts import refuse_conflicts
from cascade_kit.verifiers.ifeval_constraint import Constraint, resolve_kwargs

IFEVAL_CONSTRAINTS: Mapping[str, Constraint] = {
    "keywords:existence": Constraint(
        checks.keywords_existence,
        {"keywords": "texts"},
        "include the keywords {keywords}",
        official_checks.keywords_existence,
    ),
    "keywords:frequency": Constraint(
        checks.keywords_frequency,
        {"keyword": "text", "frequency": "count", "relation": "relation"},
        "use the word {keyword!r} {relation} {frequency} times",
        official_checks.keywords_frequency,
    ),
    "keywords:forbidden_words": Constraint(
        checks.forbidden_words,
        {"forbidden_words": "texts"},
        "do not use the words {forbidden_words}",
        official_checks.forbidden_words,
    ),
    "keywords:letter_frequency": Constraint(
        checks.letter_frequency,
        {"letter": "letter", "let_frequency": "count", "let_relation": "relation"},
        "use the character {letter!r} {let_relation} {let_frequency} times",
        official_checks.letter_frequency,
    ),
    "language:response_language": Constraint(
        checks.response_language,
        {"language": "language"},
        "answer in the language {language!r} only",
        official_checks.response_language,
    ),
    "length_constraints:number_sentences": Constraint(
        checks.number_sentences,
        {"num_sentences": "count", "relation": "relation"},
        "write {relation} {num_sentences} sentences",
        official_checks.number_sentences,
    ),
    "length_constraints:number_paragraphs": Constraint(
        checks.number_paragraphs,
        {"num_paragraphs": "positive"},
        "write exactly {num_paragraphs} paragraphs divided by ***",
        official_checks.number_paragraphs,
    ),
    "length_constraints:number_words": Constraint(
        checks.number_words,
        {"num_words": "count", "relation": "relation"},
        "answer with {relation} {num_words} words",
        official_checks.number_words,
    ),
    "length_constraints:nth_paragraph_first_word": Constraint(
        checks.nth_paragraph_first_word,
        {"num_paragraphs": "positive", "nth_paragraph": "positive", "first_word": "text"},
        "write exactly {num_paragraphs} paragraphs; number {nth_paragraph} starts with "
        "{first_word!r}",
        official_checks.nth_paragraph_first_word,
    ),
    "detectable_content:number_placeholders": Constraint(
        checks.number_placeholders,
        {"num_placeholders": "count"},
        "use at least {num_placeholders} [placeholders]",
        official_checks.number_placeholders,
    ),
    "detectable_content:postscript": Constraint(
        checks.postscript,
        {"postscript_marker": "text"},
        "end with a postscript starting with {postscript_marker}",
        official_checks.postscript,
    ),
    "detectable_format:number_bullet_lists": Constraint(
        checks.number_bullet_lists,
        {"num_bullets": "count"},
        "write exactly {num_bullets} markdown bullet points",
        official_checks.number_bullet_lists,
    ),
    "detectable_format:constrained_response": Constraint(
        checks.constrained_response,
        {},
        "answer with one of the options My answer is yes. / no. / maybe.",
        official_checks.constrained_response,
    ),
    "detectable_format:number_highlighted_sections": Constraint(
        checks.number_highlighted_sections,
        {"num_highlights": "count"},
        "highlight at least {num_highlights} sections with *stars*",
        official_checks.number_highlighted_sections,
    ),
    "detectable_format:multiple_sections": Constraint(
        checks.multiple_sections,
        {"section_spliter": "text", "num_sections": "count"},
        "write {num_sections} sections that begin with {section_spliter} 1, 2, ...",
        official_checks.multiple_sections,
    ),
    "detectable_format:json_format": Constraint(
        checks.json_format, {}, "wrap the entire output in JSON", official_checks.json_format
    ),
    "detectable_format:title": Constraint(
        checks.title, {}, "give a title in <<double angular brackets>>", official_checks.title
    ),
    "combination:two_responses": Constraint(
        checks.two_responses,
        {},
        "give two different responses divided by ******",
        official_checks.two_responses,
    ),
    "combination:repeat_prompt": Constraint(
        checks.repeat_prompt,
        {"prompt_to_repeat": "text"},
        "repeat the request word for word, then answer",
        official_checks.repeat_prompt,
    ),
    "startend:end_checker": Constraint(
        checks.end_checker,
        {"end_phrase": "text"},
        "finish with the exact phrase {end_phrase!r}",
        official_checks.end_checker,
    ),
    "startend:quotation": Constraint(
        checks.quotation, {}, "wrap everything in double quotes", official_checks.quotation
    ),
    "change_case:capital_word_frequency": Constraint(
        checks.capital_word_frequency,
        {"capital_frequency": "count", "capital_relation": "relation"},
        "use words in all capitals {capital_relation} {capital_frequency} times",
        official_checks.capital_word_frequency,
    ),
    "change_case:english_capital": Constraint(
        checks.english_capital,
        {},
        "answer in English and in capital letters only",
        official_checks.english_capital,
    ),
    "change_case:english_lowercase": Constraint(
        checks.english_lowercase,
        {},
        "answer in English and in lowercase letters only",
        official_checks.english_lowercase,
    ),
    "punctuation:no_comma": Constraint(
        checks.no_comma, {}, "do not use any commas", official_checks.no_comma
    ),
}

CONSTRAINTS: Mapping[str, Constraint] = {**IFEVAL_CONSTRAINTS, **IFBENCH_CONSTRAINTS}


@dataclass(frozen=True)
class ConstraintReport:
    """One verdict a constraint, in the order of the prompt's list."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]  # true wherever `strict` is


def validate_constraints(
    instruction_id_list: Sequence[str],
    kwargs: Sequence[Mapping[str, Any] | None] | None,
    prompt: str = "",
) -> None:
    """Refuse a prompt that cannot be scored: ValueError on unknown ids, kwargs or contradictions.

    `prompt` only helps to find the row: its beginning is quoted in the message.
    """
    try:
        resolved = _resolve(instruction_id_list, kwargs)
        refuse_conflicts(list(zip(instruction_id_list, resolved, strict=True)))
    except ValueError as fault:
        raise _located(fault, prompt) from None


def check_constraints(
    instruction_id_list: Sequence[str],
    kwargs: Sequence[Mapping[str, Any] | None] | None,
    completion: str,
    *,
    prompt: str = "",
    official: bool = False,
) -> ConstraintReport:
    """Judge `completion` by every constraint; a blank one fails them all.

    Loose is IFEval's upper bound: the answer as it is, without its first line, its last line or
    both, and each of the four without asterisks. ValueError on ids or kwargs that cannot be judged.
    """
    try:
        resolved = _resolve(instruction_id_list, kwargs)
    except ValueError as fault:
        raise _located(fault, prompt) from None
    strict, loose = [], []
    for name, arguments in zip(instruction_id_list, resolved, strict=True):
        constraint = CONSTRAINTS[name]
        check = constraint.official if official and constraint.official else constraint.check
        verdicts = (
            bool(text.strip()) and check(text, **arguments) for text in _loose_variants(completion)
        )
        strict.append(next(verdicts))
        loose.append(strict[-1] or any(verdicts))
    return ConstraintReport(tuple(strict), tuple(loose))


def score_instructions(
    instruction_id_list: Sequence[str],
    kwargs: Sequence[Mapping[str, Any] | None] | None,
    completion: str,
    *,
    prompt: str = "",
    official: bool = False,
) -> Score:
    """1.0 if every constraint holds strictly, else 0.0; the parts tell each verdict by position."""
    report = check_constraints(
        instruction_id_list, kwargs, completion, prompt=prompt, official=official
    )
    total = len(report.strict)
    value = float(all(report.strict))
    parts = {
        "strict": value,
        "loose": float(all(report.loose)),
        "fraction": sum(report.strict) / total,
    }
    for position, (name, holds) in enumerate(
        zip(instruction_id_list, report.strict, strict=True), start=1
    ):
        parts[f"{position} {name}"] = float(holds)
    if value:
        return Score(value, parts, f"constraints that hold: {total} of {total}")
    first = report.strict.index(False)
    name = instruction_id_list[first]
    arguments = resolve_kwargs(name, CONSTRAINTS[name], (kwargs or [None] * total)[first])
    task = CONSTRAINTS[name].words(arguments)
    return Score(value, parts, f"constraint {first + 1} fails ({name}): {task}")


def _located(fault: ValueError, prompt: str) -> ValueError:
    where = f" (prompt: {' '.join(prompt.split())[:60]!r})" if prompt else ""
    return ValueError(f"{fault}{where}")


def _loose_variants(completion: str) -> list[str]:
    lines = completion.split("\n")
    cuts = [
        completion,
        "\n".join(lines[1:]).strip(),
        "\n".join(lines[:-1]).strip(),
        "\n".join(lines[1:-1]).strip(),
    ]
    return [*cuts, *(text.replace("*", "") for text in cuts)]


def _resolve(
    instruction_id_list: Sequence[str], kwargs: Sequence[Mapping[str, Any] | None] | None
) -> list[dict[str, Any]]:
    """The cleaned arguments of every constraint, or ValueError."""
    if isinstance(instruction_id_list, str) or not instruction_id_list:
        raise ValueError("instruction_id_list is empty: a prompt needs at least one constraint")
    for name in instruction_id_list:
        if name not in CONSTRAINTS:
            near = difflib.get_close_matches(str(name), CONSTRAINTS, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown constraint id {name!r}{hint}")
    if kwargs is None:
        kwargs = [None] * len(instruction_id_list)
    if isinstance(kwargs, str | Mapping) or len(kwargs) != len(instruction_id_list):
        raise ValueError(
            f"{len(instruction_id_list)} constraints need a list of as many kwargs, "
            f"not {len(kwargs)}: write {{}} for those without arguments"
        )
    resolved = [
        resolve_kwargs(name, CONSTRAINTS[name], given)
        for name, given in zip(instruction_id_list, kwargs, strict=True)
    ]
    for name, arguments in zip(instruction_id_list, resolved, strict=True):
        nth, total = arguments.get("nth_paragraph", 0), arguments.get("num_paragraphs", 0)
        if nth > total > 0:
            raise ValueError(f"{name}: paragraph {nth} of {total} does not exist")
    return resolved
