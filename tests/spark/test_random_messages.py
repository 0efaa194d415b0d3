"""
Thousands of messages, most of them damaged, have the same attributes, data and error code in Spark and in Python.

Both engines are tested.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.damage import damaged, has_only_utf8, in_bytes, in_python, with_strange_data
from tests.support.spark_rows import agree

COUNT = 2_000
COUNT_OF_DATA = 1_000
SEED = 20261121
COUNT_OF_BYTES = 1_000


pytestmark = [
    pytest.mark.slow,
    # A warning of pyspark 4.0, which uses pandas to send whole DataFrames to workers.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]


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
