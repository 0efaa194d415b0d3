"""Expressions of CloudEvents SQL as columns of Spark."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812

from ce_nats import cesql, from_nats_message, to_nats_message
from ce_nats import spark as ce_spark
from ce_nats.codec.event import DecodedEvent
from tests.cesql.test_columns import REQUIRED, TEXTS, TYPES, numbered, passing, received
from tests.support.expressions import ALL, random_event, random_text
from tests.support.needs import needs_arrow_functions

pytestmark = pytest.mark.spark

LETTERS = ALL.replace("\u00df", "\u00fc").replace("\U0001f600", "\u4e2d")


def frame_of(spark: Any, batch: pa.RecordBatch) -> Any:
    return spark.createDataFrame(pa.Table.from_batches([batch.drop_columns(["headers", "data"])]))


MANY = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("ansi", "count"),
    [("true", 400), ("false", 400), *(pytest.param(ansi, 10_000, marks=MANY) for ansi in ("true", "false"))],
)
def test_same_rows_pass(spark: Any, ansi: str, count: int) -> None:
    """Chosen and random expressions on random events, with all errors."""
    random = Random(3)
    events = [random_event(random, LETTERS) for _ in range(count)]
    read = received(events)
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
                assert found == passing(one, read), str(one)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


@needs_arrow_functions
def test_sql_function(spark: Any) -> None:
    """It has the results of the engine, also for each row its own expression; what is not an event does not pass."""
    ce_spark.register(spark)
    random = Random(4)
    events = [{**random_event(random), "time": "2024-02-28T01:02:03Z"} for _ in range(400)]
    spark.createDataFrame(pa.Table.from_batches([numbered(events)])).createOrReplaceTempView("received")
    read = [from_nats_message(to_nats_message(DecodedEvent(event), "s")) for event in events]
    expressions = [*TEXTS, "time LIKE '2024%'", "hops > 0 AND urgent"]
    for text in expressions:
        literal = text.replace("\\", "\\\\").replace('"', '\\"')
        passes = f'cesql(from_nats(headers, data), "{literal}")'
        rows = spark.sql(f"SELECT number FROM received WHERE {passes}").collect()
        assert sorted(row.number for row in rows) == passing(cesql.compile(text), read), text
    own = "CASE WHEN number % 3 = 0 THEN 'hops > 0' WHEN number % 3 = 1 THEN 'FALSE' END"
    rows = spark.sql(f"SELECT number, cesql(from_nats(headers, data), {own}) AS passes FROM received").collect()
    passing_all = set(passing(cesql.compile("hops > 0"), received(events)))
    for row in rows:
        assert row.passes == (row.number in passing_all, False, None)[row.number % 3]


CORE = "'1' AS id, '/s' AS source, 't' AS type, NULL AS subject"


@needs_arrow_functions
@pytest.mark.parametrize(
    ("attributes", "extensions", "expression", "passes"),
    [
        (f"{CORE}, 5 AS hops", "map('tier', 'gold')", "hops = 5 AND tier = 'gold' AND NOT EXISTS subject", True),
        (f"{CORE}, NULL AS hops, NULL AS time", "NULL", "NOT EXISTS hops AND MATCHES(time = 'x') = FALSE", True),
        (f"{CORE}, '2024-01-01T00:00:00Z' AS time", "map()", "time LIKE '2024%'", True),
        (f"{CORE}, current_timestamp() AS time", "map()", "TRUE", True),
        (f"{CORE}, current_timestamp() AS time", "map()", "time LIKE '2024%'", "time for cesql must be a string"),
        (f"{CORE}, X'00' AS bin", "map()", "bin = ''", "attribute bin for cesql must be .* got binary"),
        (CORE, "map()", "tier =", "expected a value at position 6"),
        (CORE, "1", "TRUE", "extensions of an event must be map"),
    ],
)
def test_structs_of_the_sql_function(
    spark: Any, attributes: str, extensions: str, expression: str, passes: Any
) -> None:
    """Those that can be written; the time of one is a text."""
    ce_spark.register(spark)
    event = f"struct(struct({attributes}) AS attributes, {extensions} AS extensions)"
    query = f'SELECT cesql({event}, "{expression}") AS it'
    if isinstance(passes, str):
        with pytest.raises(PythonException, match=passes):
            spark.sql(query).collect()
    else:
        assert spark.sql(query).collect()[0].it is passes


def test_parts_are_conditions_of_files(spark: Any, tmp_path: Path) -> None:
    """Spark skips parts of files by their statistics; parts of OR are one condition."""
    frame_of(spark, numbered([REQUIRED])).write.parquet(str(tmp_path / "events"))
    events = spark.read.parquet(str(tmp_path / "events"))
    chosen = ce_spark.cesql("type = 't' AND (source LIKE '/eu/%' AND (id = '1' OR id = '2') AND subject > 0)")
    plan = events.filter(chosen)._jdf.queryExecution().toString()
    pushed = next(line for line in plan.splitlines() if "PushedFilters" in line).partition("PushedFilters: ")[2]
    assert "EqualTo(ce_type,t)" in pushed
    assert "StringStartsWith" in pushed


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
