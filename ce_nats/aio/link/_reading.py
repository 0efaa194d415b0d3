"""Read the messages of a connection before nats-py parses them, many at once."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, TypeAlias

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol import parser

from ._frame_splitter import FrameSplitter, RawMessage
from ._private import get, put

_log: Final = logging.getLogger(__name__)

_CRLF: Final = b"\r\n"
_ERROR_LINE: Final = re.compile(rb"-ERR\s+'(.+)'\r\n")


# Called with messages of one subscription, in order.
Receive: TypeAlias = Callable[[list[RawMessage]], None]


class Reading:
    """
    Everything that a connection receives, before nats-py parses it.

    Messages of subscriptions with a receiver are taken out, and nats-py gets what is left. Bytes are read from the
    beginning of an operation on, so that a payload is never read as operations; it is installed for the life of the
    connection, and only its receivers change.

    nats-py only logs an exception that ends its read loop, and every call that waits for a message waits forever. So
    ``ended`` is called if the loop ends while the connection is open, with the exception.

    Attributes:
        receivers: Functions that get messages, by number of the subscription in the protocol.
    """

    def __init__(self, nc: Client, ended: Callable[[Exception | None], None]) -> None:
        protocol = get(nc, "_ps")
        for name in ("buf", "state", "needed"):
            get(protocol, name)
        self._nc = nc
        self._ended = ended
        self._protocol = protocol
        self._subscriptions: dict[int, Subscription] = get(nc, "_subs")
        self._parse, self._reset = protocol.parse, protocol.reset
        self._splitter: FrameSplitter | None = None
        self.receivers: dict[bytes, Receive] = {}
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        protocol.parse, protocol.reset = self.parse, self.reset

    def error_line(self) -> str:
        """
        Return the error that nats-py processes now, as the server has sent it: nats-py converts it to lower case.

        Called in the callback for errors, before that awaits anything. Returns ``""`` if it is unknown.
        """
        found = _ERROR_LINE.match(bytes(self._protocol.buf))
        return found[1].decode("utf-8", "replace") if found else ""

    @property
    def is_running(self) -> bool:
        """Whether nats-py's read loop runs."""
        task = get(self._nc, "_reading_task")
        return task is not None and not task.done()

    def watch(self) -> None:
        """Notice the end of the present read loop; each reconnect starts another one."""
        task = get(self._nc, "_reading_task")
        if task is not None and task is not self._task:
            self._task, self._failure = task, None
            task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task is get(self._nc, "_reading_task") and self._nc.is_connected:
            self._ended(self._failure)

    def receive(self, sid: int, receive: Receive | None) -> None:
        """
        Call a function with all messages of a subscription, many at once, instead of nats-py's processing.

        Statuses, messages without a reply subject and large ones are among them, in the order of the server. They are
        counted in ``nc.stats`` and in ``subscription.delivered``. The limits of pending messages are not applied. While
        the subscription has a maximum number of messages, ``unsubscribe(limit=)``, nats-py processes them.

        Messages that arrive until the subscription is removed from the connection, such as those after UNSUB, are
        passed on; the caller removes the function then.

        ``receive``: Called in nats-py's read loop with messages. It must neither raise nor take long: an exception is
        logged, the messages of this call are lost, and reading continues. None removes the function.
        """
        if receive is None:
            self.receivers.pop(b"%d" % sid, None)
        else:
            self.receivers[b"%d" % sid] = receive

    async def subscribe(self, subject: str, receive: Receive, *, queue: str = "") -> Subscription:
        """
        Subscribe, and call a function with all messages, as :meth:`receive` does, from the first one on.

        After ``nc.subscribe()`` has returned, the first messages may have been processed by nats-py already.
        """
        sid = get(self._nc, "_sid") + 1
        self.receive(sid, receive)
        try:
            return await self._nc.subscribe(subject, queue=queue)
        except BaseException:
            self.receive(sid, None)
            raise

    async def parse(self, data: bytes = b"") -> None:
        """Process received bytes; in place of nats-py's function."""
        self.watch()
        try:
            await self._parse_all(data)
        except Exception as error:
            self._failure = error
            raise

    async def _parse_all(self, unread: bytes) -> None:
        while unread:
            if self._nc.is_reconnecting:
                return  # nats-py was reset; these bytes are of the lost connection, and do not begin with an operation
            data, unread, is_malformed = unread, b"", False
            if self.receivers or self._splitter is not None:
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
        if sid not in self.receivers:
            return False
        subscription = self._subscriptions.get(int(sid))
        return subscription is None or not get(subscription, "_max_msgs")

    def _deliver(self, sid: bytes, messages: list[RawMessage]) -> None:
        stats = self._nc.stats
        stats["in_msgs"] += len(messages)
        stats["in_bytes"] += sum([len(message[2]) for message in messages])
        subscription = self._subscriptions.get(int(sid))
        if subscription is not None:
            put(subscription, "_received", get(subscription, "_received") + len(messages))
        receive = self.receivers.get(sid)
        if receive is None:
            return  # removed by the receiver of another subscription
        try:
            receive(messages)
        except (Exception, asyncio.CancelledError):
            _log.exception("receiver of subscription %s failed; %d messages are lost", int(sid), len(messages))


def accept_late_pongs(nc: Client) -> None:
    """Prevent a PONG from ending nats-py's read loop if the ``flush()`` that waited for it was cancelled."""
    process_pong = get(nc, "_process_pong")

    async def process_with_check() -> None:
        waiting = get(nc, "_pongs")
        if waiting and waiting[0].done():
            waiting[0] = asyncio.get_running_loop().create_future()
        await process_pong()

    put(nc, "_process_pong", process_with_check)
