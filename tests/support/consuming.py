"""Fixtures for tests of a consumer: events in a stream, and a consumer of it."""

import asyncio

import pytest
from nats.js.api import ConsumerConfig

from ce_nats.aio import PullConsumer
from ce_nats.aio import jetstream as ce_js
from tests.support.waiting import SECONDS, until


@pytest.fixture
def publish(js, subject, stream, make_event):
    """Publish events with these numbers in their ids."""

    async def publish(*numbers, **options):
        for number in numbers:
            await ce_js.publish(js, make_event(number, {"n": number}), subject, **options)

    return publish


@pytest.fixture
def consume(js, stream, dead):
    """Return a consumer of the stream, created at its first use; retries are immediate by default."""

    def consume(name="c", *, ack_wait=60, headers_only=None, via=js, **options):
        create = ConsumerConfig(ack_wait=ack_wait, headers_only=headers_only)
        return PullConsumer(via, stream, name, **{"dead_letter": dead, "create": create, "backoff": [0], **options})

    return consume


@pytest.fixture
async def acks(nc):
    """Queue of the payloads of acknowledgements, in order."""
    sent = asyncio.Queue()

    async def note(message):
        sent.put_nowait(message.data)

    await nc.subscribe("$JS.ACK.>", cb=note)
    await nc.flush()
    return sent


@pytest.fixture
def is_settled(js, stream):
    """Wait until the consumer has no unacknowledged and no undelivered messages."""

    async def wait(name="c", stream=stream):
        await until_consumer(js, stream, has_none, name)

    return wait


def has_none(info):
    """Return whether a consumer has no unacknowledged and no undelivered messages."""
    return info.num_ack_pending == info.num_pending == 0


async def until_consumer(js, stream, condition, name="c"):
    """Wait until the state of a consumer meets a condition."""

    async def is_met():
        return condition(await js.consumer_info(stream, name))

    await until(is_met)


async def after(awaitable):
    return await asyncio.wait_for(awaitable, SECONDS)


async def take(consumer):
    """Return the next delivery."""
    return await after(anext(consumer))


def number_of(event):
    return int(event.get_id().split()[1])
