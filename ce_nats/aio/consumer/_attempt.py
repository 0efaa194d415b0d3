"""One attempt to handle a message of a consumer: what can be known about it."""

from __future__ import annotations

from nats.aio.client import Client
from nats.aio.msg import Msg

from ...codec.event import DecodedEvent
from ...errors import CeNatsError
from ...wire._ack_subject import AckSubject
from .._observer import Handling
from ..core._received import Received
from ._entry import Entry


class Attempt(Received):
    """
    One attempt to handle a message.

    Args:
        nc: The connection.
        entry: The message, which was taken.
        event: Its event, or None.
    """

    __slots__ = ("_ending", "_entry", "_handling", "_is_filtered", "_is_held", "_nc", "_retries", "_turn")

    # Not that of the base class: nats-py's message is only made if it is used.
    def __init__(self, nc: Client, entry: Entry, event: DecodedEvent | None) -> None:
        self._nc = nc
        self._entry = entry
        self._event = event
        self._turn = entry.turn
        self._retries = entry.retries
        self._handling: Handling | None = None  # the running block, if there is an observer
        self._ending = ""
        self._is_held = False  # it has failed because of an outage, and is handled again
        self._is_filtered = False
        self.error: CeNatsError | None = None

    def _note_filtered(self) -> None:
        """Note that a router has called no handler, because of a filter."""
        self._is_filtered = True

    @property
    def message(self) -> Msg:  # type: ignore[override]
        """Message of nats-py. A redelivery while it is queued or in its block replaces it."""
        return self._entry.as_message(self._nc)

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged, redelivered, dead-lettered or released."""
        return self._entry.has_ended(self._turn)

    @property
    def subject(self) -> str:
        """Subject that the message was published to."""
        return self._entry.raw[0].decode("utf-8", "replace")

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._entry.origin.stream

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._entry.origin.consumer

    @property
    def sequence(self) -> int:
        """Sequence in the stream."""
        return self._entry.sequence

    @property
    def deliveries(self) -> int:
        """Number of deliveries of the message, including this one, and of attempts without a redelivery."""
        return self._entry.deliveries + self._retries

    @property
    def _origin(self) -> AckSubject:
        return self._entry.origin
