"""The ranges that are read, for given stream states. No server is needed."""

import logging

import pytest

from ce_nats import DataLossError
from ce_nats._ranges import StreamState
from ce_nats.spark.connector import _planning as planning
from ce_nats.spark.connector._planning import batch_ranges, first_offset, loss_policy
from ce_nats.spark.connector._read_options import ReadOptions

STATE = StreamState("ORDERS", "2026-01-01T00:00:00Z", 11, 20, 10)
NOON = 1_767_268_800_000_000_000  # 2026-01-01T12:00:00Z


class Answers:
    """Responses of a server for which sequence 15 was the first message stored at noon."""

    def sequence_at(self, state: StreamState, since: int) -> int:
        assert (state, since) == (STATE, NOON)
        return 15


def options(*, streaming: bool = False, **given: str) -> ReadOptions:
    return ReadOptions.from_options({"stream": "ORDERS", **given}, streaming=streaming)


def planned(**given: str) -> list[tuple[int, int]]:
    read_options = options(**given)
    ranges = batch_ranges(read_options, {"ORDERS": STATE}, Answers(), loss_policy(read_options))
    return [(one.first, one.last) for one in ranges]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [(11, 20)]),
        ({"startingOffsets": "15"}, [(15, 20)]),
        ({"startingOffsets": "15", "endingOffsets": "17"}, [(15, 17)]),
        ({"endingOffsets": "99"}, [(11, 20)]),
        ({"startingOffsets": "21"}, []),
        ({"startingOffsets": "15", "endingOffsets": "14"}, []),
        ({"startingTimestamp": "2026-01-01T12:00:00Z"}, [(15, 20)]),
        ({"endingTimestamp": "2026-01-01T12:00:00Z"}, [(11, 14)]),
        ({"minPartitions": "2"}, [(11, 15), (16, 20)]),
        ({"startingOffsets": "5", "failOnDataLoss": "false"}, [(11, 20)]),
    ],
)
def test_ranges_of_a_table(given: dict[str, str], expected: list[tuple[int, int]]) -> None:
    assert planned(**given) == expected


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


@pytest.mark.parametrize(
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


def test_default_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_SEQUENCES_PER_PARTITION", 4)
    assert planned() == [(11, 13), (14, 16), (17, 20)]
