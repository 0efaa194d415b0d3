"""The result of a capture, and the lock against a second capture into the same place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """
    Totals of a capture.

    Attributes:
        messages: Number of messages written.
        data_bytes: Size of the payloads in bytes, uncompressed.
        escaped_values: Number of header values with bytes that are not UTF-8, which a Parquet string cannot contain.
            Each such byte is written as ``%XX``, so that a decoder still reports an error (U+FFFD is valid text).
    """

    messages: int = 0
    data_bytes: int = 0
    escaped_values: int = 0


def lock(descriptor: int, path: Path) -> bool:
    """
    Lock a file or directory against others until the descriptor is closed; return False if locks are not supported.

    Raises:
        BlockingIOError: Another process has the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(f"another process is writing to {path}") from error
    except OSError:  # a file system without locks
        return False
    return True
