"""
Is a message an event in binary mode, an event in structured mode, or no event? And why?

NATS binding, section 3, together with what senders really do. The first rule that fits decides:

1. ``Content-Type`` (name and value in any case) is ``application/cloudevents`` or ``application/cloudevents+json``, or
   the media type of another event format that is known: structured. A batch, or any other format, is an error of its
   own.
2. Some header starts with ``ce-`` (any case): binary.
3. An empty payload (a status message of the server, a tombstone of a key-value bucket, headers without their payload):
   no event.
4. Otherwise structured. A binary event cannot lack all four required attributes, and version 1.0.2 of the binding, the
   Go and Rust SDKs, Knative, Argo and Dapr send JSON events without any CloudEvents header.

Only headers are looked at, and of the payload only whether there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from ..errors import DecodeError, ErrorCode, preview
from ..message import Headers, HeadersLike, Message, folded, header_columns, header_pairs
from . import formats, media_type
from .formats import EventFormat
from .memory import Names, NamesMemory

__all__ = ["ContentMode", "Inspection", "detect_mode", "inspect"]

PREFIX: Final = "ce-"
CONTENT_TYPE: Final = "Content-Type"
STRUCTURED_TYPE: Final = "application/cloudevents+json"
# What a key-value bucket puts on the tombstone of a key, and a stream on the marker of a limit.
MARKERS: Final = ("KV-Operation", "Nats-Marker-Reason")

_STRUCTURED: Final = ("application/cloudevents", STRUCTURED_TYPE)
_BATCH: Final = "application/cloudevents-batch"
_OTHER_FORMAT: Final = "application/cloudevents+"
_READ_AGAIN: Final = (dict, Headers, type(None))


class ContentMode(str, Enum):
    """How an event travels in a NATS message."""

    BINARY = "binary"
    STRUCTURED = "structured"

    def __str__(self) -> str:
        return self.value


class CeHeaders(NamedTuple):
    """
    The ``ce-`` headers of a message, as three columns in wire order.

    Attributes:
        attributes: Attribute names in lower case, not checked.
        names: Header names as they were sent.
        values: Header values as they were sent.
    """

    attributes: tuple[str, ...]
    names: tuple[str, ...]
    values: Sequence[str]


class Inspection(NamedTuple):
    """
    What the headers of a message say.

    Attributes:
        mode: The content mode.
        reason: Why, in a sentence.
        headers: The ``ce-`` headers.
        is_marked: False where no header says that this is a CloudEvent, so that the payload has to.
        format: The event format in structured mode; None for JSON.
    """

    mode: ContentMode
    reason: str
    headers: CeHeaders
    is_marked: bool = True
    format: EventFormat | None = None


def detect_mode(message: Message) -> ContentMode:
    """
    The content mode of a message.

    Args:
        message: Anything with ``data`` and ``headers``.

    Raises:
        DecodeError: ``not-a-cloudevent``, ``batch-not-supported``, ``unsupported-format``, ``unsupported-charset``,
            ``duplicate-header``; ``invalid-header-name`` and ``invalid-header-value`` for headers that are not text;
            ``invalid-message`` for what is not a message.
    """
    return inspect(message).mode


def inspect(message: Message) -> Inspection:
    """
    The content mode of a message, the reason, and its ``ce-`` headers.

    Raises:
        DecodeError: As :func:`detect_mode`.
    """
    return decide(*parts(message), has_status=getattr(message, "status", None) is not None)


def decide(headers: HeadersLike, data: object, *, has_status: bool = False) -> Inspection:
    """
    As :func:`inspect`, of what :func:`parts` gives.

    Raises:
        DecodeError: As :func:`detect_mode`.
    """
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
        ContentMode.STRUCTURED, "no header is a CloudEvents header, so the payload has to be the event", found, False
    )


def parts(message: Message) -> tuple[HeadersLike, bytes | None]:
    """
    Headers and payload of a message; headers that can be read but once are taken over.

    Raises:
        DecodeError: ``invalid-message`` where it has none.
    """
    try:
        headers, data = message.headers, message.data
    except AttributeError as error:
        raise DecodeError(
            ErrorCode.INVALID_MESSAGE, f"a message has data and headers; {preview(message)} has not"
        ) from error
    return headers if headers.__class__ in _READ_AGAIN else Headers(headers), data


def scan(headers: HeadersLike) -> tuple[list[str], CeHeaders]:
    """
    All ``Content-Type`` values, and all ``ce-`` headers.

    Raises:
        DecodeError: ``invalid-header-name`` or ``invalid-header-value`` where a name or value is not text.
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
    """Whether a Content-Type would make a receiver take the message for anything but a binary event."""
    essence = _essence(value)
    return essence in _STRUCTURED or essence.startswith((_BATCH, _OTHER_FORMAT))


