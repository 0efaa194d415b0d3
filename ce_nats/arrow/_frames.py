"""Join columns of messages to publish frames."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ..wire._frames import Frames
from ._encode import _join

# Frames are made from pieces of batches that are not larger, in rows and in bytes.
_ROWS = 2_000
_BYTES = 4 * 2**20


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch, so that the frames of a piece fit into memory and into an array."""
    if batch.num_rows > _ROWS:
        for start in range(0, batch.num_rows, _ROWS):
            yield from pieces(batch.slice(start, _ROWS))
    elif batch.num_rows > 1 and batch.nbytes > _BYTES:
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half))
        yield from pieces(batch.slice(half))
    elif batch.num_rows:
        yield batch


def frames(subjects: pa.Array, lines: pa.Array, payloads: pa.Array, first: int, reply_prefix: str) -> Frames:
    """Return the publish frames of messages."""
    count = len(subjects)
    has_headers = pc.greater(pc.binary_length(lines), 0)
    blocks = pc.if_else(has_headers, _join("NATS/1.0\r\n", lines, "\r\n"), "")
    header_sizes = pc.binary_length(blocks)
    sizes = pc.add(header_sizes, pc.binary_length(payloads))
    numbers = pa.array(range(first, first + count), pa.int64()).cast(pa.string())
    replies = _join(f" {reply_prefix}", numbers, " ")
    operation: pa.Array | str = "HPUB "
    header_texts = _join(header_sizes.cast(pa.string()), " ")
    if not pc.all(has_headers).as_py():
        operation = pc.if_else(has_headers, "HPUB ", "PUB ")
        header_texts = pc.if_else(has_headers, header_texts, "")
    before = _join(operation, subjects, replies, header_texts, sizes.cast(pa.string()), "\r\n", blocks)
    empty = pa.scalar(b"", pa.binary())
    whole = pc.binary_join_element_wise(before.cast(pa.binary()), payloads, pa.scalar(b"\r\n", pa.binary()), empty)
    _, offsets, octets = whole.buffers()
    reply_size = len(f"{reply_prefix}{first + count - 1}")
    return Frames(
        memoryview(octets or b""),
        _integers(offsets, count + 1),
        first,
        _integers(header_sizes.buffers()[1], count),
        _integers(sizes.buffers()[1], count),
        (pc.max(header_sizes).as_py(), pc.max(sizes).as_py(), pc.max(pc.binary_length(subjects)).as_py() + reply_size),
        lambda index: subjects[index].as_py(),
    )


def _integers(buffer: pa.Buffer, count: int) -> memoryview:
    return memoryview(buffer).cast("B").cast("i")[:count]
