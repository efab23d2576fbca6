"""How the instruction checks read a text: words, sentences, paragraphs, phrases, markdown.

Completions are hostile input: the patterns here are written to take time linear in the text.

These are the kit's own definitions; the official checker's differ and sit in ifeval_official.py.

- A word is a run of letters and digits; inner apostrophes, hyphens, underscores and decimal signs
  join ("don't", "well-known", "3.14", "1,200", "U.S." are one word each), dashes and slashes
  divide, and a Chinese or Japanese character is a word of its own.
- A sentence ends at . ! ? … or a full-width 。！？, but not inside a number, after a title or an
  abbreviation, or before a lower-case continuation of quoted speech. Line ends alone end nothing.
"""

import re
import unicodedata
from functools import lru_cache

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# scripts written without spaces (or, for Hangul, with attached particles): no word edges to ask for
UNSPACED = IDEOGRAPHS + "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\uac00-\ud7af"
_FENCED_BLOCK = re.compile(
    r"^[ \t]*(`{3,}+|~{3,}+)[^\n]*+\n.*?(?:^[ \t]*\1[ \t]*$|\Z)", re.M | re.S
)
_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "＇": "'", "“": '"', "”": '"'})


def word_set(text: str) -> frozenset[str]:
    """The blank-separated words of a list written as one text."""
    return frozenset(text.split())


@lru_cache(maxsize=1)
def _word_pattern() -> re.Pattern[str]:
    # vowel signs of Indic and Thai scripts are marks, which \w leaves out: it would cut those words
    marks = "".join(chr(c) for c in range(0x300, 0x10000) if unicodedata.category(chr(c))[0] == "M")
    letter = rf"[^\W_{IDEOGRAPHS}][{marks}\u200d]*"
    joint = (
        rf"(?:['’ʼ\-\u2010\u2011_](?={letter})|(?<=\d)[.,](?=\d)|(?<=\b[A-Za-z])\.(?=[A-Za-z]\b))"
    )
    return re.compile(rf"{letter}(?:{letter}|{joint})*|[{IDEOGRAPHS}]")


def words(text: str) -> list[str]:
    """The words of `text` in order, punctuation and markdown left out."""
    return _word_pattern().findall(text)


def has_word(text: str) -> bool:
    """Whether `text` holds at least one letter or digit."""
    return any(character.isalnum() for character in text)


def plain(text: str) -> str:
    """`text` in composed Unicode with straight quotes, so that typography decides no match."""
    return unicodedata.normalize("NFC", text).translate(_APOSTROPHES)


def folded(text: str) -> str:
    """`plain` text in one case with single spaces: for comparing wording only."""
    return " ".join(plain(text).casefold().split())


def without_code(text: str) -> str:
    """`text` without fenced code blocks; one fence around the whole answer is only unwrapped."""
    return _FENCED_BLOCK.sub("", unfenced(text))


def unfenced(text: str, tags: tuple[str, ...] | None = None) -> str:
    """The inside of the one code fence that wraps all of `text`, else `text` stripped.

    `tags` limits the language tags accepted after the fence (any case); None accepts any.
    """
    stripped = text.strip().lstrip("\ufeff")
    match = re.fullmatch(r"(`{3,}+|~{3,}+)[ \t]*+([\w+-]*+)(.*?)\1", stripped, re.S)
    if match is None or (tags is not None and match[2].lower() not in tags):
        return stripped
    return stripped if match[1] in match[3] else match[3].strip()


def phrase_pattern(phrase: str) -> re.Pattern[str]:
    """A case-insensitive pattern for `phrase` as whole words, to be used on `plain` text.

    Everything in the phrase is literal; an edge is only asked for where the phrase itself begins
    or ends with a letter or digit of a script that puts spaces between words.
    """
    tokens = plain(phrase).split()
    if not tokens:
        raise ValueError("a keyword is empty: give a word or a phrase")
    body = r"\s+".join(re.escape(token) for token in tokens)
    return re.compile(
        _edge(tokens[0][0], r"(?<![^\W_])") + body + _edge(tokens[-1][-1], r"(?![^\W_])"), re.I
    )


def _edge(character: str, pattern: str) -> str:
    unspaced = re.match(f"[{UNSPACED}]", character)
    return pattern if character.isalnum() and not unspaced else ""


