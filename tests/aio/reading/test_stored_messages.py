"""Stored messages: read one by one through the API, with header blocks as they were stored."""

import asyncio
from types import SimpleNamespace

import nats
import pytest
from nats.js.api import StreamSource
from pyarrow import parquet

from ce_nats import DecodeError, Timestamp, from_nats_message
from ce_nats.aio import DeliveryError
from ce_nats.aio._jetstream_api import Stored
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.link._link import Link
from ce_nats.aio.link._permissions import Denial
from ce_nats.aio.reading._stored_messages import _max_requests, as_message, as_messages, metadata, read_one_by_one
from ce_nats.capture import write_capture
from ce_nats.message import StoredMessage
from ce_nats.testing import NatsServer
from tests.support.reading import publish_all, read, until_stored, way
from tests.support.tables import each
from tests.support.waiting import until

__all__ = ["way"]

MINIMAL = b"ce-id: 1\r\nce-source: s\r\nce-specversion: 1.0\r\nce-type: t\r\n"


@pytest.mark.parametrize("denied", ["CONSUMER.CREATE", "CONSUMER.MSG.NEXT"])
async def test_stream_is_read_one_by_one_without_permission_for_a_consumer(denied):
    """The denial is not reported to ``error_cb``."""
    config = f"""authorization {{ users: [
      {{user: admin, password: x}}
      {{user: reader, password: x, permissions: {{publish: {{deny: ["$JS.API.{denied}.>"]}}}}}}
    ] }}"""
    reported = []

    async def report(error):
        reported.append(error)

    with NatsServer(jetstream=True, config=config) as server:
        async with await nats.connect(server.url, user="admin", password="x") as admin:
            js = admin.jetstream()
            await js.add_stream(name="S", subjects=["s"], storage="memory")
            await publish_all(js, [("s", b"%d" % number) for number in range(500)])
            reader = await nats.connect(server.url, user="reader", password="x", error_cb=report)
            messages = await read(reader.jetstream(timeout=60), "S")
            assert [int(message.data) for message in messages] == list(range(500))
            assert (await js.stream_info("S")).state.consumer_count == 0
            await reader.close()
    assert reported == []


async def test_stream_of_another_account_is_read_through_its_exports():
    """Reading one by one needs two subjects of the API."""
    config = """accounts {
      A { jetstream: enabled, users: [{user: a, password: x}], exports: [
        {service: "$JS.API.STREAM.INFO.S"}, {service: "$JS.API.STREAM.MSG.GET.S"}
      ] }
      B { users: [{user: b, password: x}], imports: [
        {service: {account: A, subject: "$JS.API.STREAM.INFO.S"}, to: "A.STREAM.INFO.S"},
        {service: {account: A, subject: "$JS.API.STREAM.MSG.GET.S"}, to: "A.STREAM.MSG.GET.S"}
      ] }
    }"""
    with NatsServer(jetstream=True, config=config) as server:
        async with await nats.connect(server.url, user="a", password="x") as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s"], storage="memory")
            await publish_all(js, [("s", b"%d" % number) for number in range(500)])
        async with await nats.connect(server.url, user="b", password="x") as nc:
            messages = await read(nc.jetstream(prefix="A", timeout=60), "S")
            assert [int(message.data) for message in messages] == list(range(500))


async def test_repeated_headers_are_kept_in_order(way, js, subject, stream, send_raw):
    send_raw(subject, b"b: 1\r\na: 2\r\nB: 3\r\nb:4\r\nb: \t5 \r\n")
    await until_stored(js, stream, 1)
    ((message),) = await read(js, stream)
    assert message.headers == [("b", "1"), ("a", "2"), ("B", "3"), ("b", "4"), ("b", "5")]


async def test_duplicate_attribute_is_detected(way, js, subject, stream, send_raw):
    """Messages of nats-py only have the last value."""
    send_raw(subject, MINIMAL + b"ce-id: 2\r\n")
    await until_stored(js, stream, 1)
    ((message),) = await read(js, stream)
    with pytest.raises(DecodeError) as info:
        from_nats_message(message)
    assert (info.value.code, info.value.attribute) == ("duplicate-attribute", "id")
    assert from_nats_message(await js.get_last_msg(stream, subject)).get_id() == "2"


