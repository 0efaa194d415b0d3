"""
CloudEvents over NATS for Python and Spark.

``to_nats_message`` and ``from_nats_message`` are the codec; ``ce_nats.aio`` sends and receives messages over a NATS
connection, ``ce_nats.arrow`` and ``ce_nats.spark`` decode captured messages to columns, and ``ce_nats.wire`` encodes
and decodes the NATS protocol.
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
