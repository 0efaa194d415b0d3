"""Malformed messages, and a read loop of nats-py that has ended: each is an error, on a real server."""

import asyncio
import json
import socket
import subprocess
import sys
from base64 import b64decode

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError, EncodeError, from_nats_message, sync
from ce_nats.aio import Publisher, PullConsumer, connect, events, flush, publish, request, respond, subscribe
from ce_nats.aio.consumer import _dead_letters as deadletter
from ce_nats.aio.link._link import Link
from ce_nats.errors import DecodeError
from ce_nats.message import UnreadableHeaders
from ce_nats.testing import NatsServer
from tests.support.consuming import until_consumer

SECONDS = 30
EVENT = b'{"specversion":"1.0","id":"1","source":"s","type":"t"}'


@pytest.fixture
def send_frames(server):
    """Send raw bytes to the server, and wait until it has received them."""

    def send(*frames):
        options = json.dumps({"verbose": False, "headers": True, "no_responders": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as connection:
            lines = connection.makefile("rb")
            assert lines.readline().startswith(b"INFO ")
            connection.sendall(b"CONNECT " + options + b"\r\n" + b"".join(frames) + b"PING\r\n")
            assert lines.readline() == b"PONG\r\n"

    return send


def pub(subject, data=EVENT, reply=b""):
    return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data)


def hpub(subject, block, data=EVENT):
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(block), len(block) + len(data), block, data)


def soon(awaitable):
    return asyncio.wait_for(awaitable, SECONDS)


MALFORMED = {
    "subject": (lambda at: pub(at + b".\xff"), "invalid-utf8"),
    "reply": (lambda at: pub(at, reply=b"reply.\xff"), "invalid-utf8"),
    "a block of one byte": (lambda at: hpub(at, b"x"), "invalid-header-block"),
    "a truncated block": (lambda at: hpub(at, b"NATS/1."), "invalid-header-block"),
    "only a version": (lambda at: hpub(at, b"NATS/1.0"), "invalid-header-block"),
    "status": (lambda at: hpub(at, b"NATS/1.0 \xff\xff\xff\r\n\r\n"), "invalid-header-version"),
    "description": (lambda at: hpub(at, b"NATS/1.0 404 \xff\r\n\r\n"), "invalid-utf8"),
    "description and headers": (lambda at: hpub(at, b"NATS/1.0 404 \xff\r\nA: b\r\n\r\n"), "invalid-utf8"),
}
# nats-py cannot read these; a raw header block can be read, because the codec does not use the description of a status.
UNUSED = ("description", "description and headers")
MALFORMED_RAW = {kind: row for kind, row in MALFORMED.items() if kind not in UNUSED}
malformed = pytest.mark.parametrize(("frame", "code"), MALFORMED_RAW.values(), ids=MALFORMED_RAW)


@malformed
async def test_malformed_message_is_an_error_of_that_message(nc, subject, send_frames, frame, code):
    """On a connection of nats-py; later messages arrive on the same connection."""
    at = f"{subject}.m".encode()
    async with await subscribe(nc, f"{subject}.>") as received:
        send_frames(frame(at), frame(at), pub(at))
        for _ in range(2):
            item = await soon(anext(received))
            assert isinstance(item.error, DecodeError)
            assert item.error.code == code
            assert item.message.data == EVENT
            with pytest.raises(DecodeError):
                from_nats_message(item.message)
            assert str(item.error.code) in item._repr_html_()
        assert (await soon(anext(received))).event.get_id() == "1"
    assert nc.stats["reconnects"] == 0


@pytest.mark.parametrize("kind", UNUSED)
async def test_description_of_a_status_is_not_checked(nc, subject, send_frames, kind):
    async with await subscribe(nc, subject) as received:
        send_frames(MALFORMED[kind][0](subject.encode()))
        item = await soon(anext(received))
    assert item.event.get_id() == "1"
    assert isinstance(item.message.headers, UnreadableHeaders)


