"""
Publish events to JetStream, and read streams.

``publish`` waits for the server's acknowledgement and lets it drop duplicates. ``read_stream`` reads a range of a
stream, with header blocks as they were stored (nats-py makes a dict of those that it receives, and loses repeats and
malformed bytes).
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

    :class:`~ce_nats.aio.Publisher` does not wait for each one, and is many times as fast.

    Args:
        js: From ``nc.jetstream()``.
        event: As :func:`ce_nats.to_nats_message` takes it.
        subject: NATS subject to publish to, or a template of it.
        mode: ``BINARY`` or ``STRUCTURED``.
        format: Event format of structured mode, as for :func:`ce_nats.to_nats_message`.
        headers: Further headers, ``Nats-Expected-Last-Subject-Sequence`` or ``Nats-TTL`` for instance. They are not
            changed. A server that does not know one stores the message as if it had no meaning.
        dedup: Returns the ``Nats-Msg-Id`` for an event, unless ``headers`` have one, so that the server stores an event
            once however often it is sent within the stream's duplicate window: :func:`ce_nats.dedup_id`, or
            :func:`event_id` in a stream of Knative, Dapr or Argo. None sends no id.
        timeout: Seconds to wait, an election of the stream's leader included; by default as long as ``js`` does.
        headerless: As for :func:`ce_nats.aio.publish`; needs ``dedup=None``.
        trace: As for :func:`ce_nats.aio.publish`.

    Returns:
        The acknowledgement: ``stream``, ``seq``, and ``duplicate``, True where the stream had the event before.

    Raises:
        EncodeError: As :func:`ce_nats.aio.publish` does; ``headers-too-large`` for a header block of 64 KiB or more.
        DeliveryError: ``no-responders``: no stream listens; ``timeout``: no answer came in time, and the event may be
            stored; ``permission-denied``; ``publish-refused``, an :class:`~ce_nats.ApiError` whose ``number`` says why,
            10071 for another last sequence than expected; ``connection-closed``; ``unexpected-answer``: another
            subscriber replied.
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
            # Anybody may have subscribed to the subject and replied.
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

    It ends at the last message that the stream has when the iteration begins, and does not wait for more; messages on
    other subjects are skipped, and so are those that were deleted before. Nothing is acknowledged.

    Messages that the stream removes before they are read, by a purge or its limits, are lost: once everything before
    them was yielded, the iteration ends with an error that names them, unless ``on_loss`` says otherwise. The stream
    does not tell that messages between others were removed: one by one, by a purge of a subject, or because a later
    message on the subject replaced them.

    Messages come through a consumer in the server's memory, which is deleted at the end. None is created for a range of
    at most 256 sequences, for streams that delete what is acknowledged (work queue and interest), and where the server
    refuses it; they are read one by one then, which is a tenth as fast. After a lost connection or consumer, and when a
    leader was elected, reading continues after the last batch.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        subject: Subject, or several, wildcards allowed; messages on other subjects are skipped.
        start: First stream sequence, inclusive.
        end: Last stream sequence, inclusive; by default, and at most, the stream's last one.
        batch_size: Most messages in a batch. A batch is shorter at the end, and where 16 MiB of payload are reached.
        on_loss: Called with a :class:`~ce_nats.DataLossError` for messages that were removed before they were read; its
            ``first`` and ``last`` are their sequences. Returns to continue after them, raises to end. By default the
            error is raised.
        retry_timeout: Seconds to repeat what is not answered; by default 30, or the time limit of ``js`` if that is
            longer.

    Yields:
        Lists of at least one message, by ascending sequence.

    Raises:
        DeliveryError: ``stream-not-found``; ``no-responders``: JetStream is not enabled; ``timeout``;
            ``permission-denied``; ``connection-closed``; ``data-lost``, a :class:`~ce_nats.DataLossError`: messages
            were removed meanwhile, or the stream was deleted and another one with its name was created.
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
    """The range of :func:`read_stream`; messages that were removed before it begins are not a part of it."""
    last = state.last if end is None else min(end, state.last)
    subjects = [subject] if isinstance(subject, str) else subject
    patterns = () if ">" in subjects else tuple(subjects)
    # A stream at its limits removes its first messages all the time, also between this moment and the first batch.
    from_beginning = start <= 1 or start < state.first
    return StreamRange(state.name, max(start, state.first), last, state.created, patterns, from_beginning)


def _cut(messages: list[RawMessage], batch_size: int) -> Iterator[list[RawMessage]]:
    """Batches, the last of which is shorter, or empty."""
    start = size = 0
    for end, (_, _, data, _) in enumerate(messages, 1):
        size += len(data)
        if end - start >= batch_size or size >= _MAX_BATCH_BYTES:
            yield messages[start:end]
            start, size = end, 0
    yield messages[start:]
