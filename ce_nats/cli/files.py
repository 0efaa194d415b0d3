"""Standard input and output, as pipes and people use them."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import chain
from typing import Final

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["InputError", "console", "documents", "is_typed", "read_all", "stdin_documents", "table", "write"]

_CHUNK_BYTES: Final = 2**16
_MAX_WAITING: Final = 1000
_WIDE: Final = 10_000


class InputError(Exception):
    """An argument or option of the command line is not valid."""


def write(line: bytes) -> None:
    """Write to standard output, and flush for a reader of a pipe."""
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def console() -> Console:
    """Standard output for people: as wide as the terminal. In a pipe a line is as long as it has to be, or $COLUMNS."""
    paper = Console(highlight=False, markup=False, emoji=False)
    if not paper.is_terminal and "COLUMNS" not in os.environ:
        paper.width = _WIDE
    return paper


def table(*columns: str) -> Table:
    """A table without borders, whose cells are wrapped; rich would cut them off."""
    empty = Table(box=None, pad_edge=False)
    for column in columns:
        empty.add_column(column, overflow="fold")
    return empty


def is_typed() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin.isatty()


def read_all(argument: str | None) -> bytes:
    """An argument, or else all of standard input."""
    return b"".join(_chunks()) if argument is None else argument.encode("utf-8", "surrogateescape")


def documents(argument: str | None, *, whole: bytes = b"") -> Iterator[tuple[str, bytes]]:
    """
    JSON documents of an argument, or else of standard input, and where each of them is.

    One a line, or over several lines from a ``{`` to a ``}`` that stand in lines of their own, as programs print them
    for people. Lines without anything are passed over.

    Args:
        argument: From the command line, or None.
        whole: Standard input that begins with this line is a single document, but for a line break at its end.
    """
    if argument is not None:
        yield "", argument.encode("utf-8", "surrogateescape")
        return
    lines = _lines(_chunks())
    first = next(lines, b"")
    if whole and first + b"\n" == whole:
        yield "", b"\n".join([first, *lines])
    else:
        yield from _split(chain([first], lines))


async def stdin_documents(argument: str | None) -> AsyncGenerator[tuple[str, bytes], None]:
    """As :func:`documents`, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[str, bytes] | Exception | None] = asyncio.Queue()
    room = threading.Semaphore(_MAX_WAITING)

    def put(item: tuple[str, bytes] | Exception | None) -> None:
        room.acquire()
        try:
            loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError:  # the loop is closed
            raise SystemExit from None

    def read() -> None:
        try:
            for item in documents(argument):
                put(item)
            put(None)
        except OSError as error:
            put(error)

    # A daemon, because a read of a terminal or a pipe cannot be ended, and the program must not wait for it.
    threading.Thread(target=read, daemon=True).start()
    while (item := await queue.get()) is not None:
        room.release()
        if isinstance(item, Exception):
            raise item
        yield item


def _chunks() -> Iterator[bytes]:
    if is_typed():
        typer.echo("ce-nats: reading from standard input; Ctrl-D in an empty line ends it", err=True)
    # Past Python's own buffer: a thread that waits in that one keeps its lock, and the interpreter cannot end.
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:
        yield sys.stdin.buffer.read()
        return
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        yield chunk


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    begun: list[bytes] = []
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            yield b"".join([*begun, line])
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield last


def _split(lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    gathered: list[bytes] = []
    where = ""
    for number, line in enumerate(lines, 1):
        if not gathered:
            where = f"line {number}"
        if gathered or line.strip() == b"{":
            gathered.append(line)
            if line.rstrip() != b"}":
                continue
            line, gathered = b"\n".join(gathered), []
        if line.strip():
            yield where, line
    if gathered:
        yield where, b"\n".join(gathered)
