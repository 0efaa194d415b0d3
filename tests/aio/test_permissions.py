"""Denied permissions and lost connections: each operation raises the error, on real servers."""

import asyncio
import gc
import json
import logging
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import nats
import pytest
from nats.js.api import ConsumerConfig, PubAck

from ce_nats import NatsMessage, aio
from ce_nats._ranges import StreamRange
from ce_nats.aio import (
    DeliveryError,
    Publisher,
    PullConsumer,
    _permissions,
    connect,
    events,
    flush,
    publish,
    request,
    subscribe,
)
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio._natspy import set_last_error
from ce_nats.aio._permissions import ConnectionWatch, Denial, answered, denial, result_unless
from ce_nats.aio.jetstream import publish as publish_to_stream
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.publishing._bulk import BulkPublisher
from ce_nats.aio.reading._range_reader import read_range
from ce_nats.testing import NatsServer
from tests.support import waiting
from tests.support.broker import ignore

SECONDS = 20
until = partial(waiting.until, seconds=SECONDS)
# Longer than the limit of any test, so that no error is a timeout.
LONG = 60

PERMISSIONS = {
    "unrestricted": {},
    "reader": {
        "publish": {"allow": ["Allowed.>", "$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.>"]},
        "subscribe": {"deny": ["Secret.>"]},
    },
    "deaf": {"subscribe": {"deny": ["_INBOX.>"]}},
    "publisher": {"publish": {"deny": ["Work.denied.>"]}},
    "no create": {"publish": {"deny": ["$JS.API.CONSUMER.CREATE.>"]}},
    "no info": {"publish": {"deny": ["$JS.API.CONSUMER.INFO.>"]}},
    "no next": {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>"]}},
    "no acks": {"publish": {"deny": ["$JS.ACK.>"]}},
    "no letters": {"publish": {"deny": ["Dead.>"]}},
}
USERS = [{"user": name, "password": "p", "permissions": given} for name, given in PERMISSIONS.items()]


@pytest.fixture(scope="module")
def server():
    with NatsServer(jetstream=True, config=f"authorization: {json.dumps({'users': USERS})}") as server:
        yield server


@pytest.fixture
def connected(server):
    """A connection of a user, and the errors that were passed to its ``error_cb``."""

    @asynccontextmanager
    async def connect(user, **options):
        reported = []

        async def note(error):
            reported.append(str(error))

        nc = await nats.connect(server.url, user=user, password="p", error_cb=note, **options)
        try:
            yield nc, reported
        finally:
            await nc.close()

    return connect


@asynccontextmanager
async def denied(*words):
    """Check that the block fails with ``permission-denied``, before any timeout, and that the error has these words."""
    began = time.monotonic()
    with pytest.raises(DeliveryError) as info:
        yield info
    assert info.value.code == "permission-denied"
    assert all(word in str(info.value) for word in words), info.value
    assert time.monotonic() - began < LONG / 2


async def test_flush_raises_a_denied_publish(connected, make_event):
    async with connected("reader") as (nc, reported):
        await publish(nc, make_event(), "Orders.Paid")
        async with denied("publish", "'Orders.Paid'"):
            await flush(nc)
        assert reported == ['nats: permissions violation for publish to "Orders.Paid"']
        await flush(nc)  # it is raised once
        await publish(nc, make_event(), "Allowed.Paid")
        await flush(nc)


@pytest.mark.parametrize("subject", ["Orders.ÄÖ", "Orders.İ", 'Orders."a"', "Orders.\\a'"])
async def test_denied_subject_is_named_as_it_was_published(connected, make_event, subject):
    """Unless a character has a lower case of another length, after which nats-py's text is used."""
    async with connected("reader") as (nc, _):
        async with denied("publish", repr(subject)):
            await request(nc, make_event(), subject, timeout=LONG)
        await publish(nc, make_event(), subject)
        async with denied("publish", repr(subject.lower() if "İ" in subject else subject)):
            await flush(nc)


async def test_flush_counts_denied_publishes(connected, make_event):
    async with connected("reader") as (nc, _):
        for _ in range(3):
            await publish(nc, make_event(), "Orders.Paid")
        async with denied("and 2 more"):
            await flush(nc)


async def test_denied_subscription_is_an_error(connected):
    async with connected("reader") as (nc, reported):
        async with denied("subscribe", "'Secret.Plans'"):
            await subscribe(nc, "Secret.Plans", queue="q")
        assert reported == []
        assert nc._subs == {}
        async with await subscribe(nc, "Allowed.Plans"):
            pass


async def test_events_of_a_denied_subscription_raise(connected):
    """A subscription of nats-py, which does not wait for the server's answer."""
    async with connected("reader") as (nc, _):
        received = events(await nc.subscribe("Secret.Plans"))
        async with denied("'Secret.Plans'"):
            await asyncio.wait_for(anext(received), SECONDS)


async def test_denied_request_is_an_error(connected, make_event):
    async with connected("reader") as (nc, reported):
        async with denied("publish", "'Orders.Quote'"):
            await request(nc, make_event(), "Orders.Quote", timeout=LONG)
        assert reported == []


@pytest.mark.parametrize("denied_subject", ["Orders.Quote", "ALLOWED.QUOTE"])
async def test_denial_fails_only_its_request(connected, make_event, denied_subject):
    """
    Two requests in flight on one connection; the other one continues to wait for its answer, also if its subject
    differs in case only.
    """
    async with (
        connected("unrestricted") as (other, _),
        connected("reader") as (nc, _),
        await subscribe(other, "Allowed.Quote") as questions,
    ):
        waiting_for = asyncio.create_task(request(nc, make_event(1), "Allowed.Quote", timeout=LONG))
        question = await anext(questions)
        async with denied(f"'{denied_subject}'"):
            await request(nc, make_event(2), denied_subject, timeout=LONG)
        await aio.respond(question, make_event(3))
        assert (await asyncio.wait_for(waiting_for, SECONDS)).event.get_id() == "event 3"


async def test_denied_inbox_fails_every_request(connected, make_event):
    """nats-py subscribes to its inbox once, so the server denies it once, but every request needs it."""
    async with connected("deaf") as (nc, _):
        for _ in range(2):
            async with denied("subscribe", "_INBOX."):
                await request(nc, make_event(), "Allowed.Quote", timeout=LONG)


async def test_request_can_be_cancelled(connected, make_event):
    async with connected("unrestricted") as (other, _), connected("reader") as (nc, _):
        async with await subscribe(other, "Allowed.Quote") as questions:
            task = asyncio.create_task(request(nc, make_event(), "Allowed.Quote", timeout=LONG))
            await anext(questions)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert ConnectionWatch.of(nc)._listeners == {}
        assert nc._resp_map == {}


async def test_denied_publish_to_a_stream_is_an_error(connected, make_event):
    async with connected("reader") as (nc, reported):
        async with denied("publish", "'Orders.Paid'"):
            await publish_to_stream(nc.jetstream(), make_event(), "Orders.Paid", timeout=LONG)
        assert reported == []


async def test_denied_read_of_a_stream_is_an_error(connected, make_event):
    async with connected("unrestricted") as (nc, _):
        js = nc.jetstream()
        await js.add_stream(name="READ", subjects=["Read.>"], storage="memory")
        ack = await publish_to_stream(js, make_event(), "Read.one")
        assert isinstance(ack, PubAck)
    async with connected("reader") as (nc, reported):
        js = nc.jetstream(timeout=LONG)
        async with denied("publish", "'$JS.API.STREAM.MSG.GET.READ'"):
            async for _ in read_stream(js, "READ"):
                pass
        async with denied("'$JS.API.STREAM.MSG.GET.READ'"):
            await StreamApi(nc, timeout=LONG).next_sequence("READ", 1)
        async with denied("'$JS.API.STREAM.NAMES'"):
            await StreamApi(nc, timeout=LONG).stream_names()
        assert reported == []
    async with connected("deaf") as (nc, _), denied("subscribe", "_INBOX."):
        async for _ in read_stream(nc.jetstream(timeout=LONG), "READ"):
            pass


# --- Streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def work(connected, make_event):
    """A stream with two events, a consumer ``c`` with a short ``ack_wait``, and a stream for dead letters."""
    async with connected("unrestricted") as (nc, _):
        js = nc.jetstream()
        await js.add_stream(name="Work", subjects=["Work.>"], storage="memory")
        await js.add_stream(name="Dead", subjects=["Dead.>"], storage="memory")
        await js.add_consumer("Work", ConsumerConfig(durable_name="c", ack_policy="explicit", ack_wait=0.2))
        for number in (1, 2):
            await publish_to_stream(js, make_event(number), "Work.one")
        yield js
        await js.delete_stream("Work")
        await js.delete_stream("Dead")


@pytest.mark.usefixtures("work")
async def test_publisher_fails_only_denied_messages(connected, make_event):
    async with connected("publisher") as (nc, reported):
        async with Publisher(nc.jetstream(), retry_timeout=LONG) as publisher:
            for number in range(6):
                await publisher.publish(make_event(number), f"Work.{'denied' if number % 2 else 'one'}.{number}")
            async with denied("publish") as info:
                await publisher.flush()
        failures = info.value.failures
        assert [(failure.error.code, failure.subject) for failure in failures] == [
            ("permission-denied", f"Work.denied.{number}") for number in (1, 3, 5)
        ]
        assert "'Work.denied.1'" in str(failures[0].error)
        assert publisher.acknowledged == 3
        assert reported == []


async def test_denied_acknowledgements_fail_a_publisher(connected, make_event):
    async with connected("deaf") as (nc, _):
        async with Publisher(nc.jetstream(), retry_timeout=LONG) as publisher, denied("subscribe", "_INBOX."):
            await publisher.publish(make_event(), "Work.one")
            await publisher.flush()
        async with denied("subscribe", "_INBOX."), Publisher(nc.jetstream(), retry_timeout=LONG) as publisher:
            await nc.flush()  # the denial arrives before the answer
            await publisher.publish(make_event(), "Work.one")


@pytest.mark.usefixtures("work")
async def test_denial_fails_the_sink(server):
    async def connect(client):
        await client.connect(server.url, user="publisher", password="p")

    async with BulkPublisher(connect, retry_timeout=LONG) as publisher:
        assert (await publisher.publish([NatsMessage("Work.one", b"1")])).messages == 1
        async with denied("publish", "'Work.denied.2'"):
            await publisher.publish([NatsMessage("Work.one", b"1"), NatsMessage("Work.denied.2", b"2")])


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("user", "name", "subject"),
    [
        ("no info", "c", "$JS.API.CONSUMER.INFO.Work.c"),
        ("no create", "new", "$JS.API.CONSUMER.CREATE.Work.new.Work.one"),
        ("deaf", "c", "_INBOX."),
    ],
)
async def test_denied_consumer_cannot_be_entered(connected, user, name, subject):
    async with connected(user) as (nc, reported):
        create = ConsumerConfig(filter_subject="Work.one")
        consumer = PullConsumer(nc.jetstream(timeout=LONG), "Work", name, dead_letter=None, create=create)
        async with denied(subject):
            await consumer.__aenter__()
        assert [text for text in reported if "CONSUMER" in text] == []


