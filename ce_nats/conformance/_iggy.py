"""Run the conformance cases of Iggy on ce_nats: one function per operation, as in ``_adapter``."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

from .. import iggy
from ..codec.mode import ContentMode
from ..iggy import HeaderKey, HeaderKind, HeaderMap, HeaderValue, IggyMessage, Layout
from ._cases import octets, spell, text
from ._events import Fields, Input, SpelledEvent, distinct, event_fields, extension_types

_NUMBERS: Final = ("id", "offset", "timestamp")


# --- Values ---------------------------------------------------------------------------------------------------------


def _encode_value(given: Input) -> Fields:
    kind = HeaderKind[given["kind"].upper()]
    return {"bytes": spell(HeaderValue.of(kind, _from_text(kind, text(given["text"]))).value)}


def _decode_value(given: Input) -> Fields:
    return {"text": _as_text(_header(given))}


def _from_text(kind: HeaderKind, value: str) -> Any:
    if kind is HeaderKind.RAW:
        return octets({"base64": value})
    if kind is HeaderKind.STRING:
        return value
    if kind is HeaderKind.BOOL:
        return {"true": True, "false": False}[value]
    return float(value) if kind in (HeaderKind.FLOAT32, HeaderKind.FLOAT64) else int(value)


def _as_text(value: HeaderValue) -> str:
    found = value.python
    if isinstance(found, bytes):
        return b64encode(found).decode("ascii")
    return str(found).lower() if isinstance(found, bool) else str(found)


# --- Headers --------------------------------------------------------------------------------------------------------


def _header(spelled: Input) -> HeaderValue:
    return HeaderValue(HeaderKind[spelled["kind"].upper()], octets(spelled["value"]))


def _key(spelled: Any) -> HeaderKey:
    return _header(spelled) if isinstance(spelled, dict) and "kind" in spelled else text(spelled)


def header_map(entries: Any) -> HeaderMap:
    """Return the headers in the entries of a case."""
    return {_key(key): _header(value) for key, value in entries}


def _spelled_header(value: HeaderValue) -> Fields:
    return {"kind": value.kind.label, "value": spell(value.value)}


def _spelled_entries(headers: HeaderMap) -> list[list[Any]]:
    return [[key if isinstance(key, str) else _spelled_header(key), _spelled_header(headers[key])] for key in headers]


def _layout(given: Input) -> Layout:
    return Layout(given.get("layout", "string-keys"))


def _encode_headers(given: Input) -> Fields:
    return {"block": spell(iggy.encode_headers(header_map(given["entries"]), layout=_layout(given)))}


def _decode_headers(given: Input) -> Fields:
    return {"entries": _spelled_entries(iggy.decode_headers(octets(given["block"]), layout=_layout(given)))}


# --- Messages -------------------------------------------------------------------------------------------------------


def _message(spelled: Input) -> IggyMessage:
    numbers = {name: int(spelled[name]) for name in _NUMBERS if name in spelled}
    return IggyMessage(octets(spelled["payload"]), header_map(spelled.get("entries", [])), **numbers)


def _spelled_message(message: IggyMessage) -> Fields:
    numbers = {name: getattr(message, name) for name in _NUMBERS}
    return {
        "payload": spell(message.payload),
        "entries": _spelled_entries(message.headers),
        # As text, because not every language has 128-bit integers.
        **{name: str(number) for name, number in numbers.items() if number is not None},
    }


def _encode_message(given: Input) -> Fields:
    return {"frame": spell(iggy.encode_message(_message(given["message"]), polled=given.get("polled", False)))}


def _decode_messages(given: Input) -> Fields:
    messages = iggy.decode_messages(octets(given["data"]), polled=given.get("polled", False))
    return {"messages": [_spelled_message(message) for message in messages]}


def _encode_json(given: Input) -> Fields:
    encoded = iggy.encode_json(_message(given["message"]), layout=_layout(given))
    return {"json": json.loads(encoded, object_pairs_hook=distinct)}


def _decode_json(given: Input) -> Fields:
    return {"message": _spelled_message(iggy.decode_json(octets(given["data"]), layout=_layout(given)))}


# --- Events ---------------------------------------------------------------------------------------------------------


def _detect_mode(given: Input) -> Fields:
    return {"mode": str(iggy.detect_mode(IggyMessage(b"", header_map(given["entries"]))))}


def _to_iggy_message(given: Input) -> Fields:
    mode = ContentMode(given.get("mode", "binary"))
    message = iggy.to_iggy_message(SpelledEvent(given["event"]["attributes"], given["event"]["data"]), mode=mode)
    entries = _spelled_entries(message.headers)
    if mode is ContentMode.BINARY:
        return {"entries": entries, "payload": spell(message.payload)}
    return {"entries": entries, "json": json.loads(message.payload, object_pairs_hook=distinct)}


def _from_iggy_message(given: Input) -> Fields:
    event = iggy.from_iggy_message(
        IggyMessage(octets(given["payload"]), header_map(given["entries"])),
        mode=ContentMode(given["mode"]) if "mode" in given else None,
        parse_data=given.get("parse_data", True),
        extension_types=extension_types(given),
    )
    return event_fields(event)


IGGY_OPERATIONS: Final[Mapping[str, Callable[[Input], Fields]]] = {
    "wire.iggy.encode_value": _encode_value,
    "wire.iggy.decode_value": _decode_value,
    "wire.iggy.encode_headers": _encode_headers,
    "wire.iggy.decode_headers": _decode_headers,
    "wire.iggy.encode_message": _encode_message,
    "wire.iggy.decode_messages": _decode_messages,
    "wire.iggy.encode_json": _encode_json,
    "wire.iggy.decode_json": _decode_json,
    "wire.iggy.detect_mode": _detect_mode,
    "wire.iggy.to_iggy_message": _to_iggy_message,
    "wire.iggy.from_iggy_message": _from_iggy_message,
}
