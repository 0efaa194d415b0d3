import asyncio
import sys
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js.errors import APIError

from ce_nats import ContentMode, EncodeError, SubjectTemplate, from_nats_message
from ce_nats.aio import DeliveryError, Publisher, PublishError, publish
from ce_nats.aio import jetstream as ce_js
from ce_nats.extensions.tracing import TraceContext
from ce_nats.testing import NatsServer
from tests.support.batches import ids
from tests.support.broker import ignore
from tests.support.pausing import paused
from tests.support.reading import read as stored
from tests.support.waiting import until


class Listener:
    """
    Receives published messages, and acknowledges when a test asks for it.

    Attributes:
        messages: Received messages, in order.
    """

    def __init__(self):
        self.messages = []
        self._came = asyncio.Condition()

    async def take(self, message):
        async with self._came:
            self.messages.append(message)
            self._came.notify_all()

    async def until(self, count):
        async with self._came:
            await asyncio.wait_for(self._came.wait_for(lambda: len(self.messages) >= count), 60)

    async def acknowledge(self, number):
        message = self.messages[number]
        await message._client.publish(message.reply, b'{"stream":"S","seq":%d}' % (number + 1))


@pytest.fixture
async def listener(nc, subject):
    listener = Listener()
    await nc.subscribe(subject, cb=listener.take)
    return listener


# --- Published events ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ContentMode)
async def test_all_events_are_stored_in_order(js, subject, stream, make_event, mode):
    async with Publisher(js, mode=mode, window=7) as publisher:
        acks = [await publisher.publish(make_event(number), subject) for number in range(500)]
    assert await ids(js, stream) == [f"event {number}" for number in range(500)]
    assert [ack.result().seq for ack in acks] == list(range(1, 501))
    assert (publisher.acknowledged, publisher.duplicates) == (500, 0)


async def test_structured_mode_in_protobuf_format(js, subject, stream, make_event):
    async with Publisher(js, mode="structured", format="protobuf") as publisher:
        await publisher.publish(make_event(1, {"a": 1}), subject)
    await ce_js.publish(js, make_event(2, {"a": 2}), subject, mode="structured", format="protobuf")
    messages = await stored(js, stream)
    assert {dict(message.headers)["Content-Type"] for message in messages} == {"application/cloudevents+protobuf"}
    assert [from_nats_message(message).get_data() for message in messages] == [{"a": 1}, {"a": 2}]


async def test_messages_equal_those_of_publish(js, subject, stream, make_event):
    """Publisher writes frames without nats-py's publish(); the stored messages must not differ."""
    sent = [
        (make_event(1, {"a": "ü"}, subject="Euro € 😀"), None),
        (make_event(2), {"Nats-Expected-Stream": stream, "Trace": "é"}),
        (make_event(3, b"\r\n\0", datacontenttype="a/b"), [("Tag", "ä"), ("tag", "2"), ("Tag", "3")]),
    ]
    async with Publisher(js, dedup=None) as publisher:
        for event, headers in sent:
            await publisher.publish(event, subject, headers=headers)
    for event, headers in sent:
        await ce_js.publish(js, event, subject, headers=headers, dedup=None)
    contents = [(message.headers, message.data) for message in await stored(js, stream)]
    assert contents[:3] == contents[3:]


async def test_duplicates_are_counted(js, subject, stream, make_event):
    for expected in (0, 10):
        async with Publisher(js) as publisher:
            for number in range(10):
                await publisher.publish(make_event(number), subject)
        assert (publisher.acknowledged, publisher.duplicates) == (10, expected)
    assert len(await stored(js, stream)) == 10


async def test_options_apply_to_a_single_event(js, subject, stream, make_event):
    trace = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01")
    headers = {"Nats-Expected-Last-Sequence": "0"}
    async with Publisher(js, dedup=ce_js.event_id) as publisher:
        await publisher.publish(make_event(), SubjectTemplate(f"{subject}.{{type}}"), headers=headers, trace=trace)
    (message,) = await stored(js, stream)
    assert message.subject == f"{subject}.com%2Eexample%2Etest"
    found = dict(message.headers)
    assert (found["traceparent"], found["Nats-Msg-Id"]) == (trace.traceparent, "event 1")
    assert headers == {"Nats-Expected-Last-Sequence": "0"}


async def test_tasks_share_a_window(js, subject, stream, make_event):
    async def work(first):
        for number in range(first, first + 50):
            await publisher.publish(make_event(number), subject)

    async with Publisher(js, window=3) as publisher:
        await asyncio.gather(*(work(first) for first in range(0, 500, 50)))
    assert sorted(await ids(js, stream)) == sorted(f"event {number}" for number in range(500))


