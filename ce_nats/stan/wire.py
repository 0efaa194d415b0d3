"""
Encode and decode the messages of NATS Streaming (STAN), as protocol buffers (proto3).

The page "Streaming Protocol" describes the messages and their fields; names and numbers are those of the protocol file
that it refers to. Each message is a frozen dataclass with ``encode()`` and ``decode()``. Its attributes have Python
names; the name in the protocol is the second argument of each field.

    PubAck.decode(payload).error
    Ack(subject="orders", sequence=7).encode()

Decoding is stricter than the protobuf package, which treats a field with a wrong wire type as an unknown field: that,
groups, and strings that are not UTF-8 are errors. Fields with unknown numbers are skipped, because a later server may
send them. As in every implementation of protocol buffers, the last value of a duplicated field is used, and an integer
that is too wide is truncated to its type. A message with more than 1000 fields, unknown ones included, is an error, so
that the time and memory for decoding are proportional to the size, whatever the sender.

Needs the extra ``stan`` (``pip install 'ce-nats[stan]'``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

try:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError as ProtobufError
    from google.protobuf.message_factory import GetMessageClass
except ImportError as error:
    raise ImportError("ce_nats.stan.wire needs protobuf: pip install 'ce-nats[stan]'") from error

from ..codec._varint import read_varint
from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview
from ..wire._octets import as_octets

__all__ = [
    "MESSAGES",
    "Ack",
    "CloseRequest",
    "CloseResponse",
    "ConnectRequest",
    "ConnectResponse",
    "Message",
    "MsgProto",
    "Ping",
    "PingResponse",
    "PubAck",
    "PubMsg",
    "StartPosition",
    "SubscriptionRequest",
    "SubscriptionResponse",
    "UnsubscribeRequest",
]

_M = TypeVar("_M", bound="Message")

# Wire types.
_VARINT: Final = 0
_LENGTH: Final = 2
_GROUPS: Final = (3, 4)
_WIDTHS: Final = {1: 8, 5: 4}
_WIRE_TYPES: Final = {_VARINT, _LENGTH, *_WIDTHS}
_LAST_NUMBER: Final = 2**29 - 1
# The protocol's messages have at most eleven fields; a later server may send more.
_MAX_RECORDS: Final = 1000

# A string has the same encoding as a `bytes` field. Declared as one, invalid UTF-8 is distinguished from malformed
# protobuf.
_TYPES: Final[Mapping[str, tuple[int, type]]] = {
    "string": (FieldDescriptorProto.TYPE_BYTES, str),
    "bytes": (FieldDescriptorProto.TYPE_BYTES, bytes),
    "bool": (FieldDescriptorProto.TYPE_BOOL, bool),
    "int32": (FieldDescriptorProto.TYPE_INT32, int),
    "int64": (FieldDescriptorProto.TYPE_INT64, int),
    "uint32": (FieldDescriptorProto.TYPE_UINT32, int),
    "uint64": (FieldDescriptorProto.TYPE_UINT64, int),
}


class StartPosition(IntEnum):
    """Position at which a subscription begins."""

    NEW_ONLY = 0
    LAST_RECEIVED = 1
    TIME_DELTA_START = 2
    SEQUENCE_START = 3
    FIRST = 4


class Message:
    """A message of the protocol. Fields that are not set have the default of their type, and are not encoded."""

    __slots__ = ()

    def encode(self) -> bytes:
        """
        Encode the message, with fields in the order of their numbers.

        Raises:
            EncodeError: ``invalid-message`` for a value of another type, or a class that is not a message of the
                protocol; ``integer-out-of-range``; ``invalid-utf8`` for text with an unpaired surrogate.
        """
        codec = _codec(type(self), EncodeError)
        message = codec.factory()
        for one in codec.fields:
            _set(message, one, getattr(self, one.name))
        return cast("bytes", message.SerializeToString(deterministic=True))

    @classmethod
    def decode(cls: type[_M], data: bytes) -> _M:
        """
        Decode a message.

        Raises:
            DecodeError: ``invalid-message`` if ``data`` is not bytes, or the class is not a message of the protocol;
                ``invalid-protobuf`` for truncated or malformed data, a known field with another wire type, a group, and
                more than 1000 fields; ``invalid-utf8`` for a string that is not UTF-8.
        """
        codec = _codec(cls, DecodeError)
        octets = as_octets(data, f"a {codec.name}", DecodeError)
        _check_records(codec, octets)
        message = codec.factory()
        try:
            message.ParseFromString(octets)
        except ProtobufError as error:
            raise DecodeError(
                ErrorCode.INVALID_PROTOBUF, f"{preview(octets)} is not a {codec.name}: {error}", requirement="ST-PB-01"
            ) from error
        return cls(**{one.name: _value(codec, one, getattr(message, one.label)) for one in codec.fields})


def _field(number: int, label: str, kind: str) -> Any:
    """Declare a field of a message, with its number, name and type in the protocol."""
    return field(default=_TYPES[kind][1](), metadata={"number": number, "label": label, "type": kind})


# --- The messages, in the order of the page ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectRequest(Message):
    """
    Request to register a client.

    Attributes:
        client_id: Name of the client; letters, digits, ``-`` and ``_``.
        heartbeat_inbox: Subject of the server's heartbeats, which the client answers.
        protocol: 1 for a client that sends ``conn_id`` and pings, otherwise 0.
        conn_id: Unique id of the connection.
        ping_interval: Seconds between pings.
        ping_max_out: Number of unanswered pings after which the connection is considered lost.
    """

    client_id: str = _field(1, "clientID", "string")
    heartbeat_inbox: str = _field(2, "heartbeatInbox", "string")
    protocol: int = _field(3, "protocol", "int32")
    conn_id: bytes = _field(4, "connID", "bytes")
    ping_interval: int = _field(5, "pingInterval", "int32")
    ping_max_out: int = _field(6, "pingMaxOut", "int32")


@dataclass(frozen=True, slots=True)
class ConnectResponse(Message):
    """
    Answer to a :class:`ConnectRequest`: the subjects for further requests.

    Attributes:
        pub_prefix: Prefix of the subject to publish to; a dot and the channel follow.
        sub_requests: Subject of a :class:`SubscriptionRequest`.
        unsub_requests: Subject of an :class:`UnsubscribeRequest` that removes a subscription.
        close_requests: Subject of a :class:`CloseRequest`.
        error: Reason for which the client is not registered, or ``""``.
        sub_close_requests: Subject of an :class:`UnsubscribeRequest` that closes a subscription.
        ping_requests: Subject of a :class:`Ping`.
        ping_interval: Seconds between pings.
        ping_max_out: Number of unanswered pings after which the connection is considered lost.
        protocol: Version of the server's protocol.
        public_key: Reserved.
    """

    pub_prefix: str = _field(1, "pubPrefix", "string")
    sub_requests: str = _field(2, "subRequests", "string")
    unsub_requests: str = _field(3, "unsubRequests", "string")
    close_requests: str = _field(4, "closeRequests", "string")
    error: str = _field(5, "error", "string")
    sub_close_requests: str = _field(6, "subCloseRequests", "string")
    ping_requests: str = _field(7, "pingRequests", "string")
    ping_interval: int = _field(8, "pingInterval", "int32")
    ping_max_out: int = _field(9, "pingMaxOut", "int32")
    protocol: int = _field(10, "protocol", "int32")
    public_key: str = _field(100, "publicKey", "string")


@dataclass(frozen=True, slots=True)
class SubscriptionRequest(Message):
    """
    Request to subscribe to a channel.

    Attributes:
        client_id: Name of the client.
        subject: The channel.
        q_group: Queue group, or ``""``.
        inbox: Subject to deliver to.
        max_in_flight: Maximum number of unacknowledged messages.
        ack_wait_in_secs: Seconds after which an unacknowledged message is redelivered.
        durable_name: Name of a durable subscription, or ``""``.
        start_position: A :class:`StartPosition`; other numbers are kept unchanged.
        start_sequence: Sequence of the first message, with ``SEQUENCE_START``.
        start_time_delta: Age of the oldest message in nanoseconds, with ``TIME_DELTA_START``.
    """

    client_id: str = _field(1, "clientID", "string")
    subject: str = _field(2, "subject", "string")
    q_group: str = _field(3, "qGroup", "string")
    inbox: str = _field(4, "inbox", "string")
    max_in_flight: int = _field(5, "maxInFlight", "int32")
    ack_wait_in_secs: int = _field(6, "ackWaitInSecs", "int32")
    durable_name: str = _field(7, "durableName", "string")
    start_position: int = _field(10, "startPosition", "int32")  # enumerations of proto3 are open
    start_sequence: int = _field(11, "startSequence", "uint64")
    start_time_delta: int = _field(12, "startTimeDelta", "int64")


@dataclass(frozen=True, slots=True)
class SubscriptionResponse(Message):
    """
    Answer to a :class:`SubscriptionRequest` or an :class:`UnsubscribeRequest`.

    Attributes:
        ack_inbox: Subject for acknowledgements, which identifies the subscription.
        error: Reason of a refusal, or ``""``.
    """

    ack_inbox: str = _field(2, "ackInbox", "string")
    error: str = _field(3, "error", "string")


@dataclass(frozen=True, slots=True)
class UnsubscribeRequest(Message):
    """
    Request to end a subscription. The subject that it is sent to decides whether a durable is removed or kept.

    Attributes:
        client_id: Name of the client.
        subject: The channel.
        inbox: ``ack_inbox`` of the subscription.
        durable_name: Name of the durable, or ``""``.
    """

    client_id: str = _field(1, "clientID", "string")
    subject: str = _field(2, "subject", "string")
    inbox: str = _field(3, "inbox", "string")
    durable_name: str = _field(4, "durableName", "string")


@dataclass(frozen=True, slots=True)
class PubMsg(Message):
    """
    A message to store.

    Attributes:
        client_id: Name of the client.
        guid: Unique id of the message; the acknowledgement repeats it.
        subject: The channel.
        reply: Passed on in :class:`MsgProto`.
        data: The payload.
        conn_id: Id of the connection.
        sha256: Unused by servers and clients.
    """

    client_id: str = _field(1, "clientID", "string")
    guid: str = _field(2, "guid", "string")
    subject: str = _field(3, "subject", "string")
    reply: str = _field(4, "reply", "string")
    data: bytes = _field(5, "data", "bytes")
    conn_id: bytes = _field(6, "connID", "bytes")
    sha256: bytes = _field(10, "sha256", "bytes")


@dataclass(frozen=True, slots=True)
class PubAck(Message):
    """
    Answer to a :class:`PubMsg`: an acknowledgement or a refusal.

    Attributes:
        guid: Id of the :class:`PubMsg`; ``""`` if the server could not decode it.
        error: Reason for which the message was not stored, or ``""``.
    """

    guid: str = _field(1, "guid", "string")
    error: str = _field(2, "error", "string")


@dataclass(frozen=True, slots=True)
class MsgProto(Message):
    """
    A delivered message.

    Attributes:
        sequence: Sequence in the channel, from 1.
        subject: The channel.
        reply: As published.
        data: The payload.
        timestamp: Time at which it was stored, in nanoseconds since 1970-01-01 UTC.
        redelivered: Whether it was delivered before.
        redelivery_count: Number of earlier deliveries.
        crc32: Unused by servers and clients.
    """

    sequence: int = _field(1, "sequence", "uint64")
    subject: str = _field(2, "subject", "string")
    reply: str = _field(3, "reply", "string")
    data: bytes = _field(4, "data", "bytes")
    timestamp: int = _field(5, "timestamp", "int64")
    redelivered: bool = _field(6, "redelivered", "bool")
    redelivery_count: int = _field(7, "redeliveryCount", "uint32")
    crc32: int = _field(10, "CRC32", "uint32")


@dataclass(frozen=True, slots=True)
class Ack(Message):
    """
    Acknowledgement of a delivered message.

    Attributes:
        subject: The channel.
        sequence: Sequence of the :class:`MsgProto`.
    """

    subject: str = _field(1, "subject", "string")
    sequence: int = _field(2, "sequence", "uint64")


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Request whether the server has the client's connection: ``conn_id``."""

    conn_id: bytes = _field(1, "connID", "bytes")


