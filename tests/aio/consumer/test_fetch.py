"""Pull requests: they are renewed while the consumer is idle, and end with the consumer or the connection."""

import asyncio

import msgspec
import nats
import pytest
from nats.js.api import ConsumerConfig

from ce_nats import sync
from ce_nats.aio import DeliveryError, PullConsumer
from tests.support.consuming import after, consume, is_settled, number_of, publish, take, until_consumer
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "publish"]


async def test_idle_consumer_renews_its_requests(nc, stream, publish, consume, monkeypatch):
    """Expired requests and heartbeats are not messages."""
    monkeypatch.setattr("ce_nats.aio.consumer._fetch._EXPIRES_SECONDS", 0.25)
    monkeypatch.setattr("ce_nats.aio.consumer._fetch._HEARTBEAT_SECONDS", 0.1)
    requests = []

    async def note(message):
        requests.append(message)

    await nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", cb=note)
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until(lambda: len(requests) >= 3)
        await publish(1)
        async with await after(reader) as event:
            assert number_of(event) == 1


@pytest.fixture
def limit(nc, stream):
    """Create or update the consumer with limits of its requests, which nats-py does not know."""

    async def limit(**limits):
        config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", **limits}
        request = msgspec.json.encode({"stream_name": stream, "config": config})
        answer = await nc.request(f"$JS.API.CONSUMER.CREATE.{stream}.c", request)
        assert b'"error"' not in answer.data

    return limit


@pytest.mark.parametrize(
    "limits",
    [
        *({"max_batch": 1}, {"max_batch": 3}, {"max_expires": 10**9}, {"max_bytes": 1000}),
        {"max_batch": 2, "max_expires": 10**9, "max_bytes": 1000},
    ],
    ids=str,
)
async def test_requests_are_within_the_limits_of_the_consumer(publish, consume, is_settled, limit, limits):
    await limit(**limits)
    await publish(*range(20))
    handled = []

    async def handle(delivery):
        handled.append(delivery.sequence)
        if len(handled) == 20:
            consumer.stop()

    async with consume() as consumer:
        await after(consumer.run(handle))
    assert handled == [*range(1, 21)]
    await is_settled()


async def test_request_over_a_later_limit_is_an_error(publish, consume, limit):
    await limit(max_batch=5)
    async with consume() as consumer:
        await limit(max_batch=2)
        await publish(*range(20))
        with pytest.raises(DeliveryError, match=r"^incompatible-config: .*Exceeded MaxRequestBatch of 2; limits that"):
            await take_all(consumer)


async def take_all(consumer):
    while True:
        async with await take(consumer):
            pass


async def test_message_over_the_limit_of_bytes_is_reported(js, subject, consume, limit, caplog):
    """The server delivers neither it nor later ones."""
    await limit(max_bytes=1000)
    await js.publish(subject, bytes(2000))
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until(lambda: "the next message is larger than max_bytes of the consumer, 1000" in caplog.text)
        reader.cancel()


@pytest.fixture
def take_first(js, stream):
    """Take the first message, and wait until the second one was delivered, so that no request is pending."""

    async def take_first(consumer):
        delivery = await take(consumer)
        await until_consumer(js, stream, lambda info: info.num_ack_pending == 2 and info.num_waiting == 0)
        return delivery

    return take_first


async def test_consumer_deleted_before_a_request_ends_the_iteration(js, stream, publish, consume, take_first):
    await publish(1, 2)
    async with consume(prefetch=1) as consumer:
        async with await take_first(consumer):
            await js.delete_consumer(stream, "c")
        async with await take(consumer):
            pass
        with pytest.raises(DeliveryError, match=r"^consumer-not-found: .*: it was deleted"):
            await take(consumer)


async def test_unanswered_requests_to_a_deleted_consumer_end_the_iteration(
    js, stream, publish, consume, monkeypatch, take_first
):
    """nats-server 2.10.25 does not answer them; here a silent subscriber suppresses the no-responders status."""
    monkeypatch.setattr("ce_nats.aio.consumer._fetch._MAX_IDLE_SECONDS", 0.5)
    await publish(1, 2)
    async with consume(prefetch=1) as consumer:
        async with await take_first(consumer):
            await js._nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c")
            await js.delete_consumer(stream, "c")
        async with await take(consumer):
            pass
        with pytest.raises(DeliveryError, match=r"^consumer-not-found: .*: it was deleted"):
            await take(consumer)


@pytest.mark.parametrize("method", ["deleted", "with its stream"])
async def test_consumer_deleted_during_a_request_ends_the_iteration(js, stream, subject, consume, method):
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until_consumer(js, stream, lambda info: info.num_waiting == 1)
        if method == "deleted":
            await js.delete_consumer(stream, "c")
        else:
            await js.delete_stream(stream)
        with pytest.raises(DeliveryError, match=rf"^consumer-not-found: consumer c of stream {stream}"):
            await after(reader)
        with pytest.raises(DeliveryError):
            await take(consumer)
    if method != "deleted":
        await js.add_stream(name=stream, subjects=[subject])


async def test_consumer_that_was_created_again_is_used(server, publish, consume, js, stream, is_settled):
    """Before the client has processed that it was deleted, during a request."""
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until_consumer(js, stream, lambda info: info.num_waiting == 1)
        with sync.connect(server.url) as other:  # blocks the event loop
            there = other.client.jetstream()
            other.run(there.delete_consumer, stream, "c")
            other.run(there.add_consumer, stream, ConsumerConfig(durable_name="c", ack_policy="explicit"))
        await publish(1)
        async with await after(reader) as event:
            assert number_of(event) == 1
    await is_settled()


async def test_closed_connection_ends_the_iteration(server, stream, dead):

    other = await nats.connect(server.url)
    async with PullConsumer(other.jetstream(), stream, "c", dead_letter=dead, create=ConsumerConfig()) as consumer:
        reader = asyncio.create_task(anext(consumer))
        await other.close()
        with pytest.raises(DeliveryError, match=r"^connection-closed: "):
            await after(reader)
