"""
Format-independent event: validated attributes, and data as bytes or str.

CloudEvents 1.0, "Event Format" and "Type System". A format encodes an envelope as bytes and decodes it. The checks of
attributes and data are in this module, the same for all formats, by the rules of JSON events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from ..errors import DecodeError, EncodeError, ErrorCode, preview
from . import data, media_type
from .attributes import (
    CORE,
    ExtensionTypes,
    check_name,
    check_required,
    checked_attributes,
    decode_extension,
    decode_typed_attribute,
)
from .event import DecodedEvent, EventLike, attributes_data_and_presence
from .media_type import DataKind
from .timestamp import Timestamp

__all__ = ["AttributeValue", "Envelope", "from_envelope", "to_envelope"]

AttributeValue: TypeAlias = bool | int | str | bytes | Timestamp


@dataclass(frozen=True, slots=True)
class Envelope:
    """
    An event to be encoded by a format, or decoded by one.

    Attributes:
        attributes: All attributes by name: ``bool``, ``int`` of 32 bits, ``str``, ``bytes`` or
            :class:`~ce_nats.Timestamp`. ``time`` is always a Timestamp; URIs are ``str``.
        data: ``str`` for text; ``bytes`` for everything else, including JSON in UTF-8; None if the event has no data.
            A decoder may return JSON as ``str``, too.
    """

    attributes: Mapping[str, AttributeValue]
    data: bytes | str | None = None


def to_envelope(event: EventLike) -> Envelope:
    """
    Return the envelope of an event, checked like a JSON event.

    Raises:
        EncodeError: As :func:`~ce_nats.to_nats_message`.
    """
    attributes, value, has_data = attributes_data_and_presence(event)
    typed = _typed_attributes(attributes)
    return Envelope(typed, _encoded_data(value, attributes.get("datacontenttype")) if has_data else None)


def _typed_attributes(attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
    checked = checked_attributes(attributes)
    typed: dict[str, AttributeValue] = {}
    for key, value in attributes.items():
        name = str.__str__(key)  # the value of a str enum's member, not its name
        if name not in checked:
            continue  # the value is None
        form = checked[name]
        if name == "time" or isinstance(value, datetime):
            typed[name] = Timestamp._parse(str(form), EncodeError)
        else:
            typed[name] = bytes(value) if isinstance(value, bytes) else form
    return typed


def _encoded_data(value: object, content_type: str | None) -> bytes | str:
    if isinstance(value, bytes):
        return value
    if isinstance(value, data.BYTES):
        return bytes(value)
    kind = media_type.parse(content_type) if content_type is not None else None
    if kind is None or kind.kind is DataKind.JSON:
        return data.encode(value, content_type)
    text = str.__str__(data.check_text(value, kind))  # formats may not encode subclasses of str
    data.encode_json(text)  # raises for unpaired surrogates, which no format can encode
    return text


def from_envelope(
    envelope: Envelope, *, parse_data: bool = True, extension_types: ExtensionTypes | None = None
) -> DecodedEvent:
    """
    Check an envelope and return its event.

    Data of a JSON media type is parsed, and data of a text media type is ``str``, whether the envelope has ``str`` or
    bytes. Data without a datacontenttype is bytes. Empty data that is not text means no data.

    Args:
        envelope: The envelope that a format decoded; all of it is checked.
        parse_data: False returns data as bytes, JSON text verbatim.
        extension_types: Python types of extension attributes.

    Raises:
        DecodeError: As :func:`~ce_nats.from_nats_message` does for a JSON event.
    """
    types = extension_types or {}
    attributes = {name: _decoded_attribute(name, value, types.get(name)) for name, value in envelope.attributes.items()}
    check_required(attributes, DecodeError)
    value = _decoded_data(envelope.data, attributes.get("datacontenttype"), parse_data)
    return DecodedEvent(attributes, value[0], has_data=True) if value else DecodedEvent(attributes)


def _decoded_attribute(name: str, value: object, wanted: Any) -> Any:
    if isinstance(value, Timestamp) and (name == "time" or name not in CORE):
        check_name(name, DecodeError)
        if name == "time" or wanted in (None, datetime, Timestamp):
            return value
        return decode_extension(name, value.text, wanted)
    return decode_typed_attribute(name, value, wanted)


def _decoded_data(value: bytes | str | None, content_type: str | None, parse_data: bool) -> tuple[Any] | None:
    """Return the data in a tuple, or None if the event has no data."""
    if value is None:
        return None
    kind = media_type.parse(content_type) if content_type is not None else None
    decode = data.decode_or_bytes
    if isinstance(value, str):
        if kind is not None and kind.kind is DataKind.TEXT:
            return (value if parse_data else data.encode_or_text(value, content_type),)
        octets, decode = _octets(value), data.decode
    elif isinstance(value, bytes):
        octets = value
    else:
        raise DecodeError(
            ErrorCode.INVALID_DATA, f"the data must be bytes or str, got {preview(value)}", attribute="data"
        )
    if not octets:
        return None
    return (decode(octets, content_type) if parse_data else octets,)


def _octets(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DecodeError(
            ErrorCode.INVALID_DATA, "the data must not contain unpaired surrogates", attribute="data"
        ) from error
