"""The official IFEval verdicts, faults included, for comparing figures with published ones.

Written from the behaviour of google-research/instruction_following_eval, not from its code. It
needs no NLTK data: `punkt_sentences` and `treebank_tokens` imitate the two NLTK tokenizers it uses
(the punkt decision rules of Kiss and Strunk 2006 with a short list of abbreviations in place of the
trained model). What is random there (langdetect's sampling) is seeded here.
"""

import json
import re
from itertools import pairwise

from cascade_kit.verifiers import ifeval_language
from cascade_kit.verifiers.ifeval_constraint import RELATIONS
from cascade_kit.verifiers.ifeval_text import word_set

_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

# -- NLTK's tokenizers ----------------------------------------------------------------------------

# abbreviations that the trained English model knows; it does not know e.g., i.e., etc. or no.
_ABBREVIATIONS = word_set(
    "mr mrs ms dr prof jr sr st rep reps sen gen col lt maj messrs inc ltd co corp cos bros cie vs "
    "jan feb aug sep sept oct nov dec tues wed fri a.m p.m u.s u.k u.n u.s.a u.s.s.r d.c l.a n.y "
    "n.j n.c n.h n.m n.d s.c r.i w.va ph.d m.b.a a.d a.c ala ariz calif colo conn fla ga ill kan "
    "ky mich minn nev okla ore pa tenn va vt wash wis ave ft mg yr j.k j.r j.p j.j j.b j.c "
    "c d e f g h k l m n p r s t v w adm ok ct"
)
# capitalised, these show that an abbreviation before them ended a sentence
_STARTERS = word_set(
    "according although always among both but despite does even furthermore he her here however i "
    "if in indeed instead it many meanwhile moreover most nevertheless nonetheless nor overall "
    "separately similarly since so some the there therefore these they this though thus together "
    "ultimately under unfortunately unlike using when whether which while without yes yet your "
    "remember imagine learn try thank consider create choose check contact include"
)
# "9. Review" and the like were titles in the training text
_AFTER_NUMBER = word_set(
    "business corrections commodities credit dividend financing international leisure letters "
    "notable pepper review who"
)
_APART = '("`{[:;&#*@)}]-,'  # a token of its own at the start of a word
_MARK = re.compile(r"[.?!](?=[?!)\";}\]*:@'({\[”’]|$)")  # a mark that may end a sentence
_REALIGN = re.compile(r"[\"')\]}”’]+?(?:\s+|(?=--)|$)")


def punkt_sentences(text: str) -> list[str]:
    """`text` cut where NLTK's English punkt tokenizer ends a sentence (approximately)."""
    pieces, start = [], 0
    for token, following in pairwise([*re.finditer(r"\S+", text), None]):
        marks = [mark.end() for mark in _MARK.finditer(token[0])]
        if following is None and marks and marks[-1] == len(token[0]):
            marks.pop()  # the end of the text is no break
        if not marks:
            continue
        line = text.rfind("\n", 0, token.start()) + 1
        listed = not text[line : token.start()].strip(" \t-")
        after = token[0][marks[-1] :][:1] or None
        if _punkt_breaks(token[0][: marks[-1]], after, following and following[0], listed):
            end = token.start() + marks[-1]
            pieces.append(text[start:end])
            start = end if after else following.start()
    pieces.append(text[start:].rstrip())
    return [piece for piece in _realigned(pieces) if piece]


def _punkt_breaks(token: str, mark_after: str | None, next_token: str | None, listed: bool) -> bool:
    """Whether a sentence ends after `token`; `listed` when it opens its line, as in a list."""
    if not token.endswith("."):
        return True
    if mark_after in ("?", "!"):
        return False  # one token of several marks: its last one decides
    body = token[:-1].lstrip("'" + _APART).lower()
    following = mark_after or next_token or ""
    word = "" if following[:1] in _APART else re.sub(r"\W+$", "", following)
    starts = word[:1].isupper() and word.lower() in _STARTERS
    if re.fullmatch(r"[^\W\d_]", body):  # an initial
        known = body in _ABBREVIATIONS or word[:1].islower()
        return not known and (not word[:1].isupper() or listed or starts)
    if body.endswith(".") or body in _ABBREVIATIONS or body.rsplit("-", 1)[-1] in _ABBREVIATIONS:
        return starts  # an ellipsis or an abbreviation
    if re.fullmatch(r"-?[.,]?\d[\d,.-]*", body):
        return not (word[:1].islower() or word.lower() in _AFTER_NUMBER)
    return True


