"""Figures: pure functions from records to `matplotlib.figure.Figure`, drawn without pyplot.

The only importer of matplotlib. Scores use cividis on a fixed 0..1, changes PuOr centred at 0 with
fixed limits, so that pictures of different runs compare; lines differ in marker and dash as well as
in colour. No text is smaller than 9 pt at 100 dpi.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from cascade_kit.forgetting import ForgettingMatrix
from cascade_kit.matrix_words import excludes_zero, finding, has_intervals, signed, standing

SMALL, NORMAL, LARGE = 9, 11, 13  # font sizes in points
CHANGE_LIMIT = 0.5  # colours saturate beyond; the number in the cell is exact
# Okabe and Ito's colours, dark enough for lines on white; marker and dash tell them apart in grey.
LINES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#000000", "D", ":"),
    ("#CC79A7", "v", (0, (5, 1, 1, 1, 1, 1))),
    ("#7A5C00", "P", (0, (8, 3))),
)


def figure_png(figure: Figure, dpi: int = 100) -> bytes:
    """Return the figure as PNG bytes, for a file, a page or a notebook's display handle."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def text_colour(background: Sequence[float]) -> str:
    """Return "black" or "white" for text on an RGB colour: WCAG relative luminance against 0.179.

    At 0.179 both give the same contrast, 4.6:1.
    """
    channels = np.asarray(background[:3], dtype=float)
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return "black" if linear @ (0.2126, 0.7152, 0.0722) >= 0.179 else "white"


def plot_matrix(
    matrix: ForgettingMatrix, labels: Mapping[str, str] | None = None, stacked: bool = False
) -> Figure:
    """Draw the scores beside (or, stacked, above) the changes; every cell carries its numbers.

    `labels` renames columns, for example {"rlhf": "rlhf (proxy)"}. Stacked, five domains are about
    770 pixels wide, which a README or a page shows without shrinking. A start alone has one panel.
    """
    panels = min(len(matrix.stages), 2)
    rows, columns = (panels, 1) if stacked else (1, panels)
    width, height = 1.2 * len(matrix.domains) + 1.7, 0.62 * len(matrix.stages) + 1.1
    size = (columns * width, rows * height + 0.9)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    names = [(labels or {}).get(domain, domain) for domain in matrix.domains]
    for index, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        _draw_panel(axes, matrix, names, changes=index == 1)
    figure.suptitle(finding(matrix), fontsize=LARGE, fontweight="bold")
    small = "No interval is known."
    if has_intervals(matrix):
        small = "Small print: 95 % interval; bold: it excludes 0."
    figure.supxlabel(
        f"{small} Outlined: trained in this stage. Hatched: not yet trained.", fontsize=SMALL
    )
    return figure


