"""What a stream has of a channel, and how that compares with the channel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from nats.js import JetStreamContext

from ..aio._jetstream_api import nanoseconds
from ..aio.jetstream import read_stream
from ..codec.timestamp import Timestamp
from ..message import MSG_ID
from ._monitor import ChannelState
from ._outgoing import CHANNEL, SEQUENCE, TIMESTAMP

_MAX_DIGITS: Final = 20  # 64 bits


@dataclass
class MigrationResult:
    """
    What a migration has done.

    Attributes:
        channel: Name of the channel.
        stream: Name of the stream.
        expired: Messages that the channel had deleted by its limits, and that are not in the stream.
        messages: Messages of the channel, up to the last one when the migration began.
        stored: How many of these the stream has.
        repeated: How many of these are in the stream more than once.
        copied: Messages that were sent this time.
        events: How many of those are CloudEvents.
        duplicates: How many of those have the source and the id of an earlier one. They are kept, because their
            ``Nats-Msg-Id`` is made of channel and sequence.
        gaps: Ranges of sequences, ``(first, last)``, that are missing in the channel.
        consumers: The stream sequence at which each consumer begins; empty where the migration is not complete.
    """

    channel: str
    stream: str
    expired: int = 0
    messages: int = 0
    stored: int = 0
    repeated: int = 0
    copied: int = 0
    events: int = 0
    duplicates: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    consumers: dict[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether every message of the channel is in the stream exactly once."""
        return self.stored == self.messages and not self.repeated


@dataclass
class Inventory:
    """
    What a stream has of a channel.

    Attributes:
        sequences: Of the channel.
        repeated: Sequences that are there more than once.
        ids: Hashes of all ``Nats-Msg-Id`` of the stream.
        newest: The highest sequence, and its timestamp in nanoseconds since 1970.
        starts: Stream sequence of the first message at or behind a sequence of the channel.
        end: Stream sequence of the last message; 0 where there is none.
    """

    sequences: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)
    ids: set[int] = field(default_factory=set)
    newest: tuple[int, int] = (0, 0)
    starts: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def missing(self, first: int, last: int) -> list[int]:
        """Sequences of a range that are not there."""
        return [number for number in range(first, last + 1) if number not in self.sequences]

    def count(self, result: MigrationResult, began: ChannelState, now: ChannelState, sent: Collection[int]) -> None:
        """
        Compare the stream with the channel.

        Args:
            result: Gets the numbers.
            began: The channel when the migration began.
            now: The channel now.
            sent: Sequences that were copied.
        """
        # What did not come is gone, unless the server says that it has all of them.
        has_all = now.messages == now.last - now.first + 1
        gone = [
            number
            for number in self.missing(began.first, began.last)
            if number not in sent and not (has_all and number >= now.first)
        ]
        stored = [number for number in self.sequences if number <= began.last]
        result.copied = len(sent)
        result.gaps = _ranges(gone)
        result.messages = began.last - began.first + 1 - len(gone)
        result.stored = sum(number >= began.first for number in stored)
        result.repeated = len(self.repeated)
        result.expired = began.first - 1 - (len(stored) - result.stored)


async def take_inventory(js: JetStreamContext, stream: str, channel: str, starts: Iterable[int]) -> Inventory:
    """
    Read a stream. Its headers say what is of the channel; its subjects do not, because several channels may have one.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        channel: Name of the channel.
        starts: Sequences of the channel for which ``Inventory.starts`` is wanted.

    Raises:
        DeliveryError: As :func:`~ce_nats.aio.jetstream.read_stream` does.
    """
    inventory = Inventory()
    wanted = set(starts)
    async with aclosing(read_stream(js, stream)) as batches:
        async for batch in batches:
            for message in batch:
                headers = dict(message.headers)
                if identifier := headers.get(MSG_ID):
                    inventory.ids.add(hash(identifier))
                number = _sequence(headers.get(SEQUENCE, ""))
                if headers.get(CHANNEL) != channel or not number:
                    continue
                if number in inventory.sequences:
                    inventory.repeated.add(number)
                inventory.sequences.add(number)
                if number > inventory.newest[0]:
                    inventory.newest = number, nanoseconds(Timestamp.parse(headers.get(TIMESTAMP, "")))
                for start in wanted:
                    if number >= start:
                        inventory.starts.setdefault(start, message.sequence)
                inventory.end = message.sequence
    return inventory


def _sequence(text: str) -> int:
    """The number in a header, or 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges, both ends inclusive."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
