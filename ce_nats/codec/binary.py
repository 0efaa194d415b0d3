"""
Binary content mode: one ``ce-`` header per attribute, the data as payload.

NATS binding, section 3.1. The payload is the bytes of the data. An empty payload means no data: NATS does not
distinguish the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from ..errors import DecodeError, ErrorCode, at_header, preview
from . import data, media_type, percent
from .attributes import (
    CORE,
    ExtensionTypes,
    check_characters,
    check_name,
    check_required,
    checked_attributes,
    decode_extension,
    scalar_text,
)
from .event import DecodedEvent
from .media_type import DataKind
from .mode import PREFIX, CeHeaders

__all__ = ["Dialect"]


class Dialect(str, Enum):
    """
    Variant of binary mode to read.

    ``SPEC`` is the binding. ``SDK_GO`` is the form of sdk-go's JetStream protocol: header values are neither quoted nor
    percent-encoded (decoding them would change the event's id), and ``content-type`` is the datacontenttype if there is
    no ``ce-datacontenttype``, which is what sdk-go writes.
    """

    SPEC = "spec"
    SDK_GO = "sdk-go"

    def __str__(self) -> str:
        return self.value


def encode(attributes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the headers of an event, one per attribute, in the event's order."""
    checked = checked_attributes(attributes)
    return [(PREFIX + name, percent.encode(scalar_text(value))) for name, value in checked.items()]


def decode(
    headers: CeHeaders,
    payload: bytes,
    *,
    content_type: str | None,
    dialect: Dialect,
    parse_data: bool,
    extension_types: ExtensionTypes | None,
) -> DecodedEvent:
    """
    Decode ``ce-`` headers and a payload to an event.

    Raises:
        DecodeError: The first error in wire order, then missing attributes, then the data.
    """
    attributes = _attributes(headers, content_type, dialect is Dialect.SDK_GO, extension_types or {})
    return with_payload(attributes, payload, parse_data)


def with_payload(attributes: dict[str, Any], payload: bytes, parse_data: bool) -> DecodedEvent:
    """Return the event with decoded attributes and the data in a payload; an empty payload means no data."""
    if not payload:
        return DecodedEvent(attributes)
    content_type = attributes.get("datacontenttype")
    value: Any = payload
    if parse_data and content_type is not None:
        kind = media_type.parse(content_type)
        is_json = kind is not None and kind.kind is DataKind.JSON
        value = (data.decode if is_json else data.decode_or_bytes)(payload, content_type)
    return DecodedEvent(attributes, value, has_data=True)


def _attributes(headers: CeHeaders, content_type: str | None, is_raw: bool, types: ExtensionTypes) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, header, value in zip(*headers, strict=True):
        if name in attributes:
            raise duplicate_attribute(name, header)
        attributes[name] = decode_header(name, header, value, is_raw=is_raw, wanted=types.get(name))
    if content_type is not None and "datacontenttype" not in attributes:
        text = _decode_value("datacontenttype", content_type, is_raw)
        attributes["datacontenttype"] = CORE["datacontenttype"](text, DecodeError)
    check_required(attributes, DecodeError)
    return attributes


def duplicate_attribute(name: str, header: str) -> DecodeError:
    """Return the error for a second header of an attribute."""
    error = DecodeError(
        ErrorCode.DUPLICATE_ATTRIBUTE, f"attribute {preview(name)} must occur once, got a second header", attribute=name
    )
    return at_header(error, name, header)


def decode_header(name: str, header: str, value: str, *, is_raw: bool, wanted: Any = None) -> Any:
    """
    Decode one ``ce-`` header to the value of its attribute.

    Raises:
        DecodeError: With the attribute and the header.
    """
    try:
        check = CORE.get(name)
        if check is None:
            check_name(name, DecodeError)
        text = _decode_value(name, value, is_raw)
        return check(text, DecodeError) if check else decode_extension(name, text, wanted)
    except DecodeError as error:
        raise at_header(error, name, header) from error


def _decode_value(name: str, value: str, is_raw: bool) -> str:
    # 3.1.3.2: "terminated by a CRLF sequence with OPTIONAL whitespace around the header value"
    text = value.strip(" \t")
    if not is_raw:
        text = percent.decode(text)
    check_characters(name, text, DecodeError)
    return text
