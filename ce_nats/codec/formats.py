"""
Event formats of structured mode, by media type.

JSON is built in (``structured``) and not in the registry. Protocol buffers need the extra ``protobuf``. Other formats
can be registered; a message is decoded by the format of its media type.

    class MessagePack:
        media_type = "application/cloudevents+msgpack"

        def encode(self, envelope): ...   # -> bytes
        def decode(self, payload): ...    # -> Envelope

    register(MessagePack())
    to_nats_message(event, mode="structured", format="msgpack")
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final, Protocol, TypeAlias

from ..errors import DecodeError, ErrorCode, preview
from .attributes import ExtensionTypes
from .envelope import Envelope, from_envelope, to_envelope
from .event import DecodedEvent, EventLike, attributes_and_data

__all__ = ["EventFormat", "Format", "find", "register"]

PREFIX: Final = "application/cloudevents+"
JSON: Final = "json"
_PROTOBUF: Final = PREFIX + "protobuf"
# RFC 6838 4.2, in lower case.
_MEDIA_TYPE: Final = re.compile(r"application/cloudevents\+[a-z0-9][a-z0-9!#$&^_.+-]{0,99}")
# The module of the base class of all protobuf messages.
_MESSAGES: Final = "google.protobuf.message"


class EventFormat(Protocol):
    """
    An event format: encodes a whole event as bytes and decodes it.

    The content of an envelope is checked before ``encode()`` and after ``decode()``: names, types and values of
    attributes, required attributes, and the data by its datacontenttype.
    """

    @property
    def media_type(self) -> str:
        """``application/cloudevents+x``, in lower case and without parameters; ``x`` is the format's name."""
        ...

    def encode(self, envelope: Envelope) -> bytes:
        """
        Return the payload of a message.

        Raises:
            EncodeError: The format cannot represent the event.
        """
        ...

    def decode(self, payload: bytes) -> Envelope:
        """
        Decode a payload, which may be any bytes.

        Raises:
            DecodeError: The payload is not an event in this format. Any other exception is converted to a DecodeError,
                ``not-a-cloudevent``.
        """
        ...


Format: TypeAlias = str | EventFormat

_formats: Final[dict[str, EventFormat]] = {}


def register(event_format: EventFormat) -> None:
    """
    Register a format for messages of its media type, and its name for :func:`~ce_nats.to_nats_message`.

    The registration is valid for the process, and replaces a format with the same media type. Columns
    (:mod:`ce_nats.arrow`, Spark) support JSON only.

    Raises:
        ValueError: The media type is not ``application/cloudevents+x`` in lower case, or is that of JSON.
    """
    _formats[_checked_type(event_format)] = event_format


def find(event_format: Format) -> EventFormat:
    """
    Return the format with a name, such as ``"protobuf"``; a format object is returned unchanged.

    Raises:
        ValueError: No format has this name, or the media type of a format object is not valid for :func:`register`.
        ImportError: The format needs an extra that is not installed.
    """
    if not isinstance(event_format, str):
        _checked_type(event_format)
        return event_format
    if PREFIX + event_format == _PROTOBUF:
        _load_protobuf()
    found = _formats.get(PREFIX + event_format)
    if found is None:
        known = sorted({JSON, "protobuf", *(name.removeprefix(PREFIX) for name in _formats)})
        raise ValueError(f"format must be {', '.join(known)} or a format object, got {preview(event_format)}")
    return found


def by_media_type(essence: str) -> EventFormat | None:
    """
    Return the format of a media type, or None for JSON and for an unknown media type.

    Raises:
        DecodeError: ``unsupported-format`` if the format needs an extra that is not installed.
    """
    if essence == _PROTOBUF:
        try:
            _load_protobuf()
        except ImportError as error:
            raise DecodeError(
                ErrorCode.UNSUPPORTED_FORMAT, f"event format {essence} is not supported: {error}"
            ) from error
    return _formats.get(essence)


def encode(event_format: EventFormat, event: EventLike) -> bytes:
    """
    Encode an event in a format.

    Raises:
        TypeError: The format's ``encode()`` did not return bytes.
    """
    payload = event_format.encode(to_envelope(_packed(event)))
    if not isinstance(payload, bytes):
        raise TypeError(f"{event_format.media_type}: encode() must return bytes, got {preview(payload)}")
    return payload


def decode(
    event_format: EventFormat, payload: bytes, *, parse_data: bool, extension_types: ExtensionTypes | None
) -> DecodedEvent:
    """Decode the event in a payload."""
    try:
        envelope = event_format.decode(payload)
        attributes, value = dict(envelope.attributes), envelope.data
    except DecodeError:
        raise
    except Exception as error:  # a user-defined format may raise anything for bytes that are not in its format
        raise DecodeError(
            ErrorCode.NOT_A_CLOUDEVENT,
            f"the payload is not an event in {event_format.media_type}: {preview(str(error))}",
        ) from error
    return from_envelope(Envelope(attributes, value), parse_data=parse_data, extension_types=extension_types)


def _checked_type(event_format: Any) -> str:
    media_type = getattr(event_format, "media_type", None)
    if not isinstance(media_type, str) or not _MEDIA_TYPE.fullmatch(media_type):
        raise ValueError(
            "the media_type of a format must be application/cloudevents+x in lower case without parameters, "
            f"got {preview(event_format if media_type is None else media_type)}"
        )
    if media_type == PREFIX + JSON:
        raise ValueError(f"{media_type} is built in and cannot be registered")
    return media_type


def _load_protobuf() -> None:
    if _PROTOBUF not in _formats:
        from .protobuf import ProtobufFormat

        _formats[_PROTOBUF] = ProtobufFormat()


def _packed(event: EventLike) -> EventLike:
    """Return the event; if its data is a protobuf message, with the message's bytes as data."""
    messages = sys.modules.get(_MESSAGES)
    value = attributes_and_data(event)[1]
    if messages is None or not isinstance(value, messages.Message):
        return event  # the process has not imported protobuf, so the data cannot be such a message
    from .protobuf import PackedEvent

    return PackedEvent(event, value)
