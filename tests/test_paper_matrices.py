"""The paper's matrices: every number against the notes taken from its tables, and drawn."""

from pathlib import Path

import pytest

from cascade_kit.paper_matrices import LABELS, MODELS, paper_matrix

NOTED = ("ArenaHard", "IFEval strict", "AIME25", "LCB v6", "SWE-bench Ver.")  # names in the notes


def noted_tables(notes: Path) -> dict[str, list[list[float]]]:
    """Model -> (6, 5) points, from the notes' table "BENCHMARK | SFT/RLHF/... | ... | ..."."""
    lines = notes.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip(" |").split("|")] for line in lines]
    found = {row[0]: row[1:] for row in rows if len(row) == 4 and row[0] in NOTED}
    tables = {}
    for place, model in enumerate(MODELS):
        columns = [[float(number) for number in found[name][place].split("/")] for name in NOTED]
        tables[model] = [list(row) for row in zip(*columns, strict=True)]
    return tables


def test_every_number_is_the_papers(shared):
    notes = shared / "handbook" / "paper.md"
    if not notes.is_file():
        pytest.skip("no notes of the paper: put handbook/paper.md into the shared folder")
    for model, points in noted_tables(notes).items():
        assert [len(points), *map(len, points)] == [6, 5, 5, 5, 5, 5, 5]
        shares = [[number / 100 for number in row] for row in points]
        assert [list(row) for row in paper_matrix(model).scores] == shares


def test_what_each_stage_changed_in_the_unified_model():
    """Points by hand from the printed scores; columns ArenaHard, IFEval, AIME25, LCB v6, SWE."""
    by_hand = [
        [20.1, -20.7, 2.2, 10.5, 2.1],
        [-2.1, 40.3, 0.2, -0.5, 0.1],
        [-1.0, 1.7, 6.7, 0.7, 2.3],
        [0.8, -1.4, -1.4, 4.1, 1.0],
        [0.1, -0.5, -0.4, -0.4, 5.6],
    ]
    start, *changes = paper_matrix("8B unified").change
    assert start is None
    assert [[round(100 * c.mean, 1) for c in row] for row in changes] == by_hand
    assert {c.low for row in changes for c in row} == {None}  # no error bars in the source


def test_metrics_are_shares():
    metrics = paper_matrix("14B-Thinking").metrics
    assert metrics["acc"] == pytest.approx((0.895 + 0.819 + 0.833 + 0.746 + 0.431) / 5)
    assert metrics["bwt"] == pytest.approx((-0.036 + 0.006 + 0.0 - 0.002) / 4)
    assert metrics["fwt"] == pytest.approx((-0.136 + 0.012 + 0.093 + 0.051) / 4)
    assert metrics["forgetting"] == pytest.approx((0.036 + 0.024 + 0.002 + 0.002) / 4)


def test_the_same_functions_draw_them():
    from cascade_kit.plots import figure_png, plot_matrix, plot_trajectories

    matrix = paper_matrix("8B-Thinking")
    figure = plot_matrix(matrix, LABELS)
    assert figure.get_suptitle() == (
        "instruct fell 0.21 after rlhf, before its own stage, the largest drop"
    )
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == list(LABELS.values())
    for drawn in (figure, plot_trajectories(matrix, LABELS)):
        assert figure_png(drawn).startswith(b"\x89PNG")
    assert figure.get_supxlabel().startswith("No interval is known.")  # nor can any be bold
    assert matrix.summary().startswith(
        "The mean score of the 5 trained domains went from 0.59 to 0.72; instruct fell 0.21"
    )


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="choose from 8B unified, 8B-Thinking, 14B-Thinking"):
        paper_matrix("70B")


def test_its_tables_claim_no_interval():
    matrix = paper_matrix("8B unified")
    for text in (str(matrix), matrix._repr_html_()):
        assert "95 %" not in text
        assert "rose" not in text
