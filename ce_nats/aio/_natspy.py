"""
The only module that uses nats-py's private API.

nats-py has no public API to write bytes that were encoded elsewhere, to see a message before its headers are parsed, to
require TLS, to chain callbacks, to survive a malformed message, or to get the connection of a JetStreamContext. If a
version of nats-py lacks a name that is used here, the first use raises a :class:`~ce_nats.CeNatsError` with the version
and the name.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final, TypeAlias, cast

import nats.errors
from nats.aio import client
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport, Transport
from nats.js import JetStreamContext
from nats.protocol import parser

from ..errors import CeNatsError, DecodeError, ErrorCode, preview
from ..message import UnreadableHeaders
from ..wire.nats import decode_header_block
from ._frame_splitter import FrameSplitter
from ._frame_splitter import RawMessage as RawMessage

_log: Final = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[], Awaitable[None]]
ErrorCallback: TypeAlias = Callable[[Exception], Awaitable[None]]

# An attempt to reconnect that is cancelled ends within this time; otherwise the cancellation is repeated.
_RECONNECTING_SECONDS: Final = 0.1


def _get(owner: object, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise _missing(owner, name) from None


def _set(owner: object, name: str, value: object) -> None:
    _get(owner, name)  # a new attribute would have no effect
    setattr(owner, name, value)


def _missing(owner: object, name: str) -> CeNatsError:
    return CeNatsError(
        ErrorCode.UNSUPPORTED_NATS_PY,
        f"nats-py must have {type(owner).__name__}.{name}, got version {version('nats-py')} without it",
    )


# --- Connection and JetStream -----------------------------------------------------------------------------------------


def client_of(owner: JetStreamContext | Subscription | Msg) -> Client:
    """Return the connection of a JetStreamContext, a subscription or a message."""
    if isinstance(owner, JetStreamContext):
        return cast(Client, _get(owner, "_nc"))
    return cast(Client, _get(owner, "_conn" if isinstance(owner, Subscription) else "_client"))


def api_prefix(js: JetStreamContext) -> str:
    """Return the first tokens of the subjects of JetStream's API."""
    return str(_get(js, "_prefix"))


def api_timeout(js: JetStreamContext) -> float:
    """Return the timeout for a response of JetStream's API, in seconds."""
    return float(_get(js, "_timeout"))


def server_info(nc: Client) -> dict[str, Any]:
    """Return the server's last INFO; empty before a connection."""
    return cast("dict[str, Any]", _get(nc, "_server_info"))


def is_server_from(nc: Client, version: tuple[int, int]) -> bool:
    """Return whether the connected server has a version, major and minor, or a later one; False if that is unknown."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", str(server_info(nc).get("version", "")))
    return found is not None and (int(found[1]), int(found[2])) >= version


def request_inbox(nc: Client) -> str:
    """Return the subject that nats-py has subscribed to for replies to requests; ``""`` before the first request."""
    prefix = _get(nc, "_resp_sub_prefix")
    return f"{prefix.decode()}*" if prefix else ""


# --- Writing ----------------------------------------------------------------------------------------------------------

# Size of joined frames after which others are not added.
_MAX_JOINED: Final = 2**15


async def send_publish(nc: Client, frame: bytes, payload_size: int, count: int = 1) -> None:
    """Write PUB or HPUB frames as ``nc.publish()`` does: count them, and buffer them while nats-py reconnects."""
    write_publish_frame(nc, frame, payload_size, count)
    if 0 < _get(nc, "_max_pending_size") < nc.pending_data_size:
        await send_buffer(nc)


async def send_buffer(nc: Client) -> None:
    """Wait until nats-py has sent its buffer; it waits if the server does not read."""
    await _get(nc, "_flush_pending")(force_flush=True)


def write_publish_frame(nc: Client, frame: bytes | bytearray, payload_size: int, count: int = 1) -> None:
    """
    Write frames as :func:`send_publish` does, without waiting if nats-py's buffer is full.

    The caller bounds what it writes: it calls :func:`send_buffer` when ``nc.pending_data_size`` is large.
    """
    if not nc.is_connected:
        _check_buffer(nc, payload_size)
    nc.stats["out_msgs"] += count
    nc.stats["out_bytes"] += payload_size
    _get(nc, "_pending").append(frame)
    _set(nc, "_pending_data_size", nc.pending_data_size + len(frame))
    flushes = _get(nc, "_flush_queue")
    if flushes.empty() and nc.is_connected:
        flushes.put_nowait(asyncio.get_running_loop().create_future())


class FrameBuffer:
    """
    Writes frames as :func:`write_publish_frame` does, and joins them within nats-py's buffer.

    nats-py has each frame at once, so it is sent before what is written to the connection later, and also if the
    connection is closed next. Frames that follow each other cost one object, and one call of nats-py's flusher.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        # The last element of nats-py's buffer as long as nothing else was written, nor the buffer sent.
        self._frames = bytearray()
        for name in ("_pending", "_pending_data_size"):
            _get(nc, name)

    def write(self, line: bytes, block: bytes, data: bytes) -> None:
        """Write a frame."""
        nc, frames = self._nc, self._frames
        size = len(block) + len(data)
        if size > _MAX_JOINED:
            write_publish_frame(nc, b"".join((line, block, data, _CRLF)), size)
            return
        pending = nc._pending
        if not pending or pending[-1] is not frames or len(frames) > _MAX_JOINED or not nc.is_connected:
            if not nc.is_connected:
                _check_buffer(nc, size)
            self._frames = frames = bytearray()
            write_publish_frame(nc, frames, 0, 0)
        frames += line
        frames += block
        frames += data
        frames += _CRLF
        nc._pending_data_size += len(line) + size + len(_CRLF)
        stats = nc.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += size


