"""Lag by stream in the progress of a query. tests/spark/connector/test_source.py has queries."""

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from ce_nats.spark import stream_lag
from tests.support.tables import each

KAFKA = {"description": "KafkaV2", "endOffset": {"topic": {"0": 5}}, "latestOffset": {"topic": {"0": 9}}}


def offset(created: str = "then", **sequences: int) -> dict[str, Any]:
    return {name: {"sequence": sequence, "created": created} for name, sequence in sequences.items()}


def progress(*sources: Any) -> dict[str, Any]:
    return {"name": None, "sources": list(sources)}


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"description": "nats", "endOffset": end, "latestOffset": latest}


@each(
    ("sources", "lag"),
    [
        ([], {}),
        ([KAFKA], {}),
        ([source(offset(A=5), offset(A=5))], {"A": 0}),
        ([source(offset(A=5, B=1), offset(B=3, A=9))], {"A": 4, "B": 2}),
        ([KAFKA, source(offset(A=5), offset(A=9))], {"A": 4}),
        ([source(offset(A=5), offset(A=9, NEW=2))], {"A": 4, "NEW": 2}),
        ([source(offset(A=5, DELETED=7), offset(A=9))], {"A": 4}),
        ([source(offset(A=5), offset("later", A=3))], {"A": 3}),
        ([source(offset(A=5), offset(A=3))], {"A": 0}),
        ([source(offset(A=5), offset(A=9)), source(offset(A=2), offset(A=9))], {"A": 7}),
        ([source(None, offset(A=9))], {"A": 9}),
        ([source(offset(A=5), None)], {}),
        ([source("None", "None")], {}),
        ([source([], 5), source({"A": 5}, {"A": {"sequence": "9", "created": "x"}}), {}], {}),
    ],
)
def test_lag(sources: list[Any], lag: dict[str, int]) -> None:
    """The same from a dict with offsets as objects or as text, and from JSON."""
    assert stream_lag(progress(*sources)) == lag
    assert stream_lag(json.dumps(progress(*sources))) == lag
    texts = [
        {name: json.dumps(value) if name.endswith("Offset") else value for name, value in given.items()}
        for given in sources
    ]
    assert stream_lag(progress(*texts)) == lag


def test_a_query_without_progress_has_no_lag() -> None:
    assert stream_lag(None) == {}


def test_the_class_of_pyspark() -> None:
    rates = {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    given = {
        **dict.fromkeys(("id", "runId"), "00000000-0000-0000-0000-000000000000"),
        "durationMs": {},
        "eventTime": {},
        **dict.fromkeys(("batchId", "batchDuration"), 0),
        **rates,
        "name": None,
        "timestamp": "2026-01-01T00:00:00Z",
        "stateOperators": [],
        "sources": [{**source(offset(A=5), offset(A=9)), **rates, "startOffset": None}],
        "sink": {"description": "console", "numOutputRows": 0},
    }
    assert stream_lag(StreamingQueryProgress.fromJson(given)) == {"A": 4}


class ProgressWithTexts(dict[str, Any]):
    """A progress of pyspark 4.0, whose offsets are texts that are not JSON."""

    @property
    def json(self) -> str:
        return json.dumps(progress(source(offset(A=5), offset(A=9))))


def test_json_of_a_progress_is_preferred_to_its_items() -> None:
    texts = source(str(offset(A=5)), str(offset(A=9)))
    assert stream_lag(progress(texts)) == {}
    assert stream_lag(ProgressWithTexts(progress(texts))) == {"A": 4}


@each("given", [5, [progress()], b"{}", object()])
def test_another_type_is_an_error(given: Any) -> None:
    with pytest.raises(TypeError, match="progress must be the progress of a streaming query or its JSON, got "):
        stream_lag(given)


@each("given", ["", "{", "[]", "{}", "5", {}, {"sources": None}, {"sources": [5]}, "[" * 100_000])
def test_another_shape_is_an_error(given: Any) -> None:
    with pytest.raises(ValueError, match="progress must be the progress of a streaming query or its JSON, got "):
        stream_lag(given)
