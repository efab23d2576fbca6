"""Where the thought of a completion ends and its answer begins.

Every reward looks at the answer alone. A tag that is only talked about, in a closed code block or
a code span of the answer, is text.
"""

import re

OPEN, CLOSE = "<think>", "</think>"
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})(.*)")
_SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)[^`\n]+\1(?!`)")
_LEFT_OPEN = re.compile(rf"{OPEN}\s*\Z")


def answer_part(completion: str, *, thinking: bool = False) -> str:
    """The text after the last thought; empty while a thought is still open.

    With `thinking`, an answer was asked to think first: without a thought that ends it is none. The
    line ends between thought and answer belong to neither.

    >>> answer_part("<think>3 + 4</think>\\n\\n7"), answer_part("3 + 4</think>7"), answer_part("7")
    ('7', '7', '7')
    >>> answer_part("<think>3 + 4 is"), answer_part("7", thinking=True)
    ('', '')
    """
    answer, closed = completion, ""
    if completion.lstrip().startswith(OPEN):
        # A thought may leave code open; its first end tag ends it all the same.
        _, closed, answer = completion.partition(CLOSE)
        if not closed:
            return ""
    if OPEN in answer or CLOSE in answer:
        shown = without_code(answer)
        if CLOSE in shown:
            start = shown.rindex(CLOSE) + len(CLOSE)
            answer, shown, closed = answer[start:], shown[start:], CLOSE
        if OPEN in shown:
            return ""
    if closed:
        return answer.lstrip("\r\n")
    return "" if thinking else answer


def without_code(text: str) -> str:
    """The text, as long as before, with closed code blocks and code spans blanked out."""
    lines = text.split("\n")
    opening, first = "", 0  # the fence that is open, and the line that it stands in
    for i, line in enumerate(lines):
        fence = _FENCE.match(line)
        if not fence:
            continue
        if not opening:
            opening, first = fence[1], i
        elif fence[1].startswith(opening) and not fence[2].strip():
            lines[first : i + 1] = [" " * len(inside) for inside in lines[first : i + 1]]
            opening = ""
    return _SPAN.sub(lambda span: " " * len(span[0]), "\n".join(lines))


def open_thought(prompt: str) -> str:
    """The tag, with the white space behind it, by which a prompt has already begun the thought."""
    found = _LEFT_OPEN.search(prompt)
    return found[0] if found else ""
