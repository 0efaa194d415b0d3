"""Captures in Parquet: a directory of files (parts), each of which is written completely or not at all."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from .._parquet import invalid, open_parquet, parquet_errors, row_batches
from ..codec.timestamp import Timestamp
from ..errors import shortened
from ..message import StoredMessage
from ._result import CaptureResult, lock

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
# The years 1 to 9999 of Python's datetime.
_MICROSECONDS: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
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


def read_parquet(path: Path, *, is_last: bool = False) -> Iterator[StoredMessage]:
    """
    Yield the messages in a file, or with ``is_last`` those of its last row group.

    Raises:
        DecodeError: ``invalid-message``, with the number of the row.
        OSError: The file cannot be read.
    """
    _check_columns(path)
    for first, batch in row_batches(path, rows=_ROWS_PER_READ, columns=list(_COLUMNS), is_last=is_last):
        try:
            messages: Iterable[StoredMessage] = _messages(batch)
        except (ValueError, OverflowError):  # including Arrow's own
            messages = _one_by_one(path, first, batch)
        yield from messages


def _one_by_one(path: Path, first: int, batch: pa.RecordBatch) -> Iterator[StoredMessage]:
    for place in range(len(batch)):
        with parquet_errors(f"{path}, row {first + place}"):
            messages = _messages(batch.slice(place, 1))
        yield from messages


def count_rows(path: Path) -> int:
    """
    Return the number of rows of a file, from its metadata.

    Raises:
        DecodeError: ``invalid-message`` if the file is not Parquet.
        OSError: The file cannot be read.
    """
    _schema()
    with open_parquet(path) as file:
        return max(0, int(file.metadata.num_rows))


def last_row(paths: Sequence[Path]) -> StoredMessage | None:
    """Return the last message in the files of a capture, or None."""
    for path in reversed(paths):
        if last := deque(read_parquet(path, is_last=True), maxlen=1):
            return last[0]
    return None


def _check_columns(path: Path) -> None:
    """
    Check that a file has the columns of a capture, with types that hold the same values.

    Raises:
        DecodeError: ``invalid-message``.
    """
    _schema()
    with open_parquet(path) as file:
        schema = file.schema_arrow
    for name, (is_valid, wanted) in _COLUMNS.items():
        place = schema.get_field_index(name)
        if place < 0:
            raise invalid(f"{path} must have one column {name}, to be a capture")
        kind = schema.field(place).type
        if not is_valid(kind):
            raise invalid(f"{path}: column {name} must be {wanted}, got {shortened(str(kind))}")


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(kind in (pa.string(), pa.large_string()))


def _is_octets(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(kind in (pa.binary(), pa.large_binary()))


def _is_headers(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    names = ("key", "value")
    pair = kind.value_type
    return all(pair.get_field_index(name) >= 0 and _is_text(pair.field(name).type) for name in names)


def _is_integer(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind))


def _is_instant(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_timestamp(kind) and kind.tz is not None


# What columns must be, in the order of the fields of StoredMessage.
_COLUMNS: Final[Mapping[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    "subject": (_is_text, "string"),
    "reply": (_is_text, "string"),
    "headers": (_is_headers, "list<struct<key: string, value: string>>"),
    "data": (_is_octets, "binary"),
    "stream": (_is_text, "string"),
    "sequence": (_is_integer, "an integer"),
    "timestamp": (_is_instant, "a timestamp with a time zone"),
}


def _messages(batch: pa.RecordBatch) -> list[StoredMessage]:
    """
    Return the messages in a batch.

    Raises:
        ValueError: A row is not a message; it may also be an error of Arrow.
    """
    import pyarrow as pa

    columns = {name: batch.column(name) for name in _COLUMNS}
    sequences = columns["sequence"].fill_null(0)
    instants = _instants(columns["timestamp"])
    if columns["subject"].null_count or instants.null_count:
        raise ValueError("subject and timestamp must not be NULL")
    cells = zip(
        columns["subject"].to_pylist(),
        columns["reply"].fill_null("").to_pylist(),
        _header_lists(columns["headers"]),
        columns["data"].fill_null(b"").to_pylist(),
        columns["stream"].fill_null("").to_pylist(),
        sequences.cast(pa.uint64()).to_pylist(),
        map(_timestamp, instants.cast(pa.int64()).to_pylist()),
        strict=True,
    )
    return [StoredMessage(*row) for row in cells]


def _instants(array: pa.Array) -> pa.Array:
    """Return times in microseconds of UTC. A time zone is not looked up: it does not change the instant."""
    import pyarrow as pa

    # Nanoseconds are truncated. Others are refused if they are out of range.
    return array.cast(pa.timestamp("us", tz="UTC"), safe=array.type.unit != "ns")


def _timestamp(microseconds: int) -> Timestamp:
    if microseconds not in _MICROSECONDS:
        raise ValueError("timestamp must be in the years 1 to 9999")
    return Timestamp.from_nanoseconds(microseconds * 1000)


def _header_lists(array: pa.Array) -> Iterator[list[tuple[str, str]]]:
    """Yield the headers of each row; NULL means no headers."""
    entries = array.flatten()
    parts = entries.flatten()  # a NULL entry has a NULL name
    names, values = (parts[entries.type.get_field_index(name)] for name in ("key", "value"))
    if names.null_count or values.null_count:
        raise ValueError("the name and the value of a header must not be NULL")
    pairs = zip(names.to_pylist(), values.to_pylist(), strict=True)
    return (list(islice(pairs, length)) for length in array.value_lengths().fill_null(0).to_pylist())


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
