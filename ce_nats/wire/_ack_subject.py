"""
Ack subjects: the reply subjects of messages that a JetStream consumer delivers, which contain their metadata.

ADR-15: ``$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<nanoseconds>.<pending>``, or
with domain and account hash before the stream and, usually, a random token at the end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import DecodeError, ErrorCode, preview

ACK_PREFIX: Final = "$JS.ACK."

_TOKENS: Final = 9
_TOKENS_WITH_DOMAIN: Final = 11


class AckSubject(NamedTuple):
    """
    Metadata of a delivered message, from its reply subject.

    Attributes:
        stream: Name of the stream.
        consumer: Name of the consumer.
        deliveries: Number of deliveries of the message, including this one.
        sequence: Sequence in the stream.
        consumer_sequence: Sequence of the delivery in the consumer.
        timestamp: Time at which the stream stored the message, in nanoseconds since 1970-01-01 UTC.
        pending: Number of messages that the consumer has not delivered yet.
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
    Parse a reply subject.

    Raises:
        DecodeError: ``invalid-subject`` if it is not an ack subject.
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
    """Return the reply subject of a message, in the form without a domain."""
    return ACK_PREFIX + ".".join(map(str, message))
