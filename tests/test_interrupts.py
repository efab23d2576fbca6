"""Signals become a flag between steps, with real signals sent to this process."""

import os
import signal
import threading

import pytest

from cascade_kit.interrupts import stopping


@pytest.fixture(autouse=True)
def handlers():
    """The handlers of a program in the foreground, whatever started the tests."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def test_the_first_interrupt_is_a_flag_and_the_second_raises():
    with stopping() as stop:
        assert not stop.requested
        press()
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        press()


def test_handlers_are_put_back_when_the_block_fails():
    with pytest.raises(ZeroDivisionError), stopping():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with stopping() as stop:
        assert not stop.requested


def test_an_inner_block_shares_the_flag_and_leaves_the_handler():
    with stopping() as outer:
        with stopping() as inner:
            press()
            assert inner is outer
        assert outer.requested
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def test_another_thread_changes_nothing():
    seen = []

    def work():
        with stopping() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, signal.default_int_handler)]


def test_a_termination_waits_until_the_block_is_left():
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    with stopping() as stop:
        press(signal.SIGTERM)
        assert stop.requested
        assert received == []
    assert received == [signal.SIGTERM]


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stopping() as stop:
        press()
        assert not stop.requested
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
