"""Items that an event loop puts into a queue, and that other threads take."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, NoReturn, TypeVar

_END: Final = object()
_NO_ITEM: Final = object()

T = TypeVar("T")


class _Hand(threading.local):
    """Items that a thread has taken and not returned: one at most."""

    def __init__(self) -> None:
        self.items: list[Any] = []


class ThreadQueue(Generic[T]):
    """
    Queue between an event loop and other threads, which may be interrupted at any time.

    Ctrl-C raises KeyboardInterrupt in the main thread after any call, also after one that has just removed an item from
    a queue. So an item moves within one call from the queue to a list of the thread, and leaves this list when it is
    returned to the program: see :meth:`take`.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._ready = iter(self._items.get_nowait, _NO_ITEM)
        self._hand = _Hand()
        self._received = 0
        self._is_ended = False
        self._error: Exception | None = None

    # --- In the loop --------------------------------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        """Number of items that threads have taken."""
        return self._received - self._items.qsize()

    def put(self, item: T) -> None:
        """Add an item."""
        self._received += 1
        self._items.put(item)

    def give_back(self) -> list[T]:
        """Return the items that no thread has taken. Threads continue with later items."""
        items: list[T] = []
        with suppress(Empty):
            while True:
                item = self._items.get_nowait()
                if item is _END:
                    self._items.put(_END)
                    break
                items.append(item)
        self._received -= len(items)
        return items

    def end(self, error: Exception | None = None) -> None:
        """Add the end, with an error if there is one: threads that have taken all items find it."""
        self._error = self._error or error
        self._items.put(_END)

    # --- In any thread ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._items.qsize()

    def refuse(self) -> None:
        """From now on, threads find the end, also before items that wait; one that waits now does so until the end."""
        self._is_ended = True

    def take(self) -> list[T]:
        """
        Take the next item, and return it in a list, which is empty if there is none now.

        As long as the item is in the list, the next call in this thread returns it again. The caller removes it with
        ``del``, and returns it: Python raises KeyboardInterrupt after calls (of ``pop()``, for instance), function
        entries and jumps, so none of them may come between.

        Raises:
            StopIteration: There are no further items.
            Exception: The error with which the queue has ended.
        """
        hand = self._hand.items
        if self._is_ended:
            self._raise_end(hand)
        if not hand:
            try:
                hand.extend(islice(self._ready, 1))  # one call, which is not interrupted after get_nowait()
            except Empty:
                return hand
        if hand[0] is _END:
            self._pass_end(hand)
        return hand

    def wait(self, timeout: float | None) -> list[T]:
        """
        As :meth:`take`; wait until there is an item.

        Raises:
            StopIteration: There is no item for ``timeout`` seconds, either.
        """
        hand = self._hand.items
        get = partial(self._items.get, timeout=timeout)
        try:
            hand.extend(islice(iter(get, _NO_ITEM), 1))
        except Empty:
            raise StopIteration from None
        if hand[0] is _END:
            self._pass_end(hand)
        return hand

    def _pass_end(self, hand: list[T]) -> NoReturn:
        self._items.put(_END)  # for other threads, and for later calls
        self._raise_end(hand)

    def _raise_end(self, hand: list[T]) -> NoReturn:
        hand.clear()
        if self._error is not None:
            raise self._error
        raise StopIteration
