"""Decode common events, for ``from_nats_message``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ...message import Headers, HeadersLike
from .. import data, media_type
from .._bounded_cache import BoundedCache, BoundedNamesCache
from .._json_members import split_event
from ..attributes import CORE, ExtensionTypes, are_valid_names, decode_base64, decode_extension, scalar_text
from ..event import DecodedEvent
from ..media_type import DataKind
from ..mode import ContentMode
from ._compile import header_decoders
from ._values import NotHandled, schemas, timestamp

# Module constants, because member look-up on an enum class is slow in Python 3.11.
_BINARY, _STRUCTURED = ContentMode.BINARY, ContentMode.STRUCTURED
_JSON, _TEXT = DataKind.JSON, DataKind.TEXT
_new: Final = object.__new__


def decode(
    headers: HeadersLike,
    payload: object,
    mode: object,
    parse_data: bool,
    extension_types: ExtensionTypes | None,
) -> DecodedEvent | None:
    """Decode the event in a message, or return None if the fast path does not handle it."""
    if payload.__class__ is not bytes:
        return None
    try:
        if not headers:
            attributes = None
        elif headers.__class__ is dict:
            attributes = header_decoders[tuple(headers)](headers.values())
        elif headers.__class__ is Headers:
            names, values = zip(*headers._pairs)
            attributes = header_decoders[names](values)
        else:
            return None
        if mode is not None and mode is not (_STRUCTURED if attributes is None else _BINARY):
            return None
        if attributes is None:
            return _decode_event(payload, parse_data, extension_types)
        if extension_types:
            _convert(attributes, extension_types)
        if not payload:
            return _new_event(attributes, None, False)
        if parse_data and "datacontenttype" in attributes:
            return _new_event(attributes, _readers[attributes["datacontenttype"]](payload), True)
        return _new_event(attributes, payload, True)
    except (ValueError, TypeError, RecursionError):  # the full codec raises the right error, or accepts the event
        return None


def _reader(content_type: str) -> Callable[[bytes], Any]:
    kind = media_type.parse(content_type)
    is_json = kind is not None and kind.kind is _JSON and kind.is_utf8
    return data.decode_json if is_json else partial(data.decode, content_type=content_type)


_readers: Final = BoundedCache(_reader)
valid_names: Final = BoundedNamesCache(are_valid_names)


def _convert(attributes: dict[str, Any], types: ExtensionTypes) -> None:
    for name in attributes.keys() & types.keys():
        wanted: Any = types[name]
        if name not in CORE and wanted is not None and attributes[name].__class__ is not wanted:
            attributes[name] = decode_extension(name, scalar_text(attributes[name]), wanted)


def _decode_event(payload: bytes, parse_data: bool, extension_types: ExtensionTypes | None) -> DecodedEvent:
    attributes, text, value = split_event(payload)
    base64 = attributes.pop("data_base64", None)
    if not valid_names[tuple(attributes)] or attributes["specversion"] != "1.0":
        raise NotHandled
    if extension_types:
        _convert(attributes, extension_types)
    if "time" in attributes:
        attributes["time"] = timestamp(attributes["time"])
    if "dataschema" in attributes:
        schemas[attributes["dataschema"]]
    content_type = attributes.get("datacontenttype")
    kind = _JSON
    if content_type is not None:
        parsed = media_type.parse(content_type)
        if parsed is None:
            raise NotHandled
        kind = parsed.kind
    if text is None:
        if base64 is None:
            return _new_event(attributes, None, False)
        octets = decode_base64("data_base64", base64)
        return _new_event(attributes, data.decode(octets, content_type) if parse_data else octets, True)
    if base64 is not None:
        raise NotHandled
    if kind is _JSON:
        return _new_event(attributes, value if parse_data else text, True, content_type is None)
    if value.__class__ is not str:
        raise NotHandled
    return _new_event(attributes, value if kind is _TEXT and parse_data else data.encode(value, content_type), True)


def _new_event(attributes: dict[str, Any], value: Any, has_data: bool, is_json: bool = False) -> DecodedEvent:
    """Make a DecodedEvent without the cost of its constructor."""
    event = _new(DecodedEvent)
    event._attributes = attributes
    event._data = value
    event.has_data = has_data
    event.is_json = is_json
    return event
