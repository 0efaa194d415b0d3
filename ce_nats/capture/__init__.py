"""
Stored messages, and captures of them: a directory of Parquet files, or a file of JSON lines.

A capture keeps messages as they are, decodable or not: subject, headers as an array of pairs (they repeat, and their
order counts), payload bytes, and where in which stream they were. It is the row that ``ce_nats.spark`` explodes.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from ..codec.timestamp import Timestamp
from ..errors import DecodeError, DeliveryError, EncodeError, ErrorCode, preview
from .message_json import as_fields, as_line, as_message, read_object

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Captured",
    "IfExists",
    "JsonLinesCapture",
    "ParquetParts",
    "StoredMessage",
    "as_json_line",
    "behind",
    "capture",
    "check_same_stream",
    "count_captured",
    "from_json_line",
    "header_block",
    "last_captured",
    "open_capture",
    "read_capture",
]

IfExists: TypeAlias = Literal["fail", "append", "replace"]

_T = TypeVar("_T")

_SURROGATE_ESCAPE: Final = re.compile("[\udc80-\udcff]")
# A row group is what a reader holds in memory and what one Spark task reads at least.
_ROWS_PER_GROUP: Final = 50_000
_BYTES_PER_GROUP: Final = 64 * 2**20
# What is lost at most where a capture in parts is killed.
_ROWS_PER_PART: Final = 500_000
_ROWS_PER_READ: Final = 1_000
_BLOCK_BYTES: Final = 2**16
_PARQUET: Final = ".parquet"
_JSON_LINES: Final = (".jsonl", ".ndjson")
_PART: Final = re.compile(r"part-[0-9]{6,}\.parquet")
_PARTIAL: Final = re.compile(r"\.part-[0-9]{6,}\.parquet\.[0-9]+\.partial")
_SINGLE_FILE: Final = (
    "{path} is a file, and a capture that goes on is a directory: to go on with a Parquet file of an earlier version, "
    "make a directory of its name and move it there as part-000000.parquet"
)


class StoredMessage(NamedTuple):
    """
    A message as a stream keeps it; :func:`ce_nats.from_nats_message` takes it as it is.

    Attributes:
        subject: NATS subject.
        reply: Reply subject; ``""`` for what comes from a JetStream stream, which does not keep it.
        headers: ``(name, value)`` pairs, in wire order, repeats included, white space around values removed. Bytes that
            are no UTF-8 are surrogate escapes (PEP 383), so that the wire bytes can be had back.
        data: Payload bytes.
        stream: Name of the stream.
        sequence: Stream sequence, from 1.
        timestamp: When the server stored it, to the nanosecond, in UTC.
    """

    subject: str
    reply: str
    headers: list[tuple[str, str]]
    data: bytes
    stream: str
    sequence: int
    timestamp: Timestamp


@dataclass(frozen=True, slots=True)
class Captured:
    """
    What a capture wrote.

    Attributes:
        messages: Rows.
        data_bytes: Payload bytes, uncompressed.
        escaped_values: Header values with bytes that are no UTF-8, which a Parquet string cannot hold; each stands as
            ``%FF``, so that a decoder still finds what is wrong with an attribute (U+FFFD would pass for a character).
    """

    messages: int = 0
    data_bytes: int = 0
    escaped_values: int = 0


class ParquetParts:
    """
    A directory of Parquet files, which grows: another capture into it goes on behind the last part.

        with ParquetParts("orders.parquet") as file:
            file.write(batch)

    Spark, Arrow, pandas and DuckDB read the directory as one table. Leaving the block, by an exception too, completes
    the current part with what was written; a killed process loses that part, and no other.

    Columns: ``subject``, ``reply``, ``stream`` (string), ``headers`` (array of structs of ``key`` and ``value``, both
    string), ``data`` (binary), ``sequence`` (64-bit integer), ``timestamp`` (microseconds, UTC; nanoseconds are cut,
    because Spark has none).

    Args:
        path: The directory; made where there is none.
        rows: Rows after which a part is complete.

    Attributes:
        last: The last message that was there when the block was entered, or None.

    Raises:
        ImportError: pyarrow is not installed.
        NotADirectoryError: There is a file of that name.
        FileExistsError: The directory has Parquet files that no capture wrote.
        BlockingIOError: Another capture is writing into it.
    """

    def __init__(self, path: str | os.PathLike[str], *, rows: int = _ROWS_PER_PART) -> None:
        self._path = Path(path)
        self._rows = rows
        self._schema = _schema()
        self._part: _Part | None = None
        self._part_rows = 0
        self._before = Captured()
        self.last: StoredMessage | None = None

    def __enter__(self) -> ParquetParts:
        self._is_new = not self._path.exists()
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(_SINGLE_FILE.format(path=self._path)) from error
        parts = _parts(self._path)
        if foreign := [part.name for part in parts if not _PART.fullmatch(part.name)]:
            raise FileExistsError(f"directory {self._path} has {foreign[0]}, which was not written by a capture")
        self._number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
        with ExitStack() as stack:
            if os.name == "posix":  # elsewhere a directory cannot be opened
                descriptor = os.open(self._path, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                if _lock(descriptor, self._path):
                    for partial in self._path.glob(".part-*.partial"):  # of a process that was killed
                        partial.unlink()
            self.last = last_captured(self._path)
            self._release = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._release:
            try:
                if kind is None and not _parts(self._path):
                    self._part = self._part or self._begun()  # a file without rows says what the columns are
                self._complete()
            finally:
                if self._is_new and not any(self._path.iterdir()):
                    self._path.rmdir()

    @property
    def captured(self) -> Captured:
        """What the complete parts of this capture have."""
        return self._before

    def write(self, batch: Sequence[StoredMessage]) -> None:
        """Add messages. They are gathered into row groups, whatever the size of the batches."""
        if not batch:
            return
        if self._part is None:
            self._part = self._begun()
        self._part.write(batch)
        self._part_rows += len(batch)
        if self._part_rows >= self._rows:
            self._complete()

    def _begun(self) -> _Part:
        return _Part(self._path / f"part-{self._number:06}.parquet", self._schema)

    def _complete(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.complete()
            old, new = self._before, part.captured
            self._before = Captured(
                old.messages + new.messages,
                old.data_bytes + new.data_bytes,
                old.escaped_values + new.escaped_values,
            )
            self._number += 1
            self._part_rows = 0


class _Part:
    """A Parquet file that appears under its name when it is complete, or not at all."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._path = path
        # In the same directory, because a file can be renamed atomically within a file system only. Spark and others
        # leave out names that begin with a dot or an underscore.
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._schema = schema
        self._writer: Any = parquet.ParquetWriter(self._partial, schema, compression="zstd")
        self._rows: list[StoredMessage] = []
        self._row_bytes = 0
        self.captured = Captured()

    def write(self, batch: Sequence[StoredMessage]) -> None:
        self._rows += batch
        self._row_bytes += sum(len(message.data) for message in batch)
        if len(self._rows) >= _ROWS_PER_GROUP or self._row_bytes >= _BYTES_PER_GROUP:
            self._write_group()

    def complete(self) -> None:
        try:
            try:
                self._write_group()
            finally:
                self._writer.close()
            self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)

    def _write_group(self) -> None:
        if self._rows:
            table, escaped = _table(self._rows, self._schema)
            self._writer.write_table(table, row_group_size=len(self._rows))
            self.captured = Captured(
                self.captured.messages + len(self._rows),
                self.captured.data_bytes + self._row_bytes,
                self.captured.escaped_values + escaped,
            )
        self._rows, self._row_bytes = [], 0


