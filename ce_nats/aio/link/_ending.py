"""
Why a connection was lost, and what waits for its end.

nats-py fails neither a request nor a ``flush()`` when the connection is closed. Here pending operations fail at once
with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from nats.aio.client import Client

from ...errors import DeliveryError, ErrorCode
from ._private import get, put

_log: Final = logging.getLogger(__name__)

_ANY_VIOLATION: Final = "permissions violation"


class Ending:
    """Losses of a connection, and the operations that fail when it is closed."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        # nats-py keeps the last error after a reconnect.
        self._past_error = None if nc.is_closed else nc.last_error
        # Operations that fail when the connection is closed, with the target for the error text.
        self._waiting: dict[asyncio.Future[DeliveryError], str] = {}
        # The last violation after which the connection was restored, and its time.
        self._violation: Exception | None = None
        self._violated_at = 0.0

    def note_reconnect(self) -> None:
        """Take errors so far as those of earlier connections."""
        self._past_error = self._nc.last_error

    def note_violation(self, error: Exception) -> None:
        """Note an error for which the server ends the connection, which is restored."""
        self._violation, self._violated_at = error, time.monotonic()

    @property
    def loss(self) -> Exception | None:
        """Error by which the connection was lost permanently; None if it is open, or the program has closed it."""
        error = self._nc.last_error
        if not self._nc.is_closed or error is None or error is self._past_error:
            return None
        return None if _ANY_VIOLATION in str(error) else error

    def violation_since(self, moment: float) -> str:
        """Return a text for an error if the server ended the connection for a violation since a moment, or ``""``."""
        return f"; the connection was lost: {self._violation}" if self._violated_at > moment else ""

    def closed_error(self, target: str) -> DeliveryError:
        """Return the error of an operation on a closed connection."""
        loss = self.loss
        text = f"{target}: the connection was closed" + (f": {loss}" if loss else "")
        error = DeliveryError(ErrorCode.CONNECTION_CLOSED, text)
        error.__cause__ = loss
        return error

    @contextmanager
    def until_closed(self, target: str) -> Iterator[asyncio.Future[DeliveryError]]:
        """Yield a future that gets :meth:`closed_error` if the connection is closed during the block."""
        failed: asyncio.Future[DeliveryError] = asyncio.get_running_loop().create_future()
        self._waiting[failed] = target
        try:
            yield failed
        finally:
            del self._waiting[failed]
            failed.cancel()

    def fail_waiting(self) -> None:
        for failed, target in self._waiting.items():
            if not failed.done():
                failed.set_result(self.closed_error(target))


class Closing:
    """Calls functions before nats-py closes a connection, as long as something can be written."""

    def __init__(self, nc: Client) -> None:
        self._close: Callable[..., Awaitable[None]] = get(nc, "_close")
        self._callbacks: dict[Callable[[], None], None] = {}
        put(nc, "_close", self._call)

    def before(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Register a function, which must not raise; return a function that removes it."""
        self._callbacks[callback] = None
        return lambda: self._callbacks.pop(callback, None)

    async def _call(self, *arguments: Any, **options: Any) -> None:
        for callback in list(self._callbacks):
            try:
                callback()
            except Exception:
                _log.exception("a function before the closing of the connection failed")
        await self._close(*arguments, **options)
