"""
JetStream's API: what streams hold, and the consumers on them.

Requests and answers in JSON ("JetStream API Reference" of the NATS documentation). Every request that this package
makes to the API is made here. Requests go through nats-py's connection; the answers are read here, because nats-py's
objects leave out or change what is needed of them: nanoseconds, header blocks, error numbers. A request that is not
answered, because a leader is being elected for instance, is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from calendar import timegm
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from .._ranges import StreamState
from .._settings import DEFAULT_PREFIX
from ..codec.timestamp import Timestamp
from ..errors import ApiError, DeliveryError, ErrorCode, preview
from ._errors import NOT_ENABLED, api_error, delivery_errors
from ._foreign_subjects import remember_api_prefix
from ._natspy import api_prefix, api_timeout, client_of, server_info
from ._permissions import answered
from ._util.checks import check_client
from ._util.patience import RETRY_SECONDS, Patience

_log: Final = logging.getLogger(__name__)

# For an answer that is not required.
_NAMES_SECONDS: Final = 2.0
# A server also says that there is no stream, or no JetStream, while it shuts down; it does not say so for longer.
_SHUTDOWN_SECONDS: Final = 0.5
# nats-server: JSSequenceNotFoundErrF, JSStreamMsgDeleteFailedF. There may be no such message any more.
_NOT_DELETED: Final = (10043, 10057)
# nats-server from this version on knows a consumer's filter_subjects.
_SEVERAL_SUBJECTS: Final = (2, 10)
# Requests in flight at a time.
_MAX_REQUESTS: Final = 64

T = TypeVar("T", bound="_Answer")


class Stored(msgspec.Struct):
    """A message in the API's answer, with the bytes of its header block; both byte strings are base64 in JSON."""

    subject: str
    seq: int
    time: str
    hdrs: bytes = b""
    data: bytes = b""


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = "no description"


class _Answer(msgspec.Struct):
    error: _Error | None = None


class _External(msgspec.Struct):
    api: str = ""


class _Source(msgspec.Struct):
    name: str = ""
    external: _External | None = None


class _Config(msgspec.Struct):
    retention: str = "limits"
    subjects: list[str] | None = None
    mirror: _Source | None = None
    sources: list[_Source] | None = None


class _State(msgspec.Struct):
    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0


class _Info(_Answer):
    created: str = ""
    config: _Config = msgspec.field(default_factory=_Config)
    state: _State = msgspec.field(default_factory=_State)


class _Found(_Answer):
    message: Stored | None = None


class _Consumer(_Answer):
    config: dict[str, Any] = {}
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0


class _Names(_Answer):
    streams: list[str] | None = None


class Lag(NamedTuple):
    """
    What a consumer has before it, in messages.

    Attributes:
        pending: Not delivered yet.
        ack_pending: Delivered, and not settled.
        redelivered: Of these, delivered more than once.
    """

    pending: int
    ack_pending: int
    redelivered: int


