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
from ..aio._log_fields import DELIVERIES, DESTINATION, SEQUENCE, event_fields, with_event
from ..codec.event import DecodedEvent
from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, StanError, preview
from ..subjects import check_subject
from ._options import check_count, check_kind
from ._session import Session, check_channel, subscribe_inbox, unsubscribe_inbox
from .wire import Ack, MsgProto, StartPosition, SubscriptionRequest, SubscriptionResponse, UnsubscribeRequest

_log: Final = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)
_INVALID: Final = "stan: invalid subscription"


@dataclass(frozen=True)
class Start:
    """
    Position at which a subscription begins; created with one of its class methods. An existing durable or queue group
    continues at its own position, and the start is ignored.

    Attributes:
        position: Kind of start, as in the protocol.
        sequence: First sequence, for ``SEQUENCE_START``.
        time: Time or age of the first message, for ``TIME_DELTA_START``.

    Raises:
        EncodeError: ``invalid-message``: an attribute has another type, or a time is not timezone-aware.
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
        """Start with messages that are published from now on."""
        return cls()

    @classmethod
    def last(cls) -> Start:
        """Start with the last message of the channel."""
        return cls(StartPosition.LAST_RECEIVED)

    @classmethod
    def first(cls) -> Start:
        """Start with the first message of the channel."""
        return cls(StartPosition.FIRST)

    @classmethod
    def at_sequence(cls, sequence: int) -> Start:
        """Start with the message with this sequence, or with the first message of the channel if it was deleted."""
        return cls(StartPosition.SEQUENCE_START, sequence=sequence)

    @classmethod
    def at_time(cls, time: datetime) -> Start:
        """
        Start with messages stored at this timezone-aware time or later, by the clock of the server. A time in the
        future means now. A durable or a queue group may begin with messages that are older by up to the connection's
        ``timeout``.
        """
        return cls(StartPosition.TIME_DELTA_START, time=time)

    @classmethod
    def ago(cls, age: timedelta) -> Start:
        """Start with messages that are at most this old when the server reads the request."""
        return cls(StartPosition.TIME_DELTA_START, time=age)


@dataclass(frozen=True)
class _Moment:
    """The time in nanoseconds, by two clocks: one may be set back, the other may stop while the machine sleeps."""

    wall: int = field(default_factory=time.time_ns)
    monotonic: int = field(default_factory=time.monotonic_ns)

    def since(self, earlier: _Moment) -> int:
        return max(self.wall - earlier.wall, self.monotonic - earlier.monotonic)


class Delivery:
    """
    A message that was delivered, and the event in it.

    As a context manager it returns the event, and acknowledges the message at the end of the block, unless the block
    has called :meth:`nak`. After an exception it does nothing, and the server redelivers the message after
    ``ack_wait``: the protocol has no negative acknowledgement.

    Attributes:
        is_settled: Whether it was acknowledged, or :meth:`nak` was called.
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
        The message: channel (``subject``), ``sequence``, ``timestamp``, ``data``, ``redelivery_count``. A redelivery
        during the block replaces it.
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
        """Reason for which there is no event in the message, or None."""
        decoded = self._decode()
        return decoded if isinstance(decoded, DecodeError) else None

    @property
    def event(self) -> DecodedEvent:
        """
        The event.

        Raises:
            DecodeError: ``error``, if there is no event. The message is redelivered until :meth:`ack` or
                :meth:`reject` is called.
        """
        decoded = self._decode()
        if isinstance(decoded, DecodeError):
            raise decoded
        return decoded

    async def ack(self) -> None:
        """
        Acknowledge the message. The server does not confirm that. A message whose acknowledgement is lost is
        redelivered, and so is a message that was delivered before a reconnect and is acknowledged after it.

        Raises:
            StanError: The subscription or the connection is closed.
            DeliveryError: ``connection-closed``: the NATS connection.
        """
        if not self.is_settled:
            await self._subscription._acknowledge(self._message, self._binding)
            self.is_settled = True

    async def nak(self, delay: float | None = None) -> None:
        """
        Leave the message unacknowledged, so that the server redelivers it after the subscription's ``ack_wait``.

        Args:
            delay: Ignored, because the protocol has no delay; for code that also handles deliveries of JetStream.
        """
        self.is_settled = True

    async def reject(self, reason: str = "") -> None:
        """
        Acknowledge a message that can never be processed, and log it. NATS Streaming has no dead letters.

        Args:
            reason: Reason, for the log.

        Raises:
            StanError, DeliveryError: As :meth:`ack` does.
        """
        if not self.is_settled:
            event = None if self.error else self.event
            place = f"channel {self.subject}, sequence {self.sequence}, delivery {self.deliveries}"
            fields = {DESTINATION: self.subject, SEQUENCE: self.sequence, DELIVERIES: self.deliveries}
            extra = {**fields, **event_fields(event)}
            _log.warning("%s: rejected: %s", with_event(place, event), reason, extra=extra)
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
    Asynchronous iterator over the deliveries of a channel; returned by :meth:`Connection.subscribe`.

    Iteration ends when the subscription is closed. Every message is yielded as a :class:`Delivery`, even if it is not a
    CloudEvent. A message that is redelivered while it is queued or in its block is yielded once. As a context manager
    it closes the subscription at the end of the block.

    Attributes:
        channel: Name of the channel.
        queue: Queue group, or ``""``.
        durable: Name of the durable, or ``""``.
        is_closed: Whether it was closed, or has failed.
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
        check_kind("start", start, Start, "a Start, such as Start.first()")
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
        # Time of the first request that was answered, and the age of the start then.
        self._first_request: _Moment | None = None
        self._age = 0
        self._not_before = 0  # messages with an earlier timestamp are skipped
        self._max_in_flight = max_in_flight
        self._ack_wait = ack_wait
        self._decode = decode
        self._on_end = on_end

        self._session: Session | None = None
        self._inbox: NatsSubscription | None = None
        self._ack_inbox = ""
        self._binding = 0  # number of sessions that it was bound to
        self.is_closed = False
        self._error: CeNatsError | None = None

        self._early: list[MsgProto] = []  # received before the subscription was bound, so not to be acknowledged yet
        self._ready: OrderedDict[int, MsgProto] = OrderedDict()  # by sequence
        self._entered: dict[int, Delivery] = {}  # by sequence
        self._unsettled: set[int] = set()  # sequences of unacknowledged messages
        self._last = 0  # highest sequence
        self._latest = 0  # latest timestamp
        self._arrived = asyncio.Event()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Delivery:
        """
        Return the next message.

        Raises:
            StanError: The connection is lost, or the server refused the subscription after a reconnect.
        """
        while True:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self.is_closed:
                raise StopAsyncIteration
            if self._ready:
                message = self._ready.popitem(last=False)[1]
                if message.timestamp >= self._not_before:
                    return Delivery(self, message, self._binding)
                with suppress(CeNatsError):  # after an error it is redelivered, and skipped again
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
        nothing if closed already.

        Raises:
            StanError: The server did not answer, or refused. The subscription is closed nevertheless.
            DeliveryError: ``connection-closed``: the NATS connection.
        """
        await self._end(remove=False)

    async def unsubscribe(self) -> None:
        """
        Stop receiving, and remove the durable from the server.

        Raises:
            StanError: The server did not answer, or refused; ``not-open`` if the subscription is closed, so that its
                durable can no longer be removed.
            DeliveryError: ``connection-closed``: the NATS connection.
        """
        if self.is_closed:
            raise StanError(ErrorCode.NOT_OPEN, _INVALID)
        await self._end(remove=True)

    async def _end(self, *, remove: bool) -> None:
        if self.is_closed:
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
        """Subscribe, for the first time or after the loss of the last session."""
        self._binding += 1
        inbox = session.nc.new_inbox()
        subscribed = await subscribe_inbox(session.nc, inbox, self._receive)
        requested = _Moment()
        age = self._age_of_start(requested)
        request = self._request(session, inbox, age)
        try:
            late = "stan: subscribe request timeout"
            response = await session.request(session.subjects.sub_requests, request, SubscriptionResponse, late)
            check_subject(response.ack_inbox, DecodeError)
            if request.start_time_delta and _Moment().monotonic - requested.monotonic > session.timeout * 1e9:
                # The event loop was blocked before it sent the request, which the server may have read too late for
                # its delta.
                raise StanError(ErrorCode.TIMEOUT, late)
        except BaseException as error:
            await unsubscribe_inbox(subscribed)
            self._early.clear()
            if not (isinstance(error, StanError) and error.is_refusal):
                await self._withdraw(session, inbox)
            raise
        if self.is_closed:  # meanwhile
            await unsubscribe_inbox(subscribed)
            await self._withdraw(session, inbox)
            return
        if self._first_request is None:
            self._first_request, self._age = requested, age
            if age and isinstance(self._start.time, datetime) and not (self.queue or self.durable):
                self._not_before = _nanoseconds(self._start.time)
        self._session, self._inbox, self._ack_inbox = session, subscribed, response.ack_inbox
        early, self._early = self._early, []
        for message in early:
            self._accept(message)

    async def _has_next(self, timeout: float) -> bool:
        """Wait until the iterator has a message or an error; return False after ``timeout`` seconds without one."""
        if not self._ready and not self.is_closed:
            self._arrived.clear()
            arrival = asyncio.ensure_future(self._arrived.wait())
            try:
                # Not wait_for(), which before Python 3.12 may suppress a cancellation.
                await asyncio.wait([arrival], timeout=timeout)
            finally:
                arrival.cancel()
        return bool(self._ready) or self.is_closed

    async def _unbind(self) -> None:
        """Leave a session that is lost. Its messages will be redelivered."""
        self._session = None
        self._early.clear()
        self._ready.clear()
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await unsubscribe_inbox(inbox)

    async def _finish(self, error: CeNatsError | None = None) -> None:
        """End the subscription, with an error if it has failed."""
        self.is_closed = True
        self._error = error
        await self._unbind()
        self._arrived.set()

    async def _acknowledge(self, message: MsgProto, binding: int) -> None:
        if self.is_closed:
            raise self._error or StanError(ErrorCode.NOT_OPEN, _INVALID)
        session = self._session
        if session is None or binding != self._binding:
            # Its session is lost. In a later session, with a new store, another message may have its sequence.
            return
        ack = Ack(subject=message.subject, sequence=message.sequence)
        with delivery_errors(self.channel, session.nc):
            await session.nc.publish(self._ack_inbox, ack.encode())
        self._unsettled.discard(message.sequence)
        self._ready.pop(message.sequence, None)

    def _age_of_start(self, now: _Moment) -> int:
        """Return the age of the start in nanoseconds; 0 for now, and for starts without a time."""
        if self._first_request is not None:
            return self._age + now.since(self._first_request)
        if isinstance(self._start.time, timedelta):
            return max(0, self._start.time // _MICROSECOND * 1000)
        return max(0, now.wall - _nanoseconds(self._start.time)) if self._start.time is not None else 0

    def _request(self, session: Session, inbox: str, age: int) -> SubscriptionRequest:
        position, sequence, delta = self._start.position, self._start.sequence, age
        if self._last:
            # Continue at the first message without an acknowledgement.
            position, sequence = StartPosition.SEQUENCE_START, min(self._unsettled, default=self._last + 1)
        elif self._first_request is not None and position is StartPosition.LAST_RECEIVED and not self.queue:
            position = StartPosition.FIRST  # the channel was empty
        elif self._first_request is not None and position in (StartPosition.NEW_ONLY, StartPosition.LAST_RECEIVED):
            position = StartPosition.TIME_DELTA_START
        if age and (self._first_request is not None or isinstance(self._start.time, datetime)):
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
        """End, by its inbox, a subscription that the server may have created without the answer arriving."""
        if session.subjects.sub_close_requests:
            with suppress(nats.errors.Error):
                await session.nc.publish(session.subjects.sub_close_requests, self._ending(session, inbox).encode())

    async def _receive(self, message: Msg) -> None:
        try:
            received = MsgProto.decode(message.data)
        except DecodeError as error:
            # Without a sequence it cannot be acknowledged; a streaming server redelivers it.
            _log.warning("channel %s: a malformed message was dropped: %s", self.channel, error)
            return
        if self._session is None:
            self._early.append(received)
        else:
            self._accept(received)

    def _accept(self, received: MsgProto) -> None:
        sequence = received.sequence
        if sequence <= self._last and received.timestamp > self._latest:
            # A later message with a lower sequence: the server has lost its store, and starts again at 1.
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
    """Return nanoseconds since 1970, UTC."""
    return (time - _EPOCH) // _MICROSECOND * 1000
