"""
CloudEvents over NATS for Python and Spark.

    message = to_nats_message(event, "orders.paid")
    event = from_nats_message(message)

    async with aio.connect("nats://127.0.0.1:4222") as nc:
        async with aio.Publisher(nc.jetstream()) as publisher:
            await publisher.publish(event, "orders.paid")

These modules have the rest, and a docstring each; some need an extra:

- ``aio``: publish to subjects and streams, subscribe, consume from streams, request and reply, with asyncio.
- ``sync``: the same without asyncio (extra ``sync``).
- ``cesql``: filters on attributes, in CloudEvents SQL. ``routing``: handlers by the type of the event.
  ``schemas``: refuse wrong data (extra ``schemas`` for JSON Schemas).
- ``extensions``: tracing, partitioning, expiry and others. ``subjects``: names and partition numbers.
- ``redelivery``: what a consumer decides after a failure, dead letters, and :class:`Unavailable`.
- ``otel``: spans and metrics of OpenTelemetry (extra ``otel``).
- ``testing``: nats-servers and fake deliveries for tests (extra ``testing``).
- ``arrow``: columns for DuckDB, Polars and pandas; ``capture``: messages in files (extra ``arrow``).
- ``spark``: columns, source and sink (extra ``spark``).
- ``stan``: NATS Streaming (extra ``stan``). ``iggy``: messages of Apache Iggy.
- ``codec``, ``message``, ``errors``, ``wire``: the parts of the codec, and NATS's protocol. ``conformance``: cases for
  other implementations.

The command ``ce-nats`` (extra ``cli``) does most of it in a shell.
"""

from ._version import __version__
from .codec.binary import Dialect
from .codec.binding import dedup_id, from_nats_message, to_nats_message
from .codec.event import DecodedEvent, EventLike
from .codec.mode import ContentMode, detect_mode
from .codec.subject_template import SubjectTemplate
from .codec.timestamp import Timestamp
from .errors import (
    ApiError,
    AtomicBatchError,
    CeNatsError,
    DataLossError,
    DecodeError,
    DeliveryError,
    EncodeError,
    ErrorCode,
    NoStreamError,
    PublishError,
    Reject,
    StanError,
)
from .message import Headers, NatsMessage
from .redelivery import Unavailable

__all__ = [
    "ApiError",
    "AtomicBatchError",
    "CeNatsError",
    "ContentMode",
    "DataLossError",
    "DecodeError",
    "DecodedEvent",
    "DeliveryError",
    "Dialect",
    "EncodeError",
    "ErrorCode",
    "EventLike",
    "Headers",
    "NatsMessage",
    "NoStreamError",
    "PublishError",
    "Reject",
    "StanError",
    "SubjectTemplate",
    "Timestamp",
    "Unavailable",
    "__version__",
    "dedup_id",
    "detect_mode",
    "from_nats_message",
    "to_nats_message",
]
