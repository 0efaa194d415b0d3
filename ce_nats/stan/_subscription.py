"""Receive events from a channel."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Final, cast

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from ..aio._errors import delivery_errors
from ..codec.event import DecodedEvent
from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, StanError, preview
from ..subjects import check_subject
from ._options import check_count, check_kind
from ._session import Session, check_channel, listen, unlisten
from .wire import Ack, MsgProto, StartPosition, SubscriptionRequest, SubscriptionResponse, UnsubscribeRequest

_log: Final = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)
_INVALID: Final = "stan: invalid subscription"


@dataclass(frozen=True)
class Start:
    """
    Where a subscription begins; made by its class methods. A durable or a queue group that the server knows continues
    where it was, and the start is ignored.

    Attributes:
        position: Name of the kind of start in the protocol.
        sequence: For ``SEQUENCE_START``.
        time: For ``TIME_DELTA_START``: a time, or an age.

    Raises:
        EncodeError: ``invalid-message``: one of these has another type, or a time is not timezone-aware.
    """

    position: StartPosition = StartPosition.NEW_ONLY
    sequence: int = 0
    time: datetime | timedelta | None = None

    def __post_init__(self) -> None:
        check_kind("position", self.position, StartPosition, "a StartPosition")
        if self.position is StartPosition.TIME_DELTA_START and not isinstance(self.time, timedelta):
            check_kind("time", self.time, datetime, "a datetime or a timedelta")
            if cast("datetime", self.time).utcoffset() is None:
                raise EncodeError(ErrorCode.INVALID_MESSAGE, f"time must be timezone-aware, got {self.time}")

    @classmethod
    def new(cls) -> Start:
        """Messages that are published from now on."""
        return cls()

    @classmethod
    def last(cls) -> Start:
        """The last message of the channel, and later ones."""
        return cls(StartPosition.LAST_RECEIVED)

    @classmethod
    def first(cls) -> Start:
        """All messages that the channel has."""
        return cls(StartPosition.FIRST)

    @classmethod
    def at_sequence(cls, sequence: int) -> Start:
        """The message with this sequence, and later ones; the first one of the channel where it was deleted."""
        return cls(StartPosition.SEQUENCE_START, sequence=sequence)

    @classmethod
    def at_time(cls, time: datetime) -> Start:
        """
        Messages stored at this timezone-aware time or later, by the clock of the server. A time in the future counts as
        now. A durable or a queue group may also begin with messages that are older by up to the connection's
        ``timeout``.
        """
        return cls(StartPosition.TIME_DELTA_START, time=time)

    @classmethod
    def ago(cls, age: timedelta) -> Start:
        """Messages that are at most this old when the server gets the request."""
        return cls(StartPosition.TIME_DELTA_START, time=age)


@dataclass(frozen=True)
class _Moment:
    """Now, in nanoseconds by two clocks: one may be set back, and the other may stop while the machine sleeps."""

    wall: int = field(default_factory=time.time_ns)
    monotonic: int = field(default_factory=time.monotonic_ns)

    def since(self, earlier: _Moment) -> int:
        return max(self.wall - earlier.wall, self.monotonic - earlier.monotonic)


class Delivery:
    """
    A message that was delivered, and the event in it.

    As a context manager it gives the event, and acknowledges the message at the end of the block, unless the block has
    called :meth:`nak`. After an exception it does nothing, and the server redelivers the message after ``ack_wait``:
    the protocol has no other way to refuse a message.
    """

    __slots__ = ("_binding", "_decoded", "_message", "_subscription", "is_settled")

    def __init__(self, subscription: Subscription, message: MsgProto, binding: int) -> None:
        self._subscription = subscription
        self._message = message
        self._binding = binding
        self._decoded: DecodedEvent | DecodeError | None = None
        self.is_settled = False

    @property
    def message(self) -> MsgProto:
        """
        The message: channel (``subject``), ``sequence``, ``timestamp``, ``data``, ``redelivery_count``. One that is
        redelivered inside of the block takes the place of the earlier one.
        """
        return self._message

    @property
    def subject(self) -> str:
        """Name of the channel."""
        return self._message.subject

    @property
    def sequence(self) -> int:
        """Sequence in the channel."""
        return self._message.sequence

    @property
    def deliveries(self) -> int:
        """How often the message was delivered, this time included."""
        return self._message.redelivery_count + 1

    @property
    def error(self) -> DecodeError | None:
        """Why there is no event in the message, or None."""
        decoded = self._decode()
        return decoded if isinstance(decoded, DecodeError) else None

    @property
    def event(self) -> DecodedEvent:
        """
        The event.

        Raises:
            DecodeError: ``error``, where there is none. The message is redelivered until :meth:`ack` or
                :meth:`reject` is called.
        """
        decoded = self._decode()
        if isinstance(decoded, DecodeError):
            raise decoded
        return decoded

    async def ack(self) -> None:
        """
        Acknowledge. The server does not confirm it. A message whose acknowledgement is lost is redelivered, and so is
        one that was delivered before a reconnect and is acknowledged after it.

        Raises:
            StanError: The subscription, or the connection, is over.
            DeliveryError: ``connection-closed``: that of NATS.
        """
        if not self.is_settled:
            await self._subscription._acknowledge(self._message, self._binding)
            self.is_settled = True

    async def nak(self, delay: float | None = None) -> None:
        """
        Leave the message unacknowledged, so that the server redelivers it after the subscription's ``ack_wait``.

        Args:
            delay: For code that handles deliveries of JetStream as well; the protocol has no delay, so it is ignored.
        """
        self.is_settled = True

    async def reject(self, reason: str = "") -> None:
        """
        Acknowledge a message that can never be processed, and log it. NATS Streaming has no dead letters.

        Args:
            reason: Why, for the log.

        Raises:
            StanError, DeliveryError: As :meth:`ack` does.
        """
        if not self.is_settled:
            _log.warning("Message %d of channel %s was rejected: %s", self.sequence, self.subject, reason)
            await self.ack()

    async def __aenter__(self) -> DecodedEvent:
        event = self.event
        self._subscription._entered[self._message.sequence] = self
        return event

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._subscription._entered.pop(self._message.sequence, None)
        if error is None:
            await self.ack()

    def __repr__(self) -> str:
        return f"Delivery({self._message.subject!r}, {self._message.sequence}, {self._message.redelivery_count})"

    def _decode(self) -> DecodedEvent | DecodeError:
        if self._decoded is None:
            try:
                self._decoded = self._subscription._decode(self._message)
            except DecodeError as error:
                self._decoded = error
        return self._decoded


class Subscription:
    """
    Asynchronous iterator over the deliveries of a channel; made by :meth:`Connection.subscribe`.

    It ends when the subscription does. Every message gives one :class:`Delivery`, even when it is not a CloudEvent. A
    message that is redelivered while it waits here, or is inside of its block, is given once. As a context manager it
    closes the subscription at the end of the block.

    Attributes:
        channel: Name of the channel.
        queue: Queue group, or ``""``.
        durable: Name of the durable, or ``""``.
        is_over: Whether it was closed, or has failed.
    """

    def __init__(
        self,
        channel: str,
        *,
        start: Start,
        queue: str,
        durable: str,
        max_in_flight: int,
        ack_wait: int,
        decode: Callable[[MsgProto], DecodedEvent],
        on_end: Callable[[Subscription], object],
    ) -> None:
        check_channel(channel)
        check_kind("start", start, Start, "a Start, as Start.first() makes it")
        check_kind("queue", queue, str, "a str")
        check_kind("durable", durable, str, "a str")
        check_count("max_in_flight", max_in_flight)
        check_count("ack_wait", ack_wait)
        if queue and ":" in durable:
            raise EncodeError(
                ErrorCode.INVALID_SUBJECT,
                f"durable of a queue group must be a name without a colon, got {preview(durable)}",
                requirement="ST-SUB-08",
            )
        self.channel = channel
        self.queue = queue
        self.durable = durable
        self._start = start
        # The first request that was answered, and the age of the start then.
        self._asked: _Moment | None = None
        self._age = 0
        self._not_before = 0  # messages with an earlier timestamp were not asked for
        self._max_in_flight = max_in_flight
        self._ack_wait = ack_wait
        self._decode = decode
        self._on_end = on_end

        self._session: Session | None = None
        self._listener: NatsSubscription | None = None
        self._ack_inbox = ""
        self._binding = 0  # how often it was bound to a session
        self.is_over = False
        self._error: CeNatsError | None = None

        self._early: list[MsgProto] = []  # received before the subscription was bound, so that none can be acknowledged
        self._ready: OrderedDict[int, MsgProto] = OrderedDict()  # by sequence
        self._entered: dict[int, Delivery] = {}  # likewise
        self._unsettled: set[int] = set()  # sequences that were delivered and not acknowledged
        self._last = 0  # the highest sequence, and the latest timestamp
        self._latest = 0
        self._arrived = asyncio.Event()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Delivery:
        """
        The next message.

        Raises:
            StanError: The connection is lost, or the server refused the subscription after a reconnect.
        """
        while True:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self.is_over:
                raise StopAsyncIteration
            if self._ready:
                message = self._ready.popitem(last=False)[1]
                if message.timestamp >= self._not_before:
                    return Delivery(self, message, self._binding)
                with suppress(CeNatsError):  # otherwise it is redelivered, and comes here again
                    await self._acknowledge(message, self._binding)
                continue
            self._arrived.clear()
            await self._arrived.wait()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except CeNatsError:
            if error is None and self._error is None:
                raise

    async def close(self) -> None:
        """
        Stop receiving. The server keeps the position of a durable, and the next subscription continues there. Does
        nothing where the subscription is over.

        Raises:
            StanError: The server did not answer, or refused. The subscription is over nevertheless.
            DeliveryError: ``connection-closed``: that of NATS.
        """
        await self._end(remove=False)

    async def unsubscribe(self) -> None:
        """
        Stop receiving, and remove the durable from the server.

        Raises:
            StanError: The server did not answer, or refused; ``not-open`` where the subscription is over, so that its
                durable cannot be removed any more.
            DeliveryError: ``connection-closed``: that of NATS.
        """
        if self.is_over:
            raise StanError(ErrorCode.NOT_OPEN, _INVALID)
        await self._end(remove=True)

    async def _end(self, *, remove: bool) -> None:
        if self.is_over:
            return
        session, inbox = self._session, self._ack_inbox
        await self._finish()
        self._on_end(self)
        if session is None:
            if remove:
                raise StanError(ErrorCode.NOT_OPEN, _INVALID)
            return
        await session.end_subscription(self._ending(session, inbox), remove=remove)

    # --- For the connection -------------------------------------------------------------------------------------------

    async def _bind(self, session: Session) -> None:
        """
        Subscribe, or continue with another session where the last one was lost.

        Raises:
            StanError, DeliveryError, DecodeError: As :meth:`Session.ask`.
        """
        self._binding += 1
        inbox = session.nc.new_inbox()
        listener = await listen(session.nc, inbox, self._receive)
        asked = _Moment()
        age = self._age_of_start(asked)
        request = self._request(session, inbox, age)
        try:
            late = "stan: subscribe request timeout"
            response = await session.ask(session.subjects.sub_requests, request, SubscriptionResponse, late)
            check_subject(response.ack_inbox, DecodeError)
            if request.start_time_delta and _Moment().monotonic - asked.monotonic > session.timeout * 1e9:
                # The event loop was busy before it sent the request, which may have been read too late for its delta.
                raise StanError(ErrorCode.TIMEOUT, late)
        except BaseException as error:
            await unlisten(listener)
            self._early.clear()
            if not (isinstance(error, StanError) and error.is_refusal):
                await self._withdraw(session, inbox)
            raise
        if self.is_over:  # ended meanwhile
            await unlisten(listener)
            await self._withdraw(session, inbox)
            return
        if self._asked is None:
            self._asked, self._age = asked, age
            if age and isinstance(self._start.time, datetime) and not (self.queue or self.durable):
                self._not_before = _nanoseconds(self._start.time)
        self._session, self._listener, self._ack_inbox = session, listener, response.ack_inbox
        early, self._early = self._early, []
        for message in early:
            self._accept(message)

    async def _has_next(self, timeout: float) -> bool:
        """Wait until the iterator has something to give or to raise; False after so many seconds without."""
        if not self._ready and not self.is_over:
            self._arrived.clear()
            arrival = asyncio.ensure_future(self._arrived.wait())
            try:
                # Not wait_for(), which before Python 3.12 may forget that it was cancelled.
                await asyncio.wait([arrival], timeout=timeout)
            finally:
                arrival.cancel()
        return bool(self._ready) or self.is_over

    async def _unbind(self) -> None:
        """Called when the session is lost. What it delivered will be redelivered."""
        self._session = None
        self._early.clear()
        self._ready.clear()
        listener, self._listener = self._listener, None
        if listener is not None:
            await unlisten(listener)

    async def _finish(self, error: CeNatsError | None = None) -> None:
        """End the subscription, with an error where it has failed."""
        self.is_over = True
        self._error = error
        await self._unbind()
        self._arrived.set()

    async def _acknowledge(self, message: MsgProto, binding: int) -> None:
        if self.is_over:
            raise self._error or StanError(ErrorCode.NOT_OPEN, _INVALID)
        session = self._session
        if session is None or binding != self._binding:
            # Its session is lost. In the next one the sequence may be that of another message, in a new store.
            return
        ack = Ack(subject=message.subject, sequence=message.sequence)
        with delivery_errors(self.channel, session.nc):
            await session.nc.publish(self._ack_inbox, ack.encode())
        self._unsettled.discard(message.sequence)
        self._ready.pop(message.sequence, None)

    def _age_of_start(self, now: _Moment) -> int:
        """How long ago the subscription begins, in nanoseconds; 0 for now, and for other kinds of start."""
        if self._asked is not None:
            return self._age + now.since(self._asked)
        if isinstance(self._start.time, timedelta):
            return max(0, self._start.time // _MICROSECOND * 1000)
        return max(0, now.wall - _nanoseconds(self._start.time)) if self._start.time is not None else 0

    def _request(self, session: Session, inbox: str, age: int) -> SubscriptionRequest:
        position, sequence, delta = self._start.position, self._start.sequence, age
        if self._last:
            # Continue at the first message without an acknowledgement.
            position, sequence = StartPosition.SEQUENCE_START, min(self._unsettled, default=self._last + 1)
        elif self._asked is not None and position is StartPosition.LAST_RECEIVED and not self.queue:
            position = StartPosition.FIRST  # the channel was empty
        elif self._asked is not None and position in (StartPosition.NEW_ONLY, StartPosition.LAST_RECEIVED):
            position = StartPosition.TIME_DELTA_START
        if age and (self._asked is not None or isinstance(self._start.time, datetime)):
            # The server subtracts delta from the time at which it reads the request, within the timeout.
            delta += int(session.timeout * 1e9)
        return SubscriptionRequest(
            client_id=session.client_id,
            subject=self.channel,
            q_group=self.queue,
            inbox=inbox,
            max_in_flight=self._max_in_flight,
            ack_wait_in_secs=self._ack_wait,
            durable_name=self.durable,
            start_position=position,
            start_sequence=sequence if position is StartPosition.SEQUENCE_START else 0,
            # The largest age is about 292 years.
            start_time_delta=min(delta, 2**63 - 1) if position is StartPosition.TIME_DELTA_START else 0,
        )

    def _ending(self, session: Session, inbox: str) -> UnsubscribeRequest:
        return UnsubscribeRequest(
            client_id=session.client_id, subject=self.channel, inbox=inbox, durable_name=self.durable
        )

    async def _withdraw(self, session: Session, inbox: str) -> None:
        """End a subscription that the server may have made without its answer arriving, by its inbox."""
        if session.subjects.sub_close_requests:
            with suppress(nats.errors.Error):
                await session.nc.publish(session.subjects.sub_close_requests, self._ending(session, inbox).encode())

    async def _receive(self, message: Msg) -> None:
        try:
            received = MsgProto.decode(message.data)
        except DecodeError as error:
            # Without a sequence it cannot be acknowledged; a streaming server redelivers it.
            _log.warning("A malformed message for channel %s was dropped: %s", self.channel, error)
            return
        if self._session is None:
            self._early.append(received)
        else:
            self._accept(received)

    def _accept(self, received: MsgProto) -> None:
        sequence = received.sequence
        if sequence <= self._last and received.timestamp > self._latest:
            # A later message with a lower sequence: the server has lost its store, and numbers from 1 again.
            self._unsettled.clear()
            self._last = 0
        self._last = max(self._last, sequence)
        self._latest = max(self._latest, received.timestamp)
        self._unsettled.add(sequence)
        held = self._entered.get(sequence)
        if held is not None and held._message.timestamp == received.timestamp:
            held._message, held._binding = received, self._binding
        else:
            self._ready[sequence] = received  # replaces an earlier delivery
            self._arrived.set()


def _nanoseconds(time: datetime) -> int:
    """Nanoseconds since 1970, UTC."""
    return (time - _EPOCH) // _MICROSECOND * 1000
