"""Denied permissions and lost connections: each operation says so itself, on real servers."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from functools import partial

import nats
import pytest
from nats.js.api import PubAck

from ce_nats import aio
from ce_nats.aio import DeliveryError, events, flush, publish, request, subscribe
from ce_nats.aio.jetstream import publish as publish_to_stream
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.streams import StreamApi
from ce_nats.aio.watch import ConnectionWatch
from ce_nats.testing import NatsServer
from tests.aio import waiting

SECONDS = 20
until = partial(waiting.until, seconds=SECONDS)
# Longer than any test waits for: what is seen before was not a timeout.
LONG = 60

PERMISSIONS = {
    "anybody": {},
    "reader": {
        "publish": {"allow": ["Allowed.>", "$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.>"]},
        "subscribe": {"deny": ["Secret.>"]},
    },
    "deaf": {"subscribe": {"deny": ["_INBOX.>"]}},
}
USERS = [{"user": name, "password": "p", "permissions": given} for name, given in PERMISSIONS.items()]


@pytest.fixture(scope="module")
def server():
    with NatsServer(jetstream=True, config=f"authorization: {json.dumps({'users': USERS})}") as server:
        yield server


@pytest.fixture
def connected(server):
    """A connection of a user, and the errors that its ``error_cb`` was told of."""

    @asynccontextmanager
    async def connect(user, **options):
        told = []

        async def note(error):
            told.append(str(error))

        nc = await nats.connect(server.url, user=user, password="p", error_cb=note, **options)
        try:
            yield nc, told
        finally:
            await nc.close()

    return connect


@asynccontextmanager
async def denied(*words):
    """The block fails with ``permission-denied``, long before any timeout, and the error has these words."""
    began = time.monotonic()
    with pytest.raises(DeliveryError) as info:
        yield
    assert info.value.code == "permission-denied"
    assert all(word in str(info.value) for word in words), info.value
    assert time.monotonic() - began < LONG / 2


async def test_flush_raises_a_denied_publish(connected, make_event):
    async with connected("reader") as (nc, told):
        await publish(nc, make_event(), "Orders.Paid")
        async with denied("publish", "orders.paid"):
            await flush(nc)
        assert [text for text in told if "orders.paid" in text]  # as nats-py does anyway
        await flush(nc)  # once is enough
        await publish(nc, make_event(), "Allowed.Paid")
        await flush(nc)


async def test_flush_counts_denied_publishes(connected, make_event):
    async with connected("reader") as (nc, _):
        for _ in range(3):
            await publish(nc, make_event(), "Orders.Paid")
        async with denied("and 2 more"):
            await flush(nc)


async def test_a_subscription_that_is_denied_is_none(connected):
    async with connected("reader") as (nc, told):
        async with denied("subscribe", "'Secret.Plans'"):
            await subscribe(nc, "Secret.Plans", queue="q")
        assert told == []
        assert nc._subs == {}
        async with await subscribe(nc, "Allowed.Plans"):
            pass


async def test_events_of_a_denied_subscription_raise(connected):
    """Made by nats-py, so that nobody has waited for the server's answer."""
    async with connected("reader") as (nc, _):
        received = events(await nc.subscribe("Secret.Plans"))
        async with denied("'Secret.Plans'"):
            await asyncio.wait_for(anext(received), SECONDS)


async def test_a_request_that_is_denied(connected, make_event):
    async with connected("reader") as (nc, told):
        async with denied("publish", "'Orders.Quote'"):
            await request(nc, make_event(), "Orders.Quote", timeout=LONG)
        assert told == []


async def test_only_the_request_at_fault_is_told(connected, make_event):
    """Two requests under way on one connection; the other one waits for its answer."""
    async with (
        connected("anybody") as (other, _),
        connected("reader") as (nc, _),
        await subscribe(other, "Allowed.Quote") as questions,
    ):
        waiting_for = asyncio.create_task(request(nc, make_event(1), "Allowed.Quote", timeout=LONG))
        question = await anext(questions)
        async with denied("'Orders.Quote'"):
            await request(nc, make_event(2), "Orders.Quote", timeout=LONG)
        await aio.respond(question, make_event(3))
        assert (await waiting_for).event.get_id() == "event 3"


async def test_requests_without_an_inbox(connected, make_event):
    """nats-py subscribes to its inbox once, so that the server denies it once, and every request needs it."""
    async with connected("deaf") as (nc, _):
        for _ in range(2):
            async with denied("subscribe", "_INBOX."):
                await request(nc, make_event(), "Allowed.Quote", timeout=LONG)


async def test_a_request_can_be_cancelled(connected, make_event):
    async with connected("anybody") as (other, _), connected("reader") as (nc, _):
        async with await subscribe(other, "Allowed.Quote") as questions:
            task = asyncio.create_task(request(nc, make_event(), "Allowed.Quote", timeout=LONG))
            await anext(questions)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert ConnectionWatch.of(nc)._listeners == {}
        assert nc._resp_map == {}


