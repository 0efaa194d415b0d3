"""Expressions as columns: the same rows pass as with the engine."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ce_nats import arrow, cesql, from_nats_message, to_nats_message
from ce_nats.codec.event import DecodedEvent
from tests.support.expressions import ALL, random_event, random_text
from tests.support.tables import each

TYPES = {"hops": "int", "urgent": "boolean"}
# Also for columns of Spark.
TEXTS = (
    "tier IN (" + ", ".join(f"'{number}'" for number in range(-50, 1000)) + ")",
    "hops NOT IN (" + ", ".join(map(str, range(-1, 1000))) + ")",
    "hops IN ('7', 'x', 0)",
    " OR ".join(f"tier = '{number}'" for number in range(-99, 100)),
    "CONCAT_WS('-', tier, 'x') LIKE '%-x'",
    "hops * hops = 1 AND -7 / 2 = -3 AND -7 % 2 = -1",
    "TRIM(tier) = tier",
    r"tier LIKE '\%_%\_'",
    "source LIKE '/eu/%' AND tier = 'gold' AND hops > 3",
    "tier = 'gold' OR NOT EXISTS tier",
    "hops / 0 = 1 OR TRUE",
    "MATCHES(hops / 0 = 1) = FALSE",
    "LEFT(tier, hops) = tier",
    "SUBSTRING(tier, -2, 1) = '7'",
    "CONCAT() = '' AND CONCAT_WS('-') = ''",
    "UPPER(tier) IN ('GOLD', STRING(hops))",
    "INT(tier) IN (7, -3)",
    "data = 'x' OR TRUE",
    "missing",
    "hops",
    "'true'",
    "urgent",
    "TRUE",
    "FALSE",
    "hops + 2147483647 < 0",
    "tier LIKE '_\n%'",
)
REQUIRED = {"specversion": "1.0", "id": "1", "source": "/eu/x", "type": "t"}


def table_of(events: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return the columns of events in binary mode, and of a message that is not an event."""
    messages = [to_nats_message(DecodedEvent(event), "s") for event in events]
    headers = [[("ce-id", "1")], *([*message.headers.items()] for message in messages)]
    kind = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
    pairs = [[{"name": name, "value": value} for name, value in one] for one in headers]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(pairs, kind), pa.array([b""] * len(pairs), pa.binary())], names=["headers", "data"]
    )
    return arrow.explode_cloudevents(batch, extensions=TYPES)


def numbered(events: list[dict[str, Any]]) -> pa.RecordBatch:
    batch = table_of(events)
    return batch.append_column("number", pa.array(range(-1, len(events))))


def received(events: list[dict[str, Any]]) -> list[DecodedEvent]:
    types = {"hops": int, "urgent": bool}
    return [from_nats_message(to_nats_message(DecodedEvent(event), "s"), extension_types=types) for event in events]


def passing(expression: cesql.Expression, events: list[DecodedEvent]) -> list[int]:
    return [number for number, event in enumerate(events) if expression.matches(event)]


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 500), (1, 500), pytest.param(2, 10_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_same_rows_pass(seed: int, count: int) -> None:
    """Random expressions on random events, with all errors; upper case of a few characters is another one in Arrow."""
    random = Random(seed)
    events = [random_event(random, ALL.replace("\u00df", "\u00fc")) for _ in range(count)]
    batch, read = numbered(events), received(events)
    compared = passed = 0
    while compared < 150:
        try:
            expression = cesql.compile(random_text(random, ALL.replace("\u00df", "\u00fc")))
        except cesql.ParseError:
            continue
        compared += 1
        rows = arrow.filter(batch, expression).column("number").to_pylist()
        assert rows == passing(expression, read), str(expression)
        passed += bool(rows)
    assert passed > 15


@each("text", TEXTS)
def test_expressions(text: str) -> None:
    random = Random(1)
    events = [random_event(random) for _ in range(500)]
    expression = cesql.compile(text)
    batch, read = numbered(events), received(events)
    assert arrow.filter(batch, text).column("number").to_pylist() == passing(expression, read)
    whole = pa.Table.from_batches([batch.slice(0, 100), batch.slice(100)])
    assert arrow.filter(whole, expression).column("number").to_pylist() == passing(expression, read)


def test_functions_of_the_program() -> None:
    """They are called for each row."""
    functions = cesql.Functions()

    @functions.add
    def region(source: str) -> str:
        return source.split("/")[1]

    events = [{**REQUIRED, "source": f"/{name}"} for name in ("eu", "us", "eu")]
    expression = cesql.compile("REGION(source) = 'eu'", functions=functions)
    assert arrow.filter(numbered(events), expression).column("number").to_pylist() == [0, 2]
    marked = cesql.compile("REGION(source) = 'eu' AND NOT EXISTS time AND EXISTS type", functions=functions)
    assert arrow.filter(numbered(events), marked).column("number").to_pylist() == [0, 2]
    constant = cesql.compile("REGION('/eu') = 'eu'", functions=functions)
    assert arrow.filter(numbered(events), constant).column("number").to_pylist() == [0, 1, 2]
    chain = " OR ".join(["source = '/eu'"] * 300)  # too long for columns
    assert arrow.filter(numbered(events), chain).column("number").to_pylist() == [0, 2]


def test_columns_that_are_missing() -> None:
    """They are an error, and not missing attributes; so is the text of a time."""
    batch = table_of([REQUIRED])
    with pytest.raises(ValueError, match="ce_time does not have the text"):
        arrow.filter(batch, "time LIKE '2024%'")
    assert arrow.filter(batch, "NOT EXISTS time").num_rows == 1
    with pytest.raises(ValueError, match="attribute id needs the column ce_id"):
        arrow.filter(batch.drop_columns(["ce_id"]), "TRUE")
    with pytest.raises(ValueError, match="attribute tier needs the column ce_extensions"):
        arrow.filter(batch.drop_columns(["ce_extensions"]), "tier = '1'")
    with pytest.raises(cesql.ParseError):
        arrow.filter(batch, "tier =")
    with pytest.raises(TypeError, match="a table or a batch"):
        arrow.filter([], "TRUE")  # type: ignore[type-var]


def test_other_prefix() -> None:
    batch = table_of([REQUIRED])
    names = [name.replace("ce_", "x_") for name in batch.schema.names]
    renamed = pa.RecordBatch.from_arrays(batch.columns, names=names)
    assert arrow.filter(renamed, "id = '1'", prefix="x_").num_rows == 1
