"""
Messages of a channel as they are published to a stream.

Payloads stay as they are. Each message gets the headers that the ``stan2js`` tool gives it as well,
``Nats-Streaming-Channel``, ``-Sequence`` and ``-Timestamp``.
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
    Builds messages for a stream out of those of a channel.

    Args:
        cluster: Name of the streaming server's cluster.
        channel: Name of the channel.
        subject: Subject for the messages.

    Attributes:
        built: Sequences of the messages so far.
        events: How many of them are CloudEvents.
        duplicates: How many of those have the source and the id of an earlier one.
    """

    def __init__(self, cluster: str, channel: str, subject: str) -> None:
        self.built: set[int] = set()
        self.events = 0
        self.duplicates = 0
        self._cluster = cluster
        self._channel = channel
        self._subject = subject
        self._ids: set[int] = set()

    def know(self, ids: Iterable[int]) -> None:
        """Set the hashes of the ``Nats-Msg-Id`` that the stream has."""
        self._ids = set(ids)

    def build(self, message: MsgProto, *, again: bool) -> StoredMessage:
        """
        A message as it is published.

        Its ``Nats-Msg-Id`` is that of its event, or else one of cluster, channel and sequence; an event gets a
        ``Content-Type``, with which every reader recognizes it, and no ``ce-`` headers.

        Args:
            message: Of the channel.
            again: Give it a ``Nats-Msg-Id`` that the stream cannot know.
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
    """The id for deduplication of the event in a message, or None where there is none."""
    try:
        event = from_nats_message(
            NatsMessage(message.subject, message.data), mode=ContentMode.STRUCTURED, parse_data=False
        )
        return dedup_id(event)
    except (DecodeError, EncodeError):
        return None
