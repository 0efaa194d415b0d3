"""
What can be asked of a stream without changing it: its state, and which message comes next.

JetStream's API, requests and answers in JSON ("JetStream API Reference" of the NATS documentation). Requests go through
nats-py's connection; the answers are read here, because nats-py's objects leave out or change what is needed of them.
"""

from __future__ import annotations

import asyncio
from calendar import timegm
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from ..errors import ApiError, DeliveryError, ErrorCode, preview
from ..ranges import StreamState
from ..settings import DEFAULT_PREFIX
from ..timestamp import Timestamp
from .checks import check_client
from .nats_errors import NO_MESSAGE_FOUND, NOT_ENABLED, api_error, delivery_errors
from .watch import answered

__all__ = ["DEFAULT_PREFIX", "StreamApi", "is_final", "leave", "nanoseconds"]

_LEAVE_SECONDS: Final = 2.0
# A question that need not be answered.
_NAMES_SECONDS: Final = 2.0
# Requests under way at a time, where a question takes several of them.
_MOST_REQUESTS: Final = 64

T = TypeVar("T", bound="_Answer")


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Error | None = None


class _Config(msgspec.Struct):
    retention: str = "limits"


class _State(msgspec.Struct):
    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0


class _Info(_Answer):
    created: str = ""
    config: _Config = msgspec.field(default_factory=_Config)
    state: _State = msgspec.field(default_factory=_State)


class _Stored(msgspec.Struct):
    seq: int
    time: str


class _Found(_Answer):
    message: _Stored | None = None


class _Names(_Answer):
    streams: list[str] | None = None


