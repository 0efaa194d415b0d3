"""Fake deliveries, to test handlers without a server."""

from __future__ import annotations

import time
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from .._numbers import check_count
from ..aio.consumer._attempt import Attempt
from ..aio.consumer._delivery import Delivery
from ..aio.consumer._entry import Entry
from ..codec.binding import from_nats_message
from ..message import NatsMessage
from ..redelivery import Decision, Outcome, RetryPolicy, decide
from ..wire._ack_subject import AckSubject, ack_subject
from ..wire.nats import encode_header_block

_DEFAULT_POLICY: Final = RetryPolicy()


class FakeDelivery(Delivery):
    """
    A delivery without a server, which records the decision of a consumer.

        delivery = FakeDelivery(to_nats_message(event, "orders.paid"))
        async with delivery:
            await handler(delivery)
        assert delivery.decision.action is Action.ACK

    It is decoded, and settled by its block and by ``ack()``, ``nak()`` and ``reject()``, like a delivery of a
    :class:`~ce_nats.aio.PullConsumer`. The methods of nats-py's ``delivery.message`` cannot be used without a server.

    Args:
        message: The message, with the subject that it was published to.
        stream: Name of the stream.
        sequence: Sequence in the stream.
        deliveries: Number of deliveries, including this one.
        policy: Policy of redelivery; by default that of a ``PullConsumer``.

    Attributes:
        decision: The :class:`~ce_nats.redelivery.Decision` by which it was settled; None before that.

    Raises:
        DecodeError: The message is not an event. A consumer would not call a handler with it.
        EncodeError: A header cannot be sent over NATS.
        ValueError: ``sequence`` or ``deliveries`` is not an integer, 1 or more.
    """

    __slots__ = ("_message", "decision")

    def __init__(
        self,
        message: NatsMessage,
        *,
        stream: str = "TEST",
        sequence: int = 1,
        deliveries: int = 1,
        policy: RetryPolicy = _DEFAULT_POLICY,
    ) -> None:
        check_count("sequence", sequence)
        check_count("deliveries", deliveries)
        origin = AckSubject(stream, "test", deliveries, sequence, sequence, time.time_ns(), 0)
        reply = ack_subject(origin)
        block = encode_header_block(message.headers) if message.headers else None
        entry = Entry(sequence, deliveries, (message.subject.encode(), reply.encode(), message.data, block))
        event = from_nats_message(message)
        super().__init__(_FakeSettlement(policy), entry, event)
        self.decision: Decision | None = None
        # nats-py keeps the last one of repeated headers.
        headers = dict(message.headers.items()) or None
        self._message = Msg(self._nc, message.subject, reply, message.data, headers)

    def __del__(self) -> None:
        """Do nothing, because no consumer waits for its settlement."""

    @property
    def message(self) -> Msg:  # type: ignore[override]
        return self._message

    @property
    def is_settled(self) -> bool:
        return self.decision is not None


class _FakeSettlement:
    """Records the decisions about a delivery."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        no_client: Any = None
        self.nc: Client = no_client

    def begin(self, attempt: Attempt) -> None:
        """Do nothing, because nothing observes it."""

    async def end(
        self, attempt: Attempt, outcome: Outcome, error: BaseException | None, decision: Decision | None = None
    ) -> None:
        await self.settle(attempt, decision or decide(outcome, attempt.deliveries, self._policy), error)

    async def settle(self, attempt: Attempt, decision: Decision, error: BaseException | None) -> None:
        assert isinstance(attempt, FakeDelivery)
        attempt.decision = attempt.decision or decision

    def delay(self, attempt: Attempt) -> float:
        return self._policy.delay(attempt.deliveries)

    def drop(self, entry: Entry, turn: int) -> None:
        """Do nothing, because no consumer waits for the message."""
