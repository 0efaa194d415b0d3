"""
Acknowledge messages that threads have handled, many at once.

A switch to the loop's thread for each message costs several times as much as handling it. So threads collect what they
have handled, and the loop acknowledges it when a thread needs more messages, when none waits, after ``ack_delay``, and
before the connection is closed. A delivery is settled in its thread as soon as it was collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .. import aio
from ..aio.consumer._hand_out import HandOut
from ._bridge import check_fork
from ._loop import Loop


class HandledDeliveries:
    """
    Collects deliveries whose blocks have ended without an exception, for the loop to acknowledge their messages.

    While threads are busy, the loop looks for them every ``delay`` seconds, which needs no wake-up by a thread.

    ``wake``: Has :meth:`look` called in the loop; may be called in any thread.
    """

    def __init__(self, loop: Loop, hand_out: HandOut, name: str, delay: float, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._hand_out = hand_out
        self._name = name
        self._delay = delay
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = not delay

    def add(self, delivery: aio.Delivery) -> bool:
        """
        Add a delivery; may be called in any thread.

        Return False if the caller has to settle it in the loop, because that could raise an exception now.

        Raises:
            DeliveryError: ``not-open``: the parent process has opened the consumer, and this one is a fork.
        """
        if self._loop.is_inherited:
            check_fork(self._loop, self._name)
        hand_out = self._hand_out
        if self._is_closed or not hand_out.is_acknowledged_later(delivery):
            return False
        hand_out.handled.append(delivery)
        if self._timer is None or not len(hand_out.queue):
            self._wake()
        return True

    def look(self) -> None:
        """Settle what was collected, and look again after ``delay`` if more will follow; called in the loop."""
        self._hand_out.settle()
        if self._timer is None and not self._is_closed and len(self._hand_out.queue):
            self._start_timer()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._delay, self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None  # before it looks: a delivery that is added from now on wakes the loop
        if self._hand_out.handled:
            self._start_timer()
            self._hand_out.flush()

    async def close(self) -> None:
        """Settle what was collected; from now on, callers settle deliveries themselves."""
        self._is_closed = True
        await self._hand_out.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