async def test_headerless_messages(make_event):
    with NatsServer(jetstream=True, config="no_header_support: true") as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        async with Publisher(js, dedup=None, headerless=True) as publisher:
            await publisher.publish(make_event(), "s")
            for wrong in (Publisher(js, dedup=None), Publisher(js, headerless=True)):
                with pytest.raises(EncodeError) as info:
                    await wrong.publish(make_event(), "s")
                assert info.value.code == "headers-not-supported"
        message = await js.get_msg("S", 1)
        assert message.headers is None
        assert from_nats_message(message).get_id() == "event 1"
        await nc.close()


# --- The window ------------------------------------------------------------------------------------------------------


async def test_publish_waits_for_a_slot(js, subject, listener, make_event):
    async with Publisher(js, window=2) as publisher:
        for number in range(2):
            await publisher.publish(make_event(number), subject)
        third = asyncio.create_task(publisher.publish(make_event(2), subject))
        await listener.until(2)
        assert not third.done()
        await listener.acknowledge(1)
        await third
        await listener.until(3)
        assert publisher.acknowledged == 1
        await listener.acknowledge(0)
        await listener.acknowledge(2)
    assert publisher.acknowledged == 3


async def test_flush_waits_for_all_acknowledgements(js, subject, stream, make_event):
    async with Publisher(js) as publisher:
        for number in range(100):
            await publisher.publish(make_event(number), subject)
        await publisher.flush()
        assert publisher.acknowledged == 100


async def test_block_with_an_exception_waits_for_acknowledgements(js, subject, listener, make_event):
    async def leave():
        async with publisher:
            await publisher.publish(make_event(0), subject)
            raise ZeroDivisionError

    publisher = Publisher(js)
    leaving = asyncio.create_task(leave())
    await listener.until(1)
    await listener.acknowledge(0)
    with pytest.raises(ZeroDivisionError):
        await leaving
    assert (publisher.acknowledged, publisher.failures) == (1, [])


async def test_cancelled_block_does_not_wait(js, subject, listener, make_event):
    async def hang():
        async with publisher:
            acks.append(await publisher.publish(event, subject))
            await asyncio.Event().wait()

    publisher, event, acks = Publisher(js, ack_timeout=60), make_event(1), []
    hanging = asyncio.create_task(hang())
    await listener.until(1)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    (failure,) = publisher.failures
    assert (failure.event, failure.error.code, acks[0].cancelled()) == (event, "timeout", True)


async def test_future_may_be_cancelled(js, subject, listener, make_event):
    """As ``asyncio.wait_for()`` does; the event stays in flight."""
    async with Publisher(js) as publisher:
        (await publisher.publish(make_event(), subject)).cancel()
        await listener.until(1)
        await listener.acknowledge(0)
    assert publisher.acknowledged == 1


async def test_no_tasks_are_left_and_one_subscription_for_all_publishers(nc, js, subject, stream, make_event):
    tasks, subscriptions = asyncio.all_tasks(), len(nc._subs)
    for _ in range(2):
        async with Publisher(js) as publisher:
            await publisher.publish(make_event(), subject)
        assert (asyncio.all_tasks(), len(nc._subs)) == (tasks, subscriptions + 1)


# --- Failures --------------------------------------------------------------------------------------------------------


async def test_failure_has_its_event(js, subject, stream, make_event):
    """Raised at the end of the block; the other events are stored."""
    events = [make_event(number) for number in range(5)]
    publisher = await Publisher(js, retry_timeout=1).__aenter__()
    for event in events:
        await publisher.publish(event, f"{subject}.x" if event is not events[3] else f"unbound.{subject}")
    with pytest.raises(PublishError) as info:
        await publisher.__aexit__(None, None, None)
    (failure,) = info.value.failures
    assert (failure.event, failure.subject) == (events[3], f"unbound.{subject}")
    assert info.value.code == failure.error.code == "no-responders"
    named = "; event with id 'event 3', source '/tests', type 'com.example.test'"
    assert info.value.message == failure.error.message + named
    assert publisher.acknowledged == 4
    assert await ids(js, stream) == ["event 0", "event 1", "event 2", "event 4"]


