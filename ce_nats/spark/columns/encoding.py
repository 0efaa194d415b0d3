"""
CloudEvents into NATS messages, by the codec in Python workers.

NATS binding, section 3: the messages and error codes of ``ce_nats.to_nats_message``. A row that cannot be encoded has a
code in ``error`` and nothing else; it never fails the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import DataType

from ...codec.binding import to_nats_message
from ...codec.mode import ContentMode
from ...errors import EncodeError
from .arrow_functions import arrow_function
from .rows import event_of, event_rows
from .schema import EVENT, MESSAGE, check_event

__all__ = ["messages", "to_nats"]

# ``schema.MESSAGE`` in Arrow's types.
_ARROW_MESSAGE: Final = pa.struct(
    [
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
        ("data", pa.binary()),
        ("error", pa.string()),
    ]
)


def to_nats(event: Column | str, *, mode: str = "binary", event_type: DataType = EVENT) -> Column:
    """
    The message of an event, as a struct: ``headers`` (array of structs of ``key`` and ``value``), ``data`` (BINARY) and
    ``error``.

    Where ``error`` has a code of :class:`ce_nats.ErrorCode`, the others are NULL. A field that is NULL is an attribute
    that the event does not have. Attributes go in the order of the struct, extensions behind them in that of the map;
    a name that is there twice is ``duplicate-attribute``, a NULL in the map ``invalid-attribute-type``, a NULL for the
    whole event ``invalid-message``. An event that has an ``error`` already keeps it.

    It runs in Python workers, which have to find ce_nats, and needs pyspark 4.1 or later. Select the struct before you
    take fields of it, or it is computed for each.

    Args:
        event: A struct as :func:`from_nats` gives it. Of its fields, ``attributes``, ``extensions``, ``data``,
            ``is_json`` and ``error`` are looked at. ``time_text`` goes before ``time``. Bytes of ``data`` go as they
            are (``data_base64`` in structured mode); a STRING is text, or a JSON string where the datacontenttype is
            JSON; a VARIANT is a JSON value. A STRING or VARIANT without a datacontenttype is ``application/json``, and
            so are bytes with ``is_json``.
        mode: ``binary`` or ``structured``.
        event_type: Type of ``event``, because a column does not know its own. Fields may be missing or in another
            order; ``time`` may be a STRING; further fields of ``attributes`` are extensions of type STRING, BOOLEAN,
            BINARY, TIMESTAMP or an integer. In structured mode extensions of the map are JSON strings.

    Raises:
        TypeError: ``event_type`` is not a type of an event.
        ValueError: Another ``mode``.
        ImportError: pyspark is older than 4.1.
    """
    if mode not in ("binary", "structured"):
        raise ValueError(f"mode is binary or structured, not {mode!r}")
    check_event(event_type)
    return messages(mode)(event)


def messages(mode: str) -> Callable[..., Column]:
    """
    The function of :func:`to_nats` for a mode, as pyspark has functions.

    Raises:
        ImportError: pyspark is older than 4.1.
    """
    return arrow_function(partial(_messages, ContentMode(mode)), MESSAGE, "to_nats")


def _messages(mode: ContentMode, events: pa.Array) -> pa.Array:
    return pa.array([_message(row, mode) for row in event_rows(events)], _ARROW_MESSAGE)


def _message(row: Mapping[str, Any] | None, mode: ContentMode) -> dict[str, Any]:
    if row is not None and row.get("error") is not None:
        return {"error": row["error"]}
    try:
        message = to_nats_message(event_of(row), mode=mode)
    except EncodeError as error:
        return {"error": str(error.code)}
    headers = [{"key": name, "value": value} for name, value in message.headers.items()]
    return {"headers": headers, "data": message.data}
