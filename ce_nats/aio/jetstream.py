"""
Publish events to JetStream, read streams, and change their settings.

``publish`` waits for the acknowledgement; the server drops duplicates. ``read_stream`` reads a range of a stream, with
header blocks as stored (nats-py converts headers to a dict, and loses repeated names and malformed bytes).
``configure_stream`` changes settings that nats-py's ``StreamConfig`` may not have.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
from nats.js import JetStreamContext
from nats.js.api import PubAck

from .._numbers import check_integer, check_optional_seconds
from .._ranges import StreamRange, StreamState
from ..codec.binding import Mode, dedup_id
from ..codec.event import EventLike
from ..codec.formats import Format
from ..codec.mode import ContentMode
from ..codec.subject_template import SubjectTemplate
from ..errors import DeliveryError, ErrorCode, preview
from ..extensions.tracing import TraceContext
from ..message import HeadersLike, StoredMessage
from ..wire.nats import write_header_block
from ._claim_check import ClaimCheck
from ._jetstream_api import StreamApi, nanoseconds
from ._util.checks import check_count, check_jetstream, check_time
from ._util.patience import RETRY_SECONDS
from ._util.resuming import Resumable
from .check_up._check import check
from .check_up._rules import Finding, Level
from .core._publish import check_size
from .link._client import api_prefix, api_timeout, client_of, server_info
from .link._frame_splitter import RawMessage
from .publishing._pending_acks import publish_one
from .publishing._prepare import MAX_HEADER_BYTES, DedupId, TimeToLive, event_id, prepare_for_stream
from .publishing._schedule import Schedule
from .reading._range_reader import OnLoss, OpenConsumer, after, read_range_on, refuse_loss
from .reading._stored_messages import as_messages

__all__ = [
    "DedupId",
    "Finding",
    "Level",
    "StoredMessage",
    "TimeToLive",
    "check",
    "configure_consumer",
    "configure_stream",
    "event_id",
    "publish",
    "read_stream",
]

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
    ttl: TimeToLive | None = None,
    timeout: float | None = None,
    headerless: bool = False,
    trace: TraceContext | None = None,
    claim_check: ClaimCheck | None = None,
    schedule: Schedule | None = None,
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
        ttl: Function that returns the ``Nats-TTL`` of an event, after which the stream deletes it, unless ``headers``
            have one; or None for no limit. :func:`ce_nats.extensions.expiry.time_to_live` returns the time until
            ``expirytime``. The stream must have ``allow_msg_ttl``, and needs nats-server 2.11.
        timeout: Seconds to wait, including an election of the stream's leader; by default the timeout of ``js``.
        headerless: As for :func:`ce_nats.aio.publish`; needs ``dedup=None``.
        trace: As for :func:`ce_nats.aio.publish`.
        claim_check: Store for large data, which is not sent in the message; None sends all data in messages. ``dedup``,
            ``ttl`` and a subject template get the event without its data.
        schedule: When the stream publishes the event, and to which subject; ``subject`` is that of the schedule. The
            ``Nats-Msg-Id`` of the schedule also contains its headers, so that an event can be scheduled again. ``ttl``
            is when the schedule ends.

    Returns:
        The acknowledgement: ``stream``, ``seq``, and ``duplicate``, True if the stream already had the event.

    Raises:
        EncodeError: As :func:`ce_nats.aio.publish` does; ``headers-too-large`` for a header block of 64 KiB or more; as
            ``ttl`` does, ``event-expired`` for instance; as :meth:`ce_nats.aio.ClaimCheck.check_in` does.
        DeliveryError: ``no-responders``: no stream listens; ``timeout``: no acknowledgement arrived in time, or before
            the connection was closed, and the event may be stored; ``permission-denied``; ``publish-refused``, an
            :class:`~ce_nats.ApiError` with the server's ``err_code``, 10071 if the last sequence is not the expected
            one, 10166 if the stream has no ``allow_msg_ttl``, 10188 if it has no ``allow_msg_schedules``;
            ``temporarily-unavailable``: the stream receives too many messages; ``payload-too-large``: the server's
            limit was lowered meanwhile; ``connection-closed``: it was not sent; ``unexpected-answer``: another
            subscriber replied; ``incompatible-config``: the server is too old for ``ttl`` or ``schedule``; as
            :meth:`ce_nats.aio.ClaimCheck.check_in` does.
        ValueError: ``timeout`` is not a number of seconds, 0 or more.
    """
    check_jetstream(js)
    check_optional_seconds("timeout", timeout)
    nc = client_of(js)
    if claim_check is not None:
        event = await claim_check.check_in(event)
    message = prepare_for_stream(
        nc,
        event,
        subject,
        mode=mode,
        format=format,
        headers=headers,
        dedup=dedup,
        ttl=ttl,
        headerless=headerless,
        trace=trace,
        schedule=schedule,
    )
    block = write_header_block(message.headers.items()) if message.headers else b""
    check_size(message, nc.max_payload, MAX_HEADER_BYTES, len(block))
    return await publish_one(js, message, block, api_timeout(js) if timeout is None else timeout)