@dataclass(frozen=True, slots=True)
class PingResponse(Message):
    """Answer to a :class:`Ping`: ``error`` is the reason for which the server does not have it, or ``""``."""

    error: str = _field(1, "error", "string")


@dataclass(frozen=True, slots=True)
class CloseRequest(Message):
    """Request to deregister a client: ``client_id``."""

    client_id: str = _field(1, "clientID", "string")


@dataclass(frozen=True, slots=True)
class CloseResponse(Message):
    """Answer to a :class:`CloseRequest`: ``error`` is the reason of a refusal, or ``""``."""

    error: str = _field(1, "error", "string")


MESSAGES: Final[Mapping[str, type[Message]]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            *(ConnectRequest, ConnectResponse, SubscriptionRequest, SubscriptionResponse, UnsubscribeRequest),
            *(PubMsg, PubAck, MsgProto, Ack, Ping, PingResponse, CloseRequest, CloseResponse),
        )
    }
)


# --- Conversion to and from the protobuf package ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """A field: its Python name, and its name, number and type in the protocol."""

    name: str
    label: str
    number: int
    type: str
    wire_type: int

    @classmethod
    def of(cls, one: Field[Any]) -> _Field:
        kind = one.metadata["type"]
        wire_type = _LENGTH if _TYPES[kind][0] == FieldDescriptorProto.TYPE_BYTES else _VARINT
        return cls(one.name, one.metadata["label"], one.metadata["number"], kind, wire_type)