def _draw_panel(axes: Axes, matrix: ForgettingMatrix, names: list[str], changes: bool) -> None:
    limits = (-CHANGE_LIMIT, CHANGE_LIMIT) if changes else (0.0, 1.0)
    colours = ScalarMappable(Normalize(*limits), colormaps["PuOr" if changes else "cividis"])
    for row in range(len(matrix.stages)):
        for column in range(len(matrix.domains)):
            _draw_cell(axes, matrix, row, column, colours, changes)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(matrix.stages) - 0.5, -0.5)
    axes.set_xticks(range(len(names)), names, fontsize=NORMAL)
    axes.set_yticks(range(len(matrix.stages)), matrix.stages, fontsize=NORMAL)
    axes.tick_params(length=0, top=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("domain", fontsize=NORMAL)
    axes.set_ylabel("after stage", fontsize=NORMAL)
    heading = "Change against the stage before" if changes else "Score on held-out problems"
    axes.set_title(heading, fontsize=NORMAL)
    bar = axes.figure.colorbar(
        colours, ax=axes, extend="both" if changes else "neither", fraction=0.04, pad=0.02
    )
    bar.set_label("change of score" if changes else "score", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)


def _draw_cell(
    axes: Axes,
    matrix: ForgettingMatrix,
    row: int,
    column: int,
    colours: ScalarMappable,
    changes: bool,
) -> None:
    if changes and row == 0:
        axes.text(column, row, "start", ha="center", va="center", fontsize=SMALL, color="#595959")
        return
    value, bounds = matrix.scores[row][column], matrix.interval[row][column]
    number, small = f"{value:.2f}", f"{bounds[0]:.2f} – {bounds[1]:.2f}" if bounds else ""
    if changes:
        cell = matrix.change[row][column]
        value, number = cell.mean, signed(cell.mean)
        small = "" if cell.low is None else f"{signed(cell.low)}…{signed(cell.high)}"
    background = colours.to_rgba(value)
    ink = text_colour(background)
    place = standing(matrix, row, column)
    box = {"xy": (column - 0.5, row - 0.5), "width": 1, "height": 1}
    axes.add_patch(Rectangle(**box, facecolor=background, edgecolor="white", linewidth=1.5))
    if place == "before":
        axes.add_patch(
            Rectangle(**box, fill=False, hatch="//", edgecolor=ink, linewidth=0, alpha=0.22)
        )
    if place == "own":
        inner = {"xy": (column - 0.46, row - 0.44), "width": 0.92, "height": 0.88}
        axes.add_patch(Rectangle(**inner, fill=False, edgecolor=ink, linewidth=2.2, zorder=4))
    bold = "bold" if changes and excludes_zero(matrix.change[row][column]) else "normal"
    patch = {"facecolor": background, "edgecolor": "none", "pad": 1.0}  # keeps hatching off text
    style = {"ha": "center", "color": ink, "bbox": patch}
    middle = row - 0.13 if small else row
    minus = str.maketrans("-", "\N{MINUS SIGN}")
    style |= {"va": "center"}
    axes.text(column, middle, number.translate(minus), fontsize=NORMAL, fontweight=bold, **style)
    if small:
        axes.text(column, row + 0.24, small.translate(minus), fontsize=SMALL, **style)


def plot_trajectories(matrix: ForgettingMatrix, labels: Mapping[str, str] | None = None) -> Figure:
    """Draw each domain's score over the stages with 95 % bars; a large marker at its own stage."""
    figure = Figure(figsize=(8.5, 4.8), dpi=100, layout="constrained")
    axes = figure.subplots()
    rows = np.arange(len(matrix.stages))
    scores = np.asarray(matrix.scores)
    for column, domain in enumerate(matrix.domains):
        colour, marker, dash = LINES[column % len(LINES)]
        shifted = rows + 0.06 * (column - (len(matrix.domains) - 1) / 2)  # keeps the bars apart
        bounds = [
            cell or (score, score)
            for cell, score in zip(
                [line[column] for line in matrix.interval], scores[:, column], strict=True
            )
        ]
        reach = np.abs(np.asarray(bounds).T - scores[:, column])  # (2, S+1) below and above
        axes.errorbar(
            shifted, scores[:, column], yerr=reach, color=colour, marker=marker, linestyle=dash,
            markersize=6, linewidth=1.8, elinewidth=0.9, label=(labels or {}).get(domain, domain),
        )  # fmt: skip
        own = [row for row in rows if standing(matrix, row, column) == "own"]
        axes.plot(shifted[own], scores[own, column], marker, color=colour, markersize=13,
                  markerfacecolor="none", markeredgewidth=2)  # fmt: skip
    axes.set_xticks(rows, matrix.stages)
    axes.set_ylim(-0.02, 1.02)
    _label(axes, "after stage", "score")
    figure.suptitle(finding(matrix), fontsize=LARGE, fontweight="bold")
    figure.legend(
        loc="outside right center", fontsize=NORMAL, frameon=False, handlelength=4,
        title="domain\n(ring: own stage)", title_fontsize=SMALL,
    )  # fmt: skip
    return figure


PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Reward", "mean reward", {"reward_mean": "reward"}),
    ("Flat groups", "share of groups", {"all_right": "all right", "all_wrong": "all wrong"}),
    ("Answer length", "mean tokens", {"length_mean": "length"}),
    ("Truncated answers", "share of answers", {"truncated": "truncated"}),
    ("Gradient norm", "norm before clipping", {"grad_norm": "gradient"}),
    ("Entropy", "nats a token", {"entropy": "entropy"}),
)
LIVE_PANELS = (
    PANELS[0],
    ("Success", "mean, 0 to 1", {"success_mean": "success"}),
    *PANELS[1:5],
)
SHARES = ("Flat groups", "Truncated answers", "Success")


def plot_training(
    records: Sequence[Any], stage: str = "", *, panels: Sequence[Any] = PANELS, total: int = 0
) -> Figure:
    """Draw six curves of a stage's step records (mappings or dataclasses), unfinished or whole.

    `total` steps fix the axis, so that a live figure does not move under the eye.
    """
    rows = [as_mapping(record) for record in records]
    steps = column_of(rows, "step")
    figure = Figure(figsize=(10, 5.4), dpi=100, layout="constrained")
    for axes, (title, unit, names) in zip(figure.subplots(2, 3).flat, panels, strict=True):
        for (name, label), (colour, marker, dash) in zip(names.items(), LINES, strict=False):
            _draw_line(axes, steps, column_of(rows, name), colour, marker, dash, label)
        axes.set_title(title, fontsize=NORMAL)
        _label(axes, "step", unit)
        if title in SHARES:
            axes.set_ylim(-0.03, 1.03)
        if total:
            axes.set_xlim(0.3, total + 0.7)
        if len(names) > 1:
            axes.legend(fontsize=SMALL, frameon=False, handlelength=3)
    figure.suptitle(training_finding(rows, stage), fontsize=LARGE, fontweight="bold")
    return figure


