"""watch: go through what the library yields, with one bar and one live figure to look at.

Nothing here trains: `watch(iterator)` asks for the next step, shows it, and stops between two steps
when it is interrupted. It needs no widgets, only display handles, and leaves its last state in the
notebook's file. Outside a notebook it writes a bar or lines of text.
"""

import sys
import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from cascade_kit.cascade import Event
from cascade_kit.interrupts import stopping
from cascade_kit.live.history import History
from cascade_kit.live.progress import Progress
from cascade_kit.records import StepRecord

GO_ON = (
    "Interrupted {where}, between two steps: the policy is as that step left it. To go on from "
    "there, watch the same iterator again (session.train() gives out the same one in this kernel), "
    "or run the cell again if it watches run.go(), which goes on from its checkpoint, also after a "
    "kernel restart. A session's stage then starts over. A new grpo.train() goes on from these "
    "weights with a fresh optimiser."
)
WIDTH = 88  # of printed lines
LINES = 10  # printed for a phase of known length, where there is neither notebook nor terminal


def watch(events: Iterable[Any], *, total: int | None = None) -> History:
    """Run `events` to the end and show it; return what happened.

    `events` yields what `grpo.train` yields, (StepRecord, answers), or the runner's `Event`s. The
    number of steps is `total`, else what the events say. The first interrupt ends after the step
    that is running and returns as usual, with `history.interrupted`; the second one raises.
    """
    progress, view = Progress(), choose_view()
    view.show(progress)
    interrupted = False
    with stopping() as stop:  # around the last words too: a SIGTERM ends the process behind it
        try:
            for item in events:
                progress.add(as_event(item, total))
                view.show(progress)
                if stop.requested and not at_end(progress.event):
                    interrupted = True
                    progress.ending = "interrupted"
                    break
        except BaseException as error:
            progress.ending = f"stopped by {type(error).__name__}"
            raise
        finally:
            view.show(progress, last=True)
            view.close()
        if interrupted:
            # JupyterLab breaks a longer line in the middle of a word.
            print(textwrap.fill(how_to_go_on(progress.event), WIDTH), flush=True)
    return progress.history(interrupted=interrupted)


def at_end(event: Event) -> bool:
    """After the last step of a phase the runner still has to save what it made: do not stop yet.

    A pre-flight is on disk before it is told.
    """
    return event.kind != "pre-flight" and bool(event.total) and event.done >= event.total


def as_event(item: Any, total: int | None = None) -> Event:
    """What an iterator yielded, as an Event; ValueError for anything else."""
    if isinstance(item, tuple) and item and isinstance(item[0], StepRecord):
        return Event("step", "", item[0].step, total or 0, record=item[0])
    if isinstance(item, Event):
        return item if total is None else replace(item, total=total)
    raise ValueError(
        f"watch cannot show {type(item).__name__}: give it grpo.train(...) or the events of a run "
        "or session, for example live.watch(session.train())"
    )


def how_to_go_on(event: Event) -> str:
    if event.kind == "step":
        of = f" of {event.total}" if event.total else ""
        return GO_ON.format(where=f"after step {event.done}{of}")
    return (
        f"Interrupted during {event.kind!r} of {event.stage}, {event.done} of {event.total} done. "
        "To go on, watch the same iterator again, or run the cell again: what is done is kept."
    )


# ---- where it is shown -------------------------------------------------------------------------


def choose_view() -> "NotebookView | BarView | LinesView":
    if in_notebook():
        return NotebookView()
    return BarView() if sys.stderr.isatty() else LinesView()


def in_notebook() -> bool:
    """Whether display handles work: an IPython shell that is not a terminal's."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    shell = get_ipython()
    return shell is not None and not isinstance(shell, TerminalInteractiveShell)


@dataclass(frozen=True)
class Picture:
    """A figure as PNG, and its finding in words where no picture can be shown."""

    png: bytes
    words: str

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return self.words


class NotebookView:
    """One display handle for the status and one for the figure, updated in place."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        self._shown: dict[str, Any] = {}
        self._status_due = 0.0
        # Steps that are shown again come at once: the first figure is to have all of them.
        self._figure_due = time.monotonic() + 1.0

    def show(self, progress: Progress, *, last: bool = False) -> None:
        """Redraw at most once a second; the figure takes at most a tenth of the time."""
        now = time.monotonic()
        if last or now >= self._status_due:
            self._put("status", progress.status())
            self._status_due = now + 1.0
        if progress.records() and (last or now >= self._figure_due):
            self._put("figure", picture(progress))
            drawn = time.monotonic()
            self._figure_due = drawn + max(1.0, 9 * (drawn - now))

    def _put(self, name: str, shown: Any) -> None:
        from IPython.display import display

        if name not in self._handles:
            self._handles[name] = display(shown, display_id=True)
        elif shown != self._shown[name]:
            self._handles[name].update(shown)
        self._shown[name] = shown

    def close(self) -> None:
        """Nothing to close: the last state stays in the notebook."""


def picture(progress: Progress) -> Picture:
    """The live figure of the stage that is trained."""
    from cascade_kit import plots

    stage, records = list(progress.steps.items())[-1]
    total = progress.event.total if progress.phase == ("step", stage) else 0
    figure = plots.plot_training(records, stage, panels=plots.LIVE_PANELS, total=total)
    rows = [vars(record) for record in records]
    return Picture(plots.figure_png(figure), plots.training_finding(rows, stage))


class BarView:
    """A terminal: one line with a bar for each phase."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._phase = ("", "")

    def show(self, progress: Progress, *, last: bool = False) -> None:
        from tqdm import tqdm

        event = progress.event
        if event is None or event.kind == "finished":
            return
        if self._bar is None or self._phase != progress.phase:
            self.close()
            self._phase = progress.phase
            self._bar = tqdm(desc=progress.title(), total=event.total or None, mininterval=1)
        self._bar.set_postfix_str(progress.numbers(), refresh=last)
        self._bar.update(event.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class LinesView:
    """Neither notebook nor terminal: about ten lines a phase."""

    def __init__(self) -> None:
        self._printed: Any = None

    def show(self, progress: Progress, *, last: bool = False) -> None:
        event = progress.event
        if event is None or event.kind == "finished":
            return
        every = -(-event.total // LINES) if event.total else LINES
        shown = (progress.phase, event.done, progress.ending)
        if shown != self._printed and (
            last or event.done % every == 0 or event.done == event.total
        ):
            print(progress.words(), flush=True)
            self._printed = shown

    def close(self) -> None:
        """Nothing to close."""
