"""IFBench checks on form, and its checks written for one prompt (Pyatkin et al. 2025).

As in ifbench_words.py: what the instruction says, or with `official=True` what the published
checker decides where that differs.
"""

import csv
import datetime
import io
import re
import string
import unicodedata
from itertools import pairwise

from cascade_kit.verifiers.ifeval_official import punkt_sentences
from cascade_kit.verifiers.ifeval_text import (
    has_word,
    plain,
    sentence_pieces,
    sentences,
    word_set,
    words,
)

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_EMOJI = re.compile(
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf"
    "\u2934\u2935\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_EMOJI_PARTS = "\ufe0f\u200d\u20e3" + "".join(map(chr, range(0x1F3FB, 0x1F400)))
_MINOR_WORDS = word_set(
    "a an the and but or nor for so yet as at by in of off on per to up via if it with from into "
    "onto over than that like near down is be vs"
)
_CAPITALS = (  # capital cities of Europe north of 45 degrees, from north to south
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin "
    "Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz "
    "Chisinau Bern Ljubljana Zagreb"
)


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


# -- format ---------------------------------------------------------------------------------------


def emoji(completion: str, official: bool = False) -> bool:
    """An emoji ends every sentence, before or after its full stop."""
    pieces = punkt_sentences(completion) if official else sentence_pieces(completion)
    bare = [_emoji_text(piece) for piece in pieces]
    if not official:
        bare = [text for text in bare if text]
    for text, following in pairwise([*bare, ""]):
        if not text:
            return False
        if not _EMOJI.match(text[-1]) and not (following and _EMOJI.match(following[0])):
            return False
    return bool(bare)


def _emoji_text(piece: str) -> str:
    return "".join(c for c in piece.translate(_NO_PUNCTUATION) if c not in _EMOJI_PARTS).strip()


def line_indent(completion: str, official: bool = False) -> bool:
    """Every line is indented further than the one before; blank lines do not matter."""
    # official: of several blank lines in a row every other one counts as a line
    lines = completion.split("\n")
    if official:
        for line in lines:  # the fault is this removal from the list that is being walked
            if not line.strip():
                lines.remove(line)
    else:
        lines = [line.expandtabs() for line in lines if line.strip()]
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    rising = all(one < two for one, two in pairwise(indents))
    return rising and (official or len(indents) > 1)


def marked_list(completion: str, sep: str, official: bool = False) -> bool:
    """At least two lines begin with the marker that stands in place of bullets."""
    # official: the marker occurs twice anywhere, as "-" does in many texts
    if official:
        return completion.count(sep) >= 2
    return sum(line.lstrip().startswith(sep) for line in completion.splitlines()) >= 2


def newline(completion: str) -> bool:
    """Each word stands on a line of its own."""
    lines = [line for line in completion.translate(_NO_PUNCTUATION).split("\n") if line.strip()]
    return bool(lines) and all(len(line.split()) == 1 for line in lines)


def no_bullets_bullets(completion: str, official: bool = False) -> bool:
    """Two sentences that end in a full stop, then at least two bullets of *."""
    # official: a blank line between or after the bullets fails
    lines = completion.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip().startswith("*")), None)
    if first is None:
        return False
    bullets = [line.strip() for line in lines[first:]]
    if official:
        count = sum(len(punkt_sentences(line.strip())) for line in lines[:first])
        return count >= 2 and len(bullets) >= 2 and all(b.startswith("*") for b in bullets)
    before = sentences("\n".join(lines[:first]))
    statements = sum(sentence.rstrip("\"'”’)*_").endswith(".") for sentence in before)
    return statements >= 2 and sum(bool(re.match(r"\*\s*[^\s*]", b)) for b in bullets) >= 2


def no_whitespace(completion: str, official: bool = False) -> bool:
    """No blank, tab or line break (but a final line break is forgiven)."""
    text = completion if official else completion.strip()
    return not any(character.isspace() for character in text)


def options(completion: str, options: str, official: bool = False) -> bool:
    """The answer is one of the options, separated by "/", "or" or commas, and nothing else."""
    separator = next((sign for sign in ("/", "or") if sign in options), ",")
    offered = [option.strip() for option in options.split(separator)]
    lettered = re.match(r"\W*[aA]\W*[bB]\W*[cC]\W*", options) is not None
    if lettered and official:
        return completion in offered
    edges = string.punctuation + string.whitespace
    answer = plain(completion).strip(edges).lower()
    return answer in [plain(option).strip(edges).lower() for option in offered]


