"""Parsing the read options of the data source, and the errors of invalid ones. No server is needed."""

from typing import Any

import pytest

from ce_nats.spark.connector._limits import Limits
from ce_nats.spark.connector._pattern import StreamPattern
from ce_nats.spark.connector._positions import EARLIEST, LATEST, Instant, Positions
from ce_nats.spark.connector._read_options import READ_OPTIONS, ReadOptions
from tests.support.tables import each

STREAM = {"stream": "ORDERS"}


def read(options: dict[str, str], *, streaming: bool = False) -> ReadOptions:
    return ReadOptions.from_options({**STREAM, **options}, streaming=streaming)


def test_defaults() -> None:
    """A table is read from the first message to the last; a streaming query starts after the last message."""
    ending = Positions("endingOffsets", LATEST)
    assert read({}) == ReadOptions(("ORDERS",), Positions("startingOffsets", EARLIEST), ending)
    assert read({}, streaming=True) == ReadOptions(("ORDERS",), Positions("startingOffsets", LATEST), ending)


def test_all_options() -> None:
    """Option names are case-insensitive, and white space around values is removed."""
    options = ReadOptions.from_options(
        {
            "STREAM": " B , A,B ",
            "subjects": "a.*, b.>",
            "Filter": " tier='gold' ",
            "startingoffsets": '{"A": 5, "B": "earliest"}',
            "endingTimestamp": "2026-01-01T00:00:00Z",
            "minPartitions": "3",
            "maxMessagesPerPartition": "500",
            "failOnDataLoss": "FALSE",
            "url": "nats://elsewhere",
        },
        streaming=False,
    )
    assert options == ReadOptions(
        ("A", "B"),
        Positions("startingOffsets", by_stream={"A": 5, "B": EARLIEST}),
        Positions("endingTimestamp", Instant("2026-01-01T00:00:00Z")),
        subjects=("a.*", "b.>"),
        filter="tier = 'gold'",
        min_partitions=3,
        max_per_partition=500,
        fail_on_data_loss=False,
    )


def test_names_of_all_options() -> None:
    """Other names are errors of the source."""
    assert set(READ_OPTIONS) == {
        *("stream", "streamPattern", "subjects", "startingOffsets", "startingTimestamp", "startingTimestampStrategy"),
        "filter",
        *("endingOffsets", "endingTimestamp", "minPartitions", "maxMessagesPerPartition", "failOnDataLoss"),
        *("maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay"),
    }


@each(
    ("given", "limits"),
    [
        ({}, Limits(None, None, None, 900.0)),
        ({"maxMessagesPerTrigger": "1000", "maxBytesPerTrigger": "5"}, Limits(1_000, 5)),
        ({"maxMessagesPerTrigger": "1", "maxBytesPerTrigger": str(2**63 - 1)}, Limits(1, 2**63 - 1)),
        ({"minMessagesPerTrigger": "7", "maxMessagesPerTrigger": "7"}, Limits(7, None, 7, 900.0)),
        ({"minMessagesPerTrigger": "7", "maxTriggerDelay": "90"}, Limits(None, None, 7, 90.0)),
        ({"minMessagesPerTrigger": "7", "maxTriggerDelay": "500ms"}, Limits(None, None, 7, 0.5)),
        ({"minMessagesPerTrigger": "7", "maxTriggerDelay": "1.5 S"}, Limits(None, None, 7, 1.5)),
        ({"minMessagesPerTrigger": "7", "maxTriggerDelay": "15min"}, Limits(None, None, 7, 900.0)),
        ({"minMessagesPerTrigger": "7", "maxTriggerDelay": "2h"}, Limits(None, None, 7, 7200.0)),
        ({"minMessagesPerTrigger": "7", "maxTriggerDelay": "5 m"}, Limits(None, None, 7, 300.0)),
        ({"minMessagesPerTrigger": "7", "maxTriggerDelay": "1d"}, Limits(None, None, 7, 86_400.0)),
    ],
)
def test_limits(given: dict[str, str], limits: Limits) -> None:
    assert read(given, streaming=True).limits == limits


