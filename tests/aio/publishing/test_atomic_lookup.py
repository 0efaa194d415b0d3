"""Look up the stream of an atomic batch, a stored batch, and the event that caused a refusal."""

import pytest

from ce_nats import DeliveryError, dedup_id
from ce_nats.aio import AtomicBatch
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio.jetstream import configure_stream
from ce_nats.aio.publishing._atomic_lookup import AtomicLookup
from ce_nats.errors import ApiError, ErrorCode
from ce_nats.message import Headers, NatsMessage


@pytest.fixture
async def batches(js, stream):
    """A stream that allows atomic batches."""
    await configure_stream(js, stream, allow_atomic=True, duplicate_window=60 * 10**9)
    return stream


@pytest.fixture
def lookup(js):
    return AtomicLookup(js, 2.0)


async def publish(js, make_event, subject, *numbers):
    async with AtomicBatch(js) as batch:
        for number in numbers:
            await batch.publish(make_event(number), subject)
    return batch.ack


async def test_stream_of_a_subject(js, subject, batches, lookup, make_event):
    await publish(js, make_event, subject, 1, 2)
    for name in (None, batches):
        found = await lookup.stream(name, [subject, f"{subject}.a"])
        assert (found.name, found.state.last, found.duplicate_window) == (batches, 2, 60.0)
        assert (found.max_message_bytes, found.has_other_subjects) == (-1, False)


async def test_subjects_of_another_account(subject, batches, lookup):
    """Messages on these are stored on subjects that only that account knows."""
    assert (await lookup.stream(batches, [subject, "mapped"])).has_other_subjects


async def test_stream_on_another_prefix(nc, subject):
    """Subjects may have other names there."""
    js = nc.jetstream(prefix="other.API", timeout=0.2)
    with pytest.raises(DeliveryError) as info:
        await AtomicLookup(js, 0.0).stream(None, [subject])
    assert info.value.code == "no-responders"


async def test_subject_that_no_stream_of_this_account_has(subject, lookup):
    with pytest.raises(DeliveryError, match="pass stream= if the subject is mapped, or has another name there"):
        await lookup.stream(None, [f"unbound.{subject}"])


async def test_stored_batch_is_found_by_its_id(js, subject, batches, lookup, make_event):
    await publish(js, make_event, subject, 1, 2)
    before = await lookup.stream(batches, [subject])
    await ce_js.publish(js, make_event(3), f"{subject}.a")
    ack = await publish(js, make_event, subject, 4, 5, 6)
    assert await lookup.find(before, ["x" * 32, ack.batch_id], subject) == (4, ack.batch_id)
    await js.delete_msg(batches, 4)
    assert await lookup.find(before, [ack.batch_id], subject) == (4, ack.batch_id)
    assert await lookup.find(before, ["x" * 32], subject) is None
    assert await lookup.find(before, [ack.batch_id], f"{subject}.a") is None
    after = await lookup.stream(batches, [subject])
    assert await lookup.find(after, [ack.batch_id], subject) is None


async def test_batch_on_a_transformed_subject_is_found(js, subject, batches, lookup, make_event):
    transform = {"src": f"{subject}.>", "dest": f"{subject}.stored.>"}
    await configure_stream(js, batches, subject_transform=transform)
    before = await lookup.stream(batches, [f"{subject}.a"])
    ack = await publish(js, make_event, f"{subject}.a", 1, 2)
    assert (await js.get_msg(batches, 1)).subject == f"{subject}.stored.a"
    assert await lookup.find(before, [ack.batch_id], f"{subject}.a") == (1, ack.batch_id)


async def test_removed_messages_are_noticed(js, subject, batches, lookup, make_event):
    for number in range(6):
        await ce_js.publish(js, make_event(number), subject)
    await js.delete_msg(batches, 2)

    async def complete_after(change):
        before = await lookup.stream(batches, [subject])
        await change()
        return await lookup.is_complete(before)

    async def nothing():
        pass

    assert await complete_after(nothing)
    assert await complete_after(lambda: ce_js.publish(js, make_event(7), subject))

    async def delete_another():
        """Let the number of deleted messages between others stay the same."""
        await js.purge_stream(batches, seq=4)
        await js.delete_msg(batches, 6)

    assert not await complete_after(delete_another)
    assert await complete_after(nothing)
    assert not await complete_after(lambda: js.delete_msg(batches, 5))
    assert await complete_after(lambda: js.purge_stream(batches))

    async def store_and_purge():
        await ce_js.publish(js, make_event(8), subject)
        await js.purge_stream(batches)

    assert not await complete_after(store_and_purge)

    async def recreate():
        await js.delete_stream(batches)
        await js.add_stream(name=batches, subjects=[subject], storage="memory")

    assert not await complete_after(recreate)


def refused(number, text=""):
    error = ApiError(ErrorCode.PUBLISH_REFUSED, text)
    error.err_code = number
    return error


def messages(subject, *headers):
    return [NatsMessage(subject, b"", Headers(one)) for one in headers]


async def test_cause_of_a_refusal(js, subject, batches, lookup, make_event):
    await publish(js, make_event, subject, 1, 2)
    stream = await lookup.stream(batches, [subject])
    sequence = "Nats-Expected-Last-Subject-Sequence"
    other = {"Nats-Expected-Last-Subject-Sequence-Subject": f"{subject}.*"}

    async def cause(number, *headers, text="wrong last sequence: 2"):
        return await lookup.cause(stream, refused(number, text), messages(subject, *headers))

    assert await cause(10071, {}, {sequence: "2"}, {sequence: "1"}, {sequence: "0"}) == 2
    none = "wrong last sequence: 0"
    assert await cause(10071, {}, {sequence: "0", **other}, {sequence: "2", **other}, text=none) == 2
    assert await cause(10071, {"Nats-Expected-Last-Sequence": "2"}, {sequence: "2"}) == 0
    assert await cause(10071, {}, {sequence: "2"}) is None  # another client has changed it since
    assert await cause(10071, {}, {sequence: "1"}, text="wrong last sequence: 7") is None
    assert await cause(10201, {}, {"Nats-Msg-Id": "x"}, {"Nats-Msg-Id": dedup_id(make_event(2))}) == 2
    assert await cause(10201, {}, {"Nats-Msg-Id": "x"}) is None
    assert await cause(10060, {"Nats-Expected-Stream": batches}, {"Nats-Expected-Stream": "x"}) == 1
    assert await cause(10166, {}, {"Nats-TTL": "1h"}) == 1
    assert await cause(10111, {}, {"Nats-Rollup": "sub"}) is None
    assert await cause(10111, {}) == 0
    await js.delete_stream(batches)
    assert await cause(10201, {}, {"Nats-Msg-Id": "x"}) is None
    await js.add_stream(name=batches, subjects=[subject], storage="memory")
