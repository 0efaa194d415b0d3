"""Deliveries that no server has sent, for tests of handlers."""

from __future__ import annotations

import time
from typing import Any, Final

from nats.aio.msg import Msg

from ..aio.consumer._delivery import Delivery
from ..codec.binding import from_nats_message
from ..message import NatsMessage
from ..redelivery import Decision, Outcome, RetryPolicy, decide
from ..wire._ack_subject import AckSubject, ack_subject

_BY_DEFAULT: Final = RetryPolicy()


class FakeDelivery(Delivery):
    """
    A delivery without a server: what a consumer would do about it is kept.

        delivery = FakeDelivery(to_nats_message(event, "orders.paid"))
        async with delivery:
            await handler(delivery)
        assert delivery.decision.action is Action.ACK

    It is decoded, and settled by the block around it and by ``ack()``, ``nak()`` and ``reject()``, as the deliveries of
    a :class:`~ce_nats.aio.PullConsumer` are. Only the verbs of nats-py's own ``delivery.message`` have no server to go
    to.

    Args:
        message: The message, with the subject that it was published to.
        stream: Name of the stream.
        sequence: Sequence in the stream.
        deliveries: How often it was delivered, this time included.
        policy: When it is redelivered, and when it is a dead letter; by default that of a ``PullConsumer``.

    Attributes:
        decision: What is done about the message, a :class:`~ce_nats.redelivery.Decision`; None before it is settled.

    Raises:
        DecodeError: The message is not an event. A consumer would not give it to a handler.
    """

    __slots__ = ("decision",)

    def __init__(
        self,
        message: NatsMessage,
        *,
        stream: str = "TEST",
        sequence: int = 1,
        deliveries: int = 1,
        policy: RetryPolicy = _BY_DEFAULT,
    ) -> None:
        origin = AckSubject(stream, "test", deliveries, sequence, sequence, time.time_ns(), 0)
        nobody: Any = None
        # nats-py gives the last one of repeated headers.
        headers = dict(message.headers.items()) or None
        given = Msg(nobody, message.subject, ack_subject(origin), message.data, headers)
        super().__init__(given, origin, _Keeper(policy))
        self.decision: Decision | None = None
        self._set_event(from_nats_message(self.message))


class _Keeper:
    """Keeps what was decided about a delivery."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def begin(self, delivery: Delivery) -> None:
        """Nobody looks at the handler."""

    def decide(self, delivery: Delivery, outcome: Outcome) -> Decision:
        return decide(outcome, delivery.deliveries, self._policy)

    def delay(self, delivery: Delivery) -> float:
        return self._policy.delay(delivery.deliveries)

    async def settle(self, delivery: Delivery, decision: Decision, error: BaseException | None) -> None:
        if not delivery.is_settled:
            assert isinstance(delivery, FakeDelivery)
            delivery.decision = decision
            delivery.is_settled = True

    def report(self, error: Exception, delivery: Delivery | None, /) -> None:
        """Nothing is reported, because nothing is sent."""
