"""
Read Parquet files that are not trusted, in batches of bounded size.

A few kilobytes of Parquet can hold gigabytes, because a value that repeats is stored once. So strings and bytes are
read as dictionaries, which hold each value once, and a batch is divided before they are decoded. Whatever is wrong with
a file is ``invalid-message``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .errors import DecodeError, ErrorCode, shortened

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BATCH_BYTES: Final = 64 * 2**20
# nats-server accepts payloads of up to 64 MiB.
MAX_ROW_BYTES: Final = 128 * 2**20
# All rows of such a row group fit in memory; of a larger one, only few are read at once, because sizes may differ.
_SMALL_GROUP_BYTES: Final = 256 * 2**20
_FEW_ROWS: Final = 256


def open_parquet(path: Path, **options: Any) -> Any:
    """
    Open a Parquet file; the result is a context manager.

    Args:
        path: The file.
        options: For ``pyarrow.parquet.ParquetFile``.

    Raises:
        DecodeError: ``invalid-message`` if the file is not Parquet.
        OSError: The file cannot be read.
    """
    from pyarrow import parquet

    with parquet_errors(f"{path} is not Parquet"):
        file = parquet.ParquetFile(path, **options)
        # These raise for types that Arrow does not have, and for names that are not UTF-8.
        _ = file.schema_arrow.names, [leaf.path for leaf in _leaves(file)]
        return file


@contextmanager
def parquet_errors(where: str) -> Iterator[None]:
    """
    Turn every error of pyarrow about the content of a file into ``invalid-message``.

    Raises:
        DecodeError: ``invalid-message``; its text begins with ``where``.
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
        raise invalid(f"{where}: {shortened(str(error))}") from error  # Arrow's own: damaged content


def invalid(text: str) -> DecodeError:
    """Return the error for a file that is not what it must be."""
    return DecodeError(ErrorCode.INVALID_MESSAGE, text)


def row_batches(
    path: Path, *, rows: int, columns: Sequence[str] | None = None, is_last: bool = False
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """
    Yield the rows of a file in batches with the types of its schema, each with the number of its first row, from 0.

    Args:
        path: The file.
        rows: Maximum number of rows in a batch. A batch has at most ``MAX_BATCH_BYTES``, or one row.
        columns: Names of the columns to read; None reads all.
        is_last: Read only the last row group that has rows.

    Raises:
        DecodeError: ``invalid-message``: the file is not Parquet, is damaged, or has a row of more than
            ``MAX_ROW_BYTES``.
        OSError: The file cannot be read.
    """
    with open_parquet(path) as file:
        schema = file.schema_arrow
        leaves = _leaves(file)
    fields = list(schema) if columns is None else [schema.field(name) for name in columns]
    dictionaries = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    with open_parquet(path, read_dictionary=dictionaries) as file:
        first = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if not is_last or first + count == file.metadata.num_rows:
                most = _rows_to_read(file, group, rows)
                yield from _divided(path, _group_batches(path, file, group, first, most, columns), fields, first)
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
                batch = batch.select(columns)  # of "data", Arrow also reads "data.x"
        if batch is None:
            return
        yield batch
        first += len(batch)


def _leaves(file: Any) -> list[Any]:
    return [file.schema.column(place) for place in range(len(file.schema))]


def _rows_to_read(file: Any, group: int, rows: int) -> int:
    """
    Return the number of rows of a row group that are read at once, before they are divided.

    It depends on sizes in the file's metadata: of values as stored, where a value that repeats counts once. Those of a
    single column are not used, because asking pyarrow for them ends the process if they are damaged.
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
            if len(part) < len(batch):  # of a slice, Arrow would decode the lists of the whole batch
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
    """Return the size of an array once dictionaries are decoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).take(array.indices)  # an error if an index is out of range
        return int(pc.sum(lengths).as_py() or 0) + int(array.indices.nbytes)
    if pa.types.is_struct(kind):
        return sum(map(_decoded_bytes, array.flatten()))
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        children = (array.keys, array.items) if pa.types.is_map(kind) else (array.values,)
        return sum(_decoded_bytes(child.slice(first, last - first)) for child in children)
    return int(array.nbytes)
