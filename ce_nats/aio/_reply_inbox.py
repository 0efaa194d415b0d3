"""
One subscription of a connection for the replies to its messages.

Each operation that awaits replies has a token in their subjects. The subscription is kept until the connection is
closed, as nats-py keeps that for responses to its requests, so that only the first operation has to subscribe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from ..errors import CeNatsError, DeliveryError
from ._errors import delivery_errors
from ._util.supervising import failure
from .link._client import has_subscription, subscription_id
from .link._frame_splitter import RawMessage
from .link._link import Link
from .link._permissions import Denial
from .link._reading import Receive

# Header block of a no-responders status, as far as it is read.
_NO_RESPONDERS: Final = b"NATS/1.0 503"


class Replies:
    """
    The replies of one operation, from :meth:`open` to :meth:`close`.

    ``receive`` gets messages, many at once, whose subjects begin with the prefix. ``denied`` is called with each denial
    of a publish, and returns whether it has handled it. ``fail`` is called if no reply can arrive any more: the
    subscription was denied, or one of these functions has raised an exception; it must not raise.

    Attributes:
        prefix: Beginning of the reply subjects, with the last dot.
    """

    def __init__(
        self,
        inbox: ReplyInbox,
        name: str,
        receive: Receive,
        *,
        denied: Callable[[Denial], bool],
        fail: Callable[[DeliveryError], None],
    ) -> None:
        self.prefix = inbox.new_prefix()
        self._inbox = inbox
        self._name = name
        self._receive = receive
        self._denied = denied
        self._fail = fail

    async def open(self) -> None:
        """
        Subscribe, unless another operation has, and receive replies.

        Raises:
            DeliveryError: ``connection-closed``.
        """
        self.add()  # before it subscribes: the server may deny that at once
        try:
            with delivery_errors(self._name, self._inbox.nc):
                await self._inbox.subscribed()
        except BaseException:
            self.close()
            raise

    def add(self) -> None:
        """Receive replies on a subscription that another operation has opened."""
        self._inbox.replies[self.prefix.encode()] = self
        Link.of(self._inbox.nc).permissions.add(self._on_denied)

    def close(self) -> None:
        """Receive no further replies."""
        self._inbox.replies.pop(self.prefix.encode(), None)
        Link.of(self._inbox.nc).permissions.remove(self._on_denied)

    def deliver(self, messages: list[RawMessage]) -> None:
        """Pass on replies. Never raises."""
        try:
            self._receive(messages)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(failure(self._name, error))

    def _on_denied(self, denial: Denial) -> bool:
        try:
            if denial.is_subscription(self._inbox.subject):
                self._fail(denial.error(self._inbox.subject))
                return True
            return self._denied(denial)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(failure(self._name, error))
            return True


class ReplyInbox:
    """
    The replies to messages of a connection: that of all operations from :meth:`of`, or one with its own subject.

    Attributes:
        nc: The connection.
        subject: Subject of the subscription.
        replies: Replies by prefix, of operations that receive some.
    """

    def __init__(self, nc: Client, inbox: str = "") -> None:
        self.nc = nc
        self.subject = f"{inbox or nc.new_inbox()}.>"
        self.replies: dict[bytes, Replies] = {}
        self._number = 0
        self._opening: asyncio.Future[Subscription] | None = None
        # Whether the server has denied the subscription, which nats-py then still has.
        self._is_denied = False
        Link.of(nc).permissions.add(self._on_denied)

    @classmethod
    def of(cls, nc: Client) -> ReplyInbox:
        """Return the inbox of a connection."""
        return Link.of(nc).shared(cls)

    def new_prefix(self) -> str:
        """Return the beginning of the reply subjects of an operation; the first one of an inbox is always the same."""
        self._number += 1
        return f"{self.subject[:-1]}{self._number}."

    async def close(self) -> None:
        """Unsubscribe; for an inbox with its own subject. Never raises."""
        Link.of(self.nc).permissions.remove(self._on_denied)
        await self._unsubscribe()

    async def subscribed(self) -> None:
        """Wait until there is a subscription; the cancellation of one operation does not affect others."""
        nc = self.nc
        if nc.is_closed:
            raise nats.errors.ConnectionClosedError
        if nc.is_draining:
            raise nats.errors.ConnectionDrainingError
        if self._is_denied:
            await self._unsubscribe()
        opening = self._opening
        if opening is None or (opening.done() and not _is_open(nc, opening)):
            opening = self._opening = asyncio.ensure_future(Link.of(nc).reading.subscribe(self.subject, self._receive))
            opening.add_done_callback(_is_failed)  # otherwise asyncio logs its error if no operation waits any more
        await asyncio.wait((opening,))
        opening.result()

    async def _unsubscribe(self) -> None:
        opening, self._opening = self._opening, None
        self._is_denied = False
        if opening is None:
            return
        await asyncio.wait((opening,))
        if not _is_failed(opening):
            subscription = opening.result()
            Link.of(self.nc).reading.receive(subscription_id(subscription), None)
            with suppress(nats.errors.Error, CeNatsError):
                await subscription.unsubscribe()

    def _receive(self, messages: list[RawMessage]) -> None:
        """Pass messages on, those that follow each other at once; those of operations that have ended are dropped."""
        start, count, length = 0, len(messages), len(self.subject.encode()) - 1
        while start < count:
            subject, end = messages[start][0], start + 1
            prefix = subject[: subject.find(b".", length) + 1]  # empty without a token, which no operation has
            while prefix and end < count and messages[end][0].startswith(prefix):
                end += 1
            replies = self.replies.get(prefix)
            if replies is not None:
                replies.deliver(messages[start:end])
            start = end

    def _on_denied(self, denial: Denial) -> bool:
        """Let the next operation subscribe again; without an operation, the denial is not an error."""
        is_own = denial.is_subscription(self.subject)
        self._is_denied |= is_own
        return is_own


def _is_open(nc: Client, opening: asyncio.Future[Subscription]) -> bool:
    return not _is_failed(opening) and has_subscription(nc, subscription_id(opening.result()))


def _is_failed(opening: asyncio.Future[Subscription]) -> bool:
    return opening.cancelled() or opening.exception() is not None


def reports_no_responders(data: bytes, block: bytes) -> bool:
    """Return whether payload and header block of a reply are a no-responders status."""
    return not data and block.startswith(_NO_RESPONDERS)