class StreamApi:
    """
    JetStream's API on a connection.

    Args:
        nc: An open connection.
        prefix: First tokens of the API's subjects; another one reaches another domain or account.
        timeout: Maximum seconds to wait for an answer to one request, see :class:`Patience`.
        retry_timeout: Seconds to repeat a request that is not answered; 0 to send it once.
    """

    def __init__(
        self,
        nc: Client,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 5.0,
        retry_timeout: float = RETRY_SECONDS,
    ) -> None:
        check_client(nc)
        remember_api_prefix(nc, prefix)
        self.prefix = prefix
        self._nc = nc
        self._timeout = timeout
        self._retry_timeout = retry_timeout
        self._is_failing = False

    @classmethod
    def of(cls, js: JetStreamContext, timeout: float | None = None, retry_timeout: float | None = None) -> StreamApi:
        """
        Return the API as nats-py's context reaches it.

        Args:
            js: From ``nc.jetstream()``.
            timeout: Maximum seconds to wait for an answer to one request; by default that of ``js``.
            retry_timeout: Seconds to repeat a request; by default 30, or ``timeout`` if that is longer.
        """
        timeout = api_timeout(js) if timeout is None else timeout
        retry_timeout = max(RETRY_SECONDS, timeout) if retry_timeout is None else retry_timeout
        return cls(client_of(js), api_prefix(js), timeout, retry_timeout)

    def without_retries(self) -> StreamApi:
        """Return the same API, each request of which is sent once."""
        return StreamApi(self._nc, self.prefix, self._timeout, 0)

    # --- Streams ------------------------------------------------------------------------------------------------------

    async def state(self, stream: str) -> StreamState:
        """
        State of a stream.

        Raises:
            DeliveryError: ``no-responders`` or ``timeout``: no answer; ``permission-denied``; ``connection-closed``;
                an :class:`~ce_nats.ApiError` where JetStream refuses, ``stream-not-found`` for instance.
        """
        info = await self._info(stream)
        state = info.state
        first = state.first_seq if state.messages else state.last_seq + 1
        return StreamState(stream, info.created, first, state.last_seq, state.messages, info.config.retention)

    async def subjects(self, stream: str) -> list[str]:
        """
        Subjects that a stream listens on, wildcards among them.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        return (await self._info(stream)).config.subjects or []

    async def origin_subjects(self, stream: str) -> list[str]:
        """
        Subjects on which a stream's messages are published: its own, and those of the streams that it mirrors or
        sources. A source that cannot be looked up is left out.

        Raises:
            DeliveryError: As :meth:`state` does, for the stream itself.
        """
        found: dict[str, None] = {}
        waiting, seen = [(self.prefix, stream)], {(self.prefix, stream)}
        while waiting:
            prefix, name = waiting.pop()
            # What another prefix reaches may never answer.
            retry_timeout = self._retry_timeout if prefix == self.prefix else 0
            try:
                config = (await StreamApi(self._nc, prefix, self._timeout, retry_timeout)._info(name)).config
            except DeliveryError:
                if (prefix, name) == (self.prefix, stream):
                    raise
                continue
            found.update(dict.fromkeys(config.subjects or ()))
            for source in [*([config.mirror] if config.mirror else []), *(config.sources or ())]:
                origin = (source.external.api if source.external else prefix), source.name
                if origin not in seen:
                    seen.add(origin)
                    waiting.append(origin)
        return list(found)

    async def _info(self, stream: str) -> _Info:
        return await self._request(_Info, stream, f"STREAM.INFO.{stream}")

    async def why_no_stream(self, subject: str) -> str | None:
        """
        Why no stream listens on a subject; ``""`` where one does, and None where that is unknown.

        It is unknown where the API does not answer, because permission is denied for instance. It is not asked through
        another prefix or domain, because a subject may have another name there.
        """
        if self.prefix != DEFAULT_PREFIX:
            return None
        try:
            target, request = f"streams on {subject}", {"subject": subject}
            answer = await self._exchange(_Names, target, "STREAM.NAMES", request, timeout=self._timeout)
        except nats.errors.NoRespondersError:
            return None if self._may_have_jetstream() else "the server has no JetStream"
        except (DeliveryError, nats.errors.Error, OSError):
            return None
        if answer.error is not None:
            return "JetStream is not enabled for this account" if answer.error.err_code in NOT_ENABLED else None
        if answer.streams:
            return ""
        return f"create one with js.add_stream(name=..., subjects=[{preview(subject)}]), or with nats stream add"

    # --- Messages -----------------------------------------------------------------------------------------------------

    async def stored(self, stream: str, request: dict[str, Any], *, is_watched: bool = False) -> Stored | None:
        """
        The message that ``STREAM.MSG.GET`` finds, or None.

        Args:
            stream: Name of the stream.
            request: ``seq``, and ``next_by_subj`` for the first message from there on.
            is_watched: The caller looks for denied permissions itself, for many requests at once.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        try:
            answer = await self._request(_Found, stream, f"STREAM.MSG.GET.{stream}", request, is_watched=is_watched)
        except ApiError as error:
            if error.code is ErrorCode.MESSAGE_NOT_FOUND:
                return None
            raise
        return answer.message

    def stored_subject(self, stream: str) -> str:
        """The subject of :meth:`stored`'s requests."""
        return f"{self.prefix}.STREAM.MSG.GET.{stream}"

    async def next_sequence(self, stream: str, sequence: int, subjects: Sequence[str] = ()) -> int | None:
        """
        Sequence of the first message at or after a sequence, or None.

        Args:
            stream: Name of the stream.
            sequence: Where to begin, inclusive.
            subjects: Subjects, wildcards allowed; by default all. Each one takes a request.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        wanted = list(subjects) or [">"]
        found: list[int] = []
        for start in range(0, len(wanted), _MAX_REQUESTS):
            requests = (self._next(stream, sequence, pattern) for pattern in wanted[start : start + _MAX_REQUESTS])
            found += [message.seq for message in await asyncio.gather(*requests) if message is not None]
        return min(found, default=None)

    async def sequence_at(self, state: StreamState, since: int) -> int:
        """
        Sequence of the first message that was stored at an instant or later; ``state.last + 1`` where there is none.

        Relies on times that ascend in a stream, as the server does.

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

    async def _next(self, stream: str, sequence: int, pattern: str) -> Stored | None:
        return await self.stored(stream, {"seq": sequence, "next_by_subj": pattern})

    async def delete_message(self, stream: str, sequence: int) -> None:
        """
        Delete a message, without overwriting it on disk first, which takes the server most of the time.

        It is no error if there is no such message any more: an earlier request may have deleted it whose answer was
        lost.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        request = {"seq": sequence, "no_erase": True}
        try:
            await self._request(_Answer, stream, f"STREAM.MSG.DELETE.{stream}", request)
        except ApiError as error:
            if error.err_code not in _NOT_DELETED or await self.stored(stream, {"seq": sequence}) is not None:
                raise

    # --- Consumers ----------------------------------------------------------------------------------------------------

    async def consumer(self, stream: str, name: str) -> ConsumerConfig:
        """
        Configuration of a consumer.

        Raises:
            DeliveryError: As :meth:`state` does; ``consumer-not-found``.
        """
        return _consumer_config((await self._consumer_info(stream, name)).config)

    async def lag(self, stream: str, name: str) -> Lag:
        """
        How far a consumer is behind.

        Raises:
            DeliveryError: As :meth:`consumer` does.
        """
        answer = await self._consumer_info(stream, name)
        return Lag(answer.num_pending, answer.num_ack_pending, answer.num_redelivered)

    async def _consumer_info(self, stream: str, name: str) -> _Consumer:
        return await self._request(_Consumer, stream, f"CONSUMER.INFO.{stream}.{name}", consumer=name)

    async def create_consumer(self, stream: str, name: str, config: dict[str, Any]) -> ConsumerConfig:
        """
        Create a consumer; one that exists with the same configuration is left as it is.

        nats-server before 2.10 ignores ``filter_subjects``, and would deliver all subjects: one subject is sent as
        ``filter_subject``, several are refused.

        Args:
            stream: Name of the stream.
            name: Name of the consumer.
            config: As the API has it, so with times in nanoseconds.

        Returns:
            Its configuration as the server has completed it.

        Raises:
            DeliveryError: As :meth:`state` does; ``request-refused``; ``incompatible-config``: the server is older than
                2.10, and the consumer has several subjects.
        """
        only = config.get("filter_subject")
        further = f".{only}" if only and only != ">" else ""
        subjects = config.get("filter_subjects") or []
        if len(subjects) == 1:
            config = {**config, "filter_subject": subjects[0]}
            del config["filter_subjects"]
        version = self._nc.connected_server_version
        if len(subjects) > 1 and (version.major, version.minor) < _SEVERAL_SUBJECTS:
            raise _several_subjects(stream, name)
        request = {"stream_name": stream, "config": {"name": name, **config}}
        subject = f"CONSUMER.CREATE.{stream}.{name}{further}"
        answer = await self._request(_Consumer, stream, subject, request, consumer=name)
        if len(subjects) > 1 and not answer.config.get("filter_subjects"):  # from another, older server of a cluster
            with suppress(DeliveryError):
                await self.delete_consumer(stream, name)
            raise _several_subjects(stream, name)
        return _consumer_config(answer.config)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """
        Delete a consumer.

        Raises:
            DeliveryError: As :meth:`consumer` does.
        """
        await self._request(_Answer, stream, f"CONSUMER.DELETE.{stream}.{name}", consumer=name)

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def _request(
        self,
        kind: type[T],
        stream: str,
        subject: str,
        request: dict[str, Any] | None = None,
        *,
        consumer: str = "",
        is_watched: bool = False,
    ) -> T:
        """
        An answer without an error.

        Args:
            kind: What the answer is decoded to.
            stream: Name of the stream, for the message of an error.
            subject: Of the request, behind the prefix.
            request: Its body; None is an empty one.
            consumer: Name of the consumer, for the message of an error; ``""`` where it is about the stream.
            is_watched: As for :meth:`stored`.

        Raises:
            DeliveryError: As :meth:`state` does.
        """
        target = f"consumer {consumer} of stream {stream}" if consumer else f"stream {stream}"
        patience = Patience(self._timeout, self._retry_timeout)
        disabled_since = math.inf
        while True:
            try:
                answer = await self._request_once(
                    kind, target, subject, request, patience.seconds, is_watched=is_watched
                )
                if answer.error is not None:
                    raise _refusal(stream, target, answer.error)
            except DeliveryError as error:
                is_disabled = isinstance(error, ApiError) and error.err_code in NOT_ENABLED
                disabled_since = min(disabled_since, time.monotonic()) if is_disabled else math.inf
                if not self._may_pass(error) or time.monotonic() - disabled_since >= _SHUTDOWN_SECONDS:
                    raise
                self._report(error)
                if not await patience.wait():
                    raise
            else:
                self._is_failing = False
                return answer

    async def _request_once(
        self,
        kind: type[T],
        target: str,
        subject: str,
        request: dict[str, Any] | None,
        timeout: float,
        *,
        is_watched: bool,
    ) -> T:
        with delivery_errors(target, self._nc):
            try:
                return await self._exchange(kind, target, subject, request, timeout=timeout, is_watched=is_watched)
            except nats.errors.NoRespondersError as error:
                text = f"no answer on {self.prefix!r}: JetStream has another prefix or domain, or is not enabled"
                if self.prefix == DEFAULT_PREFIX:
                    is_known = not self._may_have_jetstream()
                    text = "JetStream is not enabled on the server" if is_known else "no server with JetStream answers"
                raise DeliveryError(ErrorCode.NO_RESPONDERS, f"{target}: {text}") from error

    def _may_pass(self, error: DeliveryError) -> bool:
        """Whether the same request may be answered soon."""
        if isinstance(error, ApiError):
            return error.is_temporary
        if error.code is ErrorCode.NO_RESPONDERS:
            return self._may_have_jetstream()
        return error.code in (ErrorCode.TIMEOUT, ErrorCode.BUFFER_FULL) and not self._nc.is_closed

    def _may_have_jetstream(self) -> bool:
        """
        Whether JetStream may exist although nothing answers.

        Another server of the cluster may have it, and be away; one that stands alone has none. What is behind another
        prefix is not known.
        """
        info = server_info(self._nc)
        return bool(self.prefix != DEFAULT_PREFIX or info.get("jetstream") or info.get("cluster"))

    def _report(self, error: DeliveryError) -> None:
        """Log the first of the requests that are being repeated."""
        if self._retry_timeout and not self._is_failing:
            self._is_failing = True
            _log.warning("%s; retrying for up to %g seconds", error.message, self._retry_timeout)

    async def _exchange(
        self,
        kind: type[T],
        target: str,
        subject: str,
        request: dict[str, Any] | None = None,
        *,
        timeout: float,
        is_watched: bool = False,
    ) -> T:
        body = b"" if request is None else msgspec.json.encode(request)
        subject = f"{self.prefix}.{subject}"
        if is_watched:
            reply = await self._nc.request(subject, body, timeout=timeout)
        else:
            reply = await answered(self._nc, subject, lambda: self._nc.request(subject, body, timeout=timeout))
        try:
            return msgspec.json.decode(reply.data, type=kind)
        except msgspec.MsgspecError as error:
            text = f"{target}: the reply is not an answer of JetStream's API"
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, text) from error


async def check_stream_on(js: JetStreamContext, subject: str) -> None:
    """
    Check that a stream listens on a subject.

    Raises:
        DeliveryError: ``no-responders``: no stream listens.
    """
    api = StreamApi.of(js, min(api_timeout(js), _NAMES_SECONDS))
    reason = await api.why_no_stream(subject)
    if reason:
        await asyncio.sleep(_SHUTDOWN_SECONDS)
        reason = await api.why_no_stream(subject)
    if reason:
        raise DeliveryError(ErrorCode.NO_RESPONDERS, f"no stream listens on {subject!r}: {reason}")


def is_final(error: Exception) -> bool:
    """Whether a retry would fail in the same way: JetStream refused, or permission is denied."""
    if isinstance(error, ApiError):
        return not error.is_temporary
    return isinstance(error, DeliveryError) and error.code is ErrorCode.PERMISSION_DENIED


def nanoseconds(at: datetime) -> int:
    """Nanoseconds since 1970, UTC, of an aware time; a Timestamp has all digits."""
    fraction = at.nanosecond if isinstance(at, Timestamp) else at.microsecond * 1000
    return timegm(at.utctimetuple()) * 1_000_000_000 + fraction


def _several_subjects(stream: str, name: str) -> DeliveryError:
    text = "several filter_subjects need nats-server 2.10 or later; use one subject, or a consumer for each"
    return DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"consumer {name} of stream {stream}: {text}")


def _consumer_config(fields: dict[str, Any]) -> ConsumerConfig:
    config: ConsumerConfig = ConsumerConfig.from_response(fields)
    return config


def _refusal(stream: str, target: str, error: _Error) -> ApiError:
    refusal = api_error(target, error.code, error.err_code, error.description)
    if refusal.code is ErrorCode.STREAM_NOT_FOUND:
        text = f"there is no stream {stream}"
    elif refusal.code is ErrorCode.NO_RESPONDERS:
        text = f"{target}: JetStream is not enabled for this account"
    else:
        return refusal
    plain = ApiError(refusal.code, text)
    plain.err_code = refusal.err_code
    return plain
