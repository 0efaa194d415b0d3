"""The events that are exchanged with a peer, one for each possible fault, and the comparison of what was received."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ce_nats import ContentMode, DecodeError, Timestamp, to_nats_message
from ce_nats.codec.attributes import CORE, canonical
from ce_nats.codec.event import DecodedEvent
from tests.support.strategies import Event, plain_event

# Differences between the event sent and the event received: the received text by attribute, None for a missing
# attribute; "data"; or "error" alone.
Differences = dict[str, str | None]
# Placeholder for the text of a time that the peer generated.
GENERATED = "generated"

JSON = {"datacontenttype": "application/json"}
TIME = Timestamp.parse("2024-02-29T22:10:11Z")

# By the name of a column in the table of docs/interop.md.
SAMPLES: Mapping[str, Event] = {
    "core attributes": plain_event(
        {"total": 12.5, "lines": [1, 2]},
        id="order-7",
        source="https://example.com/shop?id=1",
        type="com.example.order.placed",
        subject="orders/7",
        dataschema="https://example.com/schema/order",
        time=TIME,
        **JSON,
    ),
    "Unicode": plain_event({"name": "Zoë"}, subject="Zoë owes 5 € 😀", time=TIME, **JSON),
    "percent signs": plain_event({"rate": "5%"}, subject="100% sure", time=TIME, **JSON),
    "percent-escapes": plain_event({}, source="/caf%C3%A9?q=a%20b", time=TIME, **JSON),
    "quotes": plain_event({}, note='"quoted" text', time=TIME, **JSON),
    "nanoseconds": plain_event({}, time=Timestamp.parse("2024-02-29T23:10:11.123456789+01:00"), **JSON),
    "no time": plain_event({}, **JSON),
    "no data": plain_event(time=TIME),
    "booleans, integers": plain_event({}, sampled=True, retried=False, rank=-(2**31), time=TIME, **JSON),
    "timestamps": plain_event({}, expiry=Timestamp.parse("2024-03-01T00:00:00.000000006Z"), time=TIME, **JSON),
    "bytes": plain_event({}, digest=b"\0\1\2\xff", time=TIME, **JSON),
    "text data": plain_event("naïve\n5 €", time=TIME, datacontenttype="text/plain"),
    "binary data": plain_event(b"\0\xff{", time=TIME, datacontenttype="application/octet-stream"),
}


def request_line(sample: Event) -> bytes:
    """Return a line of input for a peer: the event as JSON, and the types that JSON cannot represent."""
    envelope = to_nats_message(sample, mode=ContentMode.STRUCTURED).data
    types = {name: _kind(value) for name, value in sample.attributes.items() if name not in CORE and _kind(value)}
    return b'{"event":%b,"types":%b}\n' % (envelope, json.dumps(types).encode())


def _kind(value: object) -> str:
    return "bytes" if isinstance(value, bytes) else "timestamp" if isinstance(value, datetime) else ""


def peer_differences(sample: Event, line: bytes) -> Differences:
    """Return the differences in an event that a peer received, from its line of output."""
    answer = json.loads(line)
    if "error" in answer:
        return {"error": answer["error"]}
    return _differences(sample, answer["attributes"], b64decode(answer["data"] or ""))


def own_differences(sample: Event, event: DecodedEvent | None, error: DecodeError | None) -> Differences:
    """Return the differences in an event that ce_nats received with parse_data=False, or its error."""
    if event is None:
        assert error is not None
        return {"error": f"{error.code.value}: {error.attribute}"}
    texts = {name: canonical(value, name) for name, value in event.get_attributes().items()}
    return _differences(sample, texts, event.get_data() or b"")


def _differences(sample: Event, received: Mapping[str, str], data: bytes) -> Differences:
    # Types of extensions are not compared, because binary mode has no types.
    sent = {name: canonical(value, name) for name, value in sample.attributes.items()}
    found: Differences = {
        name: GENERATED if name == "time" and name not in sent else received.get(name)
        for name in sorted({*sent, *received})
        if not _same(name, sent.get(name), received.get(name))
    }
    content_type = sample.attributes.get("datacontenttype")
    if _value(to_nats_message(sample).data, content_type) != _value(data, content_type):
        found["data"] = data.decode("utf-8", "backslashreplace")
    return found


def _same(name: str, sent: str | None, received: str | None) -> bool:
    return sent == received or (
        name == "time" and None not in (sent, received) and _instant(sent) == _instant(received)
    )


def _instant(text: Any) -> tuple[datetime, int]:
    """Return the instant of a time, because a sender may write it with another offset."""
    time = Timestamp.parse(text)
    return time, time.nanosecond


def _value(data: bytes, content_type: str | None) -> Any:
    if content_type != "application/json":
        return data
    try:
        return json.loads(data)
    except ValueError:
        return data
