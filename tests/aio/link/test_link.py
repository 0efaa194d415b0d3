"""Each connection has one object, which calls its callbacks, and notices the end of its reading."""

import asyncio
import gc
import logging
import sys

import nats
import pytest

from ce_nats.aio import (
    DeliveryError,
    connect,
    subscribe,
)
from ce_nats.aio.link._link import Link, answered, result_unless
from ce_nats.aio.link._reading import Reading

SECONDS = 20


async def test_connection_has_one_link(connected):
    """Each call returns the same one, and callbacks of the connection are called as before."""
    async with connected("reader") as (nc, reported):
        assert Link.of(nc) is Link.of(nc)
        await nc._error_cb(RuntimeError("something else"))
        assert reported == ["something else"]


async def test_timeout_of_a_request_has_the_violation_during_the_request(connected):
    async with connected("unrestricted") as (nc, _):
        violation = nats.errors.Error("nats: maximum payload violation")

        async def fail():
            raise asyncio.TimeoutError

        async def lose():
            await nc._error_cb(violation)
            await fail()

        with pytest.raises(DeliveryError, match=r"^timeout: a: no answer came in time; the connection was lost: nats"):
            await answered(nc, "a", lose)
        with pytest.raises(asyncio.TimeoutError):
            await answered(nc, "a", fail)


async def test_operations_fail_if_the_connection_cannot_be_closed(connected, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, "ce_nats.aio.link._link")

    async def fail():
        raise OSError("unreachable")

    async with connected("unrestricted") as (nc, reported):
        link = Link.of(nc)
        with monkeypatch.context() as patched, link.ending.until_closed("orders") as failed:
            patched.setattr(nc, "close", fail)
            await link._close(nats.errors.Error("nats: reading ended"))
            assert failed.done()
            assert str(failed.result()).startswith("connection-closed: orders: the connection was closed")
        assert reported == ["nats: reading ended"]
    assert "the connection could not be closed: unreachable" in caplog.text


async def test_error_callback_that_raises_is_logged(restricted_server, caplog):
    async def fail(error):
        raise KeyError(str(error))

    nc = await nats.connect(restricted_server.url, user="reader", password="p", error_cb=fail)
    await Link.of(nc).nc._error_cb(nats.errors.Error("nats: slow consumer"))
    assert [record.getMessage() for record in caplog.records] == ["error_cb must not raise"]
    await nc.close()


async def test_error_callback_that_raises_a_cancelled_error_does_not_end_reading_unnoticed(restricted_server, caplog):
    """nats-py's reading task calls it. Before Python 3.11 that task does not know that it was not cancelled."""

    async def fail(error):
        raise asyncio.CancelledError

    async with connect(restricted_server.url, user="publisher", password="p", error_cb=fail) as nc:
        received = await subscribe(nc, "Work.>")
        await nc.publish("Work.denied.1")
        if sys.version_info >= (3, 11):
            await nc.publish("Work.allowed")
            assert (await asyncio.wait_for(anext(received), SECONDS)).subject == "Work.allowed"
            assert [record.getMessage() for record in caplog.records] == ["error_cb must not raise"]
        else:
            with pytest.raises(DeliveryError) as info:
                await asyncio.wait_for(anext(received), SECONDS)
            assert info.value.code == "connection-closed"
        await received.stop()


@pytest.mark.parametrize(
    ("cause", "reason"),
    [(None, "its task was cancelled"), (ValueError("a"), "ValueError: a")],
    ids=["cancelled", "error"],
)
async def test_connection_is_closed_when_its_reading_ends(connected, monkeypatch, cause, reason):
    """Operations that wait fail with the reason."""
    async with connected("unrestricted") as (nc, reported):
        link = Link.of(nc)
        with link.ending.until_closed("orders") as failed:
            if cause is None:
                nc._reading_task.cancel()
            else:
                monkeypatch.setattr(Reading, "is_running", False)
                link._note_reading_end(cause)
            error = await asyncio.wait_for(failed, SECONDS)
        text = f"nats: reading the connection ended: {reason}"
        assert str(error) == f"connection-closed: orders: the connection was closed: {text}"
        assert error.__cause__.__cause__ is cause
        assert reported == [text]
        assert nc.is_closed


async def test_callbacks_of_the_connection_are_called(restricted_server):
    called = []

    async def closed():
        called.append("closed")

    async def reconnected():
        called.append("reconnected")

    options = {"user": "reader", "password": "p", "closed_cb": closed, "reconnected_cb": reconnected}
    nc = await nats.connect(restricted_server.url, **options)
    link = Link.of(nc)
    await nc._reconnected_cb()
    assert called == ["reconnected"]
    with link.ending.until_closed("orders") as failed:
        pass
    assert failed.cancelled()
    with link.ending.until_closed("orders") as failed:
        await nc.close()
        assert failed.result().message == "orders: the connection was closed"
        assert failed.result().__cause__ is None
    assert called == ["reconnected", "closed"]


async def test_result_of_a_request_is_returned_unless_it_fails_first():
    loop = asyncio.get_running_loop()
    failed, error = loop.create_future(), DeliveryError("connection-closed", "orders")
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def answer():
        return "answer"

    async def wait():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    assert await result_unless(failed, answer) == "answer"
    waiting_for = asyncio.create_task(result_unless(failed, wait))
    await begun.wait()
    failed.set_result(error)
    with pytest.raises(DeliveryError) as info:
        await waiting_for
    assert info.value is error
    assert cancelled.is_set()


async def test_exception_of_a_request_that_was_cancelled_meanwhile_is_not_logged(caplog):
    async def fail():
        waiting.cancel()
        raise ValueError("a")

    failed = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(result_unless(failed, fail))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gc.collect()
    assert not caplog.records


async def test_reading_that_has_resumed_does_not_close_the_connection(connected):
    async with connected("unrestricted") as (nc, reported):
        link = Link.of(nc)
        link._note_reading_end(ValueError("a"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert link._close_task is None
        await nc.flush()
        assert reported == []
