"""
The outcome of a published message for each answer of a stream, and for none.

The server is a script, which gives answers that real servers rarely give, and counts messages. Real servers are in
test_publisher.py and in the folder ``scenarios``.
"""

import asyncio
from contextlib import asynccontextmanager

import nats
import pytest

from ce_nats import DeliveryError, Headers, NatsMessage
from ce_nats.aio import PublishResult
from ce_nats.aio.publishing import _pending_acks
from ce_nats.aio.publishing._lane import BURST, LARGE_BYTES
from ce_nats.aio.publishing._pending_acks import PendingAcks
from ce_nats.wire.nats import encode_header_block
from tests.support.scripted_server import (
    ACK,
    IN_PROCESS,
    NO_ANSWER,
    NO_RESPONDERS,
    REFUSED,
    SECONDS,
    TOO_MANY,
    scripted,
)


@asynccontextmanager
async def pending_acks(*script, window=10, ack_timeout=SECONDS, retry_timeout=SECONDS):
    async with scripted(*script) as (server, nc):
        server.done = []
        acks = PendingAcks(
            nc,
            lambda item, result: server.done.append((item.tag, result)),
            window=window,
            ack_timeout=ack_timeout,
            retry_timeout=retry_timeout,
        )
        async with acks:
            yield server, acks


async def send(acks, tag=None, **headers):
    message = NatsMessage(
        "orders", b"data", Headers({name.replace("_", "-"): value for name, value in headers.items()})
    )
    return await acks.send(message, encode_header_block(message.headers) if headers else b"", tag)


async def failure(item):
    with pytest.raises(DeliveryError) as info:
        await asyncio.wait_for(item.ack, SECONDS)
    return info.value


async def test_acknowledgement_completes_the_future():
    async with pending_acks(ACK) as (server, acks):
        item = await send(acks, "a")
        assert (await asyncio.wait_for(item.ack, SECONDS)).seq == 7
        assert [(tag, ack.stream) for tag, ack in server.done] == [("a", "S")]
        assert acks.has_stream
        assert not acks.pending
        await acks.drain()


@pytest.mark.parametrize(("attempts", "expected"), [(0, 1), (1, 0)])
async def test_duplicate_of_another_sender(attempts, expected):
    """A duplicate of a message that was resent is not counted."""
    async with pending_acks({**ACK, "duplicate": True}) as (_, acks):
        item = await acks.send(NatsMessage("orders", b""), b"", attempts=attempts)
        await asyncio.wait_for(item.ack, SECONDS)
        assert acks.tally.result == PublishResult(1, expected)


async def test_refusal_is_final():
    async with pending_acks(REFUSED) as (server, acks):
        error = await failure(await send(acks, "a", Nats_Msg_Id="1"))
        assert (error.code, error.message) == ("publish-refused", "orders: wrong last sequence: 3 (10071)")
        assert error.__cause__.err_code == 10071
        assert len(server.received) == 1
        assert server.done == [("a", error)]


@pytest.mark.parametrize("answer", [{}, {"seq": 1}, "text", [1], {"stream": 1}], ids=str)
async def test_reply_that_is_not_a_puback_is_an_error(answer):
    async with pending_acks(answer) as (_, acks):
        assert (await failure(await send(acks))).code == "unexpected-answer"
        assert not acks.has_stream


@pytest.mark.parametrize("reply", [IN_PROCESS, TOO_MANY], ids=["in process", "too many requests"])
async def test_message_that_is_not_stored_now_is_resent(reply):
    """Also without a Nats-Msg-Id: the server reports that it is not stored."""
    async with pending_acks(reply, reply, ACK) as (server, acks):
        item = await send(acks)
        await asyncio.wait_for(item.ack, SECONDS)
        assert len(server.received) == 3
        assert item.attempts == 1


async def test_unanswered_message_with_an_id_is_resent():
    async with pending_acks(NO_ANSWER, NO_ANSWER, ACK, ack_timeout=0.1) as (server, acks):
        item = await send(acks, Nats_Msg_Id="1")
        await asyncio.wait_for(item.ack, SECONDS)
        assert item.attempts == 3
        assert {(frame.subject, frame.payload, frame.reply) for frame in server.received} == {
            ("orders", b"data", server.received[0].reply)
        }


@pytest.mark.parametrize(
    "headers",
    [{}, {"Nats_Msg_Id": "1", "Nats_Expected_Last_Sequence": "0"}],
    ids=["without an id", "with an expectation"],
)
async def test_unanswered_message_that_cannot_be_resent_is_a_timeout(headers):
    async with pending_acks(NO_ANSWER, ACK, ack_timeout=0.1) as (server, acks):
        assert (await failure(await send(acks, **headers))).code == "timeout"
        assert len(server.received) == 1


async def test_resending_ends_with_a_timeout():
    async with pending_acks(ack_timeout=0.1, retry_timeout=0.5) as (server, acks):
        assert (await failure(await send(acks, Nats_Msg_Id="1"))).code == "timeout"
        assert len(server.received) > 1


async def test_no_responders_is_retried_until_the_stream_lookup_confirms_it():
    async with pending_acks(*[NO_RESPONDERS] * 100) as (server, acks):
        error = await failure(await send(acks))
        assert error.code == "no-responders"
        assert "create one with js.add_stream" in error.message
        assert len(server.received) > 1


