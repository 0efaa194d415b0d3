"""
Store dead letters with the bytes of the original, and requeue them.

nats-py makes a dict of headers and loses repeats and bytes that are not UTF-8, when it receives and when it sends. So
the original is read from its stream again (``STREAM.MSG.GET``, for which the connection needs permission), its header
block is kept line by line, and the frame is written here.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import PubAck

from ...codec.timestamp import Timestamp
from ...errors import CeNatsError, DeliveryError, EncodeError, ErrorCode
from ...message import MSG_ID, NatsMessage, StoredMessage
from ...redelivery import BLOCK_HEADER, KEPT_HEADER, DeadLetter, is_server_header
from ...subjects import check_subject
from ...wire._ack_subject import parse_ack_subject
from .._jetstream_api import Stored, StreamApi, nanoseconds
from .._natspy import api_prefix, client_of
from .._util.checks import check_jetstream
from .._util.patience import RETRY_SECONDS
from ..publishing._pending_acks import PendingAcks, PendingMessage
from ..publishing._prepare import MAX_HEADER_BYTES
from ._originals import Originals, is_header_block, is_too_large

_VERSION: Final = b"NATS/1.0\r\n"

# Dead letters that are being requeued and deleted at a time.
_WINDOW: Final = 500


@dataclass(frozen=True, slots=True)
class RequeueResult:
    """
    The result of requeueing one dead letter.

    Attributes:
        sequence: Sequence of the dead letter in its own stream.
        ack: The acknowledgement of its original; None where that was not stored.
        is_deleted: Whether the dead letter was deleted.
        error: Why it was not requeued, or, where there is an ``ack``, not deleted; None after success.
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

    ``Nats-Msg-Id`` names consumer and original, so that the stream stores the dead letter once within its duplicate
    window.

    If the original leaves no room for further headers, or the stream for dead letters does not accept a message of that
    size, the dead letter has neither headers nor payload of the original. It refers to the original, which stays in its
    stream. A stream whose retention is not ``limits`` removes the original when it is terminated: the dead letter is
    then all that is left, and has no ``time``.

    Args:
        js: From ``nc.jetstream()``.
        subject: Where to publish it; a stream must listen there.
        dead_letter: Its own headers.
        message: The original as it was delivered, for when the stream does not have it any more.
        timeout: Seconds to wait for the acknowledgement.

    Returns:
        The dead letter as it was stored.

    Raises:
        EncodeError: ``invalid-subject``; ``payload-too-large`` or ``headers-too-large`` if not even the dead letter's
            own headers fit into a message. Nothing was sent.
        DeliveryError: ``no-responders``: no stream listens on the subject; ``publish-refused``; ``unexpected-answer``;
            ``timeout``; ``permission-denied``; ``stream-not-found``: the original's stream is gone.
    """
    check_jetstream(js)
    check_subject(subject)
    stored = await original(js, message)
    if stored is None:
        dead_letter = replace(dead_letter, is_complete=False)
        block, data = _delivered_block(message), message.data
    else:
        block, data = stored.hdrs, stored.data
    try:
        return await _put(js, subject, dead_letter, message, block, data, timeout)
    except CeNatsError as error:
        if not is_too_large(error):
            raise
    if stored is not None:
        time = str(Timestamp.parse(stored.time)) if await _keeps_terminated(js, dead_letter.stream) else ""
        dead_letter = replace(dead_letter, time=time)
    dead_letter = replace(dead_letter, is_complete=False, is_copied=False)
    try:
        return await _put(js, subject, dead_letter, message, b"", b"", timeout)
    except CeNatsError as error:
        if not is_too_large(error):
            raise
    return await _put(js, subject, replace(dead_letter, text=""), message, b"", b"", timeout)


async def _keeps_terminated(js: JetStreamContext, stream: str) -> bool:
    """Whether a stream keeps messages that were terminated; assumed if permission to ask is denied."""
    try:
        return (await StreamApi.of(js).state(stream)).retention == "limits"
    except DeliveryError as error:
        if error.code is not ErrorCode.PERMISSION_DENIED:
            raise
        return True


async def _put(
    js: JetStreamContext, subject: str, dead_letter: DeadLetter, message: Msg, block: bytes, data: bytes, timeout: float
) -> DeadLetter:
    """Publish a dead letter with a header block and a payload of the original."""
    nc = client_of(js)
    block = _header_block(dead_letter, _message_id(dead_letter, message), block)
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

    Payload and headers are those of the original, with two exceptions: headers for the server are left out, because
    ``Nats-Rollup`` or ``Nats-Expected-Last-Sequence`` were meant for the first time; and ``Nats-Msg-Id`` names the dead
    letter, because the stream may still know that of the original and would drop the copy. So a dead letter that is
    requeued twice within the duplicate window is stored once.

    An original that did not fit into its dead letter is read from its stream. If it leaves no room for a
    ``Nats-Msg-Id`` either, it is published without one: requeued twice, it is stored twice.

    The subject is part of the dead letter, and every client that may publish dead letters can choose it. So the server
    is asked whether the stream that the dead letter names listens on the subject, or one that this stream mirrors or
    sources. With transformed subjects that is not so, and ``allowed`` is needed.

    Args:
        js: From ``nc.jetstream()``.
        stored: The dead letter, from ``ce_nats.aio.jetstream.read_stream``.
        allowed: Patterns of subjects that originals may be published to, whatever streams the dead letters name.
        timeout: Seconds to wait for the acknowledgement before the original is sent again.
        retry_timeout: Seconds to keep sending it.

    Raises:
        DecodeError: It is not a dead letter.
        EncodeError: ``invalid-message``: the original is incomplete (its header block was malformed, or its stream did
            not have it any more when the dead letter was stored); ``forbidden-subject``: the stream does not listen on
            the subject, or the server acts on it; what :func:`~ce_nats.aio.replay` raises.
        DeliveryError: ``message-not-found``: the dead letter refers to its original, and the stream no longer has it,
            or has another one with its sequence; ``stream-not-found``: the stream that the dead letter names;
            ``no-responders``, ``timeout``, ``publish-refused``, ``permission-denied`` or ``connection-closed``.
    """
    check_jetstream(js)
    api = StreamApi.of(js, timeout, retry_timeout)
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
    Publish the originals of many dead letters to their subjects again, in their order unless some have to be sent
    again, and delete each dead letter when its original is stored.

    Several hundred are in flight at a time. One that cannot be requeued is kept and does not stop the others. When the
    iteration is ended early, dead letters may be left whose originals are stored; requeued again within the duplicate
    window, these are not stored twice.

    Args:
        js: From ``nc.jetstream()``.
        dead_letters: From ``ce_nats.aio.jetstream.read_stream``.
        delete: False keeps the dead letters.
        allowed: As for :func:`requeue`.
        timeout: Seconds to wait for each acknowledgement, and for each deletion, before it is requested again.
        retry_timeout: Seconds to keep requesting it.

    Yields:
        A result for each dead letter, in their order; errors are those of :func:`requeue`.

    Raises:
        DeliveryError: ``connection-closed``, or no more dead letters can be read. Results for what was in flight have
            been given before.
    """
    check_jetstream(js)
    api = StreamApi.of(js, timeout, retry_timeout)
    originals = Originals(js, allowed, api)
    under_way: deque[asyncio.Task[RequeueResult]] = deque()
    failure: DeliveryError | None = None
    async with _pending_acks(js, window=_WINDOW, timeout=timeout, retry_timeout=retry_timeout) as acks:
        try:
            try:
                async for stored in dead_letters:
                    sent = await _send(acks, originals, stored)
                    under_way.append(asyncio.create_task(_finish(api, stored, sent, delete=delete)))
                    while under_way and (under_way[0].done() or len(under_way) >= _WINDOW):
                        yield await _first(under_way)
            except DeliveryError as error:
                failure = error
            while under_way:
                yield await _first(under_way)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
    if failure is not None:
        raise failure


async def _first(under_way: deque[asyncio.Task[RequeueResult]]) -> RequeueResult:
    # Shielded: nats-py waits with wait_for(), which before Python 3.12 loses a cancellation that comes together with
    # the answer.
    outcome = await asyncio.shield(under_way[0])
    under_way.popleft()
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
            # The payload is in another stream by now, so it need not be overwritten.
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
    )


async def original(js: JetStreamContext, message: Msg) -> Stored | None:
    """
    Read a delivered message from its stream; None where the stream does not have it any more.

    Raises:
        DeliveryError: As :func:`~ce_nats.aio.jetstream.read_stream` does.
    """
    delivered = parse_ack_subject(message.reply)
    stored = await StreamApi.of(js).stored(delivered.stream, {"seq": delivered.sequence})
    # A stream that was deleted and created again counts from 1 again.
    if stored is None or nanoseconds(Timestamp.parse(stored.time)) != delivered.timestamp:
        return None
    return stored


def _message_id(dead_letter: DeadLetter, message: Msg) -> str:
    # Nanoseconds, which nats-py's datetime has rounded.
    stored_at = parse_ack_subject(message.reply).timestamp
    return f"dead-letter:{dead_letter.stream}:{dead_letter.consumer}:{dead_letter.sequence}:{stored_at}"


def _delivered_block(message: Msg) -> bytes:
    headers: dict[str, str] = message.headers or {}
    return _VERSION + b"".join(_line(name, value) for name, value in headers.items()) + b"\r\n"


def _line(name: str, value: str) -> bytes:
    return f"{name}: {value}\r\n".encode("utf-8", "replace")


def _header_block(dead_letter: DeadLetter, message_id: str, block: bytes) -> bytes:
    """The dead letter's own headers first: of a repeated name, the server takes the first."""
    own = b"".join(_line(name, value) for name, value in [(MSG_ID, message_id), *dead_letter.headers()])
    if not block:
        return _VERSION + own + b"\r\n"
    if not is_header_block(block):
        return _VERSION + own + _line(BLOCK_HEADER, b64encode(block).decode("ascii")) + b"\r\n"
    lines = block[len(_VERSION) : -len(b"\r\n")].split(b"\r\n")[:-1]
    return _VERSION + own + b"".join(map(_kept, lines)) + b"\r\n"


def _kept(line: bytes) -> bytes:
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
