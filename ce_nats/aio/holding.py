"""Hold deliveries: those that wait to be taken, and those that are being handled."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from ..wire.ack_subject import AckSubject
from .delivery import Delivery, Settles


class Holder:
    """
    Deliveries that are not settled.

    The ack deadline of each one is extended again and again, so that it is not redelivered meanwhile. (Code that blocks
    the event loop prevents that.)

    Args:
        nc: An open connection.
        settler: Settles the deliveries.

    Attributes:
        ready: Deliveries that wait to be taken, in their order.
    """

    def __init__(self, nc: Client, settler: Settles) -> None:
        self.ready: deque[Delivery] = deque()
        self._nc = nc
        self._settler = settler
        self._held: dict[int, Delivery] = {}  # by stream sequence; those that are ready are among them
        self._task: asyncio.Task[None] | None = None

    def open(self, interval: float) -> None:
        """
        Begin to extend ack deadlines.

        Args:
            interval: Seconds between two extensions.
        """
        self._task = asyncio.create_task(self._keep_extending(interval))

    async def close(self) -> None:
        """Extend no further ack deadlines."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add(self, message: Msg, origin: AckSubject) -> None:
        """Hold a message."""
        known = self._held.get(origin.sequence)
        if known is not None:
            # It took longer than ack_wait, or the server was restarted, so it was sent again. It is still held.
            known.replace(message, origin)
            return
        delivery = Delivery(message, origin, self._settler)
        self._held[origin.sequence] = delivery
        self.ready.append(delivery)

    def remove(self, delivery: Delivery) -> None:
        """Stop holding a delivery; does nothing where it is not held."""
        self._held.pop(delivery.sequence, None)

    def unhandled(self) -> list[Delivery]:
        """Deliveries whose blocks were not entered; none of them is ready any more."""
        self.ready.clear()
        return [delivery for delivery in self._held.values() if not delivery.is_entered]

    async def _keep_extending(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            for delivery in list(self._held.values()):
                if self._nc.is_connected and not delivery.is_settled:
                    with suppress(nats.errors.Error):
                        await delivery.message.in_progress()
