"""
Read the state of channels and durables from a streaming server's HTTP monitoring; the protocol has no request for it.

The endpoints are ``/streaming/serverz`` and ``/streaming/channelsz`` ("Monitoring" in the NATS Streaming
documentation), of servers started with ``-m PORT``. Requests change nothing: no channel is created, and no durable
moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from .._monitoring import fetch, is_monitoring_url
from ..errors import DeliveryError, EncodeError, ErrorCode, preview
from ._options import check_seconds

_NOT_FOUND: Final = 404
_STANDBY: Final = "FT_STANDBY"
_LEADERS: Final = ("", "Leader")  # without a cluster there are no roles

T = TypeVar("T")


@dataclass(frozen=True)
class Durable:
    """
    Name of a durable subscription, or of a durable queue group, of a channel.

    Attributes:
        name: Name of the durable.
        client_id: Client that owns it; ``""`` for a queue group, which no client owns.
        queue: Queue group, or ``""``.
    """

    name: str
    client_id: str = ""
    queue: str = ""

    def __str__(self) -> str:
        return f"{self.name} of {f'queue group {self.queue}' if self.queue else f'client {self.client_id}'}"


@dataclass(frozen=True)
class DurableState:
    """
    The position of a durable.

    Attributes:
        is_offline: Whether no client is subscribed to it.
        max_in_flight: Maximum number of unacknowledged messages, of its last subscription.
        ack_wait: Seconds after which an unacknowledged message is redelivered, of its last subscription.
        last_sent: Sequence of the last message that was delivered.
        pending: Number of unacknowledged messages.
    """

    is_offline: bool
    max_in_flight: int
    ack_wait: int
    last_sent: int
    pending: int


class _Subscription(msgspec.Struct):
    client_id: str = ""
    durable_name: str = ""
    queue_name: str = ""
    is_durable: bool = False
    is_offline: bool = False
    max_inflight: int = 0
    ack_wait: int = 0
    last_sent: int = 0
    pending_count: int = 0


class _Channel(msgspec.Struct):
    msgs: int
    first_seq: int
    last_seq: int
    subscriptions: list[_Subscription] = []


class _Server(msgspec.Struct):
    cluster_id: str
    state: str = ""
    role: str = ""


@dataclass(frozen=True)
class ChannelState:
    """
    State of a channel.

    Attributes:
        name: Name of the channel.
        messages: Number of messages.
        first: Sequence of the first message; ``last + 1`` for an empty channel.
        last: Sequence of the last message that was ever stored; 0 if none was.
    """

    name: str
    messages: int
    first: int
    last: int
    _subscriptions: list[_Subscription] = field(default_factory=list, repr=False)

    def durable(self, durable: Durable) -> DurableState | None:
        """Return the state of a durable, or None if the channel does not have it."""
        # A durable queue group is listed under both its names, with an entry for each member.
        group = f"{durable.name}:{durable.queue}"
        found = [
            one
            for one in self._subscriptions
            if one.is_durable
            and (
                one.queue_name == group
                if durable.queue
                else (one.client_id, one.durable_name, one.queue_name) == (durable.client_id, durable.name, "")
            )
        ]
        if not found:
            return None
        first = found[0]
        return DurableState(
            is_offline=all(one.is_offline for one in found),
            max_in_flight=first.max_inflight,
            ack_wait=first.ack_wait,
            last_sent=max(one.last_sent for one in found),
            pending=sum(one.pending_count for one in found),
        )


class Monitor:
    """
    The monitoring endpoint of a streaming server.

    Args:
        url: ``http://host:8222``, or with ``https``.
        timeout: Seconds to wait for an answer.

    Raises:
        EncodeError: ``invalid-message``: the URL or the timeout is not valid.
    """

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        if not is_monitoring_url(url):
            raise EncodeError(
                ErrorCode.INVALID_MESSAGE, f"monitoring must be a URL like http://127.0.0.1:8222, got {preview(url)}"
            )
        check_seconds("timeout", timeout)
        self._url = url.rstrip("/")
        self._timeout = timeout

    async def cluster(self) -> str:
        """
        Return the name (id) of the server's cluster.

        Raises:
            DeliveryError: ``connection-failed``: the server cannot be reached; ``temporarily-unavailable``: it is a
                follower or on standby, and so has no current positions of durables; ``unexpected-answer``.
        """
        server = await self._request("serverz", {}, _Server)
        if server is None:
            raise self._unexpected()
        if server.state == _STANDBY or server.role not in _LEADERS:
            raise DeliveryError(
                ErrorCode.TEMPORARILY_UNAVAILABLE,
                f"the server at {self._url} must be the cluster's leader, got {server.role or server.state}",
            )
        return server.cluster_id

    async def channel(self, name: str) -> ChannelState:
        """
        Return the state of a channel.

        Raises:
            DeliveryError: ``stream-not-found``: the channel does not exist; ``connection-failed``: the server cannot be
                reached; ``unexpected-answer``.
        """
        channel = await self._request("channelsz", {"channel": name, "subs": "1"}, _Channel)
        if channel is None:
            raise DeliveryError(ErrorCode.STREAM_NOT_FOUND, f"the streaming server has no channel {preview(name)}")
        first = channel.first_seq if channel.msgs else channel.last_seq + 1
        return ChannelState(name, channel.msgs, first, channel.last_seq, channel.subscriptions)

    async def _request(self, path: str, query: dict[str, str], kind: type[T]) -> T | None:
        """Return the answer to a request; None for a channel that does not exist."""
        status, body = await fetch(self._url, f"streaming/{path}?{urlencode(query)}", self._timeout)
        # A NATS server without streaming answers with 404 as well.
        if status == _NOT_FOUND and b"Channel " in body:
            return None
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise self._unexpected() from error

    def _unexpected(self) -> DeliveryError:
        return DeliveryError(
            ErrorCode.UNEXPECTED_ANSWER, f"{self._url} must be the monitoring of a streaming server, got another answer"
        )