@dataclass(frozen=True, slots=True)
class _Codec:
    """The codec of one message: its fields, and the protobuf package's class for it."""

    name: str
    fields: tuple[_Field, ...]
    tags: frozenset[int]
    factory: Any


def _codecs() -> dict[type[Message], _Codec]:
    file = FileDescriptorProto(name="ce_nats/stan.proto", package="pb", syntax="proto3")
    known = {name: tuple(map(_Field.of, fields(cast("Any", kind)))) for name, kind in MESSAGES.items()}
    for name, own in known.items():
        descriptor = file.message_type.add(name=name)
        for one in own:
            descriptor.field.add(
                name=one.label,
                number=one.number,
                type=_TYPES[one.type][0],
                label=FieldDescriptorProto.LABEL_OPTIONAL,
            )
    # A separate pool: the program may have loaded the protocol's generated code, with the same names.
    pool = DescriptorPool()
    pool.Add(file)
    return {
        MESSAGES[name]: _Codec(
            name,
            own,
            frozenset(one.number << 3 | one.wire_type for one in own),
            GetMessageClass(pool.FindMessageTypeByName(f"pb.{name}")),
        )
        for name, own in known.items()
    }


_CODECS: Final = _codecs()


def _codec(kind: type[Message], error_class: type[CeNatsError]) -> _Codec:
    """Return the codec of a class; that of its base class if it is derived from a message."""
    for base in kind.__mro__:
        if base in _CODECS:
            return _CODECS[base]
    raise error_class(ErrorCode.INVALID_MESSAGE, f"{kind.__name__} must be a message of NATS Streaming")