@pytest.mark.usefixtures("work")
async def test_denied_fetch_ends_the_iteration(connected):
    async with connected("no next") as (nc, _):
        consumer = PullConsumer(nc.jetstream(), "Work", "c", dead_letter=None)
        async with consumer, denied("consumer c of stream Work", "'$JS.API.CONSUMER.MSG.NEXT.Work.c'"):
            await anext(consumer)


@pytest.mark.usefixtures("work")
async def test_client_that_cannot_write_metadata_sees_another_one_by_its_requests(connected, monkeypatch):
    """With a key there must be one client."""
    monkeypatch.setattr("ce_nats.aio.consumer._key_order.IN_USE_SECONDS", 1.0)
    handled = []

    async def handle(delivery):
        handled.append(delivery.sequence)

    async with connected("no create") as (nc, reported), AsyncExitStack() as stack:
        first, second = (PullConsumer(nc.jetstream(), "Work", "c", dead_letter=None) for _ in range(2))
        await stack.enter_async_context(first)
        running = asyncio.create_task(first.run(handle, key=hash))
        await until(lambda: handled == [1, 2])
        async with second:
            with pytest.raises(DeliveryError, match=r"^consumer-in-use: .*another client requests messages"):
                await second.run(handle, key=hash)
        first.stop()
        await running
        assert reported == []


