"""
Bounded caches of a function's results, keyed by a string or by a tuple of names.

The number of entries and the length of keys are limited, so that a peer cannot make the caches grow without bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

MAX_STRINGS: Final = 1024
MAX_STRING_LENGTH: Final = 256
# Tuples of names: entries of a cache, names in a tuple, and characters in these.
MAX_TUPLES: Final = 256
MAX_NAMES: Final = 64
MAX_NAMES_LENGTH: Final = 1024

Names: TypeAlias = tuple[str, ...]

_T = TypeVar("_T")


class BoundedCache(dict[str, _T], Generic[_T]):
    """
    Cache of a function of a string, looked up by subscript. Exceptions are not cached.

    It is a subclass of dict with ``__missing__()``, because the look-up of an existing key then runs entirely in C.
    """

    def __init__(self, make: Callable[[str], _T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, text: str) -> _T:
        made = self._make(text)
        if len(text) <= MAX_STRING_LENGTH:
            if len(self) >= MAX_STRINGS:
                self.clear()
            self[text] = made
        return made


class BoundedNamesCache(dict[Names, _T], Generic[_T]):
    """Cache of a function of the names of attributes or headers, in their order, looked up by subscript."""

    def __init__(self, make: Callable[[Names], _T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, names: Names) -> _T:
        made = self._make(names)
        if is_cacheable(names):
            if len(self) >= MAX_TUPLES:
                self.clear()
            self[names] = made
        return made


def is_cacheable(names: Names) -> bool:
    """Whether names may be cached: few, short, and of class str (a subclass can define its own equality)."""
    return len(names) <= MAX_NAMES and {*map(type, names)} <= {str} and len("".join(names)) <= MAX_NAMES_LENGTH