async def test_failure_is_raised_once(js, subject, stream, make_event):
    """By the next publish(), which sends nothing; later calls work."""
    async with Publisher(js) as publisher:
        ack = await publisher.publish(make_event(0), f"unbound.{subject}")
        await asyncio.wait([ack])
        with pytest.raises(PublishError):
            await publisher.publish(make_event(1), subject)
        await publisher.publish(make_event(2), subject)
    assert await ids(js, stream) == ["event 2"]


@pytest.mark.parametrize("answer", [b"thanks", b"", b"[]", b"{}", b'"error"', b'{"error":5}', b'{"error":{}}', b"\xff"])
async def test_reply_that_is_not_a_puback_is_a_failure(nc, js, subject, make_event, answer):
    async def reply(message):
        await nc.publish(message.reply, answer)

    await nc.subscribe(subject, cb=reply)
    with pytest.raises(PublishError) as info:
        async with Publisher(js) as publisher:
            await publisher.publish(make_event(), subject)
    assert info.value.code == "unexpected-answer"


async def test_invalid_event_is_not_sent(nc, js, subject, stream, make_event):
    async with Publisher(js) as publisher:
        for event, headers, code in [
            (make_event(x=1.5), None, "invalid-attribute-type"),
            (make_event(data=b"x" * nc.max_payload), None, "payload-too-large"),
            (make_event(), {"x": "y" * 2**16}, "headers-too-large"),
            (make_event(), {"a": "b\r\nc: d"}, "invalid-header-value"),
            (make_event(), {"a(b)": "c"}, "invalid-header-name"),
            (make_event(), {"a": "\u00a0b"}, "invalid-header-value"),
        ]:
            with pytest.raises(EncodeError) as info:
                await publisher.publish(event, subject, headers=headers)
            assert info.value.code == code
        await publisher.publish(make_event(), subject)
    assert len(await stored(js, stream)) == 1


async def test_closed_connection_fails_pending_messages(server, subject, make_event):
    """The caller does not wait for acknowledgements that cannot arrive."""
    nc = await nats.connect(server.url)
    await nc.subscribe(subject)
    publisher = await Publisher(nc.jetstream(), ack_timeout=60, retry_timeout=60).__aenter__()
    await publisher.publish(make_event(0), subject)
    await nc.close()
    with pytest.raises(DeliveryError):
        await publisher.publish(make_event(1), subject)
    with pytest.raises(PublishError) as info:
        await publisher.__aexit__(None, None, None)
    assert [failure.event.get_id() for failure in info.value.failures] == ["event 0"]
    with pytest.raises(DeliveryError):
        await Publisher(nc.jetstream()).__aenter__()


@pytest.mark.parametrize("end", ["close", "drain"])
@pytest.mark.parametrize("allow_batched", [False, True])
@pytest.mark.parametrize("count", [1, 33, 300])
async def test_accepted_events_are_stored_or_reported_if_the_connection_ends_next(
    server, js, subject, make_event, count, allow_batched, end
):
    """
    Although their acknowledgements do not arrive, nor those that a batch waits for.

    A drained connection loses none. A closed one may: if acknowledgements have arrived that it has not read, the system
    resets it, and the server does not read the rest.
    """
    stream = subject.replace(".", "_")
    await js.add_stream(name=stream, subjects=[subject], storage="memory", allow_batched=allow_batched)
    nc = await nats.connect(server.url)
    failures = []
    try:
        async with Publisher(nc.jetstream(), window=400) as publisher:
            for number in range(count):
                await publisher.publish(make_event(number), subject)
            await getattr(nc, end)()
    except PublishError as error:
        failures = error.failures
    expected = [make_event(number).get_id() for number in range(count)]

    async def are_stored():
        return await ids(js, stream) == expected

    if end == "drain":
        await until(are_stored)
    found = await ids(js, stream)
    assert found == expected[: len(found)]
    assert publisher.acknowledged <= len(found)
    assert [failure.event.get_id() for failure in failures] == expected[publisher.acknowledged :]
    await js.delete_stream(stream)


async def test_events_are_not_overtaken_by_core_publishes(nc, js, subject, stream, make_event):
    async with Publisher(js) as publisher:
        for number in range(40):
            await publisher.publish(make_event(number), subject)
            if number % 7 == 0:
                await publish(nc, make_event(f"core {number}"), subject)
    found = await ids(js, stream)
    expected = [[f"event {number}", f"event core {number}"][: 1 + (number % 7 == 0)] for number in range(40)]
    assert len(found) == 46
    assert found == [name for names in expected for name in names]


