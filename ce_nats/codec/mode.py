"""
Detect the content mode of a message: binary, structured, or not an event.

NATS binding, section 3, and the messages that existing senders produce. The first rule that matches applies:

1. ``Content-Type`` (name and value in any case) is ``application/cloudevents``, ``application/cloudevents+json`` or
   the media type of another known event format: structured. A batch and an unknown format have their own error codes.
2. A header name starts with ``ce-`` (any case): binary.
3. The payload is empty (a status message of the server, a tombstone of a key-value bucket, a headers-only delivery):
   not an event.
4. Otherwise structured. A binary event cannot lack all four required attributes, and version 1.0.2 of the binding, the
   Go and Rust SDKs, Knative, Argo and Dapr send JSON events without any CloudEvents header.

Only the headers are examined, and whether the payload is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from ..errors import DecodeError, ErrorCode, preview
from ..message import Headers, HeadersLike, Message, UnreadableHeaders, folded, header_columns, header_pairs
from . import formats, media_type
from ._bounded_cache import BoundedNamesCache, Names
from .formats import EventFormat

__all__ = ["ContentMode", "Inspection", "detect_mode", "inspect"]

PREFIX: Final = "ce-"
CONTENT_TYPE: Final = "Content-Type"
STRUCTURED_TYPE: Final = "application/cloudevents+json"
# Headers of a key-value bucket's tombstone, and of the delete marker that a stream places for an expired message.
MARKERS: Final = ("KV-Operation", "Nats-Marker-Reason")
# Header of a message without its payload: of a consumer or a republish with ``headers_only``.
SIZE_HEADER: Final = "Nats-Msg-Size"
_MAX_DIGITS: Final = 18

NOT_DELIVERED: Final = "a message whose payload was not delivered (headers only)"

_STRUCTURED: Final = ("application/cloudevents", STRUCTURED_TYPE)
_BATCH: Final = "application/cloudevents-batch"
_OTHER_FORMAT: Final = "application/cloudevents+"
_READ_AGAIN: Final = (dict, Headers, type(None))


class ContentMode(str, Enum):
    """Content mode of a NATS message: attributes in headers, or the whole event in the payload."""

    BINARY = "binary"
    STRUCTURED = "structured"

    def __str__(self) -> str:
        return self.value


class CeHeaders(NamedTuple):
    """
    The ``ce-`` headers of a message, as three columns in wire order.

    Attributes:
        attributes: Attribute names in lower case, not checked.
        names: Header names as received.
        values: Header values as received.
    """

    attributes: tuple[str, ...]
    names: tuple[str, ...]
    values: Sequence[str]


class Inspection(NamedTuple):
    """
    Result of mode detection.

    Attributes:
        mode: The content mode.
        reason: The reason, as text.
        headers: The ``ce-`` headers.
        has_cloudevents_header: False if no header identifies the message as a CloudEvent, so that only its payload can.
        format: The event format in structured mode; None for JSON.
    """

    mode: ContentMode
    reason: str
    headers: CeHeaders
    has_cloudevents_header: bool = True
    format: EventFormat | None = None


def detect_mode(message: Message) -> ContentMode:
    """
    Return the content mode of a message.

    Args:
        message: Any object with ``data`` and ``headers``.

    Raises:
        DecodeError: ``not-a-cloudevent``, ``batch-not-supported``, ``unsupported-format``, ``unsupported-charset``,
            ``duplicate-header``; ``invalid-header-name`` and ``invalid-header-value`` for headers that are not text;
            ``invalid-message`` for an object that is not a message.
    """
    return inspect(message).mode


def inspect(message: Message) -> Inspection:
    """
    Return the content mode of a message, the reason, and its ``ce-`` headers.

    Raises:
        DecodeError: As :func:`detect_mode`.
    """
    return detect(*parts(message), has_status=getattr(message, "status", None) is not None)


def detect(headers: HeadersLike, data: object, *, has_status: bool) -> Inspection:
    """Return the content mode for headers and payload from :func:`parts`, as :func:`inspect` does for a message."""
    content_types, found = scan(headers)
    if content_types:
        if (known := other_format(content_types)) is not None:
            return Inspection(ContentMode.STRUCTURED, f"Content-Type is {known.media_type}", found, format=known)
        if reason := structured_by(content_types):
            return Inspection(ContentMode.STRUCTURED, reason, found)
    if found.names:
        return Inspection(ContentMode.BINARY, "there are headers that start with 'ce-'", found)
    if not data:
        raise _no_event(headers, has_status)
    return Inspection(
        ContentMode.STRUCTURED, "no header is a CloudEvents header, so the payload must be the event", found, False
    )


def parts(message: Message) -> tuple[HeadersLike, bytes | None]:
    """
    Return the headers and the payload of a message. Headers that can be iterated only once become ``Headers``.

    Raises:
        DecodeError: ``invalid-message`` if the message lacks either; the error of :class:`UnreadableHeaders`.
    """
    try:
        headers, data = message.headers, message.data
    except AttributeError as error:
        raise DecodeError(
            ErrorCode.INVALID_MESSAGE, f"a message must have data and headers, got {preview(message)}"
        ) from error
    if headers.__class__ in _READ_AGAIN:
        return headers, data
    if isinstance(headers, UnreadableHeaders):
        raise headers.error
    return Headers(headers), data


def undelivered_size(headers: HeadersLike) -> int:
    """Return the size of the payload that a message with an empty payload would have; 0 if it has no other payload."""
    text = dict(header_pairs(headers)).get(SIZE_HEADER, "").strip(" \t")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


def scan(headers: HeadersLike) -> tuple[list[str], CeHeaders]:
    """
    Return all ``Content-Type`` values and all ``ce-`` headers.

    Raises:
        DecodeError: ``invalid-header-name`` or ``invalid-header-value`` if a name or value is not text.
    """
    names, values = header_columns(headers)
    sorted_names = sort_names(names)
    if len(sorted_names.ce_places) != len(names):
        content_types = [values[place] for place in sorted_names.content_type_places]
        values = [values[place] for place in sorted_names.ce_places]
    else:
        content_types = []
    return content_types, CeHeaders(sorted_names.attributes, sorted_names.ce_names, values)


def is_cloudevents_type(value: str) -> bool:
    """Whether a Content-Type would make a receiver treat the message as structured, a batch or another format."""
    essence = _essence(value)
    return essence in _STRUCTURED or essence.startswith((_BATCH, _OTHER_FORMAT))


class SortedNames(NamedTuple):
    """
    The header names of a message, sorted by meaning. A place is an index into the names.

    Attributes:
        content_type_places: Places of ``Content-Type``, in any case.
        ce_places: Places of names that start with ``ce-``, in any case.
        ce_names: These names as received.
        attributes: Their attribute names in lower case, not checked.
    """

    content_type_places: tuple[int, ...]
    ce_places: tuple[int, ...]
    ce_names: tuple[str, ...]
    attributes: tuple[str, ...]


def sort_names(names: Names) -> SortedNames:
    """Sort the header names of a message, given in wire order, by their meaning."""
    return _sorted[names]


def _sort(names: Names) -> SortedNames:
    lower = [folded(name) for name in names]
    ce_places = tuple(place for place, name in enumerate(lower) if name.startswith(PREFIX))
    return SortedNames(
        tuple(place for place, name in enumerate(lower) if name == "content-type"),
        ce_places,
        tuple(names[place] for place in ce_places),
        tuple(lower[place][len(PREFIX) :] for place in ce_places),
    )


# Most messages of a stream have the same header names in the same order.
_sorted: Final = BoundedNamesCache(_sort)


def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip(" \t").lower()


def other_format(content_types: list[str]) -> EventFormat | None:
    """
    Return the event format of the Content-Type, or None for JSON and for an unknown media type.

    Raises:
        DecodeError: ``unsupported-format`` if the format needs an extra that is not installed.
    """
    if len(content_types) != 1 or not (essence := _essence(content_types[0])).startswith(_OTHER_FORMAT):
        return None
    return formats.by_media_type(essence)


def structured_by(content_types: list[str]) -> str | None:
    """
    Return the reason why the Content-Type makes a message structured with a JSON event, or None if it does not.

    Raises:
        DecodeError: ``duplicate-header``, ``batch-not-supported``, ``unsupported-format``, ``unsupported-charset``.
    """
    if len(content_types) > 1:
        # Two receivers could each use a different one.
        raise DecodeError(
            ErrorCode.DUPLICATE_HEADER,
            f"Content-Type must occur at most once, got {len(content_types)} headers",
            header=CONTENT_TYPE,
        )
    value = content_types[0]
    essence = _essence(value)
    if essence.startswith(_BATCH):
        raise DecodeError(
            ErrorCode.BATCH_NOT_SUPPORTED,
            f"Content-Type must be that of one event, got the batch {preview(essence)}",
            header=CONTENT_TYPE,
        )
    if essence in _STRUCTURED:
        parsed = media_type.parse(value.strip(" \t"))
        if parsed is not None and not parsed.is_utf8:
            raise DecodeError(
                ErrorCode.UNSUPPORTED_CHARSET,
                f"the charset of a JSON event must be UTF-8, got {preview(parsed.charset)}",
                header=CONTENT_TYPE,
            )
        return f"Content-Type is {essence}"
    if essence.startswith(_OTHER_FORMAT):
        raise DecodeError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"the event format must be a registered one, got {preview(essence)}",
            header=CONTENT_TYPE,
        )
    return None


def _no_event(headers: HeadersLike, has_status: bool) -> DecodeError:
    """Return the error for an empty message without CloudEvents headers; its text names the kind of message."""
    known = dict(header_pairs(headers))
    if has_status or "Status" in known:
        what = f"a status message of the server ({preview(known.get('Status', ''))})"
    elif any(name in known for name in MARKERS):
        what = "a delete marker"
    elif SIZE_HEADER in known:
        what = NOT_DELIVERED
    else:
        what = "an empty message without headers that start with 'ce-'"
    return DecodeError(ErrorCode.NOT_A_CLOUDEVENT, f"the message must be a CloudEvent, got {what}")
