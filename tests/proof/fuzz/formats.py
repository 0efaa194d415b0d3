"""Decoded events in all modes and formats: encoded and decoded again, they are the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ce_nats import ContentMode, EncodeError, from_nats_message, to_nats_message
from ce_nats.codec.attributes import canonical
from tests.proof.fuzz.decoders import Message
from tests.proof.fuzz.inputs import fixture_messages, options, pairs_of, split
from tests.proof.fuzz.target import Target, checked_error, decoder, own
from tests.support.strategies import exact

_MODES = {
    "binary": {"mode": ContentMode.BINARY},
    "json": {"mode": ContentMode.STRUCTURED},
    "protobuf": {"mode": ContentMode.STRUCTURED, "format": "protobuf"},
}


def round_trip(data: bytes) -> Hashable:
    wanted = options(data)
    headers, payload = split(data)
    message: Any = Message(pairs_of(headers), payload)
    given: Any = {"parse_data": wanted.parse_data, "extension_types": wanted.types or None}
    event = from_nats_message(message, mode=wanted.mode, dialect=wanted.dialect, **given)
    outcomes: list[Hashable] = []
    for name, mode in _MODES.items():
        try:
            encoded = to_nats_message(event, "s", **mode)
        except EncodeError as error:  # text with an unknown charset; a leap second in Protobuf
            outcomes.append(checked_error(error))
            continue
        again = own(from_nats_message, encoded, **given)
        assert _attributes(again, event, name) == _attributes(event, event, name), (name, again)
        assert _data(again, event, name, wanted.parse_data) == _data(event, event, name, wanted.parse_data), name
        outcomes.append(again.has_data)
    return event.is_json, *outcomes


def _attributes(event: Any, original: Any, name: str) -> dict[str, Any]:
    """Return attributes as texts, because headers have only texts; Protobuf has times without their offset."""
    attributes = dict(event.get_attributes())
    if original.is_json and "datacontenttype" not in original.get_attributes():
        attributes.pop("datacontenttype", None)  # application/json, which is the default of JSON events
    if name == "protobuf":
        return attributes
    return {key: canonical(value, key) for key, value in attributes.items()}


def _data(event: Any, original: Any, name: str, parse_data: bool) -> Any:
    """Return data, by type; empty data is no data, except in JSON, and empty text in Protobuf."""
    data = event.get_data()
    if (data == b"" and name != "json") or (data == "" and name == "binary"):
        data = None
    if original.is_json and not parse_data:
        return None  # bytes of JSON without a type, which are other bytes when they are encoded
    return exact(data)


TARGETS = [
    Target(
        "round-trip",
        "A decoded event is the same after it was encoded and decoded in each mode and format.",
        decoder(round_trip),
        lambda: list(fixture_messages()),
    )
]
