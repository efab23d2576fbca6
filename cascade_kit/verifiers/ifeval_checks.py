"""The 25 IFEval checks, mended: one function an instruction type, (completion, kwargs) -> bool.

They decide what the instruction says in words; where the official checker decides something else,
the comment beside the function says what was wrong. Definitions: the instruction texts of Zhou et
al. 2023 (arXiv 2311.07911, appendix). No function is called with a blank completion.
"""

import json
import re

from cascade_kit.verifiers import ifeval_language
from cascade_kit.verifiers.ifeval_constraint import RELATIONS
from cascade_kit.verifiers.ifeval_text import (
    count_phrase,
    folded,
    has_word,
    paragraphs,
    phrase_pattern,
    plain,
    sentences,
    unfenced,
    without_code,
    words,
)

COMMAS = ",\uff0c\u3001\ufe50\ufe51\ufe10\ufe11\uff64\u060c\u055d\u07f8\u1363\u1802\u1808"
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_CLOSERS = " \t\r\n\"'*_`~)]}»"

# -- keywords -------------------------------------------------------------------------------------


def keywords_existence(completion: str, keywords: tuple[str, ...]) -> bool:
    """Every keyword stands in the text as a whole word."""
    # official: an unescaped regex found anywhere, so "art" in "start" counts and "C++" is an error
    return all(phrase_pattern(keyword).search(plain(completion)) for keyword in keywords)


def keywords_frequency(completion: str, keyword: str, frequency: int, relation: str) -> bool:
    """The keyword stands in the text `relation` `frequency` times, as a whole word."""
    return RELATIONS[relation](count_phrase(keyword, completion), frequency)


def forbidden_words(completion: str, forbidden_words: tuple[str, ...]) -> bool:
    """None of the words stands in the text as a whole word."""
    # official: unescaped between \b, so "$5" and "C++" are never found, nor _bad_ in italics
    return not any(phrase_pattern(word).search(plain(completion)) for word in forbidden_words)


