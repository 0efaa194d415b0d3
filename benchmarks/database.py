"""
Store the events of a stream in a table, one by one and in batches.

Events are numbers from a meter. Each run begins with an empty table and a new consumer, and fails unless each event is
one row at the end. One by one, there are eight handlers, each with a connection and its own transactions. PostgreSQL
runs with its default settings, so each commit is on the disk; SQLite with ``journal_mode = WAL``. Each round runs all
variants; shown are medians of the rates. The way ``nothing`` has a handler of batches that does nothing, which shows
the cost of the network: with ``--delay``, bytes arrive at the server that number of seconds later.

``python -m benchmarks.database [--rounds N] [--messages N] [--only NAME] [--delay S] [--double-ack] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, cast

import asyncpg
import duckdb
import psycopg
import psycopg_pool
from cloudevents.core.v1.event import CloudEvent
from nats.js.api import ConsumerConfig

from benchmarks.table import show
from ce_nats import DecodedEvent, aio
from ce_nats.testing import NatsServer
from tests.support.postgres import Postgres
from tests.support.relay import Relay

_HANDLERS: Final = 8
TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS meters (source TEXT, id TEXT, kwh DOUBLE PRECISION, PRIMARY KEY (source, id))"
)
TEMPORARY: Final = "CREATE TEMP TABLE incoming (LIKE meters) ON COMMIT DELETE ROWS"
MERGE: Final = "INSERT INTO meters SELECT * FROM incoming ON CONFLICT DO NOTHING"
ONE_ROW: Final = "INSERT INTO meters VALUES ({}) ON CONFLICT DO NOTHING"


def row_of(event: DecodedEvent) -> tuple[str, str, float]:
    return event.source, event.id, event.data["kwh"]


class Store(NamedTuple):
    """
    A way to store events.

    Attributes:
        single: Stores the event of a delivery.
        batches: Functions that store a batch, by their names.
        execute: Executes a statement.
        rows: Returns the number of rows.
    """

    single: Callable[[aio.Delivery], Awaitable[object]] | None
    batches: dict[str, Callable[[aio.Batch], Awaitable[object]]]
    execute: Callable[[str], Awaitable[object]]
    rows: Callable[[], Awaitable[Any]]


@asynccontextmanager
async def with_psycopg(_: Path) -> AsyncIterator[Store]:
    one_row = ONE_ROW.format("%s, %s, %s")

    async def prepare(connection: Any) -> None:
        await connection.execute(TEMPORARY)

    async def single(delivery: aio.Delivery) -> None:
        async with pool.connection() as connection:
            await connection.execute(one_row, row_of(delivery.event))

    async def many(batch: aio.Batch) -> None:
        async with pool.connection() as connection, connection.transaction():
            await connection.cursor().executemany(one_row, map(row_of, batch))

    async def copy(batch: aio.Batch) -> None:
        async with pool.connection() as connection, connection.transaction():
            async with connection.cursor().copy("COPY incoming FROM STDIN") as copy:
                for event in batch:
                    await copy.write_row(row_of(event))
            await connection.execute(MERGE)

    async def execute(statement: str) -> Any:
        async with pool.connection() as connection:
            return await connection.execute(statement)

    async def rows() -> Any:
        return (await (await execute("SELECT count(*) FROM meters")).fetchone())[0]

    async with await psycopg.AsyncConnection.connect(autocommit=True) as connection:
        await connection.execute(TABLE)
    pool: Any = psycopg_pool.AsyncConnectionPool(
        min_size=1, max_size=_HANDLERS, kwargs={"autocommit": True}, configure=prepare, open=False
    )
    async with pool:
        yield Store(single, {"executemany()": many, "COPY": copy}, execute, rows)


@asynccontextmanager
async def with_asyncpg(_: Path) -> AsyncIterator[Store]:
    one_row = ONE_ROW.format("$1, $2, $3")

    async def prepare(connection: Any) -> None:
        await connection.execute(TEMPORARY)

    async def single(delivery: aio.Delivery) -> None:
        await pool.execute(one_row, *row_of(delivery.event))

    async def many(batch: aio.Batch) -> None:
        await pool.executemany(one_row, map(row_of, batch))

    async def copy(batch: aio.Batch) -> None:
        async with pool.acquire() as connection, connection.transaction():
            await connection.copy_records_to_table("incoming", records=map(row_of, batch))
            await connection.execute(MERGE)

    async def rows() -> Any:
        return await pool.fetchval("SELECT count(*) FROM meters")

    async with asyncpg.create_pool(min_size=1, max_size=_HANDLERS, init=prepare) as pool:
        yield Store(single, {"executemany()": many, "COPY": copy}, pool.execute, rows)


@asynccontextmanager
async def with_sqlite(directory: Path) -> AsyncIterator[Store]:
    database = sqlite3.connect(directory / "meters.db", check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(TABLE)
    one_at_once = asyncio.Lock()

    def insert(made: list[tuple[str, str, float]]) -> None:
        with database:
            database.executemany(ONE_ROW.format("?, ?, ?"), made)

    async def single(delivery: aio.Delivery) -> None:
        async with one_at_once:
            await asyncio.to_thread(insert, [row_of(delivery.event)])

    async def many(batch: aio.Batch) -> None:
        await asyncio.to_thread(insert, [*map(row_of, batch)])

    async def execute(statement: str) -> None:
        with database:
            database.execute(statement)

    async def rows() -> Any:
        return database.execute("SELECT count(*) FROM meters").fetchone()[0]

    yield Store(single, {"executemany()": many}, execute, rows)
    database.close()


@asynccontextmanager
async def with_duckdb(directory: Path) -> AsyncIterator[Store]:
    database = duckdb.connect(directory / "meters.duckdb")
    database.execute(TABLE)

    def insert(batch: aio.Batch) -> None:
        columns = batch.columns()  # noqa: F841 - the name in the query
        database.cursor().execute(
            "INSERT INTO meters SELECT ce_source, ce_id, (decode(ce_data)::JSON ->> 'kwh')::DOUBLE FROM columns "
            "ON CONFLICT DO NOTHING"
        )

    async def many(batch: aio.Batch) -> None:
        await asyncio.to_thread(insert, batch)

    async def execute(statement: str) -> None:
        database.execute(statement)

    async def rows() -> Any:
        found = database.execute("SELECT count(*) FROM meters").fetchone()
        return found and found[0]

    yield Store(None, {"columns()": many}, execute, rows)
    database.close()


@asynccontextmanager
async def without(_: Path) -> AsyncIterator[Store]:
    seen = 0

    async def nothing(batch: aio.Batch) -> None:
        nonlocal seen
        seen += len(batch)

    async def forget(_: str) -> None:
        nonlocal seen
        seen = 0

    async def rows() -> int:
        return seen

    yield Store(None, {"nothing": nothing}, forget, rows)


STORES: Final = {
    "PostgreSQL, psycopg": with_psycopg,
    "PostgreSQL, asyncpg": with_asyncpg,
    "SQLite": with_sqlite,
    "DuckDB": with_duckdb,
    "no database": without,
}


async def consume(js: Any, store: Store, batch: str | None, messages: int, *, double_ack: bool) -> float:
    """Return the events stored in a second."""
    await store.execute("DELETE FROM meters")
    stored = 0
    create = ConsumerConfig(max_ack_pending=5000, ack_wait=60)
    async with aio.PullConsumer(js, "METERS", "c", dead_letter=None, create=create, double_ack=double_ack) as consumer:

        def note(number: int) -> None:
            nonlocal stored
            stored += number
            if stored == messages:
                consumer.stop()

        async def handle(delivery: aio.Delivery) -> None:
            assert store.single is not None
            await store.single(delivery)
            note(1)

        async def handle_batch(events: aio.Batch) -> None:
            await store.batches[batch or ""](events)
            note(len(events))

        began = time.perf_counter()
        if batch is None:
            await consumer.run(handle, concurrency=_HANDLERS)
        else:
            await consumer.run_batches(handle_batch, max_events=500)
        seconds = time.perf_counter() - began
    await js.delete_consumer("METERS", "c")
    assert await store.rows() == messages, "each event must be one row"
    return messages / seconds


async def measure(url: str, relay: Relay, directory: Path, options: argparse.Namespace) -> dict[tuple[str, str], float]:
    """Return medians of rates by database and way."""
    figures: dict[tuple[str, str], list[float]] = {}
    async with aio.connect(url) as nc:
        js = nc.jetstream()
        await js.add_stream(name="METERS", subjects=["meters"])
        async with aio.Publisher(js) as publisher:
            for number in range(options.messages):
                event = CloudEvent({"source": f"/meters/{number % 7}", "type": "read"}, {"kwh": number / 8})
                await publisher.publish(event, "meters")
    relay.delay = options.delay
    async with aio.connect(relay.url if options.delay else url) as nc:
        js = nc.jetstream()
        for number in range(options.rounds):
            for name, make in {name: STORES[name] for name in options.only or STORES}.items():
                (directory / f"{number}").mkdir(exist_ok=True)
                async with make(directory / f"{number}") as store:
                    for batch in (None, *store.batches) if store.single else store.batches:
                        rate = await consume(js, store, batch, options.messages, double_ack=options.double_ack)
                        figures.setdefault((name, batch or "one by one"), []).append(rate)
    return {key: median(rates) for key, rates in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--only", choices=STORES, action="append")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--double-ack", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(NatsServer(jetstream=True))
        os.environ.update(stack.enter_context(Postgres()).variables)
        directory = stack.enter_context(TemporaryDirectory())
        relay = stack.enter_context(cast("Any", Relay)(server.url))
        figures = asyncio.run(measure(server.url, relay, Path(directory), arguments))
    rows = [[name, way, f"{rate:,.0f}"] for (name, way), rate in figures.items()]
    what = f"Medians of {arguments.rounds} rounds of {arguments.messages:,} events."
    show(["database", "way", "events/s"], rows, what, markdown=arguments.markdown)


if __name__ == "__main__":
    main()
