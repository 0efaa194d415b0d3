"""
Stored messages, and files of them: Parquet, or lines of JSON.

A capture keeps messages as they are, decodable or not: subject, headers as an array of pairs (they repeat, and their
order counts), payload bytes, and where in which stream they were. It is the row that ``ce_nats.spark`` explodes.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from .errors import DecodeError, ErrorCode
from .json_form import as_fields, as_line, as_message, read_object
from .timestamp import Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Captured",
    "JsonLinesCapture",
    "ParquetCapture",
    "ParquetParts",
    "StoredMessage",
    "as_json_line",
    "capture",
    "from_json_line",
    "header_block",
    "last_captured",
    "read_capture",
]

_SURROGATE_ESCAPE: Final = re.compile("[\udc80-\udcff]")
# A row group is what a reader holds in memory and what one Spark task reads at least.
_ROWS_PER_GROUP: Final = 50_000
_BYTES_PER_GROUP: Final = 64 * 2**20
# What is lost at most where a capture in parts is killed.
_ROWS_PER_PART: Final = 500_000
_ROWS_PER_READ: Final = 1_000
_BLOCK_BYTES: Final = 2**16


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


class ParquetParts:
    """
    A directory of Parquet files, which grows: another capture into it goes on behind the last part.

    Spark, Arrow and DuckDB read the directory as one table. Leaving the block, by an exception too, completes the
    current part with what was written; a killed process loses that part, and no other.

    Args:
        path: The directory; made where there is none.
        rows: Rows after which a part is complete.

    Raises:
        ImportError: pyarrow is not installed.
        NotADirectoryError: There is a file of that name.
    """

    def __init__(self, path: str | os.PathLike[str], *, rows: int = _ROWS_PER_PART) -> None:
        self._path = Path(path)
        self._rows = rows
        self._part: ParquetCapture | None = None
        self._part_rows = 0
        self._before = Captured()
        _schema()  # pyarrow is there

    def __enter__(self) -> ParquetParts:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(f"{self._path} is a file: a capture that can go on is a directory") from error
        parts = _parts(self._path)
        self._number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._complete()

    @property
    def captured(self) -> Captured:
        """What the complete parts of this capture have."""
        return self._before

    def write(self, batch: Sequence[StoredMessage]) -> None:
        """Add messages."""
        if not batch:
            return
        if self._part is None:
            self._part = ParquetCapture(self._path / f"part-{self._number:06}.parquet").__enter__()
        self._part.write(batch)
        self._part_rows += len(batch)
        if self._part_rows >= self._rows:
            self._complete()

    def _complete(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.__exit__(None, None, None)
            old, new = self._before, part.captured
            self._before = Captured(
                old.messages + new.messages,
                old.data_bytes + new.data_bytes,
                old.escaped_values + new.escaped_values,
            )
            self._number += 1
            self._part_rows = 0


class JsonLinesCapture:
    """
    A file of JSON lines, which grows: another capture into it goes on behind the last line.

    Each line is the object of :mod:`ce_nats.json_form` with ``stream``, ``sequence`` and ``timestamp``; nothing is
    lost. A last line that a killed process has not finished is cut off.

    Args:
        target: The file; or a binary one that is open already, which is not closed.
    """

    def __init__(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        self._target = target
        self._file: IO[bytes]
        self.captured = Captured()

    def __enter__(self) -> JsonLinesCapture:
        if isinstance(self._target, (str, os.PathLike)):
            _cut_last_line(Path(self._target))
            self._file = open(self._target, "ab")
        else:
            self._file = self._target
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not self._target:
            self._file.close()

    def write(self, batch: Sequence[StoredMessage]) -> None:
        """Add messages, and hand them to the operating system."""
        self._file.write(b"".join(map(as_json_line, batch)))
        self._file.flush()
        self.captured = Captured(
            self.captured.messages + len(batch),
            self.captured.data_bytes + sum(len(message.data) for message in batch),
        )


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


def read_capture(path: str | os.PathLike[str]) -> Iterator[StoredMessage]:
    """
    Messages of a capture, in its order: a Parquet file, a directory of them, or JSON lines.

    A last line that is cut off is left out; in Parquet, times have microseconds and escaped values stay escaped.

    Raises:
        DecodeError: A line is no message; ``invalid-message`` for Parquet that is no capture.
        ImportError: It is Parquet, and pyarrow is not installed.
        OSError: It cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        for part in _parts(path):
            yield from _read_parquet(part)
    elif path.suffix == ".parquet":
        yield from _read_parquet(path)
    else:
        with path.open("rb") as lines:
            yield from (from_json_line(line) for line in lines if line.endswith(b"\n"))


