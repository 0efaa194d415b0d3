"""How many items the loop hands out before threads ask for them."""

from __future__ import annotations

from typing import Final

# Time in which threads take the items that are read ahead. Longer, and a message would wait for a slow handler here
# although another process could handle it; shorter, and the loop would be woken more often.
_SECONDS: Final = 0.005


class ReadAhead:
    """
    Determines the number of items that are read ahead: as many as the threads take in a few milliseconds. Pure.

    The first item is read alone, and the number at most doubles each time. With slow handlers it is one.
    """

    def __init__(self, most: int, now: float) -> None:
        self._most = most
        self._limit = 1
        self._taken = 0
        self._time = now

    def limit(self, taken: int, now: float) -> int:
        """
        Return the number of items to read ahead from now on.

        ``taken``: Number of items that threads have taken so far.
        """
        seconds, count = now - self._time, taken - self._taken
        if count > 0 and seconds > 0:
            self._taken, self._time = taken, now
            self._limit = max(1, min(self._most, 2 * self._limit, int(count / seconds * _SECONDS)))
        return self._limit
