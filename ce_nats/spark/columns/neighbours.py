"""
CloudEvents out of captured messages of NATS's neighbours, by the codec in Python workers.

Such messages are few beside those of NATS, and each neighbour has a format of its own. What comes out is the struct
that ``from_nats`` gives, with the same codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Column

from ...arrow.decode import Events, gathered
from ...codec.binding import from_nats_message
from ...codec.event import DecodedEvent
from ...codec.mode import ContentMode
from ...errors import DecodeError
from ...iggy import IggyMessage, Layout, decode_headers, detect_mode, from_iggy_message
from ...message import NatsMessage
from .arrow_functions import arrow_function
from .python_engine import event_array
from .schema import EVENT

__all__ = ["Outcome", "decoded_by", "from_iggy", "from_stan", "outcome_array"]

# An event whose data was not parsed, and its mode; or what is wrong with the message.
Outcome: TypeAlias = tuple[DecodedEvent, ContentMode] | DecodeError


def from_iggy(headers: Column | str, data: Column | str, *, layout: Layout = Layout.STRING_KEYS) -> Column:
    """
    The event in a captured Iggy message, as the struct that :func:`ce_nats.spark.from_nats` gives.

    By :func:`ce_nats.iggy.from_iggy_message`, in a Python worker, which has to find ce_nats. Extensions are
    canonical strings, whatever the kind of their headers. Needs pyspark 4.1 or later.

    Args:
        headers: The header map as it stands in the message, BINARY; NULL is none.
        data: The payload, BINARY; NULL is empty.
        layout: ``seed`` for messages up to Iggy 0.6, ``typed-keys`` for those of 0.7 and later.

    Raises:
        ValueError: There is no such layout.
    """
    chosen = Layout(layout)

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
    The event in a captured message of NATS Streaming, as the struct that :func:`ce_nats.spark.from_nats` gives.

    As the client in ``ce_nats.stan`` reads it, in a Python worker, which has to find ce_nats and its extra
    ``stan``. What is not a message has the code of :meth:`ce_nats.stan.wire.MsgProto.decode`. Needs pyspark 4.1.

    Args:
        data: What the streaming server delivers, a ``MsgProto``, BINARY; NULL is empty.
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
    The event struct that a function in Python makes of each row.

    Args:
        decode: Takes the values of the columns in a row; it goes to the workers, so it has to pickle.
        columns: Its arguments.

    Raises:
        ImportError: pyspark is older than 4.1.
    """

    def decode_batch(*arrays: pa.Array) -> pa.Array:
        return outcome_array([decode(*row) for row in zip(*(array.to_pylist() for array in arrays), strict=True)])

    return arrow_function(decode_batch, EVENT, "a column of Iggy or NATS Streaming")(*columns)


def outcome_array(outcomes: Sequence[Outcome]) -> pa.Array:
    """Event structs, one for each outcome, as an array of ``python_engine.ARROW_EVENT``."""
    events, errors = Events({}), {}
    for row, outcome in enumerate(outcomes):
        if isinstance(outcome, DecodeError):
            errors[row] = outcome
        else:
            events.add(row, *outcome)
    return event_array(gathered(len(outcomes), events, errors))
