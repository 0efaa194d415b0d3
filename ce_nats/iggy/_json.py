"""
Encode and decode Iggy messages as JSON, in the form of Iggy's HTTP interface.

Iggy, "Message headers", section "JSON transport". Payload and all header values are base64 of their bytes, including
numbers and strings. From Iggy 0.7 on, the object ``headers`` is replaced by a list ``user_headers`` of typed keys and
values.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..codec._nesting import MAX_LEVELS, is_deeper
from ..codec.attributes import decode_base64
from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, choice, preview
from ..wire._octets import as_octets
from ._headers import HeaderKey, Layout, check_header_map, decoded_key, decoded_value, duplicate_key, key_text
from ._message import IggyMessage, check_number, number_of
from ._value import HeaderKind, HeaderValue

# Iggy 0.5 changed the name, and 0.7 the form.
_MEMBERS: Final = ("headers", "user_headers")
_NOTHING: Final[tuple[Any, ...]] = (None, {}, [])
_KINDS: Final = {kind.label: kind for kind in HeaderKind}


def encode_json(message: IggyMessage, *, layout: Layout = Layout.STRING_KEYS) -> bytes:
    """
    Encode a message as JSON text: :func:`as_fields` in one line of ASCII.

    Raises:
        EncodeError: As :func:`as_fields`.
    """
    return json.dumps(as_fields(message, layout=layout), separators=(",", ":")).encode("ascii")


def decode_json(text: bytes | str, *, layout: Layout = Layout.STRING_KEYS) -> IggyMessage:
    """
    Decode JSON text to a message, as :func:`as_message` does.

    Raises:
        DecodeError: ``invalid-json``; ``invalid-utf8``; ``duplicate-header`` for a repeated member of an object; as
            :func:`as_message`.
    """
    try:
        content = text if isinstance(text, str) else as_octets(text, "JSON text", DecodeError).decode("utf-8")
        if is_deeper(content.encode("utf-8", "surrogatepass")):
            raise _not_json(f"it is nested more than {MAX_LEVELS} levels deep")
        fields = json.loads(content, object_pairs_hook=_distinct, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise DecodeError(ErrorCode.INVALID_UTF8, "JSON text must be UTF-8", requirement="IG-07") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CeNatsError):
            raise
        raise _not_json(error) from error
    return as_message(fields, layout=layout)


def _not_json(reason: object) -> DecodeError:
    return DecodeError(ErrorCode.INVALID_JSON, f"the message is not JSON: {reason}", requirement="IG-07")


def _distinct(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise duplicate_key(name, DecodeError)
        found[name] = value
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def as_fields(message: IggyMessage, *, layout: Layout = Layout.STRING_KEYS) -> dict[str, Any]:
    """
    Return the JSON object of a message.

    ``{"id": 0, "payload": "...", "headers": {"key": {"kind": "string", "value": "..."}}}``; offset, timestamp and
    headers are present if the message has them.

    Args:
        message: The message.
        layout: Layout of the headers.

    Raises:
        EncodeError: ``invalid-frame`` for an id, offset or timestamp that is out of range; ``invalid-message`` if the
            payload is not bytes; as ``encode_headers``.
    """
    entries = check_header_map(message.headers, layout)
    fields: dict[str, Any] = {
        name: number_of(message, name) for name in ("offset", "timestamp") if getattr(message, name) is not None
    }
    fields["id"] = number_of(message, "id")
    fields["payload"] = _base64(as_octets(message.payload, "a payload", EncodeError))
    if entries and layout == Layout.STRING_KEYS:
        fields["headers"] = {key.python: _value(value) for key, value in entries}
    elif entries:
        fields["user_headers"] = [{"key": _value(key), "value": _value(value)} for key, value in entries]
    return fields


def _value(value: HeaderValue) -> dict[str, str]:
    return {"kind": value.kind.label, "value": _base64(value.value)}


def _base64(octets: bytes) -> str:
    return b64encode(octets).decode("ascii")


def as_message(fields: object, *, layout: Layout = Layout.STRING_KEYS) -> IggyMessage:
    """
    Return the message of a JSON object.

    ``id``, ``offset`` and ``timestamp`` may be missing, or be members of an object ``header``, as in Iggy 0.5 and
    later; headers may be missing, null or empty, and are in ``headers`` or ``user_headers``. Other members, such as
    those of later versions, are ignored.

    Args:
        fields: The object, as a JSON parser returns it.
        layout: Layout of the headers.

    Raises:
        DecodeError: ``not-an-object``; ``invalid-frame`` for an id, offset or timestamp that is not a number or is
            out of range, and for a payload that is not a string; ``invalid-base64``; ``unexpected-header-layout`` for
            a list if the layout has an object, and the reverse; ``invalid-header-block`` for headers of another form;
            as ``decode_headers``.
    """
    if not isinstance(fields, Mapping):
        raise DecodeError(
            ErrorCode.NOT_AN_OBJECT, f"a message must be a JSON object, got {preview(fields)}", requirement="IG-07"
        )
    header = fields.get("header")
    numbers = {}
    for name in ("id", "offset", "timestamp"):
        value = fields.get(name)
        if value is None and isinstance(header, Mapping):
            value = header.get(name)
        if value is not None:
            numbers[name] = check_number(name, value, DecodeError)
    payload = fields.get("payload")
    if not isinstance(payload, str):
        raise DecodeError(
            ErrorCode.INVALID_FRAME, f"payload must be a string in base64, got {preview(payload)}", requirement="IG-07"
        )
    return IggyMessage(_octets(payload, "the payload"), _headers(fields, choice(Layout, layout, "layout")), **numbers)


def _headers(fields: Mapping[str, Any], layout: Layout) -> dict[HeaderKey, HeaderValue]:
    found = [fields[name] for name in _MEMBERS if fields.get(name) not in _NOTHING]
    if not found:
        return {}
    given = found[0]
    if len(found) > 1 or not isinstance(given, (Mapping, list)):
        raise _malformed(f"headers must be one object or list in {' or '.join(_MEMBERS)}", found)
    if isinstance(given, list) != (layout is Layout.TYPED_KEYS):
        form = "a list, as from Iggy 0.7 on" if isinstance(given, list) else "an object, as before Iggy 0.7"
        raise DecodeError(ErrorCode.UNEXPECTED_HEADER_LAYOUT, f"headers must have layout {layout}, got {form}")
    headers: dict[HeaderKey, HeaderValue] = {}
    for key, value in _typed_entries(given) if isinstance(given, list) else _string_key_entries(given):
        if key in headers:
            raise duplicate_key(key, DecodeError)
        headers[key] = value
    return headers


def _string_key_entries(given: Mapping[str, Any]) -> Iterator[tuple[HeaderKey, HeaderValue]]:
    for name, member in given.items():
        key = decoded_key(HeaderKind.STRING, _utf8(name))
        yield key, decoded_value(*_typed(member, name), key)


def _typed_entries(given: list[Any]) -> Iterator[tuple[HeaderKey, HeaderValue]]:
    for entry in given:
        if not isinstance(entry, Mapping):
            raise _malformed("an entry of a list of headers must be an object", entry)
        key = decoded_key(*_typed(entry.get("key")))
        yield key, decoded_value(*_typed(entry.get("value"), key_text(key)), key)


def _typed(member: object, header: str | None = None) -> tuple[HeaderKind, bytes]:
    """Return kind and bytes of ``{"kind": ..., "value": ...}``."""
    if not isinstance(member, Mapping) or not isinstance(member.get("value"), str):
        raise _malformed("a header must be an object with kind and value", member, header)
    kind = member.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DecodeError(
            ErrorCode.UNKNOWN_HEADER_KIND,
            f"the kind of a header must be one of Iggy's, got {preview(kind)}",
            header=header,
        )
    return _KINDS[kind], _octets(member["value"], "a value", header)


def _octets(text: str, what: str, header: str | None = None) -> bytes:
    try:
        return decode_base64(what, text)
    except DecodeError as error:
        raise DecodeError(error.code, error.message, header=header, requirement="IG-07") from error


def _utf8(key: str) -> bytes:
    try:
        return key.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DecodeError(
            ErrorCode.INVALID_UTF8, f"a key must not contain surrogates, got {preview(key)}", requirement="IG-07"
        ) from error


def _malformed(what: str, given: object, header: str | None = None) -> DecodeError:
    return DecodeError(
        ErrorCode.INVALID_HEADER_BLOCK, f"{what}, got {preview(given)}", header=header, requirement="IG-07"
    )
