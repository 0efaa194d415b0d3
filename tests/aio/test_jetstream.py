import asyncio
import json
from contextlib import aclosing
from datetime import datetime, timezone
from random import Random

import nats
import pytest
from nats.js.api import ConsumerConfig

from ce_nats import ContentMode, EncodeError, dedup_id, from_nats_message
from ce_nats.aio import DeliveryError, Publisher, connect
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio._connect import disconnect
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.link._client import client_of
from ce_nats.aio.link._link import Link
from ce_nats.aio.reading import _range_reader as ranges
from ce_nats.aio.reading import _stored_messages as one_by_one
from ce_nats.capture import read_capture, write_capture
from ce_nats.errors import ApiError, DataLossError, PublishError
from ce_nats.testing import NatsServer
from tests.support.consuming import until_consumer
from tests.support.reading import publish_all, read, until_stored, way
from tests.support.relay import Relay
from tests.support.waiting import until

__all__ = ["way"]

MINIMAL = b"ce-id: 1\r\nce-source: s\r\nce-specversion: 1.0\r\nce-type: t\r\n"


async def sequences(js, stream, **options):
    return [message.sequence for message in await read(js, stream, **options)]


@pytest.fixture
async def ten(js, subject, stream):
    """A stream of ten messages, alternating between two subjects."""
    for number in range(1, 11):
        await js.publish(f"{subject}.{'even' if number % 2 == 0 else 'odd'}", str(number).encode())
    return stream


# --- Publishing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ContentMode)
async def test_published_event_is_stored(js, subject, stream, make_event, mode):
    ack = await ce_js.publish(js, make_event(1, {"a": 1}), subject, mode=mode)
    assert (ack.stream, ack.seq) == (stream, 1)
    ((message),) = await read(js, stream)
    assert from_nats_message(message).get_data() == {"a": 1}


async def test_duplicate_event_is_stored_once(js, subject, stream, make_event):
    event = make_event()
    first = await ce_js.publish(js, event, subject)
    second = await ce_js.publish(js, event, subject)
    assert (first.duplicate, second.duplicate) == (None, True)
    assert second.seq == first.seq
    ((message),) = await read(js, stream)
    assert ("Nats-Msg-Id", dedup_id(event)) in message.headers


async def test_message_may_have_a_time_to_live(nc, js, subject, make_event):
    """A stream without TTLs refuses the header."""
    version = nc.connected_server_version
    if (version.major, version.minor) < (2, 11):
        pytest.skip("nats-server has had TTLs of messages since 2.11")
    name = subject.replace(".", "_")
    headers = {"Nats-TTL": "1h"}
    for allowed in (False, True):
        await js.add_stream(name=name, subjects=[subject], storage="memory", allow_msg_ttl=allowed)
        if allowed:
            await ce_js.publish(js, make_event(), subject, headers=headers)
            ((message),) = await read(js, name)
            assert ("Nats-TTL", "1h") in message.headers
        else:
            with pytest.raises(DeliveryError) as info:
                await ce_js.publish(js, make_event(), subject, headers=headers)
            assert info.value.__cause__.err_code == 10166
        await js.delete_stream(name)
    assert headers == {"Nats-TTL": "1h"}


async def test_headers_of_the_caller_are_not_modified(js, subject, stream, make_event):
    """``js.publish(stream=...)`` of nats-py modifies the dict of the caller."""
    headers = {"Nats-Expected-Stream": stream}
    await ce_js.publish(js, make_event(), subject, headers=headers)
    assert headers == {"Nats-Expected-Stream": stream}
    theirs = {"a": "b"}
    await js.publish(subject, b"", headers=theirs, stream=stream)
    assert theirs != {"a": "b"}


async def refusal(js, event, subject, headers, way_out):
    """Return the error of an event that the stream refuses."""
    if way_out == "publish":
        with pytest.raises(DeliveryError) as info:
            await ce_js.publish(js, event, subject, headers=headers)
        return info.value
    publisher = Publisher(js)
    async with publisher:
        await publisher.publish(event, subject, headers=headers)
        with pytest.raises(PublishError) as info:
            await publisher.flush()
    return info.value.failures[0].error


