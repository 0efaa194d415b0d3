"""
Convert the headers of a batch of messages, of any accepted column type, to two flat columns of names and values.

Headers are not interpreted. A NULL in a header is an error of its row, with the text of the codec. Bytes that are not
UTF-8 are kept: the codec checks the headers that it uses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ..errors import DecodeError, ErrorCode, preview, shortened
from ..wire.nats import read_header_block
from ._plain import plain, plain_type

_SHAPES: Final = (
    "list<struct<key: string, value: string>>, map<string, string>, map<string, list<string>> or binary (a raw header "
    "block), with string or binary"
)


class Pairs(NamedTuple):
    """
    The headers of a batch.

    Attributes:
        starts: Index in ``names`` and ``values`` of each row's first header.
        ends: Index after each row's last header; equal to the start for a row without headers.
        names: Header names, strings.
        values: Header values, strings.
        errors: Errors in headers, by row. The names and values of such a row are undefined.
        escaped: All pairs of the rows with bytes that are not UTF-8, by row, with these bytes as surrogate escapes (PEP
            383), which Arrow's strings cannot hold. ``names`` and ``values`` have other characters in these rows.
    """

    starts: list[int]
    ends: list[int]
    names: pa.Array
    values: pa.Array
    errors: dict[int, DecodeError]
    escaped: dict[int, list[tuple[str, str]]]

    def of(self, row: int) -> list[tuple[str, str]]:
        """Return the headers of one row."""
        if row in self.escaped:
            return self.escaped[row]
        start, count = self.starts[row], self.ends[row] - self.starts[row]
        return list(zip(self.names.slice(start, count).to_pylist(), self.values.slice(start, count).to_pylist()))


def is_octets(kind: pa.DataType) -> bool:
    """Return whether a type is bytes or text."""
    kind = plain_type(kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) or is_text(kind)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text."""
    kind = plain_type(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def octets(array: pa.Array) -> pa.Array:
    """Convert an array of a type that :func:`is_octets` accepts, or of NULLs, to type binary."""
    array = plain(array)
    if pa.types.is_large_string(array.type):
        array = array.cast(pa.large_binary())
    return array.cast(pa.binary())


def check_type(given: pa.DataType, name: str = "headers") -> None:
    """
    Check that the type of a column is one of those accepted for headers.

    Raises:
        TypeError: It is not.
    """
    types, kind = pa.types, plain_type(given)
    if types.is_null(kind) or (is_octets(kind) and not is_text(kind)):
        return
    if types.is_map(kind):
        item = plain_type(kind.item_type)
        if is_octets(kind.key_type) and (is_octets(item) or (_is_list(item) and is_octets(item.value_type))):
            return
    elif _is_list(kind):
        pair = plain_type(kind.value_type)
        if types.is_struct(pair) and pair.num_fields == 2 and all(is_octets(field.type) for field in pair):
            return
    raise TypeError(f"column {preview(name)} must be {_SHAPES}, got {shortened(str(given))}; cast it to one of these")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def pairs(array: pa.Array) -> Pairs:
    """Return the headers of a batch."""
    array = plain(array)
    if pa.types.is_null(array.type):
        return _of_rows([[]] * len(array), {})
    if pa.types.is_map(array.type):
        if _is_list(plain_type(array.type.item_type)):
            return _of_lists(array)
        starts, ends, children = _spans(array, array.keys, array.items)
        return _checked(starts, ends, *children)
    if _is_list(array.type):
        starts, ends, (entries,) = _spans(array, array.values)
        return _checked(starts, ends, *plain(entries).flatten())  # a NULL entry is a NULL name
    return _of_blocks(array)


def _spans(array: pa.Array, *children: pa.Array) -> tuple[list[int], list[int], list[pa.Array]]:
    """Return starts and ends of rows in the flat children of a list or map, and the children from the first row on."""
    offsets = array.offsets.to_pylist()
    bounds = [offset - offsets[0] for offset in offsets]
    starts, ends = bounds[:-1], bounds[1:]
    if array.null_count:  # a NULL row may have a range of entries, which must be ignored
        valid = array.is_valid().to_pylist()
        ends = [end if is_valid else start for start, end, is_valid in zip(starts, ends, valid)]
    return starts, ends, [child.slice(offsets[0], bounds[-1]) for child in children]


def _checked(starts: list[int], ends: list[int], names: pa.Array, values: pa.Array) -> Pairs:
    raw_names, raw_values = octets(names), octets(values)
    errors: dict[int, DecodeError] = {}
    if raw_names.null_count or raw_values.null_count:
        errors = dict(_errors(starts, ends, raw_names, raw_values))
    try:
        return Pairs(starts, ends, raw_names.cast(pa.string()), raw_values.cast(pa.string()), errors, {})
    except pa.ArrowInvalid:  # strings from Spark may also contain bytes that are not UTF-8
        pairs = zip(_texts(raw_names), _texts(raw_values))
        return _of_texts(starts, ends, list(pairs), errors)


def _errors(starts: list[int], ends: list[int], names: pa.Array, values: pa.Array) -> Iterator[tuple[int, DecodeError]]:
    """Yield the rows that have a NULL in a header, with the error of the first such header."""
    last = -1
    for index, (name, value) in enumerate(zip(_texts(names), _texts(values))):
        if name is not None and value is not None:
            continue
        row = bisect_right(starts, index) - 1
        if row != last and index < ends[row]:
            last = row
            yield row, _null_error(name)


def _null_error(name: str | None) -> DecodeError:
    if name is None:
        return DecodeError(ErrorCode.INVALID_HEADER_NAME, "a header name must be a str, got None")
    return DecodeError(
        ErrorCode.INVALID_HEADER_VALUE, f"the value of header {preview(name)} must be a str, got None", header=name
    )


def _texts(array: pa.Array) -> list[str | None]:
    """Return bytes as text; those that are not UTF-8 are surrogate escapes."""
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in array.to_pylist()]


