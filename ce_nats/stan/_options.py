"""Checks of options."""

from __future__ import annotations

import math

from ..errors import EncodeError, ErrorCode, preview


def check_count(name: str, value: object, least: int = 1) -> None:
    """
    Raises:
        EncodeError: ``invalid-message``: not an integer, or below ``least``.
    """
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
    _check(is_count, name, f"an integer, {least} or more", value)


def check_seconds(name: str, value: object) -> None:
    """
    Raises:
        EncodeError: ``invalid-message``: not a number, not above 0, or infinite.
    """
    is_time = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    _check(is_time, name, "a number of seconds above 0", value)


def check_kind(name: str, value: object, kind: type, wanted: str) -> None:
    """
    Raises:
        EncodeError: ``invalid-message``: not of this class.
    """
    _check(isinstance(value, kind), name, wanted, value)


def _check(is_fit: bool, name: str, wanted: str, value: object) -> None:
    if not is_fit:
        raise EncodeError(ErrorCode.INVALID_MESSAGE, f"{name} must be {wanted}, got {preview(value)}")
