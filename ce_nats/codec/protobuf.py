"""
The Protobuf event format: a whole event as one message ``io.cloudevents.v1.CloudEvent``.

CloudEvents, "Protobuf Event Format", version 1.0. The required attributes are fields, all others are typed values in a
map; data is bytes, text, or a protobuf message in an ``Any``.

Decoding is stricter than the protobuf package, which skips unknown fields and keeps the last of duplicated fields. That
would silently lose data, so both are errors.

Needs the extra ``protobuf`` (``pip install 'ce-nats[protobuf]'``).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

try:
    from google.protobuf import any_pb2, timestamp_pb2
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError as ProtobufError
    from google.protobuf.message import EncodeError as ProtobufEncodeError
    from google.protobuf.message import Message
    from google.protobuf.message_factory import GetMessageClass
except ImportError as error:
    raise ImportError("the event format protobuf needs protobuf: pip install 'ce-nats[protobuf]'") from error

from ..errors import DecodeError, EncodeError, ErrorCode, preview
from . import media_type
from ._varint import read_varint
from .attributes import ABSOLUTE_URI, check_name
from .envelope import AttributeValue, Envelope
from .event import EventLike, ExtendedEvent
from .media_type import DataKind
from .timestamp import Timestamp

__all__ = ["ProtobufData", "ProtobufFormat"]

_M = TypeVar("_M")

MEDIA_TYPE: Final = "application/cloudevents+protobuf"
# datacontenttype of data that is a protobuf message.
DATA_TYPE: Final = "application/protobuf"
_TYPE_PREFIX: Final = "type.googleapis.com/"

# Seconds since 1970 at the beginning of the year 1 and at the end of 9999: the range of google.protobuf.Timestamp.
_SECONDS: Final = range(-62_135_596_800, 253_402_300_800)
_NANOS: Final = range(1_000_000_000)
_EPOCH: Final = Timestamp("1970-01-01T00:00:00Z")
_SECOND: Final = timedelta(seconds=1)

# The attributes that are fields of the message, with the names of the fields.
_REQUIRED: Final = {"specversion": "spec_version", "id": "id", "source": "source", "type": "type"}
_STRINGS: Final = frozenset({"ce_string", "ce_uri", "ce_uri_ref"})
# Allowed types of the optional attributes that the specification defines. Senders use each of the three for dataschema.
_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "subject": frozenset({"ce_string"}),
    "datacontenttype": frozenset({"ce_string"}),
    "dataschema": _STRINGS,
    "time": frozenset({"ce_timestamp"}),
}


class ProtobufData(bytes):
    """
    Event data that is a protobuf message: its bytes and its type.

    It is treated as ``bytes`` everywhere; the Protobuf format encodes it in ``proto_data``.

    Attributes:
        type_url: The message's type, for example ``type.googleapis.com/`` and the full name; ``""`` if not known.
    """

    type_url: str

    def __new__(cls, value: bytes, type_url: str = "") -> ProtobufData:
        self = super().__new__(cls, value)
        self.type_url = type_url
        return self

    @classmethod
    def of(cls, message: Message) -> ProtobufData:
        """
        Return the data for a message; for an ``Any``, for the message in it.

        Raises:
            EncodeError: ``invalid-data`` if the message lacks a required field.
        """
        if isinstance(message, any_pb2.Any):
            return cls(message.value, message.type_url)
        try:
            value = message.SerializeToString(deterministic=True)
        except ProtobufEncodeError as error:
            raise EncodeError(
                ErrorCode.INVALID_DATA, f"the data cannot be written: {preview(str(error))}", attribute="data"
            ) from error
        return cls(value, _TYPE_PREFIX + message.DESCRIPTOR.full_name)

    def unpack(self, message_class: type[_M]) -> _M:
        """
        Parse the data as a message.

        Args:
            message_class: Class of the message, from generated code.

        Raises:
            DecodeError: ``invalid-data`` if the data has another type, or does not parse as this type.
        """
        message: Any = message_class()
        name = message.DESCRIPTOR.full_name
        if self.type_url and self.type_url.rpartition("/")[2] != name:
            raise DecodeError(
                ErrorCode.INVALID_DATA, f"the data must be a {name}, got {preview(self.type_url)}", attribute="data"
            )
        try:
            message.ParseFromString(bytes(self))
        except ProtobufError as error:
            text = f"the data must be a {name}, got bytes that do not parse as one"
            raise DecodeError(ErrorCode.INVALID_DATA, text, attribute="data") from error
        return cast("_M", message)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return bytes(self), self.type_url

    def __repr__(self) -> str:
        return f"ProtobufData({bytes(self)!r}, {self.type_url!r})"


class PackedEvent(ExtendedEvent):
    """
    An event whose data is a protobuf message, with that data as bytes.

    If the event lacks them, its datacontenttype is ``application/protobuf`` and its dataschema is the type of the
    message, as a URI.
    """

    def __init__(self, event: EventLike, message: Message) -> None:
        packed = ProtobufData.of(message)
        schema = {"dataschema": _as_uri(packed.type_url)} if packed.type_url else {}
        super().__init__(event, {"datacontenttype": DATA_TYPE, **schema})
        self._data = packed


def _as_uri(type_url: str) -> str:
    """Return a type URL with a scheme, which a URI must have. The default is ``https`` (google.protobuf.Any)."""
    return type_url if ABSOLUTE_URI.match(type_url) else f"https://{type_url}"


class ProtobufFormat:
    """The event format ``application/cloudevents+protobuf``."""

    media_type: Final = MEDIA_TYPE

    def encode(self, envelope: Envelope) -> bytes:
        """
        Encode an envelope; attributes in the map are sorted by name.

        Raises:
            EncodeError: ``invalid-timestamp`` for a time that a google.protobuf.Timestamp cannot represent;
                ``invalid-data`` for a protobuf message under a datacontenttype for text or JSON.
        """
        message = _CloudEvent()
        for name, value in envelope.attributes.items():
            if name in _REQUIRED:
                setattr(message, _REQUIRED[name], value)
            else:
                _set(message.attributes[name], name, value)
        _set_data(message, envelope)
        return cast("bytes", message.SerializeToString(deterministic=True))

    def decode(self, payload: bytes) -> Envelope:
        """
        Decode a message to an envelope.

        Raises:
            DecodeError: ``invalid-protobuf``, ``invalid-utf8``, ``duplicate-attribute``, ``data-conflict``,
                ``integer-out-of-range``, ``invalid-attribute-name``, ``invalid-attribute-type``, ``invalid-timestamp``,
                ``invalid-data``.
        """
        _Records(payload).check("CloudEvent", 0, len(payload))
        message = _CloudEvent()
        try:
            message.ParseFromString(payload)
        except ProtobufError as error:
            raise _malformed(f"it is not a CloudEvent: {error}") from error
        # proto3 does not distinguish an empty string from a missing one.
        attributes: dict[str, AttributeValue] = {
            name: value for name, field in _REQUIRED.items() if (value := getattr(message, field))
        }
        for name in sorted(message.attributes):
            attributes[name] = _attribute(name, message.attributes[name])
        return Envelope(attributes, _data(message, attributes))


# --- Attributes -----------------------------------------------------------------------------------------------------


def _set(field: Any, name: str, value: AttributeValue) -> None:
    if isinstance(value, str):
        setattr(field, "ce_uri" if name == "dataschema" else "ce_string", value)
    elif isinstance(value, bool):
        field.ce_boolean = value
    elif isinstance(value, int):
        field.ce_integer = value
    elif isinstance(value, bytes):
        field.ce_bytes = value
    else:
        # Assigning a field sets the message also if the value is 0, as for 1970-01-01.
        field.ce_timestamp.seconds, field.ce_timestamp.nanos = _instant(name, value)


def _instant(name: str, value: Timestamp) -> tuple[int, int]:
    """Return seconds since 1970 and nanoseconds. The offset is lost; any other loss is an error."""
    text = value.text
    digits = text[20:].rstrip("Z").partition("+")[0].partition("-")[0] if text[19:20] == "." else ""
    seconds = (value - _EPOCH) // _SECOND
    if text[17:19] == "60":
        limit = "no leap seconds"
    elif digits[9:].strip("0"):
        limit = "at most nanoseconds"
    elif seconds not in _SECONDS:
        limit = "years from 0001 to 9999 in UTC"
    else:
        return seconds, value.nanosecond
    raise EncodeError(
        ErrorCode.INVALID_TIMESTAMP,
        f"attribute {preview(name)} must fit in a google.protobuf.Timestamp, which has {limit}, got {preview(text)}",
        attribute=name,
        requirement="A-95",
    )


def _attribute(name: str, field: Any) -> AttributeValue:
    check_name(name, DecodeError)
    if name in _REQUIRED:
        raise DecodeError(
            ErrorCode.INVALID_ATTRIBUTE_NAME,
            f"attribute {preview(name)} must be in its field, not in the map",
            attribute=name,
            requirement="PF-2.3-01",
        )
    kind = field.WhichOneof("attr")
    if kind is None or kind not in _TYPES.get(name, (kind,)):
        wanted = " or ".join(sorted(_TYPES.get(name, {"one of the seven types"})))
        raise DecodeError(
            ErrorCode.INVALID_ATTRIBUTE_TYPE,
            f"attribute {preview(name)} must be {wanted}, got {kind or 'no value'}",
            attribute=name,
            requirement="PF-2.1-01",
        )
    value: AttributeValue = getattr(field, kind)
    return _timestamp(name, field.ce_timestamp) if kind == "ce_timestamp" else value


def _timestamp(name: str, value: Any) -> Timestamp:
    """Return a time in UTC; its text has no trailing zeros."""
    if value.seconds not in _SECONDS or value.nanos not in _NANOS:
        raise DecodeError(
            ErrorCode.INVALID_TIMESTAMP,
            f"attribute {preview(name)} must be a valid google.protobuf.Timestamp, "
            f"got {value.seconds} seconds and {value.nanos} nanoseconds",
            attribute=name,
            requirement="PF-2.1-02",
        )
    return Timestamp.from_nanoseconds(value.seconds * 10**9 + value.nanos)


# --- Data -----------------------------------------------------------------------------------------------------------


def _set_data(message: Any, envelope: Envelope) -> None:
    value = envelope.data
    content_type, schema = envelope.attributes.get("datacontenttype"), envelope.attributes.get("dataschema")
    if isinstance(value, str):
        message.text_data = value
    elif isinstance(value, ProtobufData):
        if not _may_be_message(content_type):
            raise EncodeError(
                ErrorCode.INVALID_DATA,
                f"data of type {preview(content_type)} must not be a protobuf message",
                attribute="data",
                requirement="PF-3-01",
            )
        _set_message(message, value, value.type_url)
    elif value is not None:
        kind = media_type.parse(str(content_type))
        if schema and kind is not None and kind.essence == DATA_TYPE:
            _set_message(message, value, str(schema))
        else:
            message.binary_data = value


def _set_message(message: Any, value: bytes, type_url: str) -> None:
    message.proto_data.type_url = type_url
    message.proto_data.value = bytes(value)


def _may_be_message(content_type: object) -> bool:
    kind = media_type.parse(content_type) if isinstance(content_type, str) else None
    return kind is None or kind.kind is DataKind.BINARY


def _data(message: Any, attributes: dict[str, AttributeValue]) -> bytes | str | None:
    """Return the data; add the scheme to a dataschema that is the message's type URL without a scheme."""
    kind = message.WhichOneof("data")
    if kind != "proto_data":
        value: bytes | str | None = getattr(message, kind) if kind is not None else None
        return value
    content_type, schema = attributes.get("datacontenttype"), attributes.get("dataschema")
    if not _may_be_message(content_type):
        raise DecodeError(
            ErrorCode.INVALID_DATA,
            f"data in proto_data must not be of type {preview(content_type)}",
            attribute="data",
            requirement="PF-3-01",
        )
    type_url = message.proto_data.type_url
    if schema and schema == type_url:
        attributes["dataschema"] = _as_uri(type_url)
    return ProtobufData(message.proto_data.value, type_url)


