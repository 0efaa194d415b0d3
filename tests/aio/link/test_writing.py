"""Frames that were encoded elsewhere arrive in the order in which they were written."""

import asyncio

import nats.errors
import pytest

from ce_nats.aio import connect, subscribe
from ce_nats.aio._connect import disconnect
from ce_nats.aio.link._writing import FrameBuffer, check_writable, send_publish, write_publish_frame
from ce_nats.testing import NatsServer
from tests.support.waiting import until


async def test_frames_arrive_in_the_order_in_which_they_were_written(nc, subject):
    """Small ones are joined; a large one, and those of other functions, are not."""
    buffer, line = FrameBuffer(nc), f"PUB {subject} %d\r\n"
    async with subscribe(nc, subject) as received:
        before = dict(nc.stats)
        buffer.write((line % 1).encode(), b"", b"1")
        buffer.write((line % 1).encode(), b"", b"2")
        buffer.write((line % 40_001).encode(), b"", b"3" + bytes(40_000))
        write_publish_frame(nc, (line % 1).encode() + b"4\r\n", 1)
        buffer.write((line % 1).encode(), b"", b"5")
        await nc.publish(subject, b"6")
        await send_publish(nc, (line % 1).encode() + b"7\r\n", 1)
        data = [(await asyncio.wait_for(anext(received), 30)).message.data[:1] for _ in range(7)]
    assert data == [b"%d" % number for number in range(1, 8)]
    assert nc.stats["out_msgs"] - before["out_msgs"] == 7
    assert nc.stats["out_bytes"] - before["out_bytes"] == 40_007


async def test_buffer_is_limited_while_the_connection_is_lost():
    with NatsServer() as server:
        nc = await connect(server.url, pending_size=1000)
        check_writable(nc, 2000)
        server.kill()
        await until(lambda: not nc.is_connected)
        write_publish_frame(nc, b"PUB s 0\r\n\r\n", 0)
        for write in (lambda: check_writable(nc, 2000), lambda: FrameBuffer(nc).write(b"", b"", bytes(2000))):
            with pytest.raises(nats.errors.OutboundBufferLimitError):
                write()
        await disconnect(nc)
        with pytest.raises(nats.errors.ConnectionClosedError):
            check_writable(nc, 1)
