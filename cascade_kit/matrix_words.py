"""A forgetting matrix in words: sentences, a text table for the terminal, HTML tables, flat rows.

Functions take a `forgetting.ForgettingMatrix`; its methods and the report call them.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cascade_kit.forgetting import Change, ForgettingMatrix

METRIC_MEANING = {
    "acc": "mean final score of the trained domains",
    "bwt": "mean change of a domain from right after its own stage to the end (last one left out)",
    "fwt": "mean change of a domain from the start to just before its own stage (first left out)",
    "forgetting": "mean loss from the best earlier score to the end (last one left out)",
    "largest_drop_before_training": "largest one-stage fall of a domain not yet trained",
}


def signed(value: float) -> str:
    """Return "+0.12", "-0.12" or "0.00"."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def standing(matrix: "ForgettingMatrix", row: int, column: int) -> str:
    """Return "own" for the domain trained in this row, else "before" or "after" its own stage."""
    domain = matrix.domains[column]
    if row and matrix.stages[row] == domain:
        return "own"
    return "after" if domain in matrix.stages[1 : row + 1] else "before"


def range_text(bounds: Sequence[float | None] | None, signs: bool = False) -> str:
    """Return "0.49 to 0.63" (or "-0.12 to +0.03"), empty where the interval is unknown."""
    if bounds is None or bounds[0] is None:
        return ""
    show = signed if signs else "{:.2f}".format
    return f"{show(bounds[0])} to {show(bounds[1])}"


def excludes_zero(change: "Change") -> bool:
    """Tell whether the 95 % interval of a change lies wholly on one side of 0."""
    return change.low is not None and (change.low > 0 or change.high < 0)


def largest_fall(matrix: "ForgettingMatrix") -> tuple[int, int] | None:
    """Return (row, column) of the most negative change, or None if nothing fell."""
    falls = [
        (cell.mean, row, column)
        for row, changes in enumerate(matrix.change)
        for column, cell in enumerate(changes or ())
    ]
    mean, row, column = min(falls, default=(0.0, 0, 0))
    return (row, column) if mean < -1e-12 else None


def finding(matrix: "ForgettingMatrix") -> str:
    """Return the main finding as one clause without a full stop: the title of a figure."""
    if len(matrix.stages) == 1:
        return "the start, before any stage"
    place = largest_fall(matrix)
    if place is None:
        return "no domain fell after any stage"
    row, column = place
    domain, fall = matrix.domains[column], -matrix.change[row][column].mean
    early = ", before its own stage" if standing(matrix, row, column) == "before" else ""
    return f"{domain} fell {fall:.2f} after {matrix.stages[row]}{early}, the largest drop"


def summary(matrix: "ForgettingMatrix") -> str:
    """Return a few sentences: mean score start to end, the largest drop, newer clear ones."""
    clause = finding(matrix)
    place = largest_fall(matrix)
    if place is not None:
        cell = matrix.change[place[0]][place[1]]
        if cell.low is not None:
            noise = "" if excludes_zero(cell) else ", so it may be chance"
            clause += f" (95 % interval {range_text((cell.low, cell.high), True)}{noise})"
    if len(matrix.stages) == 1:
        return f"{clause[0].upper()}{clause[1:]}."
    trained = [matrix.domains.index(stage) for stage in matrix.stages[1:]]
    start = sum(matrix.scores[0][column] for column in trained) / len(trained)
    count = len(trained)
    named = "the trained domain" if count == 1 else f"the {count} trained domains"
    mean = "score" if count == 1 else "mean score"
    end = matrix.metrics["acc"]
    told = f"The {mean} of {named} went from {start:.2f} to {end:.2f}; {clause}."
    newest = [
        f"{domain} fell {-cell.mean:.2f}"
        for column, (domain, cell) in enumerate(zip(matrix.domains, matrix.change[-1], strict=True))
        if cell.mean < 0 and excludes_zero(cell) and place != (len(matrix.stages) - 1, column)
    ]
    if newest:
        told += f" After {matrix.stages[-1]}, the newest stage, {' and '.join(newest)}."
    return told


def cell_rows(matrix: "ForgettingMatrix") -> list[dict[str, Any]]:
    """Return one dict a cell: where it stands, its score and its change with their intervals."""
    rows = []
    for row, stage in enumerate(matrix.stages):
        for column, domain in enumerate(matrix.domains):
            low, high = matrix.interval[row][column] or (None, None)
            changes = matrix.change[row]
            change = (
                vars(changes[column])
                if changes
                else dict.fromkeys(("mean", "low", "high", "lost", "gained"))
            )
            rows.append(
                {
                    "stage": stage,
                    "domain": domain,
                    "standing": standing(matrix, row, column),
                    "score": matrix.scores[row][column],
                    "low": low,
                    "high": high,
                    "n": matrix.n[row][column],
                    "change": change["mean"],
                    "change_low": change["low"],
                    "change_high": change["high"],
                    "lost": change["lost"],
                    "gained": change["gained"],
                }
            )
    return rows


