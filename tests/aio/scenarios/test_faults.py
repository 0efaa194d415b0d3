"""
Faults while events are consumed: each of N events is handled at least once, and no other event is.

Each test has a separate server, and counts handled events, lost connections and remaining messages.
"""

import asyncio
import socket
import time
from collections import Counter
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js.api import ConsumerConfig

from ce_nats import DecodeError
from ce_nats.aio import PullConsumer, flush
from ce_nats.aio import jetstream as ce_js
from ce_nats.redelivery import DeadLetter
from ce_nats.testing import NatsServer
from tests.support.broker import ignore
from tests.support.consuming import has_none, until_consumer
from tests.support.reading import publish_all
from tests.support.waiting import SECONDS, until

EVENT = b'{"specversion":"1.0","id":"%d","source":"/faults","type":"t"}'


@asynccontextmanager
async def connected(server, **more):
    options = {"reconnect_time_wait": 0.02, "max_reconnect_attempts": -1, "connect_timeout": 1, "error_cb": ignore}
    nc = await nats.connect(server.url, **options, **more)
    try:
        yield nc
    finally:
        await nc.close()


@pytest.fixture
def server():
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture
async def nc(server):
    async with connected(server) as nc:
        yield nc


@pytest.fixture
def js(nc):
    return nc.jetstream(timeout=2)


@pytest.fixture
async def fill(js):
    """Create a stream E with a number of events, and a stream for dead letters."""

    async def fill(count, padding=b""):
        await js.add_stream(name="E", subjects=["e"])
        await js.add_stream(name="DEAD", subjects=["dead"])
        await publish_all(js, [("e", EVENT % number + padding) for number in range(count)])

    return fill


def consumer_of(js, *, ack_wait=30, **options):
    return PullConsumer(
        js, "E", "c", **{"dead_letter": "dead", "create": ConsumerConfig(ack_wait=ack_wait), "backoff": [0], **options}
    )


class Handled(Counter):
    """Count how often each event was handled."""

    def add(self, event):
        self[int(event.get_id())] += 1

    async def handle(self, delivery):
        self.add(delivery.event)


async def run_until(js, consumer, handle, condition, *, concurrency=1):
    """Run a handler until a condition holds and all messages are acknowledged."""
    running = asyncio.create_task(consumer.run(handle, concurrency=concurrency))
    await until(lambda: condition() or running.done())
    await until_consumer(js, "E", has_none)
    consumer.stop()
    await asyncio.wait_for(running, SECONDS)


