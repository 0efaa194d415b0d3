"""
The messages of a soak: each one is a function of the seed, its sender and its number.

A process that was killed sends the same message again, and the check at the end knows each byte without a copy.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from hashlib import blake2b
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from ce_nats import DecodeError, from_nats_message
from ce_nats.message import MSG_ID, HeadersLike, NatsMessage

KEYS = 20  # per sender
_LANES = 8  # subjects per sender
_TYPE_PREFIX = "com.example.soak."
_START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_MALFORMED_ID = re.compile(rb'"id": ?"([a-z]+-[0-9]+)"')
# Bytes of the text of one event of 256, larger than a TCP segment and a network buffer.
_LARGE = 20_000


class Kind(str, Enum):
    """What happens to a message in a consumer."""

    GOOD = "good"  # its handler succeeds
    FLAKY = "flaky"  # its handler fails at the first delivery
    FAILING = "failing"  # its handler always fails: dead-lettered after the last delivery
    REJECTED = "rejected"  # its handler rejects it: dead-lettered
    MALFORMED = "malformed"  # it is not an event: dead-lettered

    def __str__(self) -> str:
        return self.value


HANDLED = frozenset({Kind.GOOD, Kind.FLAKY})
# Number of messages of each other kind, of 65,536.
_SHARES = ((Kind.FLAKY, 1300), (Kind.FAILING, 300), (Kind.REJECTED, 650), (Kind.MALFORMED, 650))


@dataclass(frozen=True)
class Planned:
    """
    A message to send.

    Attributes:
        id: Its sender, a hyphen and its number, from 1.
        key: Value of ``partitionkey``, for order per key.
        data: JSON value.
    """

    id: str
    kind: Kind
    key: str
    subject: str
    time: datetime
    data: dict[str, Any]

    def event(self) -> CloudEvent:
        return CloudEvent(
            {
                "id": self.id,
                "source": "/soak",
                "type": f"{_TYPE_PREFIX}{self.kind}",
                "time": self.time,
                "partitionkey": self.key,
                "note": _note(self.id),
            },
            self.data,
        )

    def malformed(self) -> bytes:
        """Return the payload of a message that is not an event: JSON that is truncated."""
        return json.dumps({"id": self.id, "specversion": "1.0", "data": self.data}).encode()[:-2]

    def digest(self) -> int:
        if self.kind is Kind.MALFORMED:
            return digest(self.malformed())
        time = f"{self.time:%Y-%m-%dT%H:%M:%S.%f}Z"
        return digest(self.id, "/soak", f"{_TYPE_PREFIX}{self.kind}", time, self.key, _note(self.id), self.data)


def plan(seed: int, sender: str, number: int) -> Planned:
    """Return the message of a sender with a number."""
    noise = blake2b(f"{seed}/{sender}/{number}".encode()).digest()
    kind = _kind(int.from_bytes(noise[:2], "big"))
    lane = "malformed" if kind is Kind.MALFORMED else str(noise[2] % _LANES)
    size = noise[3] * 2 if noise[4] else _LARGE
    return Planned(
        id=f"{sender}-{number}",
        kind=kind,
        key=f"{sender}-{noise[5] % KEYS}",
        subject=f"in.{sender}.{lane}",
        time=_START + timedelta(milliseconds=number, microseconds=1),
        data={"number": number, "noise": noise.hex(), "text": ("é" + noise.hex() * (size // 64))[:size]},
    )


def decoded(headers: HeadersLike, data: bytes) -> tuple[str, int]:
    """Return id and digest of a message as :meth:`Planned.digest` has it; ``""`` if it has no id."""
    try:
        event = from_nats_message(NatsMessage("", data, headers))
    except DecodeError:
        found = _MALFORMED_ID.search(data)
        return found[1].decode() if found else "", digest(data)
    return event.get_id(), event_digest(event)


def event_digest(event: Any) -> int:
    """Return the digest of a decoded event."""
    attributes = event.get_attributes()
    names = ("id", "source", "type", "time", "partitionkey", "note")
    return digest(*(str(attributes.get(name)) for name in names), event.get_data())


def raw_digest(subject: str, pairs: list[tuple[str, str]], data: bytes) -> int:
    """Return the digest of a subject, all headers except ``Nats-Msg-Id``, and a payload."""
    return digest(subject, [pair for pair in pairs if pair[0] != MSG_ID], data)


def digest(*parts: Any) -> int:
    return int.from_bytes(blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


def _kind(noise: int) -> Kind:
    for kind, share in _SHARES:
        if noise < share:
            return kind
        noise -= share
    return Kind.GOOD


def _note(event_id: str) -> str:
    return f"naïve % {event_id}"  # is percent-encoded in headers