async def test_publishing_to_a_stream_is_denied(connected, make_event):
    async with connected("reader") as (nc, told):
        async with denied("publish", "'Orders.Paid'"):
            await publish_to_stream(nc.jetstream(), make_event(), "Orders.Paid", timeout=LONG)
        assert told == []


async def test_reading_a_stream_is_denied(connected, make_event):
    async with connected("anybody") as (nc, _):
        js = nc.jetstream()
        await js.add_stream(name="READ", subjects=["Read.>"], storage="memory")
        ack = await publish_to_stream(js, make_event(), "Read.one")
        assert isinstance(ack, PubAck)
    async with connected("reader") as (nc, told):
        js = nc.jetstream(timeout=LONG)
        async with denied("publish", "'$JS.API.STREAM.MSG.GET.READ'"):
            async for _ in read_stream(js, "READ"):
                pass
        async with denied("'$JS.API.STREAM.MSG.GET.READ'"):
            await StreamApi(nc, timeout=LONG).next_sequence("READ", 1)
        assert told == []
    async with connected("deaf") as (nc, _), denied("subscribe", "_INBOX."):
        async for _ in read_stream(nc.jetstream(timeout=LONG), "READ"):
            pass


async def test_a_connection_has_one_watch(connected):
    """However often it is asked for, and the connection's own callbacks are called as before."""
    async with connected("reader") as (nc, told):
        assert ConnectionWatch.of(nc) is ConnectionWatch.of(nc)
        await nc._error_cb(RuntimeError("something else"))
        assert told == ["something else"]


# --- Connections that are lost for good ------------------------------------------------------------------------------


@asynccontextmanager
async def restless(server, **options):
    """A connection that gives up soon, and how often it was lost and restored."""
    seen = []

    async def ignore(error):
        """That the connection is lost is what the tests are about."""

    async def lost():
        seen.append("lost")

    async def restored():
        seen.append("restored")

    given = {"reconnect_time_wait": 0.02, "max_reconnect_attempts": 3, "connect_timeout": 1, **options}
    nc = await nats.connect(server.url, error_cb=ignore, disconnected_cb=lost, reconnected_cb=restored, **given)
    try:
        yield nc, seen
    finally:
        await nc.close()


@pytest.mark.parametrize("options", [{}, {"allow_reconnect": False}])
async def test_events_of_a_lost_connection_raise(make_event, options):
    with NatsServer() as server:
        async with restless(server, **options) as (nc, _), await subscribe(nc, "orders") as received:
            await publish(nc, make_event(), "orders")
            await flush(nc)
            server.kill()
            assert (await asyncio.wait_for(anext(received), SECONDS)).event.get_id() == "event 1"
            with pytest.raises(DeliveryError, match="orders: the connection is lost: ") as info:
                await asyncio.wait_for(anext(received), SECONDS)
            assert info.value.code == "delivery-failed"
            assert info.value.__cause__ is not None


async def test_events_end_when_their_owner_closes_the_connection(make_event):
    """Also after the connection was lost and came back, of which nats-py keeps the error."""
    with NatsServer() as server:
        async with restless(server, max_reconnect_attempts=-1) as (nc, seen):
            received = await subscribe(nc, "orders")
            server.kill()
            await until(lambda: nc.last_error is not None)  # an attempt has failed
            server.start()
            await until(lambda: seen == ["lost", "restored"])
            ending = asyncio.create_task(anext(received, None))
            await asyncio.sleep(0)
            await nc.close()
            assert await ending is None


@pytest.mark.parametrize("way", ["unsubscribe", "drain", "stop", "drain connection"])
async def test_events_end_when_the_program_ends_them(server, connected, way):
    async with connected("anybody") as (nc, _):
        received = await subscribe(nc, "orders")
        ending = asyncio.create_task(anext(received, None))
        await asyncio.sleep(0)
        if way == "unsubscribe":
            await received.subscription.unsubscribe()
        elif way == "drain":
            await received.subscription.drain()
        elif way == "stop":
            await received.stop()
        else:
            await nc.drain()
        assert await asyncio.wait_for(ending, SECONDS) is None


async def test_a_denial_is_no_loss(connected, make_event):
    """nats-py keeps a denial as the connection's last error, and then its owner closes it."""
    async with connected("reader") as (nc, told):
        received = await subscribe(nc, "Allowed.Plans")
        await nc.publish("orders", b"")
        await until(lambda: told)
        await nc.close()
        assert await anext(received, None) is None


async def test_a_connection_that_the_server_ends_is_lost(make_event):
    """nats-py does not reconnect after such an error."""
    with NatsServer(config="max_payload: 1000") as server:
        async with restless(server) as (nc, _), await subscribe(nc, "orders") as received:
            nc._max_payload = 2**20
            await nc.publish("orders", bytes(2000))
            with pytest.raises(DeliveryError, match=r"the connection is lost: .*maximum payload"):
                await asyncio.wait_for(anext(received), SECONDS)
