"""Fake deliveries, to test handlers without a server."""

from __future__ import annotations

import time
from typing import Any, Final

from nats.aio.msg import Msg

from .._numbers import check_count
from ..aio._observer import OutcomeKind
from ..aio.consumer._attempt import Attempt
from ..aio.consumer._delivery import Delivery
from ..aio.consumer._entry import Entry, Place
from ..aio.consumer._settle import Settler
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
        reply = ack_subject(origin)
        no_client: Any = None
        # nats-py keeps the last one of repeated headers.
        headers = dict(message.headers.items()) or None
        entry = Entry(sequence, deliveries, (message.subject.encode(), reply.encode(), message.data, None))
        entry.message = Msg(no_client, message.subject, reply, message.data, headers)
        event = from_nats_message(entry.message)
        super().__init__(_FakeSettler(policy), entry, event)
        self.decision: Decision | None = None

    def __del__(self) -> None:
        """Do nothing, because no consumer waits for its settlement."""


class _FakeSettler(Settler):
    """Records the decision about a delivery."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        no_client: Any = None
        self.nc = no_client

    def begin(self, attempt: Attempt) -> None:
        """Note that the block was entered; there is no observer."""
        attempt._entry.has_started = True

    def decide(self, attempt: Attempt, outcome: Outcome) -> Decision:
        return decide(outcome, attempt.deliveries, self.policy)

    def delay(self, attempt: Attempt) -> float:
        return self.policy.delay(attempt.deliveries)

    def acknowledge(self, attempt: Attempt, *, waits: bool = False) -> bool:
        return False

    async def settle_handled(self, attempt: Attempt, outcome: Outcome, error: BaseException | None) -> None:
        await self.settle(attempt, self.decide(attempt, outcome), error)

    async def settle(
        self,
        attempt: Attempt,
        decision: Decision,
        error: BaseException | None,
        *,
        acknowledged: OutcomeKind = OutcomeKind.ACKNOWLEDGED,
    ) -> None:
        if not attempt.is_settled:
            assert isinstance(attempt, FakeDelivery)
            attempt.decision = decision
            attempt._entry.place = Place.SETTLED

    def end_block(self, attempt: Attempt) -> None:
        """Do nothing, because no other delivery waits for it."""
