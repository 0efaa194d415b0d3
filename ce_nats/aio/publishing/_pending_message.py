"""A message to a stream that is not acknowledged yet, and what a reply to it means."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import msgspec
from nats.js.api import PubAck
from nats.js.errors import APIError

from ...errors import ApiError, DeliveryError, ErrorCode
from .. import _server_codes as codes
from .._reply_inbox import reports_no_responders
from .._reply_window import Pending
from ._prepare import NO_ACKNOWLEDGEMENT

_EXPECTATION: Final = b"\r\nNats-Expected-Last-"
_MESSAGE_ID: Final = b"\r\nNats-Msg-Id:"
_VALUE: Final = re.compile(rb"[ \t]*([^ \t\r][^\r]*)")
_ERROR_MEMBERS: Final = ("code", "err_code", "description")
_NOT_STORED: Final = {
    codes.DUPLICATE_IN_PROCESS: ErrorCode.TIMEOUT,
    codes.TOO_MANY_REQUESTS: ErrorCode.TEMPORARILY_UNAVAILABLE,
}


class PendingMessage(Pending, eq=False):
    """
    An unacknowledged message. It is resent when it is due, or fails.

    It has no objects for its headers: with a thousand of those in memory, encoding the next ones takes half as long
    again, because they do not fit into the processor's cache.

    Attributes:
        ack: Future of the acknowledgement, or of a DeliveryError.
        data: Payload.
        block: Header block.
        tag: Object of the caller.
        give_up: Time at which retries end, in seconds of ``time.monotonic()``.
        attempts: Number of attempts, without those known to be not stored.
        last_error: Error of the last attempt if the message is to be resent; else None.
        is_batched: Whether it is sent in a batch of fast ingest, which has other reply subjects.
        has_failed: Whether it has failed; a batch has its place until the server has processed it.
    """

    ack: asyncio.Future[PubAck]
    data: bytes
    block: bytes
    tag: Any
    give_up: float
    attempts: int = 0
    last_error: DeliveryError | None = None
    is_batched: bool = False
    has_failed: bool = False

    @property
    def was_sent(self) -> bool:
        return self.attempts > 0

    @property
    def size(self) -> int:
        """Bytes that count for the server's ``max_payload``."""
        return len(self.block) + len(self.data)


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool | None = None
    domain: str | None = None
    val: str | None = None
    error: dict[str, Any] | None = None


_decode: Final = msgspec.json.Decoder(_Ack).decode


def read_reply(subject: str, data: bytes, block: bytes) -> PubAck | DeliveryError:
    """Return the acknowledgement in a reply to a message, or the error."""
    if block and reports_no_responders(data, block):
        return DeliveryError(ErrorCode.NO_RESPONDERS, f"{subject}: no stream listens")
    try:
        ack = _decode(data)
    except msgspec.MsgspecError:
        ack = _Ack()
    if ack.error:
        return refusal(subject, ack.error)
    if not ack.stream:
        return DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"{subject}: {NO_ACKNOWLEDGEMENT}")
    return PubAck(ack.stream, ack.seq, ack.domain, ack.duplicate, val=ack.val)


def refusal(subject: str, error: dict[str, Any]) -> ApiError:
    """Return the error in a reply to a message."""
    number = error.get("err_code", 0)
    err_code = number if isinstance(number, int) else 0
    code = _NOT_STORED.get(err_code, ErrorCode.PUBLISH_REFUSED)
    refused = ApiError(code, f"{subject}: {error.get('description', error)} ({number})")
    refused.err_code = err_code
    refused.__cause__ = _api_error(error)
    return refused


def uncertain(subject: str, error: DeliveryError) -> DeliveryError:
    """Return the error of a message whose retry was refused: an attempt before may have been stored."""
    text = f"{subject}: no acknowledgement arrived, and the retry was refused: {error.message}"
    late = DeliveryError(ErrorCode.TIMEOUT, text)
    late.__cause__ = error
    return late


def is_not_stored(error: DeliveryError) -> bool:
    """Return whether an error of :func:`read_reply` says that the message was not stored, and may be retried."""
    return error.code is ErrorCode.NO_RESPONDERS or error.code in _NOT_STORED.values()


def has_copy_detection(block: bytes) -> bool:
    """
    Return whether the server stores a message once if it is sent twice: it has a ``Nats-Msg-Id``, and no expectation.

    Since 2.12 nats-server checks ``Nats-Expected-Last-...`` before it checks for duplicates, so it refuses the copy of
    a stored message.
    """
    return _EXPECTATION not in block and bool(message_id(block))


def message_id(block: bytes) -> bytes:
    """Return the ``Nats-Msg-Id`` in a header block, or ``b""``."""
    at = block.find(_MESSAGE_ID)
    found = _VALUE.match(block, at + len(_MESSAGE_ID)) if at >= 0 else None
    return b"" if found is None else found[1]


def _api_error(error: dict[str, Any]) -> Exception | None:
    """Return the error that nats-py's ``js.publish()`` would raise."""
    try:
        APIError.from_error({"code": 0, **{name: error[name] for name in error if name in _ERROR_MEMBERS}})
    except APIError as known:
        return known
    return None
