"""
Store a dead letter, acknowledged by its stream, with the bytes that the original had.

nats-py makes a dict of headers and loses repeats and bytes that are no UTF-8, on the way in and on the way out. So the
original is read from its stream once more (``STREAM.MSG.GET``, for which the connection needs permission), its header
block is kept line by line, and the frame is written here.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from dataclasses import replace
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import PubAck

from ..capture import StoredMessage
from ..deadletter import MSG_ID, PREFIX, PUT_ASIDE, DeadLetter, is_put_aside
from ..errors import DeliveryError, EncodeError, ErrorCode
from ..message import check_subject
from ..timestamp import Timestamp
from .checks import check_jetstream
from .jetstream import MOST_HEADER_BYTES, Stored, stored_message
from .listening import IN_PROCESS, PAUSE_SECONDS
from .outbox import Outbox
from .publish import delivery
from .replay import framed
from .streams import nanoseconds
from .watch import answered

__all__ = ["original", "requeue", "store"]

_VERSION: Final = b"NATS/1.0\r\n"
# A header block that is none, as anybody may publish one: it cannot stand among headers.
_BLOCK: Final = f"{PREFIX}Block"


class _PubAck(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    error: dict[str, object] = {}


async def store(js: JetStreamContext, subject: str, letter: DeadLetter, message: Msg, *, timeout: float = 5.0) -> None:
    """
    Store a dead letter, and wait until its stream has acknowledged it.

    ``Nats-Msg-Id`` names consumer and original, so that the stream stores the dead letter once within its duplicate
    window.

    Args:
        js: From ``nc.jetstream()``.
        subject: Where to publish it to; a stream has to listen there.
        letter: What is known of the original.
        message: The original as it was delivered, for what the stream has no more.
        timeout: Seconds to wait for the acknowledgement.

    Raises:
        EncodeError: ``invalid-subject``; ``payload-too-large`` or ``headers-too-large`` where the original leaves no
            room for further headers. Nothing was sent.
        DeliveryError: ``delivery-failed``: the original cannot be read, no stream listens on the subject, it refused,
            or no answer came in time; ``permission-denied``.
    """
    check_jetstream(js)
    check_subject(subject)
    stored = await original(js, message)
    if stored is None:
        letter = replace(letter, is_complete=False)
        block, data = _delivered_block(message), message.data
    else:
        block, data = stored.hdrs, stored.data
    block = _letter_block(letter, _message_id(letter, message), block)
    _check_size(block, data, js._nc.max_payload)
    await _publish(js._nc, subject, block, data, timeout)


async def requeue(js: JetStreamContext, stored: StoredMessage, *, timeout: float = 5.0) -> PubAck:
    """
    Publish the original of a dead letter to its subject again, and wait until it is stored. The dead letter stays.

    Payload and headers are those of the original, but for two kinds: headers for the server that were put aside,
    because ``Nats-Rollup`` or ``Nats-Expected-Last-Sequence`` made sense when it was sent first; and ``Nats-Msg-Id``,
    which names the dead letter: the stream may still know the original's, and would drop the copy. So a dead letter
    that is requeued twice within the duplicate window is stored once.

    Args:
        js: From ``nc.jetstream()``.
        stored: The dead letter, from ``ce_nats.aio.jetstream.read_stream``.
        timeout: Seconds to wait for the acknowledgement.

    Raises:
        DecodeError: It is no dead letter.
        EncodeError: ``invalid-message``: the original is not all there (its header block was none, or its stream had it
            no more when it was put aside); what :func:`~ce_nats.aio.replay.replay` raises.
        DeliveryError: ``no-responders``, ``timeout``, ``delivery-failed``.
    """
    check_jetstream(js)
    letter, headers = DeadLetter.split(stored.headers)
    if not letter.is_complete or any(name == _BLOCK for name, _ in stored.headers):
        raise EncodeError(ErrorCode.INVALID_MESSAGE, "not all of the original's headers and payload are there")
    identifier = f"requeued:{stored.stream}:{stored.sequence}:{nanoseconds(stored.timestamp)}"
    kept = [(name, value) for name, value in headers if not name.startswith("Nats-")]
    copy = stored._replace(subject=letter.subject, headers=[*kept, (MSG_ID, identifier)])
    outgoing, block = framed(js._nc, copy)
    async with Outbox(js._nc, lambda *_: None, window=1, ack_timeout=timeout, retry_timeout=timeout) as outbox:
        return await (await outbox.send(outgoing, block)).ack


async def original(js: JetStreamContext, message: Msg) -> Stored | None:
    """
    A delivered message as its stream has it; None where it has it no more.

    Raises:
        DeliveryError: ``delivery-failed``: the stream cannot be read.
    """
    metadata = message.metadata
    stored = await stored_message(js, metadata.stream, {"seq": metadata.sequence.stream})
    # A stream that was deleted and made again counts from 1 again.
    if stored is None or nanoseconds(Timestamp.parse(stored.time)) != stored_at(message):
        return None
    return stored


def stored_at(message: Msg) -> int:
    """When the stream stored a delivered message, in nanoseconds since 1970; nats-py's datetime has rounded it."""
    tokens = message.reply.split(".")
    return int(tokens[7] if len(tokens) == 9 else tokens[9])


