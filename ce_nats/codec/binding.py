"""
Encode a CloudEvent as a NATS message, and decode it: the entry point of the codec.

NATS protocol binding for CloudEvents, section 3 (1.0.3-wip). No network I/O: messages are plain values.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from ..errors import DecodeError, EncodeError, ErrorCode, choice, preview
from ..message import Headers, HeadersLike, Message, NatsMessage, check_header, header_pairs
from ..subjects import check_plain_subject, check_subject
from . import _fast_path, binary, data, formats, structured
from ._bounded_cache import BoundedCache
from ._message_id import dedup_text
from .attributes import ExtensionTypes, check_extension_types, checked_attributes
from .binary import Dialect
from .event import DecodedEvent, EventLike, NotDelivered, attributes_and_data, attributes_data_and_presence
from .formats import EventFormat, Format
from .mode import (
    CONTENT_TYPE,
    NOT_DELIVERED,
    PREFIX,
    STRUCTURED_TYPE,
    ContentMode,
    detect,
    is_cloudevents_type,
    other_format,
    parts,
    scan,
    undelivered_size,
)
from .subject_template import SubjectTemplate

__all__ = ["dedup_id", "from_nats_message", "to_nats_message"]

Mode: TypeAlias = ContentMode | Literal["binary", "structured"]
DialectName: TypeAlias = Dialect | Literal["spec", "sdk-go"]

# Module constants, because member look-up on an enum class is slow in Python 3.11.
_BINARY, _STRUCTURED, _SPEC = ContentMode.BINARY, ContentMode.STRUCTURED, Dialect.SPEC
_new: Final = object.__new__
_subjects: Final = BoundedCache(check_plain_subject)


def to_nats_message(
    event: EventLike,
    subject: str | SubjectTemplate = "",
    *,
    mode: Mode = ContentMode.BINARY,
    format: Format | None = None,  # noqa: A002
    reply: str = "",
    headers: HeadersLike = None,
) -> NatsMessage:
    """
    Encode an event as a NATS message.

    The whole event is checked, because event classes accept more than the specification does. The event and
    ``headers`` are not changed.

    Args:
        event: A CloudEvent of the ``cloudevents`` package, or any object with its ``get_attributes()`` and
            ``get_data()``. Attributes are ``bool``, ``int`` of 32 bits,
            ``str``, ``bytes`` or timezone-aware ``datetime``. Data that is ``bytes`` is sent unchanged; any other value
            without a datacontenttype is sent as JSON with ``application/json``.
        subject: NATS subject to publish to, a :class:`~ce_nats.SubjectTemplate` of it, or ``""``. A ``str`` must not
            contain ``{``.
        mode: ``"binary"`` (attributes in headers, data as payload) or ``"structured"`` (the whole event as payload).
        format: Event format of structured mode: ``"json"`` (the default), ``"protobuf"``, the name of a registered
            format, or an :class:`~ce_nats.codec.formats.EventFormat`.
        reply: Reply subject, or ``""``.
        headers: Additional headers, for example ``Nats-Msg-Id``, placed after those of the event.

    Raises:
        EncodeError: The first invalid attribute in the event's order, then a missing one, then the data, then headers
            and subjects. See :class:`~ce_nats.ErrorCode`.
        ValueError: ``mode`` is not a content mode; ``format`` is unknown, or given for binary mode.
        ImportError: The format needs an extra that is not installed.
    """
    if mode is not _BINARY and mode is not _STRUCTURED:
        mode = choice(ContentMode, mode, "mode")
    if format is not None and (other := _other_format(mode, format)) is not None:
        payload = formats.encode(other, event)
        pairs = [(CONTENT_TYPE, other.media_type)]
    else:
        attributes, value, has_data = attributes_data_and_presence(event)
        if mode is _BINARY:
            pairs = _fast_path.encode_headers(attributes) or binary.encode(attributes)
            payload = data.encode(value, attributes.get("datacontenttype")) if has_data else b""
        else:
            payload = _fast_path.encode_event(attributes, value, has_data) or structured.encode(
                attributes, value, has_data
            )
            # No ce- header: sdk-go would decode the message in binary mode, with the event as its data.
            pairs = [(CONTENT_TYPE, STRUCTURED_TYPE)]
    if headers:
        _add_headers(pairs, headers)
    return _new_message(subject_of(subject, event), payload, pairs, reply)


def subject_of(subject: str | SubjectTemplate, event: EventLike) -> str:
    """
    Return the subject of an event, checked; ``""`` is accepted.

    Raises:
        EncodeError: ``invalid-subject``; as ``SubjectTemplate.format()`` does.
    """
    if subject.__class__ is str and subject in _subjects:  # an object of another class can be equal to a cached one
        return subject
    if isinstance(subject, SubjectTemplate):
        subject = subject.format(event)
    if subject.__class__ is str:
        if subject:
            _subjects[subject]
    elif subject != "":
        check_plain_subject(subject)
    return subject


def _other_format(mode: ContentMode, given: Format) -> EventFormat | None:
    """
    Return the event format that a caller requested, or None for JSON.

    Raises:
        ValueError: The format is unknown, or the mode is binary.
        ImportError: The format needs an extra that is not installed.
    """
    if mode is _BINARY:
        raise ValueError(f"format must be None in binary mode, got {preview(given)}")
    return None if given == formats.JSON else formats.find(given)


def from_nats_message(
    message: Message,
    *,
    mode: Mode | None = None,
    dialect: DialectName = Dialect.SPEC,
    parse_data: bool = True,
    extension_types: ExtensionTypes | None = None,
) -> DecodedEvent:
    """
    Decode a NATS message to an event.

    The event has exactly the attributes of the message; ``time`` is a :class:`~ce_nats.Timestamp`. Data is a JSON
    value for JSON media types, ``str`` for text and XML, else ``bytes``; data that its media type does not explain has
    a ``data_error``. An empty payload in binary mode means no data, or with a header ``Nats-Msg-Size``
    :class:`~ce_nats.codec.event.NotDelivered`.
    In structured mode the media type in ``Content-Type`` determines the event format; without it the format is JSON.

    Args:
        message: Any object with ``data`` and ``headers``: nats-py's ``Msg`` and ``RawStreamMsg``,
            :class:`~ce_nats.NatsMessage`.
        mode: The content mode; None detects it as :func:`~ce_nats.detect_mode` does.
        dialect: ``SDK_GO`` reads header values as sdk-go writes them: without percent-decoding.
        parse_data: False returns data as bytes, JSON text unchanged.
        extension_types: Python types of extension attributes (``bool``, ``int``, ``str``, ``bytes``, ``datetime``),
            so that both modes return the same value; headers carry strings only.

    Raises:
        DecodeError: With a code, and the attribute and the header that caused it. See :class:`~ce_nats.ErrorCode`.
        ValueError: ``mode`` is not a content mode, or ``dialect`` not a dialect.
        TypeError: ``extension_types`` is not a mapping, or declares another type for an attribute of the message.
    """
    headers, payload = parts(message)
    check_extension_types(extension_types)
    if dialect is _SPEC:
        event = _fast_path.decode(headers, payload, mode, parse_data, extension_types)
        if event is not None:
            return event
    if mode is None:
        has_status = getattr(message, "status", None) is not None
        mode, _, found, has_cloudevents_header, event_format = detect(headers, payload, has_status=has_status)
    else:
        mode, has_cloudevents_header = choice(ContentMode, mode, "mode"), True
        content_types, found = scan(headers)
        event_format = other_format(content_types) if mode is _STRUCTURED else None
    if payload.__class__ is not bytes:
        payload = _payload(payload)
    if dialect.__class__ is not Dialect:
        dialect = choice(Dialect, dialect, "dialect")
    size = 0 if payload else undelivered_size(headers)
    if size and mode is _STRUCTURED:
        raise DecodeError(ErrorCode.NOT_A_CLOUDEVENT, f"the message must be a CloudEvent, got {NOT_DELIVERED}")
    if event_format is not None:
        return formats.decode(event_format, payload, parse_data=parse_data, extension_types=extension_types)
    if mode is _STRUCTURED:
        return structured.decode(
            payload,
            has_cloudevents_header=has_cloudevents_header,
            parse_data=parse_data,
            extension_types=extension_types,
        )
    event = binary.decode(
        found,
        payload,
        content_type=None if dialect is _SPEC else _lower_case_content_type(headers),
        dialect=dialect,
        parse_data=parse_data,
        extension_types=extension_types,
    )
    return DecodedEvent(event._attributes, NotDelivered(size)) if size else event


def dedup_id(event: EventLike) -> str:
    """
    Return a ``Nats-Msg-Id`` that is the same for the same event and differs for different events.

    A CloudEvent is identified by source and id together. With the id alone, JetStream would drop an event of another
    source with the same id within the duplicate window. The value is ``source|id``, both percent-encoded so that it
    contains no space; if that has more than 256 characters, the value is its SHA-256.

    Raises:
        EncodeError: As :func:`to_nats_message` does for the attributes.
    """
    attributes = attributes_and_data(event)[0]
    if _fast_path.encode_headers(attributes) is None:
        attributes = checked_attributes(attributes)
    return dedup_text(attributes["source"], attributes["id"])


def _new_message(subject: str, payload: bytes, pairs: list[tuple[str, str]], reply: str) -> NatsMessage:
    """
    Make a NatsMessage without the cost of its constructor.

    Raises:
        EncodeError: ``invalid-subject`` for ``reply``.
    """
    if reply != "":
        check_subject(reply)
    headers = _new(Headers)
    headers._pairs = pairs
    message = _new(NatsMessage)
    message.subject = subject
    message.data = payload
    message.headers = headers
    message.reply = reply
    return message


def _add_headers(pairs: list[tuple[str, str]], headers: HeadersLike) -> None:
    has_content_type = pairs[0][0] == CONTENT_TYPE
    further = header_pairs(headers, EncodeError)
    for name, value in further:
        check_header(name, value)
        lower = name.lower()
        is_content_type = lower == CONTENT_TYPE.lower()
        is_taken = is_content_type and (has_content_type or is_cloudevents_type(value))
        has_content_type = has_content_type or is_content_type
        if lower.startswith(PREFIX) or is_taken:
            raise EncodeError(
                ErrorCode.RESERVED_HEADER, f"further headers must not set {preview(name)} of the event", header=name
            )
    pairs += further


def _lower_case_content_type(headers: HeadersLike) -> str | None:
    """Return the value of the ``content-type`` header; sdk-go reads no other spelling."""
    return next((value for name, value in header_pairs(headers) if name == "content-type"), None)


def _payload(payload: object) -> bytes:
    """Return a payload as bytes. nats-py's get_msg() returns None for an empty payload."""
    if payload is None:
        return b""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    raise DecodeError(ErrorCode.INVALID_MESSAGE, f"a payload must be bytes, got {preview(payload)}")
