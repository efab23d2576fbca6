"""Rows with the files of a repository, an issue and the gold change.

Two formats: mini-SWE rows hold files and tests, Nemotron-Cascade-RL-SWE rows a finished prompt.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cascade_kit.data_columns import Row
from cascade_kit.data_patch import apply_gold_patch
from cascade_kit.data_rows import Dropped, clean
from cascade_kit.domains.swe import ask_repair
from cascade_kit.problem import Problem

DEFAULT_TEST_RUN = "python -m pytest -q"

PATH_KEYS = ("path", "file_path", "name")  # of a file in a list of files


def read_repository_task(row: Row) -> Problem | Dropped:
    """mini-SWE: the issue and the files that the gold change touches are shown, nothing else."""
    issue, files = row.text("problem_statement"), row.files("buggy_tree")
    changes = _gold_changes(row, files)
    changed = [path for path, text in changes.items() if files.get(path) != text]
    if not changed:
        return Dropped("a gold change that changes nothing", row.name)
    gold = {path: text for path, text in {**files, **changes}.items() if text is not None}
    issue, shown = clean(issue), [path for path in changed if path in files]
    return Problem(
        row.id,
        "swe",
        ask_repair(issue, files, shown),
        {
            "issue": issue,
            "files": files,
            "shown": shown,
            "gold_files": gold,
            "fail_to_pass": row.texts("FAIL_TO_PASS"),
            "pass_to_pass": row.texts("PASS_TO_PASS"),
            "run": row.text("run") if "run" in row.values else DEFAULT_TEST_RUN,
            "pythonpath": row.texts("pythonpath") if "pythonpath" in row.values else ["."],
        },
    )


def read_repair_prompt(row: Row) -> Problem | Dropped:
    """Nemotron-Cascade-RL-SWE: a prompt with its files, the gold patch, and no tests.

    The reward is then the paper's execution-free one. A prompt that already asks for
    SEARCH/REPLACE edits is kept word by word.
    """
    prompt, files = row.text("prompt"), _listed_files(row, "relevant_file_contents")
    patch = row.text("golden_patch")
    try:
        changes = apply_gold_patch(patch, files)
    except ValueError:
        return Dropped("a gold patch that does not apply to the files of the row", row.name)
    if all(files.get(path) == text for path, text in changes.items()):
        return Dropped("a gold change that changes nothing", row.name)
    gold = {path: text for path, text in {**files, **changes}.items() if text is not None}
    if "SEARCH" not in prompt:
        prompt = ask_repair(clean(prompt), files, files)
    return Problem(row.id, "swe", prompt, {"files": files, "gold_files": gold})


def _listed_files(row: Row, column: str) -> dict[str, str]:
    """Files as an object of paths and texts, a list of {path, content}, or JSON text of either."""
    value, wanted = row.value(column), "an object of file paths and their text"
    if isinstance(value, str):
        value = row.json(column)
    if isinstance(value, list):
        value = dict(_listed_file(row, column, entry) for entry in value)
    if not isinstance(value, dict):
        raise row.wrong_type(column, value, wanted)
    return replace(row, values={**row.values, column: value}).files(column)


def _listed_file(row: Row, column: str, entry: Any) -> tuple[str, Any]:
    wanted = "a list of objects with path and content"
    if not isinstance(entry, dict):
        raise row.wrong_type(column, entry, wanted, inside=True)
    path = next((entry[key] for key in PATH_KEYS if key in entry), None)
    if not isinstance(path, str) or "content" not in entry:
        raise row.fault(f"column {column!r} needs {wanted}; correct the row")
    return path, entry["content"]


def _gold_changes(row: Row, files: dict[str, str]) -> Mapping[str, str | None]:
    """The files of the gold change, as given or by applying the gold patch; None is deleted."""
    if "gold_files" in row.values:
        return row.files("gold_files")
    patch = row.text("gold_patch")
    try:
        return apply_gold_patch(patch, files)
    except ValueError as fault:
        raise row.fault(
            f"column 'gold_patch' does not apply to 'buggy_tree' ({fault}); correct or delete "
            "the row"
        ) from None
