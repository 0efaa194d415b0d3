import asyncio

import nats
import nats.errors
import pytest

from ce_nats import ContentMode, EncodeError, SubjectTemplate, Timestamp, from_nats_message, sync
from ce_nats.aio import (
    DeliveryError,
    Publisher,
    PullConsumer,
    connect,
    flush,
    jetstream,
    publish,
    replay,
    request,
    respond,
    subscribe,
)
from ce_nats.aio._connect import disconnect
from ce_nats.aio.jetstream import read_stream
from ce_nats.extensions.tracing import TraceContext, trace_of_event, trace_of_headers
from ce_nats.message import StoredMessage
from ce_nats.testing import NatsServer
from tests.support.broker import ignore
from tests.support.reading import until_stored


@pytest.fixture
async def subscription(nc, subject):
    return await nc.subscribe(subject)


async def test_binary_mode_sends_headers_and_payload(nc, subject, subscription, make_event):
    event = make_event(7, {"a": "ü"}, subject="Euro € 😀", datacontenttype="application/json")
    await publish(nc, event, subject)
    message = await subscription.next_msg()
    assert message.headers == {
        "ce-specversion": "1.0",
        "ce-id": "event%207",
        "ce-source": "/tests",
        "ce-type": "com.example.test",
        "ce-subject": "Euro%20%E2%82%AC%20%F0%9F%98%80",
        "ce-datacontenttype": "application/json",
    }
    assert message.data == '{"a":"ü"}'.encode()
    assert from_nats_message(message).get_subject() == "Euro € 😀"


async def test_structured_mode_sends_one_header_and_json(nc, subject, subscription, make_event):
    await publish(nc, make_event(7, b"\0\xff"), subject, mode=ContentMode.STRUCTURED)
    message = await subscription.next_msg()
    assert message.headers == {"Content-Type": "application/cloudevents+json"}
    assert from_nats_message(message).get_data() == b"\0\xff"


async def test_structured_mode_in_protobuf_format(nc, subject, subscription, make_event):
    await publish(nc, make_event(7, b"\0\xff", n=1), subject, mode="structured", format="protobuf")
    message = await subscription.next_msg()
    assert message.headers == {"Content-Type": "application/cloudevents+protobuf"}
    event = from_nats_message(message)
    assert (event.get_extension("n"), event.get_data()) == (1, b"\0\xff")


async def test_reply_subject_and_additional_headers_are_sent(nc, subject, subscription, make_event):
    await publish(nc, make_event(), subject, reply="answers.here", headers={"Trace": "ä"})
    message = await subscription.next_msg()
    assert message.reply == "answers.here"
    assert message.headers["Trace"] == "ä"


async def test_headers_of_the_caller_are_not_modified(nc, subject, make_event):
    headers = {"Trace": "1"}
    await publish(nc, make_event(), subject, headers=headers)
    assert headers == {"Trace": "1"}


async def test_repeated_headers_are_sent_in_order(nc, js, subject, stream, make_event):
    """nats-py sends one value per name of a dict; Headers are sent completely."""
    await publish(nc, make_event(), subject, headers=[("Tag", "b"), ("tag", "c"), ("Tag", "a")])
    await until_stored(js, stream, 1)
    ((message,),) = [batch async for batch in read_stream(js, stream)]
    assert [pair for pair in message.headers if pair[0].lower() == "tag"] == [("Tag", "b"), ("tag", "c"), ("Tag", "a")]


@pytest.mark.parametrize("value", [" x", "x ", "x\t", "\u00a0x", "x\u2003"], ids=ascii)
async def test_header_value_that_nats_py_would_strip_is_rejected(nc, subject, make_event, value):
    with pytest.raises(EncodeError) as info:
        await publish(nc, make_event(), subject, headers={"Trace": value})
    assert (info.value.code, info.value.header) == ("invalid-header-value", "Trace")


async def test_header_name_that_nats_py_rejects_is_an_encode_error(nc, subject, make_event):
    """ADR-4 allows more characters in names than nats-py does."""
    with pytest.raises(EncodeError) as info:
        await publish(nc, make_event(), subject, headers={"a(b)": "1"})
    assert (info.value.code, info.value.header) == ("invalid-header-name", "a(b)")


async def test_subject_must_not_be_empty(nc, make_event):
    with pytest.raises(EncodeError) as info:
        await publish(nc, make_event(), "")
    assert info.value.code == "invalid-subject"


