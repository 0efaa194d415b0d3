"""
Handle the events of the stream with eight handlers, and write to a journal which were begun and which succeeded.

The consumers in ``KEYED`` keep the order per key; those in ``BATCHES`` store batches in a table as well.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Hashable
from contextlib import AsyncExitStack, closing
from pathlib import Path

from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError, ErrorCode, Reject, aio
from ce_nats.extensions.partitioning import partition_key

from .events import Kind, event_digest
from .journal import STREAM, Journal, Run
from .processes import NOT_STARTED

KEYED = ("keyed", "steady", "batches")
BATCHES = ("batches",)
ACK_WAIT = 5.0
MAX_DELIVERIES = 3
_BACKOFF = (0.2, 0.5)
_POLL_SECONDS = 0.5


class Handler:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, delivery: aio.Delivery) -> None:
        event = delivery.event
        self._journal.write("begun", delivery.sequence, time.time_ns())
        await asyncio.sleep(0.001 * (delivery.sequence % 4))  # so that handlers overlap
        check(delivery)
        self._journal.write("done", delivery.sequence, event_digest(event))


class BatchHandler:
    """Stores events in a table, in one transaction, and then writes to the journal."""

    def __init__(self, journal: Journal, path: Path) -> None:
        self._journal = journal
        self._database = sqlite3.connect(path)
        with self._database:
            self._database.execute("CREATE TABLE IF NOT EXISTS events (sequence INTEGER PRIMARY KEY, digest TEXT)")

    async def __call__(self, batch: aio.Batch) -> None:
        errors: dict[int, Exception] = {}
        failed: set[Hashable] = set()  # keys, whose later events are handled again
        rows: list[tuple[int, str]] = []
        for index, delivery in enumerate(batch.deliveries):
            key = partition_key(delivery)
            if key in failed:
                continue
            try:
                check(delivery)
            except Exception as error:
                errors[index] = error
                failed.add(key)
            else:
                rows.append((delivery.sequence, str(event_digest(delivery.event))))
        await asyncio.sleep(0.002)
        with self._database:
            self._database.executemany("INSERT INTO events VALUES (?, ?) ON CONFLICT DO NOTHING", rows)
        for sequence, digest in rows:
            self._journal.write("begun", sequence, time.time_ns())
            self._journal.write("done", sequence, digest)
        if errors:
            raise aio.BatchError(errors)


def stored(path: Path) -> list[tuple[int, int]]:
    """Return sequence and digest of each row."""
    with closing(sqlite3.connect(path)) as database:
        return [(sequence, int(digest)) for sequence, digest in database.execute("SELECT * FROM events")]


def table(run: Run, name: str) -> Path:
    return run.path(f"{name}.db")


def check(delivery: aio.Delivery) -> None:
    """
    Fail for events of some kinds.

    Raises:
        Reject, RuntimeError: As their handlers must fail.
    """
    kind = Kind(delivery.event.get_type().rpartition(".")[2])
    if kind is Kind.REJECTED:
        raise Reject("rejected by the soak")
    if kind is Kind.FAILING or (kind is Kind.FLAKY and delivery.deliveries == 1):
        raise RuntimeError(f"{kind} event")


def report(error: Exception, _delivery: object) -> None:
    """Print errors, except those of handlers."""
    if not isinstance(error, (RuntimeError, Reject)):
        print(f"{type(error).__name__}: {error}"[:300], flush=True)


async def main(directory: str, name: str) -> None:
    run = Run.load(directory)
    async with aio.connect(**run.options(name)) as nc:
        consumer = aio.PullConsumer(
            nc.jetstream(),
            STREAM,
            name,
            dead_letter=f"dead.{name}",
            create=ConsumerConfig(ack_wait=ACK_WAIT, max_ack_pending=1000),
            max_deliveries=MAX_DELIVERIES,
            backoff=_BACKOFF,
            on_error=report,
        )
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(consumer)
            except DeliveryError as error:
                if error.code not in (ErrorCode.TIMEOUT, ErrorCode.NO_RESPONDERS):
                    raise
                print(f"not started: {error}", flush=True)
                sys.exit(NOT_STARTED)
            key = partition_key if name in KEYED else None
            journal = Journal(run.journal(name))
            if name in BATCHES:
                handler = BatchHandler(journal, table(run, name))
                work = consumer.run_batches(handler, max_events=50, concurrency=2, key=key)
            else:
                work = consumer.run(Handler(journal), concurrency=8, key=key)
            running = asyncio.create_task(work)
            while not running.done():
                if run.ends.exists():
                    consumer.stop()
                await asyncio.wait([running], timeout=_POLL_SECONDS)
            await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
