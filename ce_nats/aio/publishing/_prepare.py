"""Prepare messages for streams: encode, and add the ``Nats-Msg-Id`` by which a stream detects duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from nats.aio.client import Client

from ...codec.attributes import canonical
from ...codec.binding import Mode, dedup_id, dedup_text
from ...codec.event import EventLike, attributes_and_data
from ...codec.formats import Format
from ...codec.subject_template import SubjectTemplate
from ...errors import EncodeError, ErrorCode, preview
from ...extensions.tracing import TraceContext
from ...message import MSG_ID, HeadersLike, NatsMessage, check_header
from ..core._publish import check_extra_headers, prepare, supports_headers

DedupId: TypeAlias = Callable[[Any], str]

NO_ACKNOWLEDGEMENT: Final = "the reply is not a PubAck: it must have the name of a stream"

# "header size exceeds maximum allowed of 64k": the server stores the length in 16 bits.
MAX_HEADER_BYTES: Final = 2**16 - 1


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
    headerless: bool = False,
    trace: TraceContext | None,
) -> NatsMessage:
    """
    Return the message of an event, checked for nats-py, the server and a stream, except for its size.

    Raises:
        EncodeError: As :func:`ce_nats.aio.jetstream.publish` does.
    """
    if dedup is not None and headerless and not supports_headers(nc):
        raise EncodeError(
            ErrorCode.HEADERS_NOT_SUPPORTED,
            f"the server does not support headers, so {MSG_ID!r} cannot be sent; use dedup=None",
            header=MSG_ID,
        )
    message = prepare(nc, event, subject, mode=mode, format=format, headers=headers, headerless=headerless, trace=trace)
    if dedup is not None and not (headers and MSG_ID in message.headers):
        message.headers._pairs.append((MSG_ID, _message_id(event, dedup)))  # append() would check it again
    return message


def _message_id(event: EventLike, dedup: DedupId) -> str:
    if dedup is dedup_id:
        attributes = attributes_and_data(event)[0]  # already checked
        return dedup_text(str(attributes["source"]), str(attributes["id"]))
    identifier = dedup(event)
    if not isinstance(identifier, str):
        raise EncodeError(
            ErrorCode.INVALID_HEADER_VALUE, f"{MSG_ID!r} must be a str, got {preview(identifier)}", header=MSG_ID
        )
    check_header(MSG_ID, identifier)
    check_extra_headers([(MSG_ID, identifier)])
    return identifier
