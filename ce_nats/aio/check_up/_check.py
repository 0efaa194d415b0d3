"""Ask servers for the configuration that a program depends on, and judge it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from http import HTTPStatus
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from ..._monitoring import fetch, is_monitoring_url
from ..._numbers import check_count, check_seconds
from ...errors import ApiError, DeliveryError, ErrorCode, preview
from ...subjects import check_name, check_plain_subject
from .._jetstream_api import StreamApi, look_up
from .._util.checks import check_client, check_jetstream
from ..link._client import api_prefix, api_timeout, client_of, request_inbox, server_info
from ._rules import (
    Consumer,
    Finding,
    Level,
    Needs,
    Servers,
    Stream,
    check_feature,
    consumer_findings,
    dead_letter_findings,
    missing_consumer,
    permission_findings,
    stream_findings,
)

_USER_INFO: Final = "$SYS.REQ.USER.INFO"
_ALL_SERVERS: Final = "$SYS.REQ.SERVER.PING.VARZ"
# Time without a further server after which all have answered.
_SILENCE_SECONDS: Final = 0.5
_LEVELS: Final = list(Level)


class _Storage(msgspec.Struct):
    sync_always: bool = False


class _JetStream(msgspec.Struct):
    config: _Storage | None = None


class _Varz(msgspec.Struct):
    server_name: str = ""
    jetstream: _JetStream | None = None


class _Ping(msgspec.Struct):
    data: _Varz = msgspec.field(default_factory=_Varz)


class _User(msgspec.Struct):
    user: str = ""
    permissions: dict[str, Any] | None = None


class _UserInfo(msgspec.Struct):
    data: _User | None = None


async def check(
    js: JetStreamContext,
    stream: str,
    *,
    consumer: str | None = None,
    dead_letter: str | None = None,
    replicas: int | None = None,
    sync: bool = False,
    features: Iterable[str] = (),
    read_every: timedelta | None = None,
    in_flight: int = 64,
    retry_timeout: float = 35.0,
    monitor: Sequence[str] = (),
    system: Client | None = None,
) -> list[Finding]:
    """
    Check the configuration of a stream against what a program needs; nothing is changed.

        for finding in await check(js, "ORDERS", consumer="billing", dead_letter="dead.orders"):
            print(finding)

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        consumer: Name of a consumer that a :class:`~ce_nats.aio.PullConsumer` uses.
        dead_letter: Its subject for dead letters.
        replicas: Least number of replicas that the stream must have.
        sync: Whether each server of the stream must sync each message (``sync_interval: always``). It is not known
            without ``monitor`` or ``system``.
        features: Those that the program uses: ``atomic`` (:class:`~ce_nats.aio.AtomicBatch`), ``batches`` (fast
            ingest), ``schedules``, ``ttl``.
        read_every: Interval of captures, or of other programs that read the whole stream.
        in_flight: Number of messages that a program of the consumer fetches and handles at once.
        retry_timeout: Seconds for which publishers repeat an event, with the time for its last acknowledgement.
        monitor: Monitoring URLs of servers, ``http://127.0.0.1:8222`` for example.
        system: A connection of a user of the system account, instead of ``monitor``.

    Returns:
        Findings, errors first; none for a configuration without problems. A consumer that does not exist, or a missing
        stream of dead letters, is a finding as well.

    Raises:
        DeliveryError: ``stream-not-found``; ``connection-failed``: a monitoring URL does not respond;
            ``unexpected-answer``; ``no-responders``, ``timeout``, ``permission-denied``, ``connection-closed``.
        EncodeError: ``invalid-subject``: a name or ``dead_letter`` is not valid.
        ValueError: An option is not valid.
        TypeError: ``js`` or ``system`` has another type.
    """
    check_jetstream(js)
    check_name("stream", stream)
    if consumer is not None:
        check_name("consumer", consumer)
    if dead_letter is not None:
        check_plain_subject(dead_letter)
    needs = Needs(
        replicas=replicas,
        sync=sync,
        features=tuple(features),
        retry_timeout=retry_timeout,
        read_every=None if read_every is None else read_every.total_seconds(),
        in_flight=in_flight,
    )
    _check_needs(needs)
    urls = checked_urls(monitor)
    if system is not None:
        check_client(system)
    api = StreamApi.of(js)
    found: list[Finding] = []
    described = Stream(*await api.description(stream))
    servers = await describe_servers(api.nc, described, urls, system, api_timeout(js))
    found += stream_findings(described, needs, servers)
    reader = None
    if consumer is not None:
        reader = await _consumer(api, stream, consumer)
        if reader is None:
            found.append(missing_consumer(stream, consumer))
        else:
            origins = await _origins(api, described)
            found += consumer_findings(described, origins, reader, needs, datetime.now(timezone.utc))
    if dead_letter is not None:
        names, reason = await look_up(js, dead_letter)
        if names or reason is not None:  # otherwise it is unknown, for another prefix for instance
            letters = Stream(*await api.description(names[0])) if names else None
            found += dead_letter_findings(described, reader, dead_letter, letters, servers)
    if consumer is not None:
        found += await _denied(js, stream, consumer, dead_letter)
    return sorted(found, key=lambda finding: _LEVELS.index(finding.level))


def _check_needs(needs: Needs) -> None:
    """
    Check what a program needs.

    Raises:
        ValueError: An option is not valid.
    """
    if needs.replicas is not None:
        check_count("replicas", needs.replicas)
    check_count("in_flight", needs.in_flight)
    check_seconds("retry_timeout", needs.retry_timeout)
    if needs.read_every is not None:
        check_seconds("read_every", needs.read_every)
    for name in needs.features:
        check_feature(name)


def checked_urls(urls: Sequence[str]) -> list[str]:
    """
    Return monitoring URLs without slashes at their ends.

    Raises:
        ValueError: One is not the URL of a server.
    """
    given = [urls] if isinstance(urls, str) else urls
    for url in given:
        if not is_monitoring_url(url):
            raise ValueError(f"monitor must have URLs such as http://127.0.0.1:8222, got {preview(url)}")
    return [url.rstrip("/") for url in given]


async def _origins(api: StreamApi, stream: Stream) -> list[str]:
    """Return the subjects of the messages in a stream; none if they may be transformed."""
    config = stream.config
    sources = [*filter(None, [config.get("mirror")]), *(config.get("sources") or ())]
    if config.get("subject_transform") or any(
        source.get("subject_transforms") or source.get("external") for source in sources
    ):
        return []
    return await api.origin_subjects(stream.state.name) if sources else config.get("subjects") or []


async def _consumer(api: StreamApi, stream: str, name: str) -> Consumer | None:
    try:
        return Consumer(name, await api.progress(stream, name))
    except ApiError as error:
        if error.code is not ErrorCode.CONSUMER_NOT_FOUND:
            raise
        return None


async def describe_servers(
    nc: Client, stream: Stream, urls: Sequence[str], system: Client | None, timeout: float
) -> Servers:
    """Return what is known of the connected server, and of those that store a stream."""
    known: list[_Varz] = list(await asyncio.gather(*(_varz(url, timeout) for url in urls)))
    if system is not None:
        known += await _ping(system, len(stream.servers), timeout)
    version = nc.connected_server_version
    return Servers(
        version=(version.major, version.minor, version.patch),
        is_cluster=bool(server_info(nc).get("cluster")),
        max_payload=nc.max_payload,
        synced={one.server_name: _syncs(one) for one in known},
        was_asked=bool(known),
    )


def _syncs(server: _Varz) -> bool:
    return server.jetstream is not None and server.jetstream.config is not None and server.jetstream.config.sync_always


async def _varz(url: str, timeout: float) -> _Varz:
    status, body = await fetch(url, "varz", timeout)
    if status != HTTPStatus.OK:
        raise DeliveryError(ErrorCode.CONNECTION_FAILED, f"monitoring at {url}: HTTP status {status}")
    try:
        return msgspec.json.decode(body, type=_Varz)
    except msgspec.MsgspecError as error:
        text = f"{url} must be the monitoring of nats-server, got another answer"
        raise DeliveryError(ErrorCode.UNEXPECTED_ANSWER, text) from error


async def _ping(system: Client, least: int, timeout: float) -> list[_Varz]:
    """
    Return what all servers answer to a user of the system account.

    Raises:
        DeliveryError: ``permission-denied``: no server answers, because the user is of another account.
    """
    found: list[_Varz] = []
    inbox = system.new_inbox()
    subscription = await system.subscribe(inbox)
    try:
        await system.publish(_ALL_SERVERS, b"", reply=inbox)
        with suppress(nats.errors.TimeoutError):
            while True:
                message = await subscription.next_msg(timeout if len(found) < least else _SILENCE_SECONDS)
                with suppress(msgspec.MsgspecError):
                    found.append(msgspec.json.decode(message.data, type=_Ping).data)
    finally:
        await subscription.unsubscribe()
    if not found:
        text = f"no server answers on {_ALL_SERVERS}: system must be a connection of a user of the system account"
        raise DeliveryError(ErrorCode.PERMISSION_DENIED, text)
    return found


async def _denied(js: JetStreamContext, stream: str, consumer: str, dead_letter: str | None) -> list[Finding]:
    """Return the permissions that the user of a connection lacks for a consumer; none if they are not known."""
    nc, api = client_of(js), api_prefix(js)
    try:
        answer = await nc.request(_USER_INFO, b"", timeout=min(api_timeout(js), 2.0))
        user = msgspec.json.decode(answer.data, type=_UserInfo).data
    except (nats.errors.Error, msgspec.MsgspecError, OSError):
        return []
    if user is None or not user.permissions:
        return []
    target = f"{stream}.{consumer}"
    publish = {
        f"{api}.CONSUMER.INFO.{target}": "for the consumer",
        f"{api}.CONSUMER.MSG.NEXT.{target}": "for the consumer",
        f"$JS.ACK.{target}.>": "for acknowledgements",
    }
    if dead_letter is not None:
        publish |= {f"{api}.STREAM.MSG.GET.{stream}": "for dead letters", dead_letter: "for dead letters"}
    subscribe = {request_inbox(nc): "for replies"}
    return list(permission_findings(user.permissions, publish, subscribe, user.user))
