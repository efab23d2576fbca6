"""An interrupt becomes a flag that a loop looks at between two steps, so that no step is torn.

    with stopping() as stop:
        for ... in steps:
            if stop.requested:
                break

The first Ctrl-C (or stop button of a notebook) sets the flag, the second one raises
KeyboardInterrupt at once.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Stop:
    """Whether the person in front of the screen has asked to stop."""

    requested: bool = False


_current: Stop | None = None  # of the outermost block; signals belong to the whole process


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into `stop.requested` inside the block; a second one raises.

    A block inside a block shares its flag. Outside the main thread Python delivers no signals, and
    nothing is changed. A SIGTERM is only put off: when the block is left, it goes to the handler
    that was there before, which usually ends the process. An ignored signal stays ignored.
    """
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield Stop()
    elif _current is not None:
        yield _current
    else:
        _current, received = Stop(), []
        try:
            with _handled_by(_handler(_current, received)):
                yield _current
        finally:
            _current = None
        if signal.SIGTERM in received:
            signal.raise_signal(signal.SIGTERM)


def _handler(stop: Stop, received: list[int]):
    def handle(number: int, frame) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        received.append(number)

    return handle


@contextlib.contextmanager
def _handled_by(handler) -> Iterator[None]:
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None: installed by other than Python code, and could not be put back.
    swapped = {n: old for n, old in found.items() if old not in (None, signal.SIG_IGN)}
    try:
        for number in swapped:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in swapped.items():
            signal.signal(number, old)