# --- The messages, and their records --------------------------------------------------------------------------------


class _Field(NamedTuple):
    """A field of a message: its name, its type, and its ``oneof``, of which one field at most is present."""

    label: str
    type: str
    choice: str = ""


_VALUE: Final = "CloudEventAttributeValue"
_ENTRY: Final = "AttributesEntry"
_ANY, _TIMESTAMP = any_pb2.Any.DESCRIPTOR.full_name, timestamp_pb2.Timestamp.DESCRIPTOR.full_name
_MESSAGES: Final[Mapping[str, Mapping[int, _Field]]] = {
    "CloudEvent": {
        1: _Field("id", "string"),
        2: _Field("source", "string"),
        3: _Field("spec_version", "string"),
        4: _Field("type", "string"),
        5: _Field("attributes", _ENTRY),
        6: _Field("binary_data", "bytes", "data"),
        7: _Field("text_data", "string", "data"),
        8: _Field("proto_data", _ANY, "data"),
    },
    _ENTRY: {1: _Field("key", "string"), 2: _Field("value", _VALUE)},
    _VALUE: {
        1: _Field("ce_boolean", "bool", "attr"),
        2: _Field("ce_integer", "int32", "attr"),
        3: _Field("ce_string", "string", "attr"),
        4: _Field("ce_bytes", "bytes", "attr"),
        5: _Field("ce_uri", "string", "attr"),
        6: _Field("ce_uri_ref", "string", "attr"),
        7: _Field("ce_timestamp", _TIMESTAMP, "attr"),
    },
    _TIMESTAMP: {1: _Field("seconds", "int64"), 2: _Field("nanos", "int32")},
    _ANY: {1: _Field("type_url", "string"), 2: _Field("value", "bytes")},
}
_NUMBERS: Final = frozenset({"bool", "int32", "int64"})
_SCALARS: Final = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


