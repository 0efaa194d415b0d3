"""
The registration of a client with a streaming server: handshake, heartbeats, pings, and deregistration.

A session begins with one ``ConnectRequest``. A lost session is not restored here.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from ..aio._errors import delivery_errors
from ..aio._foreign_subjects import check_foreign_subject
from ..aio._util.supervising import supervise
from ..aio.link._link import Link, answered
from ..errors import CeNatsError, DecodeError, DeliveryError, EncodeError, ErrorCode, StanError, preview
from ..subjects import check_subject
from ._options import check_count, check_kind, check_seconds
from .wire import (
    CloseRequest,
    CloseResponse,
    ConnectRequest,
    ConnectResponse,
    Message,
    Ping,
    PingResponse,
    SubscriptionResponse,
    UnsubscribeRequest,
)

_Answer = TypeVar("_Answer", ConnectResponse, SubscriptionResponse, CloseResponse)

_CLIENT_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
# Characters that valid NATS subjects may have and the server rejects in channel names.
_NOT_IN_CHANNELS: Final = re.compile("[*>/]")
_NO_RESPONDERS: Final = "503"
_PROTOCOL: Final = 1
# Interval of checks whether the NATS connection is closed.
_TICK_SECONDS: Final = 0.1

CONNECTION_CLOSED: Final = "stan: connection closed"
NOT_SUPPORTED: Final = "stan: not supported by server"
UNKNOWN_CLIENT: Final = "stan: unknown clientID"
PING_FAILURE: Final = "stan: connection lost due to PING failure"
NOT_CONNECTED: Final = "stan: not reconnected in time"
_NATS_CLOSED: Final = "stan: the NATS connection was closed"


@dataclass(frozen=True)
class Identity:
    """
    Identity of a client, and the settings of its sessions.

    Attributes:
        cluster_id: Name of the streaming server's cluster.
        client_id: Name of the client.
        discover_prefix: First tokens of the subject of connect requests.
        timeout: Seconds to wait for an answer.
        ping_interval: Seconds between pings.
        ping_max_out: Number of unanswered pings after which the server is considered lost.
    """

    cluster_id: str
    client_id: str
    discover_prefix: str
    timeout: float
    ping_interval: int
    ping_max_out: int

    def __post_init__(self) -> None:
        check_kind("cluster_id", self.cluster_id, str, "a str")
        check_kind("discover_prefix", self.discover_prefix, str, "a str")
        check_subject(f"{self.discover_prefix}.{self.cluster_id}")
        if not _is_client_id(self.client_id):
            raise EncodeError(
                ErrorCode.INVALID_SUBJECT,
                f"client id must consist of letters, digits, '-' and '_', got {preview(self.client_id)}",
                requirement="ST-CON-02",
            )
        check_seconds("timeout", self.timeout)
        check_count("ping_interval", self.ping_interval)
        check_count("ping_max_out", self.ping_max_out, 2)


class Session:
    """
    One registration, from :meth:`open` to :meth:`close` or to its loss.

    Attributes:
        nc: The NATS connection.
        client_id: Name of the client.
        conn_id: Id of this registration.
        subjects: Subjects for requests to the server.
        error: Reason for which the session is lost, or None.
        lost: Set when the session is lost, not when it is closed.
    """

    def __init__(self, nc: Client, identity: Identity) -> None:
        self.nc = nc
        self.client_id = identity.client_id
        self.conn_id = new_id().encode()
        self.subjects = ConnectResponse()
        self.error: StanError | None = None
        self.lost = asyncio.Event()
        self._identity = identity
        self._pings_out = 0
        self._ping_inbox = nc.new_inbox()
        self._inboxes: list[NatsSubscription] = []
        self._watcher: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, nc: Client, identity: Identity) -> Session:
        """
        Register.

        Raises:
            StanError: The server refused, or there is no server for this cluster.
            DeliveryError: ``connection-closed``: the NATS connection.
            DecodeError: The answer is not that of a streaming server.
        """
        session = cls(nc, identity)
        try:
            await session._register()
        except BaseException:
            await session.abandon()
            raise
        return session

    @property
    def timeout(self) -> float:
        """Seconds to wait for an answer."""
        return self._identity.timeout

    async def _register(self) -> None:
        identity = self._identity
        heartbeat_inbox = self.nc.new_inbox()
        self._inboxes.append(await subscribe_inbox(self.nc, heartbeat_inbox, self._on_heartbeat))
        self._inboxes.append(await subscribe_inbox(self.nc, self._ping_inbox, self._on_ping_reply))
        request = ConnectRequest(
            client_id=self.client_id,
            heartbeat_inbox=heartbeat_inbox,
            protocol=_PROTOCOL,
            conn_id=self.conn_id,
            ping_interval=identity.ping_interval,
            ping_max_out=identity.ping_max_out,
        )
        subject = f"{identity.discover_prefix}.{identity.cluster_id}"
        late = "stan: connect request timeout (possibly wrong cluster ID?)"
        subjects = await self.request(subject, request, ConnectResponse, late)
        for one in (subjects.pub_prefix, subjects.sub_requests, subjects.unsub_requests, subjects.close_requests):
            check_subject(one, DecodeError)
        for one in filter(None, (subjects.sub_close_requests, subjects.ping_requests)):  # older servers have none
            check_subject(one, DecodeError)
        self.subjects = subjects
        self._watcher = supervise(
            self._watch(), f"client {self.client_id}", lambda error: self.lose(error.code, error.message)
        )

    async def request(self, subject: str, request: Message, answer: type[_Answer], late: str) -> _Answer:
        """
        Send a request of the protocol, and return the answer.

        Raises:
            StanError: ``timeout``, ``no-responders``, ``request-refused``.
            DeliveryError: ``connection-closed``: the NATS connection; ``permission-denied``.
            DecodeError: The answer is malformed.
        """
        try:
            with delivery_errors(subject, self.nc):
                body, seconds = request.encode(), self._identity.timeout
                reply = await answered(self.nc, subject, lambda: self.nc.request(subject, body, timeout=seconds))
        except DeliveryError as error:
            if error.code not in (ErrorCode.NO_RESPONDERS, ErrorCode.TIMEOUT):
                raise
            raise StanError(error.code, late) from error
        response = answer.decode(reply.data)
        if response.error:
            if response.error == UNKNOWN_CLIENT:
                self.lose(ErrorCode.CONNECTION_CLOSED, response.error)
            raise StanError(ErrorCode.REQUEST_REFUSED, response.error)
        return response

    async def end_subscription(self, request: UnsubscribeRequest, *, remove: bool) -> None:
        """End a subscription."""
        subject = self.subjects.unsub_requests if remove else self.subjects.sub_close_requests
        if not subject:
            raise StanError(ErrorCode.REQUEST_REFUSED, NOT_SUPPORTED)
        late = f"stan: {'unsubscribe' if remove else 'subscription close'} request timeout"
        await self.request(subject, request, SubscriptionResponse, late)

    async def close(self) -> None:
        """Deregister the client; its durables are kept."""
        await self._stop_watching()
        try:
            if self.error is None:
                request = CloseRequest(client_id=self.client_id)
                await self.request(self.subjects.close_requests, request, CloseResponse, "stan: close request timeout")
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Unsubscribe without notifying the server; its heartbeats are no longer answered."""
        await self._stop_watching()
        for inbox in self._inboxes:
            await unsubscribe_inbox(inbox)
        self._inboxes.clear()

    async def _stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    def lose(self, code: ErrorCode, text: str) -> None:
        """Mark the session as lost."""
        if self.error is None and self._watcher is not None:
            self.error = StanError(code, text)
            self.lost.set()

    async def _on_heartbeat(self, message: Msg) -> None:
        if message.reply:
            # Other clients may have seen the connect request, which names this inbox, and may write to it.
            with suppress(nats.errors.Error, EncodeError):
                check_foreign_subject(self.nc, message.reply, is_reply=True)
                await self.nc.publish(message.reply)

    async def _on_ping_reply(self, message: Msg) -> None:
        if not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS:
            return
        try:
            text = PingResponse.decode(message.data).error
        except DecodeError:
            return  # not from a streaming server
        if text:
            self.lose(ErrorCode.CONNECTION_CLOSED, text)
        else:
            self._pings_out = 0

    async def _watch(self) -> None:
        """Detect that the NATS connection was closed, and send pings if the server supports them."""
        interval, maximum = self.subjects.ping_interval, self.subjects.ping_max_out
        has_pings = self.subjects.protocol >= 1 and interval > 0 and bool(self.subjects.ping_requests)
        due = time.monotonic() + interval
        while self.error is None:
            await asyncio.sleep(_TICK_SECONDS)
            if self.nc.is_closed:
                loss = Link.of(self.nc).ending.loss
                self.lose(ErrorCode.CONNECTION_CLOSED, f"{_NATS_CLOSED}: {loss}" if loss else _NATS_CLOSED)
            elif has_pings and time.monotonic() >= due:
                due = time.monotonic() + interval
                self._pings_out += 1
                if self._pings_out > maximum:
                    self.lose(ErrorCode.TIMEOUT, PING_FAILURE)
                else:
                    with suppress(nats.errors.Error):
                        ping = Ping(conn_id=self.conn_id).encode()
                        await self.nc.publish(self.subjects.ping_requests, ping, self._ping_inbox)