def _message_id(letter: DeadLetter, message: Msg) -> str:
    return f"dead-letter:{letter.stream}:{letter.consumer}:{letter.sequence}:{stored_at(message)}"


def _delivered_block(message: Msg) -> bytes:
    headers: dict[str, str] = message.headers or {}
    return _VERSION + b"".join(_line(name, value) for name, value in headers.items()) + b"\r\n"


def _line(name: str, value: str) -> bytes:
    return f"{name}: {value}\r\n".encode("utf-8", "replace")


def _letter_block(letter: DeadLetter, message_id: str, block: bytes) -> bytes:
    """The letter's headers first: of a name that is there twice, the server takes the first."""
    own = b"".join(_line(name, value) for name, value in [(MSG_ID, message_id), *letter.headers()])
    if not block:
        return _VERSION + own + b"\r\n"
    if not block.startswith(_VERSION) or not block.endswith(b"\r\n\r\n"):
        return _VERSION + own + _line(_BLOCK, b64encode(block).decode("ascii")) + b"\r\n"
    lines = block[len(_VERSION) : -len(b"\r\n")].split(b"\r\n")[:-1]
    return _VERSION + own + b"".join(map(_kept, lines)) + b"\r\n"


def _kept(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    if colon and is_put_aside(name.decode("latin-1").strip()):
        return PUT_ASIDE.encode() + b": " + name.strip() + b" " + value.strip(b" \t") + b"\r\n"
    return line + b"\r\n"


def _check_size(block: bytes, data: bytes, max_payload: int) -> None:
    if len(block) > MOST_HEADER_BYTES:
        raise EncodeError(
            ErrorCode.HEADERS_TOO_LARGE,
            f"headers of the dead letter are {len(block)} bytes, and JetStream takes {MOST_HEADER_BYTES}",
        )
    if len(block) + len(data) > max_payload:
        raise EncodeError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"headers and payload of the dead letter are {len(block) + len(data)} bytes, and the server takes "
            f"{max_payload}",
        )


async def _publish(nc: Client, subject: str, block: bytes, data: bytes, timeout: float) -> None:
    give_up = time.monotonic() + timeout
    while True:
        ack = await _exchange(nc, subject, block, data, give_up - time.monotonic())
        if ack.seq:
            return
        if ack.error.get("err_code") != IN_PROCESS or time.monotonic() + PAUSE_SECONDS >= give_up:
            raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"{subject}: {ack.error or 'what answered is no stream'}")
        await asyncio.sleep(PAUSE_SECONDS)


async def _exchange(nc: Client, subject: str, block: bytes, data: bytes, timeout: float) -> _PubAck:
    inbox = nc.new_inbox()
    sizes = f"{len(block)} {len(block) + len(data)}"
    frame = b"".join((f"HPUB {subject} {inbox} {sizes}\r\n".encode(), block, data, b"\r\n"))
    with delivery(subject):
        answers = await nc.subscribe(inbox, max_msgs=1)

        async def ask() -> Msg:
            # nc.publish() writes headers itself, and cannot write these.
            await nc._send_command(frame)
            await nc._flush_pending()
            return await answers.next_msg(timeout)

        try:
            answer = await answered(nc, subject, ask, inbox)
        finally:
            await answers.unsubscribe()
    if (answer.headers or {}).get("Status") == "503":
        raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"{subject}: no stream listens")
    try:
        return msgspec.json.decode(answer.data, type=_PubAck)
    except msgspec.MsgspecError as error:
        raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"{subject}: what answered is no stream") from error
