"""
Append the new messages of a JetStream stream, decoded to columns, to a Delta or Iceberg table, without Spark.

    pip install 'ce-nats[arrow]' deltalake 'pyiceberg[sql-sqlite]'
    python examples/lakehouse/without_spark.py --format delta --stream ORDERS --warehouse lake

Run it as often as you like, from a scheduler for instance. Each run reads the messages after those of the last one, and
appends them in one commit, which has the last sequence too. So every message is in the table once, also if a run is
killed. The column ce_error has the code of messages that are not events.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from ce_nats import aio
from ce_nats.arrow import explode_capture
from ce_nats.capture import last_captured, write_capture

EXTENSIONS = {"priority": "int"}


class Delta:
    def __init__(self, warehouse: Path, stream: str) -> None:
        self._path, self._stream = warehouse / "events", stream

    def last_sequence(self) -> int:
        if not DeltaTable.is_deltatable(str(self._path)):
            return 0
        return DeltaTable(self._path).transaction_version(self._stream) or 0

    def append(self, events: pyarrow.RecordBatchReader, last: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction(self._stream, last)])
        write_deltalake(self._path, events, mode="append", commit_properties=properties)


class Iceberg:
    def __init__(self, warehouse: Path, stream: str) -> None:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}")
        catalog.create_namespace_if_not_exists("lake")
        self._catalog, self._position = catalog, f"last-sequence.{stream}"

    def last_sequence(self) -> int:
        if not self._catalog.table_exists("lake.events"):
            return 0
        return int(self._catalog.load_table("lake.events").properties.get(self._position, 0))

    def append(self, events: pyarrow.RecordBatchReader, last: int) -> None:
        table = self._catalog.create_table_if_not_exists("lake.events", events.schema)
        with table.transaction() as transaction:
            transaction.append(events)
            transaction.set_properties({self._position: str(last)})


async def append_new(url: str, stream: str, table: Delta | Iceberg) -> int:
    """Append the messages after the last one in the table, and return their number."""
    with TemporaryDirectory() as directory:
        capture = f"{directory}/new.parquet"
        async with aio.connect(url) as nc:
            new = aio.jetstream.read_stream(nc.jetstream(), stream, start=table.last_sequence() + 1)
            done = await write_capture(new, capture)
        if last := last_captured(capture):
            table.append(explode_capture(capture, extensions=EXTENSIONS), last.sequence)
    return done.messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--format", choices=("delta", "iceberg"), required=True)
    parser.add_argument("--url", default=os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    parser.add_argument("--stream", required=True)
    parser.add_argument("--warehouse", type=Path, required=True, help="directory of the table")
    arguments = parser.parse_args()

    warehouse = arguments.warehouse.resolve()
    warehouse.mkdir(parents=True, exist_ok=True)
    table = Delta(warehouse, arguments.stream) if arguments.format == "delta" else Iceberg(warehouse, arguments.stream)
    appended = asyncio.run(append_new(arguments.url, arguments.stream, table))
    print(appended, "messages appended")


if __name__ == "__main__":
    main()
