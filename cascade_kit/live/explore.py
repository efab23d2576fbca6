"""Matrix explorer: pick a cell, read which held-out items a stage lost and gained."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cascade_kit.forgetting import ForgettingMatrix
from cascade_kit.live.answers import ItemComparison, control, page, run_folder, sentence
from cascade_kit.matrix_words import (
    LEGEND,
    MARKED,
    excludes_zero,
    html_tables,
    largest_fall,
    range_text,
    signed,
    standing,
)
from cascade_kit.report import change_text
from cascade_kit.report_html import folded
from cascade_kit.run_logs import StageFolder, matrix_of, read_stages


def matrix_explorer(source: Any) -> Any:
    """Return a panel over the matrix of a run: its folder, or an object with `.folder`.

    It opens at the largest fall. Raises ValueError for a folder that is no run.
    """
    from ipywidgets import HTML

    folder = run_folder(source)
    stages = read_stages(folder)
    matrix = matrix_of(stages)
    if matrix is None:
        return HTML(page(sentence("No row of the matrix is complete yet; evaluate the start.")))
    settings = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return _Explorer(matrix, stages, settings.get("labels") or {}).box


def cell_text(matrix: ForgettingMatrix, row: int, column: int) -> str:
    """Return "*0.73 +0.29" or the like: the score marked by where it stands, and the change."""
    text = MARKED[standing(matrix, row, column)].format(f"{matrix.scores[row][column]:.2f}")
    changes = matrix.change[row]
    return f"{text} {signed(changes[column].mean)}" if changes else text


def cell_words(matrix: ForgettingMatrix, row: int, column: int) -> str:
    """Return what a cell says in one or two sentences: score, change, intervals and counts."""
    domain, stage = matrix.domains[column], matrix.stages[row]
    place = {"own": ", which trained it", "before": ", not yet trained", "after": ""}
    score = f"{matrix.scores[row][column]:.2f}"
    bounds = range_text(matrix.interval[row][column])
    words = f"{domain} after {stage}{place[standing(matrix, row, column)]}: score {score}"
    words += f" (95 % interval {bounds}, {matrix.n[row][column]} items)"
    if row == 0:
        return f"{words}. This is the start: there is no stage before it to compare with."
    change = matrix.change[row][column]
    chance = "" if excludes_zero(change) else "; it may be chance"
    return f"{words}. Change against {matrix.stages[row - 1]}: {change_text(change)}{chance}."


class _Explorer:
    """The widgets of the panel and the matrix that they show."""

    def __init__(
        self,
        matrix: ForgettingMatrix,
        stages: Sequence[StageFolder],
        labels: Mapping[str, str],
    ) -> None:
        from ipywidgets import HTML, Dropdown, VBox

        self._matrix, self._stages = matrix, stages
        row, column = largest_fall(matrix) or (len(matrix.stages) - 1, 0)
        self._row = control(Dropdown, "After stage", options=_numbered(matrix.stages), value=row)
        names = [labels.get(domain, domain) for domain in matrix.domains]
        self._column = control(Dropdown, "Domain", options=_numbered(names), value=column)
        self._cells = {
            (i, j): self._cell(i, j)
            for i in range(len(matrix.stages))
            for j in range(len(matrix.domains))
        }
        self._words, self._items = HTML(), ItemComparison()
        legend = HTML(page(sentence(f"Score and change against the row above; {LEGEND}.")))
        tables = HTML(page(folded("The whole matrix as tables", html_tables(matrix, labels))))
        pick = VBox([self._row, self._column])
        self.box = VBox([legend, self._grid(names), pick, self._words, self._items.box, tables])
        self._row.observe(self._draw, "value")
        self._column.observe(self._draw, "value")
        self._draw()

    def _cell(self, row: int, column: int) -> Any:
        from ipywidgets import Button, Layout

        matrix = self._matrix
        button = Button(
            description=cell_text(matrix, row, column),
            tooltip=f"{matrix.domains[column]} after {matrix.stages[row]}",
            layout=Layout(width="auto"),
        )
        button.on_click(lambda _: self._pick(row, column))
        return button

    def _grid(self, names: Sequence[str]) -> Any:
        from ipywidgets import GridBox, Label, Layout

        children = [Label("after stage"), *map(Label, names)]
        for row, stage in enumerate(self._matrix.stages):
            children += [Label(stage), *(self._cells[row, j] for j in range(len(names)))]
        columns = f"repeat({len(names) + 1}, minmax(9em, 10em))"
        grid = GridBox(children, layout=Layout(grid_template_columns=columns, overflow="auto"))
        grid.add_class("cascade-grid")
        return grid

    def _pick(self, row: int, column: int) -> None:
        self._row.value, self._column.value = row, column

    def _draw(self, _: Any = None) -> None:
        row, column = self._row.value, self._column.value
        for place, button in self._cells.items():
            button.button_style = "primary" if place == (row, column) else ""
        self._words.value = page(sentence(cell_words(self._matrix, row, column)))
        domain = self._matrix.domains[column]
        self._items.show(
            {
                f"after {stage.name}": stage.evals[domain]
                for stage in self._stages[max(0, row - 1) : row + 1]
            }
        )


def _numbered(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, index) for index, name in enumerate(names)]