def _check_buffer(nc: Client, payload_size: int) -> None:
    if nc.is_closed:
        raise nats.errors.ConnectionClosedError
    if nc.is_draining_pubs:
        raise nats.errors.ConnectionDrainingError
    limit = _get(nc, "_max_pending_size")
    if limit <= 0 or nc.pending_data_size + payload_size > limit:
        raise nats.errors.OutboundBufferLimitError


def check_writable(nc: Client, size: int) -> None:
    """Check whether nats-py sends what is written on a connection that is not connected now."""
    if not nc.is_connected:
        _check_buffer(nc, size)


def mark_acked(message: Msg) -> None:
    """Let nats-py know that a message was settled in another way: its methods then raise an error."""
    _set(message, "_ackd", True)


# --- Subscriptions ----------------------------------------------------------------------------------------------------


def subscription_id(subscription: Subscription) -> int:
    """Return the id (sid) of a subscription in the protocol."""
    return int(_get(subscription, "_id"))


def has_subscription(nc: Client, sid: int) -> bool:
    """Return whether a connection has a subscription, which it loses when it is closed."""
    return sid in _get(nc, "_subs")


def is_unsubscribed(subscription: Subscription) -> bool:
    """Return whether the program has unsubscribed."""
    return bool(_get(subscription, "_closed"))


async def unsubscribe_and_drain(subscription: Subscription, round_trip: Callable[[], Awaitable[None]]) -> None:
    """
    Unsubscribe, and wait until the callback has processed everything that the server sent before.

    nats-py's ``drain()`` waits for the PONG of a PING that it writes before the UNSUB.
    """
    await _get(client_of(subscription), "_send_unsubscribe")(subscription_id(subscription))
    await round_trip()
    await _get(subscription, "_pending_queue").join()


def on_drain(subscription: Subscription, finish: Callable[[], Awaitable[None]]) -> None:
    """
    Call a function while nats-py drains the connection, when no further messages arrive, and wait for its end.

    The connection is closed afterwards, and after the ``drain_timeout`` at the latest.
    """
    queue, client = _get(subscription, "_pending_queue"), client_of(subscription)

    async def join() -> None:
        if client.is_draining:
            await finish()

    queue.join = join


# --- Received messages ------------------------------------------------------------------------------------------------


