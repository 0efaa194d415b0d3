"""Captures in Parquet: a directory of files (parts), each of which is written completely or not at all."""

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
# A row group is the unit that a reader holds in memory, and the least that one Spark task reads.
_ROWS_PER_GROUP: Final = 50_000
_BYTES_PER_GROUP: Final = 64 * 2**20
# Rows that are converted to columns at a time.
_ROWS_PER_TABLE: Final = 1_000
# A capture that is killed loses at most one part.
_ROWS_PER_PART: Final = 500_000
_ROWS_PER_READ: Final = 1_000
_SINGLE_FILE: Final = (
    "{path} is a file, and must be a directory to be continued: to continue a Parquet file of an earlier version, "
    "make a directory of its name and move it there as part-000000.parquet"
)
PART: Final = re.compile(r"part-[0-9]{6,}\.parquet")
PARTIAL: Final = re.compile(r"\.part-[0-9]{6,}\.parquet\.[0-9]+\.partial")


class ParquetParts:
    """
    A directory of Parquet files. Another capture into the same directory continues after the last part.

        with ParquetParts("orders.parquet") as file:
            file.write(batch)

    Spark, Arrow, pandas and DuckDB read the directory as one table. When the block ends, also by an exception, the
    current part is completed with the messages written so far; a killed process loses that part only.

    Columns: ``subject``, ``reply``, ``stream`` (string), ``headers`` (array of structs of ``key`` and ``value``, both
    string), ``data`` (binary), ``sequence`` (64-bit integer), ``timestamp`` (microseconds, UTC; nanoseconds are
    truncated, because Spark has no type for them).

    Args:
        path: The directory; created if it does not exist.
        rows: Number of rows in a part.

    Attributes:
        last: The last message in the directory when the block was entered, or None.

    Raises:
        ImportError: pyarrow is not installed.
        NotADirectoryError: ``path`` is a file.
        FileExistsError: The directory has Parquet files that were not written by a capture.
        BlockingIOError: Another capture is writing to the directory.
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
            if os.name == "posix":  # other systems cannot open a directory
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
                    self._part = self._part or self._begun()  # a file without rows defines the columns
                self._complete()
            finally:
                if self._is_new and not any(self._path.iterdir()):
                    self._path.rmdir()

    @property
    def captured(self) -> CaptureResult:
        """Totals of the parts that this capture has completed."""
        return self._before

    def write(self, batch: Sequence[StoredMessage]) -> None:
        """Append messages. They are collected into row groups, independent of the size of the batches."""
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
    """A Parquet file that gets its final name only when it is complete."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._path = path
        # In the same directory, because renaming is atomic only within a file system. Spark and others ignore names
        # that begin with a dot or an underscore.
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
    """Return the files of a capture in order: those of a directory, or a single one."""
    return sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]


def read_parquet(path: Path) -> Iterator[StoredMessage]:
    with parquet_file(path) as file:
        for batch in file.iter_batches(_ROWS_PER_READ):
            yield from map(_from_row, batch.to_pylist())


def last_row(paths: Sequence[Path]) -> StoredMessage | None:
    """Return the last message in the files of a capture, or None."""
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
    Open a Parquet file.

    Raises:
        DecodeError: ``invalid-message`` if the file is not Parquet.
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
    """Return messages as an Arrow table, and the number of header values that had to be escaped."""
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
    """Replace each byte that is not UTF-8 (a surrogate escape, PEP 383) by ``%XX``, for example ``%FF``."""
    return _SURROGATE_ESCAPE.sub(lambda found: f"%{ord(found.group()) & 0xFF:02X}", text)
