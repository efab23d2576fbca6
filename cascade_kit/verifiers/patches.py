"""Applies the edits of a SWE answer to files in memory and scores the result. Pure functions.

Nothing is applied in part: one edit that does not fit rejects the answer. Matching is strict -
whole lines, every blank counts - with one tolerance: a file with CRLF line ends is matched by LF
text and keeps its CRLF.

Choices: a SEARCH text that occurs more than once is ambiguous; a hunk may lie at another line than
its header says if its text is found there once; edits of test files apply, and the test files are
put back before the tests run (swe_tests.py).
"""

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from cascade_kit.problem import Score
from cascade_kit.verifiers.patch_text import Edit, PatchError, PatchFormat, Tags, parse_answer

Files = Mapping[str, str]  # relative path -> text

# Above this many inner steps of difflib's first pass, lines are compared instead of characters.
MAX_STEPS = 3_000_000


def check_path(path: str, symlinks: Collection[str] = ()) -> str:
    """`path` in normal form. Raises PatchError if it leaves the repository or its source files."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith(("/", "~", "\\")) or "\\" in path or "\0" in path:
        raise PatchError("forbidden path", repr(path))
    if ".." in parts or ".git" in parts or parts[0].endswith(":"):
        raise PatchError("forbidden path", f"{path!r} leaves the repository")
    normal = str(PurePosixPath(*parts))
    for depth in range(1, len(parts) + 1):
        if "/".join(parts[:depth]) in symlinks:
            raise PatchError("forbidden path", f"{path!r} goes through a symbolic link")
    return normal


def _split(text: str) -> tuple[list[str], list[str]]:
    """(lines without ends, their ends); only \\n and \\r\\n end a line."""
    lines, ends = [], []
    for piece in text.split("\n"):
        line = piece.removesuffix("\r")
        lines.append(line)
        ends.append("\r\n" if line != piece else "\n")
    if lines[-1] == "":
        return lines[:-1], ends[:-1]
    ends[-1] = ""
    return lines, ends


def _places(lines: Sequence[str], old: Sequence[str]) -> list[int]:
    """Every index at which `old` stands in `lines`."""
    first, width = old[0], len(old)
    return [
        index
        for index in range(len(lines) - width + 1)
        if lines[index] == first and tuple(lines[index : index + width]) == tuple(old)
    ]


def _place(lines: Sequence[str], edit: Edit) -> int:
    """The index at which `edit.old` is replaced. Raises PatchError."""
    if not edit.old:  # an insertion without context stands after the line its header names
        if edit.line is None or edit.line > len(lines):
            raise PatchError("not found", f"{edit.path}: nothing says where to insert")
        return edit.line
    places = _places(lines, edit.old)
    if not places:
        raise PatchError("not found", f"{edit.path}: {edit.old[0].strip()[:60]!r}")
    if edit.line is not None and edit.line - 1 in places:
        return edit.line - 1
    if len(places) > 1:
        raise PatchError("ambiguous", f"{edit.path}: the text occurs {len(places)} times")
    return places[0]


def _changed(text: str, edit: Edit) -> str:
    """`text` with `edit.old` replaced by `edit.new`, in the line ends of the file."""
    lines, ends = _split(text)
    place = _place(lines, edit)
    stop = place + len(edit.old)
    common = Counter(ends).most_common(1)
    usual = common[0][0] if common and common[0][0] else "\n"
    new_ends = [usual] * len(edit.new)
    if stop == len(lines) and lines:  # the end of the file stays as it was, unless the diff says so
        bare = not ends[-1] if edit.ends_with_newline is None else not edit.ends_with_newline
        if place and not edit.old and not ends[place - 1]:
            ends[place - 1] = usual
        if bare and new_ends:
            new_ends[-1] = ""
    pieces = [*zip(lines[:place], ends[:place], strict=True), *zip(edit.new, new_ends, strict=True)]
    pieces += zip(lines[stop:], ends[stop:], strict=True)
    return "".join(line + end for line, end in pieces)


def _created(edit: Edit) -> str:
    end = "" if edit.ends_with_newline is False or not edit.new else "\n"
    return "\n".join(edit.new) + end


def _apply(files: dict[str, str], edit: Edit, symlinks: Collection[str]) -> None:
    path = check_path(edit.path, symlinks)
    if edit.action == "create":
        if files.get(path):
            raise PatchError("not found", f"{path} is there already, so SEARCH must not be empty")
        files[path] = _created(edit)
    elif path not in files:
        raise PatchError("not found", f"no file {path}")
    elif edit.action == "delete":
        if _split(files[path])[0] != list(edit.old):
            raise PatchError("not found", f"{path} is not the file the diff deletes")
        del files[path]
    elif edit.action == "rename":
        target = check_path(edit.target, symlinks)
        if target in files:
            raise PatchError("not found", f"{target} is there already")
        files[target] = files.pop(path)
    else:
        files[path] = _changed(files[path], edit)


def apply_edits(
    files: Files, edits: Sequence[Edit], *, symlinks: Collection[str] = ()
) -> dict[str, str]:
    """A copy of `files` with all edits made in order. Raises PatchError, and then nothing is made.

    `symlinks` are the paths of the repository that are symbolic links: nothing is written to or
    through one. An answer that changes nothing raises PatchError("unchanged").
    """
    patched = dict(files)
    for edit in edits:
        _apply(patched, edit, symlinks)
    if patched == dict(files):
        raise PatchError("unchanged", "the answer leaves every file as it was")
    return patched


# ---- similarity ---------------------------------------------------------------------------------


def changed_paths(files: Files, new_files: Files) -> set[str]:
    """Paths that were added, removed or changed."""
    return {path for path in {*files, *new_files} if files.get(path) != new_files.get(path)}


def unified_diff(old: str | None, new: str | None) -> str:
    """The hunks of a unified diff (3 lines of context) without the file header."""
    lines = difflib.unified_diff((old or "").splitlines(), (new or "").splitlines(), lineterm="")
    return "\n".join(list(lines)[2:])


def _ratio(predicted: str, gold: str) -> float:
    """difflib's ratio of two diffs; by lines where characters would take too long."""
    counts = Counter(gold)
    steps = sum(number * counts[character] for character, number in Counter(predicted).items())
    if steps <= MAX_STEPS:
        return difflib.SequenceMatcher(None, predicted, gold, autojunk=False).ratio()
    left, right = predicted.splitlines(keepends=True), gold.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    same = sum(len("".join(left[a : a + size])) for a, _, size in matcher.get_matching_blocks())
    return 2 * same / (len(predicted) + len(gold))


