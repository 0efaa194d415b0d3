"""The decode fixtures have the same attributes and data, or error code, in Spark and in Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from ce_nats.codec import _nesting
from ce_nats.spark import explode_cloudevents
from ce_nats.spark.columns import _jvm_engine as jvm_engine
from tests.support.spark_rows import SCHEMA, SPARK_TYPES, chosen, compare, groups_of, in_python, message

# Known differences, with reasons.
DIFFERENT = {
    "typed-integer-negative-zero": "the map has the text as it was received, -0, and Python its canonical form",
    "typed-binary-trailing-bits": "the map has the text as it was received, AB==, and Python its canonical form",
}


def test_cases_are_selected() -> None:
    assert len(chosen()) > 400


def test_the_nesting_limit_of_json_is_the_same_in_java() -> None:
    source = (Path(jvm_engine.__file__).parents[1] / "jvm" / "Json.java").read_text("utf-8")
    assert re.findall(r"MAX_LEVELS = ([0-9]+);", source) == [str(_nesting.MAX_LEVELS)]


def test_decode_fixtures(spark: SparkSession) -> None:
    groups = groups_of(chosen())
    assert sum(len(cases) for _, cases in groups) == len(chosen())
    wrong = []
    for types, cases in groups:
        rows = [(case.id, *message(case)) for case in cases]
        frame = spark.createDataFrame([(name, pairs, bytearray(data)) for name, pairs, data in rows], SCHEMA)
        exploded = explode_cloudevents(frame, extensions={name: SPARK_TYPES[wanted] for name, wanted in types.items()})
        found = {row["id"]: row for row in exploded.collect()}
        for case, (_, pairs, payload) in zip(cases, rows, strict=True):
            difference = compare(in_python(case, pairs, payload), found[case.id])
            if bool(difference) != (case.id in DIFFERENT):
                wrong.append(f"{case.id}: {difference or 'no longer different'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("mode", ["allow", "", "DROP"])
def test_invalid_modes(spark: SparkSession, mode: str) -> None:
    frame: DataFrame = spark.createDataFrame([], SCHEMA)
    with pytest.raises(ValueError, match="mode must be PERMISSIVE or DROPMALFORMED or FAILFAST, got '"):
        explode_cloudevents(frame, mode=mode)
