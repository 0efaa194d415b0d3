"""The ranges that are read, for given stream states. No server is needed."""

import logging
import os

import pytest

from ce_nats import DataLossError
from ce_nats._ranges import StreamRange, StreamState
from ce_nats.spark.connector import _planning as planning
from ce_nats.spark.connector._planning import batch_ranges, find_streams, first_offset, loss_policy
from ce_nats.spark.connector._read_options import ReadOptions
from tests.support.tables import each

STATE = StreamState("ORDERS", "2026-01-01T00:00:00Z", 11, 20, 10)
NOON = 1_767_268_800_000_000_000  # 2026-01-01T12:00:00Z


class Answers:
    """Responses of a server for which sequence 15 was the first message stored at noon."""

    def sequence_at(self, state: StreamState, since: int) -> int:
        assert (state, since) == (STATE, NOON)
        return 15


def options(*, streaming: bool = False, **given: str) -> ReadOptions:
    return ReadOptions.from_options({"stream": "ORDERS", **given}, streaming=streaming)


class NoneLater:
    """Responses of a server without messages at or after the instant."""

    def sequence_at(self, state: StreamState, since: int) -> int:
        return state.last + 1


class LastMessage:
    """Responses of a server whose last message is the first one at or after the instant."""

    def sequence_at(self, state: StreamState, since: int) -> int:
        return state.last


def planned(**given: str) -> list[tuple[int, int]]:
    read_options = options(**given)
    ranges = batch_ranges(read_options, {"ORDERS": STATE}, Answers(), loss_policy(read_options))
    return [(one.first, one.last) for one in ranges]


@each(
    ("given", "expected"),
    [
        ({}, [(11, 20)]),
        ({"startingOffsets": "15"}, [(15, 20)]),
        ({"startingOffsets": "15", "endingOffsets": "17"}, [(15, 17)]),
        ({"endingOffsets": "99"}, [(11, 20)]),
        ({"startingOffsets": "20"}, [(20, 20)]),
        ({"startingOffsets": "21"}, []),
        ({"startingOffsets": "15", "endingOffsets": "14"}, []),
        ({"startingTimestamp": "2026-01-01T12:00:00Z"}, [(15, 20)]),
        ({"startingTimestamp": "1767268800000"}, [(15, 20)]),
        ({"startingTimestamp": "1767268800000", "startingTimestampStrategy": "error"}, [(15, 20)]),
        ({"startingTimestamp": '{"ORDERS": 1767268800000}'}, [(15, 20)]),
        ({"endingTimestamp": "2026-01-01T12:00:00Z"}, [(11, 14)]),
        ({"minPartitions": "2"}, [(11, 15), (16, 20)]),
        ({"maxMessagesPerPartition": "4"}, [(11, 13), (14, 16), (17, 20)]),
        ({"maxMessagesPerPartition": "4", "minPartitions": "5"}, [(11, 12), (13, 14), (15, 16), (17, 18), (19, 20)]),
        ({"maxMessagesPerPartition": str(2**63 - 1)}, [(11, 20)]),
        ({"minPartitions": str(2**63 - 1)}, [(number, number) for number in range(11, 21)]),
        ({"startingOffsets": "5", "failOnDataLoss": "false"}, [(11, 20)]),
    ],
)
def test_ranges_of_a_table(given: dict[str, str], expected: list[tuple[int, int]]) -> None:
    assert planned(**given) == expected


@each(
    ("given", "from_beginning"),
    [({}, True), ({"startingOffsets": "11"}, False), ({"startingTimestamp": "2026-01-01T12:00:00Z"}, False)],
)
def test_range_of_a_table_has_the_stream_and_the_subjects(given: dict[str, str], from_beginning: bool) -> None:
    read_options = options(subjects="a,b", **given)
    (only,) = batch_ranges(read_options, {"ORDERS": STATE}, Answers(), pytest.fail)
    assert (only.stream, only.created, only.subjects) == ("ORDERS", STATE.created, ("a", "b"))
    assert only.from_beginning is from_beginning


