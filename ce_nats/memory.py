"""A bounded memory of what was made of strings that come again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["Memory"]

# What a peer can have us remember: how many strings, and characters in each.
MAX_STRINGS: Final = 1024
MAX_LENGTH: Final = 256

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
