"""A message that was delivered to a consumer, and where it is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from nats.aio.client import Client
from nats.aio.msg import Msg

from ...codec.event import DecodedEvent
from ...wire._ack_subject import AckSubject, parse_ack_subject
from ..link._frame_splitter import RawMessage
from ..link._messages import message_of


class Place(Enum):
    """Where a message is."""

    INBOX = "inbox"  # it has arrived, and its key is not known
    BLOCKED = "blocked"  # an earlier message of its key is not settled
    READY = "ready"  # it may be taken
    SUSPECT = "suspect"  # it may be taken when no other message is handled
    TAKEN = "taken"  # the program handles it
    DELAYED = "delayed"  # it waits for its next attempt
    DROPPED = "dropped"  # no handler has it: the program has dropped its delivery, or it is being released
    PENDING = "pending"  # it was handled, and its acknowledgement is not written
    SETTLED = "settled"

    # Identity, instead of the hash of the name: a place is looked up for each message.
    __hash__ = object.__hash__


# Module constants, because member look-up on an enum class is slow in Python 3.11.
_TAKEN, _PENDING, _SETTLED = Place.TAKEN, Place.PENDING, Place.SETTLED


class Entry:
    """
    A message that was delivered to a consumer. Only the ledger changes it.

    Attributes:
        arrival: Number of deliveries on arrival that the message may have caused, by ending a process; not increased by
            redeliveries while it is in flight.
        place: Where it is.
        turn: Number of times that it was taken, or prepared for another attempt: it identifies the present delivery.
        retries: Number of earlier attempts since its arrival, without a redelivery.
        has_started: Whether the block of its present attempt was entered.
        has_key: False if its key is not known, because the function for it has failed.
        event: The decoded event, if it was decoded before it was taken.
        message: Message of nats-py, if the program has used it; else None: see :meth:`as_message`.
    """

    __slots__ = (
        *("arrival", "deliveries", "event", "has_key", "has_started", "message", "place", "raw", "retries"),
        *("sequence", "turn"),
    )

    def __init__(self, sequence: int, deliveries: int, raw: RawMessage) -> None:
        self.sequence = sequence
        self.deliveries = self.arrival = deliveries
        self.raw = raw
        self.place = Place.READY
        self.turn = self.retries = 0
        self.has_started = False
        self.has_key = True
        self.event: DecodedEvent | None = None
        self.message: Msg | None = None

    @property
    def origin(self) -> AckSubject:
        """Metadata of the latest delivery."""
        return parse_ack_subject(self.raw[1].decode())

    @property
    def is_settled(self) -> bool:
        """Whether it is settled, and possibly the server not notified yet."""
        return self.place is _PENDING or self.place is _SETTLED

    def is_current(self, turn: int) -> bool:
        """Return whether the program handles it, in this turn."""
        return self.turn == turn and self.place is _TAKEN

    def has_ended(self, turn: int) -> bool:
        """Return whether this turn has ended: by settlement, or because of another attempt."""
        place = self.place
        return place is _PENDING or place is _SETTLED or self.turn != turn

    def as_message(self, nc: Client) -> Msg:
        """Return the message of nats-py, which is made once."""
        if self.message is None:
            self.message = message_of(nc, 0, self.raw)
        return self.message

    def replace(self, later: Entry) -> None:
        """Replace the message by a later delivery of it."""
        self.raw, self.deliveries, self.message = later.raw, later.deliveries, None

    def __repr__(self) -> str:
        return f"Entry({self.sequence}, deliveries={self.deliveries}, {self.place.value})"


def unexplained(sequence: int, deliveries: int, released: Mapping[int, int]) -> int:
    """Return the number of deliveries of a message after it was last released in order, 1 or more."""
    return max(1, deliveries - released.get(sequence, 0))
