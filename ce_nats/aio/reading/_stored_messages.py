"""
Read stored messages one by one through the API, and convert raw messages to StoredMessage.

Reading through the API needs no consumer, and one request for each message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from typing import Final

from nats.aio.client import Client

from ...codec.timestamp import Timestamp
from ...errors import DecodeError, DeliveryError, ErrorCode
from ...message import StoredMessage
from ...wire._ack_subject import parse_ack_subject
from .._jetstream_api import Stored, StreamApi
from ..link._frame_splitter import RawMessage
from ..link._link import denial

# Maximum number of requests in flight, and of bytes in their responses. The server disconnects a client with more than
# 64 MiB of pending data, and counts data until all of it is written, so responses can count twice.
_MAX_REQUESTS: Final = 128
_MAX_BYTES_IN_FLIGHT: Final = 24 * 2**20


async def read_one_by_one(
    nc: Client, api: StreamApi, stream: str, subject: str, first: int, last: int
) -> AsyncGenerator[Stored, None]:
    """Yield the messages of a range, with requests in flight."""
    in_flight: deque[asyncio.Task[Stored | None]] = deque()
    window = limit = _max_requests(nc)
    following, seen = first, first - 1  # next sequence to request; last sequence that was processed
    # One watch for all requests: answered() creates a task for each request, which reduces the rate by a third.
    with denial(nc, api.stored_subject(stream)) as denied:
        denied.add_done_callback(lambda _: [task.cancel() for task in in_flight])
        try:
            while following <= last or in_flight:
                while following <= last and len(in_flight) < window:
                    request = {"seq": following, "next_by_subj": subject}
                    in_flight.append(asyncio.create_task(api.stored(stream, request, is_watched=True)))
                    following += 1
                # Shielded: nats-py's wait_for() loses a cancellation that coincides with the response (before 3.12).
                message = await asyncio.shield(in_flight[0])
                in_flight.popleft()
                if message is None or message.seq > last:
                    return
                if message.seq > seen:
                    seen = message.seq
                    following = max(following, seen + 1)
                    window = min(limit, window + 1)
                    yield message
                else:
                    # An earlier request already returned this message, after a gap. The wider the gaps, the less useful
                    # are concurrent requests.
                    window = max(1, window // 2)
        except asyncio.CancelledError:
            if denied.done():
                raise denied.result() from None
            raise
        finally:
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)


def _max_requests(nc: Client) -> int:
    largest_answer = nc.max_payload * 4 // 3  # base64
    return max(1, min(_MAX_REQUESTS, _MAX_BYTES_IN_FLIGHT // largest_answer))


def metadata(reply: bytes) -> tuple[int, int]:
    """
    Return stream sequence and consumer sequence from the reply subject of a message.

    Raises:
        DeliveryError: ``unexpected-answer``: the reply subject has another form.
    """
    try:
        message = parse_ack_subject(reply.decode("utf-8", "replace"))
    except DecodeError as error:
        raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, error.message) from error
    return message.sequence, message.consumer_sequence


def as_message(stored: Stored, stream: str) -> StoredMessage:
    """Convert a message of the API, and parse its header block."""
    time = Timestamp.parse(stored.time)
    return StoredMessage(stored.subject, "", block_pairs(stored.hdrs), stored.data, stream, stored.seq, time)


def as_messages(raw: Iterable[RawMessage], stream: str) -> list[StoredMessage]:
    """Convert raw messages, and parse their header blocks."""
    known = _Lines()
    messages = []
    for subject, reply, data, block in raw:
        tokens = reply.split(b".")  # see parse_ack_subject()
        at = 5 if len(tokens) == 9 else 7
        time = Timestamp.from_nanoseconds(int(tokens[at + 2]))
        pairs = _pairs(block, known) if block else []
        messages.append(
            StoredMessage(subject.decode("utf-8", "replace"), "", pairs, data, stream, int(tokens[at]), time)
        )
    return messages


def block_pairs(block: bytes) -> list[tuple[str, str]]:
    """Return the headers of a stored block, as :func:`as_message` does."""
    return _pairs(block, _Lines())


class _Lines(dict[bytes, "tuple[str, str] | None"]):
    """Cache of name and value of header lines, None for a line without a colon. Most lines of a stream repeat."""

    def __missing__(self, line: bytes) -> tuple[str, str] | None:
        name, colon, value = line.decode("utf-8", "surrogateescape").partition(":")
        pair = self[line] = (name, value.strip(" \t")) if colon else None
        return pair


def _pairs(block: bytes, known: _Lines) -> list[tuple[str, str]]:
    """
    Return the headers of a stored block, which may have any content: the server does not check it.

    Lines without a colon are ignored. Names are unchanged, so that malformed names are visible.
    """
    return list(filter(None, map(known.__getitem__, block.split(b"\r\n")[1:])))