class StreamApi:
    """
    JetStream's API on a connection.

    Args:
        nc: An open connection.
        prefix: First tokens of the API's subjects; another one reaches another domain or account.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, nc: Client, prefix: str = DEFAULT_PREFIX, timeout: float = 5.0) -> None:
        check_client(nc)
        self.prefix = prefix
        self._nc = nc
        self._timeout = timeout

    async def state(self, stream: str) -> StreamState:
        """
        State of a stream.

        Raises:
            DeliveryError: ``no-responders`` or ``timeout``: no answer; ``permission-denied``; ``connection-closed``;
                an :class:`~ce_nats.ApiError` where JetStream refuses, ``stream-not-found`` for instance.
        """
        info = await self._ask(_Info, stream, f"STREAM.INFO.{stream}")
        state = info.state
        first = state.first_seq if state.messages else state.last_seq + 1
        return StreamState(stream, info.created, first, state.last_seq, state.messages, info.config.retention)

    async def next_sequence(self, stream: str, sequence: int, subjects: Sequence[str] = ()) -> int | None:
        """
        Sequence of the first message from a sequence on, or None where there is none (any more, or yet).

        Args:
            stream: Name of the stream.
            sequence: Where to begin, inclusive.
            subjects: Patterns; by default all subjects. Each one takes a request.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        wanted = list(subjects) or [">"]
        found: list[int] = []
        for start in range(0, len(wanted), _MOST_REQUESTS):
            questions = (self._next(stream, sequence, pattern) for pattern in wanted[start : start + _MOST_REQUESTS])
            found += [message.seq for message in await asyncio.gather(*questions) if message is not None]
        return min(found, default=None)

    async def sequence_at(self, state: StreamState, since: int) -> int:
        """
        Sequence from which on messages were stored at or after an instant; ``state.last + 1`` where none was.

        That times ascend in a stream is taken for granted, as the server does it.

        Args:
            state: Of the stream; messages behind ``state.last`` are not looked at.
            since: Nanoseconds since 1970, UTC.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        low, high = state.first, state.last + 1  # the answer is in [low, high]
        while low < high:
            middle = (low + high) // 2
            message = await self._next(state.name, middle, ">")
            if message is None or message.seq >= high or nanoseconds(Timestamp.parse(message.time)) >= since:
                # Between the middle and the message there is none, so none that is earlier.
                high = middle
            else:
                low = message.seq + 1
        return low

    async def create_consumer(self, stream: str, name: str, config: dict[str, Any]) -> None:
        """
        Create a consumer.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        request = {"stream_name": stream, "config": {"name": name, **config}}
        await self._ask(_Answer, stream, f"CONSUMER.CREATE.{stream}.{name}", request)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """
        Delete a consumer.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        await self._ask(_Answer, stream, f"CONSUMER.DELETE.{stream}.{name}")

    async def _next(self, stream: str, sequence: int, pattern: str) -> _Stored | None:
        request = {"seq": sequence, "next_by_subj": pattern}
        try:
            return (await self._ask(_Found, stream, f"STREAM.MSG.GET.{stream}", request)).message
        except ApiError as error:
            if error.number == NO_MESSAGE_FOUND:
                return None
            raise

    async def _ask(self, kind: type[T], stream: str, subject: str, request: dict[str, Any] | None = None) -> T:
        body = b"" if request is None else msgspec.json.encode(request)
        subject = f"{self.prefix}.{subject}"
        with asking(f"stream {stream}", self.prefix):
            reply = await answered(self._nc, subject, lambda: self._nc.request(subject, body, timeout=self._timeout))
        try:
            answer = msgspec.json.decode(reply.data, type=kind)
        except msgspec.MsgspecError as error:
            raise DeliveryError(
                ErrorCode.UNEXPECTED_ANSWER, f"stream {stream}: what answered is not JetStream's API"
            ) from error
        if answer.error is not None:
            raise _refusal(stream, answer.error)
        return answer


@contextmanager
def asking(target: str, prefix: str) -> Iterator[None]:
    """
    As :func:`~ce_nats.aio.nats_errors.delivery_errors`, for requests to JetStream's API.

    Args:
        target: What is asked for, for the message.
        prefix: First tokens of the API's subjects.

    Raises:
        DeliveryError: What ``delivery_errors`` raises; ``no-responders``: JetStream is not enabled.
    """
    with delivery_errors(target):
        try:
            yield
        except (nats.errors.NoRespondersError, nats.js.errors.ServiceUnavailableError) as error:
            number = getattr(error, "err_code", None)
            if number is None:
                text = f"nobody answers on {prefix!r}: JetStream has another prefix or domain, or is not enabled"
                if prefix == DEFAULT_PREFIX:
                    text = "JetStream is not enabled on the server"
            elif number in NOT_ENABLED:
                text = "JetStream is not enabled for this account"
            else:
                raise
            raise DeliveryError(ErrorCode.NO_RESPONDERS, f"{target}: {text}") from error


async def check_stream_on(js: JetStreamContext, subject: str) -> None:
    """
    Refuse a subject where what is published would not be stored.

    Raises:
        DeliveryError: ``no-responders``: no stream listens.
    """
    reason = await why_unheard(js._nc, js._prefix, subject, min(js._timeout, _NAMES_SECONDS))
    if reason:
        raise DeliveryError(ErrorCode.NO_RESPONDERS, f"no stream listens on {subject!r}: {reason}")


async def why_unheard(nc: Client, prefix: str, subject: str, timeout: float) -> str | None:
    """
    Why no stream listens on a subject, as JetStream's API says; ``""`` where one does, and None where that is unknown.

    It is unknown where the API does not answer, because permission is denied say; and it is not asked through another
    prefix or domain, because a subject may have another name there.

    Args:
        nc: An open connection.
        prefix: First tokens of the API's subjects.
        subject: What is published to.
        timeout: Seconds to wait for the answer.
    """
    if prefix != DEFAULT_PREFIX:
        return None
    question, body = f"{prefix}.STREAM.NAMES", msgspec.json.encode({"subject": subject})
    try:
        reply = await answered(nc, question, lambda: nc.request(question, body, timeout=timeout))
        answer = msgspec.json.decode(reply.data, type=_Names)
    except nats.errors.NoRespondersError:
        # Another server of the cluster may have JetStream, and be away. One that stands alone has none.
        info = nc._server_info
        return None if info.get("jetstream") or info.get("cluster") else "the server has no JetStream"
    except (DeliveryError, nats.errors.Error, OSError, msgspec.MsgspecError):
        return None
    if answer.error is not None:
        return "JetStream is not enabled for this account" if answer.error.err_code in NOT_ENABLED else None
    if answer.streams:
        return ""
    return f"make one with js.add_stream(name=..., subjects=[{preview(subject)}]), or with nats stream add"


def is_final(error: Exception) -> bool:
    """Whether asking again can only fail in the same way: JetStream refused for good, or permission is denied."""
    if isinstance(error, ApiError):
        return not error.is_temporary
    return isinstance(error, DeliveryError) and error.code is ErrorCode.PERMISSION_DENIED


async def leave(nc: Client) -> None:
    """Close a connection, in whatever state it is, and in two seconds at most; nothing is raised."""
    # nats-py waits until everything is written, or TLS shut down, which may be never.
    with suppress(Exception):
        await asyncio.wait_for(nc.close(), _LEAVE_SECONDS)


def nanoseconds(at: Timestamp) -> int:
    """Nanoseconds since 1970, UTC."""
    return timegm(at.utctimetuple()) * 1_000_000_000 + at.nanosecond


def _refusal(stream: str, error: _Error) -> ApiError:
    refusal = api_error(f"stream {stream}", error.code, error.err_code, error.description)
    if refusal.code is ErrorCode.STREAM_NOT_FOUND:
        refusal = ApiError(refusal.code, f"there is no stream {stream}")
        refusal.number = error.err_code
    return refusal
