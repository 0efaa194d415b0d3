"""A message that was delivered, and that a thread handles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from nats.aio.msg import Msg

from .. import aio
from ..aio.consumer._entry import Entry
from ..codec.event import DecodedEvent
from ..errors import CeNatsError
from ._handled import HandledDeliveries
from ._loop import Loop


class Delivery:
    """
    A message that was delivered and is not settled yet, and the event in it: see :class:`ce_nats.aio.Delivery`.

    As a context manager it returns the event, and settles the message at the end of the block.
    """

    __slots__ = ("_delivery", "_handled", "_is_handled", "_loop")

    def __init__(self, loop: Loop, delivery: aio.Delivery, handled: HandledDeliveries) -> None:
        self._loop = loop
        self._delivery = delivery
        self._handled = handled
        self._is_handled = False  # its block has ended, and the loop acknowledges it

    @property
    def _entry(self) -> Entry:
        return self._delivery._entry

    def _note_filtered(self) -> None:
        self._delivery._note_filtered()

    @property
    def event(self) -> DecodedEvent:
        """The event."""
        return self._delivery.event

    @property
    def error(self) -> CeNatsError | None:
        """Why there is no event in it, or None."""
        return self._delivery.error

    @property
    def message(self) -> Msg:
        """The message of nats-py."""
        return self._delivery.message

    @property
    def subject(self) -> str:
        """The subject that the message was published to."""
        return self._delivery.subject

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._delivery.stream

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._delivery.consumer

    @property
    def sequence(self) -> int:
        """Sequence in the stream."""
        return self._delivery.sequence

    @property
    def deliveries(self) -> int:
        """How often the message was delivered, this time included."""
        return self._delivery.deliveries

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged, redelivered, dead-lettered or released; or will be, after its block."""
        return self._is_handled or self._delivery.is_settled

    def resolve(self) -> DecodedEvent:
        """
        Return the event with its data, if that is in an object store: see :meth:`ce_nats.aio.Delivery.resolve`.

        Raises:
            DecodeError, DeliveryError: As :meth:`ce_nats.aio.Delivery.resolve` does.
        """
        return self._loop.run(self._delivery.resolve)

    def ack(self) -> None:
        """
        Acknowledge the message: the event was processed.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.ack` does.
        """
        self._settle(self._delivery.ack)

    def nak(self, delay: float | None = None) -> None:
        """
        Have the message redelivered.

        Args:
            delay: Seconds until then; by default the delay of the policy.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.nak` does.
        """
        self._settle(self._delivery.nak, delay)

    def reject(self, reason: str = "") -> None:
        """
        Dead-letter the message.

        Args:
            reason: Reason, stored in the dead letter.

        Raises:
            DeliveryError: As :meth:`ce_nats.aio.Delivery.nak` does.
        """
        self._settle(self._delivery.reject, reason)

    def _settle(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        if not self._is_handled:
            self._loop.run(function, *args)

    def __enter__(self) -> DecodedEvent:
        return self._delivery._enter_block()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        delivery = self._delivery
        delivery._leave_block()
        if error is None and not self._is_handled and self._handled.add(delivery):
            self._is_handled = True
        else:
            self._loop.run(delivery._end_block, error)

    def __repr__(self) -> str:
        return repr(self._delivery)
