"""Notebooks with the versions that Colab ships: run by `make test-colab`, in an environment of its
own. constraints-colab.txt has the versions."""

import importlib.metadata
import re
from pathlib import Path

import pytest

from tests.test_notebooks import ROWS, rows_of, run_notebook

ROOT = Path(__file__).resolve().parents[1]
# A stage with every panel, and the matrix with a domain of the reader's own.
NAMES = ("03_math", "06_forgetting_matrix")

pytestmark = pytest.mark.colab


def pins(name: str) -> dict[str, str]:
    """Package -> version that a constraints file allows."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def installed() -> dict[str, str]:
    """Package -> version in this environment, named as in a constraints file."""
    found = {
        d.metadata["Name"]: d.version.split("+")[0] for d in importlib.metadata.distributions()
    }
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found.items()}


def test_the_environment_has_colabs_versions():
    wanted, found = pins("constraints.txt") | pins("constraints-colab.txt"), installed()
    assert {name: found.get(name) for name in pins("constraints-colab.txt")} == pins(
        "constraints-colab.txt"
    )
    assert {n: v for n, v in found.items() if wanted.get(n, v) != v} == {}
    assert set(found) - set(wanted) <= {"cascade-kit", "pip"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(900)
def test_notebook_runs(name, tmp_path):
    run_notebook(ROOT / "notebooks" / f"{name}.ipynb", tmp_path)
    assert rows_of(tmp_path) == ["sft", ROWS[name]]