def _realigned(pieces: list[str]) -> list[str]:
    """Closing quotes and brackets moved back to the sentence they close."""
    moved, offset = [], 0
    for index, piece in enumerate(pieces):
        piece = piece[offset:]
        offset = 0
        if index + 1 < len(pieces):
            closing = _REALIGN.match(pieces[index + 1])
            if closing:
                piece += closing[0].rstrip()
                offset = closing.end()
        moved.append(piece)
    return moved


_SPLITS = (
    (re.compile(r"[;@#$%&*?!()\[\]{}<>\"“”‘’«»`]|--|\.{2,}"), " "),
    (re.compile(r"[:,](?=\D|$)"), " "),
    (re.compile(r"(?<=[^' ])('(?:s|m|d|ll|re|ve)?|n't)(?=\s|$)", re.I), r" \1 "),
    (re.compile(r"\b(can)(not)\b|\b(gim|lem)(me)\b|\b(gon|wan)(na)\b|\b(got)(ta)\b", re.I), None),
)


def treebank_tokens(text: str) -> list[str]:
    """The word tokens of NLTK's treebank tokenizer; punctuation tokens are left out."""
    for pattern, spaced in _SPLITS:
        if spaced is None:
            text = pattern.sub(lambda m: " ".join(part for part in m.groups() if part), text)
        else:
            text = pattern.sub(spaced, text)
    return text.split()


# -- the checks whose verdict differs from the mended ones ----------------------------------------


def _pattern(source: str, flags: int = re.I) -> re.Pattern[str]:
    try:
        return re.compile(source, flags)
    except re.error as fault:
        raise ValueError(
            f"the official checker cannot read {source!r} as a regex ({fault}); score this row "
            "without --official"
        ) from None


def keywords_existence(completion: str, keywords: tuple[str, ...]) -> bool:
    """Every keyword, read as a regular expression, matches anywhere."""
    return all(_pattern(keyword).search(completion) for keyword in keywords)


def keywords_frequency(completion: str, keyword: str, frequency: int, relation: str) -> bool:
    """The keyword, read as a regular expression, matches `relation` `frequency` times."""
    return RELATIONS[relation](len(_pattern(keyword.strip()).findall(completion)), frequency)


def forbidden_words(completion: str, forbidden_words: tuple[str, ...]) -> bool:
    r"""No word, read as a regular expression between \b, matches."""
    return not any(_pattern(rf"\b{word}\b").search(completion) for word in forbidden_words)