def _of_lists(array: pa.Array) -> Pairs:
    """Return the headers of a ``map<string, list<string>>``; each name is repeated for each of its values."""
    starts, ends, (names, lists) = _spans(array, array.keys, array.items)
    entries = list(zip(octets(names).to_pylist(), _octet_lists(lists)))
    rows = [
        # A NULL list becomes one NULL value, which is reported as an error.
        [(name, value) for name, values in entries[start:end] for value in ([None] if values is None else values)]
        for start, end in zip(starts, ends)
    ]
    flat = [pair for row in rows for pair in row]
    names = pa.array([name for name, _ in flat], pa.binary())
    values = pa.array([value for _, value in flat], pa.binary())
    return _checked(*_bounds(rows), names, values)


def _octet_lists(lists: pa.Array) -> list[list[bytes | None] | None]:
    lists = plain(lists)
    starts, ends, (values,) = _spans(lists, lists.values)
    flat, valid = octets(values).to_pylist(), lists.is_valid().to_pylist()
    return [flat[start:end] if is_valid else None for start, end, is_valid in zip(starts, ends, valid)]


def _of_blocks(array: pa.Array) -> Pairs:
    errors: dict[int, DecodeError] = {}
    rows: list[list[tuple[str, str]]] = []
    for row, block in enumerate(octets(array).to_pylist()):
        found: list[tuple[str, str]] = []
        try:
            if block:
                found = read_header_block(block, "surrogateescape").headers.items()
        except DecodeError as error:
            errors[row] = error
        rows.append(found)
    return _of_rows(rows, errors)


def _of_rows(rows: list[list[tuple[str, str]]], errors: dict[int, DecodeError]) -> Pairs:
    return _of_texts(*_bounds(rows), [pair for row in rows for pair in row], errors)


def _of_texts(starts: list[int], ends: list[int], pairs: list[Any], errors: dict[int, DecodeError]) -> Pairs:
    """Return headers from pairs of strings, in which bytes that are not UTF-8 are surrogate escapes."""
    escaped = {}
    try:
        names, values = (pa.array([pair[index] for pair in pairs], pa.string()) for index in range(2))
    except UnicodeEncodeError:
        for row, (start, end) in enumerate(zip(starts, ends)):
            if row not in errors and not _are_utf8(pairs[start:end]):
                escaped[row] = pairs[start:end]
        names, values = (pa.array([_replaced(pair[index]) for pair in pairs], pa.string()) for index in range(2))
    return Pairs(starts, ends, names, values, errors, escaped)


def _are_utf8(pairs: list[tuple[str | None, str | None]]) -> bool:
    return all(_replaced(part) == part for pair in pairs for part in pair)


def _replaced(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")


def _bounds(rows: list[Any]) -> tuple[list[int], list[int]]:
    ends, end = [], 0
    for row in rows:
        end += len(row)
        ends.append(end)
    return [0, *ends[:-1]] if ends else [], ends
