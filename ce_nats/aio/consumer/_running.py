"""Whether a consumer runs, the tasks that wait for its messages, and what it reports."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...errors import CeNatsError, DeliveryError, Reject
from .._observer import guarded
from ..core._received import Received

_log: Final = logging.getLogger(__name__)


class Running:
    """
    State of a consumer that its parts share.

    Args:
        target: Name of the consumer, for errors and the log.

    Attributes:
        target: As the argument.
        stopped: Set when the program has stopped the consumer.
        error: Error that ends the iterations, or None.
        has_ended: Whether the iterations end, with or without an error.
        changed: Set when messages have arrived, or another one may be handled.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.stopped = asyncio.Event()
        self.error: DeliveryError | None = None
        self.has_ended = False
        self.changed = asyncio.Event()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def stop(self) -> None:
        """End the iterations."""
        self.has_ended = True
        self.stopped.set()
        self.wake()

    def fail(self, error: DeliveryError) -> None:
        """End the iterations with an error; the first one is the cause of further ones."""
        self.has_ended = True
        self.error = self.error or error
        self.wake()

    def wake(self, most: int | None = None) -> None:
        """
        Wake tasks that wait, because a message may be taken now, or the end.

        Args:
            most: Number of messages; None wakes all tasks.
        """
        self.changed.set()
        waiting = self._waiting
        while waiting and most != 0:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                most = None if most is None else most - 1

    async def wait(self, seconds: float | None = None) -> None:
        """
        Wait until a message may be taken, or the end.

        Args:
            seconds: Maximum time, or None.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        timer = None if seconds is None else loop.call_later(seconds, self.wake)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.wake(1)  # instead of this task, which was woken before it was cancelled
            raise
        finally:
            if timer is not None:
                timer.cancel()


class Reporter:
    """
    Calls the hook for errors, or logs them.

    Args:
        target: Name of the consumer.
        on_error: The hook, or None.

    Attributes:
        target: As the argument.
    """

    def __init__(self, target: str, on_error: Callable[[Exception, Any], None] | None) -> None:
        self.target = target
        self._on_error = on_error
        self._has_dropped = False

    def report(self, error: Exception, delivery: Received | None, ending: str = "") -> None:
        """
        Report an error; log it if there is no hook, or if the message has ended.

        Args:
            error: The error.
            delivery: The delivery that it concerns, or None.
            ending: How the message ends without a handler; else ``""``.
        """
        on_error = self._on_error
        if on_error is not None:
            guarded(lambda: on_error(error, delivery))
        if on_error is not None and not ending:
            return
        place = "" if delivery is None else f", sequence {delivery.sequence}, delivery {delivery.deliveries}"
        is_expected = isinstance(error, (CeNatsError, Reject))
        text = f"{type(error).__name__}: {error}" if isinstance(error, Reject) else error
        end = f"; {ending}" if ending else ""
        _log.error("%s%s: %s%s", self.target, place, text, end, exc_info=None if is_expected else error)

    def report_dropped(self, sequence: int) -> None:
        """Log once that the program does not settle deliveries."""
        if not self._has_dropped:
            self._has_dropped = True
            _log.warning(
                "%s, sequence %d: the program has dropped an unsettled delivery; settle each one, with 'async with "
                "delivery:' for example. Such messages stay in flight until the consumer is left, and the server "
                "delivers at most max_ack_pending of them",
                self.target,
                sequence,
            )
