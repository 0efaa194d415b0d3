"""Find which messages of a channel a stream has, and compare the stream with the channel."""

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
    The result of a migration.

    Attributes:
        channel: Name of the channel.
        stream: Name of the stream.
        expired: Number of messages that the channel had deleted by its limits, and that are not in the stream.
        messages: Number of messages of the channel, up to the last one when the migration initial.
        stored: Number of these that are in the stream.
        repeated: Number of these that are in the stream more than once.
        copied: Number of messages that this run has sent.
        events: Number of CloudEvents among the sent messages.
        duplicates: Number of sent CloudEvents with the source and the id of an earlier one. They are kept, because
            their ``Nats-Msg-Id`` is composed of channel and sequence.
        gaps: Ranges of sequences, ``(first, last)``, that are missing in the channel.
        consumers: Stream sequence at which each consumer begins; empty if the migration is not complete.
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
    The messages of a channel that are in a stream.

    Attributes:
        sequences: Their sequences in the channel.
        repeated: Sequences that are in the stream more than once.
        ids: Hashes of all ``Nats-Msg-Id`` values in the stream.
        newest: Highest sequence, and its timestamp in nanoseconds since 1970.
        starts: By sequence of the channel: stream sequence of the first message with that or a later one.
        end: Stream sequence of the last message; 0 if there is none.
    """

    sequences: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)
    ids: set[int] = field(default_factory=set)
    newest: tuple[int, int] = (0, 0)
    starts: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def missing(self, first: int, last: int) -> list[int]:
        """Return the sequences of a range that are not in the stream."""
        return [number for number in range(first, last + 1) if number not in self.sequences]

    def count(self, result: MigrationResult, initial: ChannelState, now: ChannelState, sent: Collection[int]) -> None:
        """Compare the stream with the channel."""
        # Messages that were not delivered have expired, unless by its state the channel has no gaps.
        has_all = now.messages == now.last - now.first + 1
        expired = [
            number
            for number in self.missing(initial.first, initial.last)
            if number not in sent and not (has_all and number >= now.first)
        ]
        stored = [number for number in self.sequences if number <= initial.last]
        result.copied = len(sent)
        result.gaps = _ranges(expired)
        result.messages = initial.last - initial.first + 1 - len(expired)
        result.stored = sum(number >= initial.first for number in stored)
        result.repeated = len(self.repeated)
        result.expired = initial.first - 1 - (len(stored) - result.stored)


async def take_inventory(js: JetStreamContext, stream: str, channel: str, starts: Iterable[int]) -> Inventory:
    """Read a stream. Headers identify the messages of the channel, because several channels may share a subject."""
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
    """Return the number in a header, or 0 if it is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as ranges, both ends inclusive."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
