"""Convert bytes-like arguments to bytes."""

from __future__ import annotations

from ..errors import CeNatsError, ErrorCode, preview


def as_octets(value: object, what: str, error_class: type[CeNatsError]) -> bytes:
    """
    Return the bytes of ``bytes``, a ``bytearray`` or a ``memoryview``.

    ``error_class``: Class of the error to raise.

    Raises:
        error_class: ``invalid-message``.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value)
        except ValueError as error:  # a memoryview that was released
            raise error_class(ErrorCode.INVALID_MESSAGE, f"{what} must be readable bytes: {error}") from error
    raise error_class(ErrorCode.INVALID_MESSAGE, f"{what} must be bytes, got {preview(value)}")