def metric_text(value: Any) -> str:
    """Return a metric for people: "0.733", "none", or "0.31 (instruct after rlhf)"."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return f"{value['drop']:.2f} ({value['domain']} after {value['stage']})"
    return f"{value:.3f}"


def _grid(matrix: "ForgettingMatrix", signs: bool) -> list[list[tuple[str, str]]]:
    """Return (number, interval) texts of the scores, or with signs of the changes, per row."""
    if not signs:
        return [
            [
                (f"{score:.2f}", range_text(bounds))
                for score, bounds in zip(scores, intervals, strict=True)
            ]
            for scores, intervals in zip(matrix.scores, matrix.interval, strict=True)
        ]
    return [
        [(signed(cell.mean), range_text((cell.low, cell.high), True)) for cell in row or ()]
        for row in matrix.change
    ]


def has_intervals(matrix: "ForgettingMatrix") -> bool:
    """Tell whether any score has an interval; published tables have none."""
    return any(range_text(bounds) for row in matrix.interval for bounds in row)


MARKED = {"own": "*{}", "before": "({})", "after": "{}"}
LEGEND = "* trained in this stage, (in brackets) not yet trained"


def text_tables(matrix: "ForgettingMatrix") -> str:
    """Return scores, changes and metrics as plain text at most 80 columns wide for five domains."""
    intervals = "95 % intervals" if has_intervals(matrix) else "no interval is known"
    parts = [
        f"Scores, {intervals}; {LEGEND}",
        *_text_table(matrix, signs=False),
    ]
    if len(matrix.stages) > 1:
        parts += [
            "",
            "Change against the row above, same items",
            *_text_table(matrix, signs=True),
            "",
            *(f"{name} {metric_text(value)}" for name, value in matrix.metrics.items()),
        ]
    return "\n".join([*parts, "", matrix.summary()])


def _text_table(matrix: "ForgettingMatrix", signs: bool) -> list[str]:
    first = max(len(stage) for stage in ("after", *matrix.stages))
    width = max(12, *(len(domain) for domain in matrix.domains)) + 2
    lines = [f"{'after':{first}}" + "".join(f"{domain:>{width}}" for domain in matrix.domains)]
    for row, cells in enumerate(_grid(matrix, signs)):
        if not cells:
            continue
        numbers = [
            MARKED[standing(matrix, row, column)].format(number)
            for column, (number, _) in enumerate(cells)
        ]
        line = f"{matrix.stages[row]:{first}}"
        lines.append(line + "".join(f"{number:>{width}}" for number in numbers))
        ranges = [bounds.replace(" to ", "..") for _, bounds in cells]
        if any(ranges):
            lines.append(" " * first + "".join(f"{bounds:>{width}}" for bounds in ranges))
    return lines


def html_tables(matrix: "ForgettingMatrix", labels: Mapping[str, str] | None = None) -> str:
    """Return the matrix as accessible HTML tables without inline style (GitHub strips it).

    `labels` renames columns, for example {"rlhf": "rlhf (proxy)"}.
    """
    names = [(labels or {}).get(domain, domain) for domain in matrix.domains]
    scores = "Score on each domain after each stage"
    changes = "Change of each score against the stage before"
    if has_intervals(matrix):
        scores += ", with its 95 % interval"
        changes += (
            ", on the same items, with its paired 95 % interval and the number of items that fell "
            "and rose"
        )
    tables = [_html_table(matrix, names, f"{scores}. {LEGEND}.", signs=False)]
    if len(matrix.stages) > 1:
        tables.append(_html_table(matrix, names, f"{changes}.", signs=True))
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(metric_text(value))}</td>'
            f"<td>{METRIC_MEANING[name]}</td></tr>"
            for name, value in matrix.metrics.items()
        )
        tables.append(f"<table><caption>Metrics over the trained domains</caption>{rows}</table>")
    return "\n".join([*tables, f"<p>{escape(matrix.summary())}</p>"])


def _html_table(matrix: "ForgettingMatrix", names: Sequence[str], caption: str, signs: bool) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = []
    for row, cells in enumerate(_grid(matrix, signs)):
        if not cells:
            continue
        shown = "".join(
            f"<td>{_html_cell(matrix, row, column, texts, signs)}</td>"
            for column, texts in enumerate(cells)
        )
        body.append(f'<tr><th scope="row">{escape(matrix.stages[row])}</th>{shown}</tr>')
    return (
        f'<table><caption>{caption}</caption><thead><tr><th scope="col">after stage</th>{head}'
        f"</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _html_cell(
    matrix: "ForgettingMatrix", row: int, column: int, texts: tuple[str, str], signs: bool
) -> str:
    number, bounds = texts
    notes = [bounds]
    if signs and matrix.change[row][column].lost is not None:
        cell = matrix.change[row][column]
        notes.append(f"{cell.lost} fell, {cell.gained} rose")
    elif not signs and matrix.n[row][column] is not None:
        notes.append(f"n = {matrix.n[row][column]}")
    small = "".join(f"<br><small>{note}</small>" for note in notes if note)
    return MARKED[standing(matrix, row, column)].format(number) + small
