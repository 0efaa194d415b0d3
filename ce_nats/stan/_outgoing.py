"""
Messages of a channel, with the headers with which they are published to a stream.

Payloads are unchanged. Each message gets the same headers as from the ``stan2js`` tool: ``Nats-Streaming-Channel``,
``-Sequence`` and ``-Timestamp``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..codec.binding import dedup_id, from_nats_message
from ..codec.mode import CONTENT_TYPE, STRUCTURED_TYPE, ContentMode
from ..codec.timestamp import Timestamp
from ..errors import DecodeError, EncodeError
from ..message import MSG_ID, NatsMessage, StoredMessage
from ._session import new_id
from .wire import MsgProto

CHANNEL: Final = "Nats-Streaming-Channel"
SEQUENCE: Final = "Nats-Streaming-Sequence"
TIMESTAMP: Final = "Nats-Streaming-Timestamp"


class MessageBuilder:
    """
    Builds messages for a stream from messages of a channel.

    Attributes:
        built: Sequences of the messages so far.
        events: Number of CloudEvents among them.
        duplicates: Number of CloudEvents with the source and the id of an earlier one.
    """

    def __init__(self, cluster: str, channel: str, subject: str) -> None:
        self.built: set[int] = set()
        self.events = 0
        self.duplicates = 0
        self._cluster = cluster
        self._channel = channel
        self._subject = subject
        self._ids: set[int] = set()

    def set_known_ids(self, ids: Iterable[int]) -> None:
        """Set the hashes of the ``Nats-Msg-Id`` values in the stream."""
        self._ids = set(ids)

    def build(self, message: MsgProto, *, again: bool) -> StoredMessage:
        """
        Return a message for the stream.

        Its ``Nats-Msg-Id`` is that of its event, or is composed of cluster, channel and sequence. An event gets a
        ``Content-Type``, by which every reader recognizes it, and no ``ce-`` headers.
        """
        at = Timestamp.from_nanoseconds(message.timestamp)
        headers = [(CHANNEL, self._channel), (SEQUENCE, str(message.sequence)), (TIMESTAMP, str(at))]
        identifier = f"{self._cluster}/{self._channel}/{message.sequence}"
        event_id = _event_id(message)
        is_event = event_id is not None
        is_duplicate = is_event and hash(event_id) in self._ids
        if is_event:
            headers.append((CONTENT_TYPE, STRUCTURED_TYPE))
            self._ids.add(hash(event_id))
        if again:
            identifier += f"/{new_id()}"
        elif event_id is not None and not is_duplicate:
            identifier = event_id
        headers.append((MSG_ID, identifier))
        if message.sequence not in self.built:
            self.built.add(message.sequence)
            self.events += is_event
            self.duplicates += is_duplicate
        return StoredMessage(self._subject, "", headers, message.data, "", message.sequence, at)


def _event_id(message: MsgProto) -> str | None:
    """Return the id for deduplication of the event in a message, or None if there is no event."""
    try:
        event = from_nats_message(
            NatsMessage(message.subject, message.data), mode=ContentMode.STRUCTURED, parse_data=False
        )
        return dedup_id(event)
    except (DecodeError, EncodeError):
        return None