@pytest.mark.parametrize(("restarts", "concurrency"), [(1, 1), (3, 8)])
async def test_killed_and_restarted_server(server, nc, js, fill, restarts, concurrency):
    count = 1000
    await fill(count)
    handled = Handled()
    due = [count * part // (restarts + 1) for part in range(1, restarts + 1)]

    async def handle(delivery):
        handled.add(delivery.event)
        if due and len(handled) >= due[0]:
            due.pop(0)
            server.kill()
            await asyncio.to_thread(server.restart)

    async with consumer_of(js, ack_wait=1, max_deliveries=100) as consumer:
        await run_until(js, consumer, handle, lambda: len(handled) >= count, concurrency=concurrency)
    assert handled.keys() == set(range(count))
    assert nc.stats["reconnects"] >= restarts
    assert (await js.stream_info("DEAD")).state.messages == 0


@pytest.mark.faults
async def test_connection_lost_with_unacknowledged_messages(server, js, fill):
    """They are acknowledged on the next connection; messages in transit are redelivered after ack_wait."""
    count = 200
    await fill(count)
    handled = Handled()
    lost = asyncio.Event()

    async def note():
        lost.set()

    async with connected(server, disconnected_cb=note) as nc, consumer_of(nc.jetstream(), ack_wait=2) as consumer:

        async def handle(delivery):
            handled.add(delivery.event)
            if len(handled) == 50 and not lost.is_set():
                await flush(nc)  # acknowledgements up to now have arrived
                nc._transport._io_writer.transport.abort()
            if len(handled) > 40:
                await lost.wait()  # so that ten handlers hold messages while disconnected

        await run_until(js, consumer, handle, lambda: len(handled) == count, concurrency=10)
        assert nc.stats["reconnects"] == 1
    assert handled == Counter(range(count))


async def test_handler_that_runs_longer_than_ack_wait(server, js, fill):
    """Its message is not delivered to another waiting consumer."""
    await fill(2)
    handled, others = Handled(), Handled()
    since = []

    async def handle(delivery):
        handled.add(delivery.event)
        if len(handled) == 1:
            since.append(time.monotonic())
            await until(lambda: time.monotonic() > since[0] + 2 * 1.5)

    async with (
        connected(server) as nc,
        consumer_of(js, ack_wait=1.5) as consumer,
        consumer_of(nc.jetstream()) as other,
    ):
        waiting = asyncio.create_task(other.run(others.handle))
        await run_until(js, consumer, handle, lambda: handled.total() + others.total() >= 2)
        other.stop()
        await asyncio.wait_for(waiting, SECONDS)
    assert handled + others == Counter(range(2))


@pytest.mark.faults
async def test_process_that_ends_with_unacknowledged_messages(server, js, fill):
    """They are redelivered to another process, which handles some for the second time."""
    count = 100
    await fill(count)
    handled = Handled()
    async with connected(server) as nc:
        consumer = await consumer_of(nc.jetstream(), ack_wait=0.5, prefetch=20).__aenter__()
        for _ in range(10):
            delivery = await asyncio.wait_for(anext(consumer), SECONDS)
            handled.add(delivery.event)
        nc._transport._io_writer.transport.abort()
        await nc.close()  # nothing was acknowledged, and nothing is released
        await consumer.__aexit__(None, None, None)

    async with consumer_of(js) as consumer:
        await run_until(js, consumer, handled.handle, lambda: handled.total() >= count + 10)
    assert handled.keys() == set(range(count))
    assert all(handled[number] > 1 for number in range(10))


@pytest.mark.faults
@pytest.mark.parametrize("is_flooded", [False, True])
async def test_handler_that_blocks_the_event_loop(is_flooded):
    """
    A blocked event loop reads nothing. The server disconnects a client with more than max_pending bytes waiting, so
    fewer are requested; if other clients send too much, lost messages are redelivered.
    """
    count, padding = 50, b" " * 900_000
    with NatsServer(jetstream=True, config="max_pending: 24MB") as server:
        async with connected(server) as other, connected(server) as nc:
            js = other.jetstream()
            await js.add_stream(name="E", subjects=["e"])
            for number in range(count):
                await js.publish("e", EVENT % number + padding)
            handled = Handled()
            await nc.subscribe("noise")

            async def handle(delivery):
                handled.add(delivery.event)
                if len(handled) == 3:
                    time.sleep(0.3)  # noqa: ASYNC251 - blocking is the fault
                    if is_flooded:
                        flood(server, padding, 60)

            ack_wait = 1 if is_flooded else 30
            options = {"dead_letter": None, "ack_wait": ack_wait, "prefetch": 1000, "max_deliveries": 100}
            async with consumer_of(nc.jetstream(), **options) as consumer:
                await run_until(js, consumer, handle, lambda: len(handled) == count)
            assert nc.stats["reconnects"] == is_flooded
        assert ("Slow Consumer" in server.log) is is_flooded
    assert handled.keys() == set(range(count))
    assert is_flooded or handled == Counter(range(count))


def flood(server, payload, count):
    """Publish to a subject that the connection under test is subscribed to, without any event loop."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as connection:
        lines = connection.makefile("rb")
        assert lines.readline().startswith(b"INFO ")
        connection.sendall(b'CONNECT {"verbose":false}\r\n')
        for _ in range(count):
            connection.sendall(b"PUB noise %d\r\n%b\r\n" % (len(payload), payload))
        connection.sendall(b"PING\r\n")
        assert lines.readline() == b"PONG\r\n"


async def test_missing_stream_for_dead_letters(js, fill):
    """The original is not lost or terminated, others are handled; it is dead-lettered once the stream exists."""
    count = 10
    await fill(count)
    handled, reported = Handled(), []

    def report(error, delivery):
        reported.append((str(error.code), delivery.sequence, delivery.deliveries))
        with pytest.raises(DecodeError):
            delivery.event  # noqa: B018 - it raises

    async with consumer_of(js, on_error=report, backoff=[0.02], max_deliveries=2) as consumer:
        await js.delete_stream("DEAD")  # the stream existed when the consumer was entered
        await js.publish("e", b"no event")
        running = asyncio.create_task(consumer.run(handled.handle))
        await until(lambda: len(reported) >= 4 and len(handled) == count)
        await until_consumer(js, "E", lambda info: info.ack_floor.stream_seq == count)
        await js.add_stream(name="DEAD", subjects=["dead"])
        await until_consumer(js, "E", has_none)
        consumer.stop()
        await asyncio.wait_for(running, SECONDS)
    assert handled == Counter(range(count))
    assert reported == [("no-responders", count + 1, delivery) for delivery in range(1, len(reported) + 1)]
    ((letter,),) = [batch async for batch in ce_js.read_stream(js, "DEAD")]
    known, headers = DeadLetter.split(letter.headers)
    assert (letter.data, headers) == (b"no event", [])
    assert (known.error, known.sequence) == ("not-a-cloudevent", count + 1)
