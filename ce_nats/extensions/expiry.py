"""
The Expiry Time extension of CloudEvents.

``expirytime`` is the time after which an event is no longer useful. A publisher can send it as the time to live of the
message (``ttl=time_to_live``), and a consumer can skip expired events (``skip_expired=True``). Both compare it with the
clock of their machine.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from .._numbers import MAX_SECONDS, check_seconds
from ..codec.event import EventLike, attributes_and_data
from ..codec.timestamp import Timestamp
from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview

__all__ = ["expiry", "is_expired", "time_to_live"]

EXPIRYTIME: Final = "expirytime"

_EPOCH: Final = Timestamp(1970, 1, 1, tzinfo=timezone.utc)
_SECOND: Final = timedelta(seconds=1)
_SECOND_NANOSECONDS: Final = 10**9
# nats-server 2.15 deletes a message at once if its time to live ends after 2262: an int64 of nanoseconds overflows.
_MAX_SECONDS: Final = 100 * 365 * 24 * 60 * 60


def expiry(event: EventLike) -> Timestamp | None:
    """
    Return the ``expirytime`` of an event; None if it has none.

    Args:
        event: Any event, received or created. The attribute may be a string or a timezone-aware datetime.

    Raises:
        DecodeError: ``invalid-timestamp``: the attribute is not a timestamp.
        EncodeError: ``invalid-message``: ``event`` is not an event.
    """
    return _read(event, DecodeError)


def is_expired(event: EventLike, now: datetime | None = None, *, leeway: float = 0.0) -> bool:
    """
    Return whether an event is expired: its ``expirytime`` is now, or earlier. An event without it does not expire.

        if is_expired(event, leeway=2.0):  # the clock of the sender may be 2 seconds slow
            return

    Args:
        event: As for :func:`expiry`.
        now: The current time, timezone-aware; by default that of the machine.
        leeway: Seconds after ``expirytime`` in which the event is not yet expired.

    Raises:
        DecodeError: As :func:`expiry` does.
        EncodeError: As :func:`expiry` does.
        ValueError: ``now`` has no time zone, or ``leeway`` is not a finite number.
    """
    check_seconds("leeway", leeway, -MAX_SECONDS)
    at = expiry(event)
    return at is not None and _nanoseconds(at) + round(leeway * _SECOND_NANOSECONDS) <= _now(now)


def time_to_live(event: EventLike, now: datetime | None = None) -> str | None:
    """
    Return the value of ``Nats-TTL`` with which a stream deletes an event when it expires; None if it does not expire.

        async with aio.Publisher(js, ttl=time_to_live) as publisher: ...

    It is in whole seconds, rounded up, so that no event is deleted before its ``expirytime``, and at most 100 years.

    Args:
        event: As for :func:`expiry`.
        now: As for :func:`is_expired`.

    Raises:
        EncodeError: ``event-expired``: the event is expired; ``invalid-timestamp`` and ``invalid-message`` as for
            :func:`expiry`.
        ValueError: ``now`` has no time zone.
    """
    at = _read(event, EncodeError)
    if at is None:
        return None
    remaining = _nanoseconds(at) - _now(now)
    if remaining <= 0:
        raise EncodeError(
            ErrorCode.EVENT_EXPIRED, f"expirytime must be in the future, got {preview(at.text)}", attribute=EXPIRYTIME
        )
    return f"{min(-(-remaining // _SECOND_NANOSECONDS), _MAX_SECONDS)}s"


def _read(event: EventLike, error_class: type[CeNatsError]) -> Timestamp | None:
    value: Any = attributes_and_data(event)[0].get(EXPIRYTIME)
    if value is None:
        return None
    try:
        if isinstance(value, (str, datetime)):
            return Timestamp(value)
    except CeNatsError as error:
        raise _invalid(value, error_class) from error
    raise _invalid(value, error_class)


def _invalid(value: object, error_class: type[CeNatsError]) -> CeNatsError:
    text = f"expirytime must be an RFC 3339 date-time or a timezone-aware datetime, got {preview(value)}"
    return error_class(ErrorCode.INVALID_TIMESTAMP, text, attribute=EXPIRYTIME)


def _now(given: datetime | None) -> int:
    if given is None:
        return time.time_ns()
    if given.utcoffset() is None:
        raise ValueError(f"now must be timezone-aware, got {given!r}")
    return _nanoseconds(Timestamp(given))


def _nanoseconds(at: Timestamp) -> int:
    """Return nanoseconds since 1970, UTC. A leap second is the second after it, as in POSIX: not too early."""
    since: timedelta = at - _EPOCH
    seconds = since // _SECOND + (at.text[17:19] == "60")
    return seconds * _SECOND_NANOSECONDS + at.nanosecond