def read_stream(
    js: JetStreamContext,
    stream: str,
    *,
    subject: str | Sequence[str] = ">",
    start: int = 1,
    end: int | None = None,
    start_time: datetime | None = None,
    end_time: datetime | None = None,
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
    consumer, and after an election, reading continues after the last batch. An iteration that was cancelled, by a
    timeout for instance, continues there as well; ``on_loss`` may then be called with an error again.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        subject: Subject, or several, wildcards allowed; messages on other subjects are skipped.
        start: First stream sequence, inclusive.
        end: Last stream sequence, inclusive; by default, and at most, the last one of the stream.
        start_time: Only messages stored at this time or later; with a time zone. It is determined by requests of single
            messages, and relies on ascending times in the stream, as the server does.
        end_time: Only messages stored at this time or earlier; as ``start_time``.
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
        ValueError: ``batch_size`` is below 1, an argument is not a number of its kind, or a time has no time zone.
        TypeError: A time is not a ``datetime``.
    """
    check_jetstream(js)
    check_count("batch_size", batch_size)
    check_time("start_time", start_time)
    check_time("end_time", end_time)
    check_integer("start", start)
    if end is not None:
        check_integer("end", end)
    check_optional_seconds("retry_timeout", retry_timeout)
    nc, prefix, timeout = client_of(js), api_prefix(js), api_timeout(js)
    if retry_timeout is None:
        retry_timeout = max(RETRY_SECONDS, timeout)
    rest: StreamRange | None = None  # what was not yielded
    opened = OpenConsumer(nc)

    async def read() -> AsyncGenerator[list[StoredMessage], None]:
        nonlocal rest
        if rest is None:
            api = StreamApi(nc, prefix, timeout, retry_timeout)
            state = await api.state(stream)
            first, last = await _in_time(api, state, start_time, end_time)
            rest = _range(state, subject, max(start, first), last if end is None else min(end, last))
        found = read_range_on(
            nc,
            rest,
            prefix=prefix,
            on_loss=on_loss or refuse_loss,
            request_timeout=timeout,
            retry_timeout=retry_timeout,
            opened=opened,
        )
        left: list[RawMessage] = []
        failure: Exception | None = None
        async with aclosing(found) as ranges:
            try:
                async for raw in ranges:
                    *batches, left = _cut(left + raw.messages, batch_size)
                    for number, batch in enumerate(batches, 1):
                        messages = as_messages(batch, stream)
                        has_more = left or number < len(batches)
                        rest = after(rest, messages[-1].sequence if has_more else raw.last)
                        yield messages
            except Exception as error:
                failure = error
        if left:
            messages = as_messages(left, stream)
            rest = after(rest, messages[-1].sequence)
            yield messages
        if failure is not None:
            raise failure

    return Resumable(read, opened.delete)


async def _in_time(api: StreamApi, state: StreamState, start: datetime | None, end: datetime | None) -> tuple[int, int]:
    """Return the first and the last sequence of the messages between two times; 0 if that is the stream's first one."""
    first, last = 0, state.last
    if start is not None:
        sequence = await api.sequence_at(state, nanoseconds(start))
        first = sequence if sequence > state.first else 0
    if end is not None:
        last = await api.sequence_at(state, nanoseconds(end) + 1) - 1
    return first, last


def _range(state: StreamState, subject: str | Sequence[str], start: int, end: int) -> StreamRange:
    """Return the range to read, without messages that were removed before reading begins."""
    last = min(end, state.last)
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


async def configure_stream(js: JetStreamContext, name: str, **settings: Any) -> dict[str, Any]:
    """
    Change settings of a stream, ``allow_atomic`` for instance, and keep all others.

    The configuration is read and written as JSON, so settings that nats-py does not have can be changed, and none is
    lost. It is only written if a setting differs. A change by another client between reading and writing is lost.

    Args:
        js: From ``nc.jetstream()``.
        name: Name of the stream.
        **settings: Settings as in the JSON of JetStream's API: names with underscores, durations in nanoseconds.

    Returns:
        The configuration as stored by the server.

    Raises:
        DeliveryError: ``incompatible-config``: the server ignored a setting, because its version does not have it;
            other settings of the call were changed. ``request-refused``: the server refused the configuration;
            since 2.12 also for a setting that it does not have. ``stream-not-found``; ``no-responders``, ``timeout``,
            ``permission-denied``, ``connection-closed``.
        TypeError: A value cannot be written as JSON.
    """
    check_jetstream(js)
    wanted: dict[str, Any] = msgspec.to_builtins(settings, str_keys=True)
    api = StreamApi.of(js)
    config, _ = await api.config_and_state(name)
    return await _configure(js, f"stream {name}", config, wanted, partial(api.update_stream, name))


async def configure_consumer(js: JetStreamContext, stream: str, name: str, **settings: Any) -> dict[str, Any]:
    """
    Change settings of a consumer, ``max_ack_pending`` for instance, and keep all others.

    As :func:`configure_stream` does for a stream. Its clients, also a :class:`~ce_nats.aio.PullConsumer` that is open,
    continue. The server refuses changes of some settings, such as ``deliver_policy``.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        name: Name of the consumer.
        **settings: Settings as in the JSON of JetStream's API: names with underscores, durations in nanoseconds.

    Returns:
        The configuration as stored by the server.

    Raises:
        DeliveryError: As :func:`configure_stream` does; ``consumer-not-found``.
        TypeError: A value cannot be written as JSON.
    """
    check_jetstream(js)
    wanted: dict[str, Any] = msgspec.to_builtins(settings, str_keys=True)
    api = StreamApi.of(js)
    config = dict((await api.progress(stream, name)).config)
    target = f"consumer {name} of stream {stream}"
    return await _configure(js, target, config, wanted, partial(api.update_consumer, stream, name))


async def _configure(
    js: JetStreamContext,
    target: str,
    config: dict[str, Any],
    wanted: dict[str, Any],
    update: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """Write a configuration if a setting differs, and return it as stored by the server."""
    if not _ignored(wanted, config):
        return config
    config = await update({**config, **wanted})
    if ignored := _ignored(wanted, config):
        texts = ", ".join(f"{member}={preview(wanted[member])}" for member in ignored)
        version = server_info(client_of(js)).get("version", "unknown")
        text = f"the server ignored {texts} (connected to nats-server {version})"
        raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{target}: {text}")
    return config


def _ignored(wanted: dict[str, Any], config: dict[str, Any]) -> list[str]:
    return [member for member, value in wanted.items() if not _is_kept(value, config.get(member))]


def _is_kept(wanted: Any, actual: Any) -> bool:
    """Return whether a setting has a value; servers omit empty values, write -1 for unlimited, and add members."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return all(_is_kept(value, actual.get(member)) for member, value in wanted.items())
    return bool(wanted == actual or (not wanted and actual in (None, False, 0, -1, "", [], {})))
