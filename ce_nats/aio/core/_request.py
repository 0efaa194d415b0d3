"""
Request-reply on core NATS, with events in both directions.

"Request-Reply" of the NATS documentation. A reply is a separate event: it takes from the request only the attributes of
the CloudEvents extensions Correlation and Distributed Tracing. (nats-py's ``respond()`` sends the headers of the
request back, so that a reply looks like the request.)
"""

from __future__ import annotations

from functools import partial
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from ..._numbers import check_seconds
from ...codec.attributes import ExtensionTypes
from ...codec.binary import Dialect
from ...codec.binding import DialectName, Mode, from_nats_message
from ...codec.event import DecodedEvent, EventLike, ExtendedEvent, attributes_and_data
from ...codec.formats import Format
from ...codec.mode import ContentMode
from ...codec.subject_template import SubjectTemplate
from ...errors import DecodeError, DeliveryError, EncodeError, ErrorCode, preview
from ...extensions.correlation import caused_by
from ...extensions.tracing import TRACEPARENT, TraceContext, trace_of_event, trace_of_headers
from ...message import HeadersLike
from ...wire._ack_subject import ACK_PREFIX
from .._errors import delivery_errors
from .._foreign_subjects import check_foreign_subject
from .._util.checks import check_client
from ..link._client import client_of
from ..link._link import answered
from ._publish import as_nats_headers, check_size, prepare, send
from ._received import Received
from ._subscribe import receive


async def request(
    nc: Client,
    event: EventLike,
    subject: str | SubjectTemplate,
    *,
    mode: Mode = ContentMode.BINARY,
    format: Format | None = None,  # noqa: A002
    timeout: float = 5.0,
    headers: HeadersLike = None,
    headerless: bool = False,
    trace: TraceContext | None = None,
    dialect: DialectName = Dialect.SPEC,
    parse_data: bool = True,
    extension_types: ExtensionTypes | None = None,
) -> Received:
    """
    Send an event, and wait for the first reply.

        answer = (await request(nc, event, "prices")).event

    Args:
        nc: An open connection.
        event: The event, as for :func:`ce_nats.to_nats_message`.
        subject: NATS subject to publish to, or a subject template.
        mode: ``BINARY`` or ``STRUCTURED``. The sender of the reply chooses the mode of the reply.
        format: Event format of structured mode, as for :func:`ce_nats.to_nats_message`.
        timeout: Seconds to wait for the reply.
        headers: As for :func:`ce_nats.aio.publish`.
        headerless: As for :func:`ce_nats.aio.publish`.
        trace: As for :func:`ce_nats.aio.publish`.
        dialect: Dialect of binary mode of the reply.
        parse_data: False returns the data of the reply as bytes.
        extension_types: Python types of extension attributes of the reply.

    Returns:
        The reply. Its ``event`` raises a DecodeError if the reply is not a CloudEvent; ``message`` is that of nats-py.

    Raises:
        EncodeError: As :func:`ce_nats.aio.publish` does. Nothing was sent.
        DeliveryError: ``no-responders``: the subject has no subscriber (a server without headers does not report it,
            and the request times out); ``timeout``: no reply arrived in time; ``permission-denied``: the server denies
            the subject, or the inbox for replies; ``connection-closed``; ``unexpected-answer``: the reply is a status
            message.
        ValueError: ``timeout`` is not a number of seconds, 0 or more.
    """
    check_client(nc)
    check_seconds("timeout", timeout)
    message = prepare(nc, event, subject, mode=mode, format=format, headers=headers, headerless=headerless, trace=trace)
    check_size(message, nc.max_payload)
    decode = partial(from_nats_message, dialect=dialect, parse_data=parse_data, extension_types=extension_types)
    outgoing = as_nats_headers(message.headers)
    with delivery_errors(message.subject, nc):
        reply = await answered(
            nc,
            message.subject,
            lambda: nc.request(message.subject, message.data, timeout=timeout, headers=outgoing),
        )
    received = receive(reply, decode)
    if received is None:
        raise DeliveryError(
            ErrorCode.UNEXPECTED_ANSWER,
            f"{message.subject}: the reply must be a message, got a status: {reply.headers}",
        )
    return received


async def respond(
    request: Msg | Received,
    event: EventLike,
    *,
    mode: Mode = ContentMode.BINARY,
    format: Format | None = None,  # noqa: A002
    headers: HeadersLike = None,
    headerless: bool = False,
    correlate: bool = True,
    trace: TraceContext | None = None,
) -> None:
    """
    Reply to a request with an event.

        async for item in requests:
            await respond(item, CloudEvent({"source": "/shop", "type": "price"}, 12.5))

    Args:
        request: The request as received.
        event: The reply, as for :func:`ce_nats.to_nats_message`.
        mode: ``BINARY`` or ``STRUCTURED``.
        format: Event format of structured mode, as for :func:`ce_nats.to_nats_message`.
        headers: As for :func:`ce_nats.aio.publish`.
        headerless: As for :func:`ce_nats.aio.publish`.
        correlate: True copies the id of the request to ``causationid``, and its ``correlationid`` and trace, unless the
            reply already has these attributes. False sends the event unchanged.
        trace: As for :func:`ce_nats.aio.publish`; by default, with ``correlate``, the trace of the request.

    Raises:
        EncodeError: As :func:`ce_nats.aio.publish` does; ``invalid-subject`` if the message has no reply subject, or is
            from JetStream, which takes a reply for an acknowledgement; ``forbidden-subject`` if the server acts on the
            reply subject, which the sender has chosen, instead of delivering to an inbox.
        DeliveryError: ``connection-closed``, ``buffer-full``.
    """
    message = request.message if isinstance(request, Received) else request
    if not message.reply or message.reply.startswith(ACK_PREFIX):
        raise EncodeError(
            ErrorCode.INVALID_SUBJECT,
            f"the message on {preview(message.subject)} must have a reply subject",
            attribute=None,
        )
    nc = client_of(message)
    check_foreign_subject(nc, message.reply, is_reply=True)
    if correlate:
        event = _caused_by(event, request)
        trace = trace or trace_of_headers(message.headers)
    reply = prepare(
        nc,
        event,
        message.reply,
        mode=mode,
        format=format,
        headers=headers,
        headerless=headerless,
        trace=trace,
        is_verbatim=True,
    )
    check_size(reply, nc.max_payload)
    await send(nc, reply)


def _caused_by(event: EventLike, request: Msg | Received) -> Any:
    try:
        cause: DecodedEvent = request.event if isinstance(request, Received) else from_nats_message(request)
    except DecodeError:
        return event  # the request was not a CloudEvent
    further = caused_by(cause)
    trace = trace_of_event(cause)
    if trace is not None and attributes_and_data(event)[0].get(TRACEPARENT) is None:
        further.update(trace.fields())
    return ExtendedEvent(event, further)
