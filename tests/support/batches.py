"""Publishing in batches of fast ingest, and what is stored."""

from contextlib import asynccontextmanager
from itertools import cycle

from ce_nats import NatsMessage, from_nats_message
from ce_nats.aio import Publisher, PublishError
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.publishing._pending_acks import PendingAcks

SECONDS = 60


@asynccontextmanager
async def pending_acks(nc, window=1000, ack_timeout=SECONDS):
    """Yield the window of unacknowledged messages, with the outcome of each message by its tag."""
    outcomes = {}
    acks = PendingAcks(
        nc,
        lambda item, outcome: outcomes.update({item.tag: outcome}),
        window=window,
        ack_timeout=ack_timeout,
        retry_timeout=SECONDS,
        fast_ingest=True,
    )
    async with acks:
        yield acks, outcomes


async def send(acks, subject, number, *lines):
    block = b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n" if lines else b""
    await acks.send(NatsMessage(subject, b"%d" % number), block, number)


async def payloads(js, stream):
    return [int(message.data) async for batch in read_stream(js, stream) for message in batch]


async def ids(js, stream):
    return [from_nats_message(message).get_id() async for batch in read_stream(js, stream) for message in batch]


def expected(numbers):
    return [f"event {number}" for number in numbers]


async def publish_all(js, events, *subjects):
    """Publish events to subjects in turn, and return the ids of those that failed, with their codes."""
    failed = {}
    async with Publisher(js) as publisher:
        for event, subject in zip(events, cycle(subjects), strict=False):
            while True:
                try:
                    await publisher.publish(event, subject)
                except PublishError as error:
                    failed.update({failure.event.get_id(): failure.error.code for failure in error.failures})
                else:
                    break
        try:
            await publisher.flush()
        except PublishError as error:
            failed.update({failure.event.get_id(): failure.error.code for failure in error.failures})
    return failed