def training_finding(rows: Sequence[Mapping[str, Any]], stage: str = "") -> str:
    """Return "math: mean reward 0.31 -> 0.88 over 20 steps", by the ends' mean of up to 5 steps."""
    rewards = [row["reward_mean"] for row in rows if row.get("reward_mean") is not None]
    name = f"{stage}: " if stage else ""
    if not rewards:
        return f"{name}no step yet"
    if len(rewards) == 1:
        return f"{name}mean reward {rewards[0]:.2f} after one step"
    first, last = ends(rewards)
    return f"{name}mean reward {first:.2f} → {last:.2f} over {len(rewards)} steps"


def plot_proxy_vs_true(steps: Sequence[Any]) -> Figure:
    """Draw the reward model's score above the true preference over the steps of the rlhf stage.

    Two panels with one step axis, as the scales do not compare. ValueError if no step knows both.
    """
    rows = [as_mapping(step) for step in steps]
    numbers = column_of(rows, "step")
    proxy, true = proxy_and_true(rows)
    figure = Figure(figsize=(7.5, 5.4), dpi=100, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    _draw_line(upper, numbers, proxy, *LINES[0], "reward")
    _draw_line(lower, numbers, true, *LINES[1], "true preference")
    upper.set_title("Proxy: what the policy is trained on", fontsize=NORMAL)
    lower.set_title("True preference: known to the evaluator only", fontsize=NORMAL)
    _label(upper, "", "mean reward-model score")
    _label(lower, "step", "mean preference")
    figure.suptitle(proxy_finding(numbers, proxy, true), fontsize=LARGE, fontweight="bold")
    return figure


def proxy_and_true(rows: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the proxy and the true preference of each step, (N,) each.

    The proxy is `parts["reward_model"]`, else `reward_mean` (which says nothing where the reward
    was normalised within the group, as its mean is then 0). The truth is
    `parts["true_preference"]`.
    """
    parts = [row.get("parts") or {} for row in rows]
    proxy, true = column_of(parts, "reward_model"), column_of(parts, "true_preference")
    if not np.isfinite(proxy).any():
        proxy = column_of(rows, "reward_mean")
    if not np.isfinite(proxy).any() or not np.isfinite(true).any():
        raise ValueError("no step has parts['true_preference']: plot the training curves instead")
    return proxy, true


def proxy_finding(steps: np.ndarray, proxy: np.ndarray, true: np.ndarray) -> str:
    """Return in one clause whether true preference followed the proxy (means of up to 5 steps)."""
    (proxy_first, proxy_last), (true_first, true_last) = ends(proxy), ends(true)
    smooth = trailing_mean(true)
    peak = int(np.nanargmax(smooth))
    rise = f"proxy {signed(proxy_last - proxy_first)}, true preference"
    if smooth[peak] - true_last > 0.05 and true_last >= true_first:
        return f"{rise} peaked at {smooth[peak]:.2f} (step {steps[peak]:.0f}), now {true_last:.2f}"
    if f"{true_first:.2f}" == f"{true_last:.2f}":
        return f"{rise} stayed at {true_last:.2f}"
    verb = "rose" if true_last > true_first else "fell"
    return f"{rise} {verb} {true_first:.2f} → {true_last:.2f}"


def ends(values: Sequence[float], width: int = 5) -> tuple[float, float]:
    """Return the means of the first and of the last `width` finite values (fewer in short runs)."""
    finite = [value for value in values if np.isfinite(value)]
    take = max(1, min(width, len(finite) // 2))
    return float(np.mean(finite[:take])), float(np.mean(finite[-take:]))


def trailing_mean(values: np.ndarray, width: int = 5) -> np.ndarray:
    """Return, at each step, the mean of the finite values among the last `width`, (N,)."""
    windows = [values[max(0, end - width) : end] for end in range(1, len(values) + 1)]
    return np.array(
        [np.mean(w[np.isfinite(w)]) if np.isfinite(w).any() else np.nan for w in windows]
    )


def as_mapping(record: Any) -> Mapping[str, Any]:
    """Return a step record as a mapping, whether it was read from JSON or comes from training."""
    return asdict(record) if is_dataclass(record) else record


def column_of(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return one field of all rows as floats, (N,), NaN where it is missing or null."""
    return np.array([_number(row.get(name)) for row in rows], dtype=float)


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _draw_line(
    axes: Axes,
    steps: np.ndarray,
    values: np.ndarray,
    colour: str,
    marker: str,
    dash: Any,
    label: str,
) -> None:
    axes.plot(steps, values, marker, color=colour, markersize=3.5, alpha=0.45)
    axes.plot(steps, trailing_mean(values), color=colour, linestyle=dash, linewidth=2, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    if len(steps):
        axes.set_xlim(steps[0] - 0.7, steps[-1] + 0.7)


def _label(axes: Axes, horizontal: str, vertical: str) -> None:
    axes.set_xlabel(horizontal, fontsize=SMALL)
    axes.set_ylabel(vertical, fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