def letter_frequency(completion: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """The character's count; the 2023 checker drew a random letter for # and !, which is not."""
    return RELATIONS[let_relation](completion.lower().count(letter.lower()), let_frequency)


def _detected(completion: str) -> str | None:
    guesses = ifeval_language.ranked(completion)
    return guesses[0][0] if guesses else None


def response_language(completion: str, language: str) -> bool:
    """langdetect's first guess is the very code; a text without letters passes."""
    return _detected(completion) in (None, language)


def english_capital(completion: str) -> bool:
    """Upper case, and English to langdetect as it stands."""
    return completion.isupper() and _detected(completion) in (None, "en")


def english_lowercase(completion: str) -> bool:
    """Lower case, and English to langdetect."""
    return completion.islower() and _detected(completion) in (None, "en")


def capital_word_frequency(completion: str, capital_frequency: int, capital_relation: str) -> bool:
    """Treebank tokens in upper case."""
    count = sum(token.isupper() for token in treebank_tokens(completion))
    return RELATIONS[capital_relation](count, capital_frequency)


def number_words(completion: str, num_words: int, relation: str) -> bool:
    r"""Runs of \w."""
    return RELATIONS[relation](len(re.findall(r"\w+", completion)), num_words)


def number_sentences(completion: str, num_sentences: int, relation: str) -> bool:
    """Punkt sentences."""
    return RELATIONS[relation](len(punkt_sentences(completion)), num_sentences)


def number_paragraphs(completion: str, num_paragraphs: int) -> bool:
    """Any three asterisks divide; only the first and the last piece may be blank."""
    pieces = re.split(r"\s?\*{3}\s?", completion)
    if not all(piece.strip() for piece in pieces[1:-1]):
        return False
    blank_ends = {index for index in (0, len(pieces) - 1) if not pieces[index].strip()}
    return len(pieces) - len(blank_ends) == num_paragraphs


def nth_paragraph_first_word(
    completion: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    """Counts the non-blank pieces, but looks for the nth among all pieces."""
    pieces = completion.split("\n\n")
    count = sum(bool(piece.strip()) for piece in pieces)
    if nth_paragraph > count or not pieces[nth_paragraph - 1].strip():
        return False
    opening = pieces[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    opening = re.split(r"[.,?!'\"]", opening)[0].lower()
    return count == num_paragraphs and opening == first_word.lower()


def number_placeholders(completion: str, num_placeholders: int) -> bool:
    """Square brackets on one line, whatever they hold."""
    count = 0
    for line in completion.split("\n"):
        end = -1
        while (start := line.find("[", end + 1)) != -1 and (end := line.find("]", start)) != -1:
            count += 1
    return count >= num_placeholders


def postscript(completion: str, postscript_marker: str) -> bool:
    """The marker occurs anywhere."""
    marker = postscript_marker.strip()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    source = known.get(marker) or marker.lower()
    return _pattern(source, 0).search(completion.lower()) is not None


def number_bullet_lists(completion: str, num_bullets: int) -> bool:
    """Lines that begin with one star or with a dash."""
    lines = [line.lstrip() for line in completion.split("\n")]
    count = sum(line.startswith("-") for line in lines)
    swallowed = False  # a lone star takes the line after it into its bullet
    for line, following in pairwise([*lines, None]):
        lone = line == "*" and following is not None
        count += not swallowed and (lone or bool(re.match(r"\*[^*]", line)))
        swallowed = not swallowed and lone
    return count == num_bullets


def constrained_response(completion: str) -> bool:
    """One of the options, or several, occur anywhere."""
    return any(option in completion for option in _OPTIONS)


def number_highlighted_sections(completion: str, num_highlights: int) -> bool:
    """Text between any two stars, plus text between any two pairs of stars."""
    single = re.findall(r"\*[^\n\*]*\*", completion)
    double = re.findall(r"\*\*[^\n\*]*\*\*", completion)
    count = sum(bool(span.strip("*").strip()) for span in single)
    return count + sum(bool(span[2:-2].strip()) for span in double) >= num_highlights


def multiple_sections(completion: str, section_spliter: str, num_sections: int) -> bool:
    """Mentions of the splitter, a regular expression, with a number."""
    pattern = _pattern(rf"\s?{section_spliter.strip()}\s?\d+\s?", 0)
    return len(pattern.split(completion)) - 1 >= num_sections


def json_format(completion: str) -> bool:
    """What Python's json module reads, NaN included, after three spellings of the fence."""
    text = completion.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(completion: str) -> bool:
    """Something but blanks and angles between << and >> on one line."""
    found = re.findall(r"<<[^\n]+>>", completion)
    return any(text.lstrip("<").rstrip(">").strip() for text in found)


def two_responses(completion: str) -> bool:
    """Two pieces that are not the same string; only the first and last piece may be blank."""
    pieces = completion.split("******")
    if not all(piece.strip() for piece in pieces[1:-1]):
        return False
    filled = [piece.strip() for piece in pieces if piece.strip()]
    return len(filled) == 2 and filled[0] != filled[1]


def repeat_prompt(completion: str, prompt_to_repeat: str) -> bool:
    """The text begins with the request in any case."""
    return completion.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(completion: str, end_phrase: str) -> bool:
    """The text without straight double quotes at its ends finishes with the phrase."""
    return completion.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(completion: str) -> bool:
    """The first and the last of at least two characters are straight double quotes."""
    text = completion.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def no_comma(completion: str) -> bool:
    """No ASCII comma."""
    return "," not in completion