def _is_client_id(name: object) -> bool:
    return isinstance(name, str) and _CLIENT_ID.fullmatch(name) is not None


def new_id() -> str:
    """Return a random id, as long as ids of NATS Streaming."""
    return secrets.token_hex(11)


def with_reason(text: str, error: CeNatsError | None) -> str:
    """Return an error text followed by the text of the error that caused it, if there is one."""
    return text if error is None else f"{text}: {error.message.removeprefix('stan: ')}"


async def subscribe_inbox(nc: Client, subject: str, receive: Callable[[Msg], Awaitable[None]]) -> NatsSubscription:
    """
    Subscribe, without limits on pending messages.

    Raises:
        DeliveryError: ``connection-closed``: the NATS connection.
    """
    with delivery_errors(subject, nc):
        return await nc.subscribe(subject, cb=receive, pending_msgs_limit=0, pending_bytes_limit=0)


async def unsubscribe_inbox(inbox: NatsSubscription) -> None:
    """Unsubscribe; does nothing if that was done before."""
    with suppress(nats.errors.Error, CeNatsError):
        await inbox.unsubscribe()


def check_channel(channel: str) -> None:
    """
    Check the name of a channel: a server does not answer requests with an invalid one.

    Raises:
        EncodeError: ``invalid-subject``.
    """
    check_subject(channel)
    if _NOT_IN_CHANNELS.search(channel):
        raise EncodeError(
            ErrorCode.INVALID_SUBJECT,
            f"channel must be a subject without wildcard characters and slashes, got {preview(channel)}",
            requirement="ST-PUB-02",
        )
