"""The output of ``decode --output``: the rows of a capture with columns of their events, in Parquet files."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from .._parquet import AtomicParquetWriter, count_rows, open_parquet, part_files, row_batches, schema_of
from ..capture._parquet import locked
from ._arguments import InputError, usage_errors
from ._program import BAD_INPUT, run
from ._progress import counted, print_summary, progress

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET: Final = ".parquet"
_ROWS_PER_READ: Final = 10_000


class _Counts:
    """Numbers of messages in completed files, and of errors by code."""

    def __init__(self) -> None:
        self.messages = 0
        self.errors: Counter[str] = Counter()

    @property
    def bad(self) -> int:
        return sum(self.errors.values())

    def print(self, *, as_json: bool) -> None:
        errors = self.errors.most_common()
        counts = {"messages": self.messages, "events": self.messages - self.bad, "errors": dict(errors)}
        text = f"{counted(self.messages, 'message')}, {counted(self.messages - self.bad, 'event')}"
        if errors:
            text += f"; errors: {', '.join(f'{code} {count}' for code, count in errors)}"
        print_summary(counts, text, as_json=as_json)


def decode_capture(source: str, output: str, extensions: Mapping[str, str], *, as_json: bool) -> None:
    """
    Write the rows of a capture to Parquet, with columns of their events added.

    The output of a file is a file, which must not exist. That of a directory is a directory with the same names of
    files, in which those that it has already are not written again.

    Raises:
        typer.Exit: Status 1 if some messages are not events. All files are written.
        InputError, OSError, CeNatsError, ImportError, StoppedError: Only complete files are written, and counted.
    """
    from ..arrow._explode import explode_capture, extension_types

    if Path(output).suffix != _PARQUET:
        raise InputError(f"--output must end in {_PARQUET}, got {output!r}")
    os.stat(source)  # pyarrow's errors name a missing file less clearly
    os.stat(Path(output).parent)
    with usage_errors():
        extension_types(extensions)
    counts = _Counts()

    async def work(files: list[tuple[Path, Path]]) -> None:
        done = 0
        with progress("decode", sum(count_rows(part) for part, _ in files)) as advance:
            for part, path in files:
                reader = explode_capture(part, extensions=extensions)
                errors: Counter[str] = Counter()
                rows = 0
                with AtomicParquetWriter(path, reader.schema) as file:
                    for batch in reader:
                        file.write(batch)
                        rows += len(batch)
                        errors.update(batch.column("ce_error").drop_null().to_pylist())
                        advance(done + rows)
                        await asyncio.sleep(0)  # a signal can cancel the task here
                done += rows
                counts.messages += rows
                counts.errors += errors

    has_ended = False
    try:
        with _files(Path(source), Path(output), extensions) as files:
            run(work(files))
        has_ended = True
    finally:
        if has_ended or counts.messages:
            counts.print(as_json=as_json)
    if counts.bad:
        raise typer.Exit(BAD_INPUT)


@contextmanager
def _files(source: Path, output: Path, extensions: Mapping[str, str]) -> Iterator[list[tuple[Path, Path]]]:
    """
    Yield the files to read, each with the file to write, in the order in which they are written.

    Raises:
        FileExistsError: The output would be overwritten.
        InputError: The output was not made from this capture.
    """
    from ..arrow._explode import capture_files

    if not source.is_dir():
        if os.path.lexists(output):
            raise FileExistsError(f"{output} already exists, and is not overwritten")
        yield [(source, output)]
        return
    parts = capture_files(source)
    if os.path.lexists(output) and not output.is_dir():
        raise FileExistsError(f"{output} is a file, and the output of a directory must be a directory")
    output.mkdir(exist_ok=True)
    with locked(output):
        try:
            written = part_files(output)
            if written:
                _check_continues(parts, written[-1], extensions)
            yield [(part, output / part.name) for part in parts if not written or part.name > written[-1].name]
        finally:
            if not any(output.iterdir()):
                output.rmdir()


def _check_continues(parts: list[Path], last: Path, extensions: Mapping[str, str]) -> None:
    """
    Check that the last file of an output was made from the same capture, with the same columns.

    Raises:
        InputError: It was not.
    """
    from ..arrow._explode import explode_capture

    with open_parquet(last) as file:
        if not schema_of(file).equals(explode_capture(parts[0], extensions=extensions).schema):
            raise InputError(f"{last} has other columns: give the same --extension, or another output")
    part = next((part for part in parts if part.name >= last.name), None)
    if part is None or (part.name == last.name and _end(part, part) != _end(last, part)):
        raise InputError(f"{last} was made from another capture: give another output")


def _end(path: Path, part: Path) -> tuple[int, pa.RecordBatch | None]:
    """Return the number of rows of a file, and the last one in the columns of a part."""
    with open_parquet(part) as file:
        names = schema_of(file).names
    last = None
    for _, batch in row_batches(path, rows=_ROWS_PER_READ, columns=names, is_last=True):
        last = batch.slice(len(batch) - 1)
    return count_rows(path), last


def read_extensions(given: list[str] | None) -> dict[str, str]:
    """
    Split ``NAME:TYPE`` of the command line into names and types of extensions.

    Raises:
        InputError: A text does not have this form.
    """
    types = {}
    for text in given or ():
        name, colon, kind = text.partition(":")
        if not name or not colon:
            raise InputError(f"--extension must be NAME:TYPE, got {text!r}")
        types[name] = kind
    return types
