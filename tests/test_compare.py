"""The table of several runs."""

import json

import pytest

from cascade_kit.compare import comparison
from cascade_kit.forgetting import ForgettingMatrix


def write_run(folder, answers_after):
    """A run of one stage, math, over four items; two were right before it."""
    items = {
        ("sft", "math"): {"a": (1.0,), "b": (1.0,), "c": (0.0,), "d": (0.0,)},
        ("math", "math"): dict(zip("abcd", [(x,) for x in answers_after], strict=True)),
    }
    folder.mkdir()
    matrix = ForgettingMatrix.from_items(["sft", "math"], ["math"], items)
    (folder / "matrix.json").write_text(json.dumps(matrix.to_json()))
    return folder


def test_gains_and_metrics_stand_side_by_side(tmp_path):
    runs = [write_run(tmp_path / "one", (1.0, 1.0, 1.0, 0.0)),
            write_run(tmp_path / "two", (0.0, 1.0, 0.0, 0.0))]  # fmt: skip
    lines = comparison(runs).split("\n")
    assert lines[0] == "| stage | one | two |"
    assert "0.50 → 0.75 (+0.25, " in lines[2]
    assert "0.50 → 0.25 (-0.25, " in lines[2]
    assert lines[3] == "| acc | +0.750 | +0.250 |"
    assert lines[4] == "| bwt | - | - |"  # one stage: undefined


def test_a_folder_without_matrix_is_named(tmp_path):
    with pytest.raises(ValueError, match="name the folder of a finished run"):
        comparison([tmp_path])
