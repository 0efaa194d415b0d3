"""What a capture wrote, and how other captures are kept out of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """
    What a capture wrote.

    Attributes:
        messages: Rows.
        data_bytes: Payload bytes, uncompressed.
        escaped_values: Header values with bytes that are not UTF-8, which a Parquet string cannot hold; each stands as
            ``%FF``, so that a decoder still finds what is wrong with an attribute (U+FFFD would pass for a character).
    """

    messages: int = 0
    data_bytes: int = 0
    escaped_values: int = 0


def lock(descriptor: int, path: Path) -> bool:
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
