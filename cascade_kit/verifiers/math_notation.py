r"""One way of writing each answer: LaTeX spelling, and answers that are words.

`normalise` removes differences of spelling that never change the meaning.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

# ---- spelling -----------------------------------------------------------------------------------

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
    "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ",
    "°": r"^{\circ}", "ℝ": r"\mathbb{R}", "≈": r"\approx ", "∖": r"\setminus ", "⁄": "/",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "θ": r"\theta ",
    "λ": r"\lambda ", "μ": r"\mu ", "φ": r"\phi ", "ω": r"\omega ", "σ": r"\sigma ",
    "\u200b": "", "\u2060": "", "\ufeff": "", "\u2061": "", "\u200e": "", "％": r"\%",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]))")
_ORDINAL = r"(?<=\d)\s*(?:\^\s*\{?\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?|(?:st|nd|rd|th)\b)"

# Pairs applied in order. Each left side is spelling, never meaning.
_SPELLING = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:displaystyle|textstyle|limits)(?![a-z])\s*", ""),
        (r"\\(?:(?:left|right)(?![a-z])\s*\.?|[bB]igg?[lr]?(?![a-z]))\s*", ""),
        (r"\\(?:dfrac|tfrac|cfrac)(?![a-z])", r"\\frac"),
        (r"\\(?:mbox|textbf|textit|textrm|textnormal|textsf|hbox)\s*(?=\{)", r"\\text"),
        (r"\\(?:mathrm|mathbf|mathit|mathsf|boldsymbol)\s*\{(\w)\}", r" \1 "),
        (r"\\(?:mathrm|mathbf|mathit|mathsf)\s*(?=\{)", r"\\text"),
        (r"(?<=\d)\s*\{,\}\s*(?=\d)", ","),
        (r"\\!\s*", ""),
        (r"(?<=\d)\\,(?=\d{3}(?!\d))", ","),
        (r"\\log_\{?e\}?(?![a-z])", r"\\ln "),
        (r"(?<!\\)\\[,;: ]|~|\\q?quad(?![a-z])|\\[hv]space\{[^{}]*\}", " "),
        (r"\\(?:leqslant|leq)(?![a-z])|<=", r"\\le "),
        (r"\\(?:geqslant|geq)(?![a-z])|>=", r"\\ge "),
        (r"\\neq(?![a-z])", r"\\ne "),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"\\lbrace(?![a-z])", r"\\{"),
        (r"\\rbrace(?![a-z])", r"\\}"),
        (r"\\(?:langle|lparen)(?![a-z])", "("),
        (r"\\(?:rangle|rparen)(?![a-z])", ")"),
        (r"\\varnothing(?![a-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\infin(?:ity)?(?![a-z])|(?<!\\)\binfinity\b", r"\\infty "),
        (r"\+\s*/\s*-|\+-(?=\s*[\d\\])", r"\\pm "),
        (r"\*\*", "^"),
        (r"\^\s*\{?\s*\\(?:circ|degree)(?![a-z])\s*\}?|\\degree(?![a-z])", r"^{\\circ}"),
        (r"(?<=[\d}])\s*(?:\\text\{\s*degrees?\s*\}|degrees?\b)(?!\s*[CF])", r"^{\\circ}"),
        (r"\\?%|\\text\{\s*(?:percent|\\?%)\s*\}|(?<=\d)\s*percent\b", r"\\%"),
        (_ORDINAL, ""),
        (r"\{\s*([^{}]+?)\s*\\over(?![a-z])\s*([^{}]+?)\s*\}", r"\\frac{\1}{\2}"),
        (r"^([^{}]+?)\s*\\over(?![a-z])\s*([^{}]+?)$", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*(?=\{)", r"\\frac{\1}"),
        (r"(\\frac\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*(\d)", r"\1{\2}"),
        (r"\\sqrt\s*(\d|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\^\s*(-?\d{2,}|-\d)", r"^{\1}"),
        (r"([\^_])\s*\{\s*(\w)\s*\}(?!\w)", r"\1\2"),
        (r"^\](?=[^][]*,[^][]*[][]$)", "("),  # ]0,1[ is the open interval
        (r"(?<=[^][])\[$", ")"),
        (r"\s+", " "),
    ]
]
_ENVIRONMENT = re.compile(r"\\begin\{(cases|aligned)\}(.*?)\\end\{\1\}", re.DOTALL)
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def _vulgar_fraction(match: re.Match) -> str:
    value = Fraction(unicodedata.numeric(match[0])).limit_denominator(10)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _fold_unicode(text: str) -> str:
    if text.isascii():
        return text
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda m: f"^{{{m[0].translate(_SUPERSCRIPTS)}}}", text)
    text = re.sub(r"[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅐⅑⅒]", _vulgar_fraction, text)
    text = "".join(_UNICODE.get(character, character) for character in text)
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2]}}}", text)
    return unicodedata.normalize("NFKC", text)


def _unwrap(text: str) -> str:
    r"""Without math delimiters, an inner `\boxed{}` and closing punctuation around the whole."""
    text = text.strip()
    for opening, closing in _DELIMITERS:
        inner = text[len(opening) : -len(closing)]
        wrapped = text.startswith(opening) and text.endswith(closing)
        if wrapped and inner and opening not in inner:
            return inner
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:  # an odd one is money
        text = re.sub(r"(?<!\\)\$", "", text)
    text = re.sub(r"\\(?:boxed|fbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1", text)
    return text if MERIDIEM.search(text) else re.sub(r"(?<![.\s\\])[.;,]\s*$", "", text)


@lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    """`text` in one spelling; never an error."""
    if re.fullmatch(r"-?[0-9]+(?:\.[0-9]+)?", text):  # the common case needs none of the rules
        return text
    text = _ENVIRONMENT.sub(lambda m: re.sub(r"\\\\|&", lambda x: ", " * (x[0] != "&"), m[2]), text)
    text = _fold_unicode(text)
    while (bare := _unwrap(text)) != text:
        text = bare
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    return _unwrap(text).strip()


def squeeze(text: str) -> str:
    """A normalised text without blanks, except between digits: `11 5/6` is not `115/6`."""
    return re.sub(r"(?<!\d) | (?!\d)", "", text)


# ---- words --------------------------------------------------------------------------------------

MERIDIEM = re.compile(r"(?<![A-Za-z])([ap])\s*\.?\s*m\b\s*\.?", re.IGNORECASE)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def plain_words(text: str) -> str:
    r"""`text` with `\text{...}` opened."""
    return _TEXT.sub(r"\1", text).strip()


def is_words(text: str) -> bool:
    r"""True for an answer in words: all `\text{}`, or letters that cannot be a product."""
    outside = _TEXT.sub("", text)
    if outside != text:
        return not re.search(r"[A-Za-z0-9=<>+*/^\\]", outside)
    words = re.split(r"[ '’-]", text)
    phrase = " " in text and all(len(word) > 1 for word in words)
    return all(word.isalpha() for word in words) and (phrase or max(map(len, words)) > 3)


def has_words(text: str) -> bool:
    """True if at least one word of three letters or more is in it, commands aside."""
    return bool(re.search(r"(?<![\\A-Za-z])[^\W\d_]{3,}", plain_words(text)))


def word_key(text: str) -> str:
    """Letters and digits only, case folded."""
    return "".join(c for c in plain_words(text).casefold() if c.isalnum())


def choice_letter(text: str) -> str | None:
    r"""The letter of a multiple-choice answer: `B`, `(B)`, `\text{(B)}`."""
    words = re.sub(r"^(?:option|choice|answer)\b:?", "", plain_words(text), flags=re.IGNORECASE)
    found = re.fullmatch(r"\(?([A-Z])\)?\.?", words.replace(" ", ""))
    return found[1] if found else None


def starts_with_choice(text: str, letter: str) -> bool:
    """True for `(B) 12`, `B. 12` or `B: 12` when the letter is B."""
    found = re.match(r"\(([A-Z])\)\s*\S|([A-Z])[).:]\s*\S", plain_words(text))
    return bool(found) and letter in found.groups()


def clock(text: str) -> tuple[int, int, str] | None:
    """(hour, minute, "a", "p" or "") of a time such as `4:30 p.m.`, else None."""
    words = plain_words(text)
    found = re.match(r"^(\d{1,2})\s*:\s*(\d{2})(?!\d)\s*", words)
    if not found:
        return None
    rest, half = words[found.end() :].strip(), MERIDIEM.search(words)
    if rest and not half:
        return None
    return int(found[1]), int(found[2]), half[1].lower() if half else ""
