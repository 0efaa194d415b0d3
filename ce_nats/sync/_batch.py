"""Deliveries that a handler gets together, in a thread."""

from __future__ import annotations

from collections.abc import Sequence

from .. import aio
from ._delivery import Delivery
from ._handled import HandledDeliveries
from ._loop import Loop


class Batch(aio.Batch):
    """
    Events that a handler of :meth:`PullConsumer.run_batches <ce_nats.sync.PullConsumer.run_batches>` gets together.

    As :class:`ce_nats.aio.Batch`, but methods of its deliveries are not asynchronous.

    Args:
        deliveries: At least one.

    Attributes:
        deliveries: The delivery of each event. One that the handler settles itself is left as it is.
    """

    deliveries: tuple[Delivery, ...]  # type: ignore[assignment]

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        super().__init__(deliveries)  # type: ignore[arg-type]

    @classmethod
    def _of(cls, batch: aio.Batch, loop: Loop, handled: HandledDeliveries) -> Batch:
        """Return a batch whose marks are also those of the other one."""
        own = cls([Delivery(loop, delivery, handled) for delivery in batch.deliveries])
        own.rejects, own.naks = batch.rejects, batch.naks
        return own