async def test_publish_outside_of_the_block_is_an_error(js, subject, stream, make_event):
    publisher = Publisher(js)
    with pytest.raises(DeliveryError):
        await publisher.publish(make_event(), subject)
    async with publisher:
        await publisher.publish(make_event(), subject)
    with pytest.raises(DeliveryError):
        await publisher.publish(make_event(2), subject)
    assert await ids(js, stream) == ["event 1"]


# --- Lost messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dedup", "headers"),
    [(None, None), (ce_js.event_id, {"Nats-Expected-Last-Subject-Sequence": "0"})],
    ids=["no id", "expectation"],
)
async def test_message_without_deduplication_is_sent_once(js, subject, listener, make_event, dedup, headers):
    with pytest.raises(PublishError) as info:
        async with Publisher(js, ack_timeout=0.05, dedup=dedup) as publisher:
            await publisher.publish(make_event(), subject, headers=headers)
    assert info.value.code == "timeout"
    assert len(listener.messages) == 1


async def test_resent_message_with_expectations(nc, js, subject, stream):
    """The message is stored, and the server refuses the copy since 2.12; before, it was a duplicate."""
    headers = {"Nats-Msg-Id": "1", "Nats-Expected-Last-Sequence": "0"}
    await js.publish(subject, b"", headers=headers)
    version = nc.connected_server_version
    if (version.major, version.minor) < (2, 12):
        assert (await js.publish(subject, b"", headers=headers)).duplicate
        return
    with pytest.raises(APIError) as info:
        await js.publish(subject, b"", headers=headers)
    assert info.value.err_code == 10071


async def test_resending_ends_after_retry_timeout(js, subject, listener, make_event):
    with pytest.raises(PublishError) as info:
        async with Publisher(js, ack_timeout=0.05, retry_timeout=1) as publisher:
            await publisher.publish(make_event(), subject)
    assert info.value.code == "timeout"
    assert len(listener.messages) > 1


@asynccontextmanager
async def connection(server, **options):
    nc = await nats.connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, error_cb=ignore, **options)
    try:
        yield nc
    finally:
        await nc.close()


async def test_events_that_a_busy_server_refuses_are_resent(make_event):
    """The server refuses messages while it has too many that it has not stored yet."""
    with NatsServer(jetstream=True, config="jetstream { max_buffered_msgs: 20 }") as server:
        async with connection(server) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            async with Publisher(js, window=200) as publisher:
                for number in range(500):
                    await publisher.publish(make_event(number), "s")
            assert (publisher.acknowledged, publisher.duplicates) == (500, 0)
            assert sorted(await ids(js, "S")) == sorted(f"event {number}" for number in range(500))


# nats-py buffers 2 MiB by default while disconnected; with 0 it rejects messages.
@pytest.mark.parametrize("pending_size", [2 * 2**20, 0])
async def test_killed_server_loses_and_duplicates_no_event(make_event, pending_size):
    """The server is killed with a window in flight and restarted: each event is stored exactly once."""
    count = 3000
    with NatsServer(jetstream=True) as server:
        async with connection(server, pending_size=pending_size) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            async with Publisher(js, window=200, ack_timeout=0.5) as publisher:
                for number in range(count):
                    if number in (1000, 2000):
                        server.kill()
                        asyncio.get_running_loop().call_later(0.2, server.restart)
                    await publisher.publish(make_event(number), "s")
            assert publisher.acknowledged == count
            assert sorted(await ids(js, "S")) == sorted(f"event {number}" for number in range(count))


@pytest.mark.faults
@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2),
    reason="CVE-2024-12254: this version of Python does not limit what asyncio buffers",
)
@pytest.mark.parametrize("allow_batched", [False, True])
async def test_large_events_wait_for_the_network(make_event, allow_batched):
    """Before the window is full, which would be 500 MB in memory, twice."""
    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)
        await nc.jetstream().add_stream(name="S", subjects=["s"], allow_batched=allow_batched)
        async with Publisher(nc.jetstream(), retry_timeout=60) as publisher:
            await publisher.publish(make_event(0), "s")
            await publisher.flush()

            async def publish_all():
                for number in range(1, 100):
                    await publisher.publish(make_event(number, b"x" * 500_000), "s")

            with paused(server):
                publishing = asyncio.create_task(publish_all())
                await until(lambda: nc.pending_data_size > 2**21)
                sent = len(publisher._acks.pending)
                await asyncio.sleep(0.3)
                assert len(publisher._acks.pending) == sent < 80
            await asyncio.wait_for(publishing, 60)
        assert publisher.acknowledged == 100
        await nc.close()
