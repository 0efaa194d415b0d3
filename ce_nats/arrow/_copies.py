"""Leave out the headers of messages that their copies do not have."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from .._instructions import MARKER, left_out
from ._headers import octets


class Copied(NamedTuple):
    """
    Headers of copies.

    Attributes:
        headers: Lists or maps, of the type given.
        stripped: Number of rows that have lost headers.
        markers: Whether a server has written the message, for each row; None if it has written none.
    """

    headers: pa.Array
    stripped: int
    markers: pa.Array | None


def copied_headers(headers: pa.Array, *, keep_instructions: bool) -> Copied:
    """Return the headers that copies of messages have."""
    if pa.types.is_null(headers.type):
        return Copied(headers, 0, None)
    first, end = headers.offsets[0].as_py(), headers.offsets[-1].as_py()
    offsets = pc.subtract(headers.offsets, pa.scalar(first, headers.offsets.type)).cast(pa.int32())
    entries = headers.values.slice(first, end - first)
    names = octets(entries.field(0))
    begins = tuple(begin.encode() for begin in left_out(keep_instructions=keep_instructions))
    found = names.filter(pc.starts_with(names, "Nats-").fill_null(False)).unique().to_pylist()
    dropped = [name for name in found if name.startswith(begins)]
    if not dropped and MARKER.encode() not in found:
        return Copied(headers, 0, None)
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, names))
    marked = rows.filter(pc.equal(names, MARKER.encode()).fill_null(False)).unique()
    markers = pc.is_in(pa.array(range(len(headers)), rows.type), marked) if len(marked) else None
    if not dropped:
        return Copied(headers, 0, markers)
    is_dropped = pc.is_in(names, pa.array(dropped, names.type))
    stripped = rows.filter(is_dropped).unique()
    count = len(stripped) - pc.sum(pc.is_in(stripped, marked)).as_py()
    kept = pc.invert(is_dropped)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(kept.cast(pa.int32()))]).take(offsets)
    is_null = pa.concat_arrays([headers.is_null(), pa.array([False])])
    ends = pc.if_else(is_null, pa.scalar(None, pa.int32()), ends)
    left = entries.filter(kept)
    if pa.types.is_map(headers.type):
        return Copied(pa.MapArray.from_arrays(ends, *left.flatten()), count, markers)
    return Copied(pa.ListArray.from_arrays(ends, left), count, markers)
