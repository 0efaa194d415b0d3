"""
Twenty thousand messages, most of them damaged, have the same attributes, data and error code in Spark and in Python.

Both engines are tested.
"""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from ce_nats.spark import explode_cloudevents
from tests.spark.test_vectors import compare
from tests.support.damage import Message, RawMessage, damaged, has_only_utf8, in_bytes, in_python, with_strange_data

COUNT = 20_000
COUNT_OF_DATA = 10_000
SEED = 20261121
ENGINES = ("jvm", "python")
COUNT_OF_BYTES = 5_000
SCHEMA = "id int, headers array<struct<key {0}, value {0}>>, data binary"


pytestmark = [
    pytest.mark.slow,
    # A warning of pyspark 4.0, which uses pandas to send whole DataFrames to workers.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]


def agree(spark: SparkSession, made: list[Message] | list[RawMessage], seed: int, text: str = "string") -> Counter[str]:
    """Compare Spark and Python, and return the number of messages by error code."""
    rows = [(place, headers, bytearray(data)) for place, (headers, data) in enumerate(made)]
    frame = spark.createDataFrame(rows, SCHEMA.format(text)).repartition(2)
    expected = [in_python(message) for message in made]
    outcomes: Counter[str] = Counter()
    wrong = []
    for engine in ENGINES:
        found = explode_cloudevents(frame, engine=engine).collect()
        assert sorted(row.id for row in found) == list(range(len(made)))
        for row in found:
            difference = compare(expected[row.id], row)
            if difference:
                wrong.append(f"{engine}: {difference}\n    {made[row.id]}")
        outcomes = Counter(row.ce_error or f"event in {row.ce_mode} mode" for row in found)
    assert not wrong, f"seed {seed}: {len(wrong)} of {len(made)} differ\n" + "\n".join(wrong[:10])
    return outcomes


def test_random_messages(spark: SparkSession) -> None:
    outcomes = agree(spark, damaged(COUNT, SEED), SEED)
    assert len(outcomes) > 20, outcomes
    assert min(outcomes["event in binary mode"], outcomes["event in structured mode"]) > COUNT / 10


def test_random_json_data(spark: SparkSession) -> None:
    outcomes = agree(spark, with_strange_data(COUNT_OF_DATA, SEED), SEED)
    assert min(outcomes["event in structured mode"], outcomes["invalid-json"]) > COUNT_OF_DATA / 10, outcomes


def test_random_bytes_in_headers(spark: SparkSession) -> None:
    """Headers may have any bytes; only headers that are used are checked."""
    messages = in_bytes(damaged(COUNT_OF_BYTES, SEED + 1), SEED)
    outcomes = agree(spark, messages, SEED, "binary")
    assert min(outcomes["event in binary mode"], outcomes["invalid-utf8"]) > COUNT_OF_BYTES / 10, outcomes
    unused = [one for one in messages if not has_only_utf8(one) and not isinstance(in_python(one), str)]
    assert len(unused) > COUNT_OF_BYTES / 10
