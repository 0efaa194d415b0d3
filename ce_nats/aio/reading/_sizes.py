"""
Find out how many messages of a stream have a number of bytes.

JetStream has no request for the size of a range. A consumer with ``headers_only`` delivers the headers of the messages,
with the size of each payload in an additional header.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from ..._ranges import StreamRange
from .._jetstream_api import StreamApi
from ._range_reader import read_range_on
from ._stored_messages import metadata

# The server adds it as the last header.
_SIZE_HEADER: Final = b"Nats-Msg-Size: "
_NO_HEADERS: Final = b"NATS/1.0\r\n"


async def fitting(api: StreamApi, wanted: StreamRange, size: int, timeout: float) -> tuple[int, int]:
    """
    Return the sequence up to which the messages of a range have at most a number of bytes, or the first message more.

    Returns the sequence, and the number of bytes.
    """
    total = 0
    batches = read_range_on(
        api.nc, wanted, prefix=api.prefix, on_loss=lambda loss: None, request_timeout=timeout, headers_only=True
    )
    async with aclosing(batches):
        async for batch in batches:
            sizes = [_size(*message) for message in batch.messages]
            if total + sum(sizes) <= size:
                total += sum(sizes)
                continue
            for message, its_size in zip(batch.messages, sizes):
                if total + its_size > size:
                    sequence = metadata(message[1])[0]
                    return (sequence - 1, total) if total else (sequence, its_size)
                total += its_size
    return wanted.last, total


def _size(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> int:
    headers, is_without_payload, number = (block or b"").rpartition(_SIZE_HEADER)
    if is_without_payload:
        return len(subject) + (len(headers) + len(b"\r\n") if headers != _NO_HEADERS else 0) + int(number)
    return len(subject) + len(number) + len(payload)  # through the API, if consumers are denied
