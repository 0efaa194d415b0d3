"""A client of a streaming server: publish, subscribe, and reconnect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final

from nats.aio.client import Client

from ..aio._util.checks import check_client
from ..aio._util.opening import opening
from ..aio._util.supervising import supervise
from ..aio.core._publish import check_size
from ..aio.publishing._publisher import raise_failures
from ..codec.attributes import ExtensionTypes
from ..codec.binding import from_nats_message, to_nats_message
from ..codec.event import DecodedEvent, EventLike
from ..codec.mode import ContentMode
from ..codec.subject_template import SubjectTemplate
from ..errors import CeNatsError, DecodeError, DeliveryError, EncodeError, ErrorCode, Failure, StanError
from ..message import NatsMessage
from ._options import check_count, check_seconds
from ._session import CONNECTION_CLOSED, NOT_CONNECTED, Identity, Session, check_channel, new_id, with_reason
from ._subscription import Start, Subscription
from ._window import Window
from .wire import MsgProto, PubMsg

_log: Final = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.5
_TICK_SECONDS: Final = 0.1
# A refusal may be the late answer to an earlier attempt, within half a second; only three in a row are final.
_REFUSALS: Final = 3
_NEW: Final = Start.new()


@opening
async def connect(
    nc: Client,
    cluster_id: str,
    client_id: str,
    *,
    discover_prefix: str = "_STAN.discover",
    timeout: float = 2.0,
    ack_timeout: float = 30.0,
    window: int = 16384,
    ping_interval: int = 5,
    ping_max_out: int = 88,
    reconnect: bool = False,
    on_lost: Callable[[StanError], object] | None = None,
) -> Connection:
    """
    Register with a streaming server.

        async with stan.connect(nc, "test-cluster", "billing") as connection:
            await connection.publish(event, "orders")

    Args:
        nc: An open connection; the caller closes it. To survive restarts of a server it should reconnect without limit:
            ``nats.connect(..., max_reconnect_attempts=-1)``.
        cluster_id: Name of the streaming server's cluster.
        client_id: Name of this client, unique among connected clients: letters, digits, ``-`` and ``_``.
        discover_prefix: Prefix of connect requests in the server's configuration.
        timeout: Seconds to wait for answers other than acknowledgements.
        ack_timeout: Seconds to wait for the acknowledgement of a published message.
        window: Maximum number of unacknowledged messages.
        ping_interval: Seconds between pings, which detect the loss of the server.
        ping_max_out: Number of unanswered pings after which the server is considered lost.
        reconnect: Connect and subscribe again when the server is lost: see :class:`Connection`.
        on_lost: Called with the error when the server is lost; with ``reconnect`` each time.

    Raises:
        EncodeError: ``invalid-subject``: one of the names is not valid; ``invalid-message``: an option has another
            type, or a number is out of its range.
        StanError: ``request-refused`` (``stan: clientID already registered``, for instance); ``no-responders`` or
            ``timeout``: there is no server for this cluster.
        DeliveryError: ``connection-closed``: the NATS connection.
        DecodeError: The answer is not that of a streaming server.
    """
    check_client(nc)
    check_count("window", window)
    check_seconds("ack_timeout", ack_timeout)
    identity = Identity(cluster_id, client_id, discover_prefix, timeout, ping_interval, ping_max_out)
    connection = Connection(nc, identity, window, ack_timeout, reconnect, on_lost)
    await connection._open()
    return connection


class Connection:
    """
    A client that is registered with a streaming server; returned by :func:`connect`.

    As a context manager it waits for the acknowledgements of published messages, and closes the connection, at the end
    of the block.

    The server is considered lost when it no longer answers pings, when it answers with "unknown clientID" (after a
    restart with a memory store), or when the NATS connection is closed. Unacknowledged messages then fail: each may
    have been stored. Without ``reconnect`` all other operations fail as well, iterations included.

    With ``reconnect`` the client registers again under its id, until that succeeds, the server refuses (another client
    now has the id), or the NATS connection is closed; in the last two cases everything fails. Then it subscribes again.
    Publishing waits for that, at most ``ack_timeout`` seconds, so that the client's own subscriptions receive what it
    publishes. A subscription that cannot be restored fails, and the others continue. As long as the server's store
    survives, no message is missed:

    - a durable continues at its position on the server;
    - other subscriptions continue at the first message that was delivered and not acknowledged, or after the last
      message if all were acknowledged, so acknowledged messages may be redelivered; if none was delivered, they begin
      at their original start, or up to ``timeout`` seconds earlier, because the protocol sends an age instead of a
      time, and the server reads it later;
    - members of a queue group without a durable join the group if it still has other members; otherwise they continue
      like other subscriptions.

    Messages that the server deletes meanwhile, by its limits, are lost. A server that lost its store numbers messages
    from 1 again: messages of other clients from before the reconnect may then be missed.

    Attributes:
        failures: Events of :meth:`publish_async` without an acknowledgement whose failure was not raised yet.
    """

    def __init__(
        self,
        nc: Client,
        identity: Identity,
        window: int,
        ack_timeout: float,
        reconnect: bool,
        on_lost: Callable[[StanError], object] | None,
    ) -> None:
        self._nc = nc
        self._identity = identity
        self._ack_timeout = ack_timeout
        self._may_reconnect = reconnect
        self._on_lost = on_lost
        self._window = Window(nc, size=window, ack_timeout=ack_timeout)
        self.failures: list[Failure] = []
        self._subscriptions: list[Subscription] = []
        self._session: Session | None = None
        # Set while there is a session with all subscriptions, and when there will be no further session.
        self._settled = asyncio.Event()
        self._error: CeNatsError | None = None
        self._last_error: CeNatsError | None = None  # of a lost session, or of an attempt to open the next one
        self._keeper: asyncio.Task[None] | None = None
        self._is_closed = False

    async def _open(self) -> None:
        try:
            await self._window.open()
            self._session = await Session.open(self._nc, self._identity)
        except BaseException:
            await self._window.close()
            raise
        self._settled.set()
        self._keeper = supervise(self._keep(self._session), f"client {self.client_id}", self._fail)

    @property
    def client_id(self) -> str:
        """Name of the client."""
        return self._identity.client_id

    @property
    def error(self) -> CeNatsError | None:
        """Reason for which the connection is lost permanently, or None."""
        return self._error

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self._window.drain()
        finally:
            try:
                await self.close()
            except CeNatsError:
                if error is None:
                    raise
        if error is None:
            raise_failures(self.failures)

    async def close(self) -> None:
        """
        Deregister the client; durables are kept. Iterations end, and unacknowledged messages fail. Does nothing if
        closed already.

        Raises:
            StanError: The server did not answer, or refused. The connection is closed nevertheless.
            DeliveryError: ``connection-closed``: the NATS connection, so that the server cannot be notified.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        session, self._session = self._session, None
        self._settled.set()
        for subscription in list(self._subscriptions):
            await subscription._finish()
        self._window.fail_all(CONNECTION_CLOSED)
        await self._window.close()
        if self._nc.is_closed:
            if session is not None:
                await session.abandon()
            raise DeliveryError(ErrorCode.CONNECTION_CLOSED, "the NATS connection was closed before the client was")
        if session is not None:
            await session.close()

    # --- Publish ------------------------------------------------------------------------------------------------------

    async def publish(self, event: EventLike, channel: str | SubjectTemplate) -> str:
        """
        Publish an event, as JSON in structured mode, and wait until it is stored.

        Args:
            event: As :func:`ce_nats.to_nats_message` accepts it.
            channel: Name of the channel, or a template of it.

        Returns:
            The id (guid) of the message. Servers do not use it to detect duplicates.

        Raises:
            EncodeError: As :func:`ce_nats.to_nats_message` does; ``invalid-subject`` for an invalid channel;
                ``payload-too-large``. Nothing was sent.
            StanError: ``publish-refused``; ``connection-closed``: the server was lost before, and nothing was sent;
                ``no-responders``: the server does not run; ``timeout``: there was no acknowledgement in time, and the
                event may have been stored.
            DeliveryError: ``connection-closed``: the NATS connection; ``buffer-full``.
        """
        message = to_nats_message(event, channel, mode=ContentMode.STRUCTURED)
        return await (await self._send(message.data, message.subject))

    async def publish_async(self, event: EventLike, channel: str | SubjectTemplate) -> asyncio.Future[str]:
        """
        Publish an event; returns as soon as there is room for it in the window.

        Args:
            event: As for :meth:`publish`.
            channel: As for :meth:`publish`.

        Returns:
            A future of the result of :meth:`publish`. It need not be awaited: failures are also raised by
            :meth:`flush` and at the end of the connection's block.

        Raises:
            EncodeError, StanError, DeliveryError: As :meth:`publish` does. This event was not sent.
        """
        message = to_nats_message(event, channel, mode=ContentMode.STRUCTURED)
        return await self._send(message.data, message.subject, partial(self._add_failure, event, message.subject))

    async def publish_data(self, data: bytes, channel: str) -> str:
        """
        Publish bytes unchanged, and wait until they are stored.

        Raises:
            EncodeError: ``invalid-message``: ``data`` is not bytes; ``invalid-subject``; ``payload-too-large``.
            StanError, DeliveryError: As :meth:`publish` does.
        """
        return await (await self._send(data, channel))

    async def flush(self) -> None:
        """
        Wait until each event published so far is stored or has failed.

        Raises:
            PublishError: Some events have failed. Each failure of :meth:`publish_async` is raised once.
        """
        await self._window.drain()
        raise_failures(self.failures)

    async def _send(
        self, data: bytes, channel: str, on_failure: Callable[[StanError], object] = lambda error: None
    ) -> asyncio.Future[str]:
        check_channel(channel)
        guid = new_id()
        while True:
            session = await self._current()
            subject = f"{session.subjects.pub_prefix}.{channel}"
            message = PubMsg(
                client_id=session.client_id, guid=guid, subject=channel, data=data, conn_id=session.conn_id
            ).encode()
            check_size(NatsMessage(subject, message), self._nc.max_payload)
            await self._window.wait_for_slot()
            if self._session is session:
                return await self._window.send(guid, subject, message, on_failure)

    def _add_failure(self, event: EventLike, channel: str, error: StanError) -> None:
        self.failures.append(Failure(event, channel, error))

    # --- Subscribe ----------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        channel: str,
        *,
        start: Start = _NEW,
        queue: str = "",
        durable: str = "",
        max_in_flight: int = 1024,
        ack_wait: int = 30,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
    ) -> Subscription:
        """
        Subscribe to a channel.

            async with await connection.subscribe("orders", start=Start.first(), durable="billing") as subscription:
                async for item in subscription:
                    async with item as event: ...

        Args:
            channel: Name of the channel, without wildcards.
            start: Position at which the subscription begins.
            queue: Queue group: each message is delivered to one member of it.
            durable: Name under which the server keeps the position while there is no subscription.
            max_in_flight: Maximum number of unacknowledged messages.
            ack_wait: Seconds after which an unacknowledged message is redelivered.
            parse_data: As for :func:`ce_nats.from_nats_message`.
            extension_types: As for :func:`ce_nats.from_nats_message`.

        Raises:
            EncodeError: ``invalid-subject``: the channel, or the durable's name, is not valid; ``invalid-message``: an
                option has another type, or a number is too small; ``integer-out-of-range``: one is too large.
            StanError: The server refused, did not answer, or is lost.
            DeliveryError: ``connection-closed``: the NATS connection.
            DecodeError: The answer is not that of a streaming server.
        """

        def decode(message: MsgProto) -> DecodedEvent:
            return from_nats_message(
                NatsMessage(message.subject, message.data),
                mode=ContentMode.STRUCTURED,
                parse_data=parse_data,
                extension_types=extension_types,
            )

        subscription = Subscription(
            channel,
            start=start,
            queue=queue,
            durable=durable,
            max_in_flight=max_in_flight,
            ack_wait=ack_wait,
            decode=decode,
            on_end=self._subscriptions.remove,
        )
        while True:
            session = await self._current()
            await subscription._bind(session)
            if session.error is None:
                self._subscriptions.append(subscription)
                return subscription
            await subscription._unbind()

    # --- Reconnect ----------------------------------------------------------------------------------------------------

    async def _current(self) -> Session:
        """
        Return the session with all subscriptions; after a loss, wait for the next one.

        Raises:
            StanError: ``connection-closed``, for each kind of loss: nothing was sent.
        """
        if not self._settled.is_set():
            try:
                await asyncio.wait_for(self._settled.wait(), self._ack_timeout)
            except asyncio.TimeoutError:
                text = with_reason(NOT_CONNECTED, self._last_error)
                raise StanError(ErrorCode.CONNECTION_CLOSED, text) from self._last_error
        if self._session is not None:
            return self._session
        text = CONNECTION_CLOSED if self._error is None else self._error.message
        raise StanError(ErrorCode.CONNECTION_CLOSED, text) from self._error

    async def _keep(self, session: Session | None) -> None:
        """Handle each loss of a session."""
        # Before Python 3.12 a request may suppress its cancellation, so _is_closed is checked as well.
        while session is not None and not self._is_closed:
            await session.lost.wait()
            assert session.error is not None
            self._session = None
            self._settled.clear()
            self._window.fail_all(with_reason(CONNECTION_CLOSED, session.error))
            for subscription in list(self._subscriptions):
                await subscription._unbind()
            await session.abandon()
            self._report(session.error)
            session = await self._reconnect(session.error)

    async def _reconnect(self, error: StanError) -> Session | None:
        """Open another session with all subscriptions; None if that is impossible, after everything has failed."""
        self._last_error = error
        refusals = 0
        while self._may_reconnect and not self._is_closed and not self._nc.is_closed and refusals < _REFUSALS:
            if not self._nc.is_connected:
                # nats-py would buffer the requests of all attempts, and send them at once.
                await asyncio.sleep(_TICK_SECONDS)
                continue
            try:
                session = await Session.open(self._nc, self._identity)
            except CeNatsError as failure:
                self._last_error = failure
                refusals = refusals + 1 if _is_final(failure) else 0
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._session = session
            for subscription in list(self._subscriptions):
                await self._resubscribe(subscription, session)
            if session.error is None:
                self._settled.set()
            return session
        if self._is_closed:
            return None
        self._error = self._last_error
        self._settled.set()
        await self._finish_all(None)
        return None

    def _fail(self, error: DeliveryError) -> None:
        """Fail everything: without its task the client does not notice the loss of the server."""
        self._error = StanError(error.code, error.message)
        self._error.__cause__ = error.__cause__
        session, self._session = self._session, None
        self._settled.set()
        self._window.fail_all(error.message)
        self._keeper = supervise(self._finish_all(session), f"client {self.client_id}", lambda error: None)

    async def _finish_all(self, session: Session | None) -> None:
        """End all subscriptions with the error of the connection, and a session."""
        for subscription in list(self._subscriptions):
            await subscription._finish(self._error)
        if session is not None:
            await session.abandon()

    async def _resubscribe(self, subscription: Subscription, session: Session) -> None:
        if self._is_closed or session.error is not None or subscription.is_closed:
            return
        try:
            await subscription._bind(session)
        except CeNatsError as failure:
            if subscription.is_closed:  # meanwhile
                return
            if _is_final(failure) and session.error is None:
                await subscription._finish(failure)
                self._subscriptions.remove(subscription)
            else:
                # The server may have created the subscription without the answer arriving. It ends with the session.
                session.lose(failure.code, failure.message)

    def _report(self, error: StanError) -> None:
        if self._on_lost is not None:
            try:
                self._on_lost(error)
            except (Exception, asyncio.CancelledError):  # which a function that is not async cannot mean for this task
                _log.exception("on_lost raised an exception")


def _is_final(error: CeNatsError) -> bool:
    """Return whether a retry would fail in the same way."""
    return isinstance(error, (EncodeError, DecodeError)) or (isinstance(error, StanError) and error.is_refusal)
