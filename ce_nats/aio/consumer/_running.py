"""Whether a consumer runs, the tasks that wait for its messages, and what it reports."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...errors import CeNatsError, DeliveryError, Reject, preview
from .._log_fields import DELIVERIES, DESTINATION, GROUP, SEQUENCE, STREAM, error_fields, event_fields, with_event
from .._observer import guarded
from ._attempt import Attempt

_log: Final = logging.getLogger(__name__)

# Seconds between two reports of a number of messages.
_TALLY_SECONDS: Final = 60.0


class Running:
    """
    State of a consumer that its parts share.

    Attributes:
        stopped: Set when the program has stopped the consumer.
        error: Error that ends the iterations, or None.
        has_ended: Whether the iterations end, with or without an error.
        is_cut_off: Whether nothing can be acknowledged any more, so that no further handler may start.
        changed: Set when messages have arrived, or another one may be handled.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.stopped = asyncio.Event()
        self.error: DeliveryError | None = None
        self.has_ended = self.is_cut_off = False
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

    def cut_off(self, error: DeliveryError) -> None:
        """As :meth:`fail`, because nothing can be acknowledged any more: messages that wait are not handled."""
        self.is_cut_off = True
        self.fail(error)

    def wake(self, most: int | None = None) -> None:
        """Wake tasks that wait, because a message may be taken now, or the end."""
        self.changed.set()
        waiting = self._waiting
        while waiting and most != 0:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                most = None if most is None else most - 1

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until a message may be taken, or the end."""
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


class Tally:
    """
    Counts messages with the same text: the first one is logged, then their number each minute. No I/O; ``now`` is an
    argument.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}  # end of the minute, and number in it

    @property
    def next_end(self) -> float:
        """Time at which the next minute is over, or infinite."""
        return min((end for end, _ in self._counts.values()), default=math.inf)

    def add(self, text: str, now: float) -> bool:
        """Count a message, and return whether it is the first one."""
        end, count = self._counts.get(text, (0.0, -1))
        self._counts[text] = (end, count + 1) if count >= 0 else (now + _TALLY_SECONDS, 0)
        return count < 0

    def collect(self, now: float) -> list[tuple[str, int]]:
        """Return texts and numbers, above 0, of the minutes that are over; the next minute begins."""
        ended = {text: count for text, (end, count) in self._counts.items() if end <= now}
        for text, count in ended.items():
            del self._counts[text]
            if count:
                self._counts[text] = (now + _TALLY_SECONDS, 0)
        return [(text, count) for text, count in ended.items() if count]


class Reporter:
    """Calls the hook for errors, or logs them."""

    def __init__(self, target: str, on_error: Callable[[Exception, Any], None] | None) -> None:
        self.target = target
        self._on_error = on_error
        self._has_dropped = False
        self._tally = Tally()
        self._timer: asyncio.TimerHandle | None = None

    def report(self, error: Exception, delivery: Attempt | None, *, is_final: bool = False) -> None:
        """
        Report an error; log it without a hook, or if the message has ended without a handler.

        Failures during an outage are not logged: they are alike, and there are lines about the outage.
        """
        if self._call_hook(error, delivery) and not is_final:
            return
        if delivery is not None and delivery._is_held:
            return
        exc_info = None if isinstance(error, (CeNatsError, Reject)) else error
        _log.error(
            "%s%s: %s%s",
            self.target,
            _place(delivery),
            _text(error),
            _ending(delivery),
            exc_info=exc_info,
            extra=_fields(delivery, error),
        )

    def _call_hook(self, error: Exception, delivery: Attempt | None) -> bool:
        """Call the hook, and return whether there is one."""
        on_error = self._on_error
        if on_error is not None:
            guarded(lambda: on_error(error, delivery))
        return on_error is not None

    def count(self, error: CeNatsError, delivery: Attempt, *, is_warning: bool = False) -> None:
        """Log an error of many messages: the first one with its code and ending, then their number each minute."""
        if self._tally.add(f"{error.code}{_ending(delivery)}", time.monotonic()):
            level = logging.WARNING if is_warning else logging.ERROR
            place, ending = _place(delivery), _ending(delivery)
            _log.log(level, "%s%s: %s%s", self.target, place, error, ending, extra=_fields(delivery, error))
            self._start_timer()
        if not is_warning:
            self._call_hook(error, delivery)

    def close(self) -> None:
        """Log the numbers of messages that are not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log_counts(math.inf)

    def _start_timer(self) -> None:
        end = self._tally.next_end
        if self._timer is None and end < math.inf:
            self._timer = asyncio.get_running_loop().call_later(end - time.monotonic(), self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None
        self._log_counts(time.monotonic())
        self._start_timer()

    def _log_counts(self, now: float) -> None:
        for text, count in self._tally.collect(now):
            _log.warning("%s: %d more since the last report: %s", self.target, count, text)

    def report_dropped(self, attempt: Attempt) -> None:
        """Log once that the program does not settle deliveries."""
        if not self._has_dropped:
            self._has_dropped = True
            _log.warning(
                "%s%s: the program has dropped an unsettled delivery; settle each one, with 'async with "
                "delivery:' for example. Such messages stay in flight until the consumer is left, and the server "
                "delivers at most max_ack_pending of them",
                self.target,
                _place(attempt),
                extra=_fields(attempt),
            )


def place_of(attempt: Attempt) -> str:
    """Return how a line of the log names a message."""
    place = f"sequence {attempt.sequence}, delivery {attempt.deliveries}, subject {preview(attempt.subject)}"
    return with_event(place, attempt._event)


def _place(attempt: Attempt | None) -> str:
    return "" if attempt is None else f", {place_of(attempt)}"


def _fields(attempt: Attempt | None, error: Exception | None = None) -> dict[str, object]:
    """Return the fields of a line about a message."""
    if attempt is None:
        return dict(error_fields(error))
    origin = attempt._origin
    return {
        STREAM: origin.stream,
        GROUP: origin.consumer,
        SEQUENCE: attempt.sequence,
        DELIVERIES: attempt.deliveries,
        DESTINATION: attempt.subject,
        **event_fields(attempt._event),
        **error_fields(error),
    }


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, CeNatsError) else f"{type(error).__name__}: {error}"


def _ending(delivery: Attempt | None) -> str:
    return f"; {delivery._ending}" if delivery is not None and delivery._ending else ""