async def test_malformed_subject_keeps_the_headers(nc, subject, send_frames):
    async with await subscribe(nc, f"{subject}.>") as received:
        send_frames(hpub(subject.encode() + b".\xff", b"NATS/1.0\r\nA: b\r\n\r\n"))
        item = await soon(anext(received))
    assert item.subject == f"{subject}.\ufffd"
    assert item.message.headers == {"A": "b"}
    assert str(item.error) == f"invalid-utf8: subject {subject.encode() + b'.' + bytes([255])!r} is not valid UTF-8"


async def test_malformed_reply_subject_cannot_be_replied_to(nc, subject, send_frames, make_event):
    async with await subscribe(nc, subject) as received:
        send_frames(pub(subject.encode(), reply=b"reply.\xff"))
        item = await soon(anext(received))
    with pytest.raises(EncodeError, match="must have a reply subject"):
        await respond(item, make_event())


@pytest.mark.parametrize("kind", [kind for kind in MALFORMED if kind != "subject"])
async def test_malformed_reply_is_an_error_of_the_reply(nc, subject, send_frames, make_event, kind):
    frame, code = MALFORMED[kind]

    async def answer(message):
        await asyncio.to_thread(send_frames, frame(message.reply.encode()))

    await nc.subscribe(subject, cb=answer)
    reply = await request(nc, make_event(), subject, timeout=SECONDS)
    assert reply.error.code == code


@pytest.mark.parametrize("kind", ["subject", "a block of one byte", "a truncated block", "only a version"])
async def test_malformed_message_of_a_stream_is_dead_lettered(
    nc, js, stream, subject, dead, dead_letters, send_frames, kind
):
    """With its original bytes. (Streams store no reply subjects, and recent servers remove status lines.)"""
    frame, code = MALFORMED[kind]
    sent = frame(f"{subject}.m".encode())
    send_frames(sent, pub(subject.encode()))
    async with PullConsumer(js, stream, "c", dead_letter=dead, create=ConsumerConfig()) as consumer:
        async with await soon(anext(consumer)) as event:
            assert event.get_id() == "1"
        (letter,) = await dead_letters(1)
        await until_consumer(js, stream, lambda info: info.num_ack_pending == 0)
    headers = dict(letter.headers)
    assert headers["Dead-Letter-Error"] == code
    assert headers["Dead-Letter-Deliveries"] == "1"
    assert letter.data == EVENT
    if kind != "subject":
        assert b"\r\n" + b64decode(headers["Dead-Letter-Block"]) + EVENT in sent
    with pytest.raises(EncodeError, match="must have been UTF-8" if kind == "subject" else "incomplete"):
        await deadletter.requeue(js, letter)


async def test_control_characters_do_not_split_a_subject(nc, js, stream, subject, send_frames):
    """nats-py parses "a<VT>2" as a message of subscription 2, and others as a protocol error."""
    other = await nc.subscribe("other")
    received = events(await nc.subscribe(f"{subject}.>"))
    await nc.flush()
    for sid in range(20):
        for space in (b"\x0b", b"\x0c"):
            send_frames(pub(b"%s.a%s%d" % (subject.encode(), space, sid)), pub(b"%s.a%sb" % (subject.encode(), space)))
    async with PullConsumer(js, stream, "c", dead_letter=None, create=ConsumerConfig()) as consumer:
        for _ in range(80):
            assert (await soon(anext(received))).event.get_id() == "1"
            async with await soon(anext(consumer)):
                pass
    assert other.pending_msgs == 0
    assert nc.stats["reconnects"] == 0


def test_malformed_messages_on_a_sync_connection(server, subject, send_frames):
    with sync.connect(server.url) as nc, nc.subscribe(f"{subject}.>", timeout=SECONDS) as received:
        send_frames(
            *(frame(subject.encode() + b".m") for frame, _ in MALFORMED_RAW.values()), pub(f"{subject}.m".encode())
        )
        found = [next(received).error.code for _ in MALFORMED_RAW]
        assert found == [code for _, code in MALFORMED_RAW.values()]
        assert next(received).event.get_id() == "1"


