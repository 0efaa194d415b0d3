"""Captures in Parquet: a directory of parts, each of which is complete or not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ..codec.timestamp import Timestamp
from ..errors import DecodeError, ErrorCode
from ..message import StoredMessage
from .result import CaptureResult, lock

if TYPE_CHECKING:
    import pyarrow as pa


_SURROGATE_ESCAPE: Final = re.compile("[\udc80-\udcff]")
# A row group is what a reader holds in memory and what one Spark task reads at least.
_ROWS_PER_GROUP: Final = 50_000
_BYTES_PER_GROUP: Final = 64 * 2**20
# Rows that become columns at a time.
_ROWS_PER_TABLE: Final = 1_000
# What is lost at most where a capture in parts is killed.
_ROWS_PER_PART: Final = 500_000
_ROWS_PER_READ: Final = 1_000
_SINGLE_FILE: Final = (
    "{path} is a file, and a capture that goes on is a directory: to go on with a Parquet file of an earlier version, "
    "make a directory of its name and move it there as part-000000.parquet"
)
PART: Final = re.compile(r"part-[0-9]{6,}\.parquet")
PARTIAL: Final = re.compile(r"\.part-[0-9]{6,}\.parquet\.[0-9]+\.partial")


class ParquetParts:
    """
    A directory of Parquet files, which grows: another capture into it goes on behind the last part.

        with ParquetParts("orders.parquet") as file:
            file.write(batch)

    Spark, Arrow, pandas and DuckDB read the directory as one table. Leaving the block, by an exception too, completes
    the current part with what was written; a killed process loses that part, and no other.

    Columns: ``subject``, ``reply``, ``stream`` (string), ``headers`` (array of structs of ``key`` and ``value``, both
    string), ``data`` (binary), ``sequence`` (64-bit integer), ``timestamp`` (microseconds, UTC; nanoseconds are cut,
    because Spark has none).

    Args:
        path: The directory; made where there is none.
        rows: Rows after which a part is complete.

    Attributes:
        last: The last message that was there when the block was entered, or None.

    Raises:
        ImportError: pyarrow is not installed.
        NotADirectoryError: There is a file of that name.
        FileExistsError: The directory has Parquet files that no capture wrote.
        BlockingIOError: Another capture is writing into it.
    """

    def __init__(self, path: str | os.PathLike[str], *, rows: int = _ROWS_PER_PART) -> None:
        self._path = Path(path)
        self._rows = rows
        self._schema = _schema()
        self._part: _Part | None = None
        self._part_rows = 0
        self._before = CaptureResult()
        self.last: StoredMessage | None = None

    def __enter__(self) -> ParquetParts:
        self._is_new = not self._path.exists()
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(_SINGLE_FILE.format(path=self._path)) from error
        known = parts(self._path)
        if foreign := [part.name for part in known if not PART.fullmatch(part.name)]:
            raise FileExistsError(f"directory {self._path} has {foreign[0]}, which was not written by a capture")
        self._number = int(known[-1].stem.removeprefix("part-")) + 1 if known else 0
        with ExitStack() as stack:
            if os.name == "posix":  # elsewhere a directory cannot be opened
                descriptor = os.open(self._path, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                if lock(descriptor, self._path):
                    for partial in self._path.glob(".part-*.partial"):  # of a process that was killed
                        partial.unlink()
            self.last = last_row(parts(self._path))
            self._release = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._release:
            try:
                if kind is None and not parts(self._path):
                    self._part = self._part or self._begun()  # a file without rows says what the columns are
                self._complete()
            finally:
                if self._is_new and not any(self._path.iterdir()):
                    self._path.rmdir()

    @property
    def captured(self) -> CaptureResult:
        """What the complete parts of this capture have."""
        return self._before

    def write(self, batch: Sequence[StoredMessage]) -> None:
        """Add messages. They are gathered into row groups, whatever the size of the batches."""
        if not batch:
            return
        if self._part is None:
            self._part = self._begun()
        self._part.write(batch)
        self._part_rows += len(batch)
        if self._part_rows >= self._rows:
            self._complete()

    def _begun(self) -> _Part:
        return _Part(self._path / f"part-{self._number:06}.parquet", self._schema)

    def _complete(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.complete()
            self._before = _sum(self._before, part.captured)
            self._number += 1
            self._part_rows = 0


class _Part:
    """A Parquet file that appears under its name when it is complete, or not at all."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._path = path
        # In the same directory, because a file can be renamed atomically within a file system only. Spark and others
        # leave out names that begin with a dot or an underscore.
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._schema = schema
        self._writer: Any = parquet.ParquetWriter(self._partial, schema, compression="zstd")
        self._rows: list[StoredMessage] = []
        # What is written next, as a row group: columns take a fraction of the memory that rows do.
        self._tables: list[pa.Table] = []
        self._group = CaptureResult()
        self.captured = CaptureResult()

    def write(self, batch: Sequence[StoredMessage]) -> None:
        self._rows += batch
        size = sum(len(message.data) for message in batch)
        self._group = _sum(self._group, CaptureResult(len(batch), size))
        if self._group.messages >= _ROWS_PER_GROUP or self._group.data_bytes >= _BYTES_PER_GROUP:
            self._write_group()
        elif len(self._rows) >= _ROWS_PER_TABLE:
            self._make_table()

    def complete(self) -> None:
        try:
            try:
                self._write_group()
            finally:
                self._writer.close()
            self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)

    def _make_table(self) -> None:
        if self._rows:
            table, escaped = _table(self._rows, self._schema)
            self._tables.append(table)
            self._group = _sum(self._group, CaptureResult(escaped_values=escaped))
        self._rows = []

    def _write_group(self) -> None:
        import pyarrow as pa

        self._make_table()
        if self._tables:
            self._writer.write_table(pa.concat_tables(self._tables), row_group_size=self._group.messages)
            self.captured = _sum(self.captured, self._group)
        self._tables, self._group = [], CaptureResult()


