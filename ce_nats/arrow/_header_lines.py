"""
Encode columns of headers as lines of header blocks.

Headers are sent unchanged if they are legal. Rows with headers that are not, and rows that need other care, are "odd":
the caller encodes them one by one, which raises the errors.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..codec._message_id import dedup_text
from ..errors import EncodeError
from ..message import MSG_ID, check_header
from ._decode import _indexes, decode
from ._encode import Encoded, _join, _OddBatch, _utf8
from ._headers import octets

_FORBIDDEN: Final = ("\r", "\n", "\0")


def encode_headers(headers: pa.Array | None, data: pa.Array | None, count: int, *, dedup: bool) -> Encoded:
    """Encode a batch of messages."""
    empty = pa.repeat(pa.scalar(b"", pa.binary()), count)
    payloads = empty if data is None or pa.types.is_null(data.type) else octets(data).fill_null(b"")
    odd: set[int] = set()
    lines, has_id = pa.repeat(pa.scalar(""), count), pa.repeat(pa.scalar(False), count)
    try:
        if headers is not None and pa.types.is_map(headers.type):
            odd.update(_indexes(pc.not_equal(headers.offsets[1:], headers.offsets[:-1])))
            headers = None
        elif headers is not None and not pa.types.is_null(headers.type):
            lines, has_id = _lines(headers, odd)
        if dedup:
            lines = _dedup_lines(pa.nulls(count) if headers is None else headers, payloads, lines, has_id)
    except _OddBatch:
        odd = set(range(count))
    return Encoded(lines, payloads, odd)


def _lines(headers: pa.ListArray, odd: set[int]) -> tuple[pa.Array, pa.Array]:
    """Return the lines of each row, and whether it has a ``Nats-Msg-Id``."""
    offsets = headers.offsets
    first, end = offsets[0].as_py(), offsets[-1].as_py()
    offsets = pc.subtract(offsets, pa.scalar(first, offsets.type)).cast(pa.int32())
    names, values = (_utf8(column) for column in headers.values.slice(first, end - first).flatten())
    if headers.null_count and pc.any(pc.not_equal(offsets[1:], offsets[:-1]).filter(headers.is_null())).as_py():
        raise _OddBatch
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, names))
    is_odd = _are_illegal(names, values)
    odd.update(rows.filter(is_odd).to_pylist())
    lines = _join(names, ": ", values, "\r\n")
    ids = rows.filter(pc.equal(names, MSG_ID)).to_pylist()
    has_id = pc.is_in(pa.array(range(len(headers)), pa.int64()), pa.array(sorted(set(ids)), pa.int64()))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, lines), ""), has_id


def _are_illegal(names: pa.Array, values: pa.Array) -> pa.Array:
    """Return which headers are NULL, or not legal in a header line."""
    wrong = [name for name in names.unique().to_pylist() if not _is_legal_name(name)]
    is_illegal = pc.is_in(names, pa.array(wrong, pa.string()))
    is_illegal = pc.or_(is_illegal, pc.not_equal(pc.ascii_trim(values, " \t"), values))
    for character in _FORBIDDEN:
        is_illegal = pc.or_(is_illegal, pc.match_substring(values, character))
    return is_illegal.fill_null(True)  # a NULL as a value


def _is_legal_name(name: str | None) -> bool:
    try:
        check_header(name or "", "")
    except EncodeError:
        return False
    return True


def _dedup_lines(headers: pa.Array, payloads: pa.Array, lines: pa.Array, has_id: pa.Array) -> pa.Array:
    """Add a ``Nats-Msg-Id`` to the lines of events without one."""
    columns = decode(headers, payloads).columns
    pairs = zip(columns["source"].to_pylist(), columns["id"].to_pylist(), has_id.to_pylist())
    ids = [None if source is None or known else dedup_text(source, id_) for source, id_, known in pairs]
    return with_ids(lines, pa.array(ids, pa.string()))


def with_ids(lines: pa.Array, ids: pa.Array) -> pa.Array:
    """Add a ``Nats-Msg-Id`` to the lines of each row whose id is not NULL."""
    return _join(lines, pc.coalesce(_join(f"{MSG_ID}: ", ids, "\r\n"), pa.scalar("")))
