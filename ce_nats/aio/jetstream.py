"""
Publish events to JetStream, and read streams.

``publish`` waits for the server's acknowledgement and lets it drop duplicates. ``read_stream`` reads a range of a
stream without a consumer: message by message through the API, which is the only way to see header blocks as they were
stored (nats-py makes a dict of those that it receives, and loses repeats and malformed bytes).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck

from ..codec.attributes import canonical
from ..codec.binding import Mode, dedup_id, dedup_text
from ..codec.event import Event, attributes_and_data
from ..codec.formats import Format
from ..codec.mode import ContentMode
from ..codec.subject_template import SubjectTemplate
from ..codec.timestamp import Timestamp
from ..errors import DeliveryError, EncodeError, ErrorCode, preview
from ..extensions.tracing import TraceContext
from ..message import HeadersLike, NatsMessage, StoredMessage, check_header
from ._nats import api_timeout, client_of
from .checks import check_jetstream
from .listening import publish_patiently
from .nats_errors import delivery_errors
from .publish import as_nats_headers, check_further, check_size, prepare, takes_headers
from .streams import Stored, StreamApi
from .watch import answered, denial

__all__ = ["DedupId", "StoredMessage", "bare_id", "publish", "read_stream"]

DedupId: TypeAlias = Callable[[Any], str]

MSG_ID: Final = "Nats-Msg-Id"
NO_ACKNOWLEDGEMENT: Final = "the reply is not a PubAck: it must have the name of a stream"

# "header size exceeds maximum allowed of 64k": the length is kept in 16 bits.
MAX_HEADER_BYTES: Final = 2**16 - 1
# Requests in flight at a time, and the most bytes that their answers may have together. The server drops a client that
# has more than 64 MiB pending, and counts what it is writing until all of that is written, so answers can count twice.
_MAX_REQUESTS: Final = 128
_MAX_BYTES_UNDER_WAY: Final = 24 * 2**20
_MAX_BATCH_BYTES: Final = 16 * 2**20


async def publish(
    js: JetStreamContext,
    event: Event,
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
        headers: Further headers, ``Nats-Expected-Last-Sequence`` or ``Nats-TTL`` for instance. They are not changed.
        dedup: Returns the ``Nats-Msg-Id`` for an event, unless ``headers`` have one, so that the server stores an event
            once however often it is sent within the stream's duplicate window: :func:`ce_nats.dedup_id`, or
            :func:`bare_id` in a stream of Knative, Dapr or Argo. None sends no id.
        timeout: Seconds to wait, an election of the stream's leader included; by default as long as ``js`` does.
        headerless: As for :func:`ce_nats.aio.publish`; needs ``dedup=None``.
        trace: As for :func:`ce_nats.aio.publish`.

    Returns:
        The acknowledgement: ``stream``, ``seq``, and ``duplicate``, True where the stream had the event before.

    Raises:
        EncodeError: As :func:`ce_nats.aio.publish` does; ``headers-too-large`` for a header block of 64 KiB or more.
        DeliveryError: ``no-responders``: no stream listens; ``timeout``: no answer came in time, and the event may be
            stored; ``permission-denied``; ``publish-refused``: ``__cause__`` has ``err_code``;
            ``connection-closed``; ``unexpected-answer``: another subscriber replied.
    """
    check_jetstream(js)
    nc = client_of(js)
    message = prepare_for_stream(
        nc, event, subject, mode=mode, format=format, headers=headers, dedup=dedup, headerless=headerless, trace=trace
    )
    check_size(message, nc.max_payload, MAX_HEADER_BYTES)
    subject, headers = message.subject, as_nats_headers(message.headers)
    with delivery_errors(subject, refused=ErrorCode.PUBLISH_REFUSED):
        try:
            seconds = api_timeout(js) if timeout is None else timeout
            return await answered(nc, subject, lambda: publish_patiently(js, subject, message.data, headers, seconds))
        except (AttributeError, TypeError, ValueError) as error:
            # Anybody may have subscribed to the subject and replied.
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"{subject}: {NO_ACKNOWLEDGEMENT}") from error


def bare_id(event: Event) -> str:
    """
    The ``Nats-Msg-Id`` that Knative, Dapr and Argo give an event: its id as it stands.

    Of two events with the same id from different sources, the stream then drops the second one.

    Raises:
        EncodeError: ``missing-attribute`` or ``invalid-attribute-type``.
    """
    identifier = attributes_and_data(event)[0].get("id")
    if identifier is None:
        raise EncodeError(ErrorCode.MISSING_ATTRIBUTE, "the event must have an id", attribute="id")
    return canonical(identifier, "id")


