"""
CloudEvents in Iggy messages, in binary and in structured mode.

CloudEvents has no binding for Iggy: this one is the NATS binding with typed headers. In binary mode each attribute,
including datacontenttype, is a header with the key ``ce-`` and its name. Booleans, integers and bytes keep their type,
all other values are strings, and there is no percent-encoding. In structured mode the header ``content-type`` marks the
message, and the payload is the JSON event. A value must have 1 to 255 bytes; any other is an error, never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..codec import binary, data, structured
from ..codec.attributes import (
    ExtensionTypes,
    JsonScalar,
    check_extension_types,
    check_required,
    checked_attributes,
    decode_typed_attribute,
)
from ..codec.binding import Mode
from ..codec.event import DecodedEvent, EventLike, attributes_data_and_presence
from ..codec.mode import PREFIX, STRUCTURED_TYPE, ContentMode, structured_by
from ..errors import DecodeError, EncodeError, ErrorCode, at_header, choice, preview
from ..message import folded
from ..wire._octets import as_octets
from ._headers import HeaderKey, duplicate_key, encode_headers
from ._message import IggyMessage
from ._value import MAX_FIELD, HeaderKind, HeaderValue

CONTENT_TYPE: Final = "content-type"

_KINDS: Final[Mapping[type, HeaderKind]] = {
    bool: HeaderKind.BOOL,
    int: HeaderKind.INT32,
    str: HeaderKind.STRING,
    bytes: HeaderKind.RAW,
}
_ADVICE: Final = "send the event in structured mode"


def to_iggy_message(event: EventLike, *, mode: Mode = ContentMode.BINARY) -> IggyMessage:
    """
    Encode an event as an Iggy message.

    The whole event is checked, as :func:`ce_nats.to_nats_message` does. To add headers or an id, copy the message:
    ``dataclasses.replace(message, headers={**message.headers, "trace": value})``.

    Args:
        event: Any object with ``get_attributes()`` and ``get_data()``.
        mode: ``BINARY`` (attributes in headers, data as payload) or ``STRUCTURED`` (the event as JSON).

    Raises:
        EncodeError: As :func:`ce_nats.to_nats_message`. In binary mode also ``invalid-header-value`` for an attribute
            that is empty or has more than 255 bytes, ``invalid-header-name`` for one whose name has more than 252,
            ``headers-too-large`` for more than 100,000 bytes of headers, and ``invalid-data`` for an event without
            data, because servers refuse an empty payload.
    """
    attributes, value, has_data = attributes_data_and_presence(event)
    if choice(ContentMode, mode, "mode") is ContentMode.STRUCTURED:
        kind = HeaderValue.of(HeaderKind.STRING, STRUCTURED_TYPE)
        return IggyMessage(structured.encode(attributes, value, has_data), {CONTENT_TYPE: kind})
    headers = _headers(attributes)
    payload = data.encode(value, attributes.get("datacontenttype")) if has_data else b""
    if not payload:
        raise EncodeError(
            ErrorCode.INVALID_DATA,
            f"the event must have data, because Iggy refuses an empty payload: {_ADVICE}",
            attribute="data",
            requirement="A-74",
        )
    return IggyMessage(payload, headers)


def _headers(attributes: Mapping[str, Any]) -> dict[HeaderKey, HeaderValue]:
    headers: dict[HeaderKey, HeaderValue] = {}
    for name, checked in checked_attributes(attributes).items():
        given = attributes[name]
        headers[PREFIX + name] = _header(name, bytes(given) if isinstance(given, bytes) else checked)
    try:
        encode_headers(headers)
    except EncodeError as error:
        raise EncodeError(error.code, f"{error.message}: {_ADVICE}", requirement="A-73") from error
    return headers


def _header(name: str, value: JsonScalar | bytes) -> HeaderValue:
    key = PREFIX + name
    _check_size(key, f"the key of attribute {preview(name)}", ErrorCode.INVALID_HEADER_NAME, name)
    if isinstance(value, (str, bytes)):
        _check_size(value, f"attribute {preview(name)}", ErrorCode.INVALID_HEADER_VALUE, name)
    return HeaderValue.of(_KINDS[value.__class__], value)


def _check_size(value: str | bytes, what: str, code: ErrorCode, name: str) -> None:
    size = len(value.encode("utf-8") if isinstance(value, str) else value)
    if not 0 < size <= MAX_FIELD:
        raise EncodeError(
            code,
            f"{what} must have 1 to {MAX_FIELD} bytes for Iggy, got {size} bytes: {_ADVICE}",
            attribute=name,
            header=PREFIX + name,
            requirement="A-73",
        )


def detect_mode(message: IggyMessage) -> ContentMode:
    """
    Return the content mode of a message, from its headers alone.

    1. ``content-type``, of kind string, is ``application/cloudevents`` or ``application/cloudevents+json`` (key and
       value in any case): structured. A batch and every other event format have their own error codes.
    2. A key starts with ``ce-``, in any case: binary.
    3. Otherwise the message is not an event. Unlike on NATS, there are no senders of JSON events without a header.

    Raises:
        DecodeError: ``not-a-cloudevent``, ``batch-not-supported``, ``unsupported-format``, ``unsupported-charset``,
            ``duplicate-header`` for several content types; ``invalid-message`` for an object that is not a message.
    """
    return _mode_of(_string_keys(message))


def _string_keys(message: object) -> dict[str, HeaderValue]:
    """Return the headers with keys of kind string; those of other kinds cannot belong to an event."""
    headers = message.headers if isinstance(message, IggyMessage) else None
    if not isinstance(headers, Mapping) or not all(isinstance(value, HeaderValue) for value in headers.values()):
        raise DecodeError(
            ErrorCode.INVALID_MESSAGE,
            f"a message must be an IggyMessage with a map of HeaderValues, got {preview(message)}",
        )
    found: dict[str, HeaderValue] = {}
    for key, value in headers.items():
        name = key.python if isinstance(key, HeaderValue) and key.kind is HeaderKind.STRING else key
        if name in found:
            raise duplicate_key(key, DecodeError)
        if isinstance(name, str):
            found[name] = value
    return found


def _mode_of(headers: Mapping[str, HeaderValue]) -> ContentMode:
    content_types = [
        str(value.python)
        for key, value in headers.items()
        if folded(key) == CONTENT_TYPE and value.kind is HeaderKind.STRING
    ]
    if content_types and structured_by(content_types):
        return ContentMode.STRUCTURED
    if any(map(_is_attribute, headers)):
        return ContentMode.BINARY
    raise DecodeError(
        ErrorCode.NOT_A_CLOUDEVENT,
        f"a CloudEvent must have a key that starts with {PREFIX!r}, or {CONTENT_TYPE} {STRUCTURED_TYPE}, got neither",
        requirement="A-75",
    )


def _is_attribute(key: str) -> bool:
    return folded(key[: len(PREFIX)]) == PREFIX


def from_iggy_message(
    message: IggyMessage,
    *,
    mode: Mode | None = None,
    parse_data: bool = True,
    extension_types: ExtensionTypes | None = None,
) -> DecodedEvent:
    """
    Decode an Iggy message to an event, with the same result as :func:`ce_nats.from_nats_message`.

    In binary mode, keys are accepted in any case, and headers that do not start with ``ce-`` are ignored. The eight
    attributes of the specification are strings; an extension is a ``str``, ``bool``, ``int`` or ``bytes`` according to
    the kind of its header. Integers of all widths are accepted if the value fits in 32 bits.

    Args:
        message: The message, of either layout.
        mode: The content mode; None detects it as :func:`detect_mode` does.
        parse_data: False returns data as bytes, JSON text unchanged.
        extension_types: Python types of extension attributes, as for :func:`ce_nats.from_nats_message`; a header of
            another kind is converted from its canonical string.

    Raises:
        DecodeError: As :func:`detect_mode` and :func:`ce_nats.from_nats_message`; ``invalid-attribute-type`` for a
            float, and for a kind other than string in one of the eight attributes; ``integer-out-of-range``.
    """
    headers = _string_keys(message)
    mode = _mode_of(headers) if mode is None else choice(ContentMode, mode, "mode")
    check_extension_types(extension_types)
    payload = as_octets(message.payload, "a payload", DecodeError)
    if mode is ContentMode.STRUCTURED:
        return structured.decode(payload, parse_data=parse_data, extension_types=extension_types)
    return binary.with_payload(_attributes(headers, extension_types or {}), payload, parse_data)


def _attributes(headers: Mapping[str, HeaderValue], types: ExtensionTypes) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for key, value in headers.items():
        if not _is_attribute(key):
            continue
        name = folded(key)[len(PREFIX) :]
        if name in attributes:
            raise binary.duplicate_attribute(name, key)
        try:
            attributes[name] = decode_typed_attribute(name, value.python, types.get(name))
        except DecodeError as error:
            raise at_header(error, name, key) from error
    check_required(attributes, DecodeError)
    return attributes
