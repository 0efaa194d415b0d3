"""The messages that ``ce-nats demo`` sends: events in both modes, and messages that are not valid events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from cloudevents.core.v1.event import CloudEvent

from .. import ContentMode, Timestamp
from ..message import MSG_ID


@dataclass(frozen=True)
class Sample:
    """
    A message to send: an event, or a raw message.

    Attributes:
        subject: NATS subject.
        outcome: Expected result of decoding: a content mode, or an error code.
        event: Event to encode in the mode ``outcome``; None for a raw message.
        headers: Headers of a raw message.
        payload: Payload of a raw message.
    """

    subject: str
    outcome: str
    event: CloudEvent | None = None
    headers: dict[str, str] | None = None
    payload: bytes = b""


_TIME: Final = datetime(2026, 1, 31, 12, 30, tzinfo=timezone.utc)

# Type, additional attributes, and data; "{n}" is replaced with the number of the event.
_EVENTS: Final[list[tuple[str, dict[str, Any], Any]]] = [
    ("order.placed", {"subject": "orders/{n}"}, {"total": 12.5, "items": ["tea", "Käse"]}),
    ("order.shipped", {"subject": 'Zürich → 東京 😀 "100 %"', "datacontenttype": "application/json"}, ["a", 1, None]),
    (
        "sensor.reading",
        {
            "alarm": True,
            "level": -42,
            "unit": "°C",
            "raw": b"\x00\x01\xff",
            "calibrated": _TIME - timedelta(days=30),
            "dataschema": "https://example.com/schemas/reading#2",
        },
        21.5,
    ),
    ("image.thumbnail", {"datacontenttype": "image/png"}, b"\x89PNG\r\n\x1a\n\x00"),
    ("invoice.issued", {"datacontenttype": "application/xml"}, "<invoice><sum>12.50 €</sum></invoice>"),
    ("note.written", {"datacontenttype": "text/plain; charset=utf-8"}, "two\nlines of plain text"),
    ("user.left", {}, None),
    ("trade.done", {"time": Timestamp("2026-01-31T14:30:00.123456789+02:00"), "traceid": ""}, {"price": "99.90"}),
]

_CE: Final = {"ce-specversion": "1.0", "ce-id": "b{n}", "ce-source": "/broken", "ce-type": "com.example.broken"}
_JSON: Final = "application/cloudevents+json"

# Number of messages, expected error code, headers and payload.
_INVALID: Final[list[tuple[int, str, dict[str, str] | None, bytes]]] = [
    (7, "invalid-percent-escape", {**_CE, "ce-subject": 'Euro € 100% "q"'}, b""),
    (5, "invalid-utf8", {**_CE, "ce-subject": "%C0%A0"}, b""),
    (6, "missing-attribute", {name: value for name, value in _CE.items() if name != "ce-id"}, b"x"),
    (3, "duplicate-attribute", {**_CE, "CE-Id": "another"}, b""),
    (2, "unsupported-specversion", {**_CE, "ce-specversion": "0.3"}, b""),
    (2, "invalid-timestamp", {**_CE, "ce-time": "yesterday"}, b""),
    (2, "invalid-attribute-name", {**_CE, "ce-my_ext": "1"}, b""),
    (4, "invalid-json", {"Content-Type": _JSON}, b'{"specversion":"1.0","id":'),
    (3, "batch-not-supported", {"Content-Type": "application/cloudevents-batch+json"}, b"[]"),
    (1, "unsupported-format", {"Content-Type": "application/cloudevents+avro"}, b"\x00"),
    (5, "not-a-cloudevent", None, b"not an event"),
]


def samples() -> list[Sample]:
    """Return all messages to send, with the invalid ones spread among the events."""
    valid = list(_valid(280))
    invalid = [
        Sample("demo.broken", code, headers=_numbered(headers, number), payload=payload)
        for times, code, headers, payload in _INVALID
        for number in range(times)
    ]
    interval = len(valid) // len(invalid)
    mixed: list[Sample] = []
    for number, sample in enumerate(valid):
        mixed.append(sample)
        if number % interval == 0 and invalid:
            mixed.append(invalid.pop())
    return mixed + invalid


def _valid(count: int) -> Iterator[Sample]:
    for number in range(count):
        kind, others, data = _EVENTS[number % len(_EVENTS)]
        attributes: dict[str, Any] = {"specversion": "1.0", "id": f"event {number}", "source": f"/demo/{number % 3}"}
        attributes |= {"type": f"com.example.{kind}", "time": _TIME + timedelta(milliseconds=number)}
        attributes |= {name: _with_number(value, number) for name, value in others.items()}
        mode = list(ContentMode)[number // len(_EVENTS) % 2]
        yield Sample(f"demo.{kind}", mode.value, CloudEvent(attributes, data))
    # Events as sdk-go, Knative and Argo send them: in JSON, without a Content-Type.
    for number in range(40):
        payload = b'{"specversion":"1.0","id":"p%d","source":"/peers","type":"com.example.peer.said","data":1}' % number
        headers = {MSG_ID: f"p{number}"} if number % 2 else None
        yield Sample("demo.peer", "structured", headers=headers, payload=payload)


def _with_number(value: Any, number: int) -> Any:
    return value.replace("{n}", str(number)) if isinstance(value, str) else value


def _numbered(headers: dict[str, str] | None, number: int) -> dict[str, str] | None:
    return headers and {name: _with_number(value, number) for name, value in headers.items()}