def letter_frequency(completion: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """The character, upper and lower case alike, occurs `let_relation` `let_frequency` times."""
    # official (2023): anything but a-z, such as # or !, is replaced by a random letter
    count = plain(completion).lower().count(plain(letter).lower())
    return RELATIONS[let_relation](count, let_frequency)


# -- language and case ----------------------------------------------------------------------------


def response_language(completion: str, language: str) -> bool:
    """The text is in `language`."""
    # official: langdetect without a seed, text without letters passes, "zh" never does
    return ifeval_language.is_language(without_code(completion), language)


def english_capital(completion: str) -> bool:
    """English without a single lower-case letter."""
    # official: langdetect on capitals, which it takes for German now and then
    return completion.isupper() and ifeval_language.is_language(completion, "en")


def english_lowercase(completion: str) -> bool:
    """English without a single upper-case letter."""
    return completion.islower() and ifeval_language.is_language(completion, "en")


def capital_word_count(completion: str) -> int:
    """How many words are written in capitals only ("I" and "NASA's" count, "DON'T" once)."""
    bare = (re.sub(r"'[sS]$", "", plain(word)) for word in words(completion))
    return sum(word.isupper() for word in bare)


def capital_word_frequency(completion: str, capital_frequency: int, capital_relation: str) -> bool:
    """Words in capitals only occur `capital_relation` `capital_frequency` times."""
    # official: tokens of a treebank tokenizer, where DON'T and AT&T are two
    return RELATIONS[capital_relation](capital_word_count(completion), capital_frequency)


# -- length ---------------------------------------------------------------------------------------


def number_words(completion: str, num_words: int, relation: str) -> bool:
    """The text has `relation` `num_words` words."""
    # official: runs of \w, so "don't" and "3.14" are two words and Hindi vowel signs split words
    return RELATIONS[relation](len(words(completion)), num_words)


def number_sentences(completion: str, num_sentences: int, relation: str) -> bool:
    """The text has `relation` `num_sentences` sentences."""
    # official: a punkt model that ends sentences at "1." and at "i.e."
    return RELATIONS[relation](len(sentences(completion)), num_sentences)


def number_paragraphs(completion: str, num_paragraphs: int) -> bool:
    """Dividers of three asterisks cut the text into exactly that many non-empty paragraphs."""
    # official: the asterisks of ***bold italics*** divide as well
    emphasis = r"(?<![^\s\"'(])\*{3}(?=[^\s*])[^*\n]+(?<=[^\s*])\*{3}(?![^\s\"').,;:!?])"
    pieces = re.split(r"\*{3,}", re.sub(emphasis, "bold", completion))
    for end in (0, -1):  # a divider at the very start or end adds no paragraph
        if pieces and not pieces[end].strip():
            pieces.pop(end)
    return len(pieces) == num_paragraphs and all(piece.strip() for piece in pieces)


def nth_paragraph_first_word(
    completion: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    """Blank lines make exactly `num_paragraphs` paragraphs; the nth begins with `first_word`."""
    # official: counts non-blank pieces but indexes all pieces, keeps **, cuts words at apostrophes
    blocks = paragraphs(completion)
    if len(blocks) != num_paragraphs or nth_paragraph > len(blocks):
        return False
    wanted = [word.casefold() for word in words(plain(first_word))]
    opening = words(plain(blocks[nth_paragraph - 1]))[: len(wanted)]
    return [word.casefold() for word in opening] == wanted


# -- content --------------------------------------------------------------------------------------


def number_placeholders(completion: str, num_placeholders: int) -> bool:
    """At least that many [placeholders]."""
    # official: empty brackets, check boxes, [1] and [text](links) count as well
    found = re.findall(r"\[([^\[\]\n]+)\](?!\()", completion)
    boxes = re.findall(r"^[ \t]*(?:[*+-]|\d+[.)])[ \t]+\[[xX]\](?!\()", completion, re.M)
    named = [text for text in found if re.search(r"[^\W\d]|_", text)]
    return len(named) - len(boxes) >= num_placeholders


def postscript(completion: str, postscript_marker: str) -> bool:
    """A postscript with some text begins with the marker, after the answer proper."""
    # official: "P.P.S." contains a "P.S.", an empty one passes, and so does one at the very start
    marker = postscript_marker.strip()
    initials = re.fullmatch(r"((?:p\.\s?)+)s\.?", marker, re.I)
    if initials:
        count = marker.lower().count("p")
        body = r"p\.\s?" * count + (r"s\." if marker.endswith(".") else r"s\b\.?")
        pattern = rf"(?<![^\W_])(?<!p\.)(?<!p\.\s){body}"
    else:
        pattern = rf"(?<![^\W_]){re.escape(marker)}"
    for match in re.finditer(pattern, completion, re.I):
        before, after = completion[: match.start()], completion[match.end() :]
        if has_word(after) and (has_word(before) or len(paragraphs(after)) == 1):
            return True
    return False


# -- format ---------------------------------------------------------------------------------------


def bullet_count(completion: str) -> int:
    """How many lines are markdown bullets of * or - (a blank after the mark is not required)."""
    count = 0
    for line in without_code(completion).splitlines():
        line = re.sub(r"^[\s>]*", "", line)
        if re.fullmatch(r"([*-])(\s*\1){2,}\s*", line):  # --- and * * * are rules
            continue
        if re.match(r"[*-]\s+\S", line):
            count += 1
        elif re.match(r"\*[^*\s]", line):  # *emphasis* opens a paragraph, not a list
            count += not re.match(r"\*[^*]*[^*\s]\*(?!\*)", line)
        elif re.match(r"-[^-\d\s>]", line):  # -5 is a number, -- a dash, -> an arrow
            count += 1
    return count


def number_bullet_lists(completion: str, num_bullets: int) -> bool:
    """Exactly that many bullet points."""
    # official: rules (---), negative numbers and lines that open with *emphasis* are bullets
    return bullet_count(completion) == num_bullets


def constrained_response(completion: str) -> bool:
    """Exactly one of the three answers is given; text around it is allowed, as officially."""
    # official: naming all three options passes
    text, options = " ".join(plain(completion).split()), OPTIONS
    if text.islower() or text.isupper():  # another constraint may ask for one case
        text, options = text.casefold(), tuple(option.casefold() for option in OPTIONS)
    given = [option for option in options if option in text]
    if len(given) > 1:  # a repeated question quotes the options: these are no answer
        for option in given:
            text = text.replace(f"'{option}'", "").replace(f'"{option}"', "")
        given = [option for option in given if option in text]
    return len(given) == 1


def highlight_count(completion: str) -> int:
    """How many non-empty spans are marked *so*, **so** or ***so***, each counted once."""
    text = re.sub(r"(?<!`)(`++)[^`\n]+\1", "code", without_code(completion))
    text = re.sub(
        r"^[ \t>]*[*+-][ \t]+", "", text, flags=re.M
    )  # the star of a bullet opens nothing
    span = (
        r"(?<![*\\A-Za-z0-9])(\*{1,3})(?=[^\s*])"
        r"((?:(?!\1)[^\n])+?)(?<=[^\s*\\])\1(?![*0-9])"
    )
    return sum(has_word(match[2]) for match in re.finditer(span, text))


def number_highlighted_sections(completion: str, num_highlights: int) -> bool:
    """At least that many highlighted spans."""
    # official: 2 * 3 * 4 and the text between two bullets' stars count, ***both*** counts twice
    return highlight_count(completion) >= num_highlights


def multiple_sections(completion: str, section_spliter: str, num_sections: int) -> bool:
    """At least that many differently numbered sections "SPLITER n", each with some text."""
    # official: every mention counts, empty sections too, and the splitter is an unescaped regex
    body = r"\s+".join(re.escape(token) for token in section_spliter.split())
    one_case = completion.isupper() or completion.islower()
    marker = re.compile(
        rf"(?<![^\W_])(?:{body})\s?#?(\d+|[IVXLC]+)(?![^\W_])", re.I if one_case else 0
    )
    _, *pieces = marker.split(completion)  # number, text, number, text, ...
    numbers, texts = pieces[::2], pieces[1::2]
    filled = {n.lower() for n, text in zip(numbers, texts, strict=True) if has_word(text)}
    return len(filled) >= num_sections


def json_format(completion: str) -> bool:
    """The whole text, or all of one code fence around it, is a JSON value."""
    # official: NaN and Infinity pass; a fence tag in odd case (```jSoN) does not
    text = unfenced(completion, tags=("", "json"))
    try:
        json.loads(text, parse_constant=_refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def title(completion: str) -> bool:
    """A title in <<double angular brackets>>."""
    # official: any text between << and >> on a line, code and punctuation included
    found = re.findall(r"<<((?:(?!<<|>>)[^\n])+)>>", without_code(completion))
    return any(has_word(text) for text in found)


# -- combination, start and end, punctuation ------------------------------------------------------


def two_responses(completion: str) -> bool:
    """Two answers that differ in more than typography, divided by exactly six asterisks."""
    # official: a blank, a full stop or a capital makes two answers different
    answers = re.split(r"(?<!\*)\*{6}(?!\*)", completion)
    for end in (0, -1):
        if len(answers) > 2 and not answers[end].strip():
            answers.pop(end)
    label = r"^\W*(?:response|answer|option|version)\s*(?:\d+|one|two|[a-z])?\W+"
    bare = [" ".join(words(re.sub(label, "", folded(answer)))) for answer in answers]
    return len(bare) == 2 and all(bare) and bare[0] != bare[1]


def repeat_prompt(completion: str, prompt_to_repeat: str) -> bool:
    """The text begins with the request, word for word, and an answer follows."""
    # official: no answer is needed, "... about rain" is repeated by "... about rainbows", and a
    # line break or a curly quote in place of the straight one is a change
    text, request = folded(completion), folded(prompt_to_repeat)
    rest = text[len(request) :]
    same_word = rest[:1].isalnum() and request[-1:].isalnum()
    return text.startswith(request) and not same_word and has_word(rest)


def end_checker(completion: str, end_phrase: str) -> bool:
    """The text ends with the phrase; closing quotes or marks may follow, words may not."""
    # official: "recall me" ends with "call me", curly quotes and ** after the phrase fail
    text, phrase = folded(completion).rstrip(_CLOSERS), folded(end_phrase).rstrip(_CLOSERS)
    if phrase and phrase[-1].isalnum():
        text = text.rstrip(".!?… ").rstrip(_CLOSERS)
    before = text[: -len(phrase)][-1:]
    return text.endswith(phrase) and not (before.isalnum() and phrase[:1].isalnum())


def quotation(completion: str) -> bool:
    """One pair of double quotation marks, straight or curly, wraps the whole text."""
    # official: curly quotes fail; "Yes," she said, "no." passes although nothing wraps it
    text = completion.strip()
    if len(text) < 3 or text[0] not in '"“„”' or text[-1] not in '"”“' or not has_word(text):
        return False
    depth = 0
    for index, character in enumerate(text[:-1]):
        if character in '"“”„':
            depth += _quote_step(text, index)
        elif depth == 0 and character.isalnum():
            return False  # a word between two quotations
    return True


def _quote_step(text: str, index: int) -> int:
    """+1 for an opening quote, -1 for a closing one, 0 for an inch mark or an escaped quote."""
    before, after = text[index - 1] if index else " ", text[index + 1]
    if before == "\\" or (before.isdigit() and text[index] == '"'):
        return 0
    if text[index] in "“„":
        return -1 if text[index] == "“" and text[0] == "„" else 1
    opens = (before.isspace() or before in "([{—–-\"'“*_") and not after.isspace()
    return 1 if opens else -1


def no_comma(completion: str) -> bool:
    """Not one comma, full-width and other scripts' commas included."""
    # official: only the ASCII comma is one
    return not any(comma in completion for comma in COMMAS)
