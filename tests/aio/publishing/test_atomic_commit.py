"""Atomic batches whose messages or acknowledgements are lost: the error never claims more than is known."""

import asyncio

import nats
import pytest

from ce_nats import AtomicBatchError, DeliveryError
from ce_nats.aio import AtomicBatch, OutcomeKind
from ce_nats.aio.publishing import _atomic_commit
from ce_nats.aio.publishing._atomic_commit import AtomicCommit, Attempt, BatchAck, batch_lines
from ce_nats.aio.publishing._atomic_policy import History
from ce_nats.message import NatsMessage
from ce_nats.testing import NatsServer
from ce_nats.wire.nats import encode_header_block
from tests.support.batches import ids
from tests.support.broker import ignore
from tests.support.scripted_server import NO_RESPONDERS, SECONDS, scripted
from tests.support.waiting import until

FAST = {"ack_timeout": 0.3, "retry_timeout": 20}


async def publish(js, events, subject, **options):
    async with AtomicBatch(js, **{**FAST, **options}) as batch:
        for event in events:
            await batch.publish(event, subject)
    return batch.ack


@pytest.fixture
def lose(monkeypatch):
    """
    Return a function that lets messages be lost.

    Its argument is called with the number of a message, counted over all attempts, and returns True if the message is
    lost, False if its reply is lost, None to send it.
    """
    send, numbers = _atomic_commit.publish_with_block, iter(range(10_000))

    def lose(what):
        async def publish_with_block(nc, message, block, reply):
            lost = what(next(numbers))
            if lost is not True:
                await send(nc, message, block, reply if lost is None else "")

        monkeypatch.setattr(_atomic_commit, "publish_with_block", publish_with_block)

    return lose


def only(number, *, is_message):
    return lambda current: is_message if current == number else None


# --- Lost messages and replies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("is_message", [True, False], ids=["message", "reply"])
async def test_batch_is_stored_once(js, subject, batches, make_event, lose, number, is_message):
    """The last message commits; the earlier ones are resent if one of them is lost."""
    lose(only(number, is_message=is_message))
    ack = await publish(js, map(make_event, range(3)), subject)
    assert (ack.first, ack.last) == (1, 3)
    assert await ids(js, batches) == ["event 0", "event 1", "event 2"]
    assert (await js.get_msg(batches, 2)).headers["Nats-Batch-Id"] == ack.batch_id


@pytest.mark.parametrize("is_message", [True, False], ids=["message", "reply"])
async def test_lost_commit_without_ids(js, subject, batches, make_event, lose, is_message):
    """The batch is found in the stream, or it is unknown whether it will be stored; it is not resent."""
    lose(only(2, is_message=is_message))
    events = [make_event(number) for number in range(3)]
    if not is_message:
        assert (await publish(js, events, subject, dedup=None)).last == 3
        return
    outcomes = []
    with pytest.raises(DeliveryError) as info:
        await publish(js, events, subject, dedup=None, on_outcome=outcomes.append)
    assert info.value.code == "timeout"
    assert "either all events are stored, or none" in info.value.message
    assert [one.kind for one in outcomes] == [OutcomeKind.UNACKNOWLEDGED] * 3
    assert await ids(js, batches) == []


async def test_lost_commit_of_expected_sequences(js, subject, batches, make_event, lose):
    """The stream would refuse a copy of the batch, so it is resent although the events have no ids."""
    lose(only(1, is_message=True))
    async with AtomicBatch(js, dedup=None, **FAST) as batch:
        await batch.publish(make_event(1), subject, expected_last_subject_sequence=0)
        await batch.publish(make_event(2), subject)
    assert (batch.ack.first, batch.ack.last) == (1, 2)