class MessageQueue:
    """
    Received messages of a subscription without a callback; created by :meth:`of`.

    nats-py's iterator starts a task for each message, and loses a message that arrives when the iteration is cancelled.
    Here waiting and taking are separate: :meth:`wait` takes nothing, and :meth:`take` does not wait. Limits, counts,
    ``drain()`` and ``unsubscribe()`` are those of nats-py.

    The messages of :meth:`subscribe` are raw. nats-py's own functions, such as ``next_msg()``, return its messages
    also for such a subscription.
    """

    def __init__(self, subscription: Subscription) -> None:
        iterator = _get(subscription, "_message_iterator")
        self._subscription = _get(iterator, "_sub")  # of a PushSubscription: the one inside of it
        self._messages: asyncio.Queue[Msg | RawMessage] = _get(subscription, "_pending_queue")
        self._ended: asyncio.Future[bool] = _get(iterator, "_unsubscribed_future")
        self.end: Callable[[], None] = _get(iterator, "_cancel")
        self._waiting: dict[asyncio.Future[None], None] = {}
        for name in ("_max_msgs", "_received", "_pending_size", "_pending_bytes_limit"):
            _get(self._subscription, name)
        self._ended.add_done_callback(self._wake_all)
        # asyncio's classes of queues override these methods, too.
        self._put, self._pop = _get(self._messages, "_put"), _get(self._messages, "_get")
        _set(self._messages, "_put", self._put_and_wake)
        _set(self._messages, "_get", self._pop_for_nats_py)

    @classmethod
    def of(cls, subscription: Subscription) -> MessageQueue:
        """Return the queue of a subscription; there is one, also for several iterations."""
        owner = getattr(_get(_get(subscription, "_pending_queue"), "_put"), "__self__", None)
        return owner if isinstance(owner, cls) else cls(subscription)

    @classmethod
    async def subscribe(cls, nc: Client, subject: str, *, queue: str = "") -> Subscription:
        """Subscribe; the messages in the queue of the subscription are raw."""
        sid, subscriptions = _get(nc, "_sid") + 1, _get(nc, "_subs")

        def receive(messages: list[RawMessage]) -> None:
            subscription = subscriptions.get(sid)
            if subscription is not None:  # else the program has unsubscribed
                cls.of(subscription)._receive(messages)

        subscription = await subscribe_raw(nc, subject, receive, queue=queue)
        cls.of(subscription)._ended.add_done_callback(lambda _: receive_raw(nc, sid, None))
        return subscription

    @property
    def has_ended(self) -> bool:
        """Whether the program has unsubscribed or drained, the connection is closed, or :meth:`end` was called."""
        return self._ended.done()

    def take(self) -> Msg | RawMessage | None:
        """Return the next message, or None. The last messages are also returned after the end."""
        if self._messages.empty():
            return None
        message: Msg | RawMessage = self._pop()
        self._messages.task_done()
        subscription = self._subscription
        subscription._pending_size -= len(message[2] if isinstance(message, tuple) else message.data)
        if 0 < subscription._max_msgs <= subscription._received:
            self.end()
        return message

    def _receive(self, messages: list[RawMessage]) -> None:
        """Queue raw messages; drop those beyond the limits of the subscription, as nats-py does."""
        subscription, put = self._subscription, self._messages.put_nowait
        limit = subscription._pending_bytes_limit
        dropped: list[RawMessage] = []
        for message in messages:
            size = len(message[2])
            if 0 < limit <= subscription._pending_size + size:
                dropped.append(message)
                continue
            try:
                put(message)
            except asyncio.QueueFull:
                dropped.append(message)
            else:
                subscription._pending_size += size
        if dropped:
            _report_slow_consumer(subscription, dropped)

    def _pop_for_nats_py(self) -> Msg:
        message: Msg | RawMessage = self._pop()
        if not isinstance(message, tuple):
            return message
        return message_of(client_of(self._subscription), subscription_id(self._subscription), message)

    async def wait(self) -> None:
        """Wait until there may be a message, or the end; may be cancelled."""
        if self._ended.done():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        except BaseException:
            if waiter in self._waiting:
                del self._waiting[waiter]
            elif not self._messages.empty():
                self._wake_next()  # instead of this one, which was woken before it was cancelled
            raise

    def _put_and_wake(self, message: Msg | RawMessage) -> None:
        self._put(message)
        if self._waiting:
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self, ended: asyncio.Future[bool]) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()


# References to tasks that report errors: the event loop has none.
_reports: Final[set[asyncio.Task[None]]] = set()


