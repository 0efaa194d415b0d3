"""
Add columns of events to captured messages in Arrow, without Spark.

The columns are those of ``ce_nats.spark.explode_cloudevents``, with the corresponding Arrow types.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from .._parquet import invalid, open_parquet, part_files, row_batches, schema_of
from ..codec.attributes import check_extension_name
from ..errors import DecodeError, EncodeError, preview, shortened
from ._decode import COLUMNS, DECLARED, TYPES, decode
from ._headers import check_type, is_octets

_MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
# Types of declared extensions, by the name of Spark's type.
_EXTENSION_TYPES: Final[Mapping[str, type]] = {
    "string": str,
    "int": int,
    "boolean": bool,
    "binary": bytes,
    "timestamp": datetime,
}
# Columns that identify a message in errors, if the rows have them.
IDENTITY: Final = ("stream", "sequence", "subject")
# Limits of a slice that is decoded at once: many rows make decoding fast, the limit in bytes bounds the memory.
_ROWS: Final = 10_000
_BYTES: Final = 128 * 2**20

_Messages = TypeVar("_Messages", pa.Table, pa.RecordBatch, pa.RecordBatchReader)


def explode_cloudevents(
    messages: _Messages,
    *,
    headers: str = "headers",
    data: str = "data",
    prefix: str = "ce_",
    extensions: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
) -> _Messages:
    """
    Add one column per attribute to captured messages.

        table = explode_cloudevents(pq.read_table("orders.parquet"))

    ``ce_specversion ce_id ce_source ce_type ce_subject ce_time ce_datacontenttype ce_dataschema`` (``ce_time`` in
    microseconds of UTC, the others strings), ``ce_extensions`` (map of strings), ``ce_data`` (binary), ``ce_mode``
    (``binary`` or ``structured``) and ``ce_error`` (a code of :class:`ce_nats.ErrorCode`). Existing columns are kept.
    Data is not parsed, as with ``from_nats_message(message, parse_data=False)``.

    Args:
        messages: A ``pyarrow.Table``, ``RecordBatch`` or ``RecordBatchReader``, one message per row; or any object
            with ``__arrow_c_stream__``, such as data frames of Polars and pandas and relations of DuckDB.
        headers: Column of the headers: lists of structs of two strings, a map to a string or to a list of strings, or
            binary, a raw header block. NULL means no headers.
        data: Column of the payload, binary or string. NULL means an empty payload. Of both columns, the layout does not
            matter: dictionaries, views, fixed sizes, runs, and extension types of these such as JSON.
        prefix: Prefix of the names of the new columns.
        extensions: Extension attributes that get their own column, and its type: ``string``, ``int``, ``boolean``,
            ``binary`` or ``timestamp``. They are kept in the map as well.
        mode: ``PERMISSIVE`` keeps invalid messages with a code in ``ce_error`` and NULL in the other new columns;
            ``DROPMALFORMED`` removes them; ``FAILFAST`` raises the error of the first one. Case-insensitive.

    Returns:
        A table, batch or reader, as ``messages`` is; for other streams a reader. A reader decodes each batch when it is
        read.

    Raises:
        TypeError: ``messages`` is not Arrow data, a column has an unsupported type, or ``extensions`` is not a mapping.
        ValueError: A column is missing; ``mode`` or a type in ``extensions`` is unknown; an EncodeError
            (``invalid-attribute-name``) if ``extensions`` has an invalid name.
        DecodeError: With ``FAILFAST``, the error of the first invalid message, with the number of its row (from 0).
    """
    kind = type(messages)
    if isinstance(messages, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        schema = messages.schema
    elif hasattr(messages, "__arrow_c_stream__"):
        messages = pa.RecordBatchReader.from_stream(messages)
        schema = messages.schema
    else:
        raise TypeError(f"messages must be a table, batch or stream of Arrow, got {kind.__name__}")
    exploder = Exploder(schema, headers=headers, data=data, prefix=prefix, extensions=extensions, mode=mode)
    if isinstance(messages, pa.RecordBatchReader):
        return pa.RecordBatchReader.from_batches(exploder.schema, exploder.batches(messages))
    if isinstance(messages, pa.Table):
        return pa.Table.from_batches(exploder.batches(messages.to_batches()), schema=exploder.schema)
    batches = list(exploder.batches([messages]))
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema=exploder.schema).combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=exploder.schema)


def explode_capture(
    path: str | os.PathLike[str],
    *,
    prefix: str = "ce_",
    extensions: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
) -> pa.RecordBatchReader:
    """
    Return the messages of a capture with the columns of :func:`explode_cloudevents`, read and decoded in batches.

        duckdb.sql("SELECT ce_type, count(*) FROM events GROUP BY 1")  # with events = explode_capture("orders.parquet")
        polars.from_arrow(explode_capture("orders.parquet"))
        explode_capture("orders.parquet").read_pandas()

    Memory use is that of one row group and one batch of events, independent of the size of the capture. Batches have at
    most 64 MiB, whatever the compression ratio of a file.

    Args:
        path: A Parquet file, or a directory of Parquet files that a capture wrote.
        prefix: As for :func:`explode_cloudevents`.
        extensions: As for :func:`explode_cloudevents`.
        mode: As for :func:`explode_cloudevents`.

    Raises:
        TypeError, ValueError: As :func:`explode_cloudevents` does, for ``extensions`` and ``mode``.
        DecodeError: ``invalid-message`` for a file that is not Parquet, is damaged, or does not have the columns of a
            capture, and for a directory without Parquet files. While the reader is read, also as
            :func:`explode_cloudevents`.
        OSError: A file cannot be read.
    """
    checked_mode(mode)
    extension_types(extensions)
    files = capture_files(path)
    with open_parquet(files[0]) as file:
        schema = schema_of(file)
    try:
        exploder = Exploder(schema, prefix=prefix, extensions=extensions, mode=mode)
    except (TypeError, ValueError) as error:
        raise invalid(f"{files[0]}: {error}") from error
    return pa.RecordBatchReader.from_batches(exploder.schema, exploder.batches(_read(files, schema)))


def capture_files(path: str | os.PathLike[str]) -> list[Path]:
    """
    Return the Parquet files of a capture in order.

    Raises:
        DecodeError: ``invalid-message`` if the directory has none.
    """
    files = part_files(Path(path))
    if not files:
        raise invalid(f"directory {path} must have files part-*.parquet of a capture, got no such file")
    return files


def _read(files: list[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in files:
        with open_parquet(path) as file:
            if not schema_of(file).equals(schema):
                raise invalid(f"{path} must have the columns of the first file of the capture")
        for _, batch in row_batches(path, rows=_ROWS):
            yield batch


class Exploder:
    """
    Add the columns of events to a sequence of batches of messages.

    Attributes:
        schema: Schema of the result.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        headers: str = "headers",
        data: str = "data",
        prefix: str,
        extensions: Mapping[str, str] | None,
        mode: str,
    ) -> None:
        self._mode = checked_mode(mode)
        self._headers, self._data = _index(schema, headers), _index(schema, data)
        check_type(schema.field(self._headers).type, headers)
        payload = schema.field(self._data).type
        if not is_octets(payload) and not pa.types.is_null(payload):
            text = f"must be binary or string, got {shortened(str(payload))}; cast it to one of these"
            raise TypeError(f"column {preview(data)} {text}")
        self._types = extension_types(extensions)
        self._rows = 0
        fields = [pa.field(prefix + name, TYPES[name]) for name in COLUMNS]
        fields.append(pa.field(f"{prefix}error", pa.string()))
        fields += [pa.field(prefix + name, DECLARED[kind]) for name, kind in self._types.items()]
        self.schema = pa.schema([*schema, *fields], schema.metadata)

    def batches(self, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the new columns; large ones are split."""
        for batch in batches:
            rows = max(1, min(_ROWS, _BYTES * len(batch) // (batch.nbytes + 1)))
            for start in range(0, len(batch), rows):
                yield self._exploded(batch.slice(start, rows))

    def _exploded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        decoded = decode(batch.column(self._headers), batch.column(self._data), self._types)
        errors = decoded.errors
        if errors and self._mode == "FAILFAST":
            row = min(errors)
            raise _at_row(errors[row], self._rows + row, batch, row)
        self._rows += len(batch)
        codes = pa.nulls(len(batch), pa.string())
        if errors:
            codes = pa.array([str(errors[row].code) if row in errors else None for row in range(len(batch))])
        columns = [*batch.columns, *(decoded.columns[name] for name in COLUMNS), codes, *decoded.typed.values()]
        exploded = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if errors and self._mode == "DROPMALFORMED":
            return exploded.filter(codes.is_null())
        return exploded


def checked_mode(mode: str) -> str:
    """
    Return a mode in upper case.

    Raises:
        ValueError: There is no such mode.
    """
    upper = str(mode).upper()
    if upper not in _MODES:
        raise ValueError(f"mode must be {' or '.join(_MODES)}, got {preview(mode)}")
    return upper


def extension_types(extensions: Mapping[str, str] | None) -> dict[str, type]:
    """
    Return the Python types of declared extensions.

    Raises:
        TypeError: ``extensions`` is neither a mapping nor None.
        ValueError: A type is unknown; an EncodeError (``invalid-attribute-name``) for an invalid name.
    """
    if extensions is not None and not isinstance(extensions, Mapping):
        raise TypeError(f"extensions must be a mapping of names to types, got {preview(extensions)}")
    types = {}
    for name, wanted in (extensions or {}).items():
        kind = _EXTENSION_TYPES.get(str(wanted).lower())
        if kind is None:
            raise ValueError(f"the type of an extension must be {' or '.join(_EXTENSION_TYPES)}, got {preview(wanted)}")
        check_extension_name(name, EncodeError)
        types[name] = kind
    return types


def _index(schema: pa.Schema, name: str) -> int:
    index: int = schema.get_field_index(name)
    if index < 0:
        raise ValueError(
            f"messages must have one column {preview(name)}, got columns {shortened(', '.join(schema.names))}"
        )
    return index


def _at_row(error: DecodeError, number: int, batch: pa.RecordBatch, row: int) -> DecodeError:
    known = [name for name in IDENTITY if batch.schema.get_field_index(name) >= 0]
    where = "".join(f", {name} {_shown(batch.column(name)[row])}" for name in known)
    return DecodeError(
        error.code,
        f"{error.message} (row {number}{where})",
        attribute=error.attribute,
        header=error.header,
        requirement=error.requirement,
    )


def _shown(value: pa.Scalar) -> str:
    try:
        return shortened(str(value.as_py()), 60)
    except (ValueError, pa.ArrowException):  # text that is not UTF-8, for example
        return "?"
