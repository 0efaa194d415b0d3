"""Expressions of CloudEvents SQL as columns of Spark."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from ce_nats import cesql
from ce_nats import spark as ce_spark
from tests.cesql.test_columns import REQUIRED, TEXTS, TYPES, numbered, passing
from tests.support.expressions import ALL, random_event, random_text

pytestmark = pytest.mark.spark

LETTERS = ALL.replace("\u00df", "\u00fc").replace("\U0001f600", "\u4e2d")


def frame_of(spark: Any, batch: pa.RecordBatch) -> Any:
    return spark.createDataFrame(pa.Table.from_batches([batch.drop_columns(["headers", "data"])]))


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_same_rows_pass(spark: Any, ansi: str) -> None:
    """Chosen and random expressions on random events, with all errors."""
    random = Random(3)
    events = [random_event(random, LETTERS) for _ in range(400)]
    expressions = [cesql.compile(text) for text in TEXTS]
    while len(expressions) < 150:
        try:
            expressions.append(cesql.compile(random_text(random, LETTERS)))
        except cesql.ParseError:
            continue
    frame = frame_of(spark, numbered(events))
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        for begin in range(0, len(expressions), 50):
            some = expressions[begin : begin + 50]
            columns = [ce_spark.cesql(one, extensions=TYPES).alias(f"c{index}") for index, one in enumerate(some)]
            rows = frame.select("number", *columns).collect()
            for index, one in enumerate(some):
                found = sorted(row["number"] for row in rows if row[f"c{index}"])
                assert found == passing(one, events), str(one)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def test_refused_expressions() -> None:
    functions = cesql.Functions()

    @functions.add
    def region(source: str) -> str:
        return source

    for expression in (
        cesql.compile("REGION(source) = 'eu'", functions=functions),
        "NOT " * 20 + "TRUE",
        " OR ".join(["id = '1'"] * 201),
        " AND ".join(["(id = '1' OR id = '2' OR id = '3' OR id = '4' OR id = '5')"] * 101),
        "time = '2024-01-01T00:00:00Z'",
        "tier =",
    ):
        with pytest.raises(ValueError, match=r"function of the program|at most|does not have the text|expected"):
            ce_spark.cesql(expression)


def test_types_of_extensions() -> None:
    with pytest.raises(ValueError, match="the type of an extension"):
        ce_spark.cesql("hops = 1", extensions={"hops": "integer"})


def test_other_prefix(spark: Any) -> None:
    """Also one with a dot; the condition can be a part of another one."""
    batch = numbered([REQUIRED, {**REQUIRED, "source": "/us"}])
    frame = frame_of(spark, batch)
    renamed = frame.withColumnsRenamed({name: name.replace("ce_", "x.") for name in frame.columns})
    assert [row.number for row in renamed.filter(ce_spark.cesql("source = '/us'", prefix="x.")).collect()] == [1]
    assert frame.filter(F.lit(True) & ce_spark.cesql("type = 't'")).count() == 2
