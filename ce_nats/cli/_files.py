"""Read documents from arguments, files and standard input; write to standard output."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from ..capture import read_capture
from ..message import StoredMessage
from ._arguments import InputError
from ._terminal import print_to_stderr

_CHUNK_BYTES: Final = 2**16
_MAX_QUEUED: Final = 1000
_STDIN: Final = "-"
_PARQUET: Final = ".parquet"
_DOCUMENTS: Final = ("{", "[", '"', "NATS/1.0")


def write(line: bytes) -> None:
    """Write to standard output, and flush it, so that the reader of a pipe receives each line immediately."""
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def stdin_is_terminal() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin.isatty()


def is_document(argument: str | None) -> bool:
    """Return whether an argument is itself a document, rather than the path of a file or standard input."""
    return argument is not None and argument.lstrip().startswith(_DOCUMENTS)


def is_stdin(argument: str | None) -> bool:
    """Return whether an argument means standard input."""
    return argument is None or argument == _STDIN


def is_capture(argument: str | None) -> bool:
    """Return whether an argument is the path of a Parquet capture, existing or not."""
    return (
        argument is not None and not is_document(argument) and (argument.endswith(_PARQUET) or Path(argument).is_dir())
    )


def read_messages(path: str) -> Iterator[StoredMessage]:
    """
    Read the messages of a capture.

    Raises:
        InputError: The path is a directory, but not a capture.
        DecodeError, ImportError, OSError: As for ``read_capture``.
    """
    os.stat(path)
    directory = Path(path)
    if directory.is_dir() and directory.suffix != _PARQUET and not any(directory.glob("part-*.parquet")):
        raise InputError(f"a directory must be a capture in Parquet, got {path!r}")
    return read_capture(path)


def check_documents(argument: str | None) -> None:
    """
    Check that an argument is valid for :func:`documents`.

    Raises:
        InputError: It is a Parquet capture.
        OSError: The file does not exist.
    """
    if is_document(argument) or is_stdin(argument):
        return
    path = str(argument)
    os.stat(path)  # not open(), which would consume a named pipe
    if is_capture(path):
        raise InputError(
            f"events must be in JSON, got the capture {path!r}: decode prints its events, replay publishes its messages"
        )


def read_all(argument: str | None) -> bytes:
    """Return the argument as bytes, or all of standard input if it is None."""
    return b"".join(_chunks(None)) if argument is None else argument.encode("utf-8", "surrogateescape")


def documents(argument: str | None, *, whole: bytes = b"") -> Iterator[tuple[str, bytes]]:
    """
    Yield JSON documents from an argument, a file or standard input, each with its position, such as ``line 3``.

    In a file, a document is one line, or indented JSON: the lines from a line ``{`` to the next line ``}``. Empty lines
    are skipped.

    Raises:
        InputError, OSError: As for :func:`check_documents`; OSError also if a file cannot be read.
    """
    check_documents(argument)
    if argument is not None and is_document(argument):
        yield "", argument.encode("utf-8", "surrogateescape")
        return
    lines = _lines(_chunks(None if is_stdin(argument) else argument))
    first = next(lines, b"")
    if whole and first + b"\n" == whole:
        yield "", b"\n".join([first, *lines])
    else:
        yield from _split(chain([first], lines))


async def async_documents(argument: str | None) -> AsyncGenerator[tuple[str, bytes], None]:
    """Yield the same as :func:`documents`, without blocking the event loop."""
    handover = _Handover()

    def read() -> None:
        try:
            for item in documents(argument):
                if not handover.put(item):
                    return
            handover.put(None)
        except (OSError, InputError) as error:
            handover.put(error)

    # A daemon thread, because reading a terminal or a pipe cannot be cancelled, and must not delay the exit.
    threading.Thread(target=read, daemon=True).start()
    try:
        while (item := await handover.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        handover.close()


class _Handover:
    """A bounded queue from a thread to the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[str, bytes] | Exception | None] = deque()
        self._free_slots = threading.Semaphore(_MAX_QUEUED)
        self._has_items = asyncio.Event()
        self._lock = threading.Lock()
        self._is_notified = self._is_closed = False

    def put(self, item: tuple[str, bytes] | Exception | None) -> bool:
        """Wait for a free slot, in the thread; return False if no further items are wanted."""
        self._free_slots.acquire()
        if self._is_closed:
            return False
        self._items.append(item)
        with self._lock:
            was_notified, self._is_notified = self._is_notified, True
        # Not once per item: that would fill the pipe that wakes the loop, and signals, which use it too, would be lost.
        if not was_notified:
            try:
                self._loop.call_soon_threadsafe(self._has_items.set)
            except RuntimeError:  # the loop is closed
                return False
        return True

    async def get(self) -> tuple[str, bytes] | Exception | None:
        while not self._items:
            await self._has_items.wait()
            self._has_items.clear()
            with self._lock:
                self._is_notified = False
        self._free_slots.release()
        return self._items.popleft()

    def close(self) -> None:
        """End the waiting of the thread."""
        self._is_closed = True
        self._free_slots.release()


def _chunks(path: str | None) -> Iterator[bytes]:
    """Yield blocks of a file, or of standard input."""
    if path is not None:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
        return
    if stdin_is_terminal():
        print_to_stderr("ce-nats: reading from standard input; press Ctrl-D on an empty line to end it")
    # Not sys.stdin.buffer: a thread that waits for input holds its lock, and the interpreter could not exit.
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
