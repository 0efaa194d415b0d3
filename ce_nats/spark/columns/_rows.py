"""
Convert event structs of Arrow to events for the codec, in workers.

A NULL field is an attribute that the event does not have. Two kinds of values have no Python equivalent: text that is
not UTF-8, and instants outside the years 1 to 9999. They are replaced by values for which the codec raises the right
error code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import VariantVal

from ...codec import media_type
from ...codec._nesting import MAX_LEVELS
from ...codec.data import IMPLIED_TYPE, JsonText
from ...codec.event import DecodedEvent
from ...codec.media_type import DataKind
from ...errors import EncodeError, ErrorCode, preview


class _OutOfRange(tzinfo):
    """Time zone of the datetime that represents all instants out of range for ``datetime``."""

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        raise OverflowError("the instant is outside the years 1 to 9999")

    def tzname(self, at: datetime | None) -> str | None:
        return None

    def dst(self, at: datetime | None) -> timedelta | None:
        return None


_OUT_OF_RANGE: Final = datetime(1, 1, 1, tzinfo=_OutOfRange())


def event_rows(events: pa.Array) -> list[dict[str, Any] | None]:
    """Return event structs as Python values, for :func:`event_of`."""
    columns = {
        field.name: (
            event_rows(column) if field.name == "attributes" and pa.types.is_struct(field.type) else _values(column)
        )
        for field, column in zip(events.type, events.flatten())
    }
    rows = zip(*columns.values()) if columns else iter([()] * len(events))
    valid = events.is_valid().to_pylist()
    return [dict(zip(columns, row)) if is_valid else None for row, is_valid in zip(rows, valid)]


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        # Spark's timestamps have the time zone of the session.
        return [_instant(value) for value in column.cast(pa.timestamp("us", tz="UTC"))]
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_text(value) for value in column.cast(_in_octets(column.type)).to_pylist()]


def _instant(value: pa.Scalar) -> datetime | None:
    try:
        return value.as_py()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return _OUT_OF_RANGE


def _in_octets(kind: pa.DataType) -> pa.DataType:
    return pa.map_(pa.binary(), pa.binary()) if pa.types.is_map(kind) else pa.binary()


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value and [(_text(name), _text(text)) for name, text in value]


def event_of(row: Mapping[str, Any] | None) -> DecodedEvent:
    """
    Return the event in a struct of a type that :func:`._schema.check_event` accepts.

    Raises:
        EncodeError: ``invalid-message`` for NULL, ``duplicate-attribute`` for an extension with the name of another
            attribute, or the code in the field ``error`` of the struct.
    """
    if row is None:
        raise EncodeError(ErrorCode.INVALID_MESSAGE, "event must be a struct, got NULL")
    if row.get("error") is not None:
        raise EncodeError(_known(row["error"]), f"event must be decoded, got one with error {preview(row['error'])}")
    attributes = _attributes(row.get("attributes") or {})
    for name, text in row.get("extensions") or ():
        if name in attributes:
            raise EncodeError(ErrorCode.DUPLICATE_ATTRIBUTE, f"attribute {preview(name)} is duplicated", attribute=name)
        attributes[name] = text
    text = row.get("data_text")
    value = row.get("data") if text is None else text
    has_data = value is not None  # a VARIANT may be a JSON null
    is_json = bool(row.get("is_json")) and has_data
    data = _data(value, attributes.get("datacontenttype"), is_json=is_json and text is not None)
    return DecodedEvent(attributes, data, has_data=has_data, is_json=is_json)


def _attributes(fields: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {}
    for field, value in fields.items():
        name = "time" if field == "time_text" else field
        if name == "time":
            text = fields.get("time_text")
            value = fields.get("time") if text is None else text
        if value is not None:
            attributes[name] = value
    return attributes


def _data(value: Any, content_type: str | None, *, is_json: bool) -> Any:
    if isinstance(value, str):
        kind = media_type.parse(IMPLIED_TYPE if content_type is None else content_type)
        if kind is not None and kind.kind is DataKind.JSON:
            return JsonText(value)
        if is_json and kind is not None:
            raise EncodeError(
                ErrorCode.INVALID_DATA,
                f"data of type {preview(kind.essence)} must be STRING or BINARY, got a value that was written as JSON",
                attribute="data",
                requirement="JF-3.1.1-11",
            )
        return value
    if not isinstance(value, Mapping):
        return value
    try:
        return json.loads(VariantVal(value["value"], value["metadata"]).toJson())
    except RecursionError as error:  # toJson() recurses, and fails at about 240 levels
        raise EncodeError(
            ErrorCode.INVALID_DATA,
            f"the data is nested more than {MAX_LEVELS} levels deep",
            attribute="data",
            requirement="RF-8259-05",
        ) from error


def _known(code: str) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.INVALID_MESSAGE
