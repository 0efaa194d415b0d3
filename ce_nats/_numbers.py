"""Check numeric arguments: NaN, infinities, booleans and text are refused, with the name of the argument."""

from __future__ import annotations

import math
import operator
from typing import Any, Final

from .errors import preview

# The server stores times in nanoseconds, as 64-bit integers: 292 years. It is also the longest wait of a thread.
MAX_SECONDS: Final = 2**63 // 10**9


def is_number(value: Any, minimum: float, maximum: float = math.inf) -> bool:
    """Return whether a value is a finite number in a range; booleans are not numbers."""
    if isinstance(value, (bool, str, bytes)):
        return False
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return math.isfinite(number) and minimum <= number <= maximum


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer; booleans are not integers."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def check_number(name: str, value: float, minimum: float, maximum: float = math.inf) -> None:
    """
    Check that an argument is a finite number in a range.

    Raises:
        ValueError: It is not.
    """
    if not is_number(value, minimum, maximum):
        wanted = f"from {minimum} to {maximum}" if maximum < math.inf else f"{minimum} or more"
        raise ValueError(f"{name} must be a number {wanted}, got {preview(value)}")


def check_seconds(name: str, value: float, minimum: float = 0) -> None:
    """
    Check that an argument is a number of seconds, at most 292 years.

    Raises:
        ValueError: It is not.
    """
    if not is_number(value, minimum, MAX_SECONDS):
        text = f"{name} must be a number of seconds from {minimum} to {MAX_SECONDS}"
        raise ValueError(f"{text}, got {preview(value)}")


def check_optional_seconds(name: str, value: float | None) -> None:
    """
    Check that an argument is None, or a number of seconds, 0 or more.

    Raises:
        ValueError: It is not.
    """
    if value is not None:
        check_seconds(name, value)


def check_positive(name: str, value: float) -> None:
    """
    Check that an argument is a finite number above 0.

    Raises:
        ValueError: It is not.
    """
    if not is_number(value, -math.inf):
        raise ValueError(f"{name} must be a number, got {preview(value)}")
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {preview(value)}")


def check_integer(name: str, value: int) -> None:
    """
    Check that an argument is an integer.

    Raises:
        ValueError: It is not.
    """
    if not is_integer(value):
        raise ValueError(f"{name} must be an integer, got {preview(value)}")


def check_count(name: str, value: int, minimum: int = 1) -> None:
    """
    Check that an argument is an integer, ``minimum`` or more.

    Raises:
        ValueError: It is not.
    """
    check_integer(name, value)
    if value < minimum:
        raise ValueError(f"{name} must be {minimum} or more, got {preview(value)}")