def _cloud_event() -> Any:
    """Return the protobuf package's class for ``io.cloudevents.v1.CloudEvent``."""
    package = "io.cloudevents.v1"
    file = FileDescriptorProto(name="ce_nats/cloudevents.proto", package=package, syntax="proto3")
    # A separate pool: the program may have generated code for the same messages.
    pool = DescriptorPool()
    for known in (any_pb2, timestamp_pb2):
        file.dependency.append(known.DESCRIPTOR.name)
        copied = FileDescriptorProto()
        known.DESCRIPTOR.CopyToProto(copied)
        pool.Add(copied)
    event = file.message_type.add(name="CloudEvent")
    _describe(event, _MESSAGES["CloudEvent"])
    for name in (_ENTRY, _VALUE):
        _describe(event.nested_type.add(name=name), _MESSAGES[name])
    event.nested_type[0].options.map_entry = True
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{package}.CloudEvent"))


def _describe(descriptor: DescriptorProto, fields: Mapping[int, _Field]) -> None:
    for number, one in fields.items():
        field = descriptor.field.add(name=one.label, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if one.type == _ENTRY:
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if one.type in _SCALARS:
            field.type = _SCALARS[one.type]
        else:
            field.type_name = f".{one.type}" if "." in one.type else f".io.cloudevents.v1.CloudEvent.{one.type}"
        if one.choice:
            if not descriptor.oneof_decl:
                descriptor.oneof_decl.add(name=one.choice)
            field.oneof_index = 0


_CloudEvent: Final = _cloud_event()

_VARINT: Final = 0
_LENGTH: Final = 2
# By the tag before each record: field number and wire type.
_TAGS: Final[Mapping[str, Mapping[int, _Field]]] = {
    name: {number << 3 | (_VARINT if one.type in _NUMBERS else _LENGTH): one for number, one in fields.items()}
    for name, fields in _MESSAGES.items()
}
_LIMIT: Final = 2**64
# Negative numbers are two's complement in 64 bits.
_POSITIVE, _NEGATIVE = range(2**31), range(_LIMIT - 2**31, _LIMIT)


class _Records:
    """The records of a payload, to be checked before the protobuf package parses it."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._names: set[bytes] = set()

    def check(self, name: str, position: int, end: int) -> None:
        """
        Check that a message has nothing that the protobuf package would skip, change, or report with another error.

        Raises:
            DecodeError: ``invalid-protobuf``, ``invalid-utf8``, ``duplicate-attribute``, ``data-conflict``,
                ``integer-out-of-range``, ``invalid-timestamp``.
        """
        fields = _TAGS[name]
        seen: set[str] = set()
        while position < end:
            tag, position = self._varint(position, end)
            one = fields.get(tag)
            if one is None:
                raise _malformed(f"{name} has no field {tag >> 3} with wire type {tag & 7}", "A-91")
            single = one.choice or one.label
            if single in seen:
                raise _repeated(name, one)
            if one.type != _ENTRY:
                seen.add(single)
            value, position = self._varint(position, end)
            if tag & 7 == _LENGTH:
                start, position = position, position + value
                if position > end:
                    raise _malformed(f"{one.label} is truncated")
                if one.type == "string":
                    self._check_text(one, start, position)
                elif one.type != "bytes":
                    self.check(one.type, start, position)
            elif one.type == "int32" and value not in _POSITIVE and value not in _NEGATIVE:
                raise _too_wide(one)

    def _check_text(self, one: _Field, start: int, end: int) -> None:
        octets = self._octets[start:end]
        try:
            octets.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(
                ErrorCode.INVALID_UTF8, f"{one.label} is not valid UTF-8", requirement="PF-4-03"
            ) from error
        if one.label == "key":
            self._check_key(octets)

    def _check_key(self, key: bytes) -> None:
        if key in self._names:
            name = key.decode("utf-8")
            raise DecodeError(
                ErrorCode.DUPLICATE_ATTRIBUTE, f"attribute {preview(name)} must occur once in the map", attribute=name
            )
        self._names.add(key)

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        return read_varint(self._octets, position, end, _malformed)


def _malformed(reason: str, requirement: str = "PF-4-02") -> DecodeError:
    return DecodeError(
        ErrorCode.INVALID_PROTOBUF, f"the payload is not a CloudEvent: {reason}", requirement=requirement
    )


def _repeated(name: str, one: _Field) -> DecodeError:
    if one.choice == "data":
        return DecodeError(
            ErrorCode.DATA_CONFLICT, "the event must have one data field, got two", attribute="data", requirement="A-92"
        )
    own = {field: attribute for attribute, field in _REQUIRED.items()}.get(one.label)
    if own is not None:
        return DecodeError(
            ErrorCode.DUPLICATE_ATTRIBUTE, f"attribute {own!r} must occur once, got a second field", attribute=own
        )
    return _malformed(f"{one.choice or one.label} is duplicated in {name}", "A-92")


def _too_wide(one: _Field) -> DecodeError:
    if one.label == "nanos":
        return DecodeError(ErrorCode.INVALID_TIMESTAMP, "nanos must be in range for int32", requirement="PF-2.1-02")
    return DecodeError(ErrorCode.INTEGER_OUT_OF_RANGE, "ce_integer must be in range for int32")
