"""Which event a message has, or was meant to have: its attributes can be read even if the message is not valid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from ..codec.attributes import canonical
from ..codec.binary import decode_header
from ..codec.binding import from_nats_message
from ..codec.event import DecodedEvent
from ..codec.mode import PREFIX
from ..errors import CeNatsError, DecodeError
from ..message import Headers, NatsMessage, folded

_NAMES = ("id", "source", "type", "time")


class Identity(NamedTuple):
    """
    The attributes by which an event is found.

    Attributes:
        id: Its id, or None if it cannot be read. The same applies to ``source``, ``type`` and ``time``.
        error: Why the message is not an event, or None.
    """

    id: str | None = None
    source: str | None = None
    type: str | None = None
    time: str | None = None
    error: CeNatsError | None = None

    def fields(self) -> dict[str, str | None]:
        """Return the attributes as JSON values."""
        return {name: getattr(self, name) for name in _NAMES}

    def text(self) -> str:
        """Return the attributes for a line of text."""
        known = ", ".join(f"{name} {value!r}" for name, value in self.fields().items() if value is not None)
        return known or "no attributes"


def identity_of(headers: Iterable[tuple[str, str]], data: bytes) -> Identity:
    """Return the identity of the event in a message, or of what is readable of it."""
    return identity_and_event(headers, data)[0]


def identity_and_event(headers: Iterable[tuple[str, str]], data: bytes) -> tuple[Identity, DecodedEvent | None]:
    """Return the same, and the event, whose data is bytes; None if the message is not an event."""
    message = NatsMessage("", data, Headers(headers))
    try:
        event = from_nats_message(message, parse_data=False)
    except CeNatsError as error:
        found = _of_headers(message.headers) or _of_json(data)
        return Identity(found.get("id"), found.get("source"), found.get("type"), found.get("time"), error), None
    time = event.get_time()
    return Identity(event.id, event.source, event.type, None if time is None else canonical(time)), event


def _of_headers(headers: Headers) -> dict[str, str]:
    found = {}
    for name, raw in headers.items():
        attribute = folded(name).removeprefix(PREFIX)
        if folded(name).startswith(PREFIX) and attribute in _NAMES:
            try:
                found[attribute] = canonical(decode_header(attribute, name, raw, is_raw=False), attribute)
            except DecodeError:
                found[attribute] = raw
    return found


def _of_json(data: bytes) -> dict[str, str]:
    try:
        members: Any = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return {name: value for name, value in members.items() if isinstance(value, str)} if type(members) is dict else {}