def similarity(files: Files, predicted_files: Files, gold_files: Files) -> float:
    """SWE-RL's lexical similarity in [0, 1] (arXiv 2502.18449): the ratio of the two diffs of each
    file, averaged over the union of the changed files. Both arguments are whole trees.
    """
    predicted, gold = changed_paths(files, predicted_files), changed_paths(files, gold_files)
    if not predicted | gold:
        return 1.0
    ratios = [
        _ratio(
            unified_diff(files.get(path), predicted_files.get(path)),
            unified_diff(files.get(path), gold_files.get(path)),
        )
        for path in sorted(predicted & gold)
    ]
    return sum(ratios) / len(predicted | gold)


# ---- scores -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PatchVerdict:
    """What one answer is as a patch, before any test has run."""

    format_ok: bool
    applies: bool
    files: dict[str, str] | None  # the patched tree, None if it does not apply
    similarity: float | None  # to the gold patch; None without a gold patch or patched tree
    why: str
    unchanged: bool = False


def judge_patch(
    files: Files,
    completion: str,
    gold_files: Files | None = None,
    *,
    format: PatchFormat = "auto",
    tags: Tags = "required",
    symlinks: Collection[str] = (),
) -> PatchVerdict:
    """Parse, apply and compare. `gold_files` holds the files the gold patch changes, whole."""
    try:
        edits = parse_answer(completion, format, tags=tags)
    except PatchError as fault:
        return PatchVerdict(False, False, None, None, str(fault))
    try:
        patched = apply_edits(files, edits, symlinks=symlinks)
    except PatchError as fault:
        return PatchVerdict(True, False, None, None, str(fault), fault.reason == "unchanged")
    alike = None if gold_files is None else similarity(files, patched, {**files, **gold_files})
    return PatchVerdict(True, True, patched, alike, "applies")


def score_patch(
    verdict: PatchVerdict,
    tests_pass: Callable[[Files], tuple[bool, str]] | None = None,
    *,
    threshold: float = 0.0,
) -> Score:
    """The SWE reward. With tests: 1 pass, 0 fail, -1 unparsable or not applicable.

    Without tests (Nemotron-Cascade Eq. 2 with the lexical similarity in place of the judge):
    1 if identical to the gold patch, 0 if nothing changes, -1 if it does not parse or apply, else
    the similarity, below `threshold` counted as 0 (the paper's ablation uses 0.5).
    """
    parts = {
        "format": float(verdict.format_ok),
        "applies": float(verdict.applies),
        "similarity": verdict.similarity or 0.0,
    }
    if verdict.files is None:
        return Score(0.0 if verdict.unchanged else -1.0, parts, verdict.why)
    if tests_pass is not None:
        passed, why = tests_pass(verdict.files)
        return Score(float(passed), parts, why)
    if verdict.similarity is None:
        raise ValueError("a row without tests needs gold_files; add them or add FAIL_TO_PASS")
    value = verdict.similarity if verdict.similarity >= threshold else 0.0
    return Score(value, parts, f"similarity {verdict.similarity:.3f}")
