"""
Which messages has this process handled, although the server may deliver them again? Pure: ``now`` is an argument.

An acknowledgement can be lost, and a redelivery can be on its way before the server has the acknowledgement: when the
ack deadline was not extended in time, because a handler has blocked the event loop, or the connection was lost.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, Final

from ...wire._ack_subject import AckSubject

# Messages of which something is remembered.
_MAX_REMEMBERED: Final = 16_384


class Handled:
    """The last messages that were handled or dead-lettered, as far as they may be delivered again."""

    def __init__(self) -> None:
        # Sequence in the stream, and time: a stream that was created again has the same sequences.
        self._messages: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._extended = self._late_after = math.inf

    def extend(self, now: float, interval: float) -> None:
        """Note that the ack deadlines are extended."""
        is_in_time = now - self._extended <= 2 * interval
        self._extended = now
        # Redeliveries before an extension that was late are read within the next interval.
        self._late_after = now + 2 * interval if is_in_time else now

    def is_late(self, now: float) -> bool:
        """Return whether messages that are acknowledged now may have been delivered again."""
        return now >= self._late_after

    def add(self, origin: AckSubject) -> None:
        """Remember the message of a delivery."""
        self._messages[origin.sequence, origin.timestamp] = None
        limit(self._messages)

    def __contains__(self, origin: AckSubject | None) -> bool:
        return origin is not None and (origin.sequence, origin.timestamp) in self._messages

    def __len__(self) -> int:
        return len(self._messages)


def limit(remembered: OrderedDict[Any, Any]) -> None:
    """Forget the first entry if there are too many."""
    if len(remembered) > _MAX_REMEMBERED:
        remembered.popitem(last=False)