@each(
    ("given", "text"),
    [
        ({"maxMessagesPerTrigger": "many"}, "option maxMessagesPerTrigger must be an integer from 1, got 'many'"),
        ({"maxBytesPerTrigger": "10MB"}, "option maxBytesPerTrigger must be an integer from 1, got '10MB'"),
        ({"maxBytesPerTrigger": "-1"}, "option maxBytesPerTrigger must be an integer from 1, got '-1'"),
        ({"maxBytesPerTrigger": str(2**63)}, "option maxBytesPerTrigger must be an integer from 1, got '9223"),
        ({"minMessagesPerTrigger": "0"}, "option minMessagesPerTrigger must be an integer from 1, got '0'"),
        ({"minMessagesPerTrigger": "9" * 20}, "option minMessagesPerTrigger must be an integer from 1, got '999"),
        (
            {"minMessagesPerTrigger": "8", "maxMessagesPerTrigger": "7"},
            "must be at most maxMessagesPerTrigger, .* got 8",
        ),
        ({"maxTriggerDelay": "5m"}, "option maxTriggerDelay must be used with minMessagesPerTrigger"),
        *(
            ({"minMessagesPerTrigger": "8", "maxTriggerDelay": delay}, f"option maxTriggerDelay must .* got '{delay}'")
            for delay in ("0", "0.0s", "-5", "soon", "5 weeks", "1e3", "inf", "9" * 30, "s")
        ),
    ],
)
def test_invalid_limits(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(given, streaming=True)


@each("option", ["maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay"])
def test_a_table_rejects_limits_of_micro_batches(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be used with streaming queries, got a table"):
        read({option: "5"})


def test_a_pattern_instead_of_streams() -> None:
    options = ReadOptions.from_options({"streampattern": " ORDERS_(EU|US){1,2} "}, streaming=True)
    assert (options.streams, options.pattern) == ((), StreamPattern("ORDERS_(EU|US){1,2}"))


def test_a_strategy_for_a_start_after_the_last_message() -> None:
    given = {"startingTimestamp": "2026-01-01T00:00:00Z"}
    assert not read(given).needs_messages
    assert not read({**given, "startingTimestampStrategy": "latest"}).needs_messages
    assert read({**given, "startingTimestampStrategy": "ERROR"}).needs_messages


@each(("subjects", "patterns"), [("", ()), (">", ()), ("a, a, a.*", ("a", "a.*")), ("a.b,a.>", ("a.>",)), ("a,>", ())])
def test_subjects(subjects: str, patterns: tuple[str, ...]) -> None:
    """Patterns that another one covers are removed; a pattern for all subjects becomes an empty tuple."""
    assert read({"subjects": subjects}).subjects == patterns


@each(
    ("options", "text"),
    [
        ({"stream": " "}, "option stream is missing"),
        ({"stream": "A", "streamPattern": "A"}, "stream and streamPattern exclude each other"),
        ({"stream": "", "streamPattern": "A["}, "streamPattern must be a regular expression .* got 'A\\['"),
        ({"stream": "", "streamPattern": "A", "startingOffsets": "5"}, "with all streams, got '5'"),
        ({"stream": "ORDERS_*"}, "got 'ORDERS_\\*'; for a pattern, use streamPattern"),
        ({"stream": "ORDERS>"}, "got 'ORDERS>'; for a pattern, use streamPattern"),
        ({"stream": "A,,B"}, "option stream must be stream names separated by commas, got ''$"),
        ({"stream": "A.B"}, r"must be stream names separated by commas, got 'A\.B'$"),
        ({"subjects": "a..b"}, "option subjects: "),
        ({"filter": "tier ="}, "option filter must be an expression of CloudEvents SQL: .* position 6"),
        ({"subjects": "a.*.c,a.b.*"}, "option subjects: .* overlap"),
        ({"startingOffsets": "latest"}, "must not be latest for a table"),
        ({"endingOffsets": "earliest"}, "must not be earliest"),
        ({"startingOffsets": '{"OTHER": 1}'}, r"must have positions for \['ORDERS'\], got \['OTHER'\]"),
        ({"startingOffsets": '{"ORDERS": true}'}, "got True"),
        ({"stream": "A,B", "startingOffsets": "5"}, "with all streams, got '5'"),
        ({"startingTimestampStrategy": "error"}, "must be used with startingTimestamp"),
        (
            {"startingTimestamp": "2026-01-01T00:00:00Z", "startingTimestampStrategy": "earliest"},
            "startingTimestampStrategy must be latest or error, got 'earliest'",
        ),
        ({"startingTimestamp": '{"OTHER": 1}'}, r"must have positions for \['ORDERS'\], got \['OTHER'\]"),
        ({"minPartitions": "0"}, "option minPartitions must be an integer from 1, got '0'"),
        ({"maxMessagesPerPartition": "1.5"}, "option maxMessagesPerPartition must be an integer from 1, got '1.5'"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss"),
    ],
)
def test_invalid_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(options)


@each("option", ["endingOffsets", "endingTimestamp"])
def test_a_streaming_query_rejects_end_positions(option: str) -> None:
    with pytest.raises(ValueError, match="got a streaming query"):
        read({option: "5"}, streaming=True)
