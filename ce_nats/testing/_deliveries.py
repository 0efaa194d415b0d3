"""Fake deliveries, to test handlers without a server."""

from __future__ import annotations

import time
from typing import Any, Final

from nats.aio.msg import Msg

from .._numbers import check_count
from ..aio.consumer._delivery import Delivery
from ..codec.binding import from_nats_message
from ..message import NatsMessage
from ..redelivery import Decision, Outcome, RetryPolicy, decide
from ..wire._ack_subject import AckSubject, ack_subject

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
        ValueError: ``sequence`` or ``deliveries`` is not an integer, 1 or more.
    """

    __slots__ = ("decision",)

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
        no_client: Any = None
        # nats-py keeps the last one of repeated headers.
        headers = dict(message.headers.items()) or None
        given = Msg(no_client, message.subject, ack_subject(origin), message.data, headers)
        super().__init__(given, origin, _Recorder(policy))
        self.decision: Decision | None = None
        self._set_event(from_nats_message(self.message))


class _Recorder:
    """Records the decision about a delivery."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def begin(self, delivery: Delivery) -> None:
        """Do nothing, because there is no observer."""

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
        """Do nothing, because nothing is sent that could fail."""

    def end_block(self, delivery: Delivery) -> None:
        """Do nothing, because no other delivery waits for it."""