blocks = st.one_of(
    st.binary(max_size=30).map(lambda rest: b"NATS/1.0\r\n" + rest),
    st.lists(st.sampled_from([b"a", b":", b" ", b"\xff", b"\r\n", b"\t", b"\xc3\xa9"])).map(
        lambda parts: b"NATS/1.0\r\n" + b"".join(parts)
    ),
    st.binary(max_size=30),
    st.binary(max_size=30).map(lambda rest: b"NATS/1.0" + rest),
)


@given(blocks, st.binary(max_size=10), st.binary(max_size=10))
async def test_valid_messages_are_parsed_as_by_nats_py(block, subject, reply):
    """Its functions are not called, for speed."""
    plain, watched = Client(), Client()
    Link.of(watched)
    try:
        wanted = await plain._process_headers(block)
    except Exception:
        assert isinstance(await watched._process_headers(block), UnreadableHeaders)
    else:
        assert await watched._process_headers(block) == wanted
    try:
        message = plain._build_message(7, subject, reply, b"data", None)
    except UnicodeDecodeError:
        assert isinstance(watched._build_message(7, subject, reply, b"data", None).headers, UnreadableHeaders)
    else:
        message._client = watched
        assert watched._build_message(7, subject, reply, b"data", None) == message


# --- A read loop that has ended ---------------------------------------------------------------------------------------


async def cancel_reading(nc, server):
    """Cancel every task, as Ctrl-C does before Python 3.11."""
    nc._reading_task.cancel()


async def raise_in_reading(nc, server):
    """Have an ordered consumer of nats-py raise, for a reply subject that is not JetStream's."""
    js = nc.jetstream()
    await js.add_stream(name="ordered", subjects=["ordered"], storage="memory")
    ordered = await js.subscribe("ordered", ordered_consumer=True)
    other = await nats.connect(server.url)
    await other.publish(ordered.subject, b"", reply="not.from.JetStream")
    await other.close()


@pytest.fixture(params=[cancel_reading, raise_in_reading])
async def ending(request, server, js):
    """A connection, and a function that ends nats-py's read loop."""
    said = []

    async def note(error):
        said.append(str(error))

    nc = await nats.connect(server.url, error_cb=note)

    async def end():
        await request.param(nc, server)

    yield nc, end, said
    await nc.close()
    if request.param is raise_in_reading:
        await js.delete_stream("ordered")


REASON = "connection was closed: nats: reading the connection ended: "


async def test_waiting_operations_fail_if_reading_ends(ending, stream, subject, make_event):
    nc, end, said = ending
    js = nc.jetstream()
    silent = f"silent.{subject}"
    await nc.subscribe(silent)
    async with (
        Publisher(js, ack_timeout=SECONDS) as publisher,
        await subscribe(nc, f"other.{subject}") as received,
        PullConsumer(js, stream, "c", dead_letter=None, create=ConsumerConfig()) as consumer,
    ):
        waiting = [
            asyncio.ensure_future(each)
            for each in (
                anext(consumer),
                anext(received),
                request(nc, make_event(), silent, timeout=2 * SECONDS),
                await publisher.publish(make_event(), silent),
            )
        ]
        await flush(nc)
        assert not any(task.done() for task in waiting)
        await end()
        errors = await soon(asyncio.gather(*waiting, return_exceptions=True))
        publisher.failures.clear()
    assert [error.code for error in errors] == ["connection-closed"] * 3 + ["timeout"]
    assert all("nats: reading the connection ended: " in str(error) for error in errors), errors
    assert [text for text in said if text.startswith("nats: reading the connection ended: ")]
    for operation in (publish(nc, make_event(), subject), subscribe(nc, subject), flush(nc)):
        with pytest.raises(DeliveryError, match=REASON):
            await operation
    assert nc.is_closed


