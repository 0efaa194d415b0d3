"""
Decode captured messages of Iggy and NATS Streaming, with the codec in Python workers.

The JVM engine does not support them, because they are rarer than NATS messages, and each has a separate format. The
result is the struct that ``from_nats`` returns, with the same error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Column

from ...arrow._decode import Events, combine
from ...codec.binding import from_nats_message
from ...codec.event import DecodedEvent
from ...codec.mode import ContentMode
from ...errors import DecodeError, choice
from ...iggy import IggyMessage, Layout, decode_headers, detect_mode, from_iggy_message
from ...message import NatsMessage
from ._arrow_functions import arrow_function
from ._python_engine import event_array
from ._schema import EVENT

# An event, whose data is not parsed, and its content mode; or the error of the message.
Outcome: TypeAlias = tuple[DecodedEvent, ContentMode] | DecodeError


def from_iggy(headers: Column | str, data: Column | str, *, layout: Layout = Layout.STRING_KEYS) -> Column:
    """
    Return the event in a captured Iggy message as the struct that :func:`ce_nats.spark.from_nats` returns.

    The function decodes with :func:`ce_nats.iggy.from_iggy_message` in Python workers, which need ce_nats. Extensions
    are canonical strings, whatever the kind of their headers. Needs pyspark 4.1 or later.

    Args:
        headers: The encoded header map of the message, a column or its name, BINARY; NULL means no headers.
        data: The payload, a column or its name, BINARY; NULL means an empty payload.
        layout: ``string-keys`` for messages up to Iggy 0.6, ``typed-keys`` for those of 0.7 and later.

    Raises:
        ValueError: ``layout`` is not valid.
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """
    chosen = choice(Layout, layout, "layout")

    def decode(headers: bytes | None, data: bytes | None) -> Outcome:
        return _decode_iggy(headers or b"", data or b"", chosen)

    return decoded_by(decode, headers, data)


def _decode_iggy(headers: bytes, data: bytes, layout: Layout) -> Outcome:
    try:
        message = IggyMessage(data, decode_headers(headers, layout=layout))
        mode = detect_mode(message)
        return from_iggy_message(message, mode=mode, parse_data=False), mode
    except DecodeError as error:
        return error


def from_stan(data: Column | str) -> Column:
    """
    Return the event in a captured message of NATS Streaming as the struct that :func:`ce_nats.spark.from_nats` returns.

    The function decodes as the client in ``ce_nats.stan``, in Python workers, which need ce_nats with its extra
    ``stan``. Bytes that are not a message have the error code of :meth:`ce_nats.stan.wire.MsgProto.decode`. Needs
    pyspark 4.1 or later.

    Args:
        data: The message as the streaming server delivers it, an encoded ``MsgProto``: a column or its name, BINARY;
            NULL means an empty message.

    Raises:
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """
    return decoded_by(_decode_stan, data)


def _decode_stan(data: bytes | None) -> Outcome:
    from ...stan.wire import MsgProto

    try:
        message = NatsMessage(data=MsgProto.decode(data or b"").data)
        return from_nats_message(message, mode=ContentMode.STRUCTURED, parse_data=False), ContentMode.STRUCTURED
    except DecodeError as error:
        return error


def decoded_by(decode: Callable[..., Outcome], *columns: Column | str) -> Column:
    """
    Return event structs that a Python function decodes row by row.

    ``decode``: Accepts the values of the columns in a row. It is sent to workers, so it must be picklable.

    Raises:
        ImportError: pyspark is older than 4.1, or workers on this machine run a Python that cannot import ce_nats.
    """

    def decode_batch(*arrays: pa.Array) -> pa.Array:
        return outcome_array([decode(*row) for row in zip(*(array.to_pylist() for array in arrays), strict=True)])

    return arrow_function(decode_batch, EVENT, "decoding messages of Iggy or NATS Streaming")(*columns)


def outcome_array(outcomes: Sequence[Outcome]) -> pa.Array:
    """Return an array of :data:`~ce_nats.spark.columns._schema.ARROW_EVENT`, with one struct for each outcome."""
    events, errors = Events({}), {}
    for row, outcome in enumerate(outcomes):
        error = outcome if isinstance(outcome, DecodeError) else events.add(row, *outcome)
        if error is not None:
            errors[row] = error
    return event_array(combine(len(outcomes), events, errors))