def _report_slow_consumer(subscription: Subscription, dropped: list[RawMessage]) -> None:
    """Call the callback for errors for each dropped message, as nats-py does."""
    nc, sid = client_of(subscription), subscription_id(subscription)

    async def report() -> None:
        for message in dropped:
            subject, reply = (text.decode("utf-8", "replace") for text in message[:2])
            error = nats.errors.SlowConsumerError(subject=subject, reply=reply, sid=sid, sub=subscription)
            try:
                await error_callback(nc)(error)
            except Exception:
                _log.exception("error_cb failed")

    task = asyncio.get_running_loop().create_task(report())
    _reports.add(task)
    task.add_done_callback(_reports.discard)


# --- Callbacks --------------------------------------------------------------------------------------------------------


def error_callback(nc: Client) -> ErrorCallback:
    """Return the callback for errors that no operation raises."""
    return cast(ErrorCallback, _get(nc, "_error_cb"))


def on_error(nc: Client, callback: ErrorCallback) -> None:
    """Replace :func:`error_callback`."""
    _set(nc, "_error_cb", callback)


def reconnect_callback(nc: Client) -> Callback | None:
    """Return the callback for reconnects, or None."""
    return cast("Callback | None", _get(nc, "_reconnected_cb"))


def on_reconnect(nc: Client, callback: Callback) -> None:
    """Replace :func:`reconnect_callback`."""
    _set(nc, "_reconnected_cb", callback)


def closed_callback(nc: Client) -> Callback | None:
    """Return the callback for the closing of the connection, or None."""
    return cast("Callback | None", _get(nc, "_closed_cb"))


def on_closed(nc: Client, callback: Callback) -> None:
    """Replace :func:`closed_callback`."""
    _set(nc, "_closed_cb", callback)


# --- Reading ----------------------------------------------------------------------------------------------------------


def is_reading(nc: Client) -> bool:
    """Return whether nats-py's read loop runs."""
    task = _get(nc, "_reading_task")
    return task is not None and not task.done()


def error_line(nc: Client) -> str:
    """
    Return the error that nats-py processes now, as the server has sent it: nats-py converts it to lower case.

    Called in the callback for errors, before it awaits anything. Returns ``""`` if the error is unknown.
    """
    protocol = _get(nc, "_ps")
    found = _ERROR_LINE.match(bytes(getattr(protocol, "buf", b"")))
    return found[1].decode("utf-8", "replace") if found else ""


def on_reading_end(nc: Client, ended: Callable[[Exception | None], None]) -> None:
    """
    Register a function to call if nats-py's read loop ends while the connection is open.

    nats-py only logs the exception, and every call that waits for a message waits forever.
    """
    protocol, read = _get(nc, "_ps"), _get(nc, "_read_loop")
    parse = protocol.parse
    failures: list[Exception] = []

    async def parse_and_note(data: bytes = b"") -> None:
        try:
            await parse(data)
        except Exception as error:
            failures.append(error)
            raise

    def done(task: asyncio.Task[None]) -> None:
        if task is _get(nc, "_reading_task") and nc.is_connected:
            ended(failures[-1] if failures else None)

    async def read_and_watch() -> None:
        failures.clear()
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(done)
        await read()

    protocol.parse = parse_and_note
    _set(nc, "_read_loop", read_and_watch)
    task = _get(nc, "_reading_task")
    if task is not None:
        task.add_done_callback(done)


# Called with messages of one subscription, in order.
Receive: TypeAlias = Callable[[list[RawMessage]], None]


