"""
Binary content mode: one ``ce-`` header per attribute, the data as payload.

NATS binding, section 3.1. The payload's bytes are the data's bytes; an empty payload is no data, because the wire
cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from ..errors import DecodeError, ErrorCode, at_header, preview
from . import data, percent
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
from .mode import PREFIX, CeHeaders

__all__ = ["Dialect", "decode", "decode_header", "encode"]


class Dialect(str, Enum):
    """
    Whose binary mode to read.

    ``SPEC`` is the binding. ``SDK_GO`` is what sdk-go's JetStream protocol writes: header values as they stand,
    neither quoted nor percent-encoded (decoding them would change the event's identity), and ``content-type`` for
    datacontenttype.
    """

    SPEC = "spec"
    SDK_GO = "sdk-go"

    def __str__(self) -> str:
        return self.value


def encode(attributes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """
    Headers of an event, one per attribute, in the event's order.

    Args:
        attributes: The event's attributes, not checked.

    Raises:
        EncodeError: As ``attributes.checked_attributes`` does.
    """
    checked = checked_attributes(attributes)
    return [(PREFIX + name, percent.encode(scalar_text(value))) for name, value in checked.items()]


def decode(
    headers: CeHeaders,
    payload: bytes,
    *,
    content_type: str | None = None,
    dialect: Dialect = Dialect.SPEC,
    parse_data: bool = True,
    extension_types: ExtensionTypes | None = None,
) -> DecodedEvent:
    """
    The event in ``ce-`` headers and a payload.

    Args:
        headers: As ``mode.scan`` gives them.
        payload: Payload bytes; empty is no data.
        content_type: The datacontenttype where no ``ce-`` header has one, for ``Dialect.SDK_GO``.
        dialect: Whose header values they are.
        parse_data: False gives the payload's bytes whatever the content type.
        extension_types: Python types of extension attributes; others are ``str``.

    Raises:
        DecodeError: The first fault in wire order, then missing attributes, then the data.
    """
    attributes = _attributes(headers, content_type, dialect is Dialect.SDK_GO, extension_types or {})
    return with_payload(attributes, payload, parse_data)


def with_payload(attributes: dict[str, Any], payload: bytes, parse_data: bool) -> DecodedEvent:
    """
    The event of decoded attributes whose data are the bytes of the payload; an empty payload is no data.

    Raises:
        DecodeError: As ``data.decode`` does.
    """
    if not payload:
        return DecodedEvent(attributes)
    value = data.decode(payload, attributes.get("datacontenttype")) if parse_data else payload
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
    """The error of a header whose attribute another header has already."""
    error = DecodeError(ErrorCode.DUPLICATE_ATTRIBUTE, f"attribute {preview(name)} is there twice", attribute=name)
    return at_header(error, name, header)


def decode_header(name: str, header: str, value: str, *, is_raw: bool = False, wanted: Any = None) -> Any:
    """
    The attribute in one ``ce-`` header.

    Args:
        name: The attribute's name: the header's in lower case, without its prefix.
        header: The header's name, for errors.
        value: Its value as it was sent.
        is_raw: True takes the value as it stands, for ``Dialect.SDK_GO``.
        wanted: Python type of an extension attribute; ``str`` by default.

    Raises:
        DecodeError: With attribute and header.
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
