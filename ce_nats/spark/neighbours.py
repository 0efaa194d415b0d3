"""
CloudEvents out of captured messages of NATS's neighbours, by the codec in Python: this is the one place of this folder
where a Python worker runs.

Such messages are few beside those of NATS, and each neighbour has a format of its own; native expressions for them
would be a second implementation of each. What comes out is the struct that ``from_nats`` gives, with the same codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa
from pyspark.sql import Column, SparkSession

from ..attributes import canonical
from ..binding import from_nats_message
from ..errors import CeNatsError, DecodeError
from ..event import DecodedEvent
from ..message import NatsMessage
from ..mode import ContentMode
from ..wire.iggy import IggyMessage, Layout, decode_headers, detect_mode, from_iggy_message
from .schema import ATTRIBUTES, EVENT
from .workers import check_workers

__all__ = ["ARROW_EVENT", "Outcome", "decoded_by", "event_array", "from_iggy", "from_stan"]

# An event whose data was not parsed, and its mode; or what is wrong with the message.
Outcome: TypeAlias = tuple[DecodedEvent, ContentMode] | CeNatsError

# ``schema.EVENT`` in Arrow's types.
ARROW_EVENT: Final = pa.struct(
    [
        (
            "attributes",
            pa.struct(
                [
                    *((name, pa.timestamp("us", tz="UTC") if name == "time" else pa.string()) for name in ATTRIBUTES),
                    ("time_text", pa.string()),
                ]
            ),
        ),
        ("extensions", pa.map_(pa.string(), pa.string())),
        ("data", pa.binary()),
        ("is_json", pa.bool_()),
        ("mode", pa.string()),
        ("error", pa.string()),
    ]
)


def from_iggy(headers: Column, data: Column, *, layout: Layout = Layout.SEED) -> Column:
    """
    The event in a captured Iggy message, as the struct that :func:`ce_nats.spark.from_nats` gives.

    By :func:`ce_nats.wire.iggy.from_iggy_message`, in a Python worker, which has to find ce_nats. Extensions are
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


def from_stan(data: Column) -> Column:
    """
    The event in a captured message of NATS Streaming, as the struct that :func:`ce_nats.spark.from_nats` gives.

    As the client in ``ce_nats.aio.stan`` reads it, in a Python worker, which has to find ce_nats and its extra
    ``stan``. What is no message has the code of :meth:`ce_nats.wire.stan.MsgProto.decode`. Needs pyspark 4.1 or later.

    Args:
        data: What the streaming server delivers, a ``MsgProto``, BINARY; NULL is empty.
    """
    return decoded_by(_decode_stan, data)


def _decode_stan(data: bytes | None) -> Outcome:
    from ..wire.stan import MsgProto

    try:
        message = NatsMessage(data=MsgProto.decode(data or b"").data)
        return from_nats_message(message, mode=ContentMode.STRUCTURED, parse_data=False), ContentMode.STRUCTURED
    except DecodeError as error:
        return error


def decoded_by(decode: Callable[..., Outcome], *columns: Column) -> Column:
    """
    The event struct that a function in Python makes of each row.

    Args:
        decode: Takes the values of the columns in a row; it goes to the workers, so it has to pickle.
        columns: Its arguments.

    Raises:
        ImportError: Workers on this machine run a Python that cannot import ce_nats.
    """
    if session := SparkSession.getActiveSession():
        check_workers(session)
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # new in pyspark 4.1

    def decode_batch(*arrays: pa.Array) -> pa.Array:
        return event_array(decode(*row) for row in zip(*(array.to_pylist() for array in arrays), strict=True))

    return cast("Column", arrow_udf(decode_batch, EVENT)(*columns))


def event_array(outcomes: Iterable[Outcome]) -> pa.Array:
    """Event structs, one for each outcome, as an array of :data:`ARROW_EVENT`."""
    return pa.array([_row(outcome) for outcome in outcomes], ARROW_EVENT)


def _row(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, CeNatsError):
        return {"error": str(outcome.code)}
    event, mode = outcome
    attributes = event.get_attributes()
    core: dict[str, Any] = {name: attributes[name] for name in ATTRIBUTES if name in attributes}
    time = core.get("time")
    if time is not None:
        core |= {"time": _instant(time), "time_text": str(time)}
    return {
        "attributes": core,
        "extensions": [(name, canonical(value)) for name, value in attributes.items() if name not in core],
        "data": event.get_data(),
        "is_json": event.is_json,
        "mode": str(mode),
    }


def _instant(time: datetime) -> datetime | None:
    """The instant in UTC; None outside of the years that TIMESTAMP has."""
    try:
        return time.astimezone(timezone.utc)
    except OverflowError:
        return None
