"""
Everything that is used of nats-py and not public there: no other module does.

nats-py has no public way to write bytes that were encoded elsewhere, to see a message before its headers are parsed, to
demand TLS, to chain callbacks, or to say which connection JetStream is on. A version that lacks a name used here is a
:class:`~ce_nats.CeNatsError` where it is first needed, with the version and the name.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final, TypeAlias, cast

from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport, Transport
from nats.js import JetStreamContext

from ..errors import CeNatsError, ErrorCode

Callback: TypeAlias = Callable[[], Awaitable[None]]
ErrorCallback: TypeAlias = Callable[[Exception], Awaitable[None]]

_HANDED_OVER: Final = ("self", "sid", "subject", "reply", "data", "headers")


def _get(owner: object, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise _missing(owner, name) from None


def _set(owner: object, name: str, value: object) -> None:
    _get(owner, name)  # one that nobody reads would have no effect
    setattr(owner, name, value)


def _missing(owner: object, name: str) -> CeNatsError:
    return CeNatsError(
        ErrorCode.UNSUPPORTED_NATS_PY,
        f"nats-py must have {type(owner).__name__}.{name}, got version {version('nats-py')} without it",
    )


# --- Which connection, and how it talks to JetStream ------------------------------------------------------------------


def client_of(owner: JetStreamContext | Subscription | Msg) -> Client:
    """The connection of JetStream, of a subscription or of a message."""
    if isinstance(owner, JetStreamContext):
        return cast(Client, _get(owner, "_nc"))
    return cast(Client, _get(owner, "_conn" if isinstance(owner, Subscription) else "_client"))


def api_prefix(js: JetStreamContext) -> str:
    """First tokens of the subjects of JetStream's API."""
    return str(_get(js, "_prefix"))


def api_timeout(js: JetStreamContext) -> float:
    """Seconds to wait for an answer of JetStream's API."""
    return float(_get(js, "_timeout"))


def server_info(nc: Client) -> dict[str, Any]:
    """What the server said of itself in its last INFO; empty before a connection."""
    return cast("dict[str, Any]", _get(nc, "_server_info"))


def request_inbox(nc: Client) -> str:
    """The subject that nats-py has subscribed to for answers to requests, or ``""`` before the first one."""
    prefix = _get(nc, "_resp_sub_prefix")
    return f"{prefix.decode()}*" if prefix else ""


# --- Writing ----------------------------------------------------------------------------------------------------------


async def send(nc: Client, frame: bytes) -> None:
    """
    Write a frame of the protocol.

    Raises:
        nats.errors.Error: As ``nc.publish()`` does, but for the checks of what is published.
    """
    await _get(nc, "_send_command")(frame)
    await _get(nc, "_flush_pending")()


async def send_publish(nc: Client, frame: bytes, payload_bytes: int) -> None:
    """
    Write a PUB or HPUB frame, and count it, as ``nc.publish()`` does.

    Raises:
        nats.errors.Error: As :func:`send` does.
    """
    nc.stats["out_msgs"] += 1
    nc.stats["out_bytes"] += payload_bytes
    await _get(nc, "_send_command")(frame)
    if _get(nc, "_flush_queue").empty():
        await _get(nc, "_flush_pending")()


# --- Subscriptions ----------------------------------------------------------------------------------------------------


def subscription_id(subscription: Subscription) -> int:
    """The number (sid) of a subscription in frames of the protocol."""
    return int(_get(subscription, "_id"))


def is_unsubscribed(subscription: Subscription) -> bool:
    """Whether the program has unsubscribed."""
    return bool(_get(subscription, "_closed"))


def end_iteration(subscription: Subscription) -> None:
    """End what iterates over ``subscription.messages``, as if the program had unsubscribed."""
    iterator = _get(subscription, "_message_iterator")
    if iterator is not None:
        _get(iterator, "_cancel")()


async def unsubscribe_and_drain(subscription: Subscription, round_trip: Callable[[], Awaitable[None]]) -> None:
    """
    Have the server stop sending, and wait until the callback has had what it has sent until then.

    nats-py's own ``drain()`` waits for a PONG to a PING that it writes ahead of the UNSUB.

    Args:
        subscription: With a callback.
        round_trip: Waits until the server has everything that was written so far.
    """
    await _get(client_of(subscription), "_send_unsubscribe")(subscription_id(subscription))
    await round_trip()
    await _get(subscription, "_pending_queue").join()