@pytest.mark.parametrize("double_ack", [True, False])
async def test_denied_acknowledgement_ends_the_iteration(connected, work, double_ack):
    """Otherwise handlers would be called repeatedly with the same events, which would be dead-lettered at last."""
    handled, errors = [], []

    async def handle(delivery):
        event = delivery.event
        handled.append(event.get_id())
        await nc.flush()  # so that the server's denial has arrived

    async with connected("no acks") as (nc, _):
        options = {"dead_letter": "Dead.work", "on_error": lambda error, _: errors.append(error)}
        options["double_ack"] = double_ack
        consumer = PullConsumer(nc.jetstream(timeout=LONG), "Work", "c", prefetch=1, **options)
        async with consumer, denied("'$JS.ACK.Work.c."):
            await consumer.run(handle)
    assert handled in (["event 1"], ["event 1", "event 2"])
    assert {error.code for error in errors} == {"permission-denied"}
    assert (await work.stream_info("Dead")).state.messages == 0


async def test_denied_dead_letter_keeps_the_original(connected, work):
    """The error reports why there is no dead letter."""
    errors = asyncio.Queue()
    async with connected("no letters") as (nc, _):
        options = {"dead_letter": "Dead.work", "on_error": lambda error, _: errors.put_nowait(error)}
        async with PullConsumer(nc.jetstream(timeout=LONG), "Work", "c", **options) as consumer:
            await (await anext(consumer)).reject("bad")
            async with denied("'Dead.work'"):
                raise await asyncio.wait_for(errors.get(), SECONDS)
    assert (await work.consumer_info("Work", "c")).num_ack_pending > 0


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("no create", "$JS.API.CONSUMER.CREATE.Work."),
        ("no next", "$JS.API.CONSUMER.MSG.NEXT.Work."),
        ("deaf", "_INBOX."),
    ],
)
async def test_denied_read_of_a_range_is_an_error(server, user, subject):
    """By the reader of the Spark source, which retries after other errors."""

    async def connect(client):
        await client.connect(server.url, user=user, password="p")

    async with denied(subject):
        async for _ in read_range(connect, StreamRange("Work", 1, 2), request_timeout=LONG, retry_timeout=LONG):
            pass


