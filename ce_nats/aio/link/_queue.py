"""Take received messages of a subscription without nats-py's iterator, which starts a task for each one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ._client import client_of, subscription_id
from ._frame_splitter import RawMessage
from ._link import Link
from ._messages import message_of
from ._private import get, put

_log: Final = logging.getLogger(__name__)


async def unsubscribe_and_drain(subscription: Subscription, round_trip: Callable[[], Awaitable[None]]) -> None:
    """
    Unsubscribe, and wait until the callback has processed everything that the server sent before.

    nats-py's ``drain()`` waits for the PONG of a PING that it writes before the UNSUB.
    """
    await get(client_of(subscription), "_send_unsubscribe")(subscription_id(subscription))
    await round_trip()
    await get(subscription, "_pending_queue").join()


def on_drain(subscription: Subscription, finish: Callable[[], Awaitable[None]]) -> None:
    """
    Call a function while nats-py drains the connection, when no further messages arrive, and wait for its end.

    The connection is closed afterwards, and after the ``drain_timeout`` at the latest.
    """
    queue, client = get(subscription, "_pending_queue"), client_of(subscription)

    async def join() -> None:
        if client.is_draining:
            await finish()

    queue.join = join


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
        iterator = get(subscription, "_message_iterator")
        self._subscription = get(iterator, "_sub")  # of a PushSubscription: the one inside of it
        self._messages: asyncio.Queue[Msg | RawMessage] = get(subscription, "_pending_queue")
        self._ended: asyncio.Future[bool] = get(iterator, "_unsubscribed_future")
        self.end: Callable[[], None] = get(iterator, "_cancel")
        self._waiting: dict[asyncio.Future[None], None] = {}
        for name in ("_max_msgs", "_received", "_pending_size", "_pending_bytes_limit"):
            get(self._subscription, name)
        self._ended.add_done_callback(self._wake_all)
        # asyncio's classes of queues override these methods, too.
        self._put, self._pop = get(self._messages, "_put"), get(self._messages, "_get")
        put(self._messages, "_put", self._put_and_wake)
        put(self._messages, "_get", self._pop_for_nats_py)

    @classmethod
    def of(cls, subscription: Subscription) -> MessageQueue:
        """Return the queue of a subscription; there is one, also for several iterations."""
        owner = getattr(get(get(subscription, "_pending_queue"), "_put"), "__self__", None)
        return owner if isinstance(owner, cls) else cls(subscription)

    @classmethod
    async def subscribe(cls, nc: Client, subject: str, *, queue: str = "") -> Subscription:
        """Subscribe; the messages in the queue of the subscription are raw."""
        sid, subscriptions = get(nc, "_sid") + 1, get(nc, "_subs")

        def receive(messages: list[RawMessage]) -> None:
            subscription = subscriptions.get(sid)
            if subscription is not None:  # else the program has unsubscribed
                cls.of(subscription)._receive(messages)

        reading = Link.of(nc).reading
        subscription = await reading.subscribe(subject, receive, queue=queue)
        cls.of(subscription)._ended.add_done_callback(lambda _: reading.receive(sid, None))
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
        subscription, add = self._subscription, self._messages.put_nowait
        limit = subscription._pending_bytes_limit
        dropped: list[RawMessage] = []
        for message in messages:
            size = len(message[2])
            if 0 < limit <= subscription._pending_size + size:
                dropped.append(message)
                continue
            try:
                add(message)
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
                await get(nc, "_error_cb")(error)
            except Exception:
                _log.exception("error_cb failed")

    task = asyncio.get_running_loop().create_task(report())
    _reports.add(task)
    task.add_done_callback(_reports.discard)
