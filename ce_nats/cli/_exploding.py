"""``decode --output``: a capture to a Parquet file with columns of events."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import typer

from ._arguments import InputError, usage_errors
from ._program import BAD_INPUT, run
from ._progress import counted, progress, report

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET: Final = ".parquet"
# Limits of a row group, because readers hold whole row groups in memory.
_ROWS_PER_GROUP: Final = 50_000
_BYTES_PER_GROUP: Final = 64 * 2**20


def decode_capture(source: str, output: str, extensions: Mapping[str, str], *, as_json: bool) -> None:
    """
    Write the rows of a capture, with the columns of their events added.

    Args:
        source: Path of a Parquet file, or of a directory of them.
        output: Path of the Parquet file to write, which must not exist.
        extensions: Types of extensions that get their own columns, by name.
        as_json: Print the summary as JSON.

    Raises:
        typer.Exit: Status 1: some messages are not events. The file was written.
        InputError, OSError, CeNatsError, ImportError: Nothing was written.
    """
    from ..arrow._explode import count_rows, explode_capture, extension_types

    if Path(output).suffix != _PARQUET:
        raise InputError(f"--output must end in {_PARQUET}, got {output!r}")
    if os.path.lexists(output):
        raise FileExistsError(f"{output} exists already, and is not overwritten")
    os.stat(source)  # pyarrow's errors do not say as clearly what does not exist
    os.stat(Path(output).parent)
    with usage_errors():
        extension_types(extensions)
    errors: Counter[str] = Counter()
    messages = 0

    async def work() -> None:
        nonlocal messages
        reader = explode_capture(source, extensions=extensions)
        with progress("decode", count_rows(source)) as advance, _ParquetFile(Path(output), reader.schema) as file:
            for batch in reader:
                file.write(batch)
                messages += len(batch)
                errors.update(batch.column("ce_error").drop_null().to_pylist())
                advance(messages)
                await asyncio.sleep(0)  # where a signal can cancel this

    run(work())
    bad = sum(errors.values())
    counts = {"messages": messages, "events": messages - bad, "errors": dict(errors.most_common())}
    text = f"{counted(messages, 'message')}, {counted(messages - bad, 'event')}"
    if bad:
        text += f"; errors: {', '.join(f'{code} {count}' for code, count in errors.most_common())}"
    report(counts, text, as_json=as_json)
    if bad:
        raise typer.Exit(BAD_INPUT)


def read_extensions(given: list[str] | None) -> dict[str, str]:
    """
    Extensions from the command line.

    Raises:
        InputError: One does not have the form ``NAME:TYPE``.
    """
    types = {}
    for text in given or ():
        name, colon, kind = text.partition(":")
        if not name or not colon:
            raise InputError(f"--extension must be NAME:TYPE, got {text!r}")
        types[name] = kind
    return types


class _ParquetFile:
    """A Parquet file that gets its name only when it is complete; until then it is hidden, and deleted on an error."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._path = path
        # In the same directory, because renaming is atomic only within a file system. Spark and other readers ignore
        # names that begin with a dot.
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._writer: Any = parquet.ParquetWriter(self._partial, schema, compression="zstd")
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def __enter__(self) -> _ParquetFile:
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. They are buffered until they fill a row group."""
        self._batches.append(batch)
        self._rows += len(batch)
        self._bytes += batch.nbytes
        if self._rows >= _ROWS_PER_GROUP or self._bytes >= _BYTES_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=self._rows)
        self._batches, self._rows, self._bytes = [], 0, 0

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
