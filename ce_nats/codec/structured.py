"""
Structured content mode: the whole event as one JSON object in the payload.

NATS binding, section 3.2; JSON event format, sections 2 and 3. One object, never a batch; strict JSON in UTF-8; every
member is an attribute, ``data`` or ``data_base64``.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..errors import DecodeError, EncodeError, ErrorCode, preview
from . import data, media_type
from ._json_members import are_distinct, data_text
from ._nesting import MAX_LEVELS, is_deeper
from .attributes import (
    REQUIRED,
    ExtensionTypes,
    check_name,
    check_required,
    checked_attributes,
    decode_base64,
    decode_typed_attribute,
)
from .event import DecodedEvent
from .media_type import DataKind

__all__ = ["decode", "encode"]

_BOM: Final = b"\xef\xbb\xbf"
# Data may have MAX_LEVELS levels, and the event object around it is one more.
_MAX_LEVELS: Final = MAX_LEVELS + 1
_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder().decode


def encode(attributes: Mapping[str, Any], value: object, has_data: bool) -> bytes:
    """
    Encode an event as compact UTF-8 JSON text.

    Args:
        attributes: The event's attributes, not checked.
        value: Event data.
        has_data: False omits the data; True encodes None as a JSON null.

    Raises:
        EncodeError: As ``attributes.checked_attributes`` does; ``invalid-data``.
    """
    envelope: dict[str, Any] = dict(checked_attributes(attributes))
    if has_data:
        if isinstance(value, data.BYTES):
            # JSON format 3.1.1: Binary data "MUST be rendered in data_base64", for every datacontenttype.
            envelope["data_base64"] = b64encode(value).decode("ascii")
        else:
            envelope["data"] = _data_member(value, envelope.get("datacontenttype"))
    try:
        return _to_json(envelope)
    except UnicodeEncodeError as error:
        raise EncodeError(
            ErrorCode.INVALID_DATA, "the data must not contain unpaired surrogates", attribute="data"
        ) from error


def _data_member(value: object, content_type: str | None) -> object:
    kind = media_type.parse(content_type) if content_type is not None else None
    if kind is None or kind.kind is DataKind.JSON:
        # "stored directly as a JSON value", not as a string that contains JSON
        return msgspec.Raw(data.encode_json(value))
    return str.__str__(data.check_text(value, kind))  # msgspec does not encode subclasses of str


def decode(
    payload: bytes,
    *,
    has_cloudevents_header: bool = True,
    parse_data: bool = True,
    extension_types: ExtensionTypes | None = None,
) -> DecodedEvent:
    """
    Decode a payload to an event.

    Args:
        payload: UTF-8 JSON text; one leading byte order mark is ignored.
        has_cloudevents_header: False if no header identifies the message as an event.
        parse_data: False returns the data as bytes: JSON text verbatim, other text in its charset.
        extension_types: Python types of extension attributes.

    Raises:
        DecodeError: A repeated member, else the first error in wire order, then missing attributes, then the data.
            If ``has_cloudevents_header`` is False, ``not-a-cloudevent`` for JSON without any required attribute and for
            text that is not a JSON object.
    """
    if payload.startswith(_BOM):
        payload = payload[len(_BOM) :]
    members = _members(payload, has_cloudevents_header)
    try:
        attributes = _attributes(members, extension_types or {})
    except DecodeError:
        _check_unique(payload)  # a repeated member is reported first, because it can be the cause
        raise
    text = _data_text(payload) if "data" in members else b""
    if not are_distinct(payload, members, text):
        _check_unique(payload)
    if "data" in members and members.get("data_base64") is not None:
        raise DecodeError(
            ErrorCode.DATA_CONFLICT, "the event must have data or data_base64, got both", attribute="data"
        )
    check_required(attributes, DecodeError)
    return _with_data(members, attributes, text, parse_data)


def _members(payload: bytes, has_cloudevents_header: bool) -> dict[str, Any]:
    if is_deeper(payload, _MAX_LEVELS):
        wrong = data.too_deep(payload, _MAX_LEVELS, "the payload")
        raise wrong if has_cloudevents_header else _no_event(wrong.message)
    try:
        members = _from_json(payload)
    except (ValueError, RecursionError) as error:
        wrong = data.json_error(payload, error, "the payload")
        raise (wrong if has_cloudevents_header else _no_event(wrong.message)) from error
    if members.__class__ is not dict:
        wrong = DecodeError(ErrorCode.NOT_AN_OBJECT, f"the payload must be a JSON object, got {preview(members)}")
        raise wrong if has_cloudevents_header else _no_event(wrong.message)
    if not has_cloudevents_header and not any(name in members for name in REQUIRED):
        raise _no_event(f"the payload must have the members {', '.join(REQUIRED)}, got none of them")
    return members


def _no_event(reason: str) -> DecodeError:
    return DecodeError(
        ErrorCode.NOT_A_CLOUDEVENT,
        f"a message without CloudEvents headers must be a CloudEvent in JSON: {reason}",
    )


def _attributes(members: dict[str, Any], types: ExtensionTypes) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, value in members.items():
        if name == "data":
            continue
        if name == "data_base64":
            members[name] = _decode_data_base64(value)
        elif value is not None:
            attributes[name] = decode_typed_attribute(name, value, types.get(name))
        else:
            check_name(name, DecodeError)  # null means unset, but the name must be legal
    return attributes


def _decode_data_base64(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return decode_base64("data_base64", value)
    raise DecodeError(
        ErrorCode.INVALID_DATA,
        f"data_base64 must be a string, got {preview(value)}",
        attribute="data_base64",
        requirement="JF-3.1.2-01",
    )


def _data_text(payload: bytes) -> bytes:
    """Return the JSON text of the member ``data``, as it is in the payload."""
    try:
        return data_text(payload)
    except RecursionError as error:  # this decoder needs one level more than decoding the whole payload does
        raise data.json_error(payload, error, "the payload") from error


def _check_unique(payload: bytes) -> None:
    """
    Check that no member is repeated. "Each attribute MUST appear at most once"; the JSON parser keeps only the last.

    Raises:
        DecodeError: ``duplicate-attribute``.
    """
    outermost: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        nonlocal outermost
        outermost = pairs  # the outermost object ends last

    try:
        json.loads(payload, object_pairs_hook=keep, parse_int=len, parse_float=len)
    except RecursionError as error:
        raise data.json_error(payload, error, "the payload") from error
    seen = set()
    for name, _ in outermost:
        if name in seen:
            raise DecodeError(
                ErrorCode.DUPLICATE_ATTRIBUTE, f"member {preview(name)} must occur at most once", attribute=name
            )
        seen.add(name)


def _with_data(members: dict[str, Any], attributes: dict[str, Any], text: bytes, parse_data: bool) -> DecodedEvent:
    """Return the event; ``text`` is the JSON text of the member ``data``."""
    content_type = attributes.get("datacontenttype")
    if "data" in members:
        value = members["data"]
        kind = media_type.parse(content_type) if content_type is not None else None
        if kind is None or kind.kind is DataKind.JSON:
            if not parse_data:
                value = text
            return DecodedEvent(attributes, value, has_data=True, is_json=kind is None)
        if not isinstance(value, str):
            raise DecodeError(
                ErrorCode.INVALID_DATA,
                f"data of type {preview(kind.essence)} must be a JSON string, got {preview(value)}",
                attribute="data",
                requirement="JF-3.1.2-07",
            )
        if kind.kind is not DataKind.TEXT or not parse_data:
            value = data.encode_or_text(value, content_type)
        return DecodedEvent(attributes, value, has_data=True)
    value = members.get("data_base64")
    if value is None:
        return DecodedEvent(attributes)
    if not parse_data:
        return DecodedEvent(attributes, value)
    kind = media_type.parse(content_type) if content_type is not None else None
    if not value and kind is not None and kind.kind is DataKind.JSON:
        return DecodedEvent(attributes)  # as an empty payload in binary mode
    return DecodedEvent(attributes, data.decode_or_bytes(value, content_type))
