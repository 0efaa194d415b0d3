"""Connections, and what is done with one in a single call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import PubAck

from .. import aio
from ..codec.event import EventLike
from ..codec.subject_template import SubjectTemplate
from ..errors import DeliveryError, ErrorCode
from ._link import Link
from ._loop import current
from ._publisher import Publisher
from ._receiving import PullConsumer, Subscription

_log: Final = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def connect(servers: str | Sequence[str] | None = None, **options: Any) -> Connection:
    """
    Connect to a server.

        with sync.connect("tls://nats.example.com", user_credentials="app.creds") as nc:
            nc.publish(event, "orders.paid")

    Args:
        servers: As for :func:`ce_nats.aio.connect`.
        options: As for :func:`ce_nats.aio.connect`. Its callbacks are asynchronous functions here, too.

    Raises:
        EncodeError: As :func:`ce_nats.aio.connect` does.
        DeliveryError: As :func:`ce_nats.aio.connect` does.
        TypeError: As :func:`ce_nats.aio.connect` does.
    """
    return Connection(servers, options)


class Connection:
    """
    A connection; made by :func:`connect`. Any thread may use it, and several at a time.

    As a context manager it is closed at the end of the block. In a process that was forked it makes a connection of its
    own, with the same options, when it is used there.
    """

    def __init__(self, servers: str | Sequence[str] | None, options: dict[str, Any]) -> None:
        self._servers = servers
        self._options = options
        self._is_closed = False
        self._link = Link.open(current(), servers, options)

    @property
    def link(self) -> Link:
        """The connection of this process."""
        loop = current()
        if self._link.loop is not loop:
            if self._is_closed:
                raise DeliveryError(ErrorCode.CONNECTION_CLOSED, "the connection is closed")
            with loop.lock:
                if self._link.loop is not loop:
                    self._link = Link.open(loop, self._servers, self._options)
        return self._link

    @property
    def client(self) -> Client:
        """The connection of nats-py, which belongs to the loop: :meth:`run` calls its asynchronous functions."""
        return self.link.client

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """
        Call an asynchronous function of :attr:`client` in the loop, and wait for its result.

            nc.run(nc.client.jetstream().add_stream, name="ORDERS", subjects=["orders.>"])

        What was published before is sent before. Where the wait ends early, as by Ctrl-C, the function is cancelled.

        Args:
            function: The function.
            args: Its arguments.
            options: Its options.

        Raises:
            Exception: What the function raises.
        """
        return self.link.run(function, *args, **options)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeliveryError as failure:
            if error is None:
                raise
            _log.error("the connection was closed after %s: %s", type(error).__name__, failure)

    def close(self) -> None:
        """
        Send what waits, wait until the server has it, and close the connection; does nothing when called again.

        Raises:
            DeliveryError: As :meth:`flush` does, where something was published since the last one.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._link.loop.is_here:
            self._link.loop.run(self._link.end)

    def publish(self, event: EventLike, subject: str | SubjectTemplate, **options: Any) -> None:
        """
        Publish an event, without waiting until it is sent. Core NATS does not confirm delivery; :meth:`flush` waits
        until the server has received it, and raises where the server denied it.

        Args:
            event: As :func:`ce_nats.to_nats_message` takes it. It is encoded in this call.
            subject: NATS subject to publish to, or a template of it.
            options: As for :func:`ce_nats.aio.publish`.

        Raises:
            EncodeError: As :func:`ce_nats.aio.publish` does. The event was not sent.
            DeliveryError: ``connection-closed``.
            PublishError: Earlier events could not be sent, and this one was not. Each failure is raised once.
        """
        self.link.publish(event, subject, options)

    def flush(self) -> None:
        """
        Wait until the server has everything that was published, and every subscription, so far.

        Raises:
            DeliveryError: As :func:`ce_nats.aio.flush` does.
            PublishError: Events could not be sent.
        """
        self.link.run(self.link.flush)

    def publish_to_stream(self, event: EventLike, subject: str | SubjectTemplate, **options: Any) -> PubAck:
        """
        Publish an event to the stream that listens on a subject, and wait until it is stored.

        :meth:`publisher` does not wait for each one, and is many times as fast.

        Args:
            event: As :func:`ce_nats.to_nats_message` takes it.
            subject: NATS subject to publish to, or a template of it.
            options: As for :func:`ce_nats.aio.jetstream.publish`.

        Returns:
            The acknowledgement: ``stream``, ``seq``, and ``duplicate``.

        Raises:
            EncodeError: As :func:`ce_nats.aio.jetstream.publish` does.
            DeliveryError: As :func:`ce_nats.aio.jetstream.publish` does.
        """
        return self.link.run(aio.jetstream.publish, self.link.js, event, subject, **options)

    def request(self, event: EventLike, subject: str | SubjectTemplate, **options: Any) -> aio.Received:
        """
        Send an event, and wait for the first reply.

        Args:
            event: As :func:`ce_nats.to_nats_message` takes it.
            subject: NATS subject to publish to, or a template of it.
            options: As for :func:`ce_nats.aio.request`: ``timeout`` is 5 seconds by default.

        Raises:
            EncodeError: As :func:`ce_nats.aio.request` does.
            DeliveryError: As :func:`ce_nats.aio.request` does.
        """
        return self.link.run(aio.request, self.link.client, event, subject, **options)

    def respond(self, request: Msg | aio.Received, event: EventLike, **options: Any) -> None:
        """
        Reply to a request with an event.

        Args:
            request: What a subscription of this connection gave.
            event: The reply.
            options: As for :func:`ce_nats.aio.respond`.

        Raises:
            EncodeError: As :func:`ce_nats.aio.respond` does.
            DeliveryError: As :func:`ce_nats.aio.respond` does.
        """
        self.link.run(aio.respond, request, event, **options)

    def publisher(self, **options: Any) -> Publisher:
        """A :class:`Publisher` on this connection."""
        return Publisher(self, **options)

    def subscribe(self, subject: str, *, timeout: float | None = None, **options: Any) -> Subscription:
        """
        Subscribe, and receive events: everything that is published after this has returned.

            with nc.subscribe("orders.>") as messages:
                for item in messages: ...

        Args:
            subject: Subject, wildcards allowed.
            timeout: Seconds; an iteration ends when there is no message for so long. None waits for ever.
            options: As for :func:`ce_nats.aio.subscribe`.

        Raises:
            EncodeError: As :func:`ce_nats.aio.subscribe` does.
            DeliveryError: As :func:`ce_nats.aio.subscribe` does.
        """
        return Subscription(self, subject, timeout=timeout, **options)

    def consumer(self, stream: str, consumer: str, *, timeout: float | None = None, **options: Any) -> PullConsumer:
        """A :class:`PullConsumer` on this connection."""
        return PullConsumer(self, stream, consumer, timeout=timeout, **options)
