"""Connections that are lost permanently: each operation raises the error, on real servers."""

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial

import nats
import pytest

from ce_nats.aio import (
    DeliveryError,
    flush,
    publish,
    subscribe,
)
from ce_nats.aio.link._link import Link
from ce_nats.testing import NatsServer
from tests.support import waiting
from tests.support.broker import ignore

SECONDS = 20
until = partial(waiting.until, seconds=SECONDS)


@asynccontextmanager
async def restless(server, **options):
    """A connection with few reconnect attempts, and how often it was lost and restored."""
    seen = []

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
async def test_iteration_raises_after_a_lost_connection(make_event, options):
    with NatsServer() as server:
        async with restless(server, **options) as (nc, _), await subscribe(nc, "orders") as received:
            await publish(nc, make_event(), "orders")
            await flush(nc)
            server.kill()
            assert (await asyncio.wait_for(anext(received), SECONDS)).event.get_id() == "event 1"
            with pytest.raises(DeliveryError, match="orders: the connection was lost: ") as info:
                await asyncio.wait_for(anext(received), SECONDS)
            assert info.value.code == "connection-closed"
            assert info.value.__cause__ is not None


async def test_iteration_ends_when_the_caller_closes_the_connection(make_event):
    """Also after a reconnect, although nats-py keeps the error of the loss."""
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
async def test_iteration_ends_when_the_caller_ends_the_subscription(connected, way):
    async with connected("unrestricted") as (nc, _):
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


async def test_denial_is_not_a_lost_connection(connected, make_event):
    """nats-py keeps the denial as last error of the connection, which the caller closes."""
    async with connected("reader") as (nc, reported):
        received = await subscribe(nc, "Allowed.Plans")
        await nc.publish("orders", b"")
        await until(lambda: reported)
        await nc.close()
        assert await anext(received, None) is None


async def test_connection_closed_by_the_server_is_lost(make_event):
    """nats-py does not reconnect after such an error."""
    with NatsServer(config="max_payload: 1000") as server:
        async with restless(server) as (nc, _), await subscribe(nc, "orders") as received:
            nc._max_payload = 2**20
            await nc.publish("orders", bytes(2000))
            with pytest.raises(DeliveryError, match=r"the connection was lost: .*maximum payload"):
                await asyncio.wait_for(anext(received), SECONDS)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("nats: maximum payload violation", "; the connection was lost: nats: maximum payload violation"),
        ('nats: permissions violation for publish to "a"', ""),
        ("nats: slow consumer", ""),
    ],
)
async def test_only_a_violation_that_ends_the_connection_is_the_reason_of_a_timeout(connected, error, text):
    async with connected("unrestricted") as (nc, reported):
        link = Link.of(nc)
        await nc._error_cb(nats.errors.Error(error))
        assert [str(each) for each in reported] == [error]
        assert link.ending.violation_since(0.0) == text
        assert link.ending.violation_since(time.monotonic() + 1) == ""


@pytest.mark.parametrize("is_closed_before", [True, False])
async def test_error_before_the_connection_was_watched_is_a_loss_if_it_was_closed_then(connected, is_closed_before):
    async with connected("unrestricted") as (nc, _):
        error = nats.errors.Error("nats: slow consumer")
        nc._err = error
        if is_closed_before:
            await nc.close()
        link = Link.of(nc)
        await nc.close()
        assert link.ending.loss is (error if is_closed_before else None)
