"""
Count acknowledged messages, and those of them that a stream had before.

The acknowledgements of a batch of fast ingest say how many messages the server has processed, duplicates included, and
the sequence of the last one that it has stored. The difference of two sequences is no count of what was stored: other
clients publish to the stream meanwhile, and it may be deleted and created again. So a batch has a known number of
duplicates only if the server has stored nothing of it, or if it has one message.
"""

from __future__ import annotations

from dataclasses import dataclass

from nats.js.api import PubAck


@dataclass(frozen=True, slots=True)
class PublishResult:
    """
    Number of published messages.

    Attributes:
        messages: Messages that were acknowledged, or, on core NATS, written.
        duplicates: How many of them the stream already had, according to their ``Nats-Msg-Id``; None if that is
            unknown, because some of them were acknowledged in a batch of several, of which others are new. Messages
            that were resent one by one after a lost acknowledgement are not counted.
        batched: How many of them were acknowledged in a batch of several.
        stripped: Messages of a replay that were sent without headers that instruct the server.
        markers: Messages of a replay that were not sent, because a server had written them.
    """

    messages: int = 0
    duplicates: int | None = 0
    batched: int = 0
    stripped: int = 0
    markers: int = 0

    def __add__(self, other: PublishResult) -> PublishResult:
        is_known = self.duplicates is not None and other.duplicates is not None
        duplicates = (self.duplicates or 0) + (other.duplicates or 0) if is_known else None
        return PublishResult(
            self.messages + other.messages,
            duplicates,
            self.batched + other.batched,
            self.stripped + other.stripped,
            self.markers + other.markers,
        )


class Tally:
    """
    Acknowledged messages so far.

    Attributes:
        messages: As for :class:`PublishResult`.
        batched: As for :class:`PublishResult`.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.batched = 0
        self._duplicates = 0
        # Messages of batches, of which it is not known whether they are duplicates.
        self._unknown = 0

    @property
    def duplicates(self) -> int | None:
        """As for :class:`PublishResult`."""
        return None if self._unknown else self._duplicates

    @property
    def result(self) -> PublishResult:
        """All numbers."""
        return PublishResult(self.messages, self.duplicates, self.batched)

    def add(self, ack: PubAck, attempts: int, *, in_batch: bool = False) -> None:
        """Count a message of which it is known whether it was a duplicate."""
        self.messages += 1
        self.batched += in_batch
        if ack.duplicate:
            if attempts == 1:
                self._duplicates += 1
            elif in_batch:  # this publisher may have stored it before
                self._unknown += 1

    def add_batch(self, count: int) -> None:
        """Count messages of a batch, some of which may be duplicates."""
        self.messages += count
        self.batched += count
        self._unknown += count

    def note_duplicates(self, count: int) -> None:
        """Set that messages of :meth:`add_batch`, which were sent once, were duplicates: the batch stored nothing."""
        self._unknown -= count
        self._duplicates += count
