"""
Stored messages, and a Parquet file of them.

A capture keeps messages as they are, decodable or not: subject, headers as an array of pairs (they repeat, and their
order counts), payload bytes, and where in which stream they were. It is the row that ``ce_nats.spark`` explodes.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .timestamp import Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Captured", "ParquetCapture", "StoredMessage", "capture"]

_SURROGATE_ESCAPE: Final = re.compile("[\udc80-\udcff]")
# A row group is what a reader holds in memory and what one Spark task reads at least.
_ROWS_PER_GROUP: Final = 50_000
_BYTES_PER_GROUP: Final = 64 * 2**20


class StoredMessage(NamedTuple):
    """
    A message as a stream keeps it; :func:`ce_nats.from_nats_message` takes it as it is.

    Attributes:
        subject: NATS subject.
        reply: Reply subject; ``""`` for what comes from a JetStream stream, which does not keep it.
        headers: ``(name, value)`` pairs, in wire order, repeats included, white space around values removed. Bytes that
            are no UTF-8 are surrogate escapes (PEP 383), so that the wire bytes can be had back.
        data: Payload bytes.
        stream: Name of the stream.
        sequence: Stream sequence, from 1.
        timestamp: When the server stored it, to the nanosecond, in UTC.
    """

    subject: str
    reply: str
    headers: list[tuple[str, str]]
    data: bytes
    stream: str
    sequence: int
    timestamp: Timestamp


@dataclass(frozen=True, slots=True)
class Captured:
    """
    What a capture wrote.

    Attributes:
        messages: Rows.
        data_bytes: Payload bytes, uncompressed.
        escaped_values: Header values with bytes that are no UTF-8, which a Parquet string cannot hold; each stands as
            ``%FF``, so that a decoder still finds what is wrong with an attribute (U+FFFD would pass for a character).
    """

    messages: int = 0
    data_bytes: int = 0
    escaped_values: int = 0


class ParquetCapture:
    """
    A Parquet file that appears under its name when it is complete, or not at all.

        with ParquetCapture("orders.parquet") as file:
            file.write(batch)

    Columns: ``subject``, ``reply``, ``stream`` (string), ``headers`` (array of structs of ``key`` and ``value``, both
    string), ``data`` (binary), ``sequence`` (64-bit integer), ``timestamp`` (microseconds, UTC; nanoseconds are cut,
    because Spark has none).

    Args:
        path: The file; one that is there already is replaced at the end.

    Raises:
        ImportError: pyarrow is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        # In the same directory, because a file can be renamed atomically within a file system only. Spark and others
        # leave out names that begin with a dot or an underscore.
        self._partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        self._schema = _schema()
        self._writer: Any = None
        self._rows: list[StoredMessage] = []
        self._row_bytes = 0
        self.captured = Captured()

    def __enter__(self) -> ParquetCapture:
        from pyarrow import parquet

        self._writer = parquet.ParquetWriter(self._partial, self._schema, compression="zstd")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            try:
                if kind is None:
                    self._write_group()
            finally:
                self._writer.close()
            if kind is None:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)

    def write(self, batch: Sequence[StoredMessage]) -> None:
        """Add messages. They are gathered into row groups, whatever the size of the batches."""
        self._rows += batch
        self._row_bytes += sum(len(message.data) for message in batch)
        if len(self._rows) >= _ROWS_PER_GROUP or self._row_bytes >= _BYTES_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        if self._rows:
            table, escaped = _table(self._rows, self._schema)
            self._writer.write_table(table, row_group_size=len(self._rows))
            self.captured = Captured(
                self.captured.messages + len(self._rows),
                self.captured.data_bytes + self._row_bytes,
                self.captured.escaped_values + escaped,
            )
        self._rows, self._row_bytes = [], 0


async def capture(batches: AsyncIterable[Sequence[StoredMessage]], path: str | os.PathLike[str]) -> Captured:
    """
    Write all batches to a Parquet file, as :class:`ParquetCapture` does.

        await capture(read_stream(js, "ORDERS"), "orders.parquet")

    Args:
        batches: From ``ce_nats.aio.jetstream.read_stream``.
        path: The file.

    Raises:
        ImportError: pyarrow is not installed.
    """
    with ParquetCapture(path) as file:
        async for batch in batches:
            # In a thread, so that the connection is served while a row group is compressed.
            await asyncio.to_thread(file.write, batch)
    return file.captured


def _schema() -> pa.Schema:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("a capture needs pyarrow: pip install 'ce-nats[spark]'") from error
    header = pa.struct([("key", pa.string()), ("value", pa.string())])
    return pa.schema(
        [
            ("subject", pa.string()),
            ("reply", pa.string()),
            ("headers", pa.list_(header)),
            ("data", pa.binary()),
            ("stream", pa.string()),
            ("sequence", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
        ]
    )


def _table(messages: list[StoredMessage], schema: pa.Schema) -> tuple[pa.Table, int]:
    """Messages as an Arrow table, and how many header values had to be changed for it."""
    import pyarrow as pa

    def build(rows: list[StoredMessage]) -> pa.Table:
        columns = zip(zip(*rows, strict=True), schema.types, strict=True)
        return pa.table([pa.array(cells, kind) for cells, kind in columns], schema=schema)

    try:
        return build(messages), 0
    except UnicodeEncodeError:
        escaped = sum(value != escape_bytes(value) for message in messages for _, value in message.headers)
        return build([message._replace(headers=_in_unicode(message.headers)) for message in messages]), escaped


def _in_unicode(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(escape_bytes(name), escape_bytes(value)) for name, value in headers]


def escape_bytes(text: str) -> str:
    """Text with ``%FF`` in place of each byte that is no UTF-8 (a surrogate escape, PEP 383)."""
    return _SURROGATE_ESCAPE.sub(lambda found: f"%{ord(found.group()) & 0xFF:02X}", text)
