"""Write, continue, replace, read and count captures, by path."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from .._parquet import count_rows, part_files
from ..errors import DeliveryError, ErrorCode, preview
from ..message import StoredMessage
from ._json_lines import BLOCK_BYTES, JsonLinesCapture, last_line, read_json_lines
from ._parquet import PART, PARTIAL, ParquetParts, last_row, read_parquet
from ._result import CaptureResult

_log: Final = logging.getLogger(__name__)

IfExists: TypeAlias = Literal["fail", "append", "replace"]
_T = TypeVar("_T")
_PARQUET: Final = ".parquet"
_JSON_LINES: Final = (".jsonl", ".ndjson")


def open_capture(path: str | os.PathLike[str]) -> ParquetParts | JsonLinesCapture:
    """
    Return a capture for a path, to be started or continued: JSON lines or Parquet, by the suffix.

    Args:
        path: A path that ends in ``.parquet``, ``.jsonl`` or ``.ndjson``.

    Raises:
        ValueError: The suffix is another one.
        ImportError: The capture is Parquet, and pyarrow is not installed.
    """
    suffix = Path(path).suffix
    if suffix == _PARQUET:
        return ParquetParts(path)
    if suffix in _JSON_LINES:
        return JsonLinesCapture(path)
    raise ValueError(f"path must end in .parquet, .jsonl or .ndjson, got {os.fspath(path)!r}")


async def write_capture(
    batches: AsyncIterable[Sequence[StoredMessage]], path: str | os.PathLike[str], *, if_exists: IfExists = "fail"
) -> CaptureResult:
    """
    Write all batches to a capture (:class:`ParquetParts` or :class:`JsonLinesCapture`).

        await write_capture(read_stream(js, "ORDERS"), "orders.parquet")

    The format is that of ``ce-nats capture``. Both can continue captures of each other, also after the process was
    killed:

        await write_capture(read_stream(js, "ORDERS"), "orders.parquet", if_exists="append")

    After an error, for example because the stream removed messages before they were read, the capture has the messages
    written before (:func:`count_captured`), except with ``if_exists="replace"``.

    Args:
        batches: From ``ce_nats.aio.jetstream.read_stream``.
        path: A directory whose name ends in ``.parquet``, or a file whose name ends in ``.jsonl`` or ``.ndjson``.
        if_exists: What to do if ``path`` exists. ``"fail"`` raises FileExistsError. ``"append"`` continues after the
            last message; messages of the stream up to that one are skipped (to avoid reading them, use
            ``read_stream(js, "ORDERS", start=last_captured(path).sequence + 1)``). ``"replace"`` writes a new capture
            in the same directory, and removes the old one when the new one is complete; after an error the old one is
            kept.

    Returns:
        Totals of the messages that this call wrote.

    Raises:
        FileExistsError: ``path`` exists, and ``if_exists`` is ``"fail"``; or it was not written by a capture, and is
            therefore neither continued nor removed.
        NotADirectoryError: ``path`` is a single Parquet file, which cannot be continued.
        BlockingIOError: Another capture is writing to ``path``.
        ValueError: The suffix of ``path``, or ``if_exists``, is not one of these.
        DeliveryError: ``stream-mismatch``: the capture has messages of another stream, or of one that was deleted and
            created again.
        ImportError: The capture is Parquet, and pyarrow is not installed.
    """
    with _opened(Path(path), if_exists) as file:
        async for batch in batches:
            # In a thread, so that the event loop can serve the connection while a row group is compressed.
            await _in_thread(file.write, messages_after(file.last, batch))
    return file.captured


def messages_after(last: StoredMessage | None, batch: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """
    Return the messages of a batch that come after the last message of a capture.

    Args:
        last: The last message of the capture, or None.
        batch: Messages of one stream in order of sequence, or messages without a stream.

    Raises:
        DeliveryError: ``stream-mismatch``: the capture has messages of another stream, or of one that was deleted and
            created again.
    """
    if last is None or not batch:
        return batch
    check_same_stream(last, batch[0].stream)
    if not last.stream:
        return batch
    if any(_is_of_recreated_stream(last, message) for message in batch):
        raise DeliveryError(
            ErrorCode.STREAM_MISMATCH,
            f"stream {last.stream} must have the messages of the capture, which ends at sequence {last.sequence}, "
            "got other messages: the stream was deleted and created again",
        )
    return [message for message in batch if message.sequence > last.sequence]


def _is_of_recreated_stream(last: StoredMessage, message: StoredMessage) -> bool:
    # Timestamps ascend in a stream. Parquet truncates them to microseconds, the precision of datetime's comparison.
    if message.sequence == last.sequence:
        return message.timestamp != last.timestamp
    return message.sequence < last.sequence and message.timestamp > last.timestamp


def check_same_stream(last: StoredMessage, stream: str) -> None:
    """
    Check that messages for a capture are from its stream.

    Args:
        last: The last message of the capture.
        stream: Name of the stream; ``""`` for messages without a stream.

    Raises:
        DeliveryError: ``stream-mismatch``.
    """
    if last.stream != stream:
        old, new = (f"of stream {name}" if name else "without a stream" for name in (last.stream, stream))
        raise DeliveryError(ErrorCode.STREAM_MISMATCH, f"messages of this capture must be {old}, got messages {new}")


def read_capture(path: str | os.PathLike[str]) -> Iterator[StoredMessage]:
    """
    Yield the messages of a capture in order: of a directory of Parquet files, a single one, or JSON lines.

    An incomplete last line is ignored. Timestamps in Parquet have microseconds, and escaped values are not unescaped.

    Raises:
        DecodeError: A line is not a message; ``invalid-message`` for Parquet that is damaged or is not a capture. The
            text has the file, and the number of the line, from 1, or of the row of Parquet, from 0.
        ImportError: The capture is Parquet, and pyarrow is not installed.
        OSError: A file cannot be read.
    """
    path = Path(path)
    if _is_parquet(path):
        for part in part_files(path):
            yield from read_parquet(part)
    else:
        yield from read_json_lines(path)


def count_captured(path: str | os.PathLike[str]) -> int:
    """
    Return the number of messages that :func:`read_capture` yields, from the metadata of Parquet or by counting lines.

    Raises:
        DecodeError, ImportError, OSError: As :func:`read_capture` does.
    """
    path = Path(path)
    if _is_parquet(path):
        return sum(map(count_rows, part_files(path)))
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK_BYTES), b""))


def last_captured(path: str | os.PathLike[str]) -> StoredMessage | None:
    """
    Return the last message of a capture, or None if it does not exist or is empty.

    Raises:
        DecodeError, ImportError, OSError: As :func:`read_capture` does.
    """
    path = Path(path)
    if not path.exists():
        return None
    return last_row(part_files(path)) if _is_parquet(path) else last_line(path)


def _is_parquet(path: Path) -> bool:
    return path.is_dir() or path.suffix == _PARQUET


@contextmanager
def _opened(path: Path, if_exists: IfExists) -> Iterator[ParquetParts | JsonLinesCapture]:
    """Open the capture of :func:`write_capture`; for ``if_exists="replace"``, replace the old one at the end."""
    if if_exists not in get_args(IfExists):
        raise ValueError(f"if_exists must be 'fail', 'append' or 'replace', got {preview(if_exists)}")
    if if_exists == "fail" and path.exists():
        raise FileExistsError(
            f"{path} exists: use if_exists='append' to continue after its last message, or 'replace' to replace it"
        )
    if if_exists != "replace" or not path.exists():
        with open_capture(path) as file:
            yield file
        return
    _check_removable(path)
    new, old = (path.with_name(f".{path.stem}.{os.getpid()}{kind}{path.suffix}") for kind in ("", ".old"))
    try:
        with open_capture(new) as file:
            yield file
        path.rename(old)
        new.rename(path)
        _remove(old)
    finally:
        _remove(new)


def _check_removable(path: Path) -> None:
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    if foreign := [name for name in names if not PART.fullmatch(name) and not PARTIAL.fullmatch(name)]:
        raise FileExistsError(f"directory {path} has {foreign[0]}, which was not written by a capture")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


async def _in_thread(function: Callable[[_T], object], argument: _T) -> None:
    """Call a function in a thread, and wait until it returns, even if this task is cancelled."""
    work = asyncio.ensure_future(asyncio.to_thread(function, argument))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:  # a scope of anyio cancels more than once
            cancelled = error
    if cancelled is None:
        work.result()
        return
    if failure := work.exception():
        _log.error("a capture was cancelled, and its last batch was not written", exc_info=failure)
    raise cancelled