def output_template(completion: str, official: bool = False) -> bool:
    """My Answer: ... My Conclusion: ... Future Outlook: ... in this order, each with text."""
    # official: any order, empty too
    labels = ("My Answer:", "My Conclusion:", "Future Outlook:")
    if official:
        return all(label in completion for label in labels)
    parts = re.split("|".join(labels), completion)
    in_order = re.findall("|".join(labels), completion) == list(labels)
    return in_order and not has_word(parts[0]) and all(has_word(part) for part in parts[1:])


def parentheses(completion: str) -> bool:
    """A closed group of brackets ( [ { with brackets nested five deep."""
    pairs = {")": "(", "]": "[", "}": "{"}
    stack: list[str] = []
    heights = [0]  # the deepest closed nesting inside each open bracket
    for sign in completion:
        if sign in "([{":
            stack.append(sign)
            heights.append(0)
        elif sign in pairs:
            if not stack or stack.pop() != pairs[sign]:
                stack, heights = [], [0]  # a stray bracket: nothing open can close properly
                continue
            height = heights.pop() + 1
            heights[-1] = max(heights[-1], height)
            if height >= 5:
                return True
    return False


def quote_unquote(completion: str, official: bool = False) -> bool:
    """Every quoted phrase is followed by words outside quotation marks."""
    text = completion if official else plain(completion)
    text = "".join(text.replace("'\"'", "").split())
    if '""' in text:
        return False
    return not text.rstrip(string.digits + string.punctuation.replace('"', "")).endswith('"')


def quotes(completion: str, official: bool = False) -> bool:
    """Quotes three deep that alternate between double and single marks."""
    # official: the apostrophe of "don't" opens a quote
    text = completion if official else re.sub(r"(?<=\w)'(?=\w)", "", plain(completion))
    stack: list[str] = []
    deepest = 0
    for sign in text:
        if stack and sign == stack[-1]:
            stack.pop()
            if deepest - len(stack) >= 3:
                return True
        elif sign in "\"'":
            stack.append(sign)
            deepest = max(deepest, len(stack))
    return False


def sub_bullets(completion: str, official: bool = False) -> bool:
    """At least one bullet *, and at least one sub-bullet - under each."""
    # official: any two stars with a dash between, so that **bold** fails and hyphens pass
    if official:
        return all("-" in piece for piece in completion.split("*")[1:])
    marks = re.findall(r"^[ \t>]*([*-])\s+\S", completion, re.M)
    groups = "".join(marks).split("*")
    return len(groups) > 1 and all(groups[1:])


def thesis(completion: str, official: bool = False) -> bool:
    """Text in HTML italics, <i> or <em>, is followed by text without."""
    # official: an opening <i> may be closed by </em>, and by one that stands before it
    if official:
        start = max(completion.find("<i>"), -1)
        start = start if start != -1 else completion.find("<em>")
        rest = completion[start:] if start != -1 else ""
        end = rest.find("</i>") if "</i>" in rest else rest.find("</em>")
        return end > 0 and bool(rest[3:end].strip()) and bool(rest[end + 4 :].strip())
    match = re.search(r"<(i|em)>(.*?)</\1>", completion, re.S | re.I)
    return bool(match) and has_word(match[2]) and has_word(completion[match.end() :])


def title_case(completion: str, official: bool = False) -> bool:
    """Every word begins with a capital; officially small words too."""
    tokens = [word for word in words(plain(completion)) if word[0].isalpha()]
    if official:
        return not any(token.islower() for token in tokens)
    major = [token for token in tokens if token.lower() not in _MINOR_WORDS]
    return bool(tokens) and not any(token.islower() for token in major)


# -- custom: each belongs to one prompt -----------------------------------------------------------


def character_reverse(completion: str) -> bool:
    """The national animal of the US, spelt backwards."""
    return "elgae dlab" in completion.lower()