async def test_bytes_that_are_not_utf8_are_kept(way, js, subject, stream, send_raw):
    send_raw(subject, MINIMAL + b"ce-subject: a\xc0\xa0b\xff\r\n")
    await until_stored(js, stream, 1)
    ((message),) = await read(js, stream)
    assert dict(message.headers)["ce-subject"].encode("utf-8", "surrogateescape") == b"a\xc0\xa0b\xff"
    with pytest.raises(DecodeError) as info:
        from_nats_message(message)
    assert info.value.attribute == "subject"


async def test_malformed_header_lines_are_skipped(way, js, subject, stream, send_raw):
    send_raw(subject, b"no colon\r\n: no name\r\n\r\nafter: the end\r\nname : x\r\nurl: http://a:1\r\n")
    send_raw(subject, b"")
    send_raw(subject, None, b"{}")
    await until_stored(js, stream, 3)
    first, empty, none = await read(js, stream)
    assert first.headers == [("", "no name"), ("after", "the end"), ("name ", "x"), ("url", "http://a:1")]
    assert empty.headers == none.headers == []


async def test_stream_is_captured(way, js, subject, stream, send_raw, tmp_path):
    send_raw(subject, b"a: 1\r\na: 2\r\n", b"\0\xff")
    send_raw(subject, None, b"{}")
    await until_stored(js, stream, 2)
    captured = await write_capture(read_stream(js, stream, batch_size=1), tmp_path / "a.parquet")
    assert captured.messages == 2
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [(row["subject"], row["stream"], row["sequence"]) for row in rows] == [(subject, stream, n) for n in (1, 2)]
    assert rows[0]["headers"] == [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    assert [row["data"] for row in rows] == [b"\0\xff", b"{}"]


async def test_header_of_a_sourced_stream_does_not_make_binary_mode(way, js, subject, stream, make_event):
    """The copy of an event without headers has one header, and stays structured."""
    await js.publish(subject, b'{"specversion":"1.0","id":"1","source":"s","type":"t"}')
    copy = f"{stream}_copy"
    await js.add_stream(name=copy, sources=[StreamSource(name=stream)])
    (message,) = await until(lambda: read(js, copy))
    assert [name for name, _ in message.headers] == ["Nats-Stream-Source"]
    assert from_nats_message(message).get_id() == "1"
    await js.delete_stream(copy)


@each(
    "reply",
    [
        b"$JS.ACK.ORDERS.c.1.41.7.1700000000000000000.5",
        b"$JS.ACK._.hash.ORDERS.c.1.41.7.1700000000000000000.5.random",
        b"$JS.ACK.hub.hash.ORDERS.c.1.41.7.1700000000000000000.5",
    ],
)
def test_both_forms_of_the_reply_subject_are_parsed(reply):
    """The second form, with a domain, is defined in ADR-15."""
    assert metadata(reply) == (41, 7)
    (message,) = as_messages([(b"a", reply, b"x", b"NATS/1.0\r\nb: c\r\n\r\n")], "ORDERS")
    time = Timestamp.parse("2023-11-14T22:13:20Z")
    assert message == StoredMessage("a", "", [("b", "c")], b"x", "ORDERS", 41, time)


def test_subject_that_is_not_utf8_is_readable():
    (message,) = as_messages([(b"a\xff", b"$JS.ACK.S.c.1.41.7.1700000000000000000.5", b"", b"")], "S")
    assert (message.subject, message.headers) == ("a\ufffd", [])


@each("reply", [b"", b"a.b", b"\xff.b", b"$JS.ACK.ORDERS.c.1.x.7.1700000000000000000.5"])
def test_other_reply_subjects_are_an_error(reply):
    with pytest.raises(DeliveryError) as info:
        metadata(reply)
    assert info.value.code == "unexpected-answer"


def test_messages_of_the_api_are_converted_with_their_headers():
    time = "2024-01-01T00:00:00.123456789Z"
    message = as_message(Stored("a", 7, time, b"NATS/1.0\r\na:  1 \r\nb\r\n\r\n", b"x"), "S")
    assert message == StoredMessage("a", "", [("a", "1")], b"x", "S", 7, Timestamp.parse(time))
    assert list(as_message(Stored("a", 7, time), "S").headers) == []


@each(("max_payload", "requests"), [(1, 128), (1000, 128), (2**18, 72), (2**20, 18), (8 * 2**20, 2), (64 * 2**20, 1)])
def test_bytes_of_answers_in_flight_are_limited(max_payload, requests):
    """Of messages with the maximum size, in base64; one request is always in flight."""
    assert _max_requests(SimpleNamespace(max_payload=max_payload)) == requests


class OneAnswer:
    """An API that answers the request for the first message; counts the requests that are cancelled."""

    def __init__(self):
        self.cancelled = 0

    def stored_subject(self, stream):
        return f"$JS.API.STREAM.MSG.GET.{stream}"

    async def stored(self, stream, request, *, is_watched):
        if request["seq"] > 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return Stored("a", request["seq"], "2024-01-01T00:00:00Z")


async def test_requests_in_flight_are_cancelled_at_the_end(nc):
    """The iteration ends without waiting for their answers."""
    api = OneAnswer()
    messages = read_one_by_one(nc, api, "S", ">", 1, 10)
    assert (await anext(messages)).seq == 1
    await asyncio.sleep(0)

    async def close():
        await messages.aclose()
        return api.cancelled

    assert await asyncio.wait_for(close(), 20) == 9


async def test_denial_ends_all_requests_in_flight(nc):
    api = OneAnswer()
    messages = read_one_by_one(nc, api, "S", ">", 1, 10)
    assert (await anext(messages)).seq == 1
    reading = asyncio.create_task(anext(messages))
    await asyncio.sleep(0)
    assert Link.of(nc).permissions.notify(Denial("publish", api.stored_subject("S").lower()))
    await asyncio.wait([reading], timeout=20)
    assert api.cancelled == 9
    with pytest.raises(DeliveryError, match="permission-denied"):
        await reading


class Sparse:
    """An API of a stream whose first message has the sequence 1000; counts the requests in flight."""

    stored_subject = OneAnswer.stored_subject

    def __init__(self):
        self.running = 0
        self.counts = {}

    async def stored(self, stream, request, *, is_watched):
        self.running += 1
        self.counts[request["seq"]] = self.running
        assert (stream, request["next_by_subj"], is_watched) == ("S", ">", True)
        await asyncio.sleep(0)
        self.running -= 1
        return Stored("a", max(request["seq"], 1000), "2024-01-01T00:00:00Z")


async def test_gaps_reduce_the_number_of_requests_in_flight(nc):
    """The first requests all have the same answer."""
    api, limit = Sparse(), _max_requests(nc)
    found = [message.seq async for message in read_one_by_one(nc, api, "S", ">", 1, 1200)]
    assert found == list(range(1000, 1201))
    first, later = (
        [count for seq, count in api.counts.items() if (seq < 1000) is is_first] for is_first in (True, False)
    )
    assert first == list(range(1, limit + 1))
    assert 1000 not in api.counts
    assert later[:2] == [1, 1]
    assert max(later) > 1


@pytest.mark.parametrize(
    ("first", "last", "found"), [(1, 999, []), (1, 1000, [1000]), (1001, 1001, [1001]), (5, 4, [])]
)
async def test_range_ends_with_its_last_sequence(nc, first, last, found):
    assert [message.seq async for message in read_one_by_one(nc, Sparse(), "S", ">", first, last)] == found


async def test_reading_can_be_cancelled(nc):
    messages = read_one_by_one(nc, OneAnswer(), "S", ">", 1, 10)
    assert (await anext(messages)).seq == 1
    reading = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