# --- Callbacks --------------------------------------------------------------------------------------------------------


def error_callback(nc: Client) -> ErrorCallback:
    """What nats-py calls with errors that no operation raises."""
    return cast(ErrorCallback, _get(nc, "_error_cb"))


def on_error(nc: Client, callback: ErrorCallback) -> None:
    """Replace :func:`error_callback`."""
    _set(nc, "_error_cb", callback)


def reconnect_callback(nc: Client) -> Callback | None:
    """What nats-py calls after a reconnect, or None."""
    return cast("Callback | None", _get(nc, "_reconnected_cb"))


def on_reconnect(nc: Client, callback: Callback) -> None:
    """Replace :func:`reconnect_callback`."""
    _set(nc, "_reconnected_cb", callback)


# --- Connecting -------------------------------------------------------------------------------------------------------


def transport_of(nc: Client) -> Transport | None:
    """What a connection reads from and writes to."""
    return cast("Transport | None", _get(nc, "_transport"))


def use_transport(nc: Client, transport: Transport) -> None:
    """Replace :func:`transport_of`, before the connection is made."""
    _set(nc, "_transport", transport)


class TlsTransport(TcpTransport):
    """nats-py's transport over TCP, which knows whether TLS is established."""

    @property
    def has_tls(self) -> bool:
        """Whether what is written is encrypted."""
        writer = _get(self, "_io_writer")
        return writer is not None and writer.get_extra_info("ssl_object") is not None


def intercept_connects(
    nc: Client, *, before_connect: Callable[[Srv], None], before_info: Callable[[dict[str, Any], bool], None]
) -> None:
    """
    Have functions called while a connection is made, each time, on reconnects too.

    Args:
        nc: Not connected yet.
        before_connect: Called with the server that is connected to next.
        before_info: Called with the server's INFO, which it may change, and whether that is the first one of a
            connection.
    """
    connect_to_server, process_info = _get(nc, "_connect_to_server"), _get(nc, "_process_info")

    async def connect_with_hook(server: Srv) -> None:
        before_connect(server)
        await connect_to_server(server)

    async def process_with_hook(info: dict[str, Any], initial_connection: bool = False) -> None:
        before_info(info, initial_connection)
        await process_info(info, initial_connection)

    _set(nc, "_connect_to_server", connect_with_hook)
    _set(nc, "_process_info", process_with_hook)


# --- Messages as they stand on the wire -------------------------------------------------------------------------------

# Whether take_messages() works with this version; without it there is a slower way.
SEES_RAW_MESSAGES: Final = (
    tuple(inspect.signature(getattr(Client, "_process_msg", lambda: None)).parameters) == _HANDED_OVER
)

# Subject, reply subject or b"", payload, header block or None; all as they stand on the wire.
Take: TypeAlias = Callable[[bytes, bytes, bytes, "bytes | None"], None]


class _Takers:
    """
    What a connection does with each message: some subscriptions get theirs before the headers are parsed.

    ``Client.msg_class``, the public way to another kind of message, gets a dict of headers.
    """

    def __init__(self, process: Callable[[int, bytes, bytes, bytes, bytes | None], Awaitable[None]]) -> None:
        self.process = process
        self.takers: dict[int, Take] = {}

    async def __call__(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        take = self.takers.get(sid)
        if take is None:
            await self.process(sid, subject, reply, data, headers)
        else:
            take(subject, reply, data, headers)


def take_messages(nc: Client, sid: int, take: Take | None) -> None:
    """
    Have a function called with each message of a subscription, in place of what nats-py does with it.

    Args:
        nc: The connection.
        sid: The subscription's, see :func:`subscription_id`.
        take: The function; None ends it.
    """
    hook = _get(nc, "_process_msg")
    if take is not None:
        if not isinstance(hook, _Takers):
            hook = _Takers(hook)
            _set(nc, "_process_msg", hook)
        hook.takers[sid] = take
    elif isinstance(hook, _Takers):
        hook.takers.pop(sid, None)
        if not hook.takers:
            _set(nc, "_process_msg", hook.process)
