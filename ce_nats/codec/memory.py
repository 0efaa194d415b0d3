"""
Bounded memories: what was made of strings, and of lists of names, that come again and again.

What a peer can have us remember is limited in number and in length, whatever it sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

__all__ = ["Memory", "Names", "NamesMemory"]

MAX_STRINGS: Final = 1024
MAX_LENGTH: Final = 256
MAX_LISTS: Final = 256
MAX_NAMES: Final = 64
MAX_NAMES_LENGTH: Final = 1024

Names: TypeAlias = tuple[str, ...]

_T = TypeVar("_T")


class Memory(dict[str, _T], Generic[_T]):
    """
    What a function makes of a string, by subscript. What it raises is raised each time.

    A subclass of dict with ``__missing__()``, because a look-up of what is there is then all done in C.

    Args:
        make: The function; what it makes depends on the string alone, and is never changed.
    """

    def __init__(self, make: Callable[[str], _T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, text: str) -> _T:
        made = self._make(text)
        if len(text) <= MAX_LENGTH:
            if len(self) >= MAX_STRINGS:
                self.clear()
            self[text] = made
        return made


class NamesMemory(dict[Names, _T], Generic[_T]):
    """
    What a function makes of the names of attributes or headers, in their order, by subscript.

    Args:
        make: The function; what it makes depends on the names alone, and is never changed.
    """

    def __init__(self, make: Callable[[Names], _T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, names: Names) -> _T:
        made = self._make(names)
        if are_few(names):
            if len(self) >= MAX_LISTS:
                self.clear()
            self[names] = made
        return made


def are_few(names: Names) -> bool:
    """Whether names are short and few enough to be remembered, and strings of no other class, which could be equal."""
    return len(names) <= MAX_NAMES and {*map(type, names)} <= {str} and len("".join(names)) <= MAX_NAMES_LENGTH
