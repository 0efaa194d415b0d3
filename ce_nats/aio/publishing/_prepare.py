"""Prepare messages for streams: encode, and add the ``Nats-Msg-Id`` by which a stream detects duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from nats.aio.client import Client

from ...codec.attributes import canonical
from ...codec.binding import Mode, dedup_id, dedup_text, to_nats_message
from ...codec.event import EventLike, attributes_and_data
from ...codec.formats import Format
from ...codec.subject_template import SubjectTemplate
from ...errors import DeliveryError, EncodeError, ErrorCode, preview
from ...extensions.tracing import TraceContext
from ...message import MSG_ID, HeadersLike, NatsMessage, check_header
from ...subjects import check_subject
from ..core._publish import check_extra_headers, prepare, supports_headers

DedupId: TypeAlias = Callable[[Any], str]
TimeToLive: TypeAlias = Callable[[Any], str | None]

NO_ACKNOWLEDGEMENT: Final = "the reply is not a PubAck: it must have the name of a stream"

# "header size exceeds maximum allowed of 64k": the server stores the length in 16 bits.
MAX_HEADER_BYTES: Final = 2**16 - 1
TTL: Final = "Nats-TTL"
_TTL_VERSION: Final = (2, 11)


def event_id(event: EventLike) -> str:
    """
    Return the ``Nats-Msg-Id`` that Knative, Dapr and Argo use for an event: its id, unchanged.

    If two events from different sources have the same id, the stream drops the second one.

    Raises:
        EncodeError: ``missing-attribute`` or ``invalid-attribute-type``.
    """
    identifier = attributes_and_data(event)[0].get("id")
    if identifier is None:
        raise EncodeError(ErrorCode.MISSING_ATTRIBUTE, "the event must have an id", attribute="id")
    return canonical(identifier, "id")


def prepare_for_stream(
    nc: Client,
    event: EventLike,
    subject: str | SubjectTemplate,
    *,
    mode: Mode,
    format: Format | None,  # noqa: A002
    headers: HeadersLike,
    dedup: DedupId | None,
    ttl: TimeToLive | None = None,
    headerless: bool = False,
    trace: TraceContext | None,
) -> NatsMessage:
    """
    Return the message of an event, checked for nats-py, the server and a stream, except for its size.

    Raises:
        EncodeError: As :func:`ce_nats.aio.jetstream.publish` does.
        DeliveryError: As :func:`ce_nats.aio.jetstream.publish` does: ``incompatible-config``.
    """
    if headerless and not supports_headers(nc):
        for option, function, name in (("dedup", dedup, MSG_ID), ("ttl", ttl, TTL)):
            if function is not None:
                text = f"the server does not support headers, so {name!r} cannot be sent; use {option}=None"
                raise EncodeError(ErrorCode.HEADERS_NOT_SUPPORTED, text, header=name)
    if headers is None and trace is None and supports_headers(nc):  # the usual case; does what prepare() does
        message = to_nats_message(event, subject, mode=mode, format=format)
        if not message.subject:
            check_subject(subject)
    else:
        message = prepare(
            nc, event, subject, mode=mode, format=format, headers=headers, headerless=headerless, trace=trace
        )
    if dedup is not None and not (headers and MSG_ID in message.headers):
        message.headers._pairs.append((MSG_ID, _message_id(event, dedup)))  # append() would check it again
    if ttl is not None:
        _add_ttl(nc, message, event, ttl)
    return message


def _add_ttl(nc: Client, message: NatsMessage, event: EventLike, ttl: TimeToLive) -> None:
    """
    Add the time to live of an event, unless the message has one.

    Raises:
        EncodeError: ``headers-not-supported``; as ``ttl`` does.
        DeliveryError: ``incompatible-config``.
    """
    if TTL in message.headers:
        return
    value = ttl(event)
    if value is None:
        return
    version = nc.connected_server_version
    if (version.major, version.minor) < _TTL_VERSION:  # it would ignore the header, and store the message
        number = f"{version.major}.{version.minor}.{version.patch}"
        text = f"{TTL!r} needs nats-server 2.11 or later, got {number}"
        raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, text)
    message.headers._pairs.append((TTL, _checked(TTL, value)))


def _checked(name: str, value: object) -> str:
    """
    Return the value of a header that a function of the caller returned.

    Raises:
        EncodeError: ``invalid-header-value``.
    """
    if not isinstance(value, str):
        text = f"{name!r} must be a str, got {preview(value)}"
        raise EncodeError(ErrorCode.INVALID_HEADER_VALUE, text, header=name)
    check_header(name, value)
    check_extra_headers([(name, value)])
    return value


def _message_id(event: EventLike, dedup: DedupId) -> str:
    if dedup is dedup_id:
        attributes = attributes_and_data(event)[0]  # already checked
        return dedup_text(str(attributes["source"]), str(attributes["id"]))
    return _checked(MSG_ID, dedup(event))
