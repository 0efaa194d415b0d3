"""
Parquet files: read untrusted ones in batches of bounded size, and write files that appear when they are complete.

A few kilobytes of Parquet can hold gigabytes, because a repeated value is stored once. So strings and bytes are read as
dictionaries, which hold each value once, and a batch is divided before they are decoded. Every error in the content of
a file is ``invalid-message``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from .errors import DecodeError, ErrorCode, shortened

if TYPE_CHECKING:
    import pyarrow as pa

# Limits of a row group that is written. Readers hold whole row groups in memory, and a Spark task reads at least one.
ROWS_PER_GROUP: Final = 50_000
BYTES_PER_GROUP: Final = 64 * 2**20
# Limits of a batch that is read.
MAX_BATCH_BYTES: Final = 64 * 2**20
# nats-server accepts payloads of up to 64 MiB.
MAX_ROW_BYTES: Final = 128 * 2**20
# All rows of such a row group fit in memory; of a larger one, only few are read at once, because sizes may differ.
_SMALL_GROUP_BYTES: Final = 256 * 2**20
_FEW_ROWS: Final = 256


def require_pyarrow() -> None:
    """
    Check that pyarrow is installed.

    Raises:
        ImportError: It is not.
    """
    try:
        import pyarrow as pa  # noqa: F401
    except ImportError as error:
        raise ImportError("a capture needs pyarrow: pip install 'ce-nats[arrow]'") from error


# --- Reading --------------------------------------------------------------------------------------------------------


def part_files(path: Path) -> list[Path]:
    """Return the files of a capture in order: those of a directory, or the path of a single file."""
    return sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]


def open_parquet(path: Path, **options: Any) -> Any:
    """
    Open a Parquet file; the result is a context manager.

    Raises:
        DecodeError: ``invalid-message`` if the file is not Parquet.
        ImportError: pyarrow is not installed.
        OSError: The file cannot be read.
    """
    require_pyarrow()
    from pyarrow import parquet

    with parquet_errors(f"{path} is not Parquet"):
        file = parquet.ParquetFile(path, coerce_int96_timestamp_unit="us", **options)
        # These raise for types that Arrow does not have, and for names that are not UTF-8.
        _ = file.schema_arrow.names, [leaf.path for leaf in _leaves(file)]
        return file


def schema_of(file: Any) -> pa.Schema:
    """
    Return the schema of an open Parquet file, with INT96 times as timestamps in UTC.

    Arrow reads them as timestamps without a time zone. Spark, which writes TIMESTAMP so by default, stores instants.
    """
    import pyarrow as pa

    legacy = {leaf.path for leaf in _leaves(file) if leaf.physical_type == "INT96"}
    fields = [
        field.with_type(pa.timestamp("us", tz="UTC")) if field.name in legacy else field for field in file.schema_arrow
    ]
    return pa.schema(fields, file.schema_arrow.metadata)


@contextmanager
def parquet_errors(where: str) -> Iterator[None]:
    """
    Convert every error of pyarrow about the content of a file to ``invalid-message``.

    Raises:
        DecodeError: ``invalid-message``; its text starts with ``where``.
        OSError: The operating system cannot read the file.
    """
    from pyarrow import lib

    try:
        yield
    except DecodeError:
        raise
    except (lib.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise invalid(f"{where}: {shortened(str(error))}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise invalid(f"{where}: {shortened(str(error))}") from error  # raised by Arrow: damaged content


def invalid(text: str) -> DecodeError:
    """Return the error for a file with invalid content."""
    return DecodeError(ErrorCode.INVALID_MESSAGE, text)


def count_rows(path: Path) -> int:
    """
    Return the number of rows of a file, from its metadata.

    Raises:
        DecodeError: ``invalid-message`` if the file is not Parquet.
        ImportError: pyarrow is not installed.
        OSError: The file cannot be read.
    """
    with open_parquet(path) as file:
        return max(0, int(file.metadata.num_rows))


def row_batches(
    path: Path, *, rows: int, columns: Sequence[str] | None = None, is_last: bool = False
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """
    Yield the rows of a file in batches, each with the number of its first row (from 0).

    Batches have the types of :func:`schema_of`.

    Raises:
        DecodeError: ``invalid-message``: the file is not Parquet, is damaged, or has a row of more than
            ``MAX_ROW_BYTES``.
        OSError: The file cannot be read.
    """
    with open_parquet(path) as file:
        schema = schema_of(file)
        leaves = _leaves(file)
    fields = list(schema) if columns is None else [schema.field(name) for name in columns]
    dictionaries = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    with open_parquet(path, read_dictionary=dictionaries) as file:
        first = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if not is_last or first + count == file.metadata.num_rows:
                limit = _rows_to_read(file, group, rows)
                yield from _divided(path, _group_batches(path, file, group, first, limit, columns), fields, first)
            first += count


def _group_batches(
    path: Path, file: Any, group: int, first: int, rows: int, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a row group as they are read, with dictionaries."""
    with parquet_errors(f"{path} cannot be read from row {first} on"):
        batches = file.iter_batches(rows, row_groups=[group], columns=columns)
    while True:
        with parquet_errors(f"{path} cannot be read from row {first} on"):
            batch = next(batches, None)
            if batch is not None and columns is not None:
                batch = batch.select(columns)  # for "data", Arrow also reads "data.x"
        if batch is None:
            return
        yield batch
        first += len(batch)


