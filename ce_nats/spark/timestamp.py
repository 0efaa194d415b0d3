"""
RFC 3339 text to TIMESTAMP, without a Python worker.

RFC 3339 5.6 and 5.7; the same rules as ce_nats/timestamp.py. A TIMESTAMP has microseconds and no offset: further digits
are cut, and the leap second 23:59:60 becomes 23:59:59.999999. It holds the years 1 to 9999 of UTC; a time that is valid
with its offset and lies outside of them in UTC is NULL and no error.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql.types import TimestampType

from .expressions import full, let, matches
from .functions import F

__all__ = ["canonical", "parse", "parse_plain"]

_DATE_TIME: Final = full(
    r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]++)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
# What Spark reads by itself just as RFC 3339 has it: offsets within 17:59, and far from the ends of TIMESTAMP.
_PLAIN: Final = full(
    r"(?!0000|0001-01-01|9999-12-31)[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9}+)?"
    r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"
)
_DAY: Final = 86_400_000_000
_FIRST: Final = -62_135_596_800_000_000  # 0001-01-01T00:00:00Z in microseconds of Unix time
_LAST: Final = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z
_TO_END: Final = 2**31 - 1


def canonical(text: Column) -> Column:
    """``T`` and ``Z`` in upper case, nothing else changed."""
    return F.upper(text)


def parse_plain(text: Column) -> Column:
    """The TIMESTAMP of the common spellings; NULL for others, valid or not."""
    return F.when(matches(text, _PLAIN), text.try_cast(TimestampType()))


def parse(text: Column) -> Column:
    """
    A struct of ``valid`` (BOOLEAN) and ``value`` (TIMESTAMP).

    Args:
        text: Text, not NULL.
    """
    return let(text, _parse)


def _parse(text: Column) -> Column:
    is_leap = F.substring(text, 18, 2) == "60"
    seconds = F.when(is_leap, F.lit("59.999999")).otherwise(
        F.concat(F.substring(text, 18, 2), F.lit("."), F.substring(F.regexp_extract(text, r"\.([0-9]+)", 1), 1, 6))
    )
    # The local time as if it were UTC, so that the session's time zone has no say.
    local = F.concat(F.substring(text, 1, 10), F.lit("T"), F.substring(text, 12, 6), seconds, F.lit("Z"))
    return let(
        F.when(matches(text, _DATE_TIME), F.unix_micros(local.try_cast(TimestampType())) - _offset(text)),
        lambda instant: F.struct(
            (instant.isNotNull() & (~is_leap | _ends_a_month(instant))).alias("valid"),
            F.when(instant.between(_FIRST, _LAST), F.timestamp_micros(instant)).alias("value"),
        ),
    )


def _offset(text: Column) -> Column:
    """Microseconds that the local time is ahead of UTC."""
    offset = F.substring(text, -6, 6)
    minutes = F.substring(offset, 2, 2).try_cast("bigint") * 60 + F.substring(offset, 5, 2).try_cast("bigint")
    sign = F.when(offset.startswith("-"), F.lit(-60_000_000)).otherwise(F.lit(60_000_000))
    return F.when(F.upper(text).endswith("Z"), F.lit(0).cast("bigint")).otherwise(minutes * sign)


def _ends_a_month(instant: Column) -> Column:
    """RFC 3339 5.7: second 60 stands only at a leap second, which is the last of a month in UTC."""
    next_instant = instant + 1
    days = F.floor(next_instant / _DAY).cast("int")
    first_of_month = F.dayofmonth(F.date_from_unix_date(days)) == 1
    return instant.between(_FIRST, _LAST) & (F.pmod(next_instant, F.lit(_DAY)) == 0) & first_of_month