class _Reading:
    """
    Everything that a client receives, before nats-py parses it; created by :meth:`of`.

    Messages of subscriptions with a receiver are taken out, and nats-py gets what is left. Bytes are read from the
    beginning of an operation on, so that a payload is never read as operations; it is installed for the life of the
    client, and only its receivers change.
    """

    def __init__(self, nc: Client) -> None:
        protocol = _get(nc, "_ps")
        for name in ("buf", "state", "needed"):
            _get(protocol, name)
        self._nc = nc
        self._protocol = protocol
        self._subscriptions: dict[int, Subscription] = _get(nc, "_subs")
        self._parse, self._reset = protocol.parse, protocol.reset
        self._splitter: FrameSplitter | None = None
        self._receivers: dict[bytes, Receive] = {}
        protocol.parse, protocol.reset = self.parse, self.reset
        protocol.reading = self

    @classmethod
    def of(cls, nc: Client) -> _Reading:
        """Return that of a client."""
        found = getattr(_get(nc, "_ps"), "reading", None)
        return found if isinstance(found, cls) else cls(nc)

    def set_receiver(self, sid: int, receive: Receive | None) -> None:
        """Call a receiver with the messages of a subscription from the next bytes on; None removes it."""
        if receive is None:
            self._receivers.pop(b"%d" % sid, None)
        else:
            self._receivers[b"%d" % sid] = receive

    async def parse(self, data: bytes = b"") -> None:
        """Process received bytes; in place of nats-py's function."""
        unread = data
        while unread:
            if self._nc.is_reconnecting:
                return  # nats-py was reset; these bytes are of the lost connection, and do not begin with an operation
            data, unread, is_malformed = unread, b"", False
            if self._receivers or self._splitter is not None:
                data, unread, is_malformed = self._take_messages(data)
            if data:
                await self._parse(data)
            if is_malformed:
                raise nats.errors.ProtocolError("nats: malformed MSG")  # nats-py reconnects

    def reset(self) -> None:
        """Forget the first part of an operation; in place of nats-py's function."""
        if self._splitter is not None:
            self._splitter.reset()
        self._reset()

    def _take_messages(self, data: bytes) -> tuple[bytes, bytes, bool]:
        """Pass messages to their receivers; return other bytes, unread ones, and whether the bytes are malformed."""
        if self._splitter is None:
            self._splitter = FrameSplitter()
            protocol = self._protocol
            if protocol.state == parser.AWAITING_CONTROL_LINE:
                data = bytes(protocol.buf) + data
                protocol.buf.clear()
            else:
                self._splitter.skip(protocol.needed + len(_CRLF) - len(protocol.buf))
        found = self._splitter.feed(data, self._has_receiver)
        for sid, messages in found.messages.items():
            if messages:
                self._deliver(sid, messages)
        return found.rest, found.unread, found.is_malformed

    def _has_receiver(self, sid: bytes) -> bool:
        """Return whether a receiver gets the messages; nats-py counts those of a subscription with a maximum."""
        if sid not in self._receivers:
            return False
        subscription = self._subscriptions.get(int(sid))
        return subscription is None or not _get(subscription, "_max_msgs")

    def _deliver(self, sid: bytes, messages: list[RawMessage]) -> None:
        stats = self._nc.stats
        stats["in_msgs"] += len(messages)
        stats["in_bytes"] += sum([len(message[2]) for message in messages])
        subscription = self._subscriptions.get(int(sid))
        if subscription is not None:
            _set(subscription, "_received", _get(subscription, "_received") + len(messages))
        receive = self._receivers.get(sid)
        if receive is None:
            return  # removed by the receiver of another subscription
        try:
            receive(messages)
        except (Exception, asyncio.CancelledError):
            _log.exception("receiver of subscription %s failed; %d messages are lost", int(sid), len(messages))


def receive_raw(nc: Client, sid: int, receive: Receive | None) -> None:
    """
    Call a function with all messages of a subscription, many at once, instead of nats-py's processing.

    Statuses, messages without a reply subject and large ones are among them, in the order of the server. They are
    counted in ``nc.stats`` and in ``subscription.delivered``. The limits of pending messages are not applied. While the
    subscription has a maximum number of messages, ``unsubscribe(limit=)``, nats-py processes them.

    Messages that arrive until the subscription is removed from the connection, such as those after UNSUB, are passed
    on; the caller removes the function then.

    ``receive``: Called in nats-py's read loop with messages. It must neither raise nor take long: an exception is
    logged, the messages of this call are lost, and reading continues. None removes the function.
    """
    _Reading.of(nc).set_receiver(sid, receive)


async def subscribe_raw(nc: Client, subject: str, receive: Receive, *, queue: str = "") -> Subscription:
    """
    Subscribe, and call a function with all messages, as :func:`receive_raw` does, from the first one on.

    After ``nc.subscribe()`` has returned, the first messages may have been processed by nats-py already.
    """
    sid = _get(nc, "_sid") + 1
    receive_raw(nc, sid, receive)
    try:
        return await nc.subscribe(subject, queue=queue)
    except BaseException:
        receive_raw(nc, sid, None)
        raise


