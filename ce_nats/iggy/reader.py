"""Fields of little-endian bytes, one behind the other."""

from __future__ import annotations

from ..errors import DecodeError, ErrorCode

__all__ = ["Reader"]


class Reader:
    """
    Takes fields off the front of bytes.

    Args:
        octets: All bytes.
        requirement: Id of the requirement that says what the fields are.
    """

    def __init__(self, octets: bytes, requirement: str) -> None:
        self._octets = octets
        self._requirement = requirement
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._octets) - self._position

    def take(self, size: int, what: str) -> bytes:
        """
        The next bytes.

        Raises:
            DecodeError: ``truncated-frame`` where there are fewer.
        """
        if self.left < size:
            raise DecodeError(
                ErrorCode.TRUNCATED_FRAME,
                f"{what} has {size} bytes, and {self.left} are left",
                requirement=self._requirement,
            )
        start = self._position
        self._position += size
        return self._octets[start : self._position]

    def number(self, size: int, what: str) -> int:
        """
        The next unsigned integer of so many bytes.

        Raises:
            DecodeError: ``truncated-frame``.
        """
        return int.from_bytes(self.take(size, what), "little")
