"""Read a sequence of fields from bytes."""

from __future__ import annotations

from ..errors import DecodeError, ErrorCode


class Reader:
    """Reader of fields in bytes, in order."""

    def __init__(self, octets: bytes, requirement: str) -> None:
        self._octets = octets
        self._requirement = requirement
        self._position = 0

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return len(self._octets) - self._position

    def take(self, size: int, what: str) -> bytes:
        """
        Read the next bytes.

        Raises:
            DecodeError: ``truncated-frame`` if fewer bytes are left.
        """
        if self.left < size:
            raise DecodeError(
                ErrorCode.TRUNCATED_FRAME,
                f"{what} must have {size} bytes, got {self.left} bytes",
                requirement=self._requirement,
            )
        start = self._position
        self._position += size
        return self._octets[start : self._position]

    def number(self, size: int, what: str) -> int:
        """
        Read the next unsigned little-endian integer of ``size`` bytes.

        Raises:
            DecodeError: ``truncated-frame``.
        """
        return int.from_bytes(self.take(size, what), "little")
