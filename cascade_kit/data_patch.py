"""The gold patch of a data row, applied to the row's files.

Strict on purpose: a gold patch that does not fit its own files is a fault of the data and raises.
What a model writes is read elsewhere, by the SWE verifier, where a bad patch is a Score.
"""

import re
from collections.abc import Iterator, Mapping

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
ABSENT = "/dev/null"


def apply_gold_patch(patch: str, files: Mapping[str, str]) -> dict[str, str | None]:
    """The files that a unified diff changes, with their new text; None for a deleted file.

    >>> apply_gold_patch("--- a/x\\n+++ b/x\\n@@ -1 +1 @@\\n-one\\n+two\\n", {"x": "one\\n"})
    {'x': 'two\\n'}
    """
    lines, changes, i = patch.removesuffix("\n").split("\n"), {}, 0
    while i + 1 < len(lines):
        if not (lines[i].startswith("--- ") and lines[i + 1].startswith("+++ ")):
            i += 1
            continue
        old, new = (_path(line) for line in lines[i : i + 2])
        if old != ABSENT and old not in files:
            raise ValueError(f"{old} is not among the files")
        hunks, i = _hunks(lines, i + 2)
        text = _patched(files.get(old, ""), hunks, new if old == ABSENT else old)
        changes[old] = None
        changes[new] = text
        changes.pop(ABSENT, None)
    return changes


def _path(header: str) -> str:
    """The path of a `--- a/path` or `+++ b/path` line, its timestamp left out."""
    path = header[4:].partition("\t")[0].strip()
    return path[2:] if path.startswith(("a/", "b/")) else path


def _hunks(lines: list[str], i: int) -> tuple[list[tuple[int, list[tuple[str, str]]]], int]:
    """(first old line from 0, [(sign, text with its line end)]) of each hunk, and the next line."""
    hunks = []
    while i < len(lines) and (header := HUNK.match(lines[i])):
        old, new = (int(count) if count else 1 for count in header.group(2, 3))
        body: list[tuple[str, str]] = []
        i += 1
        while old > 0 or new > 0:
            sign, text = (lines[i][:1] or " ", lines[i][1:]) if i < len(lines) else ("", "")
            if sign not in ("+", "-", " "):
                raise ValueError("a hunk is shorter than its header says")
            old, new = old - (sign != "+"), new - (sign != "-")
            unfinished = i + 1 < len(lines) and lines[i + 1].startswith("\\ No newline")
            body.append((sign, text if unfinished else text + "\n"))
            i += 1 + unfinished
        # Of a hunk without old lines, the header names the line before it.
        empty = all(sign == "+" for sign, _ in body)
        hunks.append((int(header[1]) - (not empty), body))
    return hunks, i


def _patched(text: str, hunks: list[tuple[int, list[tuple[str, str]]]], path: str) -> str:
    source, result, position = list(_lines(text)), [], 0
    for start, body in hunks:
        result += source[position:start]
        position = start
        for sign, line in body:
            if sign != "+":
                if source[position : position + 1] != [line]:
                    raise ValueError(f"line {position + 1} of {path} is not what a hunk expects")
                position += 1
            if sign != "-":
                result.append(line)
    return "".join([*result, *source[position:]])


def _lines(text: str) -> Iterator[str]:
    """Lines with their ends, cut at \\n only: a diff knows no other line end."""
    return (match[0] for match in re.finditer(r"[^\n]*\n|[^\n]+", text))
