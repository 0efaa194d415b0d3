"""
Stored messages as rows of Arrow, and back: the rows of captures in Parquet and of Spark's source.

Needs pyarrow, so other modules of this package import this one inside functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Final

import pyarrow as pa

from .._parquet import invalid
from ..codec.timestamp import Timestamp
from ..errors import shortened
from ..message import StoredMessage

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.string())])
# In the order of the fields of StoredMessage. Headers are as in Spark's Kafka source, but with string values: NATS
# headers are text. Spark and Parquet call the elements of a list "element".
SCHEMA: Final = pa.schema(
    [
        ("subject", pa.string()),
        ("reply", pa.string()),
        ("headers", pa.list_(pa.field("element", _HEADER))),
        ("data", pa.binary()),
        ("stream", pa.string()),
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
# The years 1 to 9999 of Python's datetime.
_MICROSECONDS: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
_SURROGATE_ESCAPE: Final = re.compile("[\udc80-\udcff]")


def to_table(messages: Sequence[StoredMessage]) -> tuple[pa.Table, int]:
    """
    Return messages as a table of :data:`SCHEMA`, and the number of header values that were escaped.

    Raises:
        pa.ArrowException, TypeError, ValueError: A field of a message has another type.
    """
    try:
        return _table(messages), 0
    except UnicodeEncodeError:
        escaped = sum(value != escape_bytes(value) for message in messages for _, value in message.headers)
        return _table([message._replace(headers=_escaped(message.headers)) for message in messages]), escaped


def _table(messages: Sequence[StoredMessage]) -> pa.Table:
    columns = zip(SCHEMA, zip(*messages, strict=True), strict=True)
    arrays = [
        _header_array(cells) if field.name == "headers" else pa.array(cells, field.type) for field, cells in columns
    ]
    return pa.table(arrays, schema=SCHEMA)


def _header_array(rows: Sequence[list[tuple[str, str]]]) -> pa.Array:
    """Return what ``pa.array()`` returns for lists of pairs, in half the time."""
    names = pa.array([name for headers in rows for name, _ in headers], pa.string())
    values = pa.array([value for headers in rows for _, value in headers], pa.string())
    offsets = pa.array([0, *accumulate(map(len, rows))], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([names, values], fields=list(_HEADER)))


def _escaped(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(escape_bytes(name), escape_bytes(value)) for name, value in headers]


def escape_bytes(text: str) -> str:
    """Replace each byte that is not UTF-8 (a surrogate escape, PEP 383) by ``%XX``, for example ``%FF``."""
    return _SURROGATE_ESCAPE.sub(lambda found: f"%{ord(found.group()) & 0xFF:02X}", text)


# --- Rows to messages -----------------------------------------------------------------------------------------------


def check_columns(path: Path, schema: pa.Schema) -> None:
    """
    Check that a file has the columns of a capture, with types that hold the same values.

    Raises:
        DecodeError: ``invalid-message``.
    """
    for name, (is_valid, wanted) in _COLUMNS.items():
        index = schema.get_field_index(name)
        if index < 0:
            raise invalid(f"{path} must have one column {name}, to be a capture")
        kind = schema.field(index).type
        if not is_valid(kind):
            raise invalid(f"{path}: column {name} must be {wanted}, got {shortened(str(kind))}")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(kind in (pa.string(), pa.large_string()))


def _is_octets(kind: pa.DataType) -> bool:
    return bool(kind in (pa.binary(), pa.large_binary()))


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    names = ("key", "value")
    pair = kind.value_type
    return all(pair.get_field_index(name) >= 0 and _is_text(pair.field(name).type) for name in names)


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_instant(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


# Checks and names of the types that columns may have.
_COLUMNS: Final[Mapping[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    "subject": (_is_text, "string"),
    "reply": (_is_text, "string"),
    "headers": (_is_headers, "list<struct<key: string, value: string>>"),
    "data": (_is_octets, "binary"),
    "stream": (_is_text, "string"),
    "sequence": (_is_integer, "an integer"),
    "timestamp": (_is_instant, "a timestamp with a time zone"),
}


def from_batch(batch: pa.RecordBatch) -> list[StoredMessage]:
    """
    Return the messages in a batch with the columns of :data:`SCHEMA`.

    Raises:
        ValueError, OverflowError: A row is not a message. Errors of Arrow are ValueErrors, too.
    """
    columns = {name: batch.column(name) for name in SCHEMA.names}
    sequences = columns["sequence"].fill_null(0)
    instants = _instants(columns["timestamp"])
    if columns["subject"].null_count or instants.null_count:
        raise ValueError("subject and timestamp must not be NULL")
    cells = zip(
        columns["subject"].to_pylist(),
        columns["reply"].fill_null("").to_pylist(),
        _header_lists(columns["headers"]),
        columns["data"].fill_null(b"").to_pylist(),
        columns["stream"].fill_null("").to_pylist(),
        sequences.cast(pa.uint64()).to_pylist(),
        map(_timestamp, instants.cast(pa.int64()).to_pylist()),
        strict=True,
    )
    return [StoredMessage(*row) for row in cells]


def _instants(array: pa.Array) -> pa.Array:
    """Return times in microseconds of UTC. Names of time zones are not looked up: they do not change the instant."""
    # Nanoseconds are truncated. Values of other units are an error if they are out of range.
    return array.cast(pa.timestamp("us", tz="UTC"), safe=array.type.unit != "ns")


def _timestamp(microseconds: int) -> Timestamp:
    if microseconds not in _MICROSECONDS:
        raise ValueError("timestamp must be in the years 1 to 9999")
    return Timestamp.from_nanoseconds(microseconds * 1000)


def _header_lists(array: pa.Array) -> Iterator[list[tuple[str, str]]]:
    """Yield the headers of each row; NULL means no headers."""
    entries = array.flatten()
    parts = entries.flatten()  # a NULL entry has a NULL name
    names, values = (parts[entries.type.get_field_index(name)] for name in ("key", "value"))
    if names.null_count or values.null_count:
        raise ValueError("the name and the value of a header must not be NULL")
    pairs = zip(names.to_pylist(), values.to_pylist(), strict=True)
    return (list(islice(pairs, length)) for length in array.value_lengths().fill_null(0).to_pylist())
