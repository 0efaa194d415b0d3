"""
Patterns of LIKE, matched in linear time.

CESQL 3.4.3: ``%`` is any number of characters, ``_`` is one, both can be escaped with a backslash; any other character,
a backslash included, is itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

# Elements of a pattern that are not characters.
ANY: Final = "%"
ONE: Final = "_"

_TOKEN: Final = re.compile(r"\\[%_]|.", re.DOTALL)
# A piece of a pattern between two "%": its characters, None for "_".
_Piece: TypeAlias = list[str | None]


def tokens(pattern: str) -> list[str]:
    r"""Return the elements of a pattern: ``%``, ``_``, or a backslash and the character that is meant."""
    return [found if found in (ANY, ONE) else "\\" + found[-1] for found in _TOKEN.findall(pattern)]


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a whole string matches a pattern."""
    pieces: list[_Piece] = [[]]
    for token in tokens(pattern):
        if token == ANY:
            pieces.append([])
        else:
            pieces[-1].append(None if token == ONE else token[-1])
    first, *middle, last = pieces if len(pieces) > 1 else [*pieces, []]
    if len(pieces) == 1:
        if None not in first:
            return "".join(filter(None, first)).__eq__
        return lambda text: len(text) == len(first) and _is_at(first, text, 0)
    shortest = len(first) + len(last)
    if not any(middle) and None not in first + last:
        start, end = "".join(filter(None, first)), "".join(filter(None, last))
        if not end:
            return lambda text: text.startswith(start)
        return lambda text: len(text) >= shortest and text.startswith(start) and text.endswith(end)
    finders = [_finder(piece) for piece in middle if piece]

    def matches(text: str) -> bool:
        limit = len(text) - len(last)
        if len(text) < shortest or not _is_at(first, text, 0) or not _is_at(last, text, limit):
            return False
        position = len(first)
        for find in finders:
            position = find(text, position, limit)
            if position < 0:
                return False
        return True

    return matches


def _is_at(piece: _Piece, text: str, position: int) -> bool:
    """Whether a piece matches at a position; the text is long enough."""
    return all(wanted is None or text[position + index] == wanted for index, wanted in enumerate(piece))


def _finder(piece: _Piece) -> Callable[[str, int, int], int]:
    """Return a function that finds a piece between two positions, and returns the position after it, or -1."""
    length = len(piece)
    if None not in piece:
        word = "".join(filter(None, piece))

        def find(text: str, position: int, limit: int) -> int:
            found = text.find(word, position, limit)
            return -1 if found < 0 else found + length

        return find
    # Shift-and: bit n of the state says that the last n + 1 characters match the beginning of the piece.
    anywhere = sum(1 << index for index, wanted in enumerate(piece) if wanted is None)
    masks: dict[str, int] = {}
    for index, wanted in enumerate(piece):
        if wanted is not None:
            masks[wanted] = masks.get(wanted, anywhere) | 1 << index
    done = 1 << (length - 1)

    def scan(text: str, position: int, limit: int) -> int:
        state = 0
        for index in range(position, limit):
            state = (state << 1 | 1) & masks.get(text[index], anywhere)
            if state & done:
                return index + 1
        return -1

    return scan
