"""Several runs side by side, as Markdown: each stage's gain on its own domain, and metrics."""

from collections.abc import Sequence
from pathlib import Path

from cascade_kit.forgetting import ForgettingMatrix


def comparison(folders: Sequence[Path]) -> str:
    """A Markdown table with a row a stage and a column a run.

    A cell is "before -> after (change, 95 % interval of the paired change)" on the stage's own
    domain. Below stand the metrics of each run. Raises ValueError for a folder without matrix.
    """
    matrices = [read(folder) for folder in folders]
    stages = list(dict.fromkeys(stage for m in matrices for stage in m.stages[1:]))
    lines = [_line("stage", *(folder.name for folder in folders))]
    lines.append("|---" * (len(folders) + 1) + "|")
    lines += [_line(stage, *(own_gain(m, stage) for m in matrices)) for stage in stages]
    for metric in ("acc", "bwt", "fwt", "forgetting"):
        values = (m.metrics[metric] for m in matrices)
        lines.append(_line(metric, *("-" if v is None else f"{v:+.3f}" for v in values)))
    return "\n".join(lines)


def read(folder: Path) -> ForgettingMatrix:
    path = folder / "matrix.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no matrix.json; name the folder of a finished run")
    return ForgettingMatrix.from_json(path.read_text(encoding="utf-8"))


def own_gain(matrix: ForgettingMatrix, stage: str) -> str:
    """What a stage did to the domain it trains; "-" if the run has no such stage or domain."""
    if stage not in matrix.stages or stage not in matrix.domains:
        return "-"
    row, column = matrix.stages.index(stage), matrix.domains.index(stage)
    before, after = matrix.scores[row - 1][column], matrix.scores[row][column]
    change = matrix.change[row][column]
    return (
        f"{before:.2f} → {after:.2f} ({change.mean:+.2f}, {change.low:+.2f} to {change.high:+.2f})"
    )


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
