"""attach: look at a stage from its files, after a closed tab or from another process."""

import time
from pathlib import Path

from cascade_kit import settings
from cascade_kit.cascade import Event
from cascade_kit.interrupts import stopping
from cascade_kit.live.history import History
from cascade_kit.live.progress import Progress
from cascade_kit.live.watch import choose_view
from cascade_kit.session.folder import Seen, look, newest_stage

POLL = 1.0  # seconds between two looks


def attach(
    folder: Path | str | None = None, *, stage: str | None = None, follow: bool = False
) -> History:
    """Draw the state of a stage from its files: of the one that logged last, unless named.

    `folder` is a run folder, by default that of the notebooks. With `follow` it is drawn until the
    stage is finished, was interrupted, or gives no sign of life; an interrupt stops the looking,
    not the training. Raises ValueError where there is nothing to see.
    """
    place = Path(folder) if folder else settings.notebook_folder()
    if not place.is_dir():
        raise ValueError(f"there is no run folder {place}; train a stage first, or name another")
    name = stage or newest_stage(place)
    seen, view = look(place, name), choose_view()
    progress = progress_of(seen)
    with stopping() as stop:
        while follow and not seen.ended and not stop.requested:
            view.show(progress)
            time.sleep(POLL)
            seen = look(place, name)
            progress = progress_of(seen)
    progress.ending = seen.ending
    view.show(progress, last=True)
    view.close()
    return progress.history(interrupted=seen.ended in ("interrupted", "silent"), state=seen.state)


def progress_of(seen: Seen) -> Progress:
    """The events that would have led here."""
    progress = Progress()
    for record in seen.steps:
        progress.add(Event("step", seen.stage, record.step, seen.total, record=record))
    for done, (domain, score) in enumerate(seen.scores.items(), start=1):
        count = len(seen.scores)
        progress.add(Event("evaluated", seen.stage, done, count, domain, score))
    return progress
