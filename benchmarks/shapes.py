"""
Generate messages of one kind each, for the benchmark of consumers.

A typical event has 560 bytes on the wire: nine headers without escapes, among them ``time``, ``traceparent`` and
``Nats-Msg-Id``, and JSON data. The other kinds differ from it in one way. Ids differ in all events of a kind. The
generators are seeded: the same count yields the same messages.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

from cloudevents.core.v1.event import CloudEvent

from ce_nats import ContentMode, dedup_id, to_nats_message

Attributes: TypeAlias = dict[str, Any]

_START: Final = datetime(2026, 3, 1, tzinfo=timezone.utc)
# Twelve names of extensions.
_NAMES: Final = [f"{name}{digit}" for name in ("region", "tenant", "shard", "lane") for digit in range(3)]


class Message(NamedTuple):
    """Headers and payload of a message, and id and presence of data of its event."""

    headers: dict[str, str]
    data: bytes
    id: str
    has_data: bool


class Kind(NamedTuple):
    """
    A kind of messages.

    Attributes:
        what: Description.
        change: Changes the attributes of an event, given its number.
        headers: Changes the headers of its message, given its number.
        lines: Number of items in the data; None for an event without data.
        mode: Content mode.
    """

    what: str
    change: Callable[[Attributes, int], Any] = lambda attributes, number: None
    headers: Callable[[dict[str, str], int], dict[str, str]] = lambda headers, number: headers
    lines: int | None = 3
    mode: ContentMode = ContentMode.BINARY


def messages(kind: str, count: int) -> list[Message]:
    """Return messages of a kind of :data:`KINDS`."""
    rng = Random(5)
    return [_message(KINDS[kind], rng, number) for number in range(count)]


def _message(kind: Kind, rng: Random, number: int) -> Message:
    attributes = _attributes(rng, number)
    kind.change(attributes, number)
    event = CloudEvent(attributes, None if kind.lines is None else _sale(rng, number, kind.lines))
    made = to_nats_message(event, mode=kind.mode, headers={"Nats-Msg-Id": dedup_id(event)})
    headers = kind.headers(dict(made.headers.items()), number)
    return Message(headers, made.data, attributes["id"], kind.lines is not None)


def _attributes(rng: Random, number: int) -> Attributes:
    return {
        "id": f"{rng.getrandbits(80):020x}",
        "source": f"urn:shop:{number % 9}",
        "type": "org.shop.sale.v2",
        "subject": f"till/{number % 7}",
        "time": _START + timedelta(microseconds=rng.randrange(10**12)),
        "datacontenttype": "application/json",
        "traceparent": f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-00",
    }


def _sale(rng: Random, number: int, lines: int) -> dict[str, Any]:
    items = [{"ean": f"{rng.randrange(10**13):013d}", "qty": 2, "eur": 1.5} for _ in range(lines)]
    return {"receipt": number, "lines": items, "cashier": "Renée"}


# --- Changes ----------------------------------------------------------------------------------------------------------


def _four_shapes(attributes: Attributes, number: int) -> None:
    shape = Random(number).randrange(4)
    if shape == 1:
        del attributes["traceparent"]
    elif shape == 2:
        attributes["region"] = "north"
    elif shape == 3:
        del attributes["subject"]
        attributes["priority"] = "7"


def _twelve_shapes(attributes: Attributes, number: int) -> None:
    attributes[_NAMES[number % 12]] = "7"


def _with_offset(headers: dict[str, str], number: int) -> dict[str, str]:
    return headers | {"ce-time": f"2026-03-01T12:{number % 60:02}:07.{number % 10**9:09}+02:00"}


def _in_title_case(headers: dict[str, str], _: int) -> dict[str, str]:
    return {name.title(): value for name, value in headers.items()}


# --- Kinds ------------------------------------------------------------------------------------------------------------

KINDS: Final = {
    "typical": Kind("typical events"),
    "mixed": Kind("four shapes at random", _four_shapes),
    "structured": Kind("structured mode", mode=ContentMode.STRUCTURED),
    "escapes": Kind("percent escapes", lambda given, number: given.update(subject=f"Größe € {number % 7}")),
    "offset": Kind("time with offset and nanoseconds", headers=_with_offset),
    "no-type": Kind("no datacontenttype", lambda given, number: given.pop("datacontenttype")),
    "no-data": Kind("no data", lines=None),
    "title-case": Kind("header names in title case", headers=_in_title_case),
    "content-type": Kind(
        "a Content-Type beside", headers=lambda headers, number: {**headers, "Content-Type": "application/json"}
    ),
    "twelve": Kind("twelve shapes in turn", _twelve_shapes),
    "flood": Kind("a new header name in each message", lambda given, number: given.update({f"x{number}": "1"})),
    "16kb": Kind("16 KB of JSON", lines=340),
}
