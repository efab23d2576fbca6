r"""Finds the answer a completion commits to; says nothing about whether it is right.

Only the text after the thought counts (thinking.py). A box inside code, verbatim or quotation
marks is talk about boxes, not an answer, and a box that never closes is a cut-off answer.
"""

import re
from typing import Literal

from cascade_kit.problem import Score
from cascade_kit.verifiers.thinking import answer_part

ExtractMode = Literal["boxed", "auto", "last"]

# Regions whose text is shown, not said. LaTeX quotes (``a'') and inches (5") look alike, hence
# the conditions on the neighbours of a backtick or a straight quote.
_QUOTED = re.compile(
    r"""\\begin\{(?P<env>verbatim|lstlisting|minted|comment)\*?\}.{0,9999}?\\end\{(?P=env)\*?\}
      | \\verb\*?(?P<bar>[^\w\s*])[^\n]*?(?P=bar)
      | <(?P<tag>code|pre)>.{0,9999}?</(?P=tag)>
      | (?<![`\\])(?P<tick>`{1,2})(?![`\s])[^`\n]*(?<!\s)(?P=tick)(?![`\w])
      | ``[^`\n]*?''
      | “[^“”\n]*”
      | (?<![\w}])"(?=\S)[^"\n]*(?<=\S)"(?!\w)""",
    re.VERBOSE | re.DOTALL,
)
_FENCE = re.compile(r"^[ \t]*(?:>[ \t]*)?(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$", re.MULTILINE)
_SHOWN_MATH = ("math",)  # a ```math fence renders its content, so a box in it is an answer
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LINK = re.compile(  # what may stand between boxes that together are one answer
    r"^(?:[\s$,;&.]|\\[,;\s()\[\]]|\\q?quad|and|or|\\text\{\s*(?:and|or)\s*\}"
    r"|[A-Za-z](?:_\{?\w\}?)?\s*=)*$"
)


def think_format(completion: str, *, prompt_end: str = "") -> Score:
    """1 if the completion is one non-empty thought and one non-empty answer, else 0.

    `prompt_end` is the tail of the prompt: a chat template may already have opened `<think>`.
    """
    opened = prompt_end.rstrip().endswith("<think>")
    thought, closed, answer = completion.partition("</think>")
    head = thought.strip()
    if not opened and head.startswith("<think>"):
        head, opened = head.removeprefix("<think>").strip(), True
    tags_left = "<think>" in head or "<think>" in answer or "</think>" in answer
    good = bool(opened and closed and head and answer.strip() and not tags_left)
    return Score(
        float(good), {"format": float(good)}, "think format" if good else "no think format"
    )


def _blank_fences(text: str) -> str:
    """`text` with fenced code blanked out (same length); an open fence runs to the end."""
    pieces, position, opening = [], 0, None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence[1].startswith(opening[1]) and not fence[2]:
            if opening[2].lower() not in _SHOWN_MATH:
                pieces += [text[position : opening.start()], " " * (fence.end() - opening.start())]
                position = fence.end()
            opening = None
    if opening is not None and opening[2].lower() not in _SHOWN_MATH:
        pieces += [text[position : opening.start()], " " * (len(text) - opening.start())]
        position = len(text)
    return "".join(pieces) + text[position:]


