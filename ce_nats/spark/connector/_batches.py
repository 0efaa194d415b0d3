"""
Select raw messages, and convert them to rows of the data source, as Arrow record batches.

Headers are parsed for a whole batch at once, by Arrow's compute functions: a header line is ``name: value``, names are
not changed, spaces and tabs around a value are removed, lines without a colon are ignored; headers are not merged or
reordered. A Spark string is UTF-8: other bytes of subjects and headers become percent escapes (``%FF``), so that
decoding a header value with malformed bytes still fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...aio.reading._stored_messages import as_messages
from ...capture._rows import SCHEMA, escape_bytes
from ...cesql._messages import MessageFilter
from ...codec.binding import from_nats_message
from ...errors import DecodeError
from ...message import StoredMessage

if TYPE_CHECKING:
    from ...aio.reading._range_reader import RawBatch

_VERSION_LINE: Final = b"NATS/1.0\r\n"


def passing(batch: RawBatch, chosen: MessageFilter) -> RawBatch | None:
    """Return the messages that are not events, and events that pass a filter; None instead of an empty batch."""
    decisions = [chosen.decision(block) for _, _, _, block in batch.messages]
    undecided = [message for message, decision in zip(batch.messages, decisions) if decision is None]
    decoded = iter([_passes(message, chosen) for message in as_messages(undecided, batch.stream)])
    kept = [
        message
        for message, decision in zip(batch.messages, decisions)
        if (next(decoded) if decision is None else decision)
    ]
    return replace(batch, messages=kept) if kept else None


def _passes(message: StoredMessage, chosen: MessageFilter) -> bool:
    try:
        event = from_nats_message(message, parse_data=False)
    except DecodeError:
        return True
    return chosen.passes(event)


def record_batch(batch: RawBatch) -> pa.RecordBatch:
    """Return messages as rows of :data:`~ce_nats.capture._rows.SCHEMA`."""
    subjects, replies, data, blocks = zip(*batch.messages)
    count = len(subjects)
    sequences, timestamps = _positions(replies)
    columns = [
        _text(subjects),
        pa.repeat(pa.scalar(""), count),  # a stream does not store the reply subject
        _headers([block or b"" for block in blocks]),
        pa.array(data, pa.binary()),
        pa.repeat(pa.scalar(batch.stream), count),
        sequences,
        timestamps,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _positions(replies: tuple[bytes, ...]) -> tuple[pa.Array, pa.Array]:
    """Return stream sequences and storage times, from reply subjects; see ``_stored_messages.metadata``."""
    tokens = pc.split_pattern(pa.array(replies, pa.binary()).cast(pa.string()), ".")
    at = 5 if len(tokens[0]) == 9 else 7
    sequences = pc.list_element(tokens, at).cast(pa.int64())
    times = pc.list_element(tokens, at + 2).cast(pa.int64())
    # Nanoseconds are truncated, because a Spark TIMESTAMP has microseconds.
    return sequences, pc.divide(times, 1000).cast(pa.timestamp("us", tz="UTC"))


def _headers(blocks: list[bytes]) -> pa.Array:
    """Return lists of names and values from header blocks; a block is ``b""`` for a message without headers."""
    text = _text([block if block.startswith(_VERSION_LINE) else _without_first_line(block) for block in blocks])
    rows = pc.split_pattern(text, "\r\n")
    lines = rows.flatten()
    # The version line is not a header: it has no colon here (see _without_first_line).
    is_header = pc.match_substring(lines, ":")
    pairs = pc.split_pattern(lines.filter(is_header), ":", max_splits=1)
    names = pc.list_element(pairs, 0)
    values = pc.ascii_trim(pc.list_element(pairs, 1), " \t")
    # The number of headers before each line, and from it the offset of each row's first header.
    counts = pa.concat_arrays(
        [pa.array([0], pa.int32()), pc.cumulative_sum(is_header.cast(pa.int8()).cast(pa.int32()))]
    )
    offsets = counts.take(rows.offsets)
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([names, values], ["key", "value"]))


def _without_first_line(block: bytes) -> bytes:
    """Return a block without its first line: a version line with a description may have a colon, but is no header."""
    return block.partition(b"\r\n")[2]


def _text(values: list[bytes] | tuple[bytes, ...]) -> pa.Array:
    """Return bytes as strings; bytes that are not UTF-8 become percent escapes."""
    octets = pa.array(values, pa.binary())
    try:
        return octets.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([escape_bytes(value.decode("utf-8", "surrogateescape")) for value in values], pa.string())
