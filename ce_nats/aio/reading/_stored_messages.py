"""
Messages of a stream: read one by one through the API, and made from what stands on the wire.

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
from .._permissions import denial
from ._raw_pull import RawMessage

# Requests in flight at a time, and the most bytes that their answers may have together. The server drops a client that
# has more than 64 MiB pending, and counts what it is writing until all of that is written, so answers can count twice.
_MAX_REQUESTS: Final = 128
_MAX_BYTES_UNDER_WAY: Final = 24 * 2**20


async def read_one_by_one(
    nc: Client, api: StreamApi, stream: str, subject: str, first: int, last: int
) -> AsyncGenerator[Stored, None]:
    """
    All messages of a range, requested ahead of their use.

    Args:
        nc: An open connection.
        api: JetStream's API on it.
        stream: Name of the stream.
        subject: Subject, wildcards allowed; messages on other subjects are skipped.
        first: First stream sequence, inclusive.
        last: Last stream sequence, inclusive, which is one that the stream has had.

    Raises:
        DeliveryError: As :meth:`StreamApi.state` does.
    """
    under_way: deque[asyncio.Task[Stored | None]] = deque()
    window = most = _max_requests(nc)
    ask, seen = first, first - 1  # next sequence to ask for; everything up to here is known
    # One watch for all requests: answered() makes a task for each, which costs a third of the rate.
    with denial(nc, api.stored_subject(stream)) as denied:
        denied.add_done_callback(lambda _: [task.cancel() for task in under_way])
        try:
            while ask <= last or under_way:
                while ask <= last and len(under_way) < window:
                    request = {"seq": ask, "next_by_subj": subject}
                    under_way.append(asyncio.create_task(api.stored(stream, request, is_watched=True)))
                    ask += 1
                # Shielded: nats-py's wait_for() loses a cancellation that comes together with the answer (before 3.12).
                message = await asyncio.shield(under_way[0])
                under_way.popleft()
                if message is None or message.seq > last:
                    return
                if message.seq > seen:
                    seen = message.seq
                    ask = max(ask, seen + 1)
                    window = min(most, window + 1)
                    yield message
                else:
                    # An earlier request returned this one, across a gap. The wider the gaps, the less it helps to
                    # request ahead.
                    window = max(1, window // 2)
        except asyncio.CancelledError:
            if denied.done():
                raise denied.result() from None
            raise
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


def _max_requests(nc: Client) -> int:
    largest_answer = nc.max_payload * 4 // 3  # base64
    return max(1, min(_MAX_REQUESTS, _MAX_BYTES_UNDER_WAY // largest_answer))


def metadata(reply: bytes) -> tuple[int, int]:
    """
    Stream sequence and consumer sequence, from the reply subject of a message.

    Raises:
        DeliveryError: ``unexpected-answer``: the reply subject has another form.
    """
    try:
        message = parse_ack_subject(reply.decode("utf-8", "replace"))
    except DecodeError as error:
        raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, error.message) from error
    return message.sequence, message.consumer_sequence


def as_message(stored: Stored, stream: str) -> StoredMessage:
    """A message of the API's, with its header block read."""
    time = Timestamp.parse(stored.time)
    return StoredMessage(stored.subject, "", _pairs(stored.hdrs, _Lines()), stored.data, stream, stored.seq, time)


def as_messages(raw: Iterable[RawMessage], stream: str) -> list[StoredMessage]:
    """Messages as they stand on the wire, with their header blocks read."""
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


class _Lines(dict[bytes, "tuple[str, str] | None"]):
    """Name and value of each header line, or None where it is none. Most lines of a stream repeat."""

    def __missing__(self, line: bytes) -> tuple[str, str] | None:
        name, colon, value = line.decode("utf-8", "surrogateescape").partition(":")
        pair = self[line] = (name, value.strip(" \t")) if colon else None
        return pair


def _pairs(block: bytes, known: _Lines) -> list[tuple[str, str]]:
    """
    Headers of a stored block, which may hold anything: the server does not look inside.

    Lines without a colon are not headers. Names stay as they are, so that a malformed name is seen.
    """
    return list(filter(None, map(known.__getitem__, block.split(b"\r\n")[1:])))
