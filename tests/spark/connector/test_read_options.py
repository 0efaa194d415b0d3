"""What options of the data source mean, and which are refused. Nothing here asks a server."""

from typing import Any

import pytest

from ce_nats.spark.connector.read_options import EARLIEST, LATEST, Instant, ReadOptions

STREAM = {"stream": "ORDERS"}


def read(options: dict[str, str], *, streaming: bool = False) -> ReadOptions:
    return ReadOptions.from_options({**STREAM, **options}, streaming=streaming)


def test_defaults() -> None:
    """A table is read from its first message to its last, and a query begins behind what is there."""
    assert read({}) == ReadOptions({"ORDERS": EARLIEST}, {"ORDERS": LATEST})
    assert read({}, streaming=True) == ReadOptions({"ORDERS": LATEST}, {"ORDERS": LATEST})


def test_all_options() -> None:
    """Names in any case, values with white space around them."""
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
    """Those that another covers are left out, and all subjects are none in particular."""
    assert read({"subjects": subjects}).subjects == patterns


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stream": " "}, "option stream is missing"),
        ({"streams": "B"}, "stream and streams are two names"),
        ({"stream": "A,,B"}, "'' is not a name of a stream"),
        ({"stream": "A.B"}, r"'A\.B' is not a name of a stream"),
        ({"subjects": "a..b"}, "option subjects: "),
        ({"subjects": "a.*.c,a.b.*"}, "option subjects: .* overlap"),
        ({"startingOffsets": "latest"}, "cannot be latest where a table is read"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"startingOffsets": "-1"}, "startingOffsets is earliest, latest, a sequence or JSON"),
        ({"startingOffsets": "1.5"}, "startingOffsets is earliest, latest, a sequence or JSON"),
        ({"startingOffsets": str(2**63)}, "startingOffsets is earliest, latest, a sequence or JSON"),
        ({"startingOffsets": "{"}, "is not JSON"),
        ({"startingOffsets": '{"OTHER": 1}'}, r"positions for \['OTHER'\], and the streams are \['ORDERS'\]"),
        ({"startingOffsets": '{"ORDERS": true}'}, "not True"),
        ({"stream": "A,B", "startingOffsets": "5"}, "several streams take"),
        ({"startingOffsets": "5", "startingTimestamp": "2026-01-01T00:00:00Z"}, "say the same in two ways"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp: "),
        ({"partitions": "0"}, "option partitions is a number above 0, not '0'"),
        ({"partitions": "1", "minPartitions": "1"}, "partitions and minPartitions are two names"),
        ({"maxMessagesPerTrigger": "many"}, "option maxMessagesPerTrigger is a number above 0, not 'many'"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(options)


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_query_has_no_end(option: str) -> None:
    with pytest.raises(ValueError, match="a streaming query has no endingOffsets"):
        read({option: "5"}, streaming=True)
