"""
A FastStream service whose subscriber receives CloudEvents, and publishes an invoice for each order.

    pip install ce-nats 'faststream[nats,cli]'
    NATS_URL=nats://127.0.0.1:4222 faststream run --app-dir examples faststream_billing:app

FastStream passes each message to the decoder, and its result to the subscriber. A message that is not an event is
stored under dead.orders, with the headers of a dead letter, so that ``ce-nats dead-letters`` lists and requeues it.
After an exception in the subscriber the message is redelivered. The streams ORDERS (orders.>), INVOICES (invoices.>)
and DEAD (dead.>) must exist.
"""

import os

from cloudevents.core.v1.event import CloudEvent
from faststream import AckPolicy, FastStream
from faststream.exceptions import RejectMessage
from faststream.nats import JStream, NatsBroker, NatsMessage

from ce_nats import DecodedEvent, DecodeError, dedup_id, from_nats_message, to_nats_message
from ce_nats.redelivery import DeadLetter, Reason

# Without apply_types FastStream would convert the event to the type of the parameter.
broker = NatsBroker(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), apply_types=False)
app = FastStream(broker)


async def decode(message: NatsMessage) -> DecodedEvent:
    try:
        return from_nats_message(message.raw_message)
    except DecodeError as error:
        delivered = message.raw_message.metadata
        dead_letter = DeadLetter(
            reason=Reason.UNDECODABLE,
            error=str(error.code),
            text=error.message,
            subject=message.raw_message.subject,
            stream=delivered.stream,
            consumer=delivered.consumer,
            sequence=delivered.sequence.stream,
            deliveries=delivered.num_delivered,
        )
        # Headers that instruct the server (Nats-Rollup) are for the stream of the original.
        kept = {name: value for name, value in message.headers.items() if not name.startswith("Nats-")}
        headers = {**kept, **dict(dead_letter.headers())}
        await broker.publish(message.body, "dead.orders", headers=headers, stream="DEAD")
        raise RejectMessage from error  # every delivery has the same bytes


@broker.subscriber(
    "orders.>",
    stream=JStream("ORDERS", declare=False),
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
    message = to_nats_message(invoice, "invoices.new", headers={"Nats-Msg-Id": dedup_id(invoice)})
    await broker.publish(message.data, message.subject, headers=dict(message.headers.items()), stream="INVOICES")
