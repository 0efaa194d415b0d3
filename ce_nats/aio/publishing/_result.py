"""Count published messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishResult:
    """
    Number of published messages.

    Attributes:
        messages: Messages that were acknowledged, or, on core NATS, written.
        duplicates: How many of them the stream already had, according to their ``Nats-Msg-Id``. Messages that were
            resent after a lost acknowledgement are not counted.
    """

    messages: int = 0
    duplicates: int = 0

    def __add__(self, other: PublishResult) -> PublishResult:
        return PublishResult(self.messages + other.messages, self.duplicates + other.duplicates)