class _Closing:
    """Calls functions before nats-py closes a connection; replaces its function for that."""

    def __init__(self, nc: Client) -> None:
        self._close: Callable[..., Awaitable[None]] = _get(nc, "_close")
        self.callbacks: dict[Callable[[], None], None] = {}

    async def __call__(self, *arguments: Any, **options: Any) -> None:
        for callback in list(self.callbacks):
            try:
                callback()
            except Exception:
                _log.exception("a function before the closing of the connection failed")
        await self._close(*arguments, **options)


def before_close(nc: Client, callback: Callable[[], None]) -> Callable[[], None]:
    """
    Register a function to call before the connection is closed, as long as something can be written.

    ``callback``: The function. It must not raise.

    Returns a function that removes it.
    """
    closing = _get(nc, "_close")
    if not isinstance(closing, _Closing):
        closing = _Closing(nc)
        _set(nc, "_close", closing)
    closing.callbacks[callback] = None
    return lambda: closing.callbacks.pop(callback, None)


async def end_reconnecting(nc: Client) -> None:
    """End the task that reconnects: before Python 3.12, wait_for() may lose the cancellation by close()."""
    task: asyncio.Task[None] | None = _get(nc, "_reconnection_task")
    while task is not None and not task.done() and task is not asyncio.current_task():
        task.cancel()
        await asyncio.wait([task], timeout=_RECONNECTING_SECONDS)


def set_last_error(nc: Client, error: Exception) -> None:
    """Set ``nc.last_error``."""
    _set(nc, "_err", error)


def accept_late_pongs(nc: Client) -> None:
    """Prevent a PONG from ending nats-py's read loop if the ``flush()`` that waited for it was cancelled."""
    process_pong = _get(nc, "_process_pong")

    async def process_with_check() -> None:
        waiting = _get(nc, "_pongs")
        if waiting and waiting[0].done():
            waiting[0] = asyncio.get_running_loop().create_future()
        await process_pong()

    _set(nc, "_process_pong", process_with_check)


_ERROR_LINE: Final = re.compile(rb"-ERR\s+'(.+)'\r\n")
_PLAIN_BLOCK: Final = b"NATS/1.0\r\n"
_CRLF: Final = b"\r\n"
_HAS_OWN_PARSER: Final = getattr(client, "parse_email", None) is None


def accept_malformed_messages(nc: Client) -> None:
    """
    Prevent malformed messages from ending nats-py's read loop.

    A message whose subject is not UTF-8, or whose header block is malformed, gets
    :class:`~ce_nats.message.UnreadableHeaders`, which raise an error when the message is decoded. A reply subject that
    is not UTF-8 is omitted.
    """
    _get(nc, "_build_message")
    process_headers, parse_lines = _get(nc, "_process_headers"), _get(nc, "_parse_header_lines")

    # Both do the same as nats-py's functions, without calling them, which would slow down each message.
    async def read_headers(block: bytes | None) -> dict[str, str] | None:
        if not block:
            return None
        if _HAS_OWN_PARSER and block.startswith(_PLAIN_BLOCK):
            return parse_lines(block[len(_PLAIN_BLOCK) :]) or None
        try:
            return cast("dict[str, str] | None", await process_headers(block))
        except (IndexError, UnicodeDecodeError):
            return UnreadableHeaders(_block_error(block))

    def build(sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None) -> Msg:
        return _build_message(nc, sid, subject, reply, data, headers)

    _set(nc, "_process_headers", read_headers)
    _set(nc, "_build_message", build)
    _split_lines_at_spaces()


def message_of(nc: Client, sid: int, raw: RawMessage) -> Msg:
    """
    Return nats-py's message for a raw one.

    Its headers are those that nats-py returns, or :class:`~ce_nats.message.UnreadableHeaders` if it cannot read them,
    also on a connection without :func:`accept_malformed_messages`. Never raises.
    """
    subject, reply, data, block = raw
    return _build_message(nc, sid, subject, reply, data, _headers_of(nc, block))


