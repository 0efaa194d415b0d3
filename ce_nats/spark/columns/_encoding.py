"""
Encode CloudEvents as NATS messages, with the codec in Python workers.

NATS binding, section 3: messages and error codes are those of ``ce_nats.to_nats_message``. A row that cannot be encoded
has a code in ``error`` and NULL in the other fields; it does not fail the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from ...codec.binding import to_nats_message
from ...codec.mode import ContentMode
from ...errors import EncodeError, choice
from ._arrow_functions import arrow_function
from ._rows import event_of, event_rows
from ._schema import ARROW_MESSAGE, EVENT, MESSAGE, check_event


def to_nats(event: Column | str, *, content_mode: str = "binary", event_type: DataType = EVENT) -> Column:
    """
    Return the message of an event as a struct of ``headers`` (array of structs of ``key`` and ``value``), ``data``
    (BINARY) and ``error``.

    If ``error`` has a code of :class:`ce_nats.ErrorCode`, the other fields are NULL. A NULL field of ``attributes`` is
    an attribute that the event does not have. Attributes keep the order of the struct, followed by extensions in the
    order of the map, in which a NULL is omitted, too. A duplicated name is ``duplicate-attribute``, a NULL event
    ``invalid-message``. An event with an ``error`` keeps it.

    The function runs in Python workers, which need ce_nats, and needs pyspark 4.1 or later. Select the struct before
    you take fields of it; otherwise Spark computes it once for each field.

    Args:
        event: A struct as :func:`cloudevent` or :func:`from_nats` returns it, a column or its name. The fields
            ``attributes``, ``extensions``, ``data``, ``is_json`` and ``error`` are used, and ``data_text`` of
            :func:`cloudevent`. ``time_text`` is used in preference to ``time``, ``data_text`` in preference to
            ``data``. BINARY ``data`` is sent unchanged (as ``data_base64`` in structured mode). A STRING is text; if
            the datacontenttype is JSON it is JSON text, for example of ``to_json()``, and sent verbatim. Text that is
            not JSON is then ``invalid-data``. A VARIANT is a JSON value; ``column.cast("variant")`` of a STRING is a
            JSON string. A STRING or VARIANT without a datacontenttype is ``application/json``, and so is a BINARY with
            ``is_json``.
        content_mode: ``binary`` or ``structured``.
        event_type: Type of ``event``, because the type of a column is not known before the query. Fields may be missing
            or in another order; ``time`` may be a STRING; further fields of ``attributes`` are extensions of type
            STRING, BOOLEAN, BINARY, TIMESTAMP or an integer. In structured mode, extensions of the map become JSON
            strings.

    Raises:
        TypeError: ``event_type`` is not a type of an event.
        ValueError: ``content_mode`` is not a content mode.
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """
    chosen = choice(ContentMode, content_mode, "content_mode")
    check_event(event_type)
    return messages(chosen)(event)


def messages(content_mode: ContentMode) -> Callable[..., Column]:
    """
    Return the pyspark function of :func:`to_nats` for a content mode.

    Raises:
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """
    return arrow_function(partial(_messages, content_mode), MESSAGE, "to_nats")


def _messages(content_mode: ContentMode, events: pa.Array) -> pa.Array:
    # In SQL, Spark calls the function with a column of any type.
    check_event(from_arrow_type(events.type))
    return pa.array([_message(row, content_mode) for row in event_rows(events)], ARROW_MESSAGE)


def _message(row: Mapping[str, Any] | None, content_mode: ContentMode) -> dict[str, Any]:
    if row is not None and row.get("error") is not None:
        return {"error": row["error"]}
    try:
        message = to_nats_message(event_of(row), mode=content_mode)
    except EncodeError as error:
        return {"error": str(error.code)}
    headers = [{"key": name, "value": value} for name, value in message.headers.items()]
    return {"headers": headers, "data": message.data}