def _set(message: Any, one: _Field, value: object) -> None:
    target = f"{message.DESCRIPTOR.name}.{one.label}"
    wanted = _TYPES[one.type][1]
    # bool is an int, and the protobuf package accepts bytes as text and numbers as booleans.
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise EncodeError(
            ErrorCode.INVALID_MESSAGE, f"{target} must be {one.type}, got {preview(value)}", requirement="ST-PB-02"
        )
    try:
        setattr(message, one.label, value.encode() if isinstance(value, str) else value)
    except UnicodeEncodeError as error:
        raise EncodeError(
            ErrorCode.INVALID_UTF8,
            f"{target} must not have unpaired surrogates, got {preview(value)}",
            requirement="ST-PB-04",
        ) from error
    except (ValueError, OverflowError) as error:
        raise EncodeError(
            ErrorCode.INTEGER_OUT_OF_RANGE, f"{target} must be {one.type}, got {preview(value)}", requirement="ST-PB-02"
        ) from error


def _check_records(codec: _Codec, octets: bytes) -> None:
    """
    Check every record before the protobuf package parses it: that package treats a field with a wrong wire type as an
    unknown field, and spends time and memory on each of those.

    Raises:
        DecodeError: ``invalid-protobuf``.
    """
    end = len(octets)
    position = count = 0
    malformed = partial(_malformed, codec)
    while position < end:
        tag, position = read_varint(octets, position, end, malformed)
        if tag not in codec.tags:
            _check_unknown(codec, tag >> 3, tag & 7)
        if width := _WIDTHS.get(tag & 7):
            position += width
        else:
            value, position = read_varint(octets, position, end, malformed)
            if tag & 7 == _LENGTH:
                position += value
        count += 1
        if count > _MAX_RECORDS:
            raise malformed(f"it has more than {_MAX_RECORDS} fields", "ST-PB-03")
    if position > end:
        raise malformed("it is truncated")


def _check_unknown(codec: _Codec, number: int, wire_type: int) -> None:
    """Check a record that is not a field of the message: an unknown field may be skipped if it is well-formed."""
    known = next((one for one in codec.fields if one.number == number), None)
    if known is not None:
        raise _malformed(
            codec, f"{known.label} has wire type {wire_type}, which is not that of {known.type}", "ST-PB-02"
        )
    if wire_type in _GROUPS:
        raise _malformed(codec, f"field {number} is a group", "ST-PB-05")
    if not 0 < number <= _LAST_NUMBER or wire_type not in _WIRE_TYPES:
        raise _malformed(codec, f"field {number} has wire type {wire_type}")


def _malformed(codec: _Codec, reason: str, requirement: str = "ST-PB-01") -> DecodeError:
    return DecodeError(
        ErrorCode.INVALID_PROTOBUF, f"the payload is not a {codec.name}: {reason}", requirement=requirement
    )


def _value(codec: _Codec, one: _Field, value: Any) -> Any:
    if one.type != "string":
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(
            ErrorCode.INVALID_UTF8,
            f"{codec.name}.{one.label} must be UTF-8, got {preview(value)}",
            requirement="ST-PB-04",
        ) from error
