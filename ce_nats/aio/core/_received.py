"""
A received message and its event.

All received messages have the same members: ``event``, ``error``, ``message``, ``subject``, ``sequence`` and
``deliveries``. Deliveries of JetStream and NATS Streaming, :class:`~ce_nats.aio.Delivery` and
:class:`~ce_nats.stan.Delivery`, also have the methods ``ack``, ``nak`` and ``reject``.
"""

from __future__ import annotations

from nats.aio.client import Client
from nats.aio.msg import Msg

from ...codec.event import DecodedEvent
from ...errors import CeNatsError, DecodeError
from ...message import header_pairs
from ...wire._ack_subject import AckSubject, parse_ack_subject
from ..link._frame_splitter import RawMessage
from ..link._messages import message_of


class Received:
    """
    A received message and its event.

    Attributes:
        message: Message of nats-py: subject, reply, headers and payload as received.
        error: Error of decoding if the message has no event, else None.
    """

    __slots__ = ("_event", "error", "message")

    def __init__(self, message: Msg, event: DecodedEvent | None, error: CeNatsError | None = None) -> None:
        self.message = message
        self.error = error
        self._event = event

    @property
    def event(self) -> DecodedEvent:
        """
        The event.

        Raises:
            CeNatsError: ``error``, if there is no event. A handler that does not check ``error`` cannot mistake an
                invalid message for a valid one.
        """
        if self._event is None:
            assert self.error is not None
            raise self.error
        return self._event

    @property
    def subject(self) -> str:
        """Subject that the message was published to."""
        return self.message.subject

    @property
    def sequence(self) -> int:
        """Sequence in the stream; 0 for a message of core NATS."""
        origin = self._origin
        return 0 if origin is None else origin.sequence

    @property
    def deliveries(self) -> int:
        """Number of deliveries of the message, including this one; 1 for a message of core NATS."""
        origin = self._origin
        return 1 if origin is None else origin.deliveries

    @property
    def _origin(self) -> AckSubject | None:
        try:
            return parse_ack_subject(self.message.reply)
        except DecodeError:
            return None

    def _repr_html_(self) -> str:
        from ..._notebook import html_table

        return html_table("received", [("subject", self.subject), *self._rows()])

    def _rows(self) -> list[tuple[str, object]]:
        """Return rows for the event; if there is no event, for the error and the message."""
        from ..._notebook import event_rows, message_rows

        if self._event is not None:
            return event_rows(self._event)
        reason = "not decoded" if self.error is None else str(self.error)
        return [("error", reason), *message_rows(header_pairs(self.message.headers), self.message.data)]

    def __repr__(self) -> str:
        return f"Received({self.subject!r}, {self._event!r}, {self.error and str(self.error)!r})"


class RawReceived(Received):
    """A received message whose ``message`` is created from the raw message when it is first read."""

    __slots__ = ("_message", "_nc", "_raw", "_sid")

    def __init__(
        self, nc: Client, sid: int, raw: RawMessage, event: DecodedEvent | None, error: CeNatsError | None = None
    ) -> None:
        self._nc = nc
        self._sid = sid
        self._raw = raw
        self._message: Msg | None = None
        self._event = event
        self.error = error

    @property
    def message(self) -> Msg:  # type: ignore[override]
        """Message of nats-py: subject, reply, headers and payload as received."""
        if self._message is None:
            self._message = message_of(self._nc, self._sid, self._raw)
        return self._message

    @property
    def subject(self) -> str:
        """Subject that the message was published to."""
        return self._raw[0].decode("utf-8", "replace")
