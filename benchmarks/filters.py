"""
Measure filters: evaluations of CESQL on attributes that are decoded, beside the engine of sdk-go for orientation;
what a consumer does with a message in binary mode that does not pass, beside decoding it; rows of ``format("nats")``
with the option ``filter``, of which a quarter pass; and columns, beside functions of Arrow that are written by hand.

Each round measures everything once, one after the other; the median of the rounds is shown. The engine in Go needs Go.

``python -m benchmarks.filters [--rounds N]``
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from functools import partial
from statistics import median
from timeit import timeit
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from ce_nats import DecodedEvent, arrow, cesql, to_nats_message
from ce_nats.aio.core._raw_decoder import raw_decoder
from ce_nats.aio.reading._range_reader import RawBatch
from ce_nats.cesql._messages import MessageFilter
from ce_nats.spark.connector._batches import passing, record_batch
from ce_nats.wire.nats import encode_header_block
from tests.interop.peers import go_peer
from tests.support.caching import NotAvailable

EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "4b0e",
    "source": "/eu/berlin",
    "type": "com.example.order.paid",
    "subject": "order-4711",
    "tier": "gold",
    "priority": 5,
}
EXPRESSIONS = {
    "one comparison": "tier = 'gold'",
    "three comparisons": "source LIKE '/eu/%' AND tier = 'gold' AND priority > 3",
    "the first of three fails": "source LIKE '/us/%' AND tier = 'gold' AND priority > 3",
    "missing attribute": "region = 'eu'",
    "set of 1,000 strings": "subject IN (" + ", ".join(f"'order-{number}'" for number in range(4000, 5000)) + ")",
    "functions": "LENGTH(subject) > 5 AND UPPER(LEFT(source, 3)) = '/EU'",
    "wildcards": "type LIKE '%example._rder%'",
}
TIMES = 20_000
# Bytes of JSON data of messages, and a filter that they do not pass.
SIZES = (0, 200, 2000)
DROPPED = "source LIKE '/us/%' AND tier = 'gold' AND priority > 3"
ROWS = 10_000
CHOSEN = EXPRESSIONS["three comparisons"]


def go_microseconds(expression: str) -> float | None:
    """Return the time of the engine in Go, or None without Go."""
    try:
        command = [*go_peer("cesql"), str(TIMES)]
    except NotAvailable:
        return None
    question = json.dumps({"expression": expression, "event": EVENT})
    done = subprocess.run(command, input=question, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["nanoseconds"]) / 1000


def message_of(size: int) -> tuple[bytes, bytes]:
    """Return the payload and the header block of an event."""
    attributes = {**EVENT, "time": "2026-11-28T12:00:00.123456Z", "datacontenttype": "application/json"}
    data = {"lines": [{"sku": f"a-{number}", "price": "12.50"} for number in range(size // 32)]} if size else None
    message = to_nats_message(DecodedEvent(attributes, data), "orders")
    return message.data, encode_header_block(list(message.headers.items()))


def measure_messages(rounds: int) -> Table:
    """Return the times of messages that do not pass."""
    table = Table("message that does not pass", "decoded, us", "dropped, us", "ratio")
    decode, found = raw_decoder(), MessageFilter(cesql.compile(DROPPED), "benchmark")
    for size in SIZES:
        payload, block = message_of(size)
        assert found.decision(block) is False
        pairs = []
        for _ in range(rounds):
            decoding = timeit(partial(decode, payload, block), number=TIMES) / TIMES * 1e6
            pairs.append((decoding, timeit(partial(found.decision, block), number=TIMES) / TIMES * 1e6))
        ratio = median(dropping / decoding for decoding, dropping in pairs)
        cells = (f"{median(column):.2f}" for column in zip(*pairs, strict=True))
        table.add_row(f"{len(payload)} bytes of JSON", *cells, f"{ratio:.2f}")
    return table


def raw_batch(count: int) -> RawBatch:
    """Return messages of events in binary mode, of which a quarter pass ``CHOSEN``."""
    messages: list[Any] = []
    for number in range(count):
        own = {"id": f"{number}", "tier": "gold" if number % 2 else "silver", "priority": number // 2 % 8}
        block = encode_header_block([*to_nats_message(DecodedEvent({**EVENT, **own}), "orders").headers.items()])
        messages.append((b"orders", b"$JS.ACK.S.c.1.%d.1.1700000000123456789.0" % (number + 1), b"", block))
    return RawBatch("S", messages, 1, count)


def by_hand(columns: pa.RecordBatch) -> pa.RecordBatch:
    extensions = columns.column("ce_extensions")
    is_gold = pc.equal(pc.map_lookup(extensions, "tier", "first"), "gold")
    priority = pc.cast(pc.map_lookup(extensions, "priority", "first"), pa.int64())
    is_european = pc.starts_with(columns.column("ce_source"), "/eu/")
    return columns.filter(pc.and_(is_european, pc.and_(is_gold, pc.greater(priority, 3))))


def row_by_row(columns: pa.RecordBatch, expression: cesql.Expression) -> pa.RecordBatch:
    extensions = columns.column("ce_extensions").to_pylist(maps_as_pydicts="strict")
    sources = columns.column("ce_source").to_pylist()
    events = ({**others, "source": source} for others, source in zip(extensions, sources, strict=True))
    return columns.filter(pa.array([expression.matches(event) for event in events]))


def measure_columns(rounds: int) -> Table:
    """Return the times of rows and columns."""
    batch, expression = raw_batch(ROWS), cesql.compile(CHOSEN)
    columns = arrow.explode_cloudevents(record_batch(batch))
    runs: dict[str, Callable[[], pa.RecordBatch]] = {
        "rows of the source, without a filter": lambda: record_batch(batch),
        "rows of the source, filter": lambda: record_batch(passing(batch, MessageFilter(expression, "S")) or batch),
        "arrow.filter()": lambda: arrow.filter(columns, expression),
        "functions of Arrow": lambda: by_hand(columns),
        "columns as rows of Python": lambda: row_by_row(columns, expression),
    }
    table = Table("rows and columns", "us of a row")
    for name, run in runs.items():
        assert run().num_rows == ROWS // 4 or "without" in name
        times = [timeit(run, number=1) / ROWS * 1e6 for _ in range(rounds)]
        table.add_row(name, f"{median(times):.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    event = DecodedEvent(EVENT)
    compiled = {name: cesql.compile(text) for name, text in EXPRESSIONS.items()}
    results: dict[str, list[float]] = {name: [] for name in EXPRESSIONS}
    for _ in range(rounds):
        for name, expression in compiled.items():
            seconds = timeit(partial(expression.matches, event), number=TIMES)
            results[name].append(seconds / TIMES * 1e6)
    table = Table("expression", "passes", "ce_nats, us", "sdk-go, us")
    for name, expression in compiled.items():
        go = go_microseconds(EXPRESSIONS[name])
        passes = "yes" if expression.matches(event) else "no"
        table.add_row(name, passes, f"{median(results[name]):.2f}", "" if go is None else f"{go:.2f}")
    Console().print(table)
    Console().print(measure_messages(rounds))
    Console().print(measure_columns(rounds))


if __name__ == "__main__":
    main()