async def test_connection_has_one_watch(connected):
    """Each call returns the same one, and callbacks of the connection are called as before."""
    async with connected("reader") as (nc, reported):
        assert ConnectionWatch.of(nc) is ConnectionWatch.of(nc)
        await nc._error_cb(RuntimeError("something else"))
        assert reported == ["something else"]


# --- Connections that are lost permanently ---------------------------------------------------------------------------


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
async def test_iteration_ends_when_the_caller_ends_the_subscription(server, connected, way):
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


async def test_denied_publishes_have_one_listener_and_denied_subscriptions_all(connected):
    """The latest listener comes first: a request is part of the operation of an earlier listener."""
    called = []

    def listener(name, is_handled):
        def listen(denial):
            called.append(name)
            return is_handled

        return listen

    async with connected("reader") as (nc, _):
        watch = ConnectionWatch.of(nc)
        for name, is_handled in (("first", True), ("second", True), ("third", False)):
            watch.add(listener(name, is_handled))
        assert watch._notify(Denial("publish", "a"))
        assert called == ["third", "second"]
        called.clear()
        assert watch._notify(Denial("subscription", "a"))
        assert called == ["third", "second", "first"]


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
        watch = ConnectionWatch.of(nc)
        await watch._receive_error(nats.errors.Error(error))
        assert [str(each) for each in reported] == [error]
        assert watch.violation_since(0.0) == text
        assert watch.violation_since(time.monotonic() + 1) == ""


async def test_timeout_of_a_request_has_the_violation_during_the_request(connected):
    async with connected("unrestricted") as (nc, _):
        violation = nats.errors.Error("nats: maximum payload violation")

        async def fail():
            raise asyncio.TimeoutError

        async def lose():
            await ConnectionWatch.of(nc)._receive_error(violation)
            await fail()

        with pytest.raises(DeliveryError, match=r"^timeout: a: no answer came in time; the connection was lost: nats"):
            await answered(nc, "a", lose)
        with pytest.raises(asyncio.TimeoutError):
            await answered(nc, "a", fail)


async def test_operations_fail_if_the_connection_cannot_be_closed(connected, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, "ce_nats.aio._permissions")

    async def fail():
        raise OSError("unreachable")

    async with connected("unrestricted") as (nc, reported):
        watch = ConnectionWatch.of(nc)
        with monkeypatch.context() as patched, watch.until_closed("orders") as failed:
            patched.setattr(nc, "close", fail)
            await watch._close(nats.errors.Error("nats: reading ended"))
            assert failed.done()
            assert str(failed.result()).startswith("connection-closed: orders: the connection was closed")
        assert reported == ["nats: reading ended"]
    assert "the connection could not be closed: unreachable" in caplog.text


async def test_inbox_that_was_denied_is_an_error_of_later_operations(connected):
    async with connected("deaf") as (nc, _):
        async with denied("subscribe", "_INBOX."):
            await answered(nc, "a", lambda: nc.request("a", timeout=LONG))
        async with denied("subscribe", "_INBOX."):
            with denial(nc, "a"):
                pytest.fail("not denied")
        with denial(nc, "a", "other.inbox"):
            pass