class SortedNames(NamedTuple):
    """
    What the header names of a message are, by their places.

    Attributes:
        content_type_places: Where ``Content-Type`` stands, in any case.
        ce_places: Where names stand that start with ``ce-``, in any case.
        ce_names: These names as they were sent.
        attributes: Their attribute names in lower case, not checked.
    """

    content_type_places: tuple[int, ...]
    ce_places: tuple[int, ...]
    ce_names: tuple[str, ...]
    attributes: tuple[str, ...]


def sort_names(names: Names) -> SortedNames:
    """The header names of a message, in wire order, sorted by what they mean."""
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


# Messages of a stream mostly have the same header names in the same order.
_sorted: Final = NamesMemory(_sort)


def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip(" \t").lower()


def other_format(content_types: list[str]) -> EventFormat | None:
    """
    The event format that the Content-Type names; None where it names none that is known, and for JSON.

    Raises:
        DecodeError: ``unsupported-format`` where the format needs an extra that is not installed.
    """
    if len(content_types) != 1 or not (essence := _essence(content_types[0])).startswith(_OTHER_FORMAT):
        return None
    return formats.by_media_type(essence)


def structured_by(content_types: list[str]) -> str | None:
    """
    Why the Content-Type makes a message one with a JSON event; None where it does not.

    Args:
        content_types: Values of all ``Content-Type`` headers, one at least.

    Raises:
        DecodeError: ``duplicate-header``, ``batch-not-supported``, ``unsupported-format``, ``unsupported-charset``.
    """
    if len(content_types) > 1:
        # Which of them counts would be anybody's guess, and two receivers would guess differently.
        raise DecodeError(ErrorCode.DUPLICATE_HEADER, "there are several Content-Type headers", header=CONTENT_TYPE)
    value = content_types[0]
    essence = _essence(value)
    if essence.startswith(_BATCH):
        raise DecodeError(ErrorCode.BATCH_NOT_SUPPORTED, "there is no batch mode", header=CONTENT_TYPE)
    if essence in _STRUCTURED:
        parsed = media_type.parse(value.strip(" \t"))
        if parsed is not None and not parsed.is_utf8:
            raise DecodeError(
                ErrorCode.UNSUPPORTED_CHARSET,
                f"a JSON event is UTF-8, not {preview(parsed.charset)}",
                header=CONTENT_TYPE,
            )
        return f"Content-Type is {essence}"
    if essence.startswith(_OTHER_FORMAT):
        raise DecodeError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"event format {preview(essence)} is not supported here",
            header=CONTENT_TYPE,
        )
    return None


def _no_event(headers: HeadersLike, has_status: bool) -> DecodeError:
    """Say what an empty message without CloudEvents headers is."""
    known = dict(header_pairs(headers))
    if has_status or "Status" in known:
        what = f"a status message of the server ({preview(known.get('Status', ''))})"
    elif any(name in known for name in MARKERS):
        what = "a delete marker"
    elif "Nats-Msg-Size" in known:
        what = "a message whose payload was not delivered (headers only)"
    else:
        what = "empty, and no header starts with 'ce-'"
    return DecodeError(ErrorCode.NOT_A_CLOUDEVENT, f"the message is {what}: no CloudEvent")