def word_reverse(completion: str) -> bool:
    """A sentence with the bald eagle whose words stand in reverse order."""
    backwards = [word.lower() for word in words(completion)][::-1]
    return ("bald", "eagle") in zip(backwards, backwards[1:], strict=False)


def _csv_rows(text: str, **dialect) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text), **dialect))
    except csv.Error:  # what the model wrote is no CSV
        return []


def csv_city(completion: str, official: bool = False) -> bool:
    """CSV with the header ID,Country,City,Year,Count and seven rows; blank lines around it pass."""
    rows = _csv_rows(completion if official else completion.strip())
    header = [cell.strip() for cell in rows[0]] if rows else []
    columns = ["ID", "Country", "City", "Year", "Count"]
    return len(rows) == 8 and header == columns and all(len(row) == 5 for row in rows)


def csv_special_character(completion: str) -> bool:
    """CSV of products, fourteen rows, one quoted field with a special character."""
    text = completion.strip()
    rows = _csv_rows(text, skipinitialspace=True)
    columns = ["ProductID", "Category", "Brand", "Price", "Stock"]
    if len(rows) != 15 or [cell.strip() for cell in rows[0]] != columns:
        return False
    quoted = re.findall(r'"([^"\n]*)"', text.split("\n", 1)[1])
    special = any(re.search(r"[^\w\s]", field) for field in quoted)
    return special and all(len(row) == 5 for row in rows)


def csv_quotes(completion: str) -> bool:
    """Tab-separated values, a header and three rows, each field in double quotes."""
    rows = [line.strip().split("\t") for line in completion.strip().split("\n")]
    columns = ["StudentID", "Subject", "Grade", "Semester", "Score"]
    cells = [cell.strip() for row in rows for cell in row]
    quoted = all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells[5:])
    header = [cell.strip().strip('"') for cell in rows[0]]
    return len(rows) == 4 and header == columns and quoted and all(len(row) == 5 for row in rows)


def date_format_list(completion: str) -> bool:
    """Dates of Napoleon's lifetime as YYYY-MM-DD, separated by commas."""
    for date in completion.strip().split(","):
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date.strip()):
            return False
        try:
            year = datetime.date.fromisoformat(date.strip()).year
        except ValueError:  # no such day
            return False
        if not 1769 <= year <= 1821:
            return False
    return True


def european_capitals_sort(completion: str) -> bool:
    """The capitals north of 45 degrees, separated by commas, from north to south."""
    return [
        name.strip() for name in _ascii(completion).split(",") if name.strip()
    ] == _CAPITALS.split()


def mcq_count_length(completion: str) -> bool:
    """Four questions labelled "Question", each longer than the last, with five options A to E."""
    if not completion.startswith("Question"):
        return False
    questions = [q.strip() for q in re.split(r"\n*Question \d+[|.):;]?\s*", completion)]
    lengths = []
    for question in filter(None, questions):
        lines = [line.strip() for line in question.split("\n")]
        is_option = [bool(re.match(r"[A-Ea-e][|.)]\s*\w", line)) for line in lines]
        if sum(is_option) != 5:
            return False
        lengths.append(len(" ".join(lines[: is_option.index(True)]).strip()))
    return len(lengths) == 4 and all(one < two for one, two in pairwise(lengths))


def multiples(completion: str) -> bool:
    """The multiples of seven from 10 to 50, and no other number."""
    return re.findall(r"\d+", completion) == [str(n) for n in range(14, 51, 7)]


def reverse_newline(completion: str) -> bool:
    """At least 52 African countries from Zimbabwe on, in reverse alphabetical order."""
    edges = string.punctuation + string.whitespace
    lines = [line.strip(edges) for line in completion.split("\n") if line.strip(edges)]
    start = next((i for i, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    names = [_ascii(line) for line in lines[start:]]
    return len(names) >= 52 and names == sorted(names, reverse=True)


def sentence_alphabet(completion: str, official: bool = False) -> bool:
    """26 sentences that begin with a, b, c, ... z; opening quotes are passed over."""
    found = punkt_sentences(completion) if official else sentences(completion)
    edges = string.punctuation + string.whitespace + "“‘"
    initials = [sentence.lstrip("" if official else edges)[:1].lower() for sentence in found]
    return initials == list(string.ascii_lowercase)
