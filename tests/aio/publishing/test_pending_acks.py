"""
What becomes of a message for each answer that a stream may give, and for none.

The other end of the connection is a script, so that it says what a real server says only in rare moments, and so that
what is sent can be counted. How pending messages survive real servers is in test_publisher.py and test_faults.py.
"""

import asyncio
import json
from contextlib import asynccontextmanager

import nats
import pytest

from ce_nats import DeliveryError, Headers, NatsMessage
from ce_nats.aio.publishing._pending_acks import PendingAcks, is_duplicate
from ce_nats.wire.nats import FrameReader, encode_header_block, encode_hmsg

SECONDS = 20
ACK = {"stream": "S", "seq": 7}
IN_PROCESS = {"error": {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}}
REFUSED = {"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 3"}}
NO_ANSWER = object()
NO_RESPONDERS = object()


class ScriptedServer:
    """Answers each published message with the next line of a script; the API of JetStream knows no stream."""

    def __init__(self, script):
        self.script = list(script)
        self.received = []
        self.changed = asyncio.Event()

    async def serve(self, reader, writer):
        writer.write(b'INFO {"headers":true,"max_payload":1048576,"proto":1}\r\n')
        self.writer, self.sids = writer, {}
        frames = FrameReader()
        while data := await reader.read(65536):
            for frame in frames.feed(data):
                if frame.op == "SUB":
                    self.sids[frame.subject.removesuffix("*")] = frame.sid
                elif frame.op == "PING":
                    writer.write(b"PONG\r\n")
                elif frame.op in {"PUB", "HPUB"}:
                    self.answer(frame)
        writer.close()

    def answer(self, frame):
        if frame.subject.startswith("$JS.API."):
            self.send(frame, {"total": 0, "offset": 0, "limit": 1024, "streams": None})
            return
        self.received.append(frame)
        self.changed.set()
        line = self.script.pop(0) if self.script else NO_ANSWER
        if line is not NO_ANSWER:
            self.send(frame, line)

    def send(self, frame, line):
        sid = next(sid for inbox, sid in self.sids.items() if frame.reply.startswith(inbox))
        if line is NO_RESPONDERS:
            block = b"NATS/1.0 503\r\n\r\n"
            self.writer.write(f"HMSG {frame.reply} {sid} {len(block)} {len(block)}\r\n".encode() + block + b"\r\n")
        else:
            self.writer.write(encode_hmsg(frame.reply, sid, json.dumps(line).encode(), None))

    async def receives(self, number):
        while len(self.received) < number:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), SECONDS)


@asynccontextmanager
async def pending_acks(*script, window=10, ack_timeout=SECONDS, retry_timeout=SECONDS):
    server = ScriptedServer(script)
    server.done = []
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False) as nc:
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


async def test_an_acknowledgement():
    async with pending_acks(ACK) as (server, acks):
        item = await send(acks, "a")
        assert (await asyncio.wait_for(item.ack, SECONDS)).seq == 7
        assert [(tag, ack.stream) for tag, ack in server.done] == [("a", "S")]
        assert acks.has_stream
        assert not acks.pending
        await acks.drain()


@pytest.mark.parametrize(("attempts", "expected"), [(0, True), (1, False)])
async def test_a_duplicate_of_another_sender(attempts, expected):
    """A copy that was sent here before is found by the stream, too, and is no news."""
    async with pending_acks({**ACK, "duplicate": True}) as (_, acks):
        item = await acks.send(NatsMessage("orders", b""), b"", attempts=attempts)
        assert is_duplicate(item, await asyncio.wait_for(item.ack, SECONDS)) is expected


async def test_a_refusal_is_final():
    async with pending_acks(REFUSED) as (server, acks):
        error = await failure(await send(acks, "a", Nats_Msg_Id="1"))
        assert (error.code, error.message) == ("publish-refused", "orders: wrong last sequence: 3 (10071)")
        assert error.__cause__.err_code == 10071
        assert len(server.received) == 1
        assert server.done == [("a", error)]


@pytest.mark.parametrize("answer", [{}, {"seq": 1}, "text", [1], {"stream": 1}], ids=str)
async def test_what_is_not_an_acknowledgement(answer):
    async with pending_acks(answer) as (_, acks):
        assert (await failure(await send(acks))).code == "unexpected-answer"
        assert not acks.has_stream


async def test_a_copy_in_process_is_sent_again():
    """Without a Nats-Msg-Id, too: the server says that it has not stored this one."""
    async with pending_acks(IN_PROCESS, IN_PROCESS, ACK) as (server, acks):
        item = await send(acks)
        await asyncio.wait_for(item.ack, SECONDS)
        assert len(server.received) == 3
        assert item.attempts == 1


async def test_no_answer_is_sent_again_where_a_copy_is_recognized():
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
async def test_no_answer_is_a_timeout_where_a_copy_could_be_stored_or_refused(headers):
    async with pending_acks(NO_ANSWER, ACK, ack_timeout=0.1) as (server, acks):
        assert (await failure(await send(acks, **headers))).code == "timeout"
        assert len(server.received) == 1


async def test_no_answer_until_the_end():
    async with pending_acks(ack_timeout=0.1, retry_timeout=0.5) as (server, acks):
        assert (await failure(await send(acks, Nats_Msg_Id="1"))).code == "timeout"
        assert len(server.received) > 1


async def test_no_stream_is_asked_for_before_it_is_believed():
    async with pending_acks(*[NO_RESPONDERS] * 100) as (server, acks):
        error = await failure(await send(acks))
        assert error.code == "no-responders"
        assert "create one with js.add_stream" in error.message
        assert len(server.received) > 1


async def test_a_stream_that_has_acknowledged_may_be_without_a_leader():
    async with pending_acks(ACK, NO_RESPONDERS, ACK) as (server, acks):
        await asyncio.wait_for((await send(acks)).ack, SECONDS)
        await asyncio.wait_for((await send(acks)).ack, SECONDS)
        assert len(server.received) == 3


async def test_a_full_window_waits():
    async with pending_acks(window=2) as (server, acks):
        first, second = await send(acks), await send(acks)
        assert acks.is_full
        third = asyncio.create_task(send(acks))
        await server.receives(2)
        await asyncio.sleep(0.05)
        assert not third.done()
        second.ack.cancel()  # the message is pending although nobody awaits it
        await asyncio.sleep(0.05)
        assert not third.done()
        server.send(server.received[0], ACK)
        await asyncio.wait_for(third, SECONDS)
        assert first.ack.done()


async def test_the_end_of_the_connection_is_a_timeout():
    """It may have been stored, and nobody will ever say so."""
    async with pending_acks() as (server, acks):
        item = await send(acks, Nats_Msg_Id="1")
        await server.receives(1)
        await acks.nc.close()
        assert (await failure(item)).code == "timeout"


async def test_answers_that_nobody_waits_for_are_dropped():
    async with pending_acks(ACK) as (server, acks):
        item = await send(acks, "a")
        await asyncio.wait_for(item.ack, SECONDS)
        server.send(server.received[0], REFUSED)
        await acks.nc.flush()
        assert len(server.done) == 1


async def test_outside_of_the_block():
    async with pending_acks() as (_, acks):
        pass
    with pytest.raises(DeliveryError) as info:
        await send(acks)
    assert info.value.code == "not-open"


async def test_leaving_the_block_cancels_what_is_pending():
    async with pending_acks() as (_, acks):
        item = await send(acks)
    assert item.ack.cancelled()
