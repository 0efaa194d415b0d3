"""Outcomes of the messages of a publisher, and the number of duplicates; resending is in test_pending_acks.py."""

import asyncio
from contextlib import asynccontextmanager

import nats.errors
import pytest
from nats.js.api import PubAck

from ce_nats import DeliveryError, ErrorCode
from ce_nats.aio._reply_inbox import ReplyInbox
from ce_nats.aio.link._writing import FrameBuffer
from ce_nats.aio.publishing._outbox import Outbox
from ce_nats.aio.publishing._pending_message import PendingMessage
from tests.support.scripted_server import SECONDS, scripted

ERROR = DeliveryError(ErrorCode.PUBLISH_REFUSED, "refused")


@asynccontextmanager
async def outbox(count):
    """Yield an outbox with messages in its window, and their outcomes, on a server that does not reply."""
    async with scripted() as (server, nc):
        done = {}
        box = Outbox(
            nc,
            lambda item, outcome: done.update({item.token: outcome}),
            size=10,
            ack_timeout=SECONDS,
            retry_timeout=SECONDS,
            api_prefix="$JS.API",
            read=lambda *_: None,
            check=lambda _: None,
            denied=lambda _: False,
            absent=lambda *_: None,
        )
        await box.window.open(ReplyInbox.of(nc))
        loop = asyncio.get_running_loop()
        items = [
            box.window.unacknowledged.add(
                PendingMessage(str(number), "s", 0.0, loop.create_future(), b"data", b"", None, 0.0)
            )
            for number in range(1, count + 1)
        ]
        yield server, box, items, done
        await box.window.close()


async def test_message_is_written_with_its_reply_subject():
    async with outbox(1) as (server, box, [item], _):
        box.publish(item)
        assert item.attempts == 1
        await server.receives(1)
        assert server.received[0].subject == "s"
        assert server.received[0].reply == f"{box.window.prefix}1"


async def test_message_is_due_soon_if_the_buffer_is_full(monkeypatch):
    def refuse(*_):
        raise nats.errors.OutboundBufferLimitError

    monkeypatch.setattr(FrameBuffer, "write", refuse)
    async with outbox(1) as (_, box, [item], _):
        box.publish_batched([item])
        assert item.attempts == 0
        assert 0 < item.due - asyncio.get_running_loop().time() < 1


async def test_acknowledgement_of_a_batch_ends_those_that_have_not_failed():
    async with outbox(4) as (_, box, items, done):
        box.fail(items[1], ERROR)
        ack = PubAck("S", 0)
        box.finish_all(items[:3], ack)
        assert done == {"1": ack, "2": ERROR, "3": ack}
        assert [item.has_failed for item in items] == [False, True, False, False]
        assert list(box.window.unacknowledged.items) == ["4"]
        assert (box.tally.messages, box.tally.batched, box.tally.duplicates) == (2, 2, None)
        with pytest.raises(DeliveryError, match="refused"):
            await items[1].ack


async def test_sequence_or_duplicate_is_known_of_a_batch():
    async with outbox(2) as (_, box, items, _):
        for item in items:
            item.attempts = 1
        box.finish_all(items[:1], PubAck("S", 7))
        box.finish_all(items[1:], PubAck("S", 0, None, True))
        assert (box.tally.messages, box.tally.batched, box.tally.duplicates) == (2, 1, 1)
        assert box.search.has_stream


async def test_late_message_fails_with_its_last_error():
    async with outbox(2) as (_, box, items, done):
        items[1].last_error = ERROR
        for item in items:
            box.fail_late(item)
        assert (done["1"].code, done["2"]) == ("timeout", ERROR)


async def test_too_large_message_fails_with_its_size():
    async with outbox(1) as (_, box, [item], done):
        assert not box.is_too_large(item)
        item.data = b"x" * (box.nc.max_payload + 1)
        assert box.is_too_large(item)
        box.fail_too_large(item)
        assert done["1"].code == "payload-too-large"
        assert str(len(item.data)) in str(done["1"])
