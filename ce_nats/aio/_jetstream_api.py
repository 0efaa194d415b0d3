"""
JetStream's API: state of streams, stored messages, consumers.

Requests and responses are JSON ("JetStream API Reference" of the NATS documentation). All API requests of this package
are sent here, on nats-py's connection. Responses are decoded here, because nats-py's objects lack nanoseconds, header
blocks and error numbers. A request without a response, because a leader is being elected for instance, is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from calendar import timegm
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType
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
from . import _server_codes as codes
from ._errors import api_error, delivery_errors
from ._util.checks import check_client
from ._util.patience import RETRY_SECONDS, Patience
from .link._client import api_prefix, api_timeout, client_of, server_info
from .link._link import Link, answered

_log: Final = logging.getLogger(__name__)

# Timeout of a request whose response is optional.
_NAMES_SECONDS: Final = 2.0
# Reasons of why_no_stream() that concern all streams.
NO_JETSTREAM: Final = ("the server has no JetStream", "JetStream is not enabled for this account")
# A server also reports that there is no stream, or no JetStream, while it shuts down, for at most this time.
_SHUTDOWN_SECONDS: Final = 0.5
_NOT_DELETED: Final = (codes.SEQUENCE_NOT_FOUND, codes.MESSAGE_DELETE_FAILED)
# First version of nats-server that supports filter_subjects of a consumer.
_SEVERAL_SUBJECTS: Final = (2, 10)
# Maximum number of attempts to list the streams while others create or delete some.
_MAX_LISTINGS: Final = 10
# Maximum number of times that a text in the metadata of a consumer is written, if other clients write it too.
_MAX_ANNOTATIONS: Final = 5
# Maximum number of requests in flight.
_MAX_REQUESTS: Final = 64

T = TypeVar("T", bound="_Answer")


class Stored(msgspec.Struct):
    """Message in a response of the API, with the bytes of its header block; both byte strings are base64 in JSON."""

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
    consumer_count: int = 0
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0


class _Info(_Answer):
    created: str = ""
    config: _Config = msgspec.field(default_factory=_Config)
    state: _State = msgspec.field(default_factory=_State)


class _Configured(_Answer):
    created: str = ""
    config: dict[str, Any] = {}
    cluster: dict[str, Any] | None = None
    state: _State = msgspec.field(default_factory=_State)


class _Counts(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Counted(_Answer):
    total: int = 0
    config: dict[str, Any] = {}
    state: _Counts = msgspec.field(default_factory=_Counts)


class _Found(_Answer):
    message: Stored | None = None


class _Sequences(msgspec.Struct):
    consumer_seq: int = 0
    stream_seq: int = 0


class _Consumer(_Answer):
    created: str = ""
    config: dict[str, Any] = {}
    delivered: _Sequences = msgspec.field(default_factory=_Sequences)
    ack_floor: _Sequences = msgspec.field(default_factory=_Sequences)
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0


class _Names(_Answer):
    total: int = 0
    streams: list[str] | None = None
    consumers: list[str] | None = None


class StreamOnSubject(NamedTuple):
    """
    Stream that listens on a subject.

    Attributes:
        name: Name of the stream.
        subjects: Its subjects, which may have wildcards.
        accepts_batches: Whether it accepts batches of fast ingest. The acknowledgement of each message matters to a
            stream of counters, which therefore counts as one that does not.
        last: Sequence of its last message.
    """

    name: str
    subjects: list[str]
    accepts_batches: bool
    last: int


class StreamDescription(NamedTuple):
    """
    A stream.

    Attributes:
        config: Its configuration as in the response of the server.
        state: Its state.
        cluster: Its leader and replicas as in the response of the server.
        consumers: Number of its consumers.
    """

    config: dict[str, Any]
    state: StreamState
    cluster: dict[str, Any]
    consumers: int


class Lag(NamedTuple):
    """
    Lag of a consumer, in messages.

    Attributes:
        pending: Number of undelivered messages.
        ack_pending: Number of messages that are delivered and not settled.
        redelivered: Number of them that were delivered more than once.
    """

    pending: int
    ack_pending: int
    redelivered: int


class PullLimits(NamedTuple):
    """
    Limits of each request for messages of a consumer; infinite without a limit.

    Attributes:
        messages: Number of messages (``max_batch``).
        seconds: Time until it expires (``max_expires``).
        octets: Bytes of the messages (``max_bytes``).
    """

    messages: float = math.inf
    seconds: float = math.inf
    octets: float = math.inf

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> PullLimits:
        """Return the limits in a configuration as in the response of the server."""
        names = ("max_batch", "max_expires", "max_bytes")
        messages, nanos, octets = (config.get(name) or math.inf for name in names)
        return cls(messages, nanos / 1e9, octets)


class ConsumerState(NamedTuple):
    """
    A consumer.

    Attributes:
        config: Its configuration.
        created: Time of its creation, as in the response of the server: it identifies the consumer among those that had
            the same name.
        lag: Its lag.
        requests: Number of pending requests for messages, of all clients.
        limits: Limits of each request.
        progress: Its progress.
    """

    config: ConsumerConfig
    created: str
    lag: Lag
    requests: int
    limits: PullLimits
    progress: Progress


class Progress(NamedTuple):
    """
    Progress of a consumer, as the server reports it.

    Attributes:
        delivered: Sequence in the stream of the last message that was delivered for the first time.
        deliveries: Sequence in the consumer of the last delivery.
        ack_floor: Sequence in the stream up to which all messages are acknowledged.
        ack_pending: Number of messages that are delivered and not acknowledged.
        requests: Number of pending requests for messages, of all clients.
        config: Configuration of the consumer as in the response of the server.
        created: Time of its creation, as in the response of the server.
    """

    delivered: int
    deliveries: int
    ack_floor: int
    ack_pending: int
    requests: int = 0
    config: Mapping[str, Any] = MappingProxyType({})
    created: str = ""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the consumer."""
        return self.config.get("metadata") or {}

    @property
    def filters(self) -> list[str]:
        """Subjects that the consumer reads, wildcards allowed; empty if it reads all."""
        return [*filter(None, [self.config.get("filter_subject")]), *(self.config.get("filter_subjects") or ())]


