"""
Publish events to JetStream, and read streams.

``publish`` waits for the acknowledgement; the server drops duplicates. ``read_stream`` reads a range of a stream, with
header blocks as stored (nats-py converts headers to a dict, and loses repeated names and malformed bytes).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import PubAck

from .._ranges import StreamRange, StreamState
from ..codec.binding import Mode, dedup_id
from ..codec.event import EventLike
from ..codec.formats import Format
from ..codec.mode import ContentMode
from ..codec.subject_template import SubjectTemplate
from ..errors import DeliveryError, ErrorCode
from ..extensions.tracing import TraceContext
from ..message import HeadersLike, StoredMessage
from ._errors import delivery_errors
from ._jetstream_api import StreamApi
from ._natspy import api_prefix, api_timeout, client_of
from ._permissions import answered
from ._util.checks import check_count, check_jetstream
from ._util.patience import RETRY_SECONDS
from .core._publish import as_nats_headers, check_size
from .publishing._prepare import MAX_HEADER_BYTES, NO_ACKNOWLEDGEMENT, DedupId, event_id, prepare_for_stream
from .publishing._stream_lookup import publish_with_retry
from .reading._range_reader import OnLoss, read_range_on, refuse_loss
from .reading._raw_pull import RawMessage
from .reading._stored_messages import as_messages

__all__ = ["DedupId", "StoredMessage", "event_id", "publish", "read_stream"]

_MAX_BATCH_BYTES: Final = 16 * 2**20


async def publish(
    js: JetStreamContext,
    event: EventLike,
    subject: str | SubjectTemplate,
    *,
    mode: Mode = ContentMode.BINARY,
    format: Format | None = None,  # noqa: A002
    headers: HeadersLike = None,
    dedup: DedupId | None = dedup_id,
    timeout: float | None = None,
    headerless: bool = False,
    trace: TraceContext | None = None,
) -> PubAck:
    """
    Publish an event to the stream that listens on a subject, and wait until it is stored.

    :class:`~ce_nats.aio.Publisher` does not wait for each acknowledgement, and is many times faster.

    Args:
        js: From ``nc.jetstream()``.
        event: The event, as for :func:`ce_nats.to_nats_message`.
        subject: NATS subject to publish to, or a subject template.
        mode: ``BINARY`` or ``STRUCTURED``.
        format: Event format of structured mode, as for :func:`ce_nats.to_nats_message`.
        headers: Additional headers, ``Nats-Expected-Last-Subject-Sequence`` or ``Nats-TTL`` for instance, sent
            unchanged. Servers ignore headers they do not support.
        dedup: Function that returns the ``Nats-Msg-Id`` of an event, unless ``headers`` have one. The server stores an
            event with the same id once within the stream's duplicate window. :func:`ce_nats.dedup_id`, or
            :func:`event_id` in a stream of Knative, Dapr or Argo. None sends no id.
        timeout: Seconds to wait, including an election of the stream's leader; by default the timeout of ``js``.
        headerless: As for :func:`ce_nats.aio.publish`; needs ``dedup=None``.
        trace: As for :func:`ce_nats.aio.publish`.

    Returns:
        The acknowledgement: ``stream``, ``seq``, and ``duplicate``, True if the stream already had the event.

    Raises:
        EncodeError: As :func:`ce_nats.aio.publish` does; ``headers-too-large`` for a header block of 64 KiB or more.
        DeliveryError: ``no-responders``: no stream listens; ``timeout``: no acknowledgement arrived in time, and the
            event may be stored; ``permission-denied``; ``publish-refused``, an :class:`~ce_nats.ApiError` with the
            server's ``err_code``, 10071 if the last sequence is not the expected one; ``connection-closed``;
            ``unexpected-answer``: another subscriber replied.
    """
    check_jetstream(js)
    nc = client_of(js)
    message = prepare_for_stream(
        nc, event, subject, mode=mode, format=format, headers=headers, dedup=dedup, headerless=headerless, trace=trace
    )
    check_size(message, nc.max_payload, MAX_HEADER_BYTES)
    subject, headers = message.subject, as_nats_headers(message.headers)
    with delivery_errors(subject, nc, refused=ErrorCode.PUBLISH_REFUSED):
        try:
            seconds = api_timeout(js) if timeout is None else timeout
            return await answered(nc, subject, lambda: publish_with_retry(js, subject, message.data, headers, seconds))
        except (AttributeError, TypeError, ValueError) as error:
            # Another subscriber of the subject may have replied.
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"{subject}: {NO_ACKNOWLEDGEMENT}") from error


async def read_stream(
    js: JetStreamContext,
    stream: str,
    *,
    subject: str | Sequence[str] = ">",
    start: int = 1,
    end: int | None = None,
    batch_size: int = 1000,
    on_loss: OnLoss | None = None,
    retry_timeout: float | None = None,
) -> AsyncGenerator[list[StoredMessage], None]:
    """
    Read a range of a stream, in batches.

    The iteration ends at the message that is the last one of the stream when the iteration begins. Messages on other
    subjects, and messages that were deleted before, are skipped. Nothing is acknowledged.

    Messages that the stream removes before they are read, by a purge or its limits, are lost: after the messages before
    them were yielded, the iteration ends with an error that has their sequences, unless ``on_loss`` returns. Messages
    that are removed between others (one by one, by a purge of a subject, or replaced by a later message on their
    subject) are not reported, because the stream does not report them.

    Messages are read through a consumer in the server's memory, which is deleted at the end. No consumer is created for
    a range of at most 256 sequences, for streams that delete acknowledged messages (work queue and interest), and if
    the server refuses it. Messages are then read one by one, at a tenth of the speed. After a lost connection or
    consumer, and after an election, reading continues after the last batch.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        subject: Subject, or several, wildcards allowed; messages on other subjects are skipped.
        start: First stream sequence, inclusive.
        end: Last stream sequence, inclusive; by default, and at most, the last one of the stream.
        batch_size: Maximum number of messages in a batch. A batch also ends at 16 MiB of payload.
        on_loss: Called with a :class:`~ce_nats.DataLossError` for messages that were removed before they were read; its
            ``first`` and ``last`` are their sequences. Returns to continue after them, raises to end. By default the
            error is raised.
        retry_timeout: Seconds to repeat requests without a response; by default 30, or the timeout of ``js`` if that is
            longer.

    Yields:
        Lists of at least one message, by ascending sequence.

    Raises:
        DeliveryError: ``stream-not-found``; ``no-responders``: JetStream is not enabled; ``timeout``;
            ``permission-denied``; ``connection-closed``; ``data-lost``, a :class:`~ce_nats.DataLossError`: messages
            were removed in the meantime, or the stream was deleted and created again.
        ValueError: ``batch_size`` is below 1.
    """
    check_jetstream(js)
    check_count("batch_size", batch_size)
    nc, prefix, timeout = client_of(js), api_prefix(js), api_timeout(js)
    if retry_timeout is None:
        retry_timeout = max(RETRY_SECONDS, timeout)
    state = await StreamApi(nc, prefix, timeout, retry_timeout).state(stream)
    found = read_range_on(
        nc,
        _range(state, subject, start, end),
        prefix=prefix,
        on_loss=on_loss or refuse_loss,
        request_timeout=timeout,
        retry_timeout=retry_timeout,
    )
    rest: list[RawMessage] = []
    failure: Exception | None = None
    async with aclosing(found) as ranges:
        try:
            async for messages in ranges:
                *batches, rest = _cut(rest + messages.messages, batch_size)
                for batch in batches:
                    yield as_messages(batch, stream)
        except Exception as error:
            failure = error
    if rest:
        yield as_messages(rest, stream)
    if failure is not None:
        raise failure


def _range(state: StreamState, subject: str | Sequence[str], start: int, end: int | None) -> StreamRange:
    """Return the range to read, without messages that were removed before reading begins."""
    last = state.last if end is None else min(end, state.last)
    subjects = [subject] if isinstance(subject, str) else subject
    patterns = () if ">" in subjects else tuple(subjects)
    # A stream at its limits keeps removing its first messages, also before the first batch.
    from_beginning = start <= 1 or start < state.first
    return StreamRange(state.name, max(start, state.first), last, state.created, patterns, from_beginning)


def _cut(messages: list[RawMessage], batch_size: int) -> Iterator[list[RawMessage]]:
    """Yield batches; the last one is shorter, or empty."""
    start = size = 0
    for end, (_, _, data, _) in enumerate(messages, 1):
        size += len(data)
        if end - start >= batch_size or size >= _MAX_BATCH_BYTES:
            yield messages[start:end]
            start, size = end, 0
    yield messages[start:]