async def test_refusal_after_a_lost_commit(js, subject, batches, make_event, lose):
    """The first attempt is not stored, and the second one refused: nothing is stored."""
    await publish(js, [make_event(1)], subject)
    lose(only(1, is_message=True))
    with pytest.raises(AtomicBatchError) as info:
        await publish(js, [make_event(0), make_event(1)], subject)
    assert (info.value.err_code, info.value.position) == (10201, 1)
    assert await ids(js, batches) == ["event 1"]


async def test_stored_batch_that_was_consumed_is_not_reported_as_refused(js, subject, batches, make_event, lose):
    """The stream deletes the batch before it is searched for it, and refuses the copy."""
    lose(only(1, is_message=False))

    async def is_stored():
        return (await js.stream_info(batches)).state.messages

    async def purge():
        await until(is_stored)
        await js.purge_stream(batches)

    purging = asyncio.create_task(purge())
    with pytest.raises(DeliveryError) as info:
        await publish(js, [make_event(0), make_event(1)], subject)
    await purging
    assert info.value.code == "timeout"
    assert "contains duplicate message id" in info.value.message


async def test_all_replies_are_lost(js, subject, batches, make_event, lose):
    """No commit was sent, so nothing is stored."""
    lose(lambda number: False)
    with pytest.raises(DeliveryError) as info:
        await publish(js, map(make_event, range(2)), subject, retry_timeout=0.5)
    assert info.value.code == "temporarily-unavailable"
    assert info.value.message.endswith("; no event is stored")
    assert await ids(js, batches) == []


async def test_cancelled_commit(js, subject, batches, make_event, lose):
    outcomes, sent = [], asyncio.Event()

    def lose_commit(number):
        if number == 1:
            sent.set()
            return True
        return None

    lose(lose_commit)
    publishing = publish(js, map(make_event, range(2)), subject, on_outcome=outcomes.append, ack_timeout=SECONDS)
    task = asyncio.create_task(publishing)
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(one.kind, one.error.code) for one in outcomes] == [(OutcomeKind.UNACKNOWLEDGED, "timeout")] * 2


# --- Limits of the server --------------------------------------------------------------------------------------------


async def test_stream_that_cannot_be_looked_up(nc, subject, batches, make_event):
    """Nothing was sent, so the error is not a timeout."""
    await nc.subscribe("silent.API.>")
    with pytest.raises(DeliveryError) as info:
        await publish(nc.jetstream(prefix="silent.API", timeout=0.1), [make_event(1)], subject, retry_timeout=0)
    assert info.value.code == "temporarily-unavailable"


async def test_too_many_batches_in_flight(nc, js, subject, batches, make_event):
    """The server allows 50 for a stream, and abandons a batch after 10 seconds."""
    block = {"Nats-Batch-Sequence": "1"}
    for number in range(50):
        await nc.request(subject, b"", headers={**block, "Nats-Batch-Id": f"other{number}"})
    with pytest.raises(AtomicBatchError) as info:
        await publish(js, [make_event(1), make_event(2)], subject, retry_timeout=0.3)
    assert (info.value.code, info.value.err_code) == ("temporarily-unavailable", 10210)
    task = asyncio.create_task(publish(js, [make_event(1), make_event(2)], subject))
    # A gap ends another batch.
    await nc.request(subject, b"", headers={"Nats-Batch-Sequence": "9", "Nats-Batch-Id": "other0"})
    assert (await task).last == 2


# --- Replies ---------------------------------------------------------------------------------------------------------


def staged(count, subject="orders"):
    message = NatsMessage(subject, b"x")
    return [(message, encode_header_block({"a": "b"}))] * count


async def attempt(*script, count=2, make_last=None):
    """Return the result of an attempt to send a batch to a scripted server."""
    async with scripted(*script) as (server, nc):
        attempt = Attempt(nc, staged(count), "S", 0.5)
        task = asyncio.create_task(attempt.run())
        if make_last is not None:
            await server.receives(count)
            for line in make_last(attempt.batch_id):
                server.send(server.received[-1], line)
        return await asyncio.wait_for(task, SECONDS)


