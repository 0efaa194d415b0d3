"""Store large data of events in an object store, and read it back."""

from __future__ import annotations

from .. import aio
from ..aio._claim_check import MAX_SIZE, OVER
from ..codec.event import DecodedEvent, EventLike
from ._link import Linked


class ClaimCheck:
    """
    Store for large data of events, a bucket of a JetStream object store: see :class:`ce_nats.aio.ClaimCheck`.

        claim_check = nc.claim_check("ORDERS_DATA")
        with nc.publisher(claim_check=claim_check) as publisher:
            publisher.publish(event, "orders.scanned")

    Args:
        nc: A connection.
        bucket: As for :class:`ce_nats.aio.ClaimCheck`, and so are the other arguments.

    Raises:
        EncodeError, ValueError: As :class:`ce_nats.aio.ClaimCheck` does.
    """

    def __init__(
        self,
        nc: Linked,
        bucket: str,
        *,
        over: int = OVER,
        max_size: int = MAX_SIZE,
        retry_timeout: float | None = None,
    ) -> None:
        self._nc = nc
        self.bucket = bucket
        self.over = over
        self.max_size = max_size
        self._retry_timeout = retry_timeout
        self._of_this_process()

    def _of_this_process(self) -> aio.ClaimCheck:
        """Return the claim check on the connection of this process."""
        return aio.ClaimCheck(
            self._nc._link.js,
            self.bucket,
            over=self.over,
            max_size=self.max_size,
            retry_timeout=self._retry_timeout,
        )

    def check_in(self, event: EventLike) -> EventLike:
        """
        Store the data of an event if it is large: see :meth:`ce_nats.aio.ClaimCheck.check_in`.

        Raises:
            EncodeError, DeliveryError: As :meth:`ce_nats.aio.ClaimCheck.check_in` does.
        """
        return self._nc._link.run(self._of_this_process().check_in, event)

    def read(self, dataref: str) -> bytes:
        """
        Return the data that a ``dataref`` refers to, as bytes: see :meth:`ce_nats.aio.ClaimCheck.read`.

        Raises:
            DecodeError, DeliveryError: As :meth:`ce_nats.aio.ClaimCheck.read` does.
        """
        return self._nc._link.run(self._of_this_process().read, dataref)

    def resolve(self, event: DecodedEvent, *, parse_data: bool = True) -> DecodedEvent:
        """
        Return an event with the data that its ``dataref`` refers to: see :meth:`ce_nats.aio.ClaimCheck.resolve`.

        Raises:
            DecodeError, DeliveryError: As :meth:`ce_nats.aio.ClaimCheck.resolve` does.
        """
        return self._nc._link.run(self._of_this_process().resolve, event, parse_data=parse_data)