class JsonLinesCapture:
    """
    A file of JSON lines, which grows: another capture into it goes on behind the last line.

    Each line is the object of :mod:`ce_nats.capture.message_json` with ``stream``, ``sequence`` and ``timestamp``;
    nothing is lost. A last line that a killed process has not finished is cut off.

    Args:
        target: The file; or a binary one that is open already, which is not closed.

    Attributes:
        last: The last message that was there when the block was entered, or None.

    Raises:
        IsADirectoryError: There is a directory of that name.
        BlockingIOError: Another capture is writing into the file.
    """

    def __init__(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        self._target = target
        self._file: IO[bytes]
        self.captured = Captured()
        self.last: StoredMessage | None = None

    def __enter__(self) -> JsonLinesCapture:
        if not isinstance(self._target, (str, os.PathLike)):
            self._file = self._target
            return self
        path = Path(self._target)
        self._is_new = not path.exists()
        with ExitStack() as stack:
            self._file = stack.enter_context(open(path, "ab"))
            _lock(self._file.fileno(), path)
            _cut_last_line(path)
            self.last = last_captured(path)
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
        """Add messages, and hand them to the operating system."""
        self._file.write(b"".join(map(as_json_line, batch)))
        self._file.flush()
        self.captured = Captured(
            self.captured.messages + len(batch),
            self.captured.data_bytes + sum(len(message.data) for message in batch),
        )


def open_capture(path: str | os.PathLike[str]) -> ParquetParts | JsonLinesCapture:
    """
    The capture at a path, to go on with or to begin: JSON lines or Parquet, by the suffix.

    Args:
        path: Ends in ``.parquet``, ``.jsonl`` or ``.ndjson``.

    Raises:
        EncodeError: ``invalid-message``: it has another suffix.
        ImportError: It is Parquet, and pyarrow is not installed.
    """
    suffix = Path(path).suffix
    if suffix == _PARQUET:
        return ParquetParts(path)
    if suffix in _JSON_LINES:
        return JsonLinesCapture(path)
    raise EncodeError(
        ErrorCode.INVALID_MESSAGE, f"path must end in .parquet, .jsonl or .ndjson, got {os.fspath(path)!r}"
    )


async def capture(
    batches: AsyncIterable[Sequence[StoredMessage]], path: str | os.PathLike[str], *, if_exists: IfExists = "fail"
) -> Captured:
    """
    Write all batches to a capture, as :class:`ParquetParts` or :class:`JsonLinesCapture` does.

        await capture(read_stream(js, "ORDERS"), "orders.parquet")

    It is what ``ce-nats capture`` writes, and either goes on with what the other began, killed half way or not:

        await capture(read_stream(js, "ORDERS"), "orders.parquet", if_exists="append")

    Args:
        batches: From ``ce_nats.aio.jetstream.read_stream``.
        path: A directory whose name ends in ``.parquet``, or a file whose name ends in ``.jsonl`` or ``.ndjson``.
        if_exists: What to do where there is something at ``path``. ``"fail"`` raises FileExistsError. ``"append"`` goes
            on behind the last message; messages of the stream up to that one are passed over (``read_stream(js,
            "ORDERS", start=last_captured(path).sequence + 1)`` does not even read them). ``"replace"`` writes a new
            capture beside it, and removes the old one when that is complete; where it fails, the old one stays.

    Returns:
        What was written now.

    Raises:
        FileExistsError: There is something at ``path``, and ``if_exists`` is ``"fail"``; or what is there was not
            written by a capture, and is neither continued nor removed.
        NotADirectoryError: A single Parquet file is to be continued.
        BlockingIOError: Another capture is writing there.
        EncodeError: ``invalid-message``: another suffix, or another ``if_exists``.
        DeliveryError: ``stream-mismatch``: what is there has messages of another stream, or of one that was made again.
        ImportError: It is Parquet, and pyarrow is not installed.
    """
    with _opened(Path(path), if_exists) as file:
        async for batch in batches:
            # In a thread, so that the connection is served while a row group is compressed.
            await _in_thread(file.write, behind(file.last, batch))
    return file.captured


def behind(last: StoredMessage | None, batch: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """
    What of a batch is to be added to a capture.

    Args:
        last: The last message of the capture, or None.
        batch: Messages of one stream by ascending sequence, or of none.

    Raises:
        DeliveryError: ``stream-mismatch``: the capture has messages of another stream, or of one that was made again.
    """
    if last is None or not batch:
        return batch
    check_same_stream(last, batch[0].stream)
    if not last.stream:
        return batch
    if any(_is_of_another_life(last, message) for message in batch):
        raise DeliveryError(
            ErrorCode.STREAM_MISMATCH,
            f"stream {last.stream} has other messages than the capture, which ends at message {last.sequence}: "
            "the stream was deleted and created again",
        )
    return [message for message in batch if message.sequence > last.sequence]


def _is_of_another_life(last: StoredMessage, message: StoredMessage) -> bool:
    # Times ascend in a stream. Parquet cuts them to microseconds, and as datetimes they are compared by those.
    if message.sequence == last.sequence:
        return message.timestamp != last.timestamp
    return message.sequence < last.sequence and message.timestamp > last.timestamp


def check_same_stream(last: StoredMessage, stream: str) -> None:
    """
    Refuse to add messages of another stream to a capture.

    Args:
        last: The last message of the capture.
        stream: Name of the stream; ``""`` for what comes from none.

    Raises:
        DeliveryError: ``stream-mismatch``.
    """
    if last.stream != stream:
        there, new = (f"of stream {name}" if name else "of no stream" for name in (last.stream, stream))
        raise DeliveryError(ErrorCode.STREAM_MISMATCH, f"the capture has messages {there}, those to be added are {new}")


def read_capture(path: str | os.PathLike[str]) -> Iterator[StoredMessage]:
    """
    Messages of a capture, in its order: a directory of Parquet files or a single one, or JSON lines.

    A last line that is cut off is left out; in Parquet, times have microseconds and escaped values stay escaped.

    Raises:
        DecodeError: A line is no message; ``invalid-message`` for Parquet that is no capture.
        ImportError: It is Parquet, and pyarrow is not installed.
        OSError: It cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        for part in _parts(path):
            yield from _read_parquet(part)
    elif path.suffix == _PARQUET:
        yield from _read_parquet(path)
    else:
        with path.open("rb") as lines:
            yield from (from_json_line(line) for line in lines if line.endswith(b"\n"))


def count_captured(path: str | os.PathLike[str]) -> int:
    """
    How many messages :func:`read_capture` finds, from the metadata of Parquet or by counting lines.

    Raises:
        DecodeError, ImportError, OSError: As :func:`read_capture` does.
    """
    path = Path(path)
    if path.is_dir() or path.suffix == _PARQUET:
        count = 0
        for part in _parts(path) if path.is_dir() else [path]:
            with _parquet(part) as file:
                count += file.metadata.num_rows
        return count
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK_BYTES), b""))


def last_captured(path: str | os.PathLike[str]) -> StoredMessage | None:
    """
    The last message of a capture; None where there is none.

    Raises:
        DecodeError, ImportError, OSError: As :func:`read_capture` does.
    """
    path = Path(path)
    if not path.exists():
        return None
    if path.is_dir() or path.suffix == _PARQUET:
        parts = _parts(path) if path.is_dir() else [path]
        return next((row for row in map(_last_row, reversed(parts)) if row is not None), None)
    line = _last_line(path)
    return from_json_line(line) if line else None


def as_json_line(message: StoredMessage) -> bytes:
    """A message as :class:`JsonLinesCapture` writes it."""
    fields = as_fields(message.headers, message.data, message.subject, message.reply)
    origin = {"stream": message.stream, "sequence": message.sequence} if message.stream else {}
    return as_line({**fields, **origin, "timestamp": str(message.timestamp)})


def from_json_line(line: bytes) -> StoredMessage:
    """
    Read a line of :func:`as_json_line`.

    Raises:
        DecodeError: It is none.
    """
    fields = read_object(line)
    message = as_message(fields)
    stream, sequence, time = fields.get("stream", ""), fields.get("sequence", 0), fields.get("timestamp")
    if not isinstance(stream, str) or type(sequence) is not int or not isinstance(time, str):
        raise DecodeError(
            ErrorCode.INVALID_MESSAGE,
            "a captured message has a timestamp, and its stream and sequence where it has one",
        )
    pairs = message.headers.items()
    return StoredMessage(message.subject, message.reply, pairs, message.data, stream, sequence, Timestamp.parse(time))


def header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    """The header block of captured headers, bytes that are no UTF-8 included; ``b""`` without any."""
    if not headers:
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"NATS/1.0\r\n{lines}\r\n".encode("utf-8", "surrogateescape")


@contextmanager
def _opened(path: Path, if_exists: IfExists) -> Iterator[ParquetParts | JsonLinesCapture]:
    """The file of :func:`capture`."""
    if if_exists not in get_args(IfExists):
        raise EncodeError(
            ErrorCode.INVALID_MESSAGE, f"if_exists must be 'fail', 'append' or 'replace', got {preview(if_exists)}"
        )
    if if_exists == "fail" and path.exists():
        raise FileExistsError(
            f"{path} is there already: if_exists='append' goes on behind its last message, 'replace' replaces it"
        )
    if if_exists != "replace" or not path.exists():
        with open_capture(path) as file:
            yield file
        return
    _check_removable(path)
    beside, old = (path.with_name(f".{path.stem}.{os.getpid()}{kind}{path.suffix}") for kind in ("", ".old"))
    try:
        with open_capture(beside) as file:
            yield file
        path.rename(old)
        beside.rename(path)
        _remove(old)
    finally:
        _remove(beside)


def _check_removable(path: Path) -> None:
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    if foreign := [name for name in names if not _PART.fullmatch(name) and not _PARTIAL.fullmatch(name)]:
        raise FileExistsError(f"directory {path} has {foreign[0]}, which was not written by a capture")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


async def _in_thread(function: Callable[[_T], object], argument: _T) -> None:
    """Call a function in a thread; it has ended when this is left, by a cancellation too."""
    work = asyncio.ensure_future(asyncio.to_thread(function, argument))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _lock(descriptor: int, path: Path) -> bool:
    """
    Keep other captures out until the descriptor is closed; False where that cannot be had.

    Raises:
        BlockingIOError: There is another one.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(f"another capture is writing into {path}") from error
    except OSError:  # a file system without locks
        return False
    return True


def _parts(directory: Path) -> list[Path]:
    return sorted(directory.glob("part-*.parquet"))


def _read_parquet(path: Path) -> Iterator[StoredMessage]:
    with _parquet(path) as file:
        for batch in file.iter_batches(_ROWS_PER_READ):
            yield from map(_from_row, batch.to_pylist())


def _last_row(path: Path) -> StoredMessage | None:
    with _parquet(path) as file:
        if not file.metadata.num_rows:
            return None
        group = file.read_row_group(file.num_row_groups - 1)
    (row,) = group.slice(group.num_rows - 1).to_pylist()
    return _from_row(row)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """
    An open Parquet file.

    Raises:
        DecodeError: ``invalid-message``: it is none.
    """
    _schema()
    from pyarrow import lib, parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except lib.ArrowInvalid as error:
        raise DecodeError(ErrorCode.INVALID_MESSAGE, f"{path} is not Parquet: {error}") from error


def _from_row(row: dict[str, Any]) -> StoredMessage:
    try:
        pairs = [(header["key"], header["value"]) for header in row["headers"] or ()]
        return StoredMessage(
            row["subject"],
            row["reply"] or "",
            pairs,
            row["data"] or b"",
            row["stream"] or "",
            row["sequence"] or 0,
            Timestamp(row["timestamp"]),
        )
    except (LookupError, TypeError) as error:
        raise DecodeError(ErrorCode.INVALID_MESSAGE, f"a row is no captured message: {error!r}") from error


def _last_line(path: Path) -> bytes:
    """The last line that has its end; ``b""`` where there is none."""
    tail = b""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        while at and tail.count(b"\n") < 2:
            size = min(at, _BLOCK_BYTES)
            at = file.seek(at - size)
            tail = file.read(size) + tail
    lines = tail.splitlines(keepends=True)
    return next((line for line in reversed(lines) if line.endswith(b"\n")), b"")


def _cut_last_line(path: Path) -> None:
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            size = min(end, _BLOCK_BYTES)
            file.seek(end - size)
            block = file.read(size)
            if b"\n" in block:
                end += block.rindex(b"\n") + 1 - size
                break
            end -= size
        file.truncate(end)


def _schema() -> pa.Schema:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("a capture needs pyarrow: pip install 'ce-nats[arrow]'") from error
    header = pa.struct([("key", pa.string()), ("value", pa.string())])
    return pa.schema(
        [
            ("subject", pa.string()),
            ("reply", pa.string()),
            ("headers", pa.list_(header)),
            ("data", pa.binary()),
            ("stream", pa.string()),
            ("sequence", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
        ]
    )


def _table(messages: list[StoredMessage], schema: pa.Schema) -> tuple[pa.Table, int]:
    """Messages as an Arrow table, and how many header values had to be changed for it."""
    import pyarrow as pa

    def build(rows: list[StoredMessage]) -> pa.Table:
        columns = zip(zip(*rows, strict=True), schema.types, strict=True)
        return pa.table([pa.array(cells, kind) for cells, kind in columns], schema=schema)

    try:
        return build(messages), 0
    except UnicodeEncodeError:
        escaped = sum(value != escape_bytes(value) for message in messages for _, value in message.headers)
        return build([message._replace(headers=_in_unicode(message.headers)) for message in messages]), escaped


def _in_unicode(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(escape_bytes(name), escape_bytes(value)) for name, value in headers]


def escape_bytes(text: str) -> str:
    """Text with ``%FF`` in place of each byte that is no UTF-8 (a surrogate escape, PEP 383)."""
    return _SURROGATE_ESCAPE.sub(lambda found: f"%{ord(found.group()) & 0xFF:02X}", text)
