"""Standard input and output, in pipes and on terminals."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import chain
from typing import Final

from .terminal import say

_CHUNK_BYTES: Final = 2**16
_MAX_WAITING: Final = 1000


class InputError(Exception):
    """An argument or option of the command line is not valid."""


def write(line: bytes) -> None:
    """Write to standard output, and flush, so that the reader of a pipe gets each line at once."""
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def is_typed() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin.isatty()


def read_all(argument: str | None) -> bytes:
    """The argument as bytes, or all of standard input if it is None."""
    return b"".join(_chunks()) if argument is None else argument.encode("utf-8", "surrogateescape")


def documents(argument: str | None, *, whole: bytes = b"") -> Iterator[tuple[str, bytes]]:
    """
    JSON documents in an argument or on standard input, each with its position, such as ``line 3``.

    On standard input, a document is a line, or several lines from one that is ``{`` to one that is ``}``, as programs
    print indented JSON. Empty lines are skipped.

    Args:
        argument: Argument of the command line, or None for standard input.
        whole: If standard input begins with this line, it is a single document; a line break at its end is removed.
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
    free_places = threading.Semaphore(_MAX_WAITING)

    def put(item: tuple[str, bytes] | Exception | None) -> None:
        free_places.acquire()
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

    # A daemon thread, because reading a terminal or a pipe cannot be cancelled, and the program must not wait for it.
    threading.Thread(target=read, daemon=True).start()
    while (item := await queue.get()) is not None:
        free_places.release()
        if isinstance(item, Exception):
            raise item
        yield item


def _chunks() -> Iterator[bytes]:
    if is_typed():
        say("ce-nats: reading from standard input; press Ctrl-D on an empty line to end it")
    # Without Python's buffer: a thread that waits in it holds its lock, and then the interpreter cannot exit.
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:
        yield sys.stdin.buffer.read()
        return
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        yield chunk


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    partial: list[bytes] = []
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            yield b"".join([*partial, line])
            partial = []
        partial.append(rest)
    if last := b"".join(partial):
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
