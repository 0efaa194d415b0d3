"""Check options."""

from __future__ import annotations

import math

from ..errors import EncodeError, ErrorCode, preview


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """
    Check that an option is an integer.

    Raises:
        EncodeError: ``invalid-message``: it is not an integer, or below ``minimum``.
    """
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
    _check(is_count, name, f"an integer, {minimum} or more", value)


def check_seconds(name: str, value: object) -> None:
    """
    Check that an option is a number of seconds.

    Raises:
        EncodeError: ``invalid-message``: it is not a number, not above 0, or infinite.
    """
    is_time = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    _check(is_time, name, "a number of seconds above 0", value)


def check_kind(name: str, value: object, kind: type, wanted: str) -> None:
    """
    Check that an option is an instance of a class.

    Raises:
        EncodeError: ``invalid-message``: it is not.
    """
    _check(isinstance(value, kind), name, wanted, value)


def _check(is_valid: bool, name: str, wanted: str, value: object) -> None:
    if not is_valid:
        raise EncodeError(ErrorCode.INVALID_MESSAGE, f"{name} must be {wanted}, got {preview(value)}")
