"""The tree that the tests run in: patched files, original tests, and tests that must fail."""

import re
import secrets
import sys
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from cascade_kit.verifiers.patches import Files

RUNNER_PACKAGES = (
    "pytest", "_pytest", "pytest_timeout", "pluggy", "iniconfig", "packaging", "pygments", "py",
)  # fmt: skip
_PROTECTED_NAMES = re.compile(
    r"conftest\.py|test_.*\.py|.*_test\.py|\.?pytest\.(?:ini|toml)|tox\.ini|setup\.cfg"
    r"|pyproject\.toml|sitecustomize\.py|usercustomize\.py|.*\.pth|.*\.py[co]"
)
_CANARY_WORDS = ("again", "edge", "empty", "twice", "large", "negative", "other", "repeated")


def node_id(test: str, files: Files) -> str:
    """pytest's id of a test given as such or dotted (`tests.test_x.Class::name`).

    Raises ValueError if no file of the tree holds the test.
    """
    head, separator, tail = test.partition("::")
    if separator and head in files:
        return test
    parts = head.split(".")
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length]) + ".py"
        if separator and path in files:
            return "::".join([path, *parts[length:], tail])
    raise ValueError(f"test {test!r} is in no file of the tree; correct FAIL_TO_PASS or the files")


def _tests_folder(path: str) -> str:
    """The outermost folder named tests or test above a test file, "" if there is none."""
    parts = PurePosixPath(path).parts[:-1]
    depth = next((i for i, part in enumerate(parts, 1) if part in ("tests", "test")), 0)
    return "/".join(parts[:depth])


def _loads_itself(path: str, roots: Sequence[str]) -> bool:
    """True for a file that would stand in for a standard module or a part of pytest."""
    for root in roots:
        inner = path.removeprefix(f"{root.strip('/')}/") if root not in (".", "") else path
        top = inner.split("/")[0].split(".")[0]
        if top in RUNNER_PACKAGES or top in sys.stdlib_module_names:
            return True
    return False


def with_original_tests(
    files: Files, patched: Files, test_files: Collection[str], pythonpath: Sequence[str] = (".",)
) -> dict[str, str]:
    """The patched tree with all that decides the tests put back as it was in `files`."""
    folders = [folder for folder in map(_tests_folder, test_files) if folder]

    def protected(path: str) -> bool:
        parts = PurePosixPath(path).parts
        in_tests = any(path.startswith(folder + "/") for folder in folders)
        if in_tests or path in test_files or "__pycache__" in parts:
            return True
        if _PROTECTED_NAMES.fullmatch(parts[-1]):
            return True
        return path not in files and _loads_itself(path, pythonpath)

    tree = {path: text for path, text in patched.items() if not protected(path)}
    return tree | {path: text for path, text in files.items() if protected(path)}


def _planted(source: str) -> tuple[list[str], str]:
    """(names, source) of tests that must fail, named after tests of the file."""
    names = re.findall(r"^\s*def (test_\w+)", source, re.MULTILINE) or ["test_values"]
    picked = [f"{secrets.choice(names)}_{secrets.choice(_CANARY_WORDS)}" for _ in range(3)]
    plain, raising, method = (f"{name}_{secrets.randbelow(90) + 10}" for name in picked)
    group = f"Test{secrets.choice(_CANARY_WORDS).title()}{secrets.randbelow(900) + 100}"
    low, high = sorted(secrets.SystemRandom().sample(range(100), 2))
    text = f"""

def {plain}():
    assert [{low}, {high}] == [{high}, {low}]


def {raising}():
    with __import__("pytest").raises(ValueError):
        int("{low}")


class {group}(__import__("unittest").TestCase):
    def {method}(self):
        self.assertEqual({low}, {high})
"""
    return [plain, raising, f"{group}::{method}"], text


def plant(tree: dict[str, str], test_files: Collection[str]) -> set[str]:
    """Add tests that must fail to each test file of `tree`; returns their node ids."""
    planted = set()
    for path in sorted(test_files):
        names, text = _planted(tree[path])
        target = path
        if "pytestmark" in tree[path]:  # a mark for the whole file would change these as well
            number = secrets.randbelow(9000) + 1000
            target = str(PurePosixPath(path).with_name(f"test_more_{number}.py"))
            tree[target] = ""
        tree[target] += text
        planted |= {f"{target}::{name}" for name in names}
    return planted
