"""Bytes of whatever a caller has them in."""

from __future__ import annotations

from ..errors import CeNatsError, ErrorCode, preview

__all__ = ["as_octets"]


def as_octets(value: object, what: str, error_class: type[CeNatsError]) -> bytes:
    """
    The bytes of ``bytes``, a ``bytearray`` or a ``memoryview``.

    Args:
        value: What was given.
        what: What it is, for the error.
        error_class: Class of the error.

    Raises:
        error_class: ``invalid-message``.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value)
        except ValueError as error:  # a memoryview that was released
            raise error_class(ErrorCode.INVALID_MESSAGE, f"{what} is no longer there: {error}") from error
    raise error_class(ErrorCode.INVALID_MESSAGE, f"{what} is bytes, not {preview(value)}")