def _leaves(file: Any) -> list[Any]:
    return [file.schema.column(index) for index in range(len(file.schema))]


def _rows_to_read(file: Any, group: int, rows: int) -> int:
    """
    Return the number of rows of a row group that are read at once, before they are divided.

    It depends on sizes in the file's metadata, in which a repeated value counts once. The sizes of single columns are
    not used, because pyarrow crashes the process when it reads damaged ones.
    """
    metadata = file.metadata.row_group(group)
    fixed = sum(int(leaf.length) for leaf in _leaves(file) if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY")
    total = int(metadata.total_byte_size) + int(metadata.num_rows) * fixed
    if total <= _SMALL_GROUP_BYTES:
        return rows
    average = total // max(1, int(metadata.num_rows))
    return max(1, min(rows, _FEW_ROWS, MAX_BATCH_BYTES // max(1, average)))


def _divided(
    path: Path, batches: Iterator[pa.RecordBatch], fields: list[pa.Field], first: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divide batches that are too large, decode the parts, and yield each with the number of its first row."""
    import pyarrow as pa

    parts: list[pa.RecordBatch] = []
    for batch in batches:
        parts.append(batch)
        while parts:
            part = parts.pop()
            with parquet_errors(f"{path} cannot be read from row {first} on"):
                size = sum(map(_decoded_bytes, part.columns))
            if size > MAX_BATCH_BYTES and len(part) > 1:
                half = len(part) // 2
                parts += part.slice(half), part.slice(0, half)
                continue
            if len(part) < len(batch):  # for a slice, Arrow would decode the lists of the whole batch
                part = part.take(pa.array(range(len(part))))
            if size > MAX_ROW_BYTES:
                raise invalid(f"{path}, row {first}: a row must have at most {MAX_ROW_BYTES} bytes, got {size}")
            with parquet_errors(f"{path} cannot be read from row {first} on"):
                arrays = [
                    array if array.type.equals(field.type) else array.cast(field.type)
                    for array, field in zip(part.columns, fields)
                ]
                decoded = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            yield first, decoded
            first += len(part)


def _decoded_bytes(array: pa.Array) -> int:
    """Return the size that an array has after dictionaries are decoded, in bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).take(array.indices)  # raises if an index is out of range
        return int(pc.sum(lengths).as_py() or 0) + int(array.indices.nbytes)
    if pa.types.is_struct(kind):
        return sum(map(_decoded_bytes, array.flatten()))
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        children = (array.keys, array.items) if pa.types.is_map(kind) else (array.values,)
        return sum(_decoded_bytes(child.slice(first, last - first)) for child in children)
    return int(array.nbytes)


# --- Writing --------------------------------------------------------------------------------------------------------


class AtomicParquetWriter:
    """
    A writer of a Parquet file that appears when it is complete. Until then it is hidden; after an error it is deleted.

    Rows are buffered until they fill a row group.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._path = path
        # In the same directory, because renaming is atomic only within a file system. Spark and other readers ignore
        # names that begin with a dot or an underscore.
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._writer: Any = parquet.ParquetWriter(self._partial, schema, compression="zstd")
        self._tables: list[pa.Table] = []
        self._rows = self._bytes = 0

    def __enter__(self) -> AtomicParquetWriter:
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

    def discard(self) -> None:
        """Delete the file instead of completing it, after an error of :meth:`write`."""
        try:
            with suppress(Exception):
                self._writer.close()
        finally:
            self._partial.unlink(missing_ok=True)

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Write rows, or buffer them until they fill a row group."""
        import pyarrow as pa

        self._tables.append(pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows)
        self._rows += len(rows)
        self._bytes += rows.nbytes
        if self._rows >= ROWS_PER_GROUP or self._bytes >= BYTES_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._tables:
            self._writer.write_table(pa.concat_tables(self._tables), row_group_size=self._rows)
        self._tables, self._rows, self._bytes = [], 0, 0