class StreamApi:
    """JetStream's API on a connection."""

    def __init__(
        self,
        nc: Client,
        prefix: str = DEFAULT_PREFIX,
        timeout: float = 5.0,
        retry_timeout: float = RETRY_SECONDS,
    ) -> None:
        check_client(nc)
        Link.of(nc).api_prefixes.add(prefix)
        self.prefix = prefix
        self.nc = nc
        self._timeout = timeout
        self._retry_timeout = retry_timeout
        self._is_failing = False

    @classmethod
    def of(cls, js: JetStreamContext, *, timeout: float | None = None, retry_timeout: float | None = None) -> StreamApi:
        """Return the API with the connection, prefix and timeout of a JetStreamContext."""
        timeout = api_timeout(js) if timeout is None else timeout
        retry_timeout = max(RETRY_SECONDS, timeout) if retry_timeout is None else retry_timeout
        return cls(client_of(js), api_prefix(js), timeout, retry_timeout)

    def without_retries(self) -> StreamApi:
        """Return the same API without retries."""
        return StreamApi(self.nc, self.prefix, self._timeout, 0)

    # --- Streams ------------------------------------------------------------------------------------------------------

    async def state(self, stream: str) -> StreamState:
        """
        Return the state of a stream.

        Raises:
            DeliveryError: ``no-responders`` or ``timeout``: no response; ``permission-denied``; ``connection-closed``;
                an :class:`~ce_nats.ApiError` if JetStream refuses, ``stream-not-found`` for instance.
        """
        info = await self._info(stream)
        return _stream_state(stream, info.created, info.config.retention, info.state)

    async def description(self, stream: str) -> StreamDescription:
        """Return the configuration, the state and the servers of a stream, of one moment."""
        info = await self._request(_Configured, stream, f"STREAM.INFO.{stream}")
        retention = str(info.config.get("retention", "limits"))
        state = _stream_state(stream, info.created, retention, info.state)
        return StreamDescription(info.config, state, info.cluster or {}, info.state.consumer_count)

    async def config_and_state(self, stream: str) -> tuple[dict[str, Any], StreamState]:
        """Return the configuration of a stream as in the response of the server, and its state."""
        found = await self.description(stream)
        return found.config, found.state

    async def config_and_count(self, stream: str, subject: str) -> tuple[dict[str, Any], int]:
        """Return the configuration of a stream as the server has it, and the number of messages on a subject."""
        request = {"subjects_filter": subject}
        info = await self._request(_Counted, stream, f"STREAM.INFO.{stream}", request)
        return info.config, (info.state.subjects or {}).get(subject, 0)

    async def names_on(self, subject: str) -> list[str]:
        """Return the names of the streams that listen on a subject."""
        return (await self._request(_Names, "", "STREAM.NAMES", {"subject": subject})).streams or []

    async def stream_names(self) -> list[str]:
        """Return the names of all streams of the account, ordered."""
        return await self._names("stream names", "", "STREAM.NAMES")

    async def consumer_names(self, stream: str) -> list[str]:
        """Return the names of all consumers of a stream, ordered."""
        return await self._names("consumer names", stream, f"CONSUMER.NAMES.{stream}")

    async def _names(self, what: str, stream: str, request: str) -> list[str]:
        """
        Return names, ordered.

        The server returns them in pages, by number. So each page here begins with the last name of the previous one: if
        it does not, some were created or deleted meanwhile, and a name may be missing.

        Raises:
            DeliveryError: ``unexpected-answer``: the names changed during each attempt.
        """
        for _ in range(_MAX_LISTINGS):
            found: list[str] = []
            while True:
                page = await self._request(_Names, stream, request, {"offset": max(0, len(found) - 1)})
                names = page.streams or page.consumers or []
                if found and names[:1] != found[-1:]:
                    break
                found[-1:] = names
                if len(names) < 2 or len(found) >= page.total:
                    return found
        raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, f"{what}: they changed while they were listed; try again")

    async def subjects(self, stream: str) -> list[str]:
        """Return the subjects of a stream, which may have wildcards."""
        return (await self._info(stream)).config.subjects or []

    async def origin_subjects(self, stream: str) -> list[str]:
        """
        Return the subjects to which messages of a stream are published: its subjects, and those of the streams that it
        mirrors or sources. A source that cannot be looked up is omitted.
        """
        found: dict[str, None] = {}
        waiting, seen = [(self.prefix, stream)], {(self.prefix, stream)}
        while waiting:
            prefix, name = waiting.pop()
            # Another prefix may have no responder.
            retry_timeout = self._retry_timeout if prefix == self.prefix else 0
            try:
                config = (await StreamApi(self.nc, prefix, self._timeout, retry_timeout)._info(name)).config
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

    async def update_stream(self, stream: str, config: dict[str, Any]) -> dict[str, Any]:
        """
        Replace the configuration of a stream, and return it as stored by the server.

        Raises:
            DeliveryError: As :meth:`state` does; ``request-refused``.
        """
        return (await self._request(_Configured, stream, f"STREAM.UPDATE.{stream}", config)).config

    async def stream_on(self, subject: str) -> StreamOnSubject | None:
        """Return the stream that listens on a subject, or None."""
        names = await self.names_on(subject)
        return await self.stream_named(names[0]) if len(names) == 1 else None

    async def stream_named(self, stream: str) -> StreamOnSubject:
        """Return the subjects of a stream, and whether it accepts batches."""
        config, state = await self.config_and_state(stream)
        accepts = config.get("allow_batched") and not config.get("allow_msg_counter") and not config.get("no_ack")
        return StreamOnSubject(state.name, config.get("subjects") or [], bool(accepts), state.last)

    async def why_no_stream(self, subject: str) -> str | None:
        """
        Return the reason why no stream listens on a subject; ``""`` if a stream listens, and None if that is unknown.

        It is unknown if the API does not respond, because permission is denied for instance, and for another prefix or
        domain, where the subject may have another name.
        """
        return (await self.look_up(subject))[1]

    async def why_unacknowledged(self, subject: str) -> str:
        """Return the reason why messages on a subject are received, and not acknowledged; ``""`` if it is unknown."""
        names, reason = await self.look_up(subject)
        if reason:
            return f"only subscribers without JetStream listen, and no stream: {reason}"
        with suppress(DeliveryError):
            for name in names[:1]:
                if (await self.config_and_state(name))[0].get("no_ack"):
                    return f"stream {name} has no_ack, so it acknowledges nothing"
        return ""

    async def look_up(self, subject: str) -> tuple[list[str], str | None]:
        """Return the names of the streams that listen on a subject, and the result of :meth:`why_no_stream`."""
        if self.prefix != DEFAULT_PREFIX:
            return [], None
        try:
            target, request = f"streams on {subject}", {"subject": subject}
            answer = await self._exchange(_Names, target, "STREAM.NAMES", request, timeout=self._timeout)
        except nats.errors.NoRespondersError:
            return [], None if self._may_have_jetstream() else NO_JETSTREAM[0]
        except (DeliveryError, nats.errors.Error, OSError):
            return [], None
        if answer.error is not None:
            return [], NO_JETSTREAM[1] if answer.error.err_code in codes.NO_JETSTREAM else None
        if answer.streams:
            return answer.streams, ""
        return [], f"create one with js.add_stream(name=..., subjects=[{preview(subject)}]), or with nats stream add"

    # --- Messages -----------------------------------------------------------------------------------------------------

    async def stored(self, stream: str, request: dict[str, Any], *, is_watched: bool = False) -> Stored | None:
        """Return the message that ``STREAM.MSG.GET`` finds, or None."""
        try:
            answer = await self._request(_Found, stream, f"STREAM.MSG.GET.{stream}", request, is_watched=is_watched)
        except ApiError as error:
            if error.code is ErrorCode.MESSAGE_NOT_FOUND:
                return None
            raise
        return answer.message

    async def last_on_subjects(self, stream: str, pattern: str) -> list[Stored]:
        """Return the last message on each subject of a pattern, by ascending sequence."""
        subjects: list[str] = []
        while True:
            request = {"subjects_filter": pattern, "offset": len(subjects)}
            info = await self._request(_Counted, stream, f"STREAM.INFO.{stream}", request)
            page = info.state.subjects or {}
            subjects += page
            if not page or len(subjects) >= info.total:
                break
        found = await self._stored_each(stream, [{"last_by_subj": subject} for subject in subjects])
        return sorted(found, key=lambda message: message.seq)

    async def _stored_each(self, stream: str, requests: Sequence[dict[str, Any]]) -> list[Stored]:
        """Return the messages that :meth:`stored` finds for many requests, some of which are in flight at once."""
        found: list[Stored] = []
        for start in range(0, len(requests), _MAX_REQUESTS):
            some = requests[start : start + _MAX_REQUESTS]
            found += filter(None, await asyncio.gather(*(self.stored(stream, request) for request in some)))
        return found

    def stored_subject(self, stream: str) -> str:
        """Return the subject of the requests of :meth:`stored`."""
        return f"{self.prefix}.STREAM.MSG.GET.{stream}"

    async def next_sequence(self, stream: str, sequence: int, subjects: Sequence[str] = ()) -> int | None:
        """Return the sequence of the first message at or after a sequence, or None."""
        requests = [{"seq": sequence, "next_by_subj": pattern} for pattern in subjects or [">"]]
        return min((message.seq for message in await self._stored_each(stream, requests)), default=None)

    async def sequence_at(self, state: StreamState, since: int) -> int:
        """
        Return the sequence of the first message stored at or after an instant; ``state.last + 1`` if there is none.

        Like the server, it relies on ascending times in a stream.

        ``since``: The instant, in nanoseconds since 1970, UTC.
        """
        low, high = state.first, state.last + 1  # the answer is in [low, high]
        while low < high:
            middle = (low + high) // 2
            message = await self.stored(state.name, {"seq": middle, "next_by_subj": ">"})
            if message is None or message.seq >= high or nanoseconds(Timestamp.parse(message.time)) >= since:
                # No message is between the middle and this one, so no earlier message is late enough.
                high = middle
            else:
                low = message.seq + 1
        return low

    async def delete_message(self, stream: str, sequence: int) -> None:
        """
        Delete a message without overwriting it on disk, which would take most of the server's time.

        It is not an error if the message does not exist: an earlier request whose response was lost may have deleted
            it.
        """
        request = {"seq": sequence, "no_erase": True}
        try:
            await self._request(_Answer, stream, f"STREAM.MSG.DELETE.{stream}", request)
        except ApiError as error:
            if error.err_code not in _NOT_DELETED or await self.stored(stream, {"seq": sequence}) is not None:
                raise

    async def purge(self, stream: str, subject: str) -> None:
        """Delete all messages on a subject."""
        await self._request(_Answer, stream, f"STREAM.PURGE.{stream}", {"filter": subject})

    # --- Consumers ----------------------------------------------------------------------------------------------------

    async def consumer(self, stream: str, name: str) -> ConsumerConfig:
        """
        Return the configuration of a consumer.

        Raises:
            DeliveryError: As :meth:`state` does; ``consumer-not-found``.
        """
        return _consumer_config((await self._consumer_info(stream, name)).config)

    async def consumer_state(self, stream: str, name: str) -> ConsumerState:
        """Return a consumer's configuration, creation and lag, of one moment."""
        answer = await self._consumer_info(stream, name)
        limits = PullLimits.of(answer.config)
        config = _consumer_config(answer.config)
        return ConsumerState(config, answer.created, _lag(answer), answer.num_waiting, limits, _progress(answer))

    async def lag(self, stream: str, name: str) -> Lag:
        """Return the lag of a consumer."""
        return _lag(await self._consumer_info(stream, name))

    async def progress(self, stream: str, name: str) -> Progress:
        """Return the progress of a consumer."""
        return _progress(await self._consumer_info(stream, name))

    async def _consumer_info(self, stream: str, name: str) -> _Consumer:
        return await self._request(_Consumer, stream, f"CONSUMER.INFO.{stream}.{name}", consumer=name)

    async def create_consumer(self, stream: str, name: str, config: dict[str, Any]) -> ConsumerConfig:
        """
        Create a consumer. An existing consumer with the same configuration is not changed.

        nats-server before 2.10 ignores ``filter_subjects``, and would deliver all subjects. So a single subject is sent
        as ``filter_subject``, and several are refused.

        ``config``: Configuration in the form of the API, with times in nanoseconds.

        Returns the configuration as completed by the server.

        Raises:
            DeliveryError: As :meth:`state` does; ``request-refused``; ``incompatible-config``: the server is older than
                2.10, and the consumer has several subjects.
        """
        subject = _create_subject(stream, name, config)
        subjects = config.get("filter_subjects") or []
        if len(subjects) == 1:
            config = {**config, "filter_subject": subjects[0]}
            del config["filter_subjects"]
        version = self.nc.connected_server_version
        if len(subjects) > 1 and (version.major, version.minor) < _SEVERAL_SUBJECTS:
            raise _several_subjects(stream, name)
        request = {"stream_name": stream, "config": {"name": name, **config}}
        answer = await self._request(_Consumer, stream, subject, request, consumer=name)
        if len(subjects) > 1 and not answer.config.get("filter_subjects"):  # an older server of the cluster responded
            with suppress(DeliveryError):
                await self.delete_consumer(stream, name)
            raise _several_subjects(stream, name)
        return _consumer_config(answer.config)

    async def update_consumer(self, stream: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
        """
        Replace the configuration of a consumer, and return it as stored by the server.

        Raises:
            DeliveryError: As :meth:`consumer` does; ``request-refused``.
        """
        request = {"stream_name": stream, "config": config, "action": "update"}
        answer = await self._request(_Consumer, stream, _create_subject(stream, name, config), request, consumer=name)
        return answer.config

    async def annotate_consumer(self, stream: str, name: str, key: str, change: Callable[[str, int], str]) -> None:
        """
        Change a text in the metadata of a consumer; its other settings stay as they are.

        Raises:
            DeliveryError: As :meth:`consumer` does; ``request-refused``; ``incompatible-config``: the server is older
                than 2.10, and does not keep metadata.
        """
        for _ in range(_MAX_ANNOTATIONS):
            info = await self._consumer_info(stream, name)
            metadata: dict[str, str] = info.config.get("metadata") or {}
            present = metadata.get(key, "")
            text = change(present, info.ack_floor.stream_seq)
            if text == present:
                return
            others = {other: value for other, value in metadata.items() if other != key}
            config = {**info.config, "metadata": {**others, key: text} if text else others}
            kept = (await self.update_consumer(stream, name, config)).get("metadata") or {}
            if kept.get(key, "") == text:
                return
        if not kept:
            text = "metadata of consumers need nats-server 2.10 or later"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"consumer {name} of stream {stream}: {text}")

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer."""
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
        """Send a request until there is a response, and return it."""
        target = f"stream {stream}" if stream else "stream names"
        if consumer:
            target = f"consumer {consumer} of {target}"
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
                is_disabled = isinstance(error, ApiError) and error.err_code in codes.NO_JETSTREAM
                disabled_since = min(disabled_since, time.monotonic()) if is_disabled else math.inf
                if not self._is_temporary(error) or time.monotonic() - disabled_since >= _SHUTDOWN_SECONDS:
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
        with delivery_errors(target, self.nc):
            try:
                return await self._exchange(kind, target, subject, request, timeout=timeout, is_watched=is_watched)
            except nats.errors.NoRespondersError as error:
                text = f"no answer on {self.prefix!r}: JetStream has another prefix or domain, or is not enabled"
                if self.prefix == DEFAULT_PREFIX:
                    is_known = not self._may_have_jetstream()
                    text = "JetStream is not enabled on the server" if is_known else "no server with JetStream answers"
                raise DeliveryError(ErrorCode.NO_RESPONDERS, f"{target}: {text}") from error

    def _is_temporary(self, error: DeliveryError) -> bool:
        """Return whether a retry of the request may succeed."""
        if isinstance(error, ApiError):
            return error.is_temporary
        if error.code is ErrorCode.NO_RESPONDERS:
            return self._may_have_jetstream()
        return error.code in (ErrorCode.TIMEOUT, ErrorCode.BUFFER_FULL) and not self.nc.is_closed

    def _may_have_jetstream(self) -> bool:
        """
        Return whether JetStream may exist although there are no responders.

        Another server of the cluster may have it, and be down. A single server without JetStream cannot. It is unknown
        for another prefix.
        """
        info = server_info(self.nc)
        return bool(self.prefix != DEFAULT_PREFIX or info.get("jetstream") or info.get("cluster"))

    def _report(self, error: DeliveryError) -> None:
        """Log the first failed attempt of a series."""
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
            reply = await self.nc.request(subject, body, timeout=timeout)
        else:
            reply = await answered(self.nc, subject, lambda: self.nc.request(subject, body, timeout=timeout))
        try:
            return msgspec.json.decode(reply.data, type=kind)
        except msgspec.MsgspecError as error:
            text = f"{target}: the reply is not a response of JetStream's API"
            raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, text) from error


async def look_up(js: JetStreamContext, subject: str) -> tuple[list[str], str | None]:
    """As :meth:`StreamApi.look_up`, for an answer that is optional; asked twice, in case that a server shuts down."""
    api = StreamApi.of(js, timeout=min(api_timeout(js), _NAMES_SECONDS))
    names, reason = await api.look_up(subject)
    if reason:
        await asyncio.sleep(_SHUTDOWN_SECONDS)
        names, reason = await api.look_up(subject)
    return names, reason


def is_final(error: Exception) -> bool:
    """Return whether a retry would fail in the same way: JetStream refused, or permission is denied."""
    if isinstance(error, ApiError):
        return not error.is_temporary
    return isinstance(error, DeliveryError) and error.code is ErrorCode.PERMISSION_DENIED


def nanoseconds(at: datetime) -> int:
    """Return the nanoseconds since 1970, UTC, of an aware time; a Timestamp keeps nanoseconds."""
    fraction = at.nanosecond if isinstance(at, Timestamp) else at.microsecond * 1000
    return timegm(at.utctimetuple()) * 1_000_000_000 + fraction


def _stream_state(stream: str, created: str, retention: str, state: _State) -> StreamState:
    first = state.first_seq if state.messages else state.last_seq + 1
    return StreamState(stream, created, first, state.last_seq, state.messages, retention, state.bytes)


def _several_subjects(stream: str, name: str) -> DeliveryError:
    text = "several filter_subjects need nats-server 2.10 or later; use one subject, or a consumer for each"
    return DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"consumer {name} of stream {stream}: {text}")


def _create_subject(stream: str, name: str, config: dict[str, Any]) -> str:
    """Return the subject of requests that create or update a consumer; it has the subject of the consumer, if any."""
    only = config.get("filter_subject")
    return f"CONSUMER.CREATE.{stream}.{name}" + (f".{only}" if only and only != ">" else "")


def _lag(answer: _Consumer) -> Lag:
    return Lag(answer.num_pending, answer.num_ack_pending, answer.num_redelivered)


def _progress(answer: _Consumer) -> Progress:
    return Progress(
        answer.delivered.stream_seq,
        answer.delivered.consumer_seq,
        answer.ack_floor.stream_seq,
        answer.num_ack_pending,
        answer.num_waiting,
        answer.config,
        answer.created,
    )


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