async def test_connection_is_closed_if_reading_ends_and_the_error_callback_raises(server, js, subject):
    """A CancelledError of user code does not cancel the closing."""

    async def fail(error):
        raise asyncio.CancelledError

    async with connect(server.url, error_cb=fail) as nc:
        received = await subscribe(nc, subject)
        await raise_in_reading(nc, server)
        with pytest.raises(DeliveryError) as info:
            await soon(anext(received))
        assert info.value.code == "connection-closed"
        assert nc.is_closed
    await js.delete_stream("ordered")


async def test_flush_fails_if_reading_ends(server):
    """During the call; the server is paused."""
    with NatsServer() as server:
        nc = await nats.connect(server.url)
        server.pause()
        flushing = asyncio.create_task(flush(nc))
        await asyncio.sleep(0)
        nc._reading_task.cancel()
        try:
            with pytest.raises(DeliveryError, match=REASON):
                await asyncio.wait_for(flushing, 8)  # nats-py's limit is 10
        finally:
            server.resume()
            await nc.close()


async def test_operations_fail_if_reading_has_ended_before(server, subject):
    nc = await nats.connect(server.url)
    nc._reading_task.cancel()
    await asyncio.gather(nc._reading_task, return_exceptions=True)
    with pytest.raises(DeliveryError, match="reading the connection ended"):
        async with await soon(subscribe(nc, subject)) as received:
            await soon(anext(received))


async def test_operations_fail_if_reading_ends_after_a_reconnect(subject):
    with NatsServer() as server:
        restored = asyncio.Event()

        async def note():
            restored.set()

        nc = await nats.connect(server.url, reconnected_cb=note, reconnect_time_wait=0.05)
        async with await subscribe(nc, subject) as received:
            server.restart()
            await soon(restored.wait())
            nc._reading_task.cancel()
            with pytest.raises(DeliveryError, match="reading the connection ended"):
                await soon(anext(received))


def test_end_of_the_program_is_not_an_error(server):
    """asyncio.run() cancels all tasks; an open connection logs nothing then."""
    code = """
import asyncio, nats, sys
from ce_nats.aio import subscribe
async def main():
    nc = await nats.connect(sys.argv[1])
    await subscribe(nc, "a")
asyncio.run(main())
"""
    command = [sys.executable, "-X", "dev", "-c", code, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Task was destroyed" not in done.stderr, done.stderr


async def test_flush_waits_for_a_reconnect(subject, make_event):
    """nats-py's flush() returns at once, with the event in its buffer."""
    with NatsServer() as server:
        lost = asyncio.Event()

        async def note():
            lost.set()

        nc = await nats.connect(server.url, disconnected_cb=note, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
        server.kill()
        await soon(lost.wait())
        await publish(nc, make_event(), subject)
        flushing = asyncio.create_task(flush(nc))
        await asyncio.wait([flushing], timeout=0.2)
        assert not flushing.done()
        server.start()
        await soon(flushing)
        assert nc.is_connected
        assert nc.pending_data_size == 0
        await nc.close()


async def test_cancelled_flush_does_not_end_reading(nc, subject, make_event):
    """nats-py sets the result of the cancelled future that waited for the PONG."""
    async with await subscribe(nc, subject) as received:
        for _ in range(10):
            flushing = asyncio.create_task(flush(nc))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            flushing.cancel()
            await asyncio.wait([flushing])
        await flush(nc)
        await publish(nc, make_event(), subject)
        assert (await soon(anext(received))).event.get_id() == "event 1"
    assert nc.stats["reconnects"] == 0


async def test_error_callback_that_raises_does_not_end_reading(server, subject, make_event, caplog):
    async def fail(error):
        raise RuntimeError("in the callback")

    nc = await nats.connect(server.url, error_cb=fail)
    async with await subscribe(nc, subject) as received:
        slow = await nc.subscribe(subject, pending_msgs_limit=1)
        for number in range(3):
            await publish(nc, make_event(number), subject)
        for number in range(3):
            assert (await soon(anext(received))).event.get_id() == f"event {number}"
        assert slow.pending_msgs == 1
    await nc.close()
    assert "error_cb must not raise" in caplog.text
