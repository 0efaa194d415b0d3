"""The lakehouse examples run in separate environments, because Delta and Iceberg do not support the newest pyspark."""

import asyncio
import json
import re
import shutil
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from functools import partial
from urllib.parse import urlsplit

import pytest

from ce_nats import to_nats_message
from tests.support.caching import available
from tests.support.lakehouse import ROOT, VERSIONS, lakehouse

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "lakehouse"
# Prints the rows of all tables of a directory, as other engines than Spark read them.
READER = """
import json, os, sys
from pathlib import Path
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

tables = {}
for path in Path(sys.argv[1]).rglob("*"):
    if path.name == "_delta_log" and any(path.glob("*.json")):
        tables[path.parent.name] = DeltaTable(path.parent).to_pyarrow_table()
    elif files := list(path.glob("*.metadata.json")):
        newest = max(files, key=lambda file: file.stat().st_mtime_ns)
        tables[path.parent.name] = StaticTable.from_metadata(str(newest)).scan().to_arrow()
print(json.dumps({name: table.to_pylist() for name, table in tables.items()}, default=repr), flush=True)
os._exit(0)  # with threads of both libraries, Python's own exit sometimes ends in abort()
"""
# What a user changes in schemas.py: a repair of the totals that publish() sends as text, and columns that are added.
CHANGES = {
    "    return messages\n": r"""
    from pyspark.sql import functions as F
    is_text = F.col("subject") == "orders.text"
    repaired = F.regexp_replace(F.col("data").cast("string"), '"total": ?"([0-9.]+)"', '"total":$1').cast("binary")
    return messages.withColumn("data", F.when(is_text, repaired).otherwise(F.col("data")))
""",
    '"priority": "int"': '"priority": "int", "region": "string"',
    "currency STRING": "currency STRING, note STRING",
}


@pytest.fixture
def environment(table_format):
    return available(partial(lakehouse, VERSIONS[table_format]), f"Spark with {table_format}")


@pytest.fixture
def read(environment, tmp_path):
    return lambda: json.loads(environment.run("-c", READER, tmp_path / "lake"))


async def publish(js, make_event, numbers):
    """Publish nine messages for each number; the subject is the kind of message."""
    now = datetime.now(timezone.utc)
    order = {"order": "7", "total": 2.5, "currency": "EUR", "reason": "late", "note": "n"}
    placed, cancelled = "com.example.order.placed", "com.example.order.cancelled"
    for number in numbers:
        for kind, event_type, data, attributes in (
            ("placed", placed, order, {}),
            ("placed", placed, order, {}),  # a duplicate: the id has the number and the kind
            ("cancelled", cancelled, order, {"priority": "2"}),
            ("late", placed, order, {}),
            ("text", placed, {**order, "total": "2.5"}, {}),
            ("priority", placed, order, {"priority": "high"}),
            ("unknown", "../../gold/x` (a INT); DROP TABLE silver.events; --", order, {}),
            ("empty", cancelled, None, {}),
        ):
            event = make_event(f"{number} {kind}", data, type=event_type, region="north", **attributes)
            event._attributes["time"] = now - timedelta(hours=2) if kind == "late" else now
            message = to_nats_message(event)
            await js.publish(f"orders.{kind}", message.data, headers=dict(message.headers.items()))
        await js.publish("orders.invalid", b"not an event")


@pytest.mark.parametrize(("table_format", "is_changed"), [("delta", False), ("iceberg", True)])
async def test_each_message_is_stored_once_although_the_pipeline_is_killed(
    start, js, make_event, environment, read, tmp_path, table_format, is_changed
):
    """In the longer case, schemas.py is changed afterwards, and rejected messages are replayed."""
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    await publish(js, make_event, range(5))
    lake, example = tmp_path / "lake", shutil.copytree(EXAMPLE, tmp_path / "example")

    def run(program, *options):
        command = (example / program, "--format", table_format, "--warehouse", lake, *options)
        return start(*command, python=environment.python, variables=environment.variables)

    pipeline = run("pipeline.py", "--stream", "ORDERS")
    await until_batch_is_open(pipeline, lake / "checkpoints" / "gold.hourly_sales")
    pipeline.kill()
    # The state after a kill between the commit of a table and that of its checkpoint.
    for checkpoint in (lake / "checkpoints").iterdir():
        shutil.rmtree(checkpoint / "commits", ignore_errors=True)
    await run("pipeline.py", "--stream", "ORDERS").until_exit()
    if not is_changed:
        return check(read(), numbers=5, replayed=0)

    change(example / "schemas.py")
    assert await printed(run("replay.py")) == [
        "5 replayed",
        "5 rejected: invalid-integer",
        "5 rejected: not-a-cloudevent",
        "5 rejected: schema-mismatch",
    ]
    await publish(js, make_event, range(5, 8))
    await run("pipeline.py", "--stream", "ORDERS").until_exit()
    return check(read(), numbers=8, replayed=5)