@pytest.mark.parametrize("way_out", ["publish", "Publisher"])
@pytest.mark.parametrize(
    ("headers", "number", "text"),
    [
        ({"Nats-Expected-Stream": "OTHER"}, 10060, "expected stream does not match"),
        ({"Nats-Expected-Last-Sequence": "1"}, 10071, "wrong last sequence: 2"),
        ({"Nats-Expected-Last-Subject-Sequence": "0"}, 10071, "wrong last sequence: 1"),
        ({"Nats-Expected-Last-Msg-Id": "other"}, 10070, "wrong last msg ID: second"),
        ({"Nats-Rollup": "sub"}, 10111, "rollup not permitted"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_refusal_has_the_err_code_of_the_server(js, subject, stream, make_event, way_out, headers, number, text):
    await ce_js.publish(js, make_event(1), subject)
    await ce_js.publish(js, make_event(2), f"{subject}.x", headers={"Nats-Msg-Id": "second"})
    error = await refusal(js, make_event(3), subject, headers, way_out)
    assert isinstance(error, ApiError)
    assert (error.code, error.err_code) == ("publish-refused", number)
    assert str(error) == f"publish-refused: {subject}: {text} ({number})"
    assert await sequences(js, stream) == [1, 2]


async def test_fulfilled_expectations_are_accepted(js, subject, stream, make_event):
    """Of the stream, its last message, the last message on the subject, and a new subject."""
    expected = [
        {"Nats-Expected-Stream": stream},
        {"Nats-Expected-Last-Sequence": "1", "Nats-Expected-Last-Msg-Id": dedup_id(make_event(0))},
        {"Nats-Expected-Last-Subject-Sequence": "2"},
    ]
    for number, headers in enumerate(expected):
        await ce_js.publish(js, make_event(number), subject, headers=headers)
    first = {"Nats-Expected-Last-Subject-Sequence": "0"}
    assert (await ce_js.publish(js, make_event(3), f"{subject}.new", headers=first)).seq == 4
    assert [set(headers.items()) <= set(m.headers) for m, headers in zip(await read(js, stream), expected)] == [
        True
    ] * 3


async def test_one_of_several_concurrent_writers_succeeds(js, subject, stream, make_event):
    """All of them expect the same state."""
    headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
    writes = [ce_js.publish(js, make_event(number), subject, headers=headers) for number in range(20)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    refused = [result for result in results if isinstance(result, ApiError) and result.err_code == 10071]
    assert len(refused) == 19
    assert len(await read(js, stream)) == 1


async def test_subject_without_a_stream_has_no_responders(js, subject, make_event):
    with pytest.raises(DeliveryError) as info:
        await ce_js.publish(js, make_event(), f"unbound.{subject}")
    assert info.value.code == "no-responders"


async def test_unanswered_publish_is_a_timeout(nc, js, subject, make_event):
    await nc.subscribe(subject)
    with pytest.raises(DeliveryError) as info:
        await ce_js.publish(js, make_event(), subject, timeout=0.05)
    assert info.value.code == "timeout"


async def test_reply_that_is_not_a_puback_is_a_delivery_error(nc, js, subject, make_event):
    async def answer(message):
        await nc.publish(message.reply, answers.pop())

    answers = [b"thanks", b"[]", b"{}", b'"error"', b"\xff"]
    await nc.subscribe(subject, cb=answer)
    while answers:
        with pytest.raises(DeliveryError):
            await ce_js.publish(js, make_event(), subject)


async def test_header_value_that_is_not_a_str_is_an_encode_error(js, subject, make_event):
    with pytest.raises(EncodeError):
        await ce_js.publish(js, make_event(), subject, headers={"n": 1})


async def test_largest_header_block_is_one_byte_under_64_kib(nc, js, subject, stream, make_event):
    with pytest.raises(EncodeError) as info:
        await ce_js.publish(js, make_event(), subject, headers={"x": "a" * 2**16})
    assert info.value.code == "headers-too-large"
    size = int(info.value.message.split()[-1])  # "..., got N"

    largest = 2**16 - (size - (2**16 - 1))
    await ce_js.publish(js, make_event(), subject, headers={"x": "a" * largest})
    ((message),) = await read(js, stream)
    headers = dict(message.headers)
    assert len(headers["x"]) == largest
    with pytest.raises(EncodeError):
        await ce_js.publish(js, make_event(), subject, headers={"x": "a" * (largest + 1)})
    version = nc.connected_server_version
    if (version.major, version.minor) < (2, 15):
        return  # earlier servers do not check the size
    with pytest.raises(Exception, match="10097"):
        await js.publish(subject, b"", headers={**headers, "x": "a" * (largest + 1)})


async def test_payload_over_max_payload_is_an_encode_error(nc, js, subject, make_event):
    with pytest.raises(EncodeError) as info:
        await ce_js.publish(js, make_event(data=b"x" * nc.max_payload), subject)
    assert info.value.code == "payload-too-large"


# --- Reading ---------------------------------------------------------------------------------------------------------


async def test_messages_are_yielded_in_order(way, js, ten):
    messages = await read(js, ten)
    assert [message.sequence for message in messages] == list(range(1, 11))
    assert [message.data for message in messages] == [str(number).encode() for number in range(1, 11)]
    assert {message.stream for message in messages} == {ten}
    assert [message.subject.rpartition(".")[2] for message in messages] == ["odd", "even"] * 5


async def test_batches_have_batch_size(way, js, ten):
    assert [len(batch) async for batch in read_stream(js, ten, batch_size=4)] == [4, 4, 2]
    assert [len(batch) async for batch in read_stream(js, ten, batch_size=5)] == [5, 5]


async def test_empty_stream_ends_at_once(way, js, stream):
    assert [batch async for batch in read_stream(js, stream)] == []


async def test_wide_gap_is_skipped(way, nc, js, subject, stream):
    """Without a request for each skipped message."""
    await js.publish(f"{subject}.a", b"")
    for _ in range(2000):
        await nc.publish(f"{subject}.b", b"")
    await until_stored(js, stream, 2001)
    await js.publish(f"{subject}.a", b"")
    before = nc.stats["out_msgs"]
    assert await sequences(js, stream, subject=f"{subject}.a") == [1, 2002]
    assert nc.stats["out_msgs"] - before < 200


async def test_purged_stream_ends_at_once(way, js, ten):
    await js.purge_stream(ten)
    assert await sequences(js, ten) == []


@pytest.mark.parametrize("seed", range(5))
async def test_random_gaps_and_filters(nc, js, subject, stream, seed, monkeypatch):
    """Hundreds of messages with gaps, compared with a list of the remaining ones, read both ways."""
    random = Random(seed)
    kept = {}
    for number in range(1, 401):
        kept[number] = random.choice("aab")
        await nc.publish(f"{subject}.{kept[number]}", b"")
    await until_stored(js, stream, 400)
    for _ in range(random.randrange(1, 40)):
        first = random.randrange(1, 401)
        for number in range(first, min(first + random.choice([1, 2, 30]), 401)):
            if kept.pop(number, None):
                await js.delete_msg(stream, number)
    for _ in range(10):
        start, end = random.randrange(0, 420), random.choice([None, random.randrange(0, 420)])
        letter = random.choice("ab*")
        options = {"start": start, "end": end, "subject": f"{subject}.{letter}", "batch_size": random.randrange(1, 50)}
        expected = [n for n in kept if start <= n <= (end if end is not None else 400) and letter in ("*", kept[n])]
        for few in (0, 2**63):
            monkeypatch.setattr(ranges, "_FEW", few)
            assert await sequences(js, stream, **options) == expected


@pytest.mark.parametrize("end", [None, 15])
async def test_messages_published_during_the_read_are_not_yielded(way, js, ten, subject, end, monkeypatch):
    monkeypatch.setattr(one_by_one, "_MAX_REQUESTS", 1)  # so that no later message is requested before it exists
    seen = []
    async for batch in read_stream(js, ten, end=end, batch_size=1):
        seen += [message.sequence for message in batch]
        await js.publish(f"{subject}.more", b"")
    assert seen == list(range(1, 11))
    assert (await js.stream_info(ten)).state.last_seq == 20


async def test_few_messages_are_read_without_a_consumer(js, ten):
    async for _ in read_stream(js, ten, batch_size=3):
        assert (await js.stream_info(ten)).state.consumer_count == 0


async def test_consumer_is_deleted_after_reading_many_messages(nc, js, subject, stream):
    for number in range(3_000):
        await nc.publish(subject, b"%d" % number)
    await until_stored(js, stream, 3_000)
    assert [int(message.data) for message in await read(js, stream)] == list(range(3_000))
    assert (await js.stream_info(stream)).state.consumer_count == 0
    async with aclosing(read_stream(js, stream)) as batches:
        await anext(batches)
        (consumer,) = await js.consumers_info(stream)
        assert (consumer.config.ack_policy, consumer.config.durable_name) == ("none", None)
        assert consumer.config.inactive_threshold == 30
    assert (await js.stream_info(stream)).state.consumer_count == 0


async def test_several_subjects_are_filtered(way, js, ten, subject):
    await js.publish(f"{subject}.more", b"")
    assert await sequences(js, ten, subject=[f"{subject}.even", f"{subject}.more"]) == [2, 4, 6, 8, 10, 11]
    assert await sequences(js, ten, subject=[f"{subject}.*", f"{subject}.odd"]) == list(range(1, 12))
    assert await sequences(js, ten, subject=[">", f"{subject}.odd"]) == list(range(1, 12))


async def test_both_ways_return_equal_messages(js, subject, stream, send_raw, monkeypatch):
    """They equal the answers of the server's API."""
    lines = [
        b"a: \xff%d\r\nA:b\r\na: \xff%d\r\n",
        b"no colon\r\n\r\n: x\r\nb\xe2\x82:\xe2\x82\r\n",
        b"k: a:b\tc \t\r\n",
        b"",
        None,
    ]
    for number in range(50):
        block = lines[number % 5]
        send_raw(f"{subject}.{number}", block and block.replace(b"%d", b"%d" % number), b"\0\xff%d" % number)
    await until_stored(js, stream, 50)
    found = []
    for few in (0, 100):
        monkeypatch.setattr(ranges, "_FEW", few)
        found.append(await read(js, stream, batch_size=7))
    assert found[0] == found[1]
    api = StreamApi.of(js)
    for message in found[0]:
        stored = await api.stored(stream, {"seq": message.sequence})
        assert str(message.timestamp) == stored.time
        assert (message.subject, message.data) == (stored.subject, stored.data)
        assert [value.encode("utf-8", "surrogateescape") for _, value in message.headers] == [
            line.partition(b":")[2].strip(b" \t") for line in stored.hdrs.split(b"\r\n")[1:] if b":" in line
        ]


async def test_connection_is_shared_with_other_operations(way, nc, js, ten, subject):
    """Two readers, a subscriber and a request on one connection; each receives its own messages."""
    seen = []

    async def note(message):
        seen.append(message.headers)

    await nc.subscribe("other.>", cb=note)
    async with aclosing(read_stream(js, ten, batch_size=3)) as first, aclosing(read_stream(js, ten)) as second:
        found = [message.sequence for message in await anext(first)]
        await nc.publish(f"other.{subject}", b"", headers={"a": "1"})
        assert [message.sequence for message in await anext(second)] == list(range(1, 11))
        assert (await js.stream_info(ten)).state.messages == 10
        found += [message.sequence async for batch in first for message in batch]
    assert found == list(range(1, 11))
    await nc.flush()
    assert seen == [{"a": "1"}]
    assert not Link.of(nc).reading.receivers


@pytest.fixture
async def many(js, subject, stream):
    """A stream of 4,000 messages: the first request of a reader asks for 1,000, the second one for the others."""
    await publish_all(js, [(subject, b"%d" % number) for number in range(4_000)])
    return stream


@pytest.fixture
async def own_server():
    """A separate server with a stream of 4,000 messages in files, and a connection that reconnects quickly."""
    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
        js = nc.jetstream(timeout=30)
        await js.add_stream(name="MANY", subjects=["many"])
        await publish_all(js, [("many", b"%d" % number) for number in range(4_000)])
        yield server, js
        await disconnect(nc)


async def test_read_continues_after_a_restart(own_server):
    server, js = own_server
    found = []
    async with aclosing(read_stream(js, "MANY")) as batches:
        async for batch in batches:
            found += [int(message.data) for message in batch]
            if len(found) == 1_000:
                server.kill()
                server.start()
    assert found == list(range(4_000))


async def test_killed_server_is_a_delivery_error(own_server):
    server, js = own_server
    async with aclosing(read_stream(client_of(js).jetstream(timeout=1), "MANY", retry_timeout=1)) as batches:
        await anext(batches)
        server.kill()
        with pytest.raises(DeliveryError, match=r"stream MANY, from message \d+ on: "):
            async for _ in batches:
                pass


async def test_closed_connection_is_a_delivery_error(server, many):
    """At once, despite a long timeout."""
    nc = await nats.connect(server.url)
    async with aclosing(read_stream(nc.jetstream(timeout=600), many)) as batches:
        await anext(batches)
        await nc.close()
        with pytest.raises(DeliveryError, match=r"^connection-closed: "):
            async for _ in batches:
                pass


async def test_recreated_stream_is_an_error(js, subject, many):
    async with aclosing(read_stream(js, many)) as batches:
        await anext(batches)
        await js.delete_stream(many)
        await js.add_stream(name=many, subjects=[subject], storage="memory")
        for _ in range(5):
            await js.publish(subject, b"")
        with pytest.raises(DataLossError, match="it was deleted and created again"):
            async for _ in batches:
                pass


# --- Messages that are removed before they are read ------------------------------------------------------------------


async def read_and(remove, js, found, stream, **options):
    """Append sequences to ``found``; call a function after the first batch."""
    async with aclosing(read_stream(js, stream, **options)) as batches:
        async for batch in batches:
            if not found:
                await remove()
            found += [message.sequence for message in batch]


@pytest.fixture(params=["purged", "purged in part", "limited"])
def remove(request, js, subject, many):
    """Return a function that removes messages, and the first remaining sequence."""
    limit = {"subjects": [subject], "storage": "memory", "max_msgs": 1_000}
    return {
        "purged": (lambda: js.purge_stream(many), 4_001),
        "purged in part": (lambda: js.purge_stream(many, seq=3_001), 3_001),
        "limited": (lambda: js.update_stream(name=many, **limit), 3_001),
    }[request.param]


async def test_messages_removed_during_a_read_are_an_error(way, js, many, remove):
    """Messages that were read before are yielded."""
    found = []
    with pytest.raises(DataLossError, match=rf"stream {many}: .*messages \d+ to \d+ are gone without") as info:
        await read_and(remove[0], js, found, many, batch_size=300)
    assert found == list(range(1, info.value.first))
    assert (info.value.code, info.value.stream, info.value.last) == ("data-lost", many, remove[1] - 1)
    assert len(found) < 3_000


async def test_reading_continues_if_on_loss_returns(way, js, many, remove):
    """When read one by one, some are read while others are being removed."""
    found, losses = [], []
    await read_and(remove[0], js, found, many, on_loss=losses.append)
    (loss,) = losses
    missing = sorted(set(range(1, 4_001)) - set(found))
    assert found == sorted(set(found))
    assert (loss.first, loss.last) == (missing[0], missing[-1]) == (missing[0], remove[1] - 1)
    assert loss.message.startswith(f"stream {many}: messages") == (len(missing) == loss.last - loss.first + 1)


async def test_loss_during_a_read_of_some_subjects_is_an_error(js, subject, many):
    found = []
    with pytest.raises(DataLossError, match=f"stream {many}: "):
        await read_and(lambda: js.purge_stream(many), js, found, many, subject=[subject, "more"])
    assert found == list(range(1, found[-1] + 1))


async def test_exception_of_on_loss_ends_the_read(js, many):
    def refuse(error):
        raise KeyError(error.first)

    found = []
    with pytest.raises(KeyError) as info:
        await read_and(lambda: js.purge_stream(many), js, found, many, on_loss=refuse)
    assert found == list(range(1, info.value.args[0]))


async def test_loss_in_a_work_queue_names_consumers(js, subject):
    """A reader cannot distinguish acknowledged messages from purged ones."""
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject], storage="memory", retention="workqueue")
    worker = await js.pull_subscribe(subject, durable="worker")
    await publish_all(js, [(subject, b"")] * 1_500)
    await until_consumer(js, name, lambda info: info.num_pending == 1_500, "worker")

    async def work():
        for _ in range(13):
            *messages, last = await worker.fetch(100)
            for message in messages:
                await message.ack()
            await last.ack_sync()

    with pytest.raises(DataLossError, match=r"messages \d+ to 1300 are gone .*: consumers acknowledged them"):
        await read_and(work, js, [], name)
    await js.delete_stream(name)


async def test_stream_at_its_limits_is_read_from_its_beginning(js, subject, stream, monkeypatch):
    """It removes a message for each new one; those before the first batch are not part of the read."""
    monkeypatch.setattr(ranges, "_FEW", 0)
    await js.update_stream(name=stream, subjects=[subject], storage="memory", max_msgs=2_000)
    await publish_all(js, [(subject, b"")] * 2_000)
    state = StreamApi.state

    async def and_publish(api, name):
        """Publish between the request for the stream's state and that for the messages."""
        found = await state(api, name)
        for _ in range(3):
            await js.publish(subject, b"")
        return found

    monkeypatch.setattr(StreamApi, "state", and_publish)
    found = await sequences(js, stream)
    assert found == list(range(found[0], 2_001))
    assert found[0] > 1


@pytest.mark.parametrize("subject_filter", [">", "test.*"])
async def test_messages_deleted_by_the_reader_are_no_loss(way, js, many, subject_filter):
    """Nor are earlier deletions, which the stream begins after once all messages before them are removed."""
    gone = {*range(1_001, 1_011), *range(1_990, 2_001)}  # after the first batch, and at the end
    for number in gone:
        await js.delete_msg(many, number)
    found = []
    async with aclosing(read_stream(js, many, end=2_000, subject=subject_filter)) as batches:
        async for batch in batches:
            found += [message.sequence for message in batch]
            await js.purge_stream(many, seq=found[-1] + 1)
    assert found == [number for number in range(1, 2_001) if number not in gone]


async def test_capture_has_the_messages_before_a_loss(js, many, tmp_path):
    path = tmp_path / "many.jsonl"

    async def purged_after_the_first():
        async with aclosing(read_stream(js, many)) as batches:
            yield await anext(batches)
            await js.purge_stream(many)
            async for batch in batches:
                yield batch

    with pytest.raises(DataLossError) as info:
        await write_capture(purged_after_the_first(), path)
    assert [message.sequence for message in read_capture(path)] == list(range(1, info.value.first))


async def test_closed_iterator_leaves_no_tasks(way, js, ten):
    before = asyncio.all_tasks()
    async with aclosing(read_stream(js, ten, batch_size=1)) as batches:
        async for _ in batches:
            break
    assert asyncio.all_tasks() == before


# --- Cancelled reads --------------------------------------------------------------------------------------------------

# Less than the 30 seconds after which the server deletes an idle consumer.
SOON = 15


@pytest.fixture
async def thousand(nc, js, stream, subject):
    """A stream of 1,000 messages."""
    for number in range(1000):
        await nc.publish(subject, b"%d" % number)
    await until_stored(js, stream, 1000)
    return stream


@pytest.fixture
def until_no_consumer(js, thousand):
    async def wait():
        async def has_none():
            return not await js.consumers_info(thousand)

        await until(has_none, SOON)

    return wait


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_read_cancelled_at_any_turn_of_the_loop_leaves_no_consumer(
    js, thousand, until_no_consumer, cancellations
):
    """Also if it is cancelled repeatedly, as scopes of anyio do."""
    cancelled = 0
    for turns in range(100):
        reading = asyncio.create_task(read(js, thousand))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(cancellations):
            reading.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(reading, return_exceptions=True)
        cancelled += reading.cancelled()
    assert cancelled > 50
    await until_no_consumer()


async def test_read_cancelled_before_a_late_answer_leaves_no_consumer(server, thousand, until_no_consumer):
    """Requests and answers take 50 ms; the reads are cancelled within 0.4 s, during each of them."""
    with Relay(server.url) as relay:
        async with connect(relay.url) as nc:
            relay.delay = 0.05
            reading = []
            for _ in range(40):
                reading.append(asyncio.create_task(read(nc.jetstream(), thousand)))
                await asyncio.sleep(0.01)
            for task in reversed(reading):
                task.cancel()
            results = await asyncio.gather(*reading, return_exceptions=True)
            assert [result for result in results if isinstance(result, asyncio.CancelledError)]
            await until_no_consumer()


@pytest.mark.parametrize("closes", [True, False])
async def test_iteration_that_is_left_leaves_no_consumer(js, thousand, until_no_consumer, closes):
    batches = read_stream(js, thousand, batch_size=100)
    async for _ in batches:
        break
    assert await js.consumers_info(thousand)
    if closes:
        await batches.aclose()
        assert not await js.consumers_info(thousand)
    del batches
    await until_no_consumer()


async def test_iteration_that_is_left_with_its_connection_leaves_no_consumer(server, thousand, until_no_consumer):
    async with connect(server.url) as nc:
        async for _ in read_stream(nc.jetstream(), thousand, batch_size=100):
            break
    await until_no_consumer()


async def test_range_between_times(js, stream, subject):
    """Both ends are inclusive, with the precision of the times; sequences limit it as well."""
    for number in range(6):
        await js.publish(subject, b"%d" % number)
    times = [message.timestamp async for batch in read_stream(js, stream) for message in batch]
    early, late = datetime(2000, 1, 1, tzinfo=timezone.utc), datetime(2100, 1, 1, tzinfo=timezone.utc)

    async def sequences(**options):
        return [message.sequence async for batch in read_stream(js, stream, **options) for message in batch]

    assert await sequences(start_time=times[1], end_time=times[3]) == [2, 3, 4]
    assert await sequences(start_time=times[1], end_time=times[3], start=3, end=5) == [3, 4]
    assert await sequences(start_time=times[1], end=3) == [2, 3]
    assert await sequences(start_time=early, end_time=late) == [1, 2, 3, 4, 5, 6]
    assert await sequences(start_time=late) == await sequences(end_time=early) == []
    assert await sequences(start_time=times[3], end_time=times[1]) == []
    await js.purge_stream(stream, seq=3)
    assert await sequences(start_time=early, end_time=times[3]) == [3, 4]


@pytest.mark.parametrize("name", ["start_time", "end_time"])
async def test_times_must_have_a_time_zone(js, stream, name):
    naive = datetime(2026, 1, 1)
    for value, error in [(naive, ValueError), ("2026-01-01T00:00:00Z", TypeError), (0, TypeError)]:
        with pytest.raises(error, match=f"^{name} must "):
            read_stream(js, stream, **{name: value})


async def test_timeouts_around_an_iteration_lose_no_message(js, thousand, way, until_no_consumer):
    batches, numbers, timeouts, seconds = read_stream(js, thousand, batch_size=100), [], 0, 0.0001
    while True:
        try:
            batch = await asyncio.wait_for(anext(batches, None), seconds)
        except asyncio.TimeoutError:
            timeouts, seconds = timeouts + 1, seconds * 1.5
            continue
        if batch is None:
            break
        numbers += [message.sequence for message in batch]
        if len(numbers) % 300 == 0:
            seconds = 0.0001
    assert numbers == list(range(1, 1001))
    assert timeouts  # one at least, before the first round trip; others depend on the machine
    await until_no_consumer()


async def test_cancelled_read_of_a_changing_stream_continues_at_the_gap(js, thousand, monkeypatch):
    """The reader deletes what it has read, and the stream then begins after a gap: nothing was lost."""
    monkeypatch.setattr(ranges, "_FIRST_MESSAGES", 200)  # of a request
    for number in range(501, 600):
        await js.delete_msg(thousand, number)
    batches, numbers, cancelled = read_stream(js, thousand, start=301, batch_size=200), [], 0
    while True:
        waiting = asyncio.create_task(anext(batches, None))
        await asyncio.sleep(0)
        waiting.cancel()
        (batch,) = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(batch, asyncio.CancelledError):
            cancelled += 1
            batch = await anext(batches, None)
        if batch is None:
            break
        numbers += [message.sequence for message in batch]
        await js.purge_stream(thousand, seq=numbers[-1] + 1)
    assert numbers == [*range(301, 501), *range(600, 1001)]
    assert cancelled > 1


async def test_large_messages_are_read(nc, js, subject, stream, monkeypatch):
    """The server disconnects a client that requests more than max_pending, 64 MiB, at once."""
    count = 70
    payload = b"x" * (nc.max_payload - 1000)
    for _ in range(count):
        await js.publish(subject, payload)
    for few in (0, 2**63):
        monkeypatch.setattr(ranges, "_FEW", few)
        sizes = [[len(message.data) for message in batch] async for batch in read_stream(js, stream)]
        assert [size for batch in sizes for size in batch] == [len(payload)] * count
        assert max(map(len, sizes)) < count


async def test_timestamp_has_nanoseconds(way, js, ten):
    for message in await read(js, ten):
        stored = await js.get_msg(ten, message.sequence)
        assert message.timestamp.replace(microsecond=0) == stored.time.replace(microsecond=0)
        assert message.timestamp.utcoffset().total_seconds() == 0
        has_nine_digits = len(message.timestamp.text) > len("2020-01-01T00:00:00.000000Z")
        assert has_nine_digits or message.timestamp.nanosecond % 1_000 == 0


async def test_missing_stream_is_a_delivery_error(js):
    with pytest.raises(DeliveryError) as info:
        await read(js, "NO_SUCH_STREAM")
    assert info.value.code == "stream-not-found"


async def test_deleted_stream_is_a_delivery_error(way, js, many):
    async with aclosing(read_stream(js, many)) as batches:
        await anext(batches)
        await js.delete_stream(many)
        with pytest.raises(DeliveryError, match=r"^stream-not-found: "):
            async for _ in batches:
                pass
    await js.add_stream(name=many)  # the fixture deletes it


# --- Settings --------------------------------------------------------------------------------------------------------


async def config_of(nc, stream):
    reply = await nc.request(f"$JS.API.STREAM.INFO.{stream}")
    return json.loads(reply.data)["config"]


async def test_configured_setting_is_changed_and_others_are_kept(nc, js, subject, stream):
    before = await config_of(nc, stream)
    found = await ce_js.configure_stream(js, stream, allow_atomic=True, max_msgs=7)
    assert found == await config_of(nc, stream)
    changed = {name for name in {*before, *found} if before.get(name) != found.get(name)}
    assert changed - {"metadata"} == {"allow_atomic", "max_msgs"}
    assert (found["allow_atomic"], found["max_msgs"]) == (True, 7)
    found = await ce_js.configure_stream(js, stream, max_msgs=0, metadata={"owner": "tests"})
    assert (found["allow_atomic"], found["max_msgs"], found["metadata"]["owner"]) == (True, -1, "tests")


async def test_stream_that_has_the_settings_is_not_updated(nc, js, stream):
    updates = await nc.subscribe("$JS.API.STREAM.UPDATE.*")
    for _ in range(2):
        await ce_js.configure_stream(js, stream, allow_direct=True, max_age=3_600_000_000_000)
    assert updates.pending_msgs == 1


async def test_configured_setting_of_a_consumer_is_changed_and_others_are_kept(js, subject, stream):
    """Of one with a filter, whose configuration is sent on another subject, as well."""
    for name, options in (("all", {}), ("some", {"filter_subject": f"{subject}.>"})):
        created = ConsumerConfig(ack_policy="explicit", metadata={"owner": "tests"}, max_deliver=9, **options)
        await js.add_consumer(stream, created, durable_name=name)
        found = await ce_js.configure_consumer(js, stream, name, max_ack_pending=5000, ack_wait=60_000_000_000)
        info = (await js.consumer_info(stream, name)).config
        assert (found["max_ack_pending"], info.max_ack_pending, info.ack_wait) == (5000, 5000, 60)
        assert (info.max_deliver, info.metadata["owner"]) == (9, "tests")
        assert info.filter_subject == options.get("filter_subject")
        assert await ce_js.configure_consumer(js, stream, name, max_ack_pending=5000) == found


async def test_refused_setting_of_a_consumer_is_an_error(js, stream):
    await js.add_consumer(stream, ConsumerConfig(ack_policy="explicit"), durable_name="c")
    with pytest.raises(ApiError, match="deliver policy can not be updated") as info:
        await ce_js.configure_consumer(js, stream, "c", deliver_policy="new")
    assert info.value.code == "request-refused"
    with pytest.raises(DeliveryError) as missing:
        await ce_js.configure_consumer(js, stream, "none", max_deliver=1)
    assert missing.value.code == "consumer-not-found"
    with pytest.raises(TypeError):
        await ce_js.configure_consumer(js, stream, "c", max_deliver=object())


async def test_refused_setting_is_an_error(js, stream):
    """Versions before 2.12 ignore unknown settings: tests/interop/test_servers.py."""
    for setting, text in (("storage", "change storage type"), ("unknown", "unknown field")):
        with pytest.raises(ApiError, match=text) as info:
            await ce_js.configure_stream(js, stream, **{setting: "file"})
        assert info.value.code == "request-refused"
    with pytest.raises(DeliveryError, match="there is no stream"):
        await ce_js.configure_stream(js, "NOTHING", max_msgs=1)
    with pytest.raises(TypeError):
        await ce_js.configure_stream(js, stream, max_msgs=object())


# --- Stored messages of nats-py --------------------------------------------------------------------------------------


async def test_non_ascii_headers_of_get_msg_are_decoded(js, subject, stream, send_raw):
    """``js.get_msg()`` parses headers as mail, and returns objects in place of non-ASCII values."""
    send_raw(subject, MINIMAL + "ce-subject: Euro € 😀\r\n".encode())
    await until_stored(js, stream, 1)
    message = await js.get_msg(stream, 1)
    assert not isinstance(message.headers["ce-subject"], str)
    assert message.data is None
    assert from_nats_message(message).get_subject() == "Euro € 😀"


async def test_message_of_a_direct_get_is_decoded(js, subject):
    """The server adds headers to a message without headers."""
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject], allow_direct=True)
    await js.publish(subject, b'{"specversion":"1.0","id":"1","source":"s","type":"t"}')
    message = await js.get_msg(name, 1, direct=True)
    assert message.headers["Nats-Stream"] == name
    assert from_nats_message(message).get_id() == "1"
    await js.delete_stream(name)
