"""
Reply subjects of messages that a consumer of JetStream delivers: where they are acknowledged, and which ones they are.

ADR-15: ``$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<nanoseconds>.<pending>``, or
with domain and account hash in front of the stream and, mostly, a random token at the end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import DecodeError, ErrorCode, preview

__all__ = ["ACK_PREFIX", "AckSubject", "ack_subject", "parse_ack_subject"]

ACK_PREFIX: Final = "$JS.ACK."

_TOKENS: Final = 9
_TOKENS_WITH_DOMAIN: Final = 11


class AckSubject(NamedTuple):
    """
    A message, as its reply subject tells of it.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer.
        deliveries: How often it was delivered, this time included.
        sequence: Sequence in the stream.
        consumer_sequence: Number of the delivery, of all that the consumer has made.
        timestamp: When the stream stored it, in nanoseconds since 1970, UTC.
        pending: Messages that the consumer has not delivered yet.
    """

    stream: str
    consumer: str
    deliveries: int
    sequence: int
    consumer_sequence: int
    timestamp: int
    pending: int


def parse_ack_subject(subject: str) -> AckSubject:
    """
    Read a reply subject.

    Raises:
        DecodeError: ``invalid-subject``: it has another form.
    """
    tokens = subject.split(".")
    first = 2 if len(tokens) == _TOKENS else 4
    if (len(tokens) == _TOKENS or len(tokens) >= _TOKENS_WITH_DOMAIN) and subject.startswith(ACK_PREFIX):
        stream, consumer, *numbers = tokens[first : first + 7]
        try:
            return AckSubject(stream, consumer, *map(int, numbers))
        except ValueError:
            pass
    raise DecodeError(
        ErrorCode.INVALID_SUBJECT, f"reply subject must be {ACK_PREFIX}<stream>.<consumer>..., got {preview(subject)}"
    )


def ack_subject(message: AckSubject) -> str:
    """The reply subject of a message, without a domain."""
    return ACK_PREFIX + ".".join(map(str, message))