def _closing_braces(text: str) -> dict[int, int]:
    r"""Position of each `{` -> position of its `}`; `\{` and `\}` are not braces."""
    closing, open_braces, position = {}, [], 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        position = match.start()
        if match[0] == "{":
            open_braces.append(position)
        elif match[0] == "}" and open_braces:
            closing[open_braces.pop()] = position
    return closing


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""(start, end, content) of every closed, outermost, non-empty `\boxed{...}`, in order."""
    shown = _QUOTED.sub(lambda match: " " * len(match[0]), _blank_fences(text))
    closing = _closing_braces(shown)
    found: list[tuple[int, int, str]] = []
    for match in _BOX.finditer(shown):
        end = closing.get(match.end() - 1)
        if end is None or (found and match.start() < found[-1][1]):
            continue
        content = text[match.end() : end].strip()
        if content and not re.search(r"\n\s*\n", content):  # TeX has no box across paragraphs
            found.append((match.start(), end + 1, content))
    return found


def linked_boxes(completion: str) -> list[str]:
    r"""The last box together with the boxes tied to it by a comma, "and" or "or"."""
    text = answer_part(completion)
    found = boxes(text)
    linked = [found[-1]] if found else []
    for box in reversed(found[:-1]):
        if not _LINK.match(text[box[1] : linked[0][0]]):
            break
        linked.insert(0, box)
    return [content for _, _, content in linked]


_NUMBER = r"[-+−]?\s*(?:\\?[$€£])?\s*[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?(?:\s*\\?%)?"
_STATEMENT = re.compile(
    r"(?:\#{4}[ \t]*"
    r"|^[ \t>*_]*A[ \t]*[:=][ \t*]*"
    r"|\banswers?\b[ \t]*(?:\*\*)?[ \t]*[:=][ \t*:]*"
    r"|\banswers?\b[^.:\n=]{0,60}?\b(?:is|are|equals)\b[ \t*:]*"
    r"|^[ \t#*]*(?:the\s+)?final\s+answer[ \t*:]*(?=\n))",
    re.IGNORECASE | re.MULTILINE,
)
_LEAD_IN = re.compile(
    r"^(?:therefore|thus|then|simply|just|indeed|exactly|approximately|about|equal to|equals"
    r"|that|hence|=|:|,|\s|\*\*)+(?=\S)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<![ap]\.m)[.!?](?=\s|\*|$)", re.IGNORECASE)
_CLAUSE = re.compile(
    r"(?<=[^\s,;])[\s,;]+(?:because|since|so|as|which|where|not|but|when|after|if|with)\b.*$",
    re.IGNORECASE | re.DOTALL,
)
_INLINE_MATH = re.compile(
    r"\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
_COUNTED = re.compile(
    rf"^({_NUMBER})\s+((?:thousand|million|billion|trillion)\s+)?([A-Za-z]+)[A-Za-z'’\s-]*$"
)


def _trim_statement(rest: str) -> str | None:
    """What is stated at the start of `rest`: math, a number with its unit, or a short phrase."""
    line = next((part for part in rest.split("\n") if part.strip(" \t*_#")), "")
    line = _LEAD_IN.sub("", line.strip()).strip(" *_")
    if _INLINE_MATH.match(line):
        line = _INLINE_MATH.sub(lambda m: next(group for group in m.groups() if group), line)
    line = _SENTENCE_END.split(line, maxsplit=1)[0]
    line = _CLAUSE.sub("", line).strip(" *_,;:")
    if counted := _COUNTED.match(line):  # "18 dollars every day" -> "18 dollars"
        line = f"{counted[1]} {counted[2] or ''}{counted[3]}"
    return None if "\\boxed" in line else line or None  # here only boxes that do not close


def stated_answer(text: str) -> str | None:
    """The last answer announced in words: `#### 18`, `A: 18`, `the answer is 18`."""
    for match in reversed(list(_STATEMENT.finditer(text))):
        if answer := _trim_statement(text[match.end() : match.end() + 1000]):
            return answer
    return None


def extract_answer(completion: str, mode: ExtractMode = "boxed") -> str | None:
    r"""The answer as written, or None. Raises ValueError for an unknown mode.

    boxed: the last closed box (Nemotron-Cascade section 4.5.2: last `\boxed{}` after `</think>`);
    auto: the last box, else the last stated answer; last: the last stated answer, else the last
    number, boxes ignored.
    """
    if mode not in ("boxed", "auto", "last"):
        raise ValueError(f"extract mode {mode!r} is unknown; use 'boxed', 'auto' or 'last'")
    text = answer_part(completion)
    if mode != "last":
        found = boxes(text)
        if found or mode == "boxed":
            return found[-1][2] if found else None
    answer = stated_answer(text)
    if answer is None and mode == "last":
        numbers = re.findall(_NUMBER, text)
        answer = numbers[-1].strip() if numbers else None
    return answer
