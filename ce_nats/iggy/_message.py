"""
Encode and decode Iggy messages as bytes, in the form of the commands SendMessages and PollMessages.

Iggy, "Message headers", sections "Sending the messages with headers" and "Polling the messages with headers", of August
2023. All versions up to 0.4 send messages in this form; polled messages later have a state and a checksum as well. From
0.5 on the frames are different; use ``decode_headers`` and ``encode_headers`` for their header maps. All integers are
unsigned and little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview
from ..wire._octets import as_octets
from ._headers import HeaderMap, decode_headers, encode_headers
from ._reader import Reader

_BITS: Final = {"id": 128, "offset": 64, "timestamp": 64}
_MAX_PAYLOAD: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class IggyMessage:
    """
    An Iggy message as a value, to be sent by a client.

    Attributes:
        payload: Payload bytes. Servers refuse an empty payload.
        headers: Values by key; a key is a ``str``, or with typed keys also a :class:`HeaderValue`.
        id: Message id, 128 bits; with 0 the server assigns one.
        offset: Offset in the partition, 64 bits, of a polled message.
        timestamp: Time at which the server received it, in microseconds since 1970-01-01 UTC, 64 bits, of a polled
            message.
    """

    payload: bytes = b""
    headers: HeaderMap = field(default_factory=dict)
    id: int = 0
    offset: int | None = None
    timestamp: int | None = None


def encode_message(message: IggyMessage, *, polled: bool = False) -> bytes:
    """
    Encode a message: id, length of the headers, headers, length of the payload, payload.

    A polled message can be encoded for sending: the server assigns a new offset and timestamp, and keeps the id.

    Args:
        message: The message.
        polled: Whether offset and timestamp come first, as in messages from a server.

    Raises:
        EncodeError: ``invalid-frame`` for an id, offset or timestamp that is missing or out of range, or a payload of
            4 GiB or more; ``invalid-message`` if the payload is not bytes; as ``encode_headers``.
    """
    front = b""
    if polled:
        front = b"".join(number_of(message, name).to_bytes(8, "little") for name in ("offset", "timestamp"))
    headers = encode_headers(message.headers)
    payload = as_octets(message.payload, "a payload", EncodeError)
    if len(payload) > _MAX_PAYLOAD:
        raise EncodeError(
            ErrorCode.INVALID_FRAME,
            f"a payload must have at most {_MAX_PAYLOAD} bytes, got {len(payload)} bytes",
            requirement="IG-05",
        )
    number = number_of(message, "id").to_bytes(16, "little")
    return b"".join((front, number, _with_length(headers), _with_length(payload)))


def _with_length(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "little") + octets


def number_of(message: IggyMessage, name: str) -> int:
    """
    Return the id, offset or timestamp of a message to be encoded.

    Raises:
        EncodeError: ``invalid-frame`` if it is missing or out of range.
    """
    return check_number(name, getattr(message, name), EncodeError)


def check_number(name: str, value: object, error_class: type[CeNatsError]) -> int:
    """
    Check that a value is valid as id, offset or timestamp.

    Raises:
        error_class: ``invalid-frame``.
    """
    bits = _BITS[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**bits:
        raise error_class(
            ErrorCode.INVALID_FRAME,
            f"{name} must be an integer from 0 to 2^{bits}-1, got {preview(value)}",
            requirement="IG-05",
        )
    return value


def decode_messages(data: bytes, *, polled: bool = False) -> list[IggyMessage]:
    """
    Decode a sequence of messages; all bytes must belong to one.

    Args:
        data: Bytes of zero or more messages; the commands have no count before them.
        polled: Whether each message begins with its offset and timestamp.

    Raises:
        DecodeError: The first error: ``truncated-frame``, also for extra bytes after the last message; as
            ``decode_headers``; ``invalid-message`` if ``data`` is not bytes.
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
