"""
Which of the messages on a subject did the server deny?

The error of the server has the subject, and nothing to identify the message. But the server processes the messages of a
connection in order, and permissions change between two of them: the denied ones are the last ones. So the errors are
counted until the server has processed everything that was sent, and nothing is sent to the subject meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..link._permissions import Denial
from ._pending_message import PendingMessage


class _Count:
    def __init__(self, sent: Sequence[PendingMessage]) -> None:
        self.sent = sent
        self.number = 1


class Denials:
    """
    Denied publishes whose messages are not known yet.

    Attributes:
        counts: Denials with the messages that they may refer to.
    """

    def __init__(self) -> None:
        self.counts: dict[Denial, _Count] = {}

    def __bool__(self) -> bool:
        return bool(self.counts)

    def holds(self, subject: str) -> bool:
        """Return whether nothing is to be sent to a subject."""
        return any(denial.is_publish(subject) for denial in self.counts)

    def add(self, denial: Denial) -> bool:
        """Count a further denial; return False if it is the first one of its subject."""
        count = self.counts.get(denial)
        if count is not None:
            count.number += 1
        return count is not None

    def begin(self, denial: Denial, sent: Sequence[PendingMessage]) -> None:
        """Count the first denial of a subject."""
        self.counts[denial] = _Count(sent)

    def end(self, denial: Denial) -> tuple[Sequence[PendingMessage], Sequence[PendingMessage]]:
        """Return the messages that the server has accepted, and those that it has denied."""
        count = self.counts.pop(denial)
        index = max(0, len(count.sent) - count.number)
        return count.sent[:index], count.sent[index:]

    def forget(self, denial: Denial) -> None:
        """Stop counting: the connection was lost, and what was sent is resent."""
        del self.counts[denial]
