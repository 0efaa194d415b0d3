"""
Minimal Iggy servers that exchange messages with a client: they record sent messages, and return given ones.

Package indexes have no Iggy server. ce_nats encodes and decodes all bytes of the messages; these servers add only the
identifiers and counts around them that the clients require.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from ce_nats.iggy import IggyMessage, Layout, as_fields, as_message, decode_headers, decode_messages, encode_headers
from tests.support.listening import serving

_PING, _LOGIN, _POLL, _SEND = 1, 38, 100, 101
# Size in bytes of a header in version 0.9.
_HEAD = 256
_REGISTER, _SEND_OPERATION = 1, 160
_REPLY = 8
_INVALID_COMMAND = 3


class OldServer:
    """
    Iggy 0.4 over TCP: requests are length, code and body; replies are status, length and body.

    Attributes:
        sent: Messages that clients sent.
        stored: Bytes of messages that clients poll, as ``encode_message(polled=True)`` returns them.
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
    """Return the messages, which follow stream, topic and partitioning, each a kind, a length and a value."""
    for _ in range(3):
        body = body[2 + body[1] :]
    return body


def _of_version_0_4(message: bytes) -> bytes:
    """Add the fields of a polled message that are newer than August 2023: state (1, available) and checksum."""
    offset, timestamp, number, rest = message[:8], message[8:16], message[16:32], message[32:]
    return b"".join((offset, b"\1", timestamp, number, bytes(4), rest))


class TcpServer:
    """
    Iggy 0.9 over TCP: requests and replies have 256 bytes of header, and so has a batch of messages.

    Attributes:
        sent: Messages that clients sent.
        stored: Messages that clients poll, with consecutive offsets.
    """

    def __init__(self, stored: Sequence[IggyMessage] = ()) -> None:
        self.sent: list[IggyMessage] = []
        self.stored = stored

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(_HEAD)
        (size,) = struct.unpack_from("<I", head, 48)
        body = await reader.readexactly(size - _HEAD)
        operation, (code,) = head[176], struct.unpack_from("<I", head, 196)
        reply, status = b"", 0
        if operation == _REGISTER:
            reply = struct.pack("<IIQI", 0, 1, 1, 1) + b"\x050.9.0"  # no errors, user, session, protocol, version
        elif operation == _SEND_OPERATION:
            self.sent += _messages_of_batch(body)
            reply = struct.pack("<I", 0)  # confirmations
        elif code == _POLL:
            reply = struct.pack("<IQI", 1, 0, len(self.stored)) + _batch(self.stored)
        elif code != _PING:
            status = _INVALID_COMMAND
        answer = bytearray(_HEAD)
        struct.pack_into("<I", answer, 48, _HEAD + len(reply))
        answer[60], answer[208] = _REPLY, operation
        struct.pack_into("<I", answer, 216, status)
        writer.write(bytes(answer) + reply)
        await writer.drain()


def _messages_of_batch(body: bytes) -> list[IggyMessage]:
    (size,) = struct.unpack_from("<I", body)  # of the identifiers and the count
    frames, messages = body[4 + size + _HEAD :], []
    while frames:
        headers_size, payload_size = struct.unpack_from("<II", frames, 32)
        payload, headers = frames[48 : 48 + payload_size], frames[48 + payload_size :][:headers_size]
        headers_by_key = decode_headers(headers, layout=Layout.TYPED_KEYS)
        messages.append(IggyMessage(payload, headers_by_key, int.from_bytes(frames[8:24], "little")))
        frames = frames[48 + payload_size + headers_size :]
    return messages


def _batch(messages: Sequence[IggyMessage]) -> bytes:
    frames = b""
    for place, message in enumerate(messages):
        headers = encode_headers(message.headers, layout=Layout.TYPED_KEYS)
        frames += bytes(8) + message.id.to_bytes(16, "little")
        frames += struct.pack("<IIIIQ", place, 0, len(headers), len(message.payload), 0) + message.payload + headers
    position = (messages[0].offset, messages[0].timestamp, messages[0].timestamp)
    return struct.pack("<QQQQQQI", 1, *position, _HEAD + len(frames), 0, len(messages)).ljust(_HEAD, b"\0") + frames


class HttpServer:
    """
    Iggy 0.9 over HTTP.

    Attributes:
        sent: Messages that clients sent.
        stored: Messages that clients poll.
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
    """Return a polled message in the form of version 0.9: its numbers are in an object ``header``, with others."""
    header = {name: fields.pop(name) for name in ("id", "offset", "timestamp")}
    others = ("checksum", "origin_timestamp", "user_headers_length", "payload_length", "reserved")
    return {**fields, "header": {**header, **dict.fromkeys(others, 0)}}


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Run a server that answers the requests of each connection in order; yields host and port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await answer(reader, writer)

    async with serving(serve) as port:
        yield f"127.0.0.1:{port}"
