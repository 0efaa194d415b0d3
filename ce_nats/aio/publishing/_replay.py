"""Publish captured messages again, with unchanged payload and headers, CloudEvents or not."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from typing import Final
from uuid import uuid4

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck

from ..._instructions import copied_headers, is_marker
from ...errors import DeliveryError, EncodeError, ErrorCode, preview
from ...message import MSG_ID, NatsMessage, StoredMessage
from ...subjects import check_pattern, check_plain_subject, check_subject
from ...wire.nats import write_header_block
from .._errors import delivery_errors
from .._foreign_subjects import check_foreign_subject
from .._util.checks import check_count, check_jetstream, check_positive
from ..core._publish import check_size, flush, publish_with_block, supports_headers
from ..link._client import api_prefix, client_of
from ._pending_acks import PendingAcks
from ._pending_message import PendingMessage
from ._prepare import MAX_HEADER_BYTES
from ._tally import PublishResult

# Replaces bytes that are not UTF-8, so a subject with it is not the original one.
_REPLACEMENT: Final = "\ufffd"


async def replay(
    js: JetStreamContext,
    messages: Iterable[StoredMessage] | AsyncIterable[StoredMessage],
    *,
    acknowledged: bool = True,
    subject: str | None = None,
    allowed: Sequence[str] = (),
    new_ids: bool = False,
    keep_instructions: bool = False,
    rate: float | None = None,
    window: int = 1000,
    ack_timeout: float = 5.0,
    retry_timeout: float = 30.0,
    on_progress: Callable[[int], object] = lambda count: None,
    on_end: Callable[[PublishResult], object] = lambda result: None,
) -> PublishResult:
    """
    Publish messages in order, without their reply subjects, and without the headers by which they instructed the
    server: ``Nats-Rollup`` would delete other messages of the stream, for example. Markers that a server has written,
    because a message had expired, are not published.

    To a stream with ``allow_batched`` messages with a ``Nats-Msg-Id`` are published in batches, as by
    :class:`~ce_nats.aio.Publisher`. A stream that has a message with the same ``Nats-Msg-Id``, within its duplicate
    window, does not store it again: use ``new_ids``.

    Args:
        js: From ``nc.jetstream()``.
        messages: Messages, from :func:`ce_nats.capture.read_capture` for instance.
        acknowledged: True publishes to streams and waits for acknowledgements; False publishes to core NATS.
        subject: Subject that replaces those of the messages; None keeps them.
        allowed: Patterns of subjects that carry data, although they look like requests to JetStream's API under another
            prefix, as ``SHOP.CONSUMER.CREATE.1`` does.
        new_ids: True publishes each message with a new ``Nats-Msg-Id``, in place of its own or in addition to its other
            headers, so that streams store it again. If the replay is repeated, its messages are stored once more.
        keep_instructions: True publishes headers that instruct the server, except those of an atomic batch.
        rate: Maximum number of messages per second; None sets no limit.
        window: Maximum number of unacknowledged messages, 1 or more.
        ack_timeout: Seconds, as for :class:`~ce_nats.aio.Publisher`.
        retry_timeout: Seconds, as for :class:`~ce_nats.aio.Publisher`.
        on_progress: Called with the number of messages sent so far.
        on_end: Called with the result when the replay ends, also after an error or a cancellation. On core NATS, the
            result then has no messages, because the server has not confirmed that it received them.

    Returns:
        Numbers of messages.

    Raises:
        EncodeError: ``invalid-subject``; ``forbidden-subject``: the server would act on the subject of the message;
            ``payload-too-large``, ``headers-too-large``, ``headers-not-supported``. This message and later ones were
            not sent.
        DeliveryError: ``no-responders``: no stream listens; ``timeout``; ``publish-refused``;
            ``connection-closed``. Messages after the failed one may have been sent.
        TypeError: ``js`` is not a JetStreamContext.
        ValueError: ``window`` is below 1, or ``rate`` is not above 0.
    """
    check_jetstream(js)
    nc = client_of(js)
    check_count("window", window)
    if rate is not None:
        check_positive("rate", rate)
    if subject is not None:
        check_plain_subject(subject)
    for pattern in allowed:
        check_pattern(pattern)
    failures: list[DeliveryError] = []

    def done(item: PendingMessage, outcome: PubAck | DeliveryError) -> None:
        if isinstance(outcome, DeliveryError):
            failures.append(outcome)

    acks = PendingAcks(
        nc,
        done,
        window=window,
        ack_timeout=ack_timeout,
        retry_timeout=retry_timeout,
        api_prefix=api_prefix(js),
        fast_ingest=True,
    )
    ids = f"replay:{uuid4().hex}" if new_ids else ""
    copies = _Copies(keep_instructions)
    sent = written = 0
    try:
        async with acks:
            async for message in copies.of(_paced(messages, rate)):
                if failures:
                    break
                if subject is None:
                    check_foreign_subject(nc, message.subject, allowed=allowed)
                identifier = f"{ids}:{sent}" if ids else None
                outgoing, block = framed(nc, message, subject, message_id=identifier, is_stored=acknowledged)
                if acknowledged:
                    await acks.send(outgoing, block)
                else:
                    with delivery_errors(outgoing.subject, nc):
                        await publish_with_block(nc, outgoing, block)
                sent += 1
                on_progress(sent)
            await acks.drain()
        if failures:
            raise failures[0]
        if not acknowledged:
            await flush(nc)
            written = sent
    finally:
        result = acks.tally.result if acknowledged else PublishResult(written)
        on_end(result := dataclasses.replace(result, stripped=copies.stripped, markers=copies.markers))
    return result


class _Copies:
    """
    Makes copies of messages.

    Attributes:
        stripped: Number of those that lack headers.
        markers: Number of messages without a copy.
    """

    def __init__(self, keep_instructions: bool) -> None:
        self._keeps_instructions = keep_instructions
        self.stripped = self.markers = 0

    async def of(self, messages: AsyncIterator[StoredMessage]) -> AsyncIterator[StoredMessage]:
        """Yield the copies."""
        async for message in messages:
            if is_marker(message.headers):
                self.markers += 1
                continue
            headers = copied_headers(message.headers, keep_instructions=self._keeps_instructions)
            self.stripped += len(headers) < len(message.headers)
            yield message._replace(headers=headers)


async def _paced(
    messages: Iterable[StoredMessage] | AsyncIterable[StoredMessage], rate: float | None
) -> AsyncIterator[StoredMessage]:
    began = time.monotonic()
    count = 0
    async for message in _each(messages):
        if rate is not None:
            await asyncio.sleep(max(0.0, began + count / rate - time.monotonic()))
        yield message
        count += 1


async def _each(messages: Iterable[StoredMessage] | AsyncIterable[StoredMessage]) -> AsyncIterator[StoredMessage]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message


def framed(
    nc: Client,
    message: StoredMessage,
    subject: str | None = None,
    *,
    message_id: str | None = None,
    is_stored: bool = True,
) -> tuple[NatsMessage, bytes]:
    """Return the outgoing message and header block of a captured message. The caller checks its subject."""
    outgoing = NatsMessage(message.subject if subject is None else subject, message.data)
    check_subject(outgoing.subject)
    if subject is None and _REPLACEMENT in message.subject:
        raise EncodeError(
            ErrorCode.INVALID_SUBJECT, f"the message's subject must have been UTF-8, got {preview(message.subject)}"
        )
    headers = list(message.headers)
    if message_id is not None:
        headers = [pair for pair in headers if pair[0] != MSG_ID]
        headers.append((MSG_ID, message_id))
    block = write_header_block(headers) if headers else b""
    if block and not supports_headers(nc):
        raise EncodeError(
            ErrorCode.HEADERS_NOT_SUPPORTED, "the server does not support headers, and the message has headers"
        )
    check_size(outgoing, nc.max_payload, MAX_HEADER_BYTES if is_stored else None, len(block))
    return outgoing, block
