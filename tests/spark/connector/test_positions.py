"""Parsing positions by offset and by time. No server is needed."""

import pytest

from ce_nats import Timestamp
from ce_nats.spark.connector._positions import LATEST, Instant, Position, Positions, read_positions
from tests.support.tables import each

NOON = "2026-01-01T12:00:00.000Z"


def read(**given: str) -> Positions:
    return read_positions({name.lower(): value for name, value in given.items()}, "starting", LATEST)


@each(
    ("text", "expected"),
    [
        ("2026-01-01T13:00:00+01:00", "2026-01-01T13:00:00+01:00"),
        ("1767268800000", NOON),
        ("0", "1970-01-01T00:00:00.000Z"),
        ("1", "1970-01-01T00:00:00.001Z"),
        ("999999999", "1970-01-12T13:46:39.999Z"),
        ("10000000000", "1970-04-26T17:46:40.000Z"),
        ("253402300799999", "9999-12-31T23:59:59.999Z"),
    ],
)
def test_timestamps(text: str, expected: str) -> None:
    """RFC 3339, or milliseconds since 1970, in UTC whatever the local time zone is."""
    assert read(startingTimestamp=text) == Positions("startingTimestamp", Instant(expected))


def test_time_of_an_instant() -> None:
    assert Instant("2026-01-01T13:00:00.000000001+01:00").at == Timestamp("2026-01-01T13:00:00.000000001+01:00")


def test_positions_of_all_streams() -> None:
    assert read(startingOffsets="latest").all == ["latest"]
    assert read(startingOffsets="Earliest").all == ["earliest"]
    assert read(startingOffsets="7").all == [7]
    assert read(startingOffsets='{"A": 7, "B": "earliest"}').all == [7, "earliest"]


def test_timestamps_by_stream() -> None:
    positions = read(startingTimestamp=f'{{"A": 1767268800000, "B": "1767268800000", "C": "{NOON}"}}')
    assert positions.of(["C", "A", "B"]) == dict.fromkeys("ABC", Instant(NOON))


@each(
    ("text", "expected"),
    [
        ("7", 7),
        ("0", 0),
        (str(2**63 - 1), 2**63 - 1),
        ("Earliest", "earliest"),
        ('{"A": 7}', 7),
        ('{"A": "7"}', 7),
        ('{"A": "LATEST"}', LATEST),
    ],
)
def test_offsets(text: str, expected: Position) -> None:
    assert read(startingOffsets=text).of(["A"]) == {"A": expected}


@each("text", ["first", "-1", "+1", "1.5", "", str(2**63), str(2**64), "1" * 5000, '{"A": 1.5}', '{"A": "first"}'])
def test_invalid_offsets(text: str) -> None:
    with pytest.raises(ValueError, match="option startingOffsets must be earliest, latest, a sequence or JSON"):
        read(startingOffsets=text)


def test_a_common_position_is_that_of_each_stream() -> None:
    assert read().of(["B", "A"]) == {"A": LATEST, "B": LATEST}


@each("names", [[], ["A"], ["A", "B", "C"], ["A", "C"]])
def test_positions_by_stream_must_be_those_of_the_streams(names: list[str]) -> None:
    positions = read(startingOffsets='{"B": 1, "A": 1}')
    with pytest.raises(ValueError, match=r"option startingOffsets must have positions for .*, got \['A', 'B'\]"):
        positions.of(names)


@each(
    "text",
    [
        *("yesterday", "2026-01-01", "-1", "1.5", "1e3", "253402300800000", "9" * 5_000, "[1]", '"a"', "\ud800", "\0"),
        *('{"A": null}', '{"A": true}', '{"A": 1.5}', '{"A": [1]}', '{"A": {"0": 1}}', '{"A": ""}'),
    ],
)
def test_invalid_timestamps(text: str) -> None:
    with pytest.raises(ValueError, match=r"option startingTimestamp must be an RFC 3339 .* got ") as caught:
        read(startingTimestamp=text)
    assert len(str(caught.value)) < 400


@each(
    ("text", "instant"),
    [
        ("1000000000", "1970-01-12T13:46:40.000Z"),
        ("1767268800", "1970-01-21T10:54:28.800Z"),
        ("9999999999", "1970-04-26T17:46:39.999Z"),
    ],
)
def test_seconds_instead_of_milliseconds(text: str, instant: str) -> None:
    """They would be a time in 1970: an end before all messages, or a start that reads all."""
    with pytest.raises(ValueError, match=f"milliseconds since 1970, got {text}, which is {instant}"):
        read(startingTimestamp=text)


@each("option", ["startingOffsets", "startingTimestamp"])
@each(
    "text",
    ["{", "{}}", '{"A": }', '{"A": 1, "A": 2}', '{"A":' * 100_000, '{"A": ' + "9" * 5_000 + "}", "{A: 1}"],
)
def test_invalid_json(option: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"option {option} must be JSON, got ") as caught:
        read(**{option: text})
    assert len(str(caught.value)) < 400


def test_offsets_and_timestamp_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="startingOffsets and startingTimestamp exclude each other"):
        read(startingOffsets="7", startingTimestamp=NOON)
