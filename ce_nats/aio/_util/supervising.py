"""Background tasks whose failure is logged and reported, and tasks that know whether they were cancelled."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from ...errors import DeliveryError, ErrorCode

_log: Final = logging.getLogger(__name__)

T = TypeVar("T")


class CancellableTask(asyncio.Task[T]):
    """
    Task with :meth:`cancelling`, also on Python 3.10.

    There, requests are counted, but cannot be taken back: after a timeout of anyio inside of the task the number stays.
    Compare it with an earlier one.
    """

    if sys.version_info < (3, 11):
        _requests = 0

        def cancel(self, msg: Any | None = None) -> bool:
            self._requests += 1
            return super().cancel(msg)

        def cancelling(self) -> int:
            return self._requests


def supervise(work: Coroutine[Any, Any, None], name: str, fail: Callable[[DeliveryError], None]) -> asyncio.Task[None]:
    """
    Run a background task. If it raises an exception, log it, and report it to the owner of the task.

    A ``CancelledError`` is such an exception, too, unless the task was cancelled: user code can raise it.

    Args:
        work: The task. It may return.
        name: Name of its owner, for the error and the log.
        fail: Called with ``delivery-failed``, whose ``__cause__`` is the exception. It must not raise, and has to give
            the error to everyone who waits for the task.
    """
    task = CancellableTask(work, loop=asyncio.get_running_loop())
    task.add_done_callback(partial(_check, name=name, fail=fail))
    return task


def _check(task: CancellableTask[None], name: str, fail: Callable[[DeliveryError], None]) -> None:
    """Report the exception of a task that has ended."""
    if task.cancelled():
        if task.cancelling():
            return
        cause: BaseException | None = asyncio.CancelledError()
    else:
        cause = task.exception()
    if cause is None:
        return
    _log.error("%s: a background task failed", name, exc_info=cause)
    error = DeliveryError(ErrorCode.DELIVERY_FAILED, f"{name}: a background task failed: {cause!r}")
    error.__cause__ = cause
    fail(error)
