"""
Values for types of events, found by patterns.

A pattern is a type, or the beginning of types followed by ``*``. The longest pattern that matches wins, and a type
without ``*`` before all others.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from ..errors import EncodeError, preview
from .attributes import canonical

_T = TypeVar("_T")

_ANY_REST: Final = "*"


class TypePatterns(Generic[_T]):
    """Patterns and their values."""

    def __init__(self) -> None:
        self._exact: dict[str, _T] = {}
        self._prefixes: dict[str, _T] = {}
        self._lengths: list[int] = []  # of prefixes, in descending order

    @property
    def patterns(self) -> list[str]:
        """Patterns in the order in which they are tried: exact types, then prefixes, the longest first."""
        prefixes = sorted(self._prefixes, key=lambda prefix: (-len(prefix), prefix))
        return [*sorted(self._exact), *(prefix + _ANY_REST for prefix in prefixes)]

    @property
    def values(self) -> list[_T]:
        """Values of all patterns."""
        return [*self._exact.values(), *self._prefixes.values()]

    def get(self, pattern: str) -> _T | None:
        """Return the value of a pattern itself, or None."""
        prefix, is_prefix = _parsed(pattern)
        return (self._prefixes if is_prefix else self._exact).get(prefix)

    def add(self, pattern: str, value: _T) -> None:
        """
        Add a pattern, or replace its value.

        Raises:
            TypeError: The pattern is not a str.
            ValueError: It is empty, has ``*`` before its end or a character that types must not contain.
        """
        prefix, is_prefix = _parsed(pattern)
        (self._prefixes if is_prefix else self._exact)[prefix] = value
        self._lengths = sorted({len(one) for one in self._prefixes}, reverse=True)

    def match(self, kind: str) -> tuple[str, _T] | None:
        """Return the pattern that wins for a type, and its value; None if no pattern matches."""
        if kind in self._exact:
            return kind, self._exact[kind]
        for length in self._lengths:
            if kind[:length] in self._prefixes:  # shorter types are not in it
                return kind[:length] + _ANY_REST, self._prefixes[kind[:length]]
        return None


def _parsed(pattern: object) -> tuple[str, bool]:
    """Return a pattern without ``*``, and whether it had one."""
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a str, got {preview(pattern)}")
    prefix = pattern.removesuffix(_ANY_REST)
    if not pattern or _ANY_REST in prefix:
        raise ValueError(f"pattern must be a type, or the beginning of one and then '*', got {preview(pattern)}")
    try:
        canonical(prefix, "type") if prefix else None
    except EncodeError as error:
        raise ValueError(f"pattern must match types of events, got {preview(pattern)}: {error.message}") from error
    return prefix, prefix != pattern