def test_start_before_the_first_sequence_is_not_a_loss() -> None:
    """Sequences begin at 1."""
    states = {"ORDERS": StreamState("ORDERS", "then", 1, 3, 3)}
    (only,) = batch_ranges(options(startingOffsets="0"), states, Answers(), pytest.fail)
    assert (only.first, only.last) == (1, 3)


def test_streams_without_messages_have_no_range() -> None:
    states = {"EMPTY": StreamState("EMPTY", "then", 1, 0, 0), "ORDERS": STATE}
    ranges = batch_ranges(options(stream="EMPTY,ORDERS"), states, Answers(), pytest.fail)
    assert [(one.stream, one.first) for one in ranges] == [("ORDERS", 11)]


@each("given", [{"maxMessagesPerPartition": "9"}, {"minPartitions": "100001"}])
def test_too_many_partitions_are_an_error(given: dict[str, str]) -> None:
    """They would need more memory than the driver has."""
    states = {"ORDERS": StreamState("ORDERS", "then", 1, 1_000_000, 1_000_000)}
    with pytest.raises(ValueError, match=r"must make at most 100,000 partitions, got 1\d\d,\d\d\d"):
        batch_ranges(options(**given), states, Answers(), pytest.fail)
    assert len(batch_ranges(options(maxMessagesPerPartition="10"), states, Answers(), pytest.fail)) == 100_000


def test_a_start_after_the_last_message() -> None:
    """The strategy decides, and applies to the start only."""
    instant = {"startingTimestamp": "1767268800000"}
    states = {"ORDERS": STATE}

    def ranges(**given: str) -> list[StreamRange]:
        return batch_ranges(options(**given), states, NoneLater(), pytest.fail)

    assert ranges(**instant) == []
    assert first_offset(options(streaming=True, **instant), states, NoneLater())["ORDERS"]["sequence"] == 20
    instant["startingTimestampStrategy"] = "error"
    (only,) = batch_ranges(options(**instant), states, LastMessage(), pytest.fail)
    assert (only.first, only.last) == (20, 20)
    text = (
        r"stream ORDERS has no message stored at or after 2026-01-01T12:00:00\.000Z.*startingTimestampStrategy=latest"
    )
    with pytest.raises(ValueError, match=text):
        ranges(**instant)
    with pytest.raises(ValueError, match=text):
        first_offset(options(streaming=True, **instant), states, NoneLater())
    (only,) = ranges(endingTimestamp="1767268800000")
    assert (only.first, only.last) == (11, 20)


def test_streams_of_a_pattern() -> None:
    read_options = ReadOptions.from_options({"streamPattern": "ORDERS_.*"}, streaming=True)
    existing = ["ORDERS_B", "STOCK", "ORDERS_A"]
    assert find_streams(read_options, lambda: existing) == ["ORDERS_A", "ORDERS_B"]
    # A stream that was read is known, even if it was deleted; another that no longer matches is not read.
    assert find_streams(read_options, lambda: existing, ["ORDERS_0", "OTHER"]) == ["ORDERS_0", "ORDERS_A", "ORDERS_B"]
    assert find_streams(read_options, list, ["ORDERS_0"]) == ["ORDERS_0"]
    assert find_streams(options(), pytest.fail) == ["ORDERS"]


@each(
    ("existing", "text"),
    [
        ([], "got 'ORDERS'; the account has no streams. The pattern is a regular expression for the whole name"),
        (["ORDERS_EU"], "got 'ORDERS'; the account has ORDERS_EU. "),
        (list("GFEDCBA"), "got 'ORDERS'; the account has A, B, C, D, E, .... The pattern"),
    ],
)
def test_a_pattern_without_streams_is_an_error(existing: list[str], text: str) -> None:
    read_options = ReadOptions.from_options({"streamPattern": "ORDERS"}, streaming=True)
    with pytest.raises(ValueError, match="streamPattern must match a stream") as caught:
        find_streams(read_options, lambda: existing)
    assert text in str(caught.value)


