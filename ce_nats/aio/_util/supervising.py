"""Background tasks whose failure is logged and reported, and what is a cancellation and what is not."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from ...errors import DeliveryError, ErrorCode

_log: Final = logging.getLogger(__name__)

P = TypeVar("P")
T = TypeVar("T")


class CancellableTask(asyncio.Task[T]):
    """Task with ``cancelling()`` and ``uncancel()``, also on Python 3.10, where no timeout calls the latter."""

    if sys.version_info < (3, 11):
        _requests = 0

        def cancel(self, msg: Any | None = None) -> bool:
            self._requests += 1
            return super().cancel(msg)

        def cancelling(self) -> int:
            return self._requests

        def uncancel(self) -> int:
            self._requests -= 1
            return self._requests

    def take_back(self, requests: int) -> None:
        """
        Take back requests for cancellation that the task has survived.

        Timeouts of some libraries do not, and each later task group in the task would end with a ``CancelledError``.
        """
        while self.cancelling() > requests:
            self.uncancel()


def call_plain(name: str, function: Callable[[P], T], argument: P) -> T:
    """
    Call a function of the user that is not async.

    Raises:
        DeliveryError: ``handler-cancelled``: it raised ``CancelledError``, which would look like the cancellation of
            the calling task.
        Exception: As the function does.
    """
    try:
        return function(argument)
    except asyncio.CancelledError as error:
        text = f"{name} raised CancelledError, and is not async"
        raise DeliveryError(ErrorCode.HANDLER_CANCELLED, text) from error


def supervise(work: Coroutine[Any, Any, None], name: str, fail: Callable[[DeliveryError], None]) -> asyncio.Task[None]:
    """
    Run a background task. If it raises an exception, log it, and report it to the owner of the task.

    A ``CancelledError`` is such an exception, too, unless the task was cancelled: user code can raise it.

    ``fail``: Called with ``delivery-failed``, whose ``__cause__`` is the exception. It must not raise, and has to give
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
    if cause is not None:
        fail(failure(name, cause))


def failure(name: str, cause: BaseException) -> DeliveryError:
    """Log the exception that ended a background task, and return the error for everyone who waits for the task."""
    _log.error("%s: a background task failed", name, exc_info=cause)
    error = DeliveryError(ErrorCode.DELIVERY_FAILED, f"{name}: a background task failed: {cause!r}")
    error.__cause__ = cause
    return error
