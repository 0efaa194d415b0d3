"""
Generate a realistic mix of captured messages, for the benchmarks of columns and of Spark.

70 percent of the messages are in binary mode and 30 percent in structured mode. Each event has eight attributes, one of
them an extension, and JSON data of about 300 bytes. One attribute value in ten (in id, source and subject) has
characters that must be percent-encoded. One message in a hundred is malformed in one of nine ways. The generator is
seeded: the same arguments yield the same messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Final, TypeAlias

from cloudevents.core.v1.event import CloudEvent

from ce_nats import ContentMode, to_nats_message

Pairs: TypeAlias = list[tuple[str, str]]

BINARY: Final = 0.7
MALFORMED: Final = 0.01
# Probability for three of the eight values, so that one value in ten has such characters.
_ESCAPED: Final = 0.27
_START: Final = datetime(2024, 5, 1, tzinfo=timezone.utc)
_CITIES: Final = ("Zürich", "São Paulo", "Kraków", "New York", "東京", "A Coruña")
_PLAIN: Final = ("zurich", "sao-paulo", "krakow", "new-york", "tokyo", "a-coruna")


def messages(count: int, seed: int = 1) -> Iterator[tuple[Pairs, bytes]]:
    """Yield headers, as pairs in wire order, and payloads."""
    rng = Random(seed)
    for number in range(count):
        mode = ContentMode.BINARY if rng.random() < BINARY else ContentMode.STRUCTURED
        message = to_nats_message(_event(rng, number), mode=mode, headers={"Nats-Msg-Id": f"m-{number}"})
        pairs, data = message.headers.items(), message.data
        if rng.random() < MALFORMED:
            pairs, data = rng.choice(_DAMAGES[mode])(pairs, data)
        yield pairs, data


def _event(rng: Random, number: int) -> CloudEvent:
    places = _CITIES if rng.random() < _ESCAPED else _PLAIN
    attributes = {
        "specversion": "1.0",
        "id": f"{rng.getrandbits(64):016x}" + (f" {number}" if rng.random() < _ESCAPED else ""),
        "source": f"/plants/{rng.choice(places)}/line-{rng.randrange(20)}",
        "type": "com.example.reading.taken.v1",
        "subject": f"sensor-{rng.randrange(1000)}" + (" (spare)" if rng.random() < _ESCAPED else ""),
        "time": _START + timedelta(microseconds=rng.randrange(10**13)),
        "datacontenttype": "application/json",
        "traceparent": f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01",
    }
    return CloudEvent(attributes, _reading(rng, number))


def _reading(rng: Random, number: int) -> dict[str, object]:
    return {
        "number": number,
        "temperature": round(rng.gauss(21, 3), 3),
        "pressure": round(rng.gauss(1013, 9), 2),
        "valid": rng.random() < 0.99,
        "operator": {"name": rng.choice(_CITIES), "note": 'said "ok"\n' if rng.random() < 0.1 else "", "shift": 2},
        "samples": [round(rng.random(), 4) for _ in range(16)],
        "batch": f"{rng.getrandbits(96):024x}",
    }


# --- Malformed messages -----------------------------------------------------------------------------------------------

_Damage: TypeAlias = Callable[[Pairs, bytes], tuple[Pairs, bytes]]


def _with(name: str, value: str) -> _Damage:
    return lambda pairs, data: ([(key, value if key == name else old) for key, old in pairs], data)


_DAMAGES: Final[dict[ContentMode, tuple[_Damage, ...]]] = {
    ContentMode.BINARY: (
        _with("ce-time", "yesterday"),
        _with("ce-subject", "100%"),
        _with("ce-id", "%C0%A0"),
        _with("ce-source", '"/plants'),
        lambda pairs, data: ([pair for pair in pairs if pair[0] != "ce-type"], data),
        lambda pairs, data: ([*pairs, ("CE-ID", "again")], data),
    ),
    ContentMode.STRUCTURED: (
        lambda pairs, data: (pairs, data[:-20]),
        lambda pairs, data: (pairs, data.replace(b'"id"', b'"Id"', 1)),
        lambda pairs, data: (pairs, json.dumps([json.loads(data)]).encode()),
    ),
}