def test_positions_by_stream_must_be_those_of_the_streams_that_match() -> None:
    given = {"streamPattern": ".*", "startingOffsets": '{"ORDERS": 5, "STOCK": 1}'}
    read_options = ReadOptions.from_options(given, streaming=True)
    text = r"startingOffsets must have positions for \['ORDERS'\], got \['ORDERS', 'STOCK'\]"
    with pytest.raises(ValueError, match=text):
        first_offset(read_options, {"ORDERS": STATE}, Answers())
    with pytest.raises(ValueError, match=text):
        batch_ranges(ReadOptions.from_options(given, streaming=False), {"ORDERS": STATE}, Answers(), pytest.fail)


def test_removed_messages_are_an_error() -> None:
    with pytest.raises(DataLossError, match=r"messages 5 to 10 are gone .*Set failOnDataLoss=false to continue"):
        planned(startingOffsets="5")


def test_losses_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    on_loss = loss_policy(options(failOnDataLoss="false"))
    with caplog.at_level(logging.WARNING, logger=planning.__name__):
        for _ in range(2):
            on_loss(DataLossError.gone("ORDERS", 5, 10, 11))
    assert [record.getMessage() for record in caplog.records] == [
        "stream ORDERS: messages 5 to 10 are gone without having been read, because the stream now begins at 11: "
        "it was purged, or its limits removed them"
    ]


@each(
    ("given", "read"),
    [
        ({}, 20),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "15"}, 14),
        ({"startingOffsets": "0"}, 0),
        ({"startingTimestamp": "2026-01-01T12:00:00Z"}, 14),
    ],
)
def test_start_of_a_streaming_query(given: dict[str, str], read: int) -> None:
    offset = first_offset(options(streaming=True, **given), {"ORDERS": STATE}, Answers())
    assert list(offset) == ["ORDERS"]
    assert offset["ORDERS"]["sequence"] == read


@pytest.mark.parametrize(
    ("minimum", "maximum", "cores", "ranges"),
    [
        (100, 100, 2, [(11, 20)]),
        (6, 100, 2, [(11, 20)]),
        (5, 100, 2, [(11, 15), (16, 20)]),
        (1, 100, 2, [(11, 15), (16, 20)]),
        (3, 100, 64, [(11, 13), (14, 16), (17, 20)]),
        (2, 4, 1, [(11, 13), (14, 16), (17, 20)]),
    ],
)
def test_default_number_of_partitions(
    monkeypatch: pytest.MonkeyPatch, minimum: int, maximum: int, cores: int, ranges: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(planning, "_MIN_SEQUENCES", minimum)
    monkeypatch.setattr(planning, "_MAX_SEQUENCES", maximum)
    monkeypatch.setattr(planning, "_cores", lambda: cores)
    assert planned() == ranges


@pytest.mark.parametrize(
    ("sequences", "cores", "count"),
    [(99_999, 8, 1), (100_000, 8, 2), (400_000, 8, 8), (500_000, 1, 1), (500_001, 1, 2), (1_000_000, 1, 2)],
)
def test_partitions_have_50_000_to_500_000_messages_by_default(
    monkeypatch: pytest.MonkeyPatch, sequences: int, cores: int, count: int
) -> None:
    monkeypatch.setattr(planning, "_cores", lambda: cores)
    states = {"ORDERS": StreamState("ORDERS", "then", 1, sequences, sequences)}
    assert len(batch_ranges(options(), states, Answers(), pytest.fail)) == count


def test_cores_of_this_machine_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the process may use, if the operating system can tell."""
    assert 1 <= planning._cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", {0: {0, 2, 5}}.__getitem__, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert planning._cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert planning._cores() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert planning._cores() == 1
