"""Reads the edits out of a SWE answer: SEARCH/REPLACE blocks or a unified diff.

An answer with tags has at most one `<think>` and exactly one `<solution>`, else it is unparsable:
of two solutions none is picked (SWE-RL; Nemotron-Cascade App. C.2). Nothing here looks at a file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cascade_kit.verifiers.thinking import answer_part

PatchFormat = Literal["auto", "search_replace", "unified_diff"]
Tags = Literal["required", "optional"]
Reason = Literal["unparsable", "forbidden path", "not found", "ambiguous", "unchanged"]


class PatchError(ValueError):
    """An answer that is no patch or does not fit the files; `reason` is one of Reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class Edit:
    """One change of one file. Lines carry no line end."""

    path: str
    old: tuple[str, ...]  # lines that must be there, in one piece
    new: tuple[str, ...]  # lines that take their place
    line: int | None = None  # 1-based line of `old` according to a diff, None: wherever it is
    action: Literal["change", "create", "delete", "rename"] = "change"
    target: str = ""  # the new path of a rename
    ends_with_newline: bool | None = None  # what the diff says about the end of the new file


_TAGS = ("<think>", "</think>", "<solution>", "</solution>")
_SEARCH = re.compile(r"^<{5,9} ?SEARCH\s*$")
_DIVIDER = re.compile(r"^={7}\s*$")
_REPLACE = re.compile(r"^>{5,9} ?REPLACE\s*$")
_HEADING = re.compile(r"^#{1,4}\s+(?:File:?\s+)?[`*]*([^\s`*]+)[`*]*:?\s*$")
_BARE_PATH = re.compile(r"^[`*]*([\w./~\\-]*\w\.\w+)[`*]*:?\s*$")
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def solution_text(completion: str, *, tags: Tags) -> str:
    """The inside of `<solution>`, or without tags the text after the thought.

    Raises PatchError if a tag is repeated or left open, or missing where it is required.
    """
    counts = {tag: completion.count(tag) for tag in _TAGS}
    repeated = next((tag for tag, count in counts.items() if count > 1), None)
    if repeated:
        raise PatchError("unparsable", f"{repeated} appears {counts[repeated]} times")
    if counts["<think>"] > counts["</think>"]:
        raise PatchError("unparsable", "the thought does not end")
    answer = answer_part(completion)
    if counts["<solution>"] != counts["</solution>"]:
        raise PatchError("unparsable", "<solution> is not closed")
    if not counts["<solution>"]:
        if tags == "required":
            raise PatchError("unparsable", "no <solution> tag")
        return answer
    before, _, inside = answer.partition("<solution>")
    inside, closed, _ = inside.partition("</solution>")
    if not closed:
        raise PatchError("unparsable", "<solution> and <think> overlap")
    return inside


def _lines(text: str) -> list[str]:
    """Lines without their ends; only \\n and \\r\\n end one, as in git."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines and lines[-1] == "" else lines


def _block(lines: Iterator[str]) -> tuple[list[str], list[str]]:
    """(search, replace) of a block whose first marker has been read. Raises PatchError."""
    sides: tuple[list[str], list[str]] = ([], [])
    divided = False
    for line in lines:
        if _REPLACE.match(line):
            if not divided:
                raise PatchError("unparsable", "a SEARCH block has no =======")
            return sides
        if _SEARCH.match(line):
            raise PatchError("unparsable", "a SEARCH marker inside a block")
        if _DIVIDER.match(line):
            if divided:  # the file itself has such a line: which one divides is a guess
                raise PatchError("ambiguous", "two ======= lines in one block")
            divided = True
        else:
            sides[divided].append(line)
    raise PatchError("unparsable", "a SEARCH block does not end with >>>>>>> REPLACE")


def parse_search_replace(text: str) -> tuple[Edit, ...]:
    """The edits of `### path` + SEARCH/REPLACE blocks. Raises PatchError."""
    edits: list[Edit] = []
    path = ""
    lines = iter(_lines(text))
    for line in lines:
        if heading := _HEADING.match(line) or _BARE_PATH.match(line):
            path = heading[1]
        elif _SEARCH.match(line):
            if not path:
                raise PatchError("unparsable", "a SEARCH block without a ### path line")
            search, replace = _block(lines)
            blank = not "".join(search).strip()
            edit = Edit(path, () if blank else tuple(search), tuple(replace))
            edits.append(edit if not blank else Edit(path, (), tuple(replace), action="create"))
        elif _REPLACE.match(line):
            raise PatchError("unparsable", ">>>>>>> REPLACE without a SEARCH block")
    if not edits:
        raise PatchError("unparsable", "no SEARCH/REPLACE block")
    return tuple(edits)


def _header_path(line: str) -> str:
    """The path of a `---` or `+++` line, without a/ or b/, quotes and time stamp."""
    path = line[4:].split("\t")[0].strip().strip('"')
    return path if path == "/dev/null" else re.sub(r"^[ab]/", "", path)


class _DiffReader:
    """Walks the lines of a unified diff with one line of look-ahead."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.position = 0

    def peek(self) -> str | None:
        return self.lines[self.position] if self.position < len(self.lines) else None

    def __iter__(self) -> "_DiffReader":
        return self

    def __next__(self) -> str:
        line = self.peek()
        if line is None:
            raise StopIteration
        self.position += 1
        return line