def _headers_of(nc: Client, block: bytes | None) -> dict[str, str] | None:
    """Return the headers of a block, as nats-py's function does, which only suspends to report an error."""
    if not block:
        return None
    if _HAS_OWN_PARSER and block.startswith(_PLAIN_BLOCK):
        return _get(nc, "_parse_header_lines")(block[len(_PLAIN_BLOCK) :]) or None
    reading = _get(nc, "_process_headers")(block)
    try:
        reading.send(None)
    except StopIteration as done:
        return cast("dict[str, str] | None", done.value)
    except (IndexError, UnicodeDecodeError):
        pass
    else:
        reading.close()
    return UnreadableHeaders(_block_error(block))


def _build_message(
    nc: Client, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
) -> Msg:
    try:
        return nc.msg_class(
            subject=subject.decode(), reply=reply.decode(), data=data, headers=headers, _client=nc, _sid=sid
        )
    except UnicodeDecodeError:
        is_subject = _as_utf8(subject) != subject
        error = DecodeError(
            ErrorCode.INVALID_UTF8,
            f"{'subject' if is_subject else 'reply subject'} {preview(subject if is_subject else reply)} "
            "is not valid UTF-8",
            requirement="NP-08",
        )
        reply = reply if _as_utf8(reply) == reply else b""
        return _build_message(nc, sid, _as_utf8(subject), reply, data, UnreadableHeaders(error, headers))


def _as_utf8(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


def _block_error(block: bytes) -> DecodeError:
    try:
        decode_header_block(block)
    except DecodeError as error:
        return error
    return DecodeError(ErrorCode.INVALID_HEADER_BLOCK, f"nats-py cannot read the header block {preview(block)}")


# Replacements in nats-py's regular expressions for MSG and HMSG.
_AT_SPACES: Final = ((b"[^\\s]", b"[^ \t\r\n]"), (b"[^\\S\r\n]", b"[ \t]"), (b"\\s", b"[ \t]"))


def _split_lines_at_spaces() -> None:
    """
    Prevent nats-py from splitting a subject at a vertical tab or a form feed, which servers accept in subjects.

    nats-py delivers a message to ``a<VT>2`` to the subscription with id 2 of a client that has subscribed to ``*``;
    other such subjects end the connection. The regular expressions are shared by all connections.
    """
    for name in ("MSG_RE", "HMSG_RE"):
        pattern = _get(parser, name).pattern
        for old, new in _AT_SPACES:
            pattern = pattern.replace(old, new)
        _set(parser, name, re.compile(pattern))


# --- Connecting -------------------------------------------------------------------------------------------------------


def transport_of(nc: Client) -> Transport | None:
    """Return the transport of a connection."""
    return cast("Transport | None", _get(nc, "_transport"))


def use_transport(nc: Client, transport: Transport) -> None:
    """Replace the transport, before the client connects."""
    _set(nc, "_transport", transport)


class TlsTransport(TcpTransport):
    """nats-py's transport over TCP, with the state of TLS."""

    @property
    def has_tls(self) -> bool:
        """Whether TLS is established."""
        writer = _get(self, "_io_writer")
        return writer is not None and writer.get_extra_info("ssl_object") is not None


def intercept_connects(
    nc: Client, *, before_connect: Callable[[Srv], None], before_info: Callable[[dict[str, Any], bool], None]
) -> None:
    """Register functions to call whenever the client connects, also on reconnects."""
    connect_to_server, process_info = _get(nc, "_connect_to_server"), _get(nc, "_process_info")

    async def connect_with_hook(server: Srv) -> None:
        before_connect(server)
        await connect_to_server(server)

    async def process_with_hook(info: dict[str, Any], initial_connection: bool = False) -> None:
        before_info(info, initial_connection)
        await process_info(info, initial_connection)

    _set(nc, "_connect_to_server", connect_with_hook)
    _set(nc, "_process_info", process_with_hook)


def reconnect_after(nc: Client, violation: str) -> None:
    """
    Reconnect after an error of the server for which it closes the connection; nats-py closes it permanently.

    The callback for errors is called.
    """
    process_error, process_loss = _get(nc, "_process_err"), _get(nc, "_process_op_err")

    async def process(text: str) -> None:
        if violation not in text:
            await process_error(text)
            return
        error = nats.errors.Error("nats: " + text.strip("'"))
        await _get(nc, "_error_cb")(error)
        await process_loss(error)

    _set(nc, "_process_err", process)