async def test_invalid_event_is_not_sent(nc, subject, subscription, make_event):
    with pytest.raises(EncodeError):
        await publish(nc, make_event(number=1.5, ext=1.5), subject)
    await publish(nc, make_event(2), subject)
    assert from_nats_message(await subscription.next_msg()).get_id() == "event 2"


@pytest.mark.parametrize("mode", ContentMode)
async def test_headers_count_towards_max_payload(make_event, mode):
    """The largest message arrives; one byte more is rejected before it is sent, and the connection stays open."""
    cut = asyncio.Event()

    async def on_closed() -> None:
        cut.set()

    with NatsServer(config="max_payload: 2000") as server:
        nc = await nats.connect(server.url, allow_reconnect=False, closed_cb=on_closed, error_cb=ignore)
        subscription = await nc.subscribe("s")

        async def publish_up_to(size: int) -> None:
            for length in range(1500, size + 1):
                await publish(nc, make_event(data="x" * length, datacontenttype="text/plain"), "s", mode=mode)

        with pytest.raises(EncodeError) as info:
            await publish_up_to(2000)
        assert info.value.code == "payload-too-large"
        assert info.value.message == "headers and payload must have at most 2000 bytes for this server, got 2001"
        await flush(nc)
        sent = subscription.pending_msgs
        assert sent > 0
        while subscription.pending_msgs:
            message = await subscription.next_msg()
        assert from_nats_message(message).get_data() == "x" * (1500 + sent - 1)

        # nats-py checks the payload only, and the server closes the connection for one byte too many.
        await nc.publish("s", message.data + b"x", headers=message.headers)
        await asyncio.wait_for(cut.wait(), 60)


async def test_flush_waits_for_all_published_messages(nc, subject, subscription, make_event):
    """nats-py's flush() returns before messages that were published in the same loop iteration arrive."""
    event = make_event(data="x" * 1000, datacontenttype="text/plain")
    await flush(nc)
    for _ in range(500):
        await publish(nc, event, subject)
    await flush(nc)
    assert subscription.pending_msgs == 500


async def test_publish_on_a_closed_connection_is_a_delivery_error(server, make_event):
    nc = await nats.connect(server.url)
    await nc.close()
    with pytest.raises(DeliveryError) as info:
        await publish(nc, make_event(), "s")
    assert info.value.code == "connection-closed"
    assert isinstance(info.value.__cause__, nats.errors.ConnectionClosedError)


async def test_full_buffer_is_a_delivery_error(make_event):
    """While disconnected, nats-py buffers messages up to a limit."""
    lost = asyncio.Event()

    async def note():
        lost.set()

    with NatsServer() as server:
        nc = await connect(server.url, pending_size=1000, max_reconnect_attempts=None, disconnected_cb=note)
        server.kill()
        await asyncio.wait_for(lost.wait(), 30)
        pending = [publish(nc, make_event(data=b"x" * 200), "s") for _ in range(10)]
        with pytest.raises(DeliveryError) as info:
            await asyncio.gather(*pending)
        assert info.value.code == "buffer-full"
        await disconnect(nc)


# --- Servers without headers -----------------------------------------------------------------------------------------


@pytest.fixture
async def headerless():
    with NatsServer(config="no_header_support: true") as server:
        nc = await nats.connect(server.url, allow_reconnect=False, error_cb=ignore)
        yield nc
        await nc.close()


async def test_headers_are_rejected_if_the_server_does_not_support_them(headerless, make_event):
    """If they were sent, the server would close the connection, as the last lines show."""
    for mode in ContentMode:
        with pytest.raises(EncodeError) as info:
            await publish(headerless, make_event(), "s", mode=mode)
        assert info.value.code == "headers-not-supported"
    await flush(headerless)
    await headerless.publish("s", b"", headers={"a": "b"})
    with pytest.raises(DeliveryError):
        await flush(headerless)


async def test_headerless_sends_json_without_headers(headerless, make_event):
    subscription = await headerless.subscribe("s")
    for mode in ContentMode:
        await publish(headerless, make_event(7, b"\0"), "s", mode=mode, headerless=True)
        message = await subscription.next_msg()
        assert message.headers is None
        assert (from_nats_message(message).get_id(), from_nats_message(message).get_data()) == ("event 7", b"\0")
    with pytest.raises(EncodeError) as info:
        await publish(headerless, make_event(), "s", headers={"Trace": "1"}, headerless=True)
    assert (info.value.code, info.value.header) == ("headers-not-supported", "Trace")
    await publish(headerless, make_event(), "s", mode="structured", format="json", headerless=True)
    with pytest.raises(EncodeError, match="without them format must be 'json', got 'protobuf'") as info:
        await publish(headerless, make_event(), "s", mode="structured", format="protobuf", headerless=True)
    assert info.value.code == "headers-not-supported"


