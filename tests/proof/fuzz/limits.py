"""A limit of the processor time of an input. Other programs on the machine do not make processor time longer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any

LIMIT = 2.0  # seconds; the slowest input of its size takes a tenth of it
_END = 30.0  # seconds, after which code is interrupted that may run without end
_CONFIRMATIONS = 2


class RunsWithoutEnd(BaseException):
    """Code took too long and was interrupted. Not an Exception, which the code could catch."""


@contextmanager
def interrupted() -> Iterator[None]:
    """
    Raise RunsWithoutEnd in code that takes longer than ``_END``.

    Without effect in other threads than the main thread, and on Windows, where signals cannot do this.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, _interrupt)
    signal.setitimer(signal.ITIMER_PROF, _END)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _interrupt(*_: Any) -> None:
    raise RunsWithoutEnd(f"the input took more than {_END} s of processor time")


def too_slow(call: Callable[[], object]) -> float | None:
    """Return the shortest time of several calls if it is over the limit: a call can be slow once, to load something."""
    shortest = float("inf")
    for _ in range(1 + _CONFIRMATIONS):
        began = process_time()
        call()
        shortest = min(shortest, process_time() - began)
        if shortest <= LIMIT:
            return None
    return shortest
