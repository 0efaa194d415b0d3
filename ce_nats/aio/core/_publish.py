"""
Publish events on core NATS.

NATS binding, section 3. ``ce_nats.to_nats_message`` encodes the event; this module adds the checks of server and
nats-py. nats-py sends some messages for which a server closes the connection. They are refused here: headers and
payload larger than ``max_payload``, headers if the server does not support them, a subject that is too long for the
control line.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import Any, Final, cast

import nats.errors
from nats.aio.client import Client

from ...codec.binding import Mode, to_nats_message
from ...codec.event import EventLike, ExtendedEvent, attributes_and_data
from ...codec.formats import JSON, Format
from ...codec.mode import ContentMode
from ...codec.subject_template import SubjectTemplate
from ...errors import DeliveryError, EncodeError, ErrorCode, preview
from ...extensions.tracing import TRACEPARENT, TraceContext
from ...message import Headers, HeadersLike, NatsMessage, folded, header_pairs
from ...subjects import check_subject
from ...wire.nats import write_publish
from .._errors import delivery_errors
from .._util.checks import check_client
from .._util.pausing import pause
from ..link._client import server_info
from ..link._link import Link, result_unless
from ..link._writing import send_publish

# "NATS/1.0" CRLF before the header lines, CRLF after them; ": " and CRLF in each line.
_BLOCK_BYTES: Final = 12
_LINE_BYTES: Final = 4
# RFC 9110 5.6.2, which is narrower than ADR-4.
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# nats-server closes a connection that sends a line of more than 4096 bytes ("maximum control line exceeded"). The rest
# is for sizes, and for a reply subject that nats-py generates.
_MAX_SUBJECT_BYTES: Final = 4096 - 256
# The timeout of nats-py's flush().
_FLUSH_SECONDS: Final = 10.0
_CHECK_SECONDS: Final = 0.05


async def publish(
    nc: Client,
    event: EventLike,
    subject: str | SubjectTemplate,
    *,
    mode: Mode = ContentMode.BINARY,
    format: Format | None = None,  # noqa: A002
    reply: str = "",
    headers: HeadersLike = None,
    headerless: bool = False,
    trace: TraceContext | None = None,
) -> None:
    """
    Publish an event.

    Core NATS does not confirm delivery. :func:`flush` waits until the server has received the message, and raises if
    the server denied it.

    Args:
        nc: An open connection.
        event: The event, as for :func:`ce_nats.to_nats_message`.
        subject: NATS subject to publish to, or a subject template.
        mode: ``BINARY`` or ``STRUCTURED``.
        format: Event format of structured mode, as for :func:`ce_nats.to_nats_message`.
        reply: Reply subject, or ``""``.
        headers: Additional headers, as for :func:`ce_nats.to_nats_message`. Repeated names are sent (receivers on
            nats-py see only the last one).
        headerless: True sends the event as JSON without headers if the server does not support headers (before 2.2, or
            by its configuration); False raises.
        trace: Trace context of the sender, :func:`ce_nats.extensions.tracing.current_trace` for instance. It is sent in
            the headers ``traceparent`` and ``tracestate``, and in the event unless the event already has a trace.

    Raises:
        EncodeError: As :func:`ce_nats.to_nats_message` does; ``payload-too-large`` if headers and payload together
            exceed the server's ``max_payload``; ``headers-not-supported``; ``invalid-subject`` without a subject, or
            with one of more than 3840 bytes; ``invalid-header-name`` and ``invalid-header-value`` for headers that
            nats-py refuses or changes. Nothing was sent.
        DeliveryError: ``connection-closed``, ``buffer-full``.
    """
    check_client(nc)
    message = prepare(
        nc,
        event,
        subject,
        mode=mode,
        format=format,
        reply=reply,
        headers=headers,
        headerless=headerless,
        trace=trace,
    )
    check_size(message, nc.max_payload)
    await send(nc, message)


async def send(nc: Client, message: NatsMessage) -> None:
    """
    Publish a prepared message whose size was checked.

    Raises:
        DeliveryError: ``connection-closed``, ``buffer-full``.
    """
    Link.of(nc)
    with delivery_errors(message.subject, nc):
        await nc.publish(message.subject, message.data, message.reply, headers=as_nats_headers(message.headers))


async def publish_with_block(nc: Client, message: NatsMessage, block: bytes, reply: str = "") -> None:
    """
    Publish a message whose subject, headers and size were checked, with a header block that is already encoded.

    ``nc.publish()`` checks each character of each header, which takes longer than everything else it does, and cannot
    send bytes that are not UTF-8.
    """
    payload = message.data
    await send_publish(nc, write_publish(message.subject, payload, block, reply), len(payload))


async def flush(nc: Client) -> None:
    """
    Wait until the server has received all messages and subscriptions of a connection so far.

    Raises:
        DeliveryError: ``connection-closed``; ``timeout``: the server does not answer; ``permission-denied``: the server
            denied a publish since the last ``flush()`` that no other call awaits. Each denial is raised once; without
            ``flush()`` only nats-py's ``error_cb`` receives it.
    """
    check_client(nc)
    await round_trip(nc)
    Link.of(nc).permissions.check_publishes()


async def round_trip(nc: Client) -> None:
    """
    Wait until the server has received everything that was sent on a connection so far.

    nats-py's ``flush()`` writes its PING before the content of its buffer. While the first call waits for its PONG, the
    buffer is written, so the PING of the second call follows it.

    Raises:
        DeliveryError: ``connection-closed``; ``timeout``: the server does not answer.
    """
    with delivery_errors("flush", nc), Link.of(nc).ending.until_closed("flush") as failed:
        for _ in range(2):
            await result_unless(failed, nc.flush)
            # nats-py does not wait for a PONG while it reconnects or closes; its read loop does not run then.
            if not Link.of(nc).reading.is_running:
                await _until_read(nc, failed)
                await result_unless(failed, nc.flush)


async def _until_read(nc: Client, failed: asyncio.Future[DeliveryError]) -> None:
    """
    Wait for a reconnect.

    Raises:
        DeliveryError: The connection was closed.
        nats.errors.FlushTimeoutError: The reconnect took too long.
    """
    give_up = time.monotonic() + _FLUSH_SECONDS
    while not Link.of(nc).reading.is_running:
        if failed.done():
            raise failed.result()
        if time.monotonic() >= give_up:
            raise nats.errors.FlushTimeoutError
        await pause(_CHECK_SECONDS)


def prepare(
    nc: Client,
    event: EventLike,
    subject: str | SubjectTemplate,
    *,
    mode: Mode,
    format: Format | None = None,  # noqa: A002
    reply: str = "",
    headers: HeadersLike = None,
    headerless: bool = False,
    trace: TraceContext | None = None,
    is_verbatim: bool = False,
) -> NatsMessage:
    """Return the message of an event, checked for nats-py and for the server of a connection, except for its size."""
    has_headers = supports_headers(nc)
    if not has_headers:
        _check_headerless(headerless, headers, format)
        mode = ContentMode.STRUCTURED
    if trace is not None:
        event, headers = _traced(event, headers, trace)
    given = "" if is_verbatim else subject
    message = to_nats_message(event, given, mode=mode, format=format, reply=reply, headers=headers)
    if not message.subject:  # to_nats_message accepts a message without a subject
        check_subject(subject)
        message.subject = str(subject)
    if not has_headers:
        # Without headers the event must be JSON: version 1.0.2 of the binding.
        message.headers = Headers()
    elif headers:
        # Headers of the event are percent-encoded, so they need no check.
        check_extra_headers(message.headers.items())
    return message


def supports_headers(nc: Client) -> bool:
    """Return whether the server supports headers: since 2.2, unless configured otherwise. True before a connection."""
    info = server_info(nc)
    return bool(info.get("headers", not info))


def check_extra_headers(pairs: Iterable[tuple[str, str]]) -> None:
    """
    Refuse headers that ADR-4 allows and nats-py refuses or changes.

    Raises:
        EncodeError: ``invalid-header-name``, ``invalid-header-value``.
    """
    for name, value in pairs:
        if not _TOKEN.fullmatch(name):
            raise EncodeError(
                ErrorCode.INVALID_HEADER_NAME, f"nats-py cannot send a header named {preview(name)}", header=name
            )
        if value != value.strip():
            raise EncodeError(
                ErrorCode.INVALID_HEADER_VALUE,
                f"nats-py would strip the white space around the value of header {preview(name)}: {preview(value)}",
                header=name,
            )


def check_size(
    message: NatsMessage, max_payload: int, max_headers: int | None = None, header_size: int | None = None
) -> None:
    """
    Refuse a message that makes the server close the connection, or that a stream refuses.

    Raises:
        EncodeError: ``payload-too-large``; ``headers-too-large``; ``invalid-subject`` if subject and reply subject do
            not fit in a line.
    """
    if header_size is None:
        header_size = header_bytes(message.headers)
    size = header_size + len(message.data)
    check_sizes(header_size, size, bytes_of(message.subject) + bytes_of(message.reply), max_payload, max_headers)


def check_sizes(
    header_size: int, size: int, subject_length: int, max_payload: int, max_headers: int | None = None
) -> None:
    """Refuse a message that makes the server close the connection, or that a stream refuses, by its sizes in bytes."""
    if size > max_payload:
        raise EncodeError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"headers and payload must have at most {max_payload} bytes for this server, got {size}",
        )
    if max_headers is not None and header_size > max_headers:
        raise EncodeError(
            ErrorCode.HEADERS_TOO_LARGE,
            f"headers must have at most {max_headers} bytes for JetStream, got {header_size}",
        )
    if subject_length > _MAX_SUBJECT_BYTES:
        raise EncodeError(
            ErrorCode.INVALID_SUBJECT,
            f"subject and reply subject must have at most {_MAX_SUBJECT_BYTES} bytes together, got {subject_length}",
        )


def header_bytes(headers: Headers) -> int:
    """Return the size of a header block, from ``NATS/1.0`` to the empty line; 0 without headers."""
    pairs = headers.items()
    return _BLOCK_BYTES + _LINE_BYTES * len(pairs) + bytes_of("".join(map("".join, pairs))) if pairs else 0


def bytes_of(text: str) -> int:
    """Return the number of bytes of text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def as_nats_headers(headers: Headers) -> dict[str, str] | None:
    """Return headers with nats-py's annotation; it only iterates over ``items()``, so repeated names are sent."""
    return cast("dict[str, str]", headers) if headers else None


