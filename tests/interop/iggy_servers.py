"""
Just enough of an Iggy server to exchange messages with a client: what it is sent, and what it has to give.

Iggy has no server that can be had from a package index. Around the messages, of which ce_nats writes and reads every
byte, there is only what the clients want to see: identifiers and counts.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from ce_nats.wire.iggy import IggyMessage, Layout, as_fields, as_message, decode_messages

_LOGIN, _POLL, _SEND = 38, 100, 101


class OldServer:
    """
    Iggy 0.4 over TCP: requests are length, code and body; answers are status, length and body.

    Attributes:
        sent: Messages that clients sent.
        stored: Bytes of messages that clients are given, as ``encode_message(polled=True)`` writes them.
    """

    def __init__(self, stored: Sequence[bytes] = ()) -> None:
        self.sent: list[IggyMessage] = []
        self.stored = stored

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack("<I", await reader.readexactly(4))
        request = await reader.readexactly(size)
        (code,) = struct.unpack_from("<I", request)
        reply = b""
        if code == _LOGIN:
            reply = struct.pack("<I", 1)  # user id
        elif code == _SEND:
            self.sent += decode_messages(_without_identifiers(request[4:]))
        elif code == _POLL:
            reply = struct.pack("<IQI", 1, 0, len(self.stored)) + b"".join(map(_of_version_0_4, self.stored))
        writer.write(struct.pack("<II", 0, len(reply)) + reply)
        await writer.drain()


def _without_identifiers(body: bytes) -> bytes:
    """Behind stream, topic and partitioning, each a kind, a length and a value, there are the messages."""
    for _ in range(3):
        body = body[2 + body[1] :]
    return body


def _of_version_0_4(message: bytes) -> bytes:
    """A polled message with the fields that came after August 2023: state (1, available) and checksum."""
    offset, timestamp, number, rest = message[:8], message[8:16], message[16:32], message[32:]
    return b"".join((offset, b"\1", timestamp, number, bytes(4), rest))


class HttpServer:
    """
    Iggy 0.9 over HTTP.

    Attributes:
        sent: Messages that clients sent.
        stored: Messages that clients are given.
    """

    def __init__(self, stored: Sequence[IggyMessage] = ()) -> None:
        self.sent: list[IggyMessage] = []
        self.stored = stored

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
        size = int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
        body = await reader.readexactly(size)
        text = json.dumps(self._reply(head, body)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text))
        writer.write(text)
        await writer.drain()

    def _reply(self, head: str, body: bytes) -> object:
        if head.startswith("post /users/login"):
            return {"user_id": 1, "access_token": {"token": "token", "expiry": 4_102_444_800}}
        if head.startswith("post "):
            messages = json.loads(body)["messages"]
            self.sent += [as_message(fields, layout=Layout.TYPED_KEYS) for fields in messages]
            return {"confirmations": []}
        if head.startswith("get /ping"):
            return {}
        messages = [_of_version_0_9(as_fields(message, layout=Layout.TYPED_KEYS)) for message in self.stored]
        return {"partition_id": 1, "current_offset": len(messages), "count": len(messages), "messages": messages}


def _of_version_0_9(fields: dict[str, object]) -> dict[str, object]:
    """A polled message, whose numbers are in an object of their own, with others that are only there."""
    header = {name: fields.pop(name) for name in ("id", "offset", "timestamp")}
    others = ("checksum", "origin_timestamp", "user_headers_length", "payload_length", "reserved")
    return {**fields, "header": {**header, **dict.fromkeys(others, 0)}}


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Answer one request after the other on every connection; gives host and port."""
    connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            while True:
                await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for writer in connections:
            writer.close()
        await server.wait_closed()
