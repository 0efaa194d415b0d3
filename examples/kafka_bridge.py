"""
Copy CloudEvents from a Kafka topic to a JetStream stream, and back.

    pip install ce-nats aiokafka
    export KAFKA=127.0.0.1:9092 NATS_URL=nats://127.0.0.1:4222
    python examples/kafka_bridge.py to-nats --topic orders --subject 'orders.{type}'
    python examples/kafka_bridge.py to-kafka --stream ORDERS --topic orders-copy

Offsets are committed after the stream has stored the events, and a message is acknowledged after Kafka has stored its
record, so no event is lost if the bridge is killed. Events that are resent to the stream are stored once. Records that
are not events are published to dead.bridge.kafka with the error code; messages that are not events are dead letters
under dead.bridge.nats. The stream of --subject and a stream with the subjects dead.bridge.> must exist.
"""

import argparse
import asyncio
import os
import signal

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from ce_nats import CeNatsError, DecodedEvent, NatsMessage, SubjectTemplate, aio, from_nats_message, to_nats_message
from ce_nats.codec import percent

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
NATS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
NAME = "ce-nats-bridge"


def from_record(record: ConsumerRecord) -> DecodedEvent:
    """
    Return the event of a record.

    The Kafka binding has ``ce_`` instead of ``ce-``, values without percent-encoding, and ``content-type`` for the
    datacontenttype. The key is the partitioning extension.

    Raises:
        CeNatsError: The record is not a valid event.
    """
    headers = {name.lower(): value.decode("utf-8", "surrogateescape") for name, value in record.headers}
    if any(name.startswith("ce_") for name in headers):
        if "content-type" in headers:
            headers["ce_datacontenttype"] = headers.pop("content-type")
        if record.key is not None:
            headers["ce_partitionkey"] = record.key.decode("utf-8", "surrogateescape")
        headers = {"ce-" + name[3:]: percent.encode(value) for name, value in headers.items() if name[:3] == "ce_"}
    return from_nats_message(NatsMessage("", record.value or b"", headers), parse_data=False)


def to_record(event: DecodedEvent) -> tuple[bytes | None, bytes, list[tuple[str, bytes]]]:
    """Return key, value and headers of a record for an event."""
    message = to_nats_message(event)
    headers = [("ce_" + name[3:], percent.decode(value).encode()) for name, value in message.headers.items()]
    headers = [("content-type" if name == "ce_datacontenttype" else name, value) for name, value in headers]
    key = dict(headers).get("ce_partitionkey")
    return key, message.data, headers


async def to_nats(nc: Client, topic: str, subject: str, stopped: asyncio.Event) -> None:
    js, template = nc.jetstream(), SubjectTemplate(subject)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=KAFKA, group_id=NAME, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    async with consumer, aio.Publisher(js) as publisher:
        while not stopped.is_set():
            batches = await consumer.getmany(timeout_ms=500)
            for record in (record for batch in batches.values() for record in batch):
                try:
                    await publisher.publish(from_record(record), template)
                except CeNatsError as error:
                    origin = {"Kafka-Record": f"{topic}/{record.partition}/{record.offset}", "Error": str(error.code)}
                    await js.publish("dead.bridge.kafka", record.value or b"", headers=origin)
            if batches:
                await publisher.flush()
                await consumer.commit()


async def to_kafka(nc: Client, stream: str, topic: str, stopped: asyncio.Event) -> None:
    async with (
        AIOKafkaProducer(bootstrap_servers=KAFKA, acks="all", enable_idempotence=True) as producer,
        aio.PullConsumer(
            nc.jetstream(), stream, NAME, dead_letter="dead.bridge.nats", create=ConsumerConfig(), parse_data=False
        ) as consumer,
    ):

        async def send(delivery: aio.Delivery) -> None:
            key, value, headers = to_record(delivery.event)
            await producer.send_and_wait(topic, value, key=key, headers=headers)

        running = asyncio.create_task(consumer.run(send))
        await stopped.wait()
        consumer.stop()
        await running


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    commands = parser.add_subparsers(dest="command", required=True)
    inwards = commands.add_parser("to-nats")
    inwards.add_argument("--topic", required=True)
    inwards.add_argument("--subject", required=True, help="a template with {attributes} of the event")
    outwards = commands.add_parser("to-kafka")
    outwards.add_argument("--stream", required=True)
    outwards.add_argument("--topic", required=True)
    arguments = parser.parse_args()

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with await aio.connect(NATS) as nc:
        if arguments.command == "to-nats":
            await to_nats(nc, arguments.topic, arguments.subject, stopped)
        else:
            await to_kafka(nc, arguments.stream, arguments.topic, stopped)


if __name__ == "__main__":
    asyncio.run(main())
