"""
Store dead letters with the bytes of the original, and requeue them.

nats-py converts headers to a dict, and loses repeated names and bytes that are not UTF-8 when it receives and when it
sends. So the original is read from its stream (``STREAM.MSG.GET``, for which the connection needs permission), and the
lines of its header block are copied.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import PubAck

from ..._numbers import check_seconds
from ...codec.timestamp import Timestamp
from ...errors import CeNatsError, DecodeError, DeliveryError, EncodeError, ErrorCode
from ...message import MSG_ID, NatsMessage, StoredMessage
from ...redelivery import BLOCK_HEADER, KEPT_HEADER, DeadLetter, is_server_header
from ...subjects import check_subject
from ...wire._ack_subject import parse_ack_subject
from .._jetstream_api import Stored, StreamApi, nanoseconds
from .._util.checks import check_jetstream
from .._util.patience import RETRY_SECONDS
from ..link._client import api_prefix, client_of
from ..publishing._pending_acks import PendingAcks
from ..publishing._pending_message import PendingMessage
from ..publishing._prepare import MAX_HEADER_BYTES
from ..reading._stored_messages import block_pairs
from ._originals import VERSION_LINE, Originals, is_header_block, is_too_large

# Maximum number of dead letters that are being requeued and deleted concurrently.
_WINDOW: Final = 500


@dataclass(frozen=True, slots=True)
class RequeueResult:
    """
    Result of requeueing one dead letter.

    Attributes:
        sequence: Sequence of the dead letter in the stream of dead letters.
        ack: Acknowledgement of its original; None if that was not stored. Its ``seq`` is 0 if a stream with
            ``allow_batched`` has stored it together with others.
        is_deleted: Whether the dead letter was deleted.
        error: Error of requeueing, or of deleting if there is an ``ack``; None after success.
    """

    sequence: int
    ack: PubAck | None = None
    is_deleted: bool = False
    error: CeNatsError | None = None


async def store(
    js: JetStreamContext, subject: str, dead_letter: DeadLetter, message: Msg, *, timeout: float = 5.0
) -> DeadLetter:
    """
    Store a dead letter, and wait for its acknowledgement.

    ``Nats-Msg-Id`` identifies consumer and original, so that the stream stores the dead letter once within its
    duplicate window.

    If the original is too large for additional headers, or the stream of dead letters does not accept a message of that
    size, the dead letter has neither headers nor payload of the original. It refers to the original, which stays in its
    stream. A stream whose retention is not ``limits`` removes the original when it is terminated: only the dead letter
    is left then, and it has no ``time``.

    If the message is itself a dead letter, the new one has payload and headers of the first original, and tells both
    (``DeadLetter.later``).

    ``subject``: Subject to publish to; a stream must listen on it.

    Returns the dead letter as stored.

    Raises:
        EncodeError: ``invalid-subject``; ``payload-too-large`` or ``headers-too-large`` if even the dead letter's own
            headers do not fit in a message. Nothing was sent.
        DeliveryError: ``no-responders``: no stream listens on the subject; ``publish-refused``; ``unexpected-answer``;
            ``timeout``; ``permission-denied``; ``stream-not-found``: the stream of the original was deleted.
    """
    check_jetstream(js)
    check_subject(subject)
    stored = await original(js, message)
    if stored is None:
        dead_letter = replace(dead_letter, is_complete=False)
        block, data = _delivered_block(message), message.data
    else:
        block, data = stored.hdrs, stored.data
    identifier = message_id(dead_letter, message)
    try:
        return await _put(js, subject, _with_first(dead_letter, block), identifier, block, data, timeout)
    except CeNatsError as error:
        if not is_too_large(error):
            raise
    if stored is not None:
        time = str(Timestamp.parse(stored.time)) if await keeps_terminated(js, dead_letter.stream) else ""
        dead_letter = replace(dead_letter, time=time)
    dead_letter = replace(dead_letter, is_complete=False, is_copied=False)
    try:
        return await _put(js, subject, dead_letter, identifier, b"", b"", timeout)
    except CeNatsError as error:
        if not is_too_large(error):
            raise
    return await _put(js, subject, replace(dead_letter, text=""), identifier, b"", b"", timeout)


async def keeps_terminated(js: JetStreamContext, stream: str) -> bool:
    """Return whether a stream keeps terminated messages; True if the permission to look it up is denied."""
    try:
        return (await StreamApi.of(js).state(stream)).retention == "limits"
    except DeliveryError as error:
        if error.code is not ErrorCode.PERMISSION_DENIED:
            raise
        return True


def _with_first(dead_letter: DeadLetter, block: bytes) -> DeadLetter:
    """Return what describes a dead letter; if its original is one, too, what describes both."""
    try:
        first, _ = DeadLetter.split(block_pairs(block))
    except DecodeError:
        return dead_letter
    is_complete = first.is_complete and dead_letter.is_complete
    return replace(first, is_complete=is_complete, later=(*first.later, dead_letter))


async def _put(
    js: JetStreamContext,
    subject: str,
    dead_letter: DeadLetter,
    identifier: str,
    block: bytes,
    data: bytes,
    timeout: float,
) -> DeadLetter:
    """Publish a dead letter with a header block and a payload of the original."""
    nc = client_of(js)
    block = _header_block(dead_letter, identifier, block)
    _check_size(block, data, nc.max_payload)
    async with _pending_acks(js, window=1, timeout=timeout, retry_timeout=timeout) as acks:
        await (await acks.send(NatsMessage(subject, data), block)).ack
    return dead_letter


async def requeue(
    js: JetStreamContext,
    stored: StoredMessage,
    *,
    allowed: Sequence[str] | None = None,
    timeout: float = 5.0,
    retry_timeout: float = RETRY_SECONDS,
) -> PubAck:
    """
    Publish the original of a dead letter to its subject again, and wait until it is stored. The dead letter is kept.

    Payload and headers are those of the original, with two exceptions. Headers that instruct the server are omitted,
    because ``Nats-Rollup`` or ``Nats-TTL`` applied to the first publish. ``Nats-Msg-Id`` identifies the dead letter,
    because the stream may drop a message with the id of the original as a duplicate. So a dead letter that is requeued
    twice within the duplicate window is stored once.

    An original that did not fit in its dead letter is read from its stream. If it is too large for a ``Nats-Msg-Id``,
    it is published without one: requeued twice, it is stored twice.

    The subject is part of the dead letter, and each client that may publish dead letters can choose it. So the server
    is asked whether the stream that the dead letter names, or a stream that it mirrors or sources, listens on the
    subject. Streams with transformed subjects do not, and need ``allowed``.

    Args:
        js: From ``nc.jetstream()``.
        stored: The dead letter, from ``ce_nats.aio.jetstream.read_stream``.
        allowed: Patterns of subjects that originals may be published to, independent of the streams that the dead
            letters name.
        timeout: Seconds to wait for the acknowledgement before the original is resent.
        retry_timeout: Seconds to retry.

    Raises:
        DecodeError: The message is not a dead letter.
        EncodeError: ``invalid-message``: the original is incomplete (its header block was malformed, or its stream did
            not have it any more when the dead letter was stored); ``forbidden-subject``: the stream does not listen on
            the subject, or the server acts on it; and as :func:`~ce_nats.aio.replay` does.
        DeliveryError: ``message-not-found``: the dead letter refers to its original, and the stream does not have it
            any more, or has another message with its sequence; ``stream-not-found``: the stream that the dead letter
            names does not exist; ``no-responders``, ``timeout``, ``publish-refused``, ``permission-denied`` or
            ``connection-closed``.
        ValueError: A timeout is not a number of seconds, 0 or more.
    """
    check_jetstream(js)
    check_seconds("timeout", timeout)
    check_seconds("retry_timeout", retry_timeout)
    api = StreamApi.of(js, timeout=timeout, retry_timeout=retry_timeout)
    message, block = await Originals(js, allowed, api).outgoing(stored)
    async with _pending_acks(js, window=1, timeout=timeout, retry_timeout=retry_timeout) as acks:
        ack: PubAck = await (await acks.send(message, block)).ack
        return ack


async def requeue_all(
    js: JetStreamContext,
    dead_letters: AsyncIterable[StoredMessage],
    *,
    delete: bool = True,
    allowed: Sequence[str] | None = None,
    timeout: float = 5.0,
    retry_timeout: float = RETRY_SECONDS,
) -> AsyncGenerator[RequeueResult, None]:
    """
    Publish the originals of many dead letters to their subjects again, and delete each dead letter when its original is
    stored.

    Originals are published in order, unless some are resent; several hundred are in flight concurrently. A dead letter
    that cannot be requeued is kept, and does not stop the others. If the iteration ends early, dead letters whose
    originals are stored may be left; requeued again within the duplicate window, these are not stored twice.

    Args:
        js: From ``nc.jetstream()``.
        dead_letters: Dead letters, from ``ce_nats.aio.jetstream.read_stream``.
        delete: False keeps the dead letters.
        allowed: As for :func:`requeue`.
        timeout: Seconds to wait for each acknowledgement, and for each deletion, before a retry.
        retry_timeout: Seconds to retry.

    Yields:
        A result for each dead letter, in order; errors are those of :func:`requeue`.

    Raises:
        DeliveryError: ``connection-closed``, or dead letters cannot be read. Results of requests in flight are yielded
            first.
        ValueError: A timeout is not a number of seconds, 0 or more.
    """
    check_jetstream(js)
    check_seconds("timeout", timeout)
    check_seconds("retry_timeout", retry_timeout)
    api = StreamApi.of(js, timeout=timeout, retry_timeout=retry_timeout)
    originals = Originals(js, allowed, api)
    in_flight: deque[asyncio.Task[RequeueResult]] = deque()
    failure: DeliveryError | None = None
    async with _pending_acks(js, window=_WINDOW, timeout=timeout, retry_timeout=retry_timeout) as acks:
        try:
            try:
                async for stored in dead_letters:
                    sent = await _send(acks, originals, stored)
                    in_flight.append(asyncio.create_task(_finish(api, stored, sent, delete=delete)))
                    while in_flight and (in_flight[0].done() or len(in_flight) >= _WINDOW):
                        yield await _first(in_flight)
            except DeliveryError as error:
                failure = error
            while in_flight:
                yield await _first(in_flight)
        finally:
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)
    if failure is not None:
        raise failure


async def _first(in_flight: deque[asyncio.Task[RequeueResult]]) -> RequeueResult:
    # Shielded: nats-py uses wait_for(), which before Python 3.12 loses a cancellation that coincides with the response.
    outcome = await asyncio.shield(in_flight[0])
    in_flight.popleft()
    return outcome


async def _send(acks: PendingAcks, originals: Originals, stored: StoredMessage) -> PendingMessage | CeNatsError:
    try:
        message, block = await originals.outgoing(stored)
    except CeNatsError as error:
        return error
    return await acks.send(message, block)


async def _finish(
    api: StreamApi, stored: StoredMessage, sent: PendingMessage | CeNatsError, *, delete: bool
) -> RequeueResult:
    ack = None
    try:
        if isinstance(sent, CeNatsError):
            raise sent
        ack = await sent.ack
        if delete:
            # The payload is stored in another stream, so it is not overwritten.
            await api.delete_message(stored.stream, stored.sequence)
    except CeNatsError as error:
        return RequeueResult(stored.sequence, ack, error=error)
    return RequeueResult(stored.sequence, ack, is_deleted=delete)


def _pending_acks(js: JetStreamContext, *, window: int, timeout: float, retry_timeout: float) -> PendingAcks:
    return PendingAcks(
        client_of(js),
        lambda *_: None,
        window=window,
        ack_timeout=timeout,
        retry_timeout=retry_timeout,
        api_prefix=api_prefix(js),
        fast_ingest=window > 1,
    )


async def original(js: JetStreamContext, message: Msg) -> Stored | None:
    """Read a delivered message from its stream; return None if the stream does not have it any more."""
    delivered = parse_ack_subject(message.reply)
    stored = await StreamApi.of(js).stored(delivered.stream, {"seq": delivered.sequence})
    # Sequences of a stream that was deleted and created again start at 1.
    if stored is None or nanoseconds(Timestamp.parse(stored.time)) != delivered.timestamp:
        return None
    return stored


def message_id(dead_letter: DeadLetter, message: Msg) -> str:
    """Return the ``Nats-Msg-Id`` of the dead letter of a message."""
    # In nanoseconds, which nats-py's datetime rounds.
    stored_at = parse_ack_subject(message.reply).timestamp
    return f"dead-letter:{dead_letter.stream}:{dead_letter.consumer}:{dead_letter.sequence}:{stored_at}"


def _delivered_block(message: Msg) -> bytes:
    headers: dict[str, str] = message.headers or {}
    return VERSION_LINE + b"".join(_line(name, value) for name, value in headers.items()) + b"\r\n"


def _line(name: str, value: str) -> bytes:
    return f"{name}: {value}\r\n".encode("utf-8", "replace")


def _header_block(dead_letter: DeadLetter, message_id: str, block: bytes) -> bytes:
    """Return the dead letter's own headers followed by those of the original: the server uses the first of a name."""
    own = b"".join(_line(name, value) for name, value in [(MSG_ID, message_id), *dead_letter.headers()])
    if not block:
        return VERSION_LINE + own + b"\r\n"
    if not is_header_block(block):
        return VERSION_LINE + own + _line(BLOCK_HEADER, b64encode(block).decode("ascii")) + b"\r\n"
    lines = block[len(VERSION_LINE) : -len(b"\r\n")].split(b"\r\n")[:-1]
    kept = _lines_of_first(lines) if dead_letter.later else map(_kept_line, lines)
    return VERSION_LINE + own + b"".join(kept) + b"\r\n"


def _lines_of_first(lines: list[bytes]) -> Iterator[bytes]:
    """Return those lines of a dead letter that contain headers of its original: all but its own and the server's."""
    has_own_id = False
    for line in lines:
        name = line.partition(b":")[0].decode("latin-1").strip()
        if name == MSG_ID and not has_own_id:
            has_own_id = True
        elif name in (KEPT_HEADER, BLOCK_HEADER) or not is_server_header(name):
            yield line + b"\r\n"


def _kept_line(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    if colon and is_server_header(name.decode("latin-1").strip()):
        return KEPT_HEADER.encode() + b": " + name.strip() + b" " + value.strip(b" \t") + b"\r\n"
    return line + b"\r\n"


def _check_size(block: bytes, data: bytes, max_payload: int) -> None:
    if len(block) > MAX_HEADER_BYTES:
        raise EncodeError(
            ErrorCode.HEADERS_TOO_LARGE,
            f"headers of a dead letter must have at most {MAX_HEADER_BYTES} bytes for JetStream, got {len(block)}",
        )
    if len(block) + len(data) > max_payload:
        raise EncodeError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"headers and payload of a dead letter must have at most {max_payload} bytes for this server, "
            f"got {len(block) + len(data)}",
        )