def _hunk(header: re.Match, reader: _DiffReader) -> tuple[list[str], list[str], bool | None]:
    """(old, new, what is said about the last newline). Raises PatchError for wrong counts."""
    old_left, new_left = (int(header[i]) if header[i] is not None else 1 for i in (2, 4))
    old: list[str] = []
    new: list[str] = []
    newline = None
    while old_left or new_left:
        line = next(reader, "?")
        sign = line[:1] or " "  # editors strip the blank of an empty context line
        if sign == "\\":
            newline = True  # the old file had none, and a new line follows
            continue
        if sign not in " +-":
            raise PatchError("unparsable", "a hunk is shorter than its header says")
        if sign in " -":
            old.append(line[1:])
            old_left -= 1
        if sign in " +":
            new.append(line[1:])
            new_left -= 1
        if old_left < 0 or new_left < 0:
            raise PatchError("unparsable", "a hunk is longer than its header says")
    if (reader.peek() or "").startswith("\\ No newline"):
        next(reader)
        newline = False
    following = reader.peek()
    if re.match(r"(?!--- |\+\+\+ |-- ?$)[+-]| +\S", following or ""):
        raise PatchError("unparsable", "a hunk is longer than its header says")
    return old, new, newline


def _file_hunks(reader: _DiffReader, old_path: str, new_path: str) -> list[Edit]:
    """The hunks that follow a `---`/`+++` pair. Raises PatchError if there is none."""
    created, deleted = old_path == "/dev/null", new_path == "/dev/null"
    action = "create" if created else "delete" if deleted else "change"
    path = old_path if deleted else new_path
    edits = []
    while (line := reader.peek()) is not None and (header := _HUNK.match(line)):
        next(reader)
        old, new, newline = _hunk(header, reader)
        edits.append(Edit(path, tuple(old), tuple(new), int(header[1]), action, "", newline))
    if not edits:
        raise PatchError("unparsable", f"no hunk for {path}")
    return edits


def _empty_files(section: str) -> list[Edit]:
    """The edit of a `diff --git` section without hunks: an empty file made, removed or moved."""
    git = re.match(r"diff --git a/(.+) b/(.+)", section)
    if moved := re.search(r"^rename from (.+)\nrename to (.+)$", section, re.MULTILINE):
        return [Edit(moved[1], (), (), action="rename", target=moved[2])]
    if git and "\n--- " not in section and re.search(r"^new file mode", section, re.MULTILINE):
        return [Edit(git[2], (), (), action="create")]
    if git and "\n--- " not in section and re.search(r"^deleted file mode", section, re.MULTILINE):
        return [Edit(git[1], (), (), action="delete")]
    return []


def _refuse_special_files(text: str) -> None:
    if re.search(r"^(?:GIT binary patch|Binary files .* differ)", text, re.MULTILINE):
        raise PatchError("unparsable", "a binary patch")
    if re.search(r"^(?:new file |new |deleted file )mode 1[26]0000", text, re.MULTILINE):
        raise PatchError("forbidden path", "a patch may not make symbolic links")


def parse_unified_diff(text: str) -> tuple[Edit, ...]:
    """The edits of a unified diff, one for each hunk. Raises PatchError."""
    _refuse_special_files(text)
    edits: list[Edit] = []
    for section in re.split(r"^(?=diff --git )", text, flags=re.MULTILINE):
        edits += _empty_files(section)
        reader = _DiffReader(_lines(section))
        for line in reader:
            if line.startswith("--- ") and (reader.peek() or "").startswith("+++ "):
                edits += _file_hunks(reader, _header_path(line), _header_path(next(reader)))
            elif _HUNK.match(line):
                raise PatchError("unparsable", "a hunk without a --- / +++ header")
    if not edits:
        raise PatchError("unparsable", "no SEARCH/REPLACE block and no hunk of a diff")
    return tuple(edits)


def parse_answer(
    completion: str, format: PatchFormat = "auto", *, tags: Tags = "required"
) -> tuple[Edit, ...]:
    """The edits of an answer, in order. Raises PatchError("unparsable" | "ambiguous").

    auto: SEARCH/REPLACE if there is such a marker, else a unified diff. `tags` concerns
    SEARCH/REPLACE answers; a diff may stand alone, in a fence or in `<solution>`.
    """
    if format == "auto":
        marked = re.search(r"^<{5,9} ?SEARCH", completion, re.MULTILINE)
        format = "search_replace" if marked else "unified_diff"
    if format == "search_replace":
        return parse_search_replace(solution_text(completion, tags=tags))
    if format == "unified_diff":
        return parse_unified_diff(solution_text(completion, tags="optional"))
    raise ValueError(
        f"patch format {format!r} is unknown; use auto, search_replace or unified_diff"
    )
