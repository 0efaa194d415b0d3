"""Convert events between Python and conformance cases; see "Spellings of values" in spec-fixtures/README.md."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from ..codec import media_type
from ..codec.attributes import canonical
from ..codec.event import DecodedEvent, NotDelivered
from ..codec.media_type import DataKind
from ..codec.timestamp import Timestamp
from ._cases import octets, text

Input: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = dict[str, Any]

_EXTENSION_TYPES: Final[Mapping[str, type]] = {
    "Boolean": bool,
    "Integer": int,
    "String": str,
    "Binary": bytes,
    "Timestamp": datetime,
}


class SpelledEvent:
    """An event with only the methods that the codec needs. Its attributes are not checked."""

    def __init__(self, attributes: Mapping[str, Any], data: Input) -> None:
        self._attributes = {name: _native(name, tagged) for name, tagged in attributes.items()}
        self.has_data = "absent" not in data
        self._data: Any = None
        if "json" in data:
            self._data = data["json"]
        elif "text" in data:
            self._data = text(data["text"])
        elif self.has_data:
            self._data = octets(data)

    def get_attributes(self) -> Mapping[str, Any]:
        return self._attributes

    def get_data(self) -> Any:
        return self._data


def _native(name: str, tagged: Input) -> object:
    """Return the Python value of ``{"type": ..., "value": ...}``, or the value of ``{"native": ...}`` unchanged."""
    if "native" in tagged:
        return tagged["native"]
    kind, value = tagged["type"], text(tagged["value"])
    if kind == "Boolean":
        return {"true": True, "false": False}[value]
    if kind == "Integer":
        return int(value)
    if kind == "Binary":
        return octets({"base64": value})
    # ``time`` is passed as text, so that the codec checks it.
    return Timestamp(value) if kind == "Timestamp" and name != "time" else value


def _tagged(name: str, value: object) -> Fields:
    if isinstance(value, bool):
        return {"type": "Boolean", "value": canonical(value)}
    if isinstance(value, int):
        return {"type": "Integer", "value": canonical(value)}
    if isinstance(value, bytes):
        return {"type": "Binary", "value": canonical(value)}
    if isinstance(value, Timestamp):
        return {"type": "Timestamp", "value": str(value)}
    if not isinstance(value, str):
        raise TypeError(f"attribute {name!r} was decoded as {type(value).__name__}")
    return {"type": {"source": "URI-reference", "dataschema": "URI"}.get(name, "String"), "value": value}


def extension_types(given: Input) -> dict[str, type]:
    """Return the declared types of extensions in a case's input."""
    return {name: _EXTENSION_TYPES[kind] for name, kind in given.get("extension_types", {}).items()}


def event_fields(event: DecodedEvent) -> Fields:
    """Return ``attributes`` and ``data`` of a decoded event, in the form of ``expected``."""
    attributes = event.get_attributes()
    return {"attributes": {name: _tagged(name, value) for name, value in attributes.items()}, "data": _data(event)}


def _data(event: DecodedEvent) -> Fields:
    value = event.get_data()
    if not event.has_data:
        return {"absent": True}
    if isinstance(value, NotDelivered):
        return {"not_delivered": value.size}
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode("ascii")}
    content_type = media_type.parse(event.get_attributes().get("datacontenttype", "application/json"))
    is_text = content_type is not None and content_type.kind is not DataKind.JSON
    return {"text" if is_text else "json": value}


def distinct(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert members of a JSON object to a dict; duplicated members are an error, which a plain dict would hide."""
    found = dict(members)
    if len(found) != len(members):
        raise AssertionError(f"members must be unique, got {[name for name, _ in members]}")
    return found
