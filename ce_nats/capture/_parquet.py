"""Captures in Parquet: a directory of files (parts), each of which appears when it is complete."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from .._numbers import check_count
from .._parquet import (
    BYTES_PER_GROUP,
    AtomicParquetWriter,
    open_parquet,
    parquet_errors,
    part_files,
    require_pyarrow,
    row_batches,
    schema_of,
)
from ..message import StoredMessage
from ._result import CaptureResult, lock

if TYPE_CHECKING:
    import pyarrow as pa


# Rows that are converted to columns at once. Columns take a fraction of the memory of messages.
_ROWS_PER_TABLE: Final = 1_000
# A capture that is killed loses at most one part.
_ROWS_PER_PART: Final = 500_000
_ROWS_PER_READ: Final = 1_000
_SINGLE_FILE: Final = (
    "{path} must be a directory to be continued, and is a file: to continue a Parquet file of an earlier version, "
    "create a directory with its name and move it there as part-000000.parquet"
)
PART: Final = re.compile(r"part-[0-9]{6,}\.parquet")
PARTIAL: Final = re.compile(r"\.part-[0-9]{6,}\.parquet\.[0-9]+\.partial")


class ParquetParts:
    """
    A directory of Parquet files. Another capture into the same directory continues after the last part.

        with ParquetParts("orders.parquet") as file:
            file.write(batch)

    Spark, Arrow, pandas and DuckDB read the directory as one table. When the block ends, also by an exception, the
    current part is completed with the messages written so far. A killed process loses only this part, and so does a
    capture that cannot write, because the disk is full for example.

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
        ValueError: ``rows`` is not an integer, 1 or more.
    """

    def __init__(self, path: str | os.PathLike[str], *, rows: int = _ROWS_PER_PART) -> None:
        require_pyarrow()
        check_count("rows", rows)
        self._path = Path(path)
        self._rows = rows
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
        known = part_files(self._path)
        if foreign := [part.name for part in known if not PART.fullmatch(part.name)]:
            raise FileExistsError(f"directory {self._path} has {foreign[0]}, which was not written by a capture")
        self._number = int(known[-1].stem.removeprefix("part-")) + 1 if known else 0
        with ExitStack() as stack:
            stack.enter_context(locked(self._path))
            self.last = last_row(part_files(self._path))
            self._release = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._release:
            try:
                if kind is None and not part_files(self._path):
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
        """
        Append messages. They are collected into row groups, independently of the size of the batches.

        Raises:
            OSError: They cannot be written. The current part is deleted; ``captured`` has the totals of the others.
        """
        if not batch:
            return
        if self._part is None:
            self._part = self._begun()
        try:
            self._part.write(batch)
        except Exception:
            part, self._part, self._part_rows = self._part, None, 0
            part.discard()
            raise
        self._part_rows += len(batch)
        if self._part_rows >= self._rows:
            self._complete()

    def _begun(self) -> _Part:
        return _Part(self._path / f"part-{self._number:06}.parquet")

    def _complete(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.complete()
            self._before = _sum(self._before, part.captured)
            self._number += 1
            self._part_rows = 0


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """
    Lock a directory of parts against others, and delete what a process that was killed has left.

    Raises:
        BlockingIOError: Another process has the lock.
    """
    with ExitStack() as stack:
        if os.name == "posix":  # other systems cannot open a directory
            descriptor = os.open(path, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            if lock(descriptor, path):
                for partial in path.glob(".part-*.partial"):
                    partial.unlink()
        yield


class _Part:
    """A Parquet file of messages, which appears when it is complete."""

    def __init__(self, path: Path) -> None:
        from ._rows import SCHEMA

        self._writer = AtomicParquetWriter(path, SCHEMA)
        self._rows: list[StoredMessage] = []
        self._data_bytes = 0
        self.captured = CaptureResult()

    def write(self, batch: Sequence[StoredMessage]) -> None:
        self._rows += batch
        self._data_bytes += sum(len(message.data) for message in batch)
        if len(self._rows) >= _ROWS_PER_TABLE or self._data_bytes >= BYTES_PER_GROUP:
            self._write_table()

    def complete(self) -> None:
        with self._writer:
            if self._rows:
                self._write_table()

    def discard(self) -> None:
        """Delete the file."""
        self._writer.discard()

    def _write_table(self) -> None:
        from ._rows import to_table

        table, escaped = to_table(self._rows)
        self._writer.write(table)
        self.captured = _sum(self.captured, CaptureResult(len(self._rows), self._data_bytes, escaped))
        self._rows, self._data_bytes = [], 0


def _sum(one: CaptureResult, other: CaptureResult) -> CaptureResult:
    return CaptureResult(
        one.messages + other.messages,
        one.data_bytes + other.data_bytes,
        one.escaped_values + other.escaped_values,
    )


def read_parquet(path: Path, *, is_last: bool = False) -> Iterator[StoredMessage]:
    """
    Yield the messages in a file, or, with ``is_last``, in its last row group.

    Raises:
        DecodeError: ``invalid-message``, with the number of the row.
        OSError: The file cannot be read.
    """
    with open_parquet(path) as file:
        from ._rows import SCHEMA, check_columns, from_batch

        check_columns(path, schema_of(file))
    for first, batch in row_batches(path, rows=_ROWS_PER_READ, columns=SCHEMA.names, is_last=is_last):
        try:
            messages: Iterable[StoredMessage] = from_batch(batch)
        except (ValueError, OverflowError):
            messages = _one_by_one(path, first, batch)
        yield from messages


def _one_by_one(path: Path, first: int, batch: pa.RecordBatch) -> Iterator[StoredMessage]:
    from ._rows import from_batch

    for index in range(len(batch)):
        with parquet_errors(f"{path}, row {first + index}"):
            messages = from_batch(batch.slice(index, 1))
        yield from messages


def last_row(paths: Sequence[Path]) -> StoredMessage | None:
    """Return the last message in the files of a capture, or None."""
    for path in reversed(paths):
        if last := deque(read_parquet(path, is_last=True), maxlen=1):
            return last[0]
    return None
