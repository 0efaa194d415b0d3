"""Bytes of whatever a caller has them in."""

from __future__ import annotations

from ..errors import CeNatsError, ErrorCode, preview

__all__ = ["as_octets"]


def as_octets(value: object, what: str, fault: type[CeNatsError]) -> bytes:
    """
    The bytes of ``bytes``, a ``bytearray`` or a ``memoryview``.

    Args:
        value: What was given.
        what: What it is, for the error.
        fault: Class of the error.

    Raises:
        fault: ``invalid-message``.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value)
        except ValueError as error:  # a memoryview that was released
            raise fault(ErrorCode.INVALID_MESSAGE, f"{what} is no longer there: {error}") from error
    raise fault(ErrorCode.INVALID_MESSAGE, f"{what} is bytes, not {preview(value)}")
