import asyncio
from contextlib import asynccontextmanager

import nats
import nats.errors
import pytest

from ce_nats import ContentMode, EncodeError, SubjectTemplate, from_nats_message
from ce_nats.aio import DeliveryError, request, respond, subscribe
from ce_nats.extensions.tracing import TraceContext
from ce_nats.testing import NatsServer

TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01", "rojo=1")
HOP = TraceContext("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01", "congo=2")


@asynccontextmanager
async def responder(nc, subject, answer):
    """Run a responder that calls ``answer(received)`` for each request; its exception is raised when the block ends."""

    async def work(requests):
        async for received in requests:
            await answer(received)

    async with await subscribe(nc, subject) as requests:
        task = asyncio.create_task(work(requests))
        yield
    await task


@pytest.fixture
def ask(nc, subject, make_event):
    """Send a request, and return the reply."""

    async def ask(answer, event=None, **options):
        async with responder(nc, subject, answer):
            return await request(nc, event or make_event(1, "?"), subject, **options)

    return ask


@pytest.mark.parametrize("mode", ContentMode)
@pytest.mark.parametrize("reply_mode", ContentMode)
async def test_request_and_reply_are_events(ask, make_event, mode, reply_mode):
    async def answer(received):
        assert received.event.get_data() == "?"
        await respond(received, make_event(2, {"a": 1}), mode=reply_mode)

    received = await ask(answer, mode=mode)
    assert (received.event.get_id(), received.event.get_data()) == ("event 2", {"a": 1})


async def test_request_and_reply_in_protobuf_format(ask, make_event):
    async def answer(received):
        assert received.event.get_data() == "?"
        await respond(received, make_event(2, {"a": 1}), mode="structured", format="protobuf")

    received = await ask(answer, mode="structured", format="protobuf")
    assert received.message.headers["Content-Type"] == "application/cloudevents+protobuf"
    assert (received.event.get_id(), received.event.get_data()) == ("event 2", {"a": 1})


@pytest.mark.parametrize("correlate", [True, False])
async def test_reply_does_not_inherit_headers_of_the_request(ask, make_event, correlate):
    """Except attributes of the Correlation extension, with ``correlate=True``."""

    async def answer(received):
        assert received.message.headers["X-Token"] == "1"
        await respond(received, make_event(2), correlate=correlate)

    asked = make_event(1, "?", secret="mine", datacontenttype="text/plain", correlationid="c")
    reply = await ask(answer, asked, headers={"X-Token": "1", "Nats-Msg-Id": "2"})
    own = {"ce-specversion": "1.0", "ce-id": "event%202", "ce-source": "/tests", "ce-type": "com.example.test"}
    extensions = {"ce-causationid": "event%201", "ce-correlationid": "c"} if correlate else {}
    assert (reply.message.headers, reply.message.data) == ({**own, **extensions}, b"")


async def test_respond_of_nats_py_repeats_headers_of_the_request(nc, subject, make_event):
    """The reason for aio.respond(): a reply of nats-py decodes as the event of the request."""

    async def answer(message):
        await message.respond(b'"the answer"')

    await nc.subscribe(subject, cb=answer)
    reply = await request(nc, make_event(1, "?"), subject)
    assert (reply.event.get_id(), reply.message.data) == ("event 1", b'"the answer"')


async def test_trace_of_the_request_continues_in_the_reply(ask, make_event):
    """The event keeps its original trace; the headers have the trace of this hop."""

    async def answer(received):
        assert received.message.headers["traceparent"] == HOP.traceparent
        assert received.event.get_extension("traceparent") == TRACE.traceparent
        await respond(received, make_event(2))

    reply = await ask(answer, make_event(1, **TRACE.fields()), trace=HOP)
    assert reply.event.get_extension("traceparent") == TRACE.traceparent
    assert reply.event.get_extension("tracestate") == "rojo=1"
    assert reply.message.headers["traceparent"] == HOP.traceparent


async def test_trace_and_correlation_of_the_reply_are_kept(ask, make_event):
    own = {"traceparent": HOP.traceparent, "causationid": "x", "correlationid": "y"}

    async def answer(received):
        await respond(received, make_event(2, **own))

    reply = await ask(answer, make_event(1, **TRACE.fields(), correlationid="z"))
    attributes = reply.event.get_attributes()
    assert {name: attributes[name] for name in own} == own
    assert "tracestate" not in attributes


async def test_respond_accepts_messages_of_nats_py(nc, subject, make_event):
    async def answer(message):
        await respond(message, make_event(2))

    await nc.subscribe(subject, cb=answer)
    event = (await request(nc, make_event(1), subject)).event
    assert event.get_extension("causationid") == "event 1"
    # The request need not be an event.
    assert "causationid" not in from_nats_message(await nc.request(subject, b"no event")).get_attributes()


async def test_reply_that_is_not_an_event_has_an_error(nc, subject, make_event):
    async def answer(message):
        await nc.publish(message.reply, b"what?")

    await nc.subscribe(subject, cb=answer)
    reply = await request(nc, make_event(), subject)
    assert (reply.error.code, reply.message.data) == ("not-a-cloudevent", b"what?")


async def test_status_message_is_an_error(nc, subject, make_event, send_raw):
    async def answer(message):
        send_raw(message.reply, b"Status: 408\r\n")

    await nc.subscribe(subject, cb=answer)
    with pytest.raises(DeliveryError) as info:
        await request(nc, make_event(), subject)
    assert info.value.code == "unexpected-answer"


async def test_no_responders(nc, subject, make_event):
    with pytest.raises(DeliveryError) as info:
        await request(nc, make_event(), SubjectTemplate(subject + ".{type:tokens}"))
    assert info.value.code == "no-responders"
    assert str(info.value).startswith(f"no-responders: {subject}.com.example.test: ")
    assert isinstance(info.value.__cause__, nats.errors.NoRespondersError)


async def test_timeout(nc, subject, make_event):
    await nc.subscribe(subject)
    with pytest.raises(DeliveryError) as info:
        await request(nc, make_event(), subject, timeout=0.05)
    assert info.value.code == "timeout"


async def test_respond_needs_a_request(nc, js, subject, stream, make_event):
    """JetStream's messages have a reply subject for acknowledgements: a reply would be an acknowledgement."""
    plain = await nc.subscribe(subject)
    consumer = await js.subscribe(subject, stream=stream, manual_ack=True)
    await nc.publish(subject, b"{}")
    for subscription in (plain, consumer):
        with pytest.raises(EncodeError) as info:
            await respond(await subscription.next_msg(), make_event())
        assert info.value.code == "invalid-subject"


async def test_request_and_reply_without_headers(make_event):
    """Sent as JSON. Servers without headers send no no-responders status."""

    async def answer(received):
        await respond(received, make_event(2), headerless=True)

    with NatsServer(config="no_header_support: true") as server:
        nc = await nats.connect(server.url)
        async with responder(nc, "s", answer):
            reply = await request(nc, make_event(1, correlationid="c"), "s", headerless=True, trace=TRACE)
        assert reply.message.headers is None
        attributes = reply.event.get_attributes()
        assert (attributes["correlationid"], attributes["traceparent"]) == ("c", TRACE.traceparent)
        with pytest.raises(EncodeError) as info:
            await request(nc, make_event(), "s")
        assert info.value.code == "headers-not-supported"
        await nc.close()
