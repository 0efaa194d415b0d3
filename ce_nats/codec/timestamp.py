"""
A datetime that keeps its RFC 3339 text.

CloudEvents "Timestamp" (RFC 3339 5.6). Python's datetime has microseconds and no leap second. An event that is decoded
and encoded again must lose neither, so the text is kept with the datetime and is encoded again unchanged.
"""

from __future__ import annotations

import re
import sys
from calendar import monthrange
from datetime import datetime, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from typing import Any, Final, SupportsIndex, cast

from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview

__all__ = ["Timestamp", "format_datetime"]

# RFC 3339 5.6: date-time = full-date "T" full-time, with the note that "T" and "Z" may be lower case.
_DATE_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
# Text that datetime.fromisoformat() reads without loss, from Python 3.11 on. That function accepts much more than
# RFC 3339, so the text is matched first.
COMMON: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_FROMISOFORMAT_READS_ALL: Final = sys.version_info >= (3, 11)
_MINUTE: Final = timedelta(minutes=1)


class Timestamp(datetime):
    """
    A timezone-aware ``datetime`` parsed from RFC 3339 text, which it keeps.

    ``Timestamp("2020-01-01T00:00:00.123456789+02:00")`` is a datetime in every respect, truncated to microseconds, and
    ``str()`` of it returns the text, with ``T`` and ``Z`` in upper case. A leap second ``23:59:60Z`` is
    23:59:59.999999 as a datetime. Arithmetic returns Timestamps with the text of the new instant.

    Equality and order are those of datetime: by instant, to the microsecond.

    Raises:
        DecodeError: ``invalid-timestamp`` if the text is not RFC 3339.
    """

    # A class attribute, not a slot: a Timestamp that was not parsed, such as the result of replace(), has this None.
    _text: str | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Timestamp:
        if len(args) == 1 and not kwargs:
            if isinstance(args[0], str):
                return cls.parse(args[0])
            if isinstance(args[0], datetime):
                return cls.parse(args[0].text if isinstance(args[0], Timestamp) else format_datetime(args[0]))
        return super().__new__(cls, *args, **kwargs)

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """
        Parse RFC 3339 text.

        Args:
            text: ``date-time`` of RFC 3339 5.6: seconds and an offset are required; any number of fraction digits is
                accepted.

        Raises:
            DecodeError: ``invalid-timestamp``.
        """
        return cls._parse(text, DecodeError)

    @classmethod
    def _parse(cls, text: str, error_class: type[CeNatsError]) -> Timestamp:
        if COMMON.fullmatch(text) and _FROMISOFORMAT_READS_ALL:
            try:
                at = datetime.fromisoformat(text)
            except ValueError as error:
                raise _invalid(text, error_class) from error
            self = datetime.__new__(
                cls, at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, at.tzinfo
            )
            self._text = text
            return self
        match = _DATE_TIME.fullmatch(text)
        if match is None:
            raise _invalid(text, error_class)
        year, month, day, hour, minute, second, fraction, sign, offset_hours, offset_minutes = match.groups()
        zone = timezone.utc if sign is None else _zone(sign, int(offset_hours), int(offset_minutes))
        is_leap_second = second == "60"
        if is_leap_second:
            second, fraction = "59", "999999"
        microsecond = int(fraction[:6].ljust(6, "0")) if fraction else 0
        try:
            self = datetime.__new__(
                cls, int(year), int(month), int(day), int(hour), int(minute), int(second), microsecond, zone
            )
        except ValueError as error:
            raise _invalid(text, error_class) from error
        if is_leap_second and not _ends_a_month(self):
            raise _invalid(text, error_class)
        self._text = text.upper()
        return self

    @classmethod
    def from_nanoseconds(cls, at: int) -> Timestamp:
        """
        Return a time in UTC; its text has no trailing zeros, as in nats-server.

        Args:
            at: Nanoseconds since 1970-01-01 UTC without leap seconds; negative before 1970. The year must be 1 to 9999.
        """
        seconds, fraction = divmod(at, 1_000_000_000)
        year, month, day, hour, minute, second, text = _second(seconds)
        self = datetime.__new__(cls, year, month, day, hour, minute, second, fraction // 1000, timezone.utc)
        self._text = f"{text}.{fraction:09}".rstrip("0") + "Z" if fraction else f"{text}Z"
        return self

    @property
    def text(self) -> str:
        """RFC 3339 text: as parsed, with ``T`` and ``Z`` in upper case, or else formatted from the datetime."""
        if self._text is None:
            self._text = format_datetime(self)
        return self._text

    @property
    def nanosecond(self) -> int:
        """Nanoseconds within the second, 0 to 999,999,999; further digits are truncated."""
        fraction = re.search(r"\.([0-9]+)", self.text)
        return int(fraction.group(1)[:9].ljust(9, "0")) if fraction else 0

    # Without a time zone, for example after replace(tzinfo=None), there is no RFC 3339 text: datetime's forms apply.

    def __str__(self) -> str:
        return super().__str__() if self.utcoffset() is None else self.text

    def __repr__(self) -> str:
        return super().__repr__() if self.utcoffset() is None else f"Timestamp({self.text!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        if self.utcoffset() is None:
            return cast("tuple[Any, ...]", super().__reduce_ex__(protocol))
        return type(self), (self.text,)


def format_datetime(value: datetime) -> str:
    """
    Return the RFC 3339 text of a timezone-aware datetime: UTC as ``Z``, other offsets kept, microseconds if not zero.

    An offset with seconds, which RFC 3339 cannot express, is converted to UTC: the same instant.

    Raises:
        EncodeError: ``invalid-attribute-type`` for a naive datetime.
    """
    try:
        if value.tzinfo is timezone.utc:
            return datetime.isoformat(value)[: -len("+00:00")] + "Z"
        offset = value.utcoffset()
        if offset is None:
            raise EncodeError(
                ErrorCode.INVALID_ATTRIBUTE_TYPE,
                f"a datetime must be timezone-aware, got {preview(value)}",
                requirement="RF-3339-01",
            )
        if offset % _MINUTE:
            value = value.astimezone(timezone.utc)
        text = datetime.isoformat(value)
    except (OverflowError, TypeError, ValueError) as error:
        if isinstance(error, CeNatsError):
            raise
        raise EncodeError(
            ErrorCode.INVALID_TIMESTAMP, f"a datetime must be one that RFC 3339 can express, got {preview(value)}"
        ) from error
    return text[:-6] + "Z" if text.endswith("+00:00") else text


@lru_cache(16)  # timestamps in a stream are ascending
def _second(seconds: int) -> tuple[int, int, int, int, int, int, str]:
    """Return year, month, day, hour, minute and second, and their text."""
    at = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    return at.year, at.month, at.day, at.hour, at.minute, at.second, at.isoformat()


@cache  # at most 2 x 24 x 60 entries
def _zone(sign: str, hours: int, minutes: int) -> tzinfo:
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if sign == "-" else offset) if offset else timezone.utc


def _ends_a_month(value: datetime) -> bool:
    """Whether a time is in the last minute of a month in UTC. Second 60 is valid only there (RFC 3339 5.7)."""
    try:
        utc = value.astimezone(timezone.utc)
    except OverflowError:
        return False
    return (utc.hour, utc.minute, utc.day) == (23, 59, monthrange(utc.year, utc.month)[1])


def _invalid(text: str, error_class: type[CeNatsError]) -> CeNatsError:
    return error_class(
        ErrorCode.INVALID_TIMESTAMP,
        f"a timestamp must be an RFC 3339 date-time such as 2020-01-31T23:59:59.5Z, got {preview(text)}",
    )
