"""Write frames that were encoded elsewhere, which nats-py's public functions cannot."""

from __future__ import annotations

import asyncio
from typing import Final

import nats.errors
from nats.aio.client import Client

from ._private import get, put

_CRLF: Final = b"\r\n"
# Size of joined frames after which others are not added.
_MAX_JOINED: Final = 2**15


async def send_publish(nc: Client, frame: bytes, payload_size: int, count: int = 1) -> None:
    """Write PUB or HPUB frames as ``nc.publish()`` does: count them, and buffer them while nats-py reconnects."""
    write_publish_frame(nc, frame, payload_size, count)
    if 0 < get(nc, "_max_pending_size") < nc.pending_data_size:
        await send_buffer(nc)


async def send_buffer(nc: Client) -> None:
    """Wait until nats-py has sent its buffer; it waits if the server does not read."""
    await get(nc, "_flush_pending")(force_flush=True)


def write_publish_frame(nc: Client, frame: bytes | bytearray, payload_size: int, count: int = 1) -> None:
    """
    Write frames as :func:`send_publish` does, without waiting if nats-py's buffer is full.

    The caller bounds what it writes: it calls :func:`send_buffer` when ``nc.pending_data_size`` is large.
    """
    if not nc.is_connected:
        _check_buffer(nc, payload_size)
    nc.stats["out_msgs"] += count
    nc.stats["out_bytes"] += payload_size
    get(nc, "_pending").append(frame)
    put(nc, "_pending_data_size", nc.pending_data_size + len(frame))
    flushes = get(nc, "_flush_queue")
    if flushes.empty() and nc.is_connected:
        flushes.put_nowait(asyncio.get_running_loop().create_future())


class FrameBuffer:
    """
    Writes frames as :func:`write_publish_frame` does, and joins them within nats-py's buffer.

    nats-py has each frame at once, so it is sent before what is written to the connection later, and also if the
    connection is closed next. Frames that follow each other cost one object, and one call of nats-py's flusher.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        # The last element of nats-py's buffer as long as nothing else was written, nor the buffer sent.
        self._frames = bytearray()
        for name in ("_pending", "_pending_data_size"):
            get(nc, name)

    def write(self, line: bytes, block: bytes, data: bytes) -> None:
        """Write a frame."""
        nc, frames = self._nc, self._frames
        size = len(block) + len(data)
        if size > _MAX_JOINED:
            write_publish_frame(nc, b"".join((line, block, data, _CRLF)), size)
            return
        pending = nc._pending
        if not pending or pending[-1] is not frames or len(frames) > _MAX_JOINED or not nc.is_connected:
            if not nc.is_connected:
                _check_buffer(nc, size)
            self._frames = frames = bytearray()
            write_publish_frame(nc, frames, 0, 0)
        frames += line
        frames += block
        frames += data
        frames += _CRLF
        nc._pending_data_size += len(line) + size + len(_CRLF)
        stats = nc.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += size


def _check_buffer(nc: Client, payload_size: int) -> None:
    if nc.is_closed:
        raise nats.errors.ConnectionClosedError
    if nc.is_draining_pubs:
        raise nats.errors.ConnectionDrainingError
    limit = get(nc, "_max_pending_size")
    if limit <= 0 or nc.pending_data_size + payload_size > limit:
        raise nats.errors.OutboundBufferLimitError


def check_writable(nc: Client, size: int) -> None:
    """Check whether nats-py sends what is written on a connection that is not connected now."""
    if not nc.is_connected:
        _check_buffer(nc, size)