def prepare_for_stream(
    nc: Client,
    event: Event,
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
    The message of an event, ready for nats-py, the server and a stream; its size is not checked.

    Raises:
        EncodeError: As :func:`publish` does.
    """
    if dedup is not None and headerless and not takes_headers(nc):
        raise EncodeError(
            ErrorCode.HEADERS_NOT_SUPPORTED,
            f"the server does not support headers, so {MSG_ID!r} cannot be sent; use dedup=None",
            header=MSG_ID,
        )
    message = prepare(nc, event, subject, mode=mode, format=format, headers=headers, headerless=headerless, trace=trace)
    if dedup is not None and not (headers and MSG_ID in message.headers):
        message.headers._pairs.append((MSG_ID, _message_id(event, dedup)))  # append() would check it once more
    return message


def _message_id(event: Event, dedup: DedupId) -> str:
    if dedup is dedup_id:
        attributes = attributes_and_data(event)[0]  # which have been checked
        return dedup_text(str(attributes["source"]), str(attributes["id"]))
    identifier = dedup(event)
    if not isinstance(identifier, str):
        raise EncodeError(
            ErrorCode.INVALID_HEADER_VALUE, f"{MSG_ID!r} must be a str, got {preview(identifier)}", header=MSG_ID
        )
    check_header(MSG_ID, identifier)
    check_further([(MSG_ID, identifier)])
    return identifier


async def read_stream(
    js: JetStreamContext,
    stream: str,
    *,
    subject: str = ">",
    start: int = 1,
    end: int | None = None,
    batch_size: int = 1000,
) -> AsyncGenerator[list[StoredMessage], None]:
    """
    Read a range of a stream, in batches.

    It ends at the last message that the stream has when the iteration begins, and does not wait for more; deleted
    messages and other subjects are skipped. No consumer is created, and nothing is acknowledged.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        subject: Subject, wildcards allowed; messages on other subjects are skipped.
        start: First stream sequence, inclusive.
        end: Last stream sequence, inclusive; by default, and at most, the stream's last one.
        batch_size: Most messages in a batch. A batch is shorter at the end, and where 16 MiB of payload are reached.

    Yields:
        Lists of at least one message, by ascending sequence.

    Raises:
        DeliveryError: ``stream-not-found``; ``no-responders``: JetStream is not enabled; ``timeout``;
            ``permission-denied``; ``connection-closed``.
    """
    check_jetstream(js)
    state = await StreamApi.of(js).state(stream)
    last = state.last if end is None else min(end, state.last)
    batch: list[StoredMessage] = []
    size = 0
    async with aclosing(_messages(js, stream, subject, max(start, state.first), last)) as messages:
        async for message in messages:
            batch.append(message)
            size += len(message.data)
            if len(batch) >= batch_size or size >= _MAX_BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


async def _messages(
    js: JetStreamContext, stream: str, subject: str, first: int, last: int
) -> AsyncGenerator[StoredMessage, None]:
    """All messages of a range, requested ahead of their use."""
    under_way: deque[asyncio.Task[StoredMessage | None]] = deque()
    nc, api = client_of(js), StreamApi.of(js)
    window = most = _max_requests(nc)
    ask, seen = first, first - 1  # next sequence to ask for; everything up to here is known
    # One watch for all requests: answered() makes a task for each, which costs a third of the rate.
    with denial(nc, api.stored_subject(stream)) as denied:
        denied.add_done_callback(lambda _: [task.cancel() for task in under_way])
        try:
            while ask <= last or under_way:
                while ask <= last and len(under_way) < window:
                    under_way.append(asyncio.create_task(_next_message(api, stream, subject, ask)))
                    ask += 1
                # Shielded: nats-py's wait_for() loses a cancellation that comes together with the answer (before 3.12).
                message = await asyncio.shield(under_way[0])
                under_way.popleft()
                if message is None or message.sequence > last:
                    return
                if message.sequence > seen:
                    seen = message.sequence
                    ask = max(ask, seen + 1)
                    window = min(most, window + 1)
                    yield message
                else:
                    # An earlier request returned this one, across a gap. The wider the gaps, the less it helps to
                    # request ahead.
                    window = max(1, window // 2)
        except asyncio.CancelledError:
            if denied.done():
                raise denied.result() from None
            raise
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


def _max_requests(nc: Client) -> int:
    largest_answer = nc.max_payload * 4 // 3  # base64
    return max(1, min(_MAX_REQUESTS, _MAX_BYTES_UNDER_WAY // largest_answer))


async def _next_message(api: StreamApi, stream: str, subject: str, sequence: int) -> StoredMessage | None:
    """The first message on a subject from a sequence on, or None."""
    stored = await api.stored(stream, {"seq": sequence, "next_by_subj": subject}, is_watched=True)
    return None if stored is None else as_message(stored, stream)


def as_message(stored: Stored, stream: str) -> StoredMessage:
    """A stored message with its header block read."""
    time = Timestamp.parse(stored.time)
    return StoredMessage(stored.subject, "", _pairs(stored.hdrs), stored.data, stream, stored.seq, time)


def _pairs(block: bytes) -> list[tuple[str, str]]:
    """
    Headers of a stored block, which may hold anything: the server does not look inside.

    Lines without a colon are not headers. Names stay as they are, so that a malformed name is seen.
    """
    lines = block.decode("utf-8", "surrogateescape").split("\r\n")[1:]
    return [(name, value.strip(" \t")) for name, colon, value in (line.partition(":") for line in lines) if colon]
