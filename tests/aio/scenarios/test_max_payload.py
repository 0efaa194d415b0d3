"""A server closes connections with too large messages after a reload that lowers ``max_payload``."""

import asyncio
import signal

import nats
import pytest
from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError, EncodeError, PublishError
from ce_nats.aio import Publisher, PullConsumer, connect, flush, publish, request, subscribe
from ce_nats.aio.jetstream import publish as publish_to_stream
from ce_nats.testing import NatsServer
from tests.support.broker import ignore
from tests.support.waiting import until

SECONDS = 30
LIMIT = 2000
BIG = "x" * 10_000
VIOLATION = "nats: maximum payload violation"


@pytest.fixture
async def lowering():
    """A server with a stream ``S`` on ``s.>``, and a function that lowers its ``max_payload``."""

    async def lower():
        assert server._directory is not None
        (server._directory / "server.conf").write_text(f"max_payload: {LIMIT}")
        server._processes[0].send_signal(signal.SIGHUP)
        await until(lambda: f"Reloaded: max_payload = {LIMIT}" in server.log, SECONDS)

    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)
        await nc.jetstream().add_stream(name="S", subjects=["s.>"], storage="memory")
        await nc.close()
        yield server, lower


def soon(awaitable):
    return asyncio.wait_for(awaitable, SECONDS)


async def test_connection_is_restored(lowering, make_event, caplog):
    """Messages that are too large fail; others continue on the same connection."""
    server, lower = lowering
    async with connect(server.url, reconnect_time_wait=0.05) as nc:
        js = nc.jetstream()
        async with (
            PullConsumer(js, "S", "c", dead_letter=None, create=ConsumerConfig(), on_error=lambda *_: None) as consumer,
            subscribe(nc, "plain") as received,
        ):
            async with Publisher(js, ack_timeout=1) as publisher:
                await lower()
                await publisher.publish(make_event(1, BIG), "s.big")
                small = await publisher.publish(make_event(2), "s.small")
                with pytest.raises(PublishError, match=f"max_payload was lowered to {LIMIT} bytes") as info:
                    await soon(publisher.flush())
                assert (await small).stream == "S"
            assert info.value.code == "payload-too-large"
            assert [failure.event.get_id() for failure in info.value.failures] == ["event 1"]
            async with await soon(anext(consumer)) as event:
                assert event.get_id() == "event 2"
            await publish(nc, make_event(3), "plain")
            assert (await soon(anext(received))).event.get_id() == "event 3"
            with pytest.raises(EncodeError, match=f"must have at most {LIMIT} bytes"):
                await publish(nc, make_event(4, BIG), "plain")
        assert nc.stats["reconnects"] == 1
    assert VIOLATION in caplog.text


async def test_request_reports_why_the_connection_was_lost(lowering, make_event):
    server, lower = lowering
    async with connect(server.url, reconnect_time_wait=0.05, error_cb=ignore) as nc:
        await nc.subscribe("s.silent")
        await lower()
        with pytest.raises(DeliveryError, match=f"in time; the connection was lost: {VIOLATION}") as info:
            await request(nc, make_event(1, BIG), "s.silent", timeout=1)
        assert info.value.code == "timeout"
        with pytest.raises(EncodeError, match=f"must have at most {LIMIT} bytes"):
            await publish_to_stream(nc.jetstream(), make_event(1, BIG), "s.silent")
        await soon(flush(nc))


@pytest.mark.parametrize("options", [None, {"max_reconnect_attempts": 0}])
async def test_errors_have_the_reason_if_the_connection_is_closed(lowering, make_event, options):
    """On a connection of nats-py, which does not reconnect after this error, and with reconnects disabled."""
    server, lower = lowering
    given = {"error_cb": ignore}
    nc = await (nats.connect(server.url, **given) if options is None else connect(server.url, **given, **options))
    js = nc.jetstream()
    await nc.subscribe("silent")
    async with (
        Publisher(js) as publisher,
        subscribe(nc, "plain") as received,
        PullConsumer(js, "S", "c", dead_letter=None, create=ConsumerConfig()) as consumer,
    ):
        waiting = [
            asyncio.ensure_future(each)
            for each in (anext(consumer), anext(received), request(nc, make_event(), "silent", timeout=2 * SECONDS))
        ]
        await flush(nc)
        await lower()
        acks = [await publisher.publish(make_event(number, BIG), "s.big") for number in range(3)]
        errors = await soon(asyncio.gather(*waiting, *acks, return_exceptions=True))
        publisher.failures.clear()
    assert [str(error.code) for error in errors] == ["connection-closed"] * 3 + ["timeout"] * 3
    assert all(VIOLATION in str(error) for error in errors), errors
    event = make_event()
    for operation in (
        publish(nc, event, "s.a"),
        publish_to_stream(js, event, "s.a"),
        request(nc, event, "plain"),
        subscribe(nc, "plain"),
        flush(nc),
        PullConsumer(js, "S", "c", dead_letter=None).__aenter__(),
        Publisher(js).__aenter__(),
    ):
        with pytest.raises(DeliveryError, match=f"the connection was closed: {VIOLATION}") as info:
            await operation
        assert info.value.code == "connection-closed"
    await nc.close()
