"""
Record of deliveries that the server's counts do not explain, in the metadata of the consumer.

The server counts each delivery, whether the process was stopped in order, has crashed, or never called a handler. Two
things distinguish them, and later processes need both: messages that were released in order, and messages whose
handler was called, alone, and has not ended. They are written only about messages with many deliveries, so that a
consumer in ordinary operation writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec
from nats.aio.client import Client

from ...errors import DeliveryError, ErrorCode
from ._binding import METADATA_IMPOSSIBLE, Binding
from ._entry import unexplained

_log: Final = logging.getLogger(__name__)

METADATA_KEY: Final = "ce-nats-deliveries"
# Maximum number of entries of each kind. The server accepts 128 KiB of metadata; an entry has at most 64 bytes.
_MAX_ENTRIES: Final = 512
# Maximum number of messages in all entries together.
_MAX_MESSAGES: Final = 65_536


class _Text(msgspec.Struct, omit_defaults=True):
    """Form of the record in the metadata."""

    released: list[tuple[int, int, int]] = []
    begun: list[tuple[int, int]] = []


@dataclass(slots=True)
class Record:
    """
    What processes have recorded about messages, by sequence.

    Attributes:
        released: Number of deliveries of a message when it was released in order.
        begun: Number of times that a message was given to a handler, alone, by a process that then has neither settled
            nor released it.
    """

    released: dict[int, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Record:
        """Return the record in a text; an empty one if the text is not a record."""
        try:
            known = msgspec.json.decode(text, type=_Text) if text else _Text()
        except (msgspec.MsgspecError, UnicodeError):
            return cls()
        released = (
            (sequence, deliveries) for first, last, deliveries in known.released for sequence in range(first, last + 1)
        )
        return cls(dict(islice(released, _MAX_MESSAGES)), dict(known.begun[:_MAX_ENTRIES]))

    def text(self) -> str:
        """Return the form in the metadata; ``""`` if there are no entries."""
        runs: list[tuple[int, int, int]] = []
        for sequence, deliveries in sorted(self.released.items()):
            if runs and runs[-1][1:] == (sequence - 1, deliveries):
                runs[-1] = (runs[-1][0], sequence, deliveries)
            else:
                runs.append((sequence, sequence, deliveries))
        if not runs and not self.begun:
            return ""
        known = _Text(runs[:_MAX_ENTRIES], sorted(self.begun.items())[-_MAX_ENTRIES:])
        return msgspec.json.encode(known).decode()

    def remove(self, ack_floor: int, settled: Iterable[int]) -> None:
        """Remove messages that are settled: up to a sequence, and those of some sequences."""
        for entries in (self.released, self.begun):
            for sequence in [*settled, *(sequence for sequence in entries if sequence <= ack_floor)]:
                entries.pop(sequence, None)


class Recorder:
    """
    Reads and writes the record of a consumer.

    Attributes:
        record: The record as last read or written.
    """

    def __init__(self, nc: Client, binding: Binding) -> None:
        self._nc = nc
        self._binding = binding
        self.record = Record()
        self._begun: set[int] = set()  # by this object, and not ended
        self._settled: set[int] = set()  # their entries are removed with the next change
        self._limit = 1
        self._is_possible = True

    def open(self, metadata: Mapping[str, str] | None, limit: int) -> None:
        """Read the record."""
        self._limit = limit
        self.record = Record.parse((metadata or {}).get(METADATA_KEY, ""))

    async def begin(self, sequence: int, limit: float) -> bool:
        """
        Record that a message is given to a handler, alone.

        Returns False if it was begun ``limit`` times already; then nothing is recorded.

        Raises:
            DeliveryError: It cannot be recorded; the message may be handled.
        """
        if sequence in self._begun:
            return True
        is_over = False

        def change(record: Record) -> None:
            nonlocal is_over
            attempts = record.begun.get(sequence, 0)
            is_over = attempts >= limit
            if not is_over:
                record.begun[sequence] = attempts + 1

        self._begun.add(sequence)  # before the request, which may be cancelled after the server has received it
        await self._change(change, is_repeated=True)
        if is_over:
            self._begun.discard(sequence)
        return not is_over

    def settle(self, sequence: int) -> None:
        """Note that a message was acknowledged or dead-lettered."""
        if sequence in self._begun:
            self._begun.discard(sequence)
            self._settled.add(sequence)

    async def release(self, deliveries: Mapping[int, int]) -> None:
        """Record messages that are released, or redelivered for another reason, while the process continues."""
        ended = self._begun.intersection(deliveries)
        many = {
            sequence: number
            for sequence, number in deliveries.items()
            if unexplained(sequence, number, self.record.released) >= self._limit
        }
        self._begun -= ended
        if not (ended or many) or not self._nc.is_connected:
            return

        def change(record: Record) -> None:
            record.released.update(many)
            for sequence in ended:
                record.begun.pop(sequence, None)

        try:
            await self._change(change, is_repeated=False)
        except DeliveryError as error:  # later processes are more careful than needed
            _log.debug("%s: %s", self._binding.target, error)

    async def _change(self, change: Callable[[Record], None], *, is_repeated: bool) -> None:
        """Read the present record, change it, and write it: other clients may have changed it."""
        if not self._is_possible:
            text = f"{self._binding.target}: its metadata cannot be written"
            raise DeliveryError(ErrorCode.PERMISSION_DENIED, text)
        settled = frozenset(self._settled)

        def changed(text: str, ack_floor: int) -> str:
            self.record = record = Record.parse(text)
            record.remove(ack_floor, settled)
            change(record)
            return record.text()

        try:
            await self._binding.annotate(METADATA_KEY, changed, is_repeated=is_repeated)
        except DeliveryError as error:
            self._is_possible = error.code not in METADATA_IMPOSSIBLE
            raise
        self._settled -= settled
