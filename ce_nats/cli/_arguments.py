"""Checks of arguments and options, so that a command with invalid ones fails before it does anything."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final

import typer

from ..aio.check_up._rules import check_feature
from ..codec.subject_template import subject_of_text
from ..codec.timestamp import Timestamp
from ..errors import DecodeError, EncodeError, ErrorCode, preview
from ..subjects import check_pattern, check_subject

_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\ud800-\udfff]+")

_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_DURATION: Final = re.compile(f"(?:{_PART.pattern})+")
_DATE: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


class InputError(Exception):
    """
    An argument or option of the command line is not valid.

    Attributes:
        message: Error text, without the code.
        code: Error code.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_OPTION) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@contextmanager
def usage_errors() -> Iterator[None]:
    """
    Report invalid values on the command line as wrong usage.

    Raises:
        InputError: With the text of the error, and its code if it has one.
    """
    try:
        yield
    except (EncodeError, DecodeError) as error:
        raise InputError(error.message, error.code) from None
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None


def _callback(check: Callable[[str], object], unset: str | None) -> Callable[[Any], Any]:
    """Return a callback that checks the value or values of an argument or option, except the value ``unset``."""

    def callback(value: Any) -> Any:
        if value != unset:
            with usage_errors():
                for text in value if isinstance(value, list) else [value]:
                    check(text)
        return value

    return callback


def finite(parameter: typer.CallbackParam, value: float | None) -> float | None:
    """Return the value of an option, and refuse NaN, which passes the limits of typer, and infinities."""
    if value is not None and not math.isfinite(value):
        raise InputError(f"--{parameter.name} must be a finite number, got {value}")
    return value


def instant(option: str, text: str | None, now: datetime) -> datetime | None:
    """
    Return the instant that an option names: RFC 3339, a date in UTC, or the time before now, as ``1h30m``.

    Raises:
        InputError: It has another form.
    """
    if text is None:
        return None
    with suppress(OverflowError):
        if (before := _duration(text)) is not None:
            return now - before
        with suppress(DecodeError):
            return Timestamp.parse(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)
    wanted = "a time such as 2026-01-31T12:00:00Z, a date, or a duration such as 1h30m"
    raise InputError(f"--{option} must be {wanted}, got {preview(text)}")


def duration(option: str, text: str) -> timedelta:
    """
    Return the duration that an option names, as ``1h30m``.

    Raises:
        InputError: It is not a duration.
    """
    with suppress(OverflowError):
        if (value := _duration(text)) is not None:
            return value
    raise InputError(f"--{option} must be a duration such as 1h30m, got {preview(text)}")


def _duration(text: str) -> timedelta | None:
    if not _DURATION.fullmatch(text):
        return None
    parts = dict.fromkeys(_UNITS.values(), 0.0)
    for number, unit in _PART.findall(text):
        parts[_UNITS[unit]] += float(number)
    return timedelta(**parts)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise EncodeError(
            ErrorCode.INVALID_OPTION,
            f"a name of a stream or consumer must have no white space, '.', '*', '>', '/' or '\\', got {preview(name)}",
        )


def _check_target(text: str) -> None:
    if isinstance(subject_of_text(text), str):
        check_subject(text)


# Callbacks for typer: for subjects to publish to, templates of them, patterns to subscribe to, and names of streams and
# consumers. Those "if given" are for options whose default is "".
subject: Final = _callback(check_subject, None)
subject_if_given: Final = _callback(check_subject, "")
template: Final = _callback(_check_target, None)
template_if_given: Final = _callback(_check_target, "")
pattern: Final = _callback(check_pattern, None)
name: Final = _callback(_check_name, None)
feature: Final = _callback(check_feature, None)
