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
from ce_nats.aio.link._writing import FrameBuffer
from ce_nats.aio.publishing._batches import BURST
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
        for number in range(BURST + 1):
            before = acks.nc.pending_data_size
            await acks.send(NatsMessage("orders", b"%d" % number), b"")
            assert acks.nc.pending_data_size > before
        assert len(acks.nc._pending) == 1
        assert acks.nc.pending_data_size == len(acks.nc._pending[0])
        await asyncio.wait_for(acks.drain(), SECONDS)
        assert [frame.payload for frame in server.received] == [b"%d" % number for number in range(BURST + 1)]
        assert acks.nc.stats["out_msgs"] == BURST + 1
        assert acks.nc.stats["out_bytes"] == sum(len(b"%d" % number) for number in range(BURST + 1))


async def test_messages_stay_in_the_order_of_others_on_the_connection():
    async with pending_acks(window=20) as (server, acks):
        expected = [b"%d" % number for number in range(20)]
        for number, payload in enumerate(expected):
            if number % 3:
                await acks.send(NatsMessage("orders", payload), b"")
            else:
                await acks.nc.publish("orders", payload)
        await server.receives(20)
        assert [frame.payload for frame in server.received] == expected


@pytest.mark.parametrize("size", [2**15 - 100, 2**15, 2**20 - 100])
async def test_large_messages_are_written_in_order(size):
    async with pending_acks(*[ACK] * 12, window=100) as (server, acks):
        sizes = [4, size, 4] * 4
        items = [await acks.send(NatsMessage("orders", bytes(size)), b"") for size in sizes]
        await asyncio.wait_for(asyncio.gather(*(item.ack for item in items)), SECONDS)
        assert [len(frame.payload) for frame in server.received] == sizes


async def test_messages_are_written_before_the_end_of_the_block():
    async with scripted() as (server, nc):
        acks = PendingAcks(nc, lambda *_: None, window=10, ack_timeout=SECONDS, retry_timeout=SECONDS)
        async with acks:
            item = await send(acks)
        assert item.ack.cancelled()
        await asyncio.wait_for(server.receives(1), SECONDS)


async def test_messages_are_sent_if_the_connection_is_closed_next():
    async with pending_acks() as (server, acks):
        items = [await send(acks) for _ in range(3)]
        await acks.nc.close()
        assert [(await failure(item)).code for item in items] == ["timeout"] * 3
        await asyncio.wait_for(server.receives(3), SECONDS)


async def test_messages_that_do_not_fit_into_the_buffer_are_resent(monkeypatch):
    """Without a Nats-Msg-Id, too: they were not sent."""
    async with pending_acks(ACK, ACK) as (_, acks):

        def refuse(*_):
            raise nats.errors.OutboundBufferLimitError

        monkeypatch.setattr(FrameBuffer, "write", refuse)
        items = [await send(acks), await send(acks)]
        assert [item.attempts for item in items] == [0, 0]
        monkeypatch.undo()
        for item in items:
            await asyncio.wait_for(item.ack, SECONDS)
        assert [item.attempts for item in items] == [1, 1]


async def test_fault_of_the_write_is_raised(monkeypatch):
    async with pending_acks() as (_, acks):
        monkeypatch.setattr(FrameBuffer, "write", None)
        with pytest.raises(TypeError):
            await send(acks)
        assert acks.pending == {}


# --- The end of the window ------------------------------------------------------------------------------------------


async def test_send_outside_of_the_block_is_an_error():
    async with pending_acks() as (_, acks):
        pass
    with pytest.raises(DeliveryError) as info:
        await send(acks)
    assert info.value.code == "not-open"
