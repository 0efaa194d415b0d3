"""Captures in JSON lines: a file to which messages are appended."""

from __future__ import annotations

import errno
import io
import os
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import timezone
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, Final

import msgspec
from msgspec import UNSET

from ..codec.timestamp import Timestamp
from ..errors import DecodeError, ErrorCode, at_place, preview
from ..message import StoredMessage
from ._message_json import as_fields, as_line, as_message, read_object
from ._result import CaptureResult, lock

BLOCK_BYTES: Final = 2**16
# Parquet and Spark have no unsigned integers.
_SEQUENCES: Final = range(2**63)

_encode_lines: Final = msgspec.json.Encoder().encode_lines


class JsonLinesCapture:
    """
    A file of JSON lines. Another capture into the same file continues after its last line.

    Each line is the object of :mod:`ce_nats.capture._message_json` with ``stream``, ``sequence`` and ``timestamp``,
    from which the message is restored without loss. An incomplete last line, of a process that was killed, is removed.
    If a write fails, because the disk is full for example, the complete lines are kept, and counted in ``captured``.

    Args:
        target: Path of the file, or an open binary file, which is not closed.

    Attributes:
        last: The last message in the file when the block was entered, or None.

    Raises:
        IsADirectoryError: The path is a directory.
        BlockingIOError: Another capture is writing to the file.
    """

    def __init__(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        self._target = target
        self._file: IO[bytes]
        self.captured = CaptureResult()
        self.last: StoredMessage | None = None

    def __enter__(self) -> JsonLinesCapture:
        if not isinstance(self._target, (str, os.PathLike)):
            self._file = _unbuffered(self._target)
            return self
        path = Path(self._target)
        self._is_new = not path.exists()
        with ExitStack() as stack:
            self._file = stack.enter_context(open(path, "ab", buffering=0))
            lock(self._file.fileno(), path)
            _cut_last_line(path)
            self.last = last_line(path)
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(self._target, (str, os.PathLike)):
            is_unused = self._is_new and kind is not None and not self.captured.messages
            self._file.close()
            if is_unused:
                Path(self._target).unlink()

    def write(self, batch: Sequence[StoredMessage]) -> None:
        """
        Append messages, and pass them to the operating system.

        Raises:
            OSError: They cannot be written, or not all of them.
        """
        lines = _as_json_lines(batch)
        if not isinstance(self._file, io.RawIOBase):  # its buffer hides how much is written
            self._file.write(lines)
            self._file.flush()
            self._count(batch)
            return
        written = 0
        try:
            while written < len(lines):
                written += _write_some(self._file, memoryview(lines)[written:])
        finally:
            complete = lines.rfind(b"\n", 0, written) + 1
            if complete < written and isinstance(self._target, (str, os.PathLike)):
                with suppress(OSError):
                    self._file.truncate(self._file.seek(0, os.SEEK_END) - written + complete)
            self._count(batch[: lines.count(b"\n", 0, complete)])

    def _count(self, batch: Sequence[StoredMessage]) -> None:
        self.captured = CaptureResult(
            self.captured.messages + len(batch),
            self.captured.data_bytes + sum(len(message.data) for message in batch),
        )


def _unbuffered(file: IO[bytes]) -> IO[bytes]:
    """Return the file below a buffer, or the file itself if it has none."""
    if isinstance(file, io.BufferedWriter) and isinstance(file.raw, io.FileIO):
        file.flush()
        return file.raw
    return file


def _write_some(file: io.RawIOBase, octets: memoryview) -> int:
    """Write bytes, and return their number."""
    written = file.write(octets)
    if written is None:  # a pipe that does not block
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return written


class _Line(msgspec.Struct, gc=False):
    """A message with the members of :func:`as_json_line`; omitted members are UNSET."""

    subject: str | msgspec.UnsetType
    reply: str | msgspec.UnsetType
    headers: list[tuple[str, str]]
    data: str | msgspec.UnsetType
    data_base64: str | msgspec.UnsetType
    stream: str | msgspec.UnsetType
    sequence: int | msgspec.UnsetType
    timestamp: str


def _as_json_lines(batch: Sequence[StoredMessage]) -> bytes:
    """Return messages as lines of :func:`as_json_line`."""
    try:
        lines = _encode_lines(list(map(_line, batch)))
    except UnicodeEncodeError:  # a byte that is not UTF-8 is an unpaired surrogate
        lines = b"\xff"
    return lines if lines.isascii() else b"".join(map(as_json_line, batch))


def _line(message: StoredMessage) -> _Line:
    subject, reply, headers, octets, stream, sequence, timestamp = message
    data: str | msgspec.UnsetType = UNSET
    data_base64: str | msgspec.UnsetType = UNSET
    try:
        data = octets.decode("utf-8")
    except UnicodeDecodeError:
        data_base64 = b64encode(octets).decode("ascii")
    return _Line(
        subject or UNSET,
        reply or UNSET,
        headers,
        data,
        data_base64,
        stream or UNSET,
        sequence if stream or sequence else UNSET,
        str(timestamp),
    )


def as_json_line(message: StoredMessage) -> bytes:
    """Return a message as a line of :class:`JsonLinesCapture`."""
    fields = as_fields(message.headers, message.data, message.subject, message.reply)
    if message.stream:
        fields["stream"] = message.stream
    if message.stream or message.sequence:
        fields["sequence"] = message.sequence
    return as_line({**fields, "timestamp": str(message.timestamp)})


def from_json_line(line: bytes) -> StoredMessage:
    """
    Parse a line of :func:`as_json_line`.

    Raises:
        DecodeError: The line is not a captured message.
    """
    fields = read_object(line)
    message = as_message(fields)
    stream, sequence, time = fields.get("stream", ""), fields.get("sequence", 0), fields.get("timestamp")
    if not isinstance(stream, str) or type(sequence) is not int or not isinstance(time, str):
        raise DecodeError(
            ErrorCode.INVALID_MESSAGE,
            "a captured message must have timestamp and stream as strings and sequence as an integer",
        )
    if sequence not in _SEQUENCES:
        raise DecodeError(ErrorCode.INVALID_MESSAGE, "sequence must be from 0 to 2^63-1")
    pairs = message.headers.items()
    for text in (message.subject, message.reply, stream, *chain.from_iterable(pairs)):
        _check_text(text)
    return StoredMessage(message.subject, message.reply, pairs, message.data, stream, sequence, _timestamp(time))


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise DecodeError(
                ErrorCode.INVALID_UTF8, f"subjects and headers must not have unpaired surrogates, got {preview(text)}"
            ) from error


def _timestamp(text: str) -> Timestamp:
    timestamp = Timestamp.parse(text)
    try:
        timestamp.astimezone(timezone.utc)
    except OverflowError as error:
        raise DecodeError(ErrorCode.INVALID_TIMESTAMP, "timestamp must be in the years 1 to 9999 of UTC") from error
    return timestamp


def read_json_lines(path: Path) -> Iterator[StoredMessage]:
    """
    Yield the messages in a file; an incomplete last line is ignored.

    Raises:
        DecodeError: A line is not a message; the text begins with the file and the number of the line, from 1.
        OSError: The file cannot be read.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                yield _parsed(f"{path}, line {number}", line)


def last_line(path: Path) -> StoredMessage | None:
    """Return the message in the last complete line, or None if no line is complete."""
    with path.open("rb") as file:
        end = _after_line_break(file, file.seek(0, os.SEEK_END))
        if not end:
            return None
        start = file.seek(_after_line_break(file, end - 1))
        return _parsed(f"{path}, last line", file.read(end - start))


def _parsed(where: str, line: bytes) -> StoredMessage:
    try:
        return from_json_line(line)
    except DecodeError as error:
        raise at_place(error, where) from error


def _after_line_break(file: IO[bytes], end: int) -> int:
    """Return the position after the last line break before a position, or 0."""
    while end:
        size = min(end, BLOCK_BYTES)
        file.seek(end - size)
        if (found := file.read(size).rfind(b"\n")) >= 0:
            return end - size + found + 1
        end -= size
    return 0


def _cut_last_line(path: Path) -> None:
    with path.open("rb+") as file:
        file.truncate(_after_line_break(file, file.seek(0, os.SEEK_END)))
