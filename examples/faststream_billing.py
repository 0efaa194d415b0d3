"""
A FastStream service whose subscriber receives CloudEvents, and publishes an invoice for each order.

    pip install ce-nats 'faststream[nats,cli]'
    NATS_URL=nats://127.0.0.1:4222 faststream run --app-dir examples faststream_billing:app

FastStream passes each message to the decoder, and its result to the subscriber. After an exception in the subscriber
the order is redelivered with a delay; FastStream's own NACK_ON_ERROR would redeliver it at once, and without end. After
the third attempt, and at once if a message is not an event, it is stored under dead.web-orders with the headers of a
dead letter, so that ``ce-nats dead-letters`` lists and requeues it. The streams WEB_ORDERS (web-orders.>),
WEB_INVOICES (web-invoices.>) and DEAD_WEB_ORDERS (dead.web-orders) must exist. The subscriber can be tested with
FastStream's TestNatsBroker; dead letters need a server.
"""

import logging
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

from cloudevents.core.v1.event import CloudEvent
from faststream import AckPolicy, BaseMiddleware, FastStream
from faststream.exceptions import HandlerException, NackMessage, RejectMessage
from faststream.nats import JStream, NatsBroker, NatsMessage

from ce_nats import DecodedEvent, DecodeError, dedup_id, from_nats_message, to_nats_message
from ce_nats.redelivery import Action, Backoff, DeadLetter, Decision, Outcome, RetryPolicy, decide

POLICY = RetryPolicy(max_deliveries=3, backoff=Backoff(initial=1, factor=3))

log = logging.getLogger(__name__)


class Redelivery(BaseMiddleware):
    """Redeliver a message after an exception, or dead-letter it, by the policy of ce_nats."""

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        # Messages of FastStream's test broker are not those of a stream.
        deliveries = msg.raw_message.metadata.num_delivered if msg.raw_message.reply else 1
        decision = decide(Outcome.RECEIVED, deliveries, POLICY)
        error: Exception | None = None
        if decision.action is Action.HANDLE:
            try:
                return await call_next(msg)
            except HandlerException:  # AckMessage, NackMessage or RejectMessage of a subscriber
                raise
            except Exception as failure:
                error = failure
                outcome = Outcome.UNDECODABLE if isinstance(failure, DecodeError) else Outcome.FAILED
                decision = decide(outcome, deliveries, POLICY, random.random())
        log.warning("%s: delivery %d: %s", msg.raw_message.subject, deliveries, decision.action, exc_info=error)
        if decision.action is Action.RETRY:
            raise NackMessage(delay=decision.delay) from error
        try:
            await store_dead_letter(msg, decision, error)
        except Exception as failure:
            log.warning("the dead letter could not be stored", exc_info=failure)
            raise NackMessage(delay=POLICY.delay(deliveries, random.random())) from failure
        raise RejectMessage from error  # the server does not redeliver it


# Without apply_types FastStream would convert the event to the type of the parameter.
broker = NatsBroker(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), apply_types=False, middlewares=[Redelivery])
app = FastStream(broker)


async def store_dead_letter(message: NatsMessage, decision: Decision, error: Exception | None) -> None:
    delivered = message.raw_message.metadata
    assert decision.reason is not None
    dead_letter = DeadLetter(
        reason=decision.reason,
        error=str(getattr(error, "code", "")) or ("" if error is None else type(error).__name__),
        text="" if error is None else str(error),
        subject=message.raw_message.subject,
        stream=delivered.stream,
        consumer=delivered.consumer,
        sequence=delivered.sequence.stream,
        deliveries=delivered.num_delivered,
    )
    # Headers that instruct the server (Nats-Rollup) are for the stream of the original. The id stores a dead letter
    # once, even if its acknowledgement is lost.
    kept = {name: value for name, value in message.headers.items() if not name.startswith("Nats-")}
    own_id = {"Nats-Msg-Id": f"{delivered.stream}:{delivered.consumer}:{delivered.sequence.stream}"}
    headers = {**kept, **dict(dead_letter.headers()), **own_id}
    await broker.publish(message.body, "dead.web-orders", headers=headers, stream="DEAD_WEB_ORDERS")


async def decode(message: NatsMessage) -> DecodedEvent:
    return from_nats_message(message.raw_message)


@broker.subscriber(
    "web-orders.>",
    stream=JStream("WEB_ORDERS", declare=False),
    durable="invoicing",
    decoder=decode,
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
async def bill(order: DecodedEvent) -> None:
    invoice = CloudEvent(
        # The id is derived from that of the order, so a redelivered order has the same invoice, which is stored once.
        {"id": f"invoice-{order.get_id()}", "source": "/billing", "type": "com.example.invoice"},
        {"order": order.get_id(), "total": order.get_data()["total"]},
    )
    message = to_nats_message(invoice, "web-invoices.new", headers={"Nats-Msg-Id": dedup_id(invoice)})
    headers = dict(message.headers.items())
    await broker.publish(message.data, message.subject, headers=headers, stream="WEB_INVOICES")