async def test_reply_with_another_batch_is_no_acknowledgement():
    """Nor is one with another number of events, or without a batch."""

    def replies(batch_id):
        ack = {"stream": "S", "seq": 9, "batch": batch_id, "count": 1}
        return [{**ack, "batch": "other", "seq": 5}, {**ack, "count": 2}, [], "x", {}, ack]

    result = await attempt(count=1, make_last=replies)
    assert isinstance(result, BatchAck)
    assert (result.first, result.last, result.of(0).seq) == (9, 9, 9)


async def test_server_that_ignores_batches_stores_one_event():
    async with scripted({"stream": "S", "seq": 7}) as (server, nc):
        result = await asyncio.wait_for(Attempt(nc, staged(3), "S", SECONDS).run(), SECONDS)
        assert (result.error.code, result.position, result.may_be_stored) == ("incompatible-config", 0, False)
        assert "has stored the event at position 0 at once, with sequence 7" in result.error.message
        assert len(server.received) == 1


async def test_missing_stream_leaves_nothing_unknown():
    result = await attempt(NO_RESPONDERS, count=1)
    assert (result.error.code, result.may_be_stored) == ("no-responders", False)


async def test_missing_reply_to_the_commit_is_unknown():
    result = await attempt(count=1)
    assert (result.error.code, result.may_be_stored) == ("timeout", True)


async def test_connection_that_is_lost_after_the_commit_is_unknown():
    async with scripted() as (server, nc):
        task = asyncio.create_task(Attempt(nc, staged(1), "S", SECONDS).run())
        await server.receives(1)
        server.writer.close()
        result = await asyncio.wait_for(task, SECONDS)
    assert (result.error.code, result.may_be_stored) == ("connection-closed", True)


def test_headers_of_a_batch():
    assert batch_lines("x", 0, is_last=False) == b"Nats-Batch-Id: x\r\nNats-Batch-Sequence: 1\r\n"
    assert batch_lines("x", 9, is_last=True).endswith(b"Sequence: 10\r\nNats-Batch-Commit: 1\r\n")


async def test_denied_replies_leave_the_commit_unknown():
    users = '{user: deaf, password: p, permissions: {subscribe: {deny: ["_INBOX.>"]}}}'
    with NatsServer(
        jetstream=True, config=f"authorization {{ users: [{{user: admin, password: p}}, {users}] }}"
    ) as server:
        admin = await nats.connect(server.url, user="admin", password="p")
        await admin.jetstream().add_stream(name="S", subjects=["s"], allow_atomic=True)
        nc = await nats.connect(server.url, user="deaf", password="p", error_cb=ignore)
        for count, may_be_stored in ((2, False), (1, True)):
            result = await asyncio.wait_for(Attempt(nc, staged(count, "s"), "S", SECONDS).run(), SECONDS)
            assert (result.error.code, result.may_be_stored) == ("permission-denied", may_be_stored)

        async def is_stored():
            return (await admin.jetstream().stream_info("S")).state.messages == 1

        await until(is_stored)
        await nc.close()
        await admin.close()


async def test_connection_that_is_not_restored():
    """Nothing is sent to the buffer of nats-py, from which it would be sent after the error."""

    with NatsServer(jetstream=True) as server:
        # nats-py waits before its first attempt: wait_for before Python 3.12 may lose the cancellation of an attempt.
        nc = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=30, error_cb=ignore)
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"], allow_atomic=True)
        commit = AtomicCommit(js, staged(2, "s"), stream="S", ack_timeout=0.3, retry_timeout=0.5)
        stream = await commit._look_up_stream()
        server.kill()
        await until(lambda: not nc.is_connected)
        with pytest.raises(DeliveryError) as info:
            await commit._until_connected(stream, History(0.0, 0.0, 0.3))
        assert info.value.code == "temporarily-unavailable"
        assert nc.pending_data_size == 0
        await nc.close()