@pytest.mark.parametrize(
    ("denied", "text"),
    [
        (Denial("publish", "orders.paid"), "publish to 'Orders.Paid'"),
        (Denial("subscription", "my.inbox"), "subscribe to 'My.Inbox'"),
        (Denial("publish", "my.inbox"), None),
        (Denial("subscription", "orders.paid"), None),
    ],
    ids=["subject", "inbox", "publish to inbox", "subscription to subject"],
)
async def test_request_fails_if_its_subject_or_inbox_is_denied(connected, denied, text):
    async with connected("unrestricted") as (nc, _):
        watch = ConnectionWatch.of(nc)
        with denial(nc, "Orders.Paid", "My.Inbox") as failed:
            assert watch._notify(denied) is (text is not None)
            if text is not None:
                assert failed.result().message == f"the server denies permission to {text}"


async def test_denied_publishes_without_an_operation_are_raised_once(connected):
    async with connected("unrestricted") as (nc, reported):
        watch = ConnectionWatch.of(nc)
        watch.check_publishes()
        for count, end in ((1, ""), (2, " (and 1 more)"), (3, " (and 2 more)")):
            for number in range(count):
                error = f'nats: permissions violation for publish to "orders.{number}"'
                await watch._receive_error(nats.errors.Error(error))
            with pytest.raises(DeliveryError) as info:
                watch.check_publishes()
            assert info.value.message == f"the server denies permission to publish to 'orders.0'{end}"
            watch.check_publishes()
        error = 'nats: permissions violation for subscription to "orders.*" using queue "q"'
        await watch._receive_error(nats.errors.Error(error))
        watch.check_publishes()
        assert len(reported) == 7


async def test_error_callback_that_raises_is_logged(server, caplog):
    async def fail(error):
        raise KeyError(str(error))

    nc = await nats.connect(server.url, user="reader", password="p", error_cb=fail)
    await ConnectionWatch.of(nc)._receive_error(nats.errors.Error("nats: slow consumer"))
    assert [record.getMessage() for record in caplog.records] == ["error_cb must not raise"]
    await nc.close()


async def test_error_callback_that_raises_a_cancelled_error_does_not_end_the_connection_unnoticed(server, caplog):
    """nats-py's reading task calls it. Before Python 3.11 that task does not know that it was not cancelled."""

    async def fail(error):
        raise asyncio.CancelledError

    async with connect(server.url, user="publisher", password="p", error_cb=fail) as nc:
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
        watch = ConnectionWatch.of(nc)
        with watch.until_closed("orders") as failed:
            if cause is None:
                nc._reading_task.cancel()
            else:
                monkeypatch.setattr(_permissions, "is_reading", lambda nc: False)
                watch._note_reading_end(cause)
            error = await asyncio.wait_for(failed, SECONDS)
        text = f"nats: reading the connection ended: {reason}"
        assert str(error) == f"connection-closed: orders: the connection was closed: {text}"
        assert error.__cause__.__cause__ is cause
        assert reported == [text]
        assert nc.is_closed


async def test_callbacks_of_the_connection_are_called(server):
    called = []

    async def closed():
        called.append("closed")

    async def reconnected():
        called.append("reconnected")

    options = {"user": "reader", "password": "p", "closed_cb": closed, "reconnected_cb": reconnected}
    nc = await nats.connect(server.url, **options)
    watch = ConnectionWatch.of(nc)
    await watch._note_reconnect()
    assert called == ["reconnected"]
    with watch.until_closed("orders") as failed:
        pass
    assert failed.cancelled()
    with watch.until_closed("orders") as failed:
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
        watch = ConnectionWatch.of(nc)
        watch._note_reading_end(ValueError("a"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert watch._closing is None
        await nc.flush()
        assert reported == []


@pytest.mark.parametrize("is_closed_before", [True, False])
async def test_error_before_the_connection_was_watched_is_a_loss_if_it_was_closed_then(connected, is_closed_before):
    async with connected("unrestricted") as (nc, _):
        error = nats.errors.Error("nats: slow consumer")
        set_last_error(nc, error)
        if is_closed_before:
            await nc.close()
        watch = ConnectionWatch.of(nc)
        await nc.close()
        assert watch.loss is (error if is_closed_before else None)


async def test_cancelled_flush_does_not_end_the_reading(connected):
    async with connected("unrestricted") as (nc, reported):
        ConnectionWatch.of(nc)
        flushing = asyncio.create_task(nc.flush())
        await asyncio.sleep(0)
        assert nc._pongs
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        await nc.flush()
        assert not nc._reading_task.done()
        assert reported == []
