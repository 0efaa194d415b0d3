"""
Timestamp: a datetime that keeps its RFC 3339 text.
"""

import copy
import pickle
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ce_nats import DecodeError, EncodeError, Timestamp
from ce_nats.codec.timestamp import format_datetime
from tests.support.strategies import Moment, any_text, attempt, aware_datetimes, moments, refused, timestamp_texts
from tests.support.tables import each

UTC = timezone.utc


@given(moments())
def test_rfc_3339_is_parsed(moment: Moment) -> None:
    """Microseconds, offset and nanoseconds are those of the text, and the text is kept."""
    at = Timestamp(moment.text)
    assert at.replace(tzinfo=None) == moment.local
    assert at.utcoffset() == moment.offset
    assert at.nanosecond == int(moment.fraction[:9].ljust(9, "0"))
    assert str(at) == at.text == moment.text.upper()


@given(moments())
def test_text_can_be_parsed_again(moment: Moment) -> None:
    at = Timestamp(moment.text)
    assert Timestamp(str(at)).text == at.text
    assert Timestamp(at).text == at.text


@given(timestamp_texts)
def test_copies_keep_the_text(text: str) -> None:
    """Pickled, copied, deep-copied and printed, with all digits and leap seconds."""
    at = Timestamp(text)
    pickles = [pickle.loads(pickle.dumps(at, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*pickles, copy.copy(at), copy.deepcopy(at), eval(repr(at))):
        assert type(other) is Timestamp
        assert other == at
        assert other.text == at.text
        assert other.utcoffset() == at.utcoffset()


@given(timestamp_texts, st.sampled_from([0, 1]))
def test_copies_without_a_time_zone_are_equal(text: str, fold: int) -> None:
    at = Timestamp(text).replace(tzinfo=None, fold=fold)
    pickles = [pickle.loads(pickle.dumps(at, protocol)) for protocol in range(4, pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*pickles, copy.copy(at), copy.deepcopy(at)):
        assert type(other) is Timestamp
        assert (other, other.tzinfo, other.fold) == (at, None, fold)
    assert pickle.loads(pickle.dumps(at, 2)) == at


@given(aware_datetimes)
def test_timestamp_from_a_datetime(value: datetime) -> None:
    """With its instant and offset, in both forms of the constructor; it is equal to the datetime."""
    at = Timestamp(value)
    assert at == value
    assert hash(at) == hash(value)
    assert at.utcoffset() == value.utcoffset()
    assert at.text == format_datetime(value)
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    assert Timestamp(*parts, value.tzinfo).text == at.text
    assert Timestamp(*parts, tzinfo=value.tzinfo).text == at.text


@given(timestamp_texts, st.timedeltas(timedelta(days=-9000), timedelta(days=9000)))
def test_arithmetic(text: str, delta: timedelta) -> None:
    """The result is a Timestamp with the text of the new instant."""
    at = Timestamp(text)
    assume(30 < at.year < 9970)
    later = at + delta
    assert type(later) is Timestamp
    assert later - at == delta
    assert Timestamp(str(later)) == later


@given(timestamp_texts, st.integers(0, 999_999))
def test_replace(text: str, microsecond: int) -> None:
    """The result has the text of the new instant."""
    changed = Timestamp(text).replace(microsecond=microsecond)
    assert type(changed) is Timestamp
    assert changed.nanosecond == microsecond * 1000
    assert Timestamp(str(changed)) == changed


@given(timestamp_texts, aware_datetimes)
def test_astimezone(text: str, other: datetime) -> None:
    """The same instant, with the text in the other time zone."""
    at = Timestamp(text)
    assume(1 < at.year < 9999)
    moved = at.astimezone(other.tzinfo)
    assert moved == at
    assert Timestamp(str(moved)) == at
    assert moved.utcoffset() == other.utcoffset()


@each(
    "make",
    [
        lambda: Timestamp.now(UTC),
        lambda: Timestamp.fromtimestamp(0, UTC),
        lambda: Timestamp.fromisoformat("2020-01-01T00:00:00+00:00"),
        lambda: Timestamp.strptime("2020 +0100", "%Y %z"),
        lambda: Timestamp.combine(datetime(2020, 1, 1).date(), datetime(2020, 1, 1).time(), UTC),
    ],
)
def test_constructors_of_datetime(make: Callable[[], Timestamp]) -> None:
    """They return Timestamps with text."""
    at = make()
    assert type(at) is Timestamp
    assert Timestamp(at.text) == at


@given(st.lists(timestamp_texts, min_size=2, max_size=2))
def test_equality_order_and_hash_are_those_of_datetime(texts: list[str]) -> None:
    first, second = map(Timestamp, texts)
    plain = [datetime.combine(at.date(), at.time(), at.tzinfo) for at in (first, second)]
    assert (first < second, first == second, first > second) == (
        plain[0] < plain[1],
        plain[0] == plain[1],
        plain[0] > plain[1],
    )
    assert hash(first) == hash(plain[0])


@given(st.one_of(any_text, st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2})?(\.[0-9]*)?.*")))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    at, error = attempt(DecodeError, Timestamp, text)
    assert str(at) == text.upper() if error is None else error.code == "invalid-timestamp"


@given(timestamp_texts, st.data())
def test_one_changed_character(text: str, data: st.DataObject) -> None:
    """The text is accepted only if it is still RFC 3339, with the value of the new text."""
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.one_of(any_text, st.sampled_from("0159.:+-TZ ٤"))) + text[place + 1 :]
    form = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
    try:
        at = Timestamp(changed)
    except DecodeError:
        return
    assert re.fullmatch(form, changed)
    assert at.text == changed.upper()
    assert at.text.startswith(f"{at.year:04}-{at.month:02}-{at.day:02}T{at.hour:02}:{at.minute:02}:")


@each(
    "text",
    [
        "2016-12-31T23:59:60Z",
        "2016-12-31T23:59:60.5Z",
        "2016-12-31T18:29:60-05:30",
    ],
)
def test_leap_seconds(text: str) -> None:
    """Second 60 is kept in the text; the datetime is the last microsecond before it."""
    at = Timestamp(text)
    assert at.text == text.upper()
    assert (at.second, at.microsecond) == (59, 999999)


@each(
    "text",
    [
        "2017-01-01T00:59:60+02:00",
        "0001-01-01T00:59:60+23:59",
        "9999-12-31T23:59:60-23:59",
    ],
)
def test_leap_seconds_elsewhere_are_rejected(text: str) -> None:
    """Second 60 is valid only at the end of a month in UTC."""
    refused(DecodeError, "invalid-timestamp", Timestamp, text)


@each("text", ["2020-01-01", "2020-01-01T00:00:00+0100", "2020-02-30T00:00:00Z"])
def test_other_formats_are_rejected(text: str) -> None:
    """In both directions. The vectors have many others."""
    refused(DecodeError, "invalid-timestamp", Timestamp, text)
    refused(EncodeError, "invalid-timestamp", Timestamp._parse, text, EncodeError)


@given(st.one_of(aware_datetimes, st.datetimes()))
def test_any_datetime_is_formatted_or_rejected(value: datetime) -> None:
    """A naive datetime is rejected."""
    text, error = attempt(EncodeError, format_datetime, value)
    if value.utcoffset() is None:
        assert error.code == "invalid-attribute-type"
    else:
        assert Timestamp(text) == value


@each(
    ("zone", "text"),
    [
        (UTC, "2020-01-02T03:04:05Z"),
        (timezone(timedelta(0), "GMT"), "2020-01-02T03:04:05Z"),
        (timezone(timedelta(hours=1)), "2020-01-02T03:04:05+01:00"),
        (timezone(-timedelta(hours=1, minutes=30)), "2020-01-02T03:04:05-01:30"),
        (timezone(timedelta(seconds=5)), "2020-01-02T03:04:00Z"),
    ],
)
def test_format_of_offsets(zone: timezone, text: str) -> None:
    """Offset 0 is ``Z`` in every class of time zone; an offset with seconds is converted to UTC."""
    assert format_datetime(datetime(2020, 1, 2, 3, 4, 5, tzinfo=zone)) == text


@each(
    ("arguments", "options"),
    [((), {}), (("2020-01-01T00:00:00Z", UTC), {}), (("2020-01-01T00:00:00Z",), {"tzinfo": UTC})],
)
def test_text_must_be_the_only_argument(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Timestamp(*arguments, **options)


def test_naive_timestamps_can_be_printed() -> None:
    """Arithmetic and now() can return a Timestamp without a time zone, which cannot be encoded."""
    naive = Timestamp(2020, 1, 1)
    assert "2020" in repr(naive)
    refused(EncodeError, "invalid-attribute-type", lambda: naive.text)
    refused(EncodeError, "invalid-attribute-type", format_datetime, naive)


@each(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (1_767_323_045_123_456_789, "2026-01-02T03:04:05.123456789Z"),
        (1_767_323_045_120_000_000, "2026-01-02T03:04:05.12Z"),
        (1_767_323_045_000_000_000, "2026-01-02T03:04:05Z"),
        (1_709_164_799_999_999_999, "2024-02-28T23:59:59.999999999Z"),
        (253_402_300_799_999_999_999, "9999-12-31T23:59:59.999999999Z"),
    ],
)
def test_from_nanoseconds(at, text):
    time = Timestamp.from_nanoseconds(at)
    assert (str(time), time) == (text, Timestamp(text))
    assert (time.nanosecond, time.tzinfo) == (at % 10**9, timezone.utc)