def _check_headerless(headerless: bool, headers: HeadersLike, event_format: Format | None) -> None:
    if not headerless:
        raise EncodeError(
            ErrorCode.HEADERS_NOT_SUPPORTED,
            "the server does not support headers; headerless=True sends events as JSON without them",
        )
    if event_format not in (None, JSON):
        raise EncodeError(
            ErrorCode.HEADERS_NOT_SUPPORTED,
            f"the server does not support headers; without them format must be {JSON!r}, got {preview(event_format)}",
        )
    if headers and (further := header_pairs(headers, EncodeError)):
        name = further[0][0]
        raise EncodeError(
            ErrorCode.HEADERS_NOT_SUPPORTED,
            f"the server does not support headers, so {preview(name)} cannot be sent",
            header=name,
        )


def _traced(event: EventLike, headers: HeadersLike, trace: TraceContext) -> tuple[Any, HeadersLike]:
    """Add a trace to event and headers that have none: the trace in an event is that of its first sender."""
    pairs = header_pairs(headers, EncodeError)
    if not any(folded(name) == TRACEPARENT for name, _ in pairs):
        pairs = [*pairs, *trace.fields().items()]
    if attributes_and_data(event)[0].get(TRACEPARENT) is None:
        event = ExtendedEvent(event, trace.fields())
    return event, pairs
