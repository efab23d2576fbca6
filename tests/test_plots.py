"""Figures: sizes, contrast and marks of what is drawn, not pixels."""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.text import Text

from cascade_kit import plots
from cascade_kit.forgetting import (
    PAPER_DOMAINS,
    PAPER_MATRICES,
    PAPER_STAGES,
    ForgettingMatrix,
)


def matrix(stages=PAPER_STAGES, n=40) -> ForgettingMatrix:
    shares = np.array(PAPER_MATRICES["8B unified"]) / 100
    items = {
        (stage, domain): {f"i{k}": (float((k + 0.5) / n < shares[row, column]),) for k in range(n)}
        for row, stage in enumerate(stages)
        for column, domain in enumerate(PAPER_DOMAINS)
    }
    return ForgettingMatrix.from_items(stages, PAPER_DOMAINS, items)


def steps(count: int) -> list[dict]:
    return [
        {
            "step": step,
            "reward_mean": 0.2 + 0.02 * step,
            "parts": {"reward_model": 0.1 * step, "true_preference": 0.6 - 0.01 * step},
            "all_right": 0.1,
            "all_wrong": None if step == 1 else 0.3,
            "length_mean": 30.0 + step,
            "truncated": 0.0,
            "grad_norm": 0.5,
            "entropy": float("nan"),
        }
        for step in range(1, count + 1)
    ]


def relative_luminance(colour) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", ["cividis", "PuOr"])
def test_text_meets_wcag_contrast_on_every_colour(name):
    for colour in colormaps[name](np.linspace(0, 1, 256)):
        ink = {"black": 0.0, "white": 1.0}[plots.text_colour(colour)]
        bright, dark = sorted((ink, relative_luminance(colour)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5


def shown_texts(figure: Figure) -> list[Text]:
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


FIGURES = {
    "matrix": lambda: plots.plot_matrix(matrix()),
    "stacked": lambda: plots.plot_matrix(matrix(), {"rlhf": "rlhf\n(proxy)"}, stacked=True),
    "start": lambda: plots.plot_matrix(matrix(("sft",))),
    "two": lambda: plots.plot_matrix(matrix(("sft", "swe"))),
    "trajectories": lambda: plots.plot_trajectories(matrix()),
    "training": lambda: plots.plot_training(steps(30), "math"),
    "one step": lambda: plots.plot_training(steps(1), "math"),
    "no step": lambda: plots.plot_training([], "math"),
    "proxy": lambda: plots.plot_proxy_vs_true(steps(12)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figure_text_is_large_enough_and_inside_the_picture(name):
    figure = FIGURES[name]()
    width, height = figure.get_size_inches() * figure.dpi
    assert figure.dpi == 100
    for text in shown_texts(figure):
        assert text.get_fontsize() >= 9, text.get_text()
        if text.get_text().lstrip("\N{MINUS SIGN}").replace(".", "").isdigit():
            continue  # ticks beyond the limits exist but are not drawn
        box = text.get_window_extent()
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, text.get_text()
    assert plots.figure_png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("stacked", [False, True])
def test_cell_texts_do_not_overlap_or_leave_their_cell(stacked):
    figure = plots.plot_matrix(matrix(), stacked=stacked)
    figure.draw_without_rendering()
    for axes in figure.axes[:2]:
        cell = axes.transData.transform([(0, 0), (1, 1)])
        width = cell[1, 0] - cell[0, 0]
        boxes = [text.get_window_extent() for text in axes.texts]
        assert max(box.width for box in boxes) <= 0.92 * width
        for index, box in enumerate(boxes):
            assert box.count_overlaps(boxes[:index]) == 0


def test_matrix_marks_and_numbers():
    figure = plots.plot_matrix(matrix())
    scores, changes = figure.axes[:2]
    for axes, untrained in ((scores, 15), (changes, 10)):
        hatched = [patch for patch in axes.patches if patch.get_hatch()]
        outlined = [
            patch for patch in axes.patches if not patch.get_fill() and not patch.get_hatch()
        ]
        assert (len(hatched), len(outlined)) == (untrained, 5)
    texts = [text.get_text() for text in changes.texts]
    assert "+0.40" in texts and "\N{MINUS SIGN}0.20" in texts and texts.count("start") == 5
    assert (scores.get_xlabel(), scores.get_ylabel()) == ("domain", "after stage")
    assert figure.get_suptitle() == "instruct fell 0.20 after rlhf, before its own stage, " \
        "the largest drop"  # fmt: skip


def test_colour_limits_are_fixed_whatever_the_scores():
    for shown in (matrix(), matrix(("sft", "swe"))):
        bars = [axes for axes in plots.plot_matrix(shown).axes if axes.get_label() == "<colorbar>"]
        assert [bar.get_ylim() for bar in bars] == [(0.0, 1.0), (-0.5, 0.5)]


def test_lines_differ_in_marker_and_dash_as_well_as_colour():
    axes = plots.plot_trajectories(matrix()).axes[0]
    lines = [container.lines[0] for container in axes.containers]
    assert len(lines) == 5
    assert len({line.get_marker() for line in lines}) == 5
    assert len({line.get_color() for line in lines}) == 5
    assert len({repr(style) for _, _, style in plots.LINES}) == len(plots.LINES)


def test_training_takes_mappings_and_dataclasses():
    @dataclass(frozen=True)
    class Record:
        step: int
        reward_mean: float

    figure = plots.plot_training([Record(1, 0.25), Record(2, 0.75)])
    assert figure.get_suptitle() == "mean reward 0.25 → 0.75 over 2 steps"
    line = figure.axes[0].lines[1]
    assert line.get_ydata().tolist() == [0.25, 0.5]  # trailing mean


def test_proxy_plot_says_when_the_truth_falls():
    figure = plots.plot_proxy_vs_true(steps(12))
    assert figure.get_suptitle() == "proxy +0.70, true preference fell 0.57 → 0.50"
    values = [0.2] * 5 + [0.8] * 5 + [0.5] * 5
    rows = [
        {"step": step, "reward_mean": 0.1 * step, "parts": {"true_preference": value}}
        for step, value in enumerate(values, start=1)
    ]
    assert plots.plot_proxy_vs_true(rows).get_suptitle() == (
        "proxy +1.00, true preference peaked at 0.80 (step 10), now 0.50"
    )


def test_proxy_plot_without_truth_is_refused():
    with pytest.raises(ValueError, match="true_preference"):
        plots.plot_proxy_vs_true([{"step": 1, "reward_mean": 0.5, "parts": {}}])


def test_pyplot_is_never_imported_and_the_matrix_needs_no_matplotlib():
    code = (
        "import sys; import cascade_kit.forgetting, cascade_kit.report\n"
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules\n"
        "from cascade_kit import plots\n"
        "plots.figure_png(plots.plot_training([{'step': 1, 'reward_mean': 0.5}]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
