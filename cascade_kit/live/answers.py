"""What the panels share: text on the page, and two answers to one held-out item side by side."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from cascade_kit.report_html import TEXT_LIMIT, folded, table
from cascade_kit.run_logs import Row, item_scores

STYLE = """<style>
.cascade { line-height: 1.4; }
.cascade .scroll { overflow-x: auto; }
.cascade table { border-collapse: collapse; margin: .4em 0; }
.cascade caption { text-align: left; padding: .2em 0; }
.cascade th, .cascade td { border: 1px solid rgba(128, 128, 128, .6); padding: .2em .5em;
  text-align: left; vertical-align: top; }
.cascade td { min-width: 8em; max-width: 34em; white-space: pre-wrap; overflow-wrap: anywhere;
  font-family: monospace; }
.cascade pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2em 0; padding: .4em;
  border: 1px solid rgba(128, 128, 128, .6); background: transparent; color: inherit; }
.cascade summary { cursor: pointer; }
.cascade-grid .widget-label { font-weight: bold; }
</style>"""
CHANGES = ("lost", "gained", "unchanged", "all")

Rows = Mapping[str, Row]  # item id -> its line of eval/DOMAIN.jsonl


def page(*parts: str) -> str:
    """Return HTML parts in the panels' style, as the value of an HTML widget."""
    # A model may write half a surrogate pair, which the message to the page cannot hold.
    text = "".join(parts).encode("utf-8", errors="replace").decode("utf-8")
    return f'{STYLE}<div class="cascade">{text}</div>'


def sentence(text: str) -> str:
    """Return one escaped paragraph."""
    return f"<p>{escape(text)}</p>"


def text_block(heading: str, text: str) -> str:
    """Return a whole text with its whitespace, escaped; a long one behind a line to click."""
    block = f"<pre>{escape(text)}</pre>"
    if len(text) > TEXT_LIMIT:
        return folded(f"{heading} ({len(text)} characters)", block)
    return f"<div>{escape(heading)}{block}</div>"


def fault_text(error: Exception) -> str:
    """Return an error as one escaped paragraph: in a callback a traceback would be lost."""
    return sentence(f"{type(error).__name__}: {error}")


def control(kind: Any, label: str, **settings: Any) -> Any:
    """Return a widget with a label wide enough to be read."""
    from ipywidgets import Layout

    style = {"description_width": "10em"}
    return kind(
        description=label, style=style, layout=Layout(width="38em", max_width="99%"), **settings
    )


def offer(widget: Any, options: Sequence[Any]) -> None:
    """Give a Dropdown new options and choose the first; without a choice it would keep none."""
    widget.options = options
    widget.index = 0 if options else None


def run_folder(source: Any) -> Path:
    """Return the folder of a run: a path, or an object with `.folder` (a Run, a Session).

    Raises ValueError where it holds no run.
    """
    folder = Path(getattr(source, "folder", source))
    if not (folder / "run.json").is_file():
        raise ValueError(f"{folder} holds no run.json: give the folder of a run")
    return folder


def change_of(before: Row, after: Row) -> float:
    """Return what an item's mean score changed by."""
    return fmean(item_scores(after)) - fmean(item_scores(before))


def items_by_change(before: Rows, after: Rows) -> dict[str, list[str]]:
    """Return the ids of items answered both times: lost, gained, unchanged and all of them."""
    found: dict[str, list[str]] = {kind: [] for kind in CHANGES}
    for item in before:
        if item in after:
            change = change_of(before[item], after[item])
            moved = "gained" if change > 0 else "lost"
            found["unchanged" if abs(change) < 1e-12 else moved].append(item)
            found["all"].append(item)
    return found


def item_page(answers: Mapping[str, Row]) -> str:
    """Return one item's prompt and its answers in columns, one a stage: {"after math": row}."""
    first = next(iter(answers.values()))
    rows: list[list[Any]] = [["score", *(fmean(item_scores(row)) for row in answers.values())]]
    for sample in range(len(first["completions"])):
        number = f" {sample + 1}" if len(first["completions"]) > 1 else ""
        for label, read in ANSWER_ROWS.items():
            cells = [read(row, sample) for row in answers.values()]
            if any(cell is not None for cell in cells):
                rows.append([label + number, *cells])
    prompt = text_block("prompt", first["prompt"]) if first.get("prompt") else ""
    return prompt + table(f"Item {first['id']}", ("", *answers), rows)


def _of_sample(name: str) -> Callable[[Row, int], Any]:
    return lambda row, sample: (list(row.get(name) or ()) + [None] * (sample + 1))[sample]


def _end(row: Row, sample: int) -> str | None:
    stopped = _of_sample("stopped")(row, sample)
    return None if stopped is None else end_text(stopped)


ANSWER_ROWS = {"answer": _of_sample("completions"), "verdict": _of_sample("why"), "end": _end}


def end_text(stopped: bool) -> str:
    """Return why an answer ended, in words."""
    return "stopped by itself" if stopped else "cut at the length limit"


class ItemComparison:
    """Pick a held-out item by what happened to it, and read its answers before and after."""

    def __init__(self) -> None:
        from ipywidgets import HTML, Dropdown, VBox

        self._answers: dict[str, Rows] = {}  # "after math" -> its rows; the earlier stage first
        self._found: dict[str, list[str]] = {}
        self._kind = control(Dropdown, "Items")
        self._item = control(Dropdown, "Item")
        self._page = HTML()
        self._kind.observe(self._list_items, "value")
        self._item.observe(self._draw, "value")
        self.box = VBox([self._kind, self._item, self._page])

    def show(self, answers: Mapping[str, Rows]) -> None:
        """Show the rows of one stage, or of two whose items are compared."""
        self._answers = dict(answers)
        first, *others = self._answers.values()
        self._found = items_by_change(first, others[0]) if others else {"all": list(first)}
        options = [(f"{kind} ({len(ids)})", kind) for kind, ids in self._found.items()]
        offer(self._kind, options)
        moved = max(("lost", "gained"), key=lambda kind: len(self._found.get(kind, ())))
        self._kind.value = moved if self._found.get(moved) else "all"
        self._list_items()

    def _list_items(self, _: Any = None) -> None:
        ids = self._found.get(self._kind.value, [])
        offer(self._item, [(self._label(item), item) for item in ids])
        self._draw()

    def _label(self, item: str) -> str:
        scores = [f"{fmean(item_scores(rows[item])):.2f}" for rows in self._answers.values()]
        return f"{item}: {' → '.join(scores)}"

    def _draw(self, _: Any = None) -> None:
        item = self._item.value
        if item is None:
            self._page.value = page(sentence("No such item."))
            return
        self._page.value = page(
            item_page({name: rows[item] for name, rows in self._answers.items()})
        )
