"""
Event structs as workers get them, dicts and lists out of Arrow, as events for the codec.

The same meaning as encode.py gives to them: a field that is NULL is an attribute that the event does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from pyspark.sql.types import VariantVal

from ..errors import EncodeError, ErrorCode, preview
from ..event import DecodedEvent
from ..nesting import MOST_LEVELS

__all__ = ["event_of"]


def event_of(row: Mapping[str, Any] | None) -> DecodedEvent:
    """
    The event in a struct whose type ``schema.check_event`` has let pass.

    Raises:
        EncodeError: ``invalid-message`` for no struct, ``duplicate-attribute`` for an extension that is an attribute
            already; the ``error`` that the struct has.
    """
    if row is None:
        raise EncodeError(ErrorCode.INVALID_MESSAGE, "the event is NULL")
    if row.get("error") is not None:
        raise EncodeError(_known(row["error"]), f"the event was no event when it was decoded: {preview(row['error'])}")
    attributes = _attributes(row.get("attributes") or {})
    for name, text in row.get("extensions") or ():
        if name in attributes:
            raise EncodeError(
                ErrorCode.DUPLICATE_ATTRIBUTE, f"attribute {preview(name)} is there twice", attribute=name
            )
        attributes[name] = text
    data = row.get("data")
    return DecodedEvent(
        attributes, _data(data), has_data=data is not None, is_json=bool(row.get("is_json")) and data is not None
    )


def _attributes(fields: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {}
    for field, value in fields.items():
        name = "time" if field == "time_text" else field
        if name == "time":
            text = fields.get("time_text")
            value = fields.get("time") if text is None else text
        if isinstance(value, datetime):
            value = value.astimezone(timezone.utc)  # a TIMESTAMP has no offset, and Arrow takes the session's
        if value is not None:
            attributes[name] = value
    return attributes


def _data(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        return json.loads(VariantVal(value["value"], value["metadata"]).toJson())
    except RecursionError as error:  # at some 240 levels
        raise EncodeError(
            ErrorCode.INVALID_DATA,
            f"the data is nested more than {MOST_LEVELS} levels deep",
            attribute="data",
            requirement="RF-8259-05",
        ) from error


def _known(code: str) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.INVALID_MESSAGE