async def test_headerless_sends_headers_if_the_server_supports_them(nc, subject, subscription, make_event):
    await publish(nc, make_event(), subject, headerless=True)
    assert (await subscription.next_msg()).headers["ce-type"] == "com.example.test"


# --- Subjects and traces ---------------------------------------------------------------------------------------------


async def test_subject_is_built_from_a_template(nc, subject, make_event):
    template = SubjectTemplate(f"{subject}.{{source}}.{{type:tokens}}")
    subscription = await nc.subscribe(template.wildcard)
    await publish(nc, make_event(source="/a.b > *"), template)
    message = await subscription.next_msg()
    assert message.subject == f"{subject}.%2Fa%2Eb%20%3E%20%2A.com.example.test"
    assert template.parse(message.subject) == {"source": "/a.b > *", "type": "com.example.test"}


async def test_placeholder_in_a_plain_string_is_rejected_everywhere(nc, js, server, make_event):
    """Nothing is sent: "orders.{type}" would be published verbatim."""
    everything = await nc.subscribe("orders.>")
    event, subject = make_event(), "orders.{type}"
    stored = StoredMessage("a", "", [], b"", "S", 1, Timestamp("2026-01-01T00:00:00Z"))

    async def publisher():
        async with Publisher(js) as publisher:
            await publisher.publish(event, subject)

    for publishing in (
        publish(nc, event, subject),
        jetstream.publish(js, event, subject),
        publisher(),
        request(nc, event, subject),
        asyncio.to_thread(_publish_in_thread, server.url, event, subject),
        replay(js, [stored], subject=subject, acknowledged=False),
    ):
        with pytest.raises(EncodeError, match="use SubjectTemplate to fill in attributes") as info:
            await publishing
        assert info.value.code == "invalid-subject"
    with pytest.raises(EncodeError, match="use SubjectTemplate to fill in attributes"):
        PullConsumer(js, "S", "c", dead_letter=subject)
    await flush(nc)
    assert everything.pending_msgs == 0


def _publish_in_thread(url, event, subject):
    with sync.connect(url) as connection:
        connection.publish(event, subject)


async def test_braces_in_existing_subjects_are_accepted(nc, make_event):
    """Subjects of captured messages and of inboxes may contain braces."""
    async with await subscribe(nc, "orders.>") as received, await subscribe(nc, "inbox.{1}") as replies:
        stored = StoredMessage("orders.{type}", "", [], b"{}", "S", 1, Timestamp("2026-01-01T00:00:00Z"))
        await replay(nc.jetstream(), [stored], acknowledged=False)
        assert (await anext(received)).subject == "orders.{type}"
        await publish(nc, make_event(), "orders.a", reply="inbox.{1}")
        await respond(await anext(received), make_event(2))
        assert (await anext(replies)).event.get_id() == "event 2"


async def test_subject_that_exceeds_the_control_line_is_rejected(nc, make_event):
    """The server closes the connection for a control line longer than 4096 bytes."""
    long = "é" * 1920
    subscription = await nc.subscribe("*")
    await publish(nc, make_event(), long)
    assert (await subscription.next_msg()).subject == long
    with pytest.raises(EncodeError) as info:
        await publish(nc, make_event(), long, reply="r")
    assert info.value.code == "invalid-subject"


async def test_trace_is_sent_in_headers_and_in_the_event(nc, subject, subscription, make_event):
    trace = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01", "rojo=1")
    headers = {"X": "1"}
    await publish(nc, make_event(), subject, trace=trace, headers=headers)
    message = await subscription.next_msg()
    assert trace_of_headers(message.headers) == trace_of_event(from_nats_message(message)) == trace
    assert headers == {"X": "1"}


async def test_existing_trace_of_an_event_is_kept(nc, subject, subscription, make_event):
    began = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01")
    hop = TraceContext("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01", "rojo=1")
    await publish(nc, make_event(**began.fields()), subject, trace=hop)
    message = await subscription.next_msg()
    assert trace_of_event(from_nats_message(message)) == began
    assert trace_of_headers(message.headers) == hop
    # Headers of the caller take precedence.
    await publish(nc, make_event(), subject, trace=hop, headers=began.fields())
    assert trace_of_headers((await subscription.next_msg()).headers) == began
