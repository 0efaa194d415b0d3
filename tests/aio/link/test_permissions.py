"""Denied permissions: each operation raises the error, on real servers."""

import asyncio
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
    events,
    flush,
    publish,
    request,
    subscribe,
)
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.jetstream import publish as publish_to_stream
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.link._link import Link, answered, denial
from ce_nats.aio.link._permissions import Denial
from ce_nats.aio.publishing._bulk import BulkPublisher
from ce_nats.aio.reading._range_reader import read_range
from tests.support import waiting

SECONDS = 20
until = partial(waiting.until, seconds=SECONDS)
# Longer than the limit of any test, so that no error is a timeout.
LONG = 60


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
        assert Link.of(nc).permissions.listeners == {}
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
async def test_denial_fails_the_sink(restricted_server):
    async def connect(client):
        await client.connect(restricted_server.url, user="publisher", password="p")

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
async def test_denied_read_of_a_range_is_an_error(restricted_server, user, subject):
    """By the reader of the Spark source, which retries after other errors."""

    async def connect(client):
        await client.connect(restricted_server.url, user=user, password="p")

    async with denied(subject):
        async for _ in read_range(connect, StreamRange("Work", 1, 2), request_timeout=LONG, retry_timeout=LONG):
            pass


async def test_denied_publishes_have_one_listener_and_denied_subscriptions_all(connected):
    """The latest listener comes first: a request is part of the operation of an earlier listener."""
    called = []

    def listener(name, is_handled):
        def listen(denial):
            called.append(name)
            return is_handled

        return listen

    async with connected("reader") as (nc, _):
        link = Link.of(nc)
        for name, is_handled in (("first", True), ("second", True), ("third", False)):
            link.permissions.add(listener(name, is_handled))
        assert link.permissions.notify(Denial("publish", "a"))
        assert called == ["third", "second"]
        called.clear()
        assert link.permissions.notify(Denial("subscription", "a"))
        assert called == ["third", "second", "first"]


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
        link = Link.of(nc)
        with denial(nc, "Orders.Paid", "My.Inbox") as failed:
            assert link.permissions.notify(denied) is (text is not None)
            if text is not None:
                assert failed.result().message == f"the server denies permission to {text}"


async def test_denied_publishes_without_an_operation_are_raised_once(connected):
    async with connected("unrestricted") as (nc, reported):
        link = Link.of(nc)
        link.permissions.check_publishes()
        for count, end in ((1, ""), (2, " (and 1 more)"), (3, " (and 2 more)")):
            for number in range(count):
                error = f'nats: permissions violation for publish to "orders.{number}"'
                await nc._error_cb(nats.errors.Error(error))
            with pytest.raises(DeliveryError) as info:
                link.permissions.check_publishes()
            assert info.value.message == f"the server denies permission to publish to 'orders.0'{end}"
            link.permissions.check_publishes()
        error = 'nats: permissions violation for subscription to "orders.*" using queue "q"'
        await nc._error_cb(nats.errors.Error(error))
        link.permissions.check_publishes()
        assert len(reported) == 7
