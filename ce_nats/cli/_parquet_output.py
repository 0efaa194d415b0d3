"""The output of ``decode --output``: the rows of a capture with columns of their events, in a Parquet file."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

from .._parquet import AtomicParquetWriter, count_rows, part_files
from ._arguments import InputError, usage_errors
from ._program import BAD_INPUT, run
from ._progress import counted, print_summary, progress

_PARQUET: Final = ".parquet"


def decode_capture(source: str, output: str, extensions: Mapping[str, str], *, as_json: bool) -> None:
    """
    Write the rows of a capture to a Parquet file, with columns of their events added.

    ``output``: Path of the Parquet file to write, which must not exist.

    Raises:
        typer.Exit: Status 1 if some messages are not events. The file is written.
        InputError, OSError, CeNatsError, ImportError: No file is written.
    """
    from ..arrow._explode import explode_capture, extension_types

    if Path(output).suffix != _PARQUET:
        raise InputError(f"--output must end in {_PARQUET}, got {output!r}")
    if os.path.lexists(output):
        raise FileExistsError(f"{output} already exists, and is not overwritten")
    os.stat(source)  # pyarrow's errors name a missing file less clearly
    os.stat(Path(output).parent)
    with usage_errors():
        extension_types(extensions)
    errors: Counter[str] = Counter()
    messages = 0

    async def work() -> None:
        nonlocal messages
        reader = explode_capture(source, extensions=extensions)
        total = sum(map(count_rows, part_files(Path(source))))
        with progress("decode", total) as advance, AtomicParquetWriter(Path(output), reader.schema) as file:
            for batch in reader:
                file.write(batch)
                messages += len(batch)
                errors.update(batch.column("ce_error").drop_null().to_pylist())
                advance(messages)
                await asyncio.sleep(0)  # a signal can cancel the task here

    run(work())
    bad = sum(errors.values())
    counts = {"messages": messages, "events": messages - bad, "errors": dict(errors.most_common())}
    text = f"{counted(messages, 'message')}, {counted(messages - bad, 'event')}"
    if bad:
        text += f"; errors: {', '.join(f'{code} {count}' for code, count in errors.most_common())}"
    print_summary(counts, text, as_json=as_json)
    if bad:
        raise typer.Exit(BAD_INPUT)


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