def count_phrase(phrase: str, text: str) -> int:
    """How often `phrase` stands in `text` as whole words, upper and lower case alike."""
    return len(phrase_pattern(phrase).findall(plain(text)))


def paragraphs(text: str) -> list[str]:
    """The non-empty blocks of `text` between blank lines, stripped."""
    blocks = re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n"))
    return [block.strip() for block in blocks if block.strip()]


# -- sentences ------------------------------------------------------------------------------------

_TITLES = word_set(
    "mr mrs ms mx dr prof st mt rev gen sen rep lt col sgt capt cpl cmdr maj gov pres hon messrs "
    "mme mlle e.g i.e cf viz vs approx ca"
)
_BEFORE_NUMBER = word_set(
    "no nos fig figs eq eqs ch vol pp p sec art para ed jan feb mar apr jun jul aug sep sept oct "
    "nov dec"
)
_MAYBE_FINAL = word_set(
    "etc inc ltd co corp jr sr al dept univ est ave blvd rd ph.d m.d b.a m.a b.c a.d"
)
_OPENERS = word_set(
    "the a an this that these those it he she they we i you his her my our your their its there "
    "here and but so or yet then thus also in on at as for from with after before when while if "
    "although however because since what who why how where which let please no yes now next once "
    "some many most all one each every another both"
)
_LIST_MARKER = re.compile(
    r"^[ \t]*(?:>[ \t]*)*(?:[*+\-•][ \t]+|\(?\d{1,3}[.)][ \t]+|#+[ \t]+)", re.M
)
_SENTENCE_END = re.compile(
    r"(?<![.!?…‽])(?P<end>[.!?…‽]++)(?P<closers>[\"'”’»)\]}*_`]*)(?=\s|$)|(?P<wide>[。！？｡।]+[”’」』）]*)"
)


def sentences(text: str) -> list[str]:
    """The sentences of `text` in order; pieces without a letter or digit are left out."""
    return [piece for piece in sentence_pieces(text) if has_word(piece)]


def sentence_pieces(text: str) -> list[str]:
    """`text` cut at every sentence end; what stands between two ends is kept whatever it is."""
    text = _LIST_MARKER.sub("", text.replace("\r\n", "\n"))
    shows_case = any(character.isupper() for character in text)
    pieces, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if re.fullmatch(r"\s*\(?\d{1,3}\.", text[start : match.end()]):
            continue  # the "2." of a list that runs on in one line
        if match["wide"] or _is_boundary(text, match, shows_case):
            pieces.append(text[start : match.end()].strip())
            start = match.end()
    return [piece for piece in [*pieces, text[start:].strip()] if piece]


def _is_boundary(text: str, match: re.Match[str], shows_case: bool) -> bool:
    following = text[match.end() : match.end() + 200].lstrip(" \t\n\"'“‘«([{*_`#>-")
    if not following:
        return True
    lower_next = shows_case and following[0].islower()
    if match["end"] == ".":
        if lower_next and any(quote in match["closers"] for quote in '"”’»)]'):
            return False  # (He left.) and "I came." he said
        return not _is_abbreviation(text[max(0, match.start() - 40) : match.start()], following)
    if "." in match["end"] or "…" in match["end"]:
        return following[0].isupper() or _has_mark(match["end"])
    return not (lower_next and match["closers"].strip("*_`"))


def _has_mark(end: str) -> bool:
    return "!" in end or "?" in end


def _is_abbreviation(before: str, following: str) -> bool:
    """Whether the full stop after `before` belongs to its last word rather than to a sentence."""
    token = re.search(r"[^\W\d_](?:[\w.]*[^\W_])?$", before)
    if token is None:
        return False
    word = token[0].lower()
    next_word = (words(following) or [""])[0]
    if word in _TITLES:
        return True
    if word in _BEFORE_NUMBER:
        return next_word[:1].isdigit()
    if len(word) == 1 and token[0] != "I":  # an initial: J. K. Rowling
        return next_word[:1].isupper() and next_word.lower() not in _OPENERS
    if word in _MAYBE_FINAL or re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", word):
        clock = word in ("a.m", "p.m")
        opens = next_word[:1].isupper() and (clock or next_word.lower() in _OPENERS)
        return not (opens or (word in _MAYBE_FINAL and next_word[:1].isupper()))
    return False
