"""Dead letters are stored before their originals are terminated, and recognized if the consumer rereads them."""

import asyncio
import logging

import pytest
from nats.js.api import ConsumerConfig, StreamSource

from ce_nats.aio import PullConsumer, connect
from ce_nats.testing import NatsServer
from tests.support.consuming import acks, consume, is_settled, publish, until_consumer
from tests.support.waiting import until

__all__ = ["acks", "consume", "is_settled", "publish"]


async def test_original_is_terminated_after_its_dead_letter_is_acknowledged(nc, js, subject, consume, dead):
    seen = []

    async def note(message):
        seen.append((message.subject, message.data))

    await js.publish(subject, b"no event")
    await nc.subscribe(">", cb=note)
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until(lambda: any(data == b"+TERM" for _, data in seen))
        reader.cancel()
    stored = next(n for n, (subject, _) in enumerate(seen) if subject == dead)
    acked = next(n for n, (_, data) in enumerate(seen) if dead.replace(".", "_").encode() in data and b'"seq"' in data)
    terminated = next(n for n, (_, data) in enumerate(seen) if data == b"+TERM")
    assert stored < acked < terminated


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_loop_of_dead_letters_ends(js, subject, stream, dead, dead_letters, retention, caplog):
    """It arises after the consumer was entered: its stream sources that of the dead letters."""
    looped = f"{stream}_looped"
    await js.add_stream(name=looped, sources=[StreamSource(name=stream)], storage="memory", retention=retention)
    errors = []
    try:
        options = {"dead_letter": dead, "create": ConsumerConfig(), "backoff": [60]}
        async with PullConsumer(js, looped, "c", on_error=lambda error, _: errors.append(error), **options) as consumer:
            sources = [StreamSource(name=name) for name in (stream, dead.replace(".", "_"))]
            await js.update_stream((await js.stream_info(looped)).config.evolve(sources=sources))
            reader = asyncio.create_task(anext(consumer))
            await js.publish(subject, b"no event")
            await until(lambda: errors)
            left = 0 if retention == "limits" else 1
            await until_consumer(js, looped, lambda info: info.num_ack_pending == left and not info.num_pending, "c")
            reader.cancel()
        await dead_letters(1)
        state = (await js.stream_info(looped)).state
        assert (state.last_seq, state.messages) == ((2, 2) if retention == "limits" else (2, 1))
        assert [error.code for error in errors] == ["incompatible-config"]
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert f"must not read what is published to '{dead}'" in line
        assert line.endswith("; it stays in the stream" if retention == "limits" else "; redelivered later")
    finally:
        await js.delete_stream(looped)


async def test_dead_letters_on_a_mapped_subject(make_event, caplog):
    """Those that the consumer reads itself end, others are stored."""
    with NatsServer(jetstream=True, config='mappings = {"out.dead": "dead", "out.loop": "orders.loop"}') as server:
        async with connect(server.url) as nc:
            js = nc.jetstream()
            await js.add_stream(name="ORDERS", subjects=["orders.>"])
            await js.add_stream(name="DEAD", subjects=["dead"])
            for subject, left, dead in (("out.dead", 1, 1), ("out.loop", 3, 1)):
                async with PullConsumer(js, "ORDERS", "c", dead_letter=subject, create=ConsumerConfig()) as consumer:
                    assert f"no stream listens on the subject for dead letters, '{subject}'" in caplog.text
                    reader = asyncio.create_task(anext(consumer))
                    await js.publish("orders.new", b"no event")
                    await until_consumer(js, "ORDERS", lambda info, left=left: info.ack_floor.stream_seq == left)
                    reader.cancel()
                states = [(await js.stream_info(stream)).state.messages for stream in ("ORDERS", "DEAD")]
                assert states == [left, dead]
    assert "must not read what is published to 'out.loop'" in caplog.text
