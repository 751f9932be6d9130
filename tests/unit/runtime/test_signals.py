"""Signal handlers in threads that may not choose any."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tintype.runtime.interrupt import watch_signals
from tintype.runtime.signals import handle_signals, ignored


def in_thread(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_work_in_another_thread_leaves_the_handlers_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with watch_signals() as interrupt, ignored(signal.SIGINT):
            assert interrupt.signal is None
            assert signal.getsignal(signal.SIGINT) is before
        handle_signals(lambda number: None)()

    in_thread(work)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_is_ignored_and_then_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ignored(signal.SIGINT):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
