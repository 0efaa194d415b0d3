"""
The Expiry Time extension: when an event is expired, and for how long a stream keeps it.
"""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import CeNatsError, DecodeError, EncodeError, Timestamp, from_nats_message, to_nats_message
from ce_nats.extensions.expiry import expiry, is_expired, time_to_live
from tests.support.strategies import plain_event, refused
from tests.support.tables import each

NOON = datetime(2030, 6, 30, 12, tzinfo=timezone.utc)
INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(9990, 1, 1), timezones=st.timezones())
INVALID = [
    "",
    "soon",
    "2030-06-30",
    "2030-06-30T12:00:00",
    "2030-02-30T12:00:00Z",
    5,
    True,
    b"2030",
    datetime(2030, 1, 1),
]


@each("value", ["2030-06-30T14:00:00.000+02:00", NOON, Timestamp(NOON)])
def test_expirytime_may_be_text_or_a_datetime(value: Any) -> None:
    event = plain_event(expirytime=value)
    assert expiry(event) == NOON
    assert expiry(from_nats_message(to_nats_message(event, "orders"))) == NOON


def test_event_without_expirytime_does_not_expire() -> None:
    event = plain_event()
    assert expiry(event) is None
    assert time_to_live(event) is None
    assert not is_expired(event)


@each("value", INVALID)
def test_value_that_is_not_a_timestamp_is_an_error(value: Any) -> None:
    """The error of a sender is an EncodeError, that of a receiver a DecodeError."""
    event = plain_event(expirytime=value)
    assert refused(DecodeError, "invalid-timestamp", expiry, event).attribute == "expirytime"
    refused(DecodeError, "invalid-timestamp", is_expired, event)
    assert refused(EncodeError, "invalid-timestamp", time_to_live, event).attribute == "expirytime"


def test_error_of_an_invalid_timestamp_has_its_cause() -> None:
    error = refused(EncodeError, "invalid-timestamp", time_to_live, plain_event(expirytime="soon"))
    assert isinstance(error.__cause__, CeNatsError)


def test_argument_must_be_an_event() -> None:
    refused(EncodeError, "invalid-message", is_expired, None)
    refused(EncodeError, "invalid-message", time_to_live, {"expirytime": "2030-06-30T12:00:00Z"})


@each("function", [is_expired, time_to_live])
def test_now_must_have_a_time_zone(function: Any) -> None:
    with pytest.raises(ValueError, match="now must be timezone-aware"):
        function(plain_event(expirytime=NOON), datetime(2030, 1, 1))


@each(
    ("expirytime", "ttl"),
    [
        ("2030-06-30T12:00:01Z", "1s"),
        ("2030-06-30T12:00:00.000000001Z", "1s"),
        ("2030-06-30T12:00:01.0000000001Z", "1s"),  # Timestamp has nanoseconds
        ("2030-06-30T12:00:01.000000001Z", "2s"),
        ("2030-06-30T14:01:00+02:00", "60s"),
        ("2030-06-30T23:59:60Z", "43200s"),
        ("2030-06-30T23:59:60.5Z", "43201s"),
        ("9999-12-31T23:59:59Z", "3153600000s"),
        ("9999-12-31T23:59:59-23:59", "3153600000s"),
    ],
)
def test_time_to_live_is_in_whole_seconds_rounded_up(expirytime: str, ttl: str) -> None:
    assert time_to_live(plain_event(expirytime=expirytime), NOON) == ttl


@each("expirytime", ["2030-06-30T12:00:00Z", "2030-06-30T11:59:59.999999999Z", "0001-01-01T00:00:00+23:59"])
def test_expired_event_has_no_time_to_live(expirytime: str) -> None:
    """The specification: an event is expired at its expirytime."""
    event = plain_event(expirytime=expirytime)
    assert is_expired(event, NOON)
    assert refused(EncodeError, "event-expired", time_to_live, event, NOON).attribute == "expirytime"


def test_leeway_delays_expiry() -> None:
    event = plain_event(expirytime="2030-06-30T11:59:59.5Z")
    assert is_expired(event, NOON, leeway=0.5)
    assert not is_expired(event, NOON, leeway=0.501)
    assert not is_expired(plain_event(expirytime="2030-06-30T12:00:00.5Z"), NOON)


def test_clock_of_the_machine_is_the_default() -> None:
    now = datetime.now(timezone.utc)
    assert is_expired(plain_event(expirytime=now))
    later = plain_event(expirytime=now + timedelta(hours=1))
    assert not is_expired(later)
    assert 3000 < int((time_to_live(later) or "").removesuffix("s")) <= 3600


@given(INSTANTS, INSTANTS)
def test_event_is_expired_or_has_a_time_to_live_that_ends_at_or_after_its_expiry(at: datetime, now: datetime) -> None:
    event = plain_event(expirytime=at)
    if is_expired(event, now):
        assert at <= now
        refused(EncodeError, "event-expired", time_to_live, event, now)
        return
    assert at > now
    kept = timedelta(seconds=int((time_to_live(event, now) or "").removesuffix("s")))
    assert kept >= timedelta(seconds=1)
    left = at.astimezone(timezone.utc) - now.astimezone(timezone.utc)
    assert left <= kept < left + timedelta(seconds=1) or kept == timedelta(days=36500)