def last_captured(path: str | os.PathLike[str]) -> StoredMessage | None:
    """
    The last message of a capture that can go on, a directory of Parquet or JSON lines; None where there is none.

    Raises:
        DecodeError, ImportError, OSError: As :func:`read_capture` does.
    """
    path = Path(path)
    if path.is_dir():
        last = _parts(path)[-1:]
        return _last_row(last[0]) if last else None
    if not path.exists():
        return None
    line = _last_line(path)
    return from_json_line(line) if line else None


def as_json_line(message: StoredMessage) -> bytes:
    """A message as :class:`JsonLinesCapture` writes it."""
    fields = as_fields(message.headers, message.data, message.subject, message.reply)
    origin = {"stream": message.stream, "sequence": message.sequence} if message.stream else {}
    return as_line({**fields, **origin, "timestamp": str(message.timestamp)})


def from_json_line(line: bytes) -> StoredMessage:
    """
    Read a line of :func:`as_json_line`.

    Raises:
        DecodeError: It is none.
    """
    fields = read_object(line)
    message = as_message(fields)
    stream, sequence, time = fields.get("stream", ""), fields.get("sequence", 0), fields.get("timestamp")
    if not isinstance(stream, str) or type(sequence) is not int or not isinstance(time, str):
        raise DecodeError(
            ErrorCode.INVALID_MESSAGE,
            "a captured message has a timestamp, and its stream and sequence where it has one",
        )
    pairs = message.headers.items()
    return StoredMessage(message.subject, message.reply, pairs, message.data, stream, sequence, Timestamp.parse(time))


def header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    """The header block of captured headers, bytes that are no UTF-8 included; ``b""`` without any."""
    if not headers:
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"NATS/1.0\r\n{lines}\r\n".encode("utf-8", "surrogateescape")


def _parts(directory: Path) -> list[Path]:
    return sorted(directory.glob("part-*.parquet"))


def _read_parquet(path: Path) -> Iterator[StoredMessage]:
    _schema()
    from pyarrow import lib, parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_PER_READ):
                yield from map(_from_row, batch.to_pylist())
    except lib.ArrowInvalid as error:
        raise DecodeError(ErrorCode.INVALID_MESSAGE, f"{path} is not Parquet: {error}") from error


def _last_row(path: Path) -> StoredMessage:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        group = file.read_row_group(file.num_row_groups - 1)
    (row,) = group.slice(group.num_rows - 1).to_pylist()
    return _from_row(row)


def _from_row(row: dict[str, Any]) -> StoredMessage:
    try:
        pairs = [(header["key"], header["value"]) for header in row["headers"] or ()]
        return StoredMessage(
            row["subject"],
            row["reply"] or "",
            pairs,
            row["data"] or b"",
            row["stream"] or "",
            row["sequence"] or 0,
            Timestamp(row["timestamp"]),
        )
    except (LookupError, TypeError) as error:
        raise DecodeError(ErrorCode.INVALID_MESSAGE, f"a row is no captured message: {error!r}") from error


def _last_line(path: Path) -> bytes:
    """The last line that has its end; ``b""`` where there is none."""
    tail = b""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        while at and tail.count(b"\n") < 2:
            size = min(at, _BLOCK_BYTES)
            at = file.seek(at - size)
            tail = file.read(size) + tail
    lines = tail.splitlines(keepends=True)
    return next((line for line in reversed(lines) if line.endswith(b"\n")), b"")


def _cut_last_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            size = min(end, _BLOCK_BYTES)
            file.seek(end - size)
            block = file.read(size)
            if b"\n" in block:
                end += block.rindex(b"\n") + 1 - size
                break
            end -= size
        file.truncate(end)


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
