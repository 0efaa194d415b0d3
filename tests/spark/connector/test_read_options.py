"""Parsing the read options of the data source, and the errors of invalid ones. No server is needed."""

from typing import Any

import pytest

from ce_nats.spark.connector._read_options import EARLIEST, LATEST, Instant, ReadOptions

STREAM = {"stream": "ORDERS"}


def read(options: dict[str, str], *, streaming: bool = False) -> ReadOptions:
    return ReadOptions.from_options({**STREAM, **options}, streaming=streaming)


def test_defaults() -> None:
    """A table is read from the first message to the last; a streaming query starts after the last message."""
    assert read({}) == ReadOptions({"ORDERS": EARLIEST}, {"ORDERS": LATEST})
    assert read({}, streaming=True) == ReadOptions({"ORDERS": LATEST}, {"ORDERS": LATEST})


def test_all_options() -> None:
    """Option names are case-insensitive, and white space around values is removed."""
    options = ReadOptions.from_options(
        {
            "STREAM": " B , A,B ",
            "subjects": "a.*, b.>",
            "startingoffsets": '{"A": 5, "B": "earliest"}',
            "endingTimestamp": "2026-01-01T00:00:00Z",
            "minPartitions": "3",
            "maxMessagesPerTrigger": "1000",
            "failOnDataLoss": "FALSE",
            "url": "nats://elsewhere",
        },
        streaming=False,
    )
    instant = Instant("2026-01-01T00:00:00Z")
    assert options == ReadOptions(
        {"A": 5, "B": EARLIEST}, {"A": instant, "B": instant}, ("a.*", "b.>"), 3, 1000, fail_on_data_loss=False
    )
    assert options.streams == ["A", "B"]


@pytest.mark.parametrize(
    ("subjects", "patterns"), [("", ()), (">", ()), ("a, a, a.*", ("a", "a.*")), ("a.b,a.>", ("a.>",)), ("a,>", ())]
)
def test_subjects(subjects: str, patterns: tuple[str, ...]) -> None:
    """Patterns that another one covers are removed; a pattern for all subjects becomes an empty tuple."""
    assert read({"subjects": subjects}).subjects == patterns


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stream": " "}, "option stream is missing"),
        ({"stream": "A,,B"}, "option stream must be stream names separated by commas, got ''"),
        ({"stream": "A.B"}, r"must be stream names separated by commas, got 'A\.B'"),
        ({"subjects": "a..b"}, "option subjects: "),
        ({"subjects": "a.*.c,a.b.*"}, "option subjects: .* overlap"),
        ({"startingOffsets": "latest"}, "must not be latest for a table"),
        ({"endingOffsets": "earliest"}, "must not be earliest"),
        ({"startingOffsets": "-1"}, "startingOffsets must be earliest, latest, a sequence or JSON"),
        ({"startingOffsets": "1.5"}, "startingOffsets must be earliest, latest, a sequence or JSON"),
        ({"startingOffsets": str(2**63)}, "startingOffsets must be earliest, latest, a sequence or JSON"),
        ({"startingOffsets": "{"}, "must be JSON, got '{'"),
        ({"startingOffsets": '{"OTHER": 1}'}, r"must have positions for \['ORDERS'\], got \['OTHER'\]"),
        ({"startingOffsets": '{"ORDERS": true}'}, "got True"),
        ({"stream": "A,B", "startingOffsets": "5"}, "with all streams, got '5'"),
        ({"startingOffsets": "5", "startingTimestamp": "2026-01-01T00:00:00Z"}, "exclude each other"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp: "),
        ({"minPartitions": "0"}, "option minPartitions must be an integer from 1, got '0'"),
        ({"maxMessagesPerTrigger": "many"}, "option maxMessagesPerTrigger must be an integer from 1, got 'many'"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss"),
    ],
)
def test_invalid_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(options)


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_streaming_query_rejects_end_positions(option: str) -> None:
    with pytest.raises(ValueError, match="got a streaming query"):
        read({option: "5"}, streaming=True)