def change(schemas):
    text = schemas.read_text()
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    schemas.write_text(text)


def check(tables, numbers, replayed):
    """Check the tables; five numbers were published before schemas.py was changed, and their "text" rejected."""

    def kinds(name, column="subject"):
        sequences = Counter(row["sequence"] for row in tables[name])
        assert max(sequences.values()) == 1, name
        return Counter(row[column].removeprefix("orders.") for row in tables[name])

    on_time = numbers - 5
    once = dict.fromkeys(("cancelled", "late", "unknown"), numbers)
    bad = dict.fromkeys(("priority", "empty", "invalid"), numbers)
    assert kinds("messages") == Counter(placed=2 * numbers, text=numbers, **once, **bad)
    assert kinds("events") == Counter(placed=2 * numbers, text=on_time + replayed, **once)
    assert kinds("orders_placed") == Counter(placed=2 * numbers, late=numbers, text=on_time + replayed)
    assert kinds("orders_cancelled") == Counter(cancelled=numbers)
    assert kinds("rejects") == Counter(text=5, **bad)
    reasons = {"invalid-integer": numbers, "schema-mismatch": numbers + 5, "not-a-cloudevent": numbers}
    assert kinds("rejects", "reason") == reasons
    # Columns that were added later. Earlier rows have NULL, and the value in ce_extensions and ce_data.
    regions = Counter(row.get("ce_region") for row in tables["events"])
    assert regions == Counter({None: 5 * 5, "north": len(tables["events"]) - 5 * 5})
    assert sum(row.get("note") == "n" for row in tables["orders_placed"]) == 4 * on_time + replayed
    # Duplicates are counted once.
    assert kinds("late_orders") == Counter(late=numbers, text=replayed)
    sales = tables["hourly_sales"]
    assert len({row["hour"] for row in sales}) == len(sales)
    assert sum(row["orders"] for row in sales) == numbers + on_time
    assert sum(row["total"] for row in sales) == 2.5 * (numbers + on_time)


async def printed(program):
    """Return what a program has printed, without the output of Spark."""
    output = await program.until_exit()
    return [line for line in output.splitlines() if re.match(r"\d+ (replayed|rejected)", line)]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
async def test_each_message_is_stored_once_without_spark(
    start, server, js, make_event, environment, read, tmp_path, table_format
):
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    await publish(js, make_event, range(2))
    command = (EXAMPLE / "without_spark.py", "--format", table_format, "--stream", "ORDERS")

    async def append():
        options = {"python": environment.python, "variables": environment.variables}
        return await start(*command, "--warehouse", tmp_path / "lake", **options).until_exit()

    assert "18 messages appended" in await append()
    assert "\n0 messages appended" in "\n" + await append()
    await publish_invalid_utf8(server)
    assert "1 messages appended" in await append()
    rows = read()["events"]
    assert sorted(row["sequence"] for row in rows) == list(range(1, 20))
    errors = Counter(row["ce_error"] for row in rows)
    assert errors == {None: 14, "invalid-integer": 2, "not-a-cloudevent": 2, "invalid-utf8": 1}


async def publish_invalid_utf8(server):
    block = b"NATS/1.0\r\nce-specversion: 1.0\r\nce-id: \xff\r\nce-source: /\r\nce-type: t\r\n\r\n"
    lines = b'CONNECT {"headers":true}\r\nHPUB orders.bytes %d %d\r\n%b\r\nPING\r\n'
    url = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(lines % (len(block), len(block), block))
    await reader.readuntil(b"PONG")
    writer.close()


async def until_batch_is_open(program, checkpoint):
    """Wait until a query has planned a micro-batch that is not committed."""
    end = time.monotonic() + 300
    while not (checkpoint / "offsets" / "0").exists():
        assert program.process.poll() is None, program.log
        assert time.monotonic() < end, program.log
        await asyncio.sleep(0.01)
    assert not (checkpoint / "commits" / "0").exists()
