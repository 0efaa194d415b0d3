"""Twenty thousand messages, most of them damaged, give the same in Spark as in Python: attributes, data, error code."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import SparkSession

from ce_nats.spark import explode_cloudevents
from tests.damage import Message, RawMessage, damaged, in_bytes, in_python, with_strange_data
from tests.spark.test_vectors import compare

COUNT = 20_000
COUNT_OF_DATA = 10_000
SEED = 20261121
COUNT_OF_BYTES = 5_000
SCHEMA = "id int, headers array<struct<key {0}, value {0}>>, data binary"


def agree(spark: SparkSession, made: list[Message] | list[RawMessage], seed: int, text: str = "string") -> Counter[str]:
    """Fail where Spark and Python differ; else what became of the messages, and how often."""
    rows = [(place, headers, bytearray(data)) for place, (headers, data) in enumerate(made)]
    frame = spark.createDataFrame(rows, SCHEMA.format(text))
    outcomes: Counter[str] = Counter()
    wrong = []
    for row in explode_cloudevents(frame.repartition(2)).collect():
        message = made[row.id]
        expected = in_python(message)
        outcomes[expected if isinstance(expected, str) else f"event in {row.ce_mode} mode"] += 1
        difference = compare(expected, row)
        if difference:
            wrong.append(f"{difference}\n    {message}")
    assert not wrong, f"seed {seed}: {len(wrong)} of {len(made)} differ\n" + "\n".join(wrong[:10])
    assert sum(outcomes.values()) == len(made)
    return outcomes


def test_random_messages(spark: SparkSession) -> None:
    outcomes = agree(spark, damaged(COUNT, SEED), SEED)
    assert len(outcomes) > 20, outcomes
    assert min(outcomes["event in binary mode"], outcomes["event in structured mode"]) > COUNT / 10


def test_random_json_data(spark: SparkSession) -> None:
    outcomes = agree(spark, with_strange_data(COUNT_OF_DATA, SEED), SEED)
    assert min(outcomes["event in structured mode"], outcomes["invalid-json"]) > COUNT_OF_DATA / 10, outcomes


def test_random_bytes_in_headers(spark: SparkSession) -> None:
    messages = damaged(COUNT_OF_BYTES, SEED + 1)
    outcomes = agree(spark, in_bytes(messages, SEED), SEED, "binary")
    assert min(outcomes["event in binary mode"], outcomes["invalid-utf8"]) > COUNT_OF_BYTES / 10, outcomes