def _sum(one: CaptureResult, other: CaptureResult) -> CaptureResult:
    return CaptureResult(
        one.messages + other.messages,
        one.data_bytes + other.data_bytes,
        one.escaped_values + other.escaped_values,
    )


def parts(path: Path) -> list[Path]:
    """The files of a capture, in its order: those in a directory, or a single one."""
    return sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]


def read_parquet(path: Path) -> Iterator[StoredMessage]:
    with parquet_file(path) as file:
        for batch in file.iter_batches(_ROWS_PER_READ):
            yield from map(_from_row, batch.to_pylist())


def last_row(paths: Sequence[Path]) -> StoredMessage | None:
    """The last message in files that are one capture."""
    return next((row for row in map(_last_row, reversed(paths)) if row is not None), None)


def _last_row(path: Path) -> StoredMessage | None:
    with parquet_file(path) as file:
        if not file.metadata.num_rows:
            return None
        group = file.read_row_group(file.num_row_groups - 1)
    (row,) = group.slice(group.num_rows - 1).to_pylist()
    return _from_row(row)


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """
    An open Parquet file.

    Raises:
        DecodeError: ``invalid-message``: it is none.
    """
    _schema()
    from pyarrow import lib, parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except lib.ArrowInvalid as error:
        raise DecodeError(ErrorCode.INVALID_MESSAGE, f"{path} is not Parquet: {error}") from error


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
        raise DecodeError(ErrorCode.INVALID_MESSAGE, f"a row is not a captured message: {error!r}") from error


def _schema() -> pa.Schema:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("a capture needs pyarrow: pip install 'ce-nats[arrow]'") from error
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
        columns = zip(schema, zip(*rows, strict=True), strict=True)
        arrays = [
            _header_array(cells) if field.name == "headers" else pa.array(cells, field.type) for field, cells in columns
        ]
        return pa.table(arrays, schema=schema)

    try:
        return build(messages), 0
    except UnicodeEncodeError:
        escaped = sum(value != escape_bytes(value) for message in messages for _, value in message.headers)
        return build([message._replace(headers=_in_unicode(message.headers)) for message in messages]), escaped


def _header_array(rows: Sequence[list[tuple[str, str]]]) -> pa.Array:
    """What ``pa.array()`` makes of lists of pairs, in half the time."""
    import pyarrow as pa

    names = pa.array([name for headers in rows for name, _ in headers], pa.string())
    values = pa.array([value for headers in rows for _, value in headers], pa.string())
    offsets = pa.array([0, *accumulate(map(len, rows))], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([names, values], ["key", "value"]))


def _in_unicode(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(escape_bytes(name), escape_bytes(value)) for name, value in headers]


def escape_bytes(text: str) -> str:
    """Text with ``%FF`` in place of each byte that is not UTF-8 (a surrogate escape, PEP 383)."""
    return _SURROGATE_ESCAPE.sub(lambda found: f"%{ord(found.group()) & 0xFF:02X}", text)