async def test_no_responders_after_an_acknowledgement_is_retried():
    async with pending_acks(ACK, NO_RESPONDERS, ACK) as (server, acks):
        await asyncio.wait_for((await send(acks)).ack, SECONDS)
        await asyncio.wait_for((await send(acks)).ack, SECONDS)
        assert len(server.received) == 3


async def test_send_waits_for_a_slot_in_the_window():
    async with pending_acks(window=2) as (server, acks):
        first, _ = await send(acks), await send(acks)
        third = asyncio.create_task(send(acks))
        await server.receives(2)
        assert not third.done()
        server.send(server.received[0], ACK)
        await asyncio.wait_for(third, SECONDS)
        assert first.ack.done()


async def test_closed_connection_is_a_timeout():
    """The message may be stored; no acknowledgement can arrive."""
    async with pending_acks() as (server, acks):
        item = await send(acks, Nats_Msg_Id="1")
        await server.receives(1)
        await acks.nc.close()
        assert (await failure(item)).code == "timeout"


# --- Messages that are written together -----------------------------------------------------------------------------


async def test_messages_of_one_iteration_of_the_loop_are_written_together():
    async with pending_acks(*[ACK] * 100, window=100) as (server, acks):
        await acks.send(NatsMessage("orders", b"0"), b"")
        assert acks.nc.pending_data_size == 0
        for number in range(1, BURST):
            await acks.send(NatsMessage("orders", b"%d" % number), b"")
        frames = acks.nc.pending_data_size
        assert frames > 0
        await acks.send(NatsMessage("orders", b"%d" % BURST), b"")
        assert acks.nc.pending_data_size == frames
        await asyncio.wait_for(acks.drain(), SECONDS)
        assert [frame.payload for frame in server.received] == [b"%d" % number for number in range(BURST + 1)]
        assert acks.nc.stats["out_msgs"] == BURST + 1


async def test_large_message_is_written_at_once():
    async with pending_acks(ACK, ACK) as (server, acks):
        small = await send(acks)
        large = await acks.send(NatsMessage("orders", bytes(LARGE_BYTES)), b"")
        assert acks.nc.pending_data_size > LARGE_BYTES
        await asyncio.wait_for(asyncio.gather(small.ack, large.ack), SECONDS)
        assert [len(frame.payload) for frame in server.received] == [4, LARGE_BYTES]


async def test_messages_are_written_before_the_end_of_the_block():
    async with scripted() as (server, nc):
        acks = PendingAcks(nc, lambda *_: None, window=10, ack_timeout=SECONDS, retry_timeout=SECONDS)
        async with acks:
            item = await send(acks)
        assert item.ack.cancelled()
        await asyncio.wait_for(server.receives(1), SECONDS)


async def test_failed_message_is_not_written():
    async with pending_acks() as (server, acks):
        first, second = await send(acks, Nats_Msg_Id="1"), await send(acks, Nats_Msg_Id="2")
        acks.fail(first.token, DeliveryError("timeout", ""))
        await server.receives(1)
        assert [frame.headers.get("Nats-Msg-Id") for frame in server.received] == ["2"]
        assert [token for token, item in acks.pending.items() if item is second] == [second.token]


async def test_connection_that_is_closed_before_the_write_is_a_timeout():
    async with pending_acks() as (server, acks):
        item = await send(acks)
        await acks.nc.close()
        assert (await failure(item)).code == "timeout"
        assert server.received == []


async def test_messages_that_do_not_fit_into_the_buffer_are_resent(monkeypatch):
    """Without a Nats-Msg-Id, too: they were not sent."""
    async with pending_acks(ACK, ACK) as (_, acks):

        def refuse(*_):
            raise nats.errors.OutboundBufferLimitError

        monkeypatch.setattr(_pending_acks, "write_publish_frame", refuse)
        items = [await send(acks), await send(acks)]
        assert [item.attempts for item in items] == [1, 1]
        await asyncio.sleep(0)
        assert [item.attempts for item in items] == [0, 0]
        monkeypatch.undo()
        for item in items:
            await asyncio.wait_for(item.ack, SECONDS)
        assert [item.attempts for item in items] == [1, 1]


async def test_fault_of_the_write_fails_all_messages(monkeypatch):
    async with pending_acks() as (_, acks):
        monkeypatch.setattr(_pending_acks, "write_publish_frame", None)
        item = await send(acks)
        assert (await failure(item)).code == "delivery-failed"


# --- The end of the window ------------------------------------------------------------------------------------------


async def test_late_answers_are_ignored():
    async with pending_acks(ACK) as (server, acks):
        item = await send(acks, "a")
        await asyncio.wait_for(item.ack, SECONDS)
        server.send(server.received[0], REFUSED)
        await acks.nc.flush()
        assert len(server.done) == 1


async def test_send_outside_of_the_block_is_an_error():
    async with pending_acks() as (_, acks):
        pass
    with pytest.raises(DeliveryError) as info:
        await send(acks)
    assert info.value.code == "not-open"


async def test_end_of_the_block_cancels_pending_futures():
    async with pending_acks() as (_, acks):
        item = await send(acks)
    assert item.ack.cancelled()
