"""
Iggy messages as bytes, as they stand in the commands SendMessages and PollMessages.

Iggy, "Message headers", sections "Sending the messages with headers" and "Polling the messages with headers": this is
Iggy of August 2023. All versions up to 0.4 send messages so; what they poll soon had a state and a checksum more. From
0.5 on frames are others, whose header maps are read and written by ``decode_headers`` and ``encode_headers``. All
integers are unsigned and little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview
from ..wire.octets import as_octets
from .headers import HeaderMap, decode_headers, encode_headers
from .reader import Reader

__all__ = ["IggyMessage", "decode_messages", "encode_message"]

_BITS: Final = {"id": 128, "offset": 64, "timestamp": 64}
_MAX_PAYLOAD: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class IggyMessage:
    """
    An Iggy message as a value; somebody else sends it.

    Attributes:
        payload: Payload bytes. Servers refuse an empty one.
        headers: Values by key; a key is a ``str``, or with typed keys also a :class:`HeaderValue`.
        id: Message id, 128 bits; 0 has the server assign one.
        offset: Place in its partition, 64 bits, of a message that was polled.
        timestamp: When the server took it, microseconds of Unix time, 64 bits; likewise.
    """

    payload: bytes = b""
    headers: HeaderMap = field(default_factory=dict)
    id: int = 0
    offset: int | None = None
    timestamp: int | None = None


def encode_message(message: IggyMessage, *, polled: bool = False) -> bytes:
    """
    Write a message: id, length of the headers, headers, length of the payload, payload.

    One that was polled can be sent on as it is: the server gives it another offset and timestamp. Its id is kept.

    Args:
        message: The message.
        polled: Whether offset and timestamp stand in front, as a server writes it.

    Raises:
        EncodeError: ``invalid-frame`` for an id, offset or timestamp that is missing or does not fit, or more than
            4 GiB; ``invalid-message`` where the payload is not bytes; as ``encode_headers``.
    """
    front = b""
    if polled:
        front = b"".join(number_of(message, name).to_bytes(8, "little") for name in ("offset", "timestamp"))
    headers = encode_headers(message.headers)
    payload = as_octets(message.payload, "a payload", EncodeError)
    if len(payload) > _MAX_PAYLOAD:
        raise EncodeError(ErrorCode.INVALID_FRAME, f"a payload of {len(payload)} bytes", requirement="IG-05")
    number = number_of(message, "id").to_bytes(16, "little")
    return b"".join((front, number, _with_length(headers), _with_length(payload)))


def _with_length(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "little") + octets


def number_of(message: IggyMessage, name: str) -> int:
    """
    The id, offset or timestamp of a message to be written.

    Raises:
        EncodeError: ``invalid-frame`` where it is missing or does not fit.
    """
    return check_number(name, getattr(message, name), EncodeError)


def check_number(name: str, value: object, error_class: type[CeNatsError]) -> int:
    """
    Refuse what is not an id, offset or timestamp.

    Raises:
        error_class: ``invalid-frame``.
    """
    bits = _BITS[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**bits:
        raise error_class(
            ErrorCode.INVALID_FRAME,
            f"{name} is an integer of 0 to 2^{bits}-1, not {preview(value)}",
            requirement="IG-05",
        )
    return value


def decode_messages(data: bytes, *, polled: bool = False) -> list[IggyMessage]:
    """
    Read messages that stand one behind the other, to the last byte.

    Args:
        data: Bytes of zero or more messages; the commands put no count in front of them.
        polled: Whether each begins with its offset and timestamp.

    Raises:
        DecodeError: The first fault: ``truncated-frame``, which is also what bytes behind the last message look like;
            as ``decode_headers``; ``invalid-message`` for what is not bytes.
    """
    reader = Reader(as_octets(data, "a message", DecodeError), "IG-06" if polled else "IG-05")
    messages = []
    while reader.left:
        offset = reader.number(8, "the offset") if polled else None
        timestamp = reader.number(8, "the timestamp") if polled else None
        number = reader.number(16, "the message id")
        headers = reader.take(reader.number(4, "the length of the headers"), "the headers")
        payload = reader.take(reader.number(4, "the length of the payload"), "the payload")
        messages.append(IggyMessage(payload, decode_headers(headers), number, offset, timestamp))
    return messages
