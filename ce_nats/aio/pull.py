"""
Consume events from JetStream: pulled, settled one by one, put aside where nothing else helps.

    async with PullConsumer(js, "ORDERS", "billing", dead_letter="dead.orders") as consumer:
        async for delivery in consumer:
            async with delivery as event:
                await charge(event)

Leaving the inner block acknowledges the message; an exception has it delivered again, later each time, and goes on to
the caller. What is no CloudEvent, and what failed too often, becomes a dead letter: its stream has acknowledged it
before the original is terminated. ``ce_nats.deadletter.decide`` is the whole policy.

Every message that is held, in a block or waiting for one, is reported as being in progress at a third of the consumer's
``ack_wait``, so that nobody else gets it meanwhile. (Code that blocks the event loop for longer blocks that too.)

Requests go out as nats-py would send them, but are followed here: its ``fetch()`` takes a message that somebody
published with a header ``Status`` for one of the server's and drops it. One thing cannot be helped from here: a header
block shorter than ``NATS/1.0``, which any client may publish, ends the loop in which nats-py 2.16 reads its connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from ..attributes import ExtensionTypes
from ..binary import Dialect
from ..binding import from_nats_message
from ..deadletter import Action, Backoff, DeadLetter, Decision, Outcome, Reason, RetryPolicy, decide
from ..errors import ApiError, CeNatsError, DecodeError, DeliveryError, EncodeError, ErrorCode, Reject
from ..event import DecodedEvent, NotDelivered
from ..message import Headers, NatsMessage, check_subject
from ..mode import MARKERS, ContentMode, detect_mode
from ..wire.ack_subject import ACK_PREFIX
from ._nats import api_prefix, api_timeout, client_of, unsubscribe_and_drain
from .checks import check_config, check_jetstream
from .deadletter import original, store
from .jetstream import as_message
from .nats_errors import delivery_errors
from .publish import round_trip
from .streams import StreamApi, check_stream_on
from .watch import ConnectionWatch, Denial, answered

__all__ = ["Delivery", "PullConsumer"]

_log: Final = logging.getLogger(__name__)

_SIZE: Final = "Nats-Msg-Size"
_DEFAULT_ACK_WAIT: Final = 30.0
_BACKOFF: Final = Backoff()
# A request lives so long on the server, which says at the heartbeat's interval that it still does.
_EXPIRES_SECONDS: Final = 30.0
_HEARTBEAT_SECONDS: Final = 5.0
_SILENCE_SECONDS: Final = 2.5 * _HEARTBEAT_SECONDS
# How soon a reconnect is noticed, and a refused request made again.
_TICK_SECONDS: Final = 0.2
# The server drops a client that has more than 64 MiB waiting.
_MOST_BYTES: Final = 16 * 2**20
# Statuses that another request would only get again: "Consumer Deleted", "Consumer is push based", and what the
# consumer's own limits forbid ("Exceeded MaxRequestBatch of 10").
_DELETED: Final = "consumer deleted"
_FINAL: Final = (_DELETED, "consumer is push", "exceeded maxrequest", "bad request")
# All that was asked for is on its way. Where replicas note first how far the consumer is, this overtakes the messages.
_COMPLETED: Final = "batch completed"

# Can be decoded in every mode.
_EVENT: Final = NatsMessage(
    data=b'{"specversion":"1.0","id":"1","source":"s","type":"t"}',
    headers=Headers([("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "s"), ("ce-type", "t")]),
)


class Delivery:
    """
    An event that was delivered, and is not settled yet.

    As a context manager it gives the event and settles the message at the end of the block, unless the block has done
    so: acknowledged; delivered again after the policy's delay where there was an exception; a dead letter after
    :class:`Reject`, or after too many deliveries; released to others at once where the block was cancelled. The
    exception goes on in any case.
    """

    def __init__(self, consumer: PullConsumer, message: Msg) -> None:
        self._consumer = consumer
        self._event: DecodedEvent | None = None
        self._error: CeNatsError | None = None
        self._message = message
        self.is_settled = False
        self.is_entered = False

    @property
    def event(self) -> DecodedEvent:
        """
        The event; on a consumer with ``headers_only``, data is a :class:`~ce_nats.event.NotDelivered`.

        Raises:
            CeNatsError: Why there is none. Iteration gives no such delivery; ``on_error`` may get one.
        """
        if self._event is None:
            assert self._error is not None
            raise self._error
        return self._event

    @property
    def message(self) -> Msg:
        """nats-py's message. One that is delivered again while it is held takes the place of the earlier one."""
        return self._message

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._message.metadata.stream

    @property
    def sequence(self) -> int:
        """Sequence in the stream."""
        return self._message.metadata.sequence.stream

    @property
    def deliveries(self) -> int:
        """How often the message was delivered, this time included."""
        return self._message.metadata.num_delivered

    async def ack(self) -> None:
        """
        Acknowledge: the event is done with.

        Raises:
            DeliveryError: ``connection-closed`` or ``buffer-full``: the acknowledgement was not sent; with
                ``double_ack`` also ``timeout`` or ``no-responders``: the server did not confirm it.
        """
        await self._consumer._settle(self, Decision(Action.ACK), None)

    async def retry(self, delay: float | None = None) -> None:
        """
        Have the message delivered again.

        Args:
            delay: Seconds until then; by default what the policy says.

        Raises:
            DeliveryError: ``connection-closed`` or ``buffer-full``: it was not sent; the message is redelivered after
                ``ack_wait``.
        """
        seconds = self._consumer.policy.delay(self.deliveries) if delay is None else delay
        await self._consumer._settle(self, Decision(Action.RETRY, delay=seconds), None)

    async def reject(self, reason: str = "") -> None:
        """
        Make the message a dead letter. Where that cannot be stored, the message is delivered again later.

        Raises:
            DeliveryError: As :meth:`retry` does.
        """
        await self._consumer._settle(self, Decision(Action.DEAD_LETTER, reason=Reason.REJECTED), Reject(reason))

    async def __aenter__(self) -> DecodedEvent:
        self.is_entered = True
        return self.event

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_settled:
            return
        decision = decide(_outcome(error), self.deliveries, self._consumer.policy)
        try:
            await self._consumer._settle(self, decision, error)
        except DeliveryError as fault:
            if error is None:
                raise
            self._consumer._report(fault, self)
        except asyncio.CancelledError:
            # A dead letter was being stored; if it was, its id keeps it from being stored again.
            await self._consumer._settle(self, decide(Outcome.RELEASED, self.deliveries, self._consumer.policy), None)
            raise

    def __repr__(self) -> str:
        return f"Delivery({self.stream!r}, {self.sequence}, deliveries={self.deliveries}, event={self._event!r})"


@dataclass(slots=True)
class _Request:
    """A request for messages that the server has not finished."""

    reply: str
    batch: int
    left: int
    reconnects: int
    heard: float


class PullConsumer:
    """
    Asynchronous iterator over the deliveries of a JetStream consumer, and a context manager around it.

    Leaving the context gives back at once what was fetched and not handled. Blocks of deliveries that still run then
    settle their messages themselves, but nothing keeps the messages for them any more. Several tasks may iterate.

    Iteration survives reconnects and restarts of the server, as long as nats-py reconnects. Tombstones of key-value
    buckets are acknowledged and skipped.

    With ``headers_only`` events have their attributes, and ``NotDelivered`` for data where there is some. A structured
    event has its attributes in the payload, so it is read from the stream, and complete.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        consumer: Name of a durable pull consumer with explicit acknowledgements.
        dead_letter: Subject for dead letters, which a stream has to listen on. None: they are terminated without a
            copy, and what is left of them is what the stream keeps.
        create: The consumer's configuration, where there is none of that name yet; name and kind are filled in. One
            that is there is used as it is.
        max_deliveries: Deliveries after which a message is a dead letter; as the server counts them, so that a delivery
            that was given back is one too. A consumer whose own ``max_deliver`` is lower sets the limit; leave that
            unlimited, as it is by default: the server gives up in silence, even where no dead letter could be stored.
        backoff: Delay before each further delivery: a :class:`~ce_nats.deadletter.Backoff`, or seconds one by one.
        prefetch: Most messages fetched and not handled yet.
        double_ack: Wait until the server confirms each acknowledgement.
        mode: As for :func:`ce_nats.from_nats_message`, and the next three too.
        dialect: Whose binary mode the senders write.
        parse_data: False gives data as bytes.
        extension_types: Python types of extension attributes.
        on_error: Called with what the consumer got over by itself: a dead letter that could not be stored (the original
            is delivered again later), an exception of a handler of :meth:`run`; and with ``permission-denied`` for an
            acknowledgement, which also ends the iteration. By default it is logged.

    Raises:
        EncodeError: ``invalid-subject``: ``dead_letter``, or a name, is none.
        DecodeError: ``invalid-message``: an option of the decoder makes no sense.
        ValueError: A number is out of its range.
        TypeError: ``js`` or ``create`` is something else.
    """

    def __init__(
        self,
        js: JetStreamContext,
        stream: str,
        consumer: str,
        *,
        dead_letter: str | None,
        create: ConsumerConfig | None = None,
        max_deliveries: int = 5,
        backoff: Backoff | Sequence[float] = _BACKOFF,
        prefetch: int = 64,
        double_ack: bool = False,
        mode: ContentMode | None = None,
        dialect: Dialect = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        on_error: Callable[[Exception, Delivery | None], None] | None = None,
    ) -> None:
        check_jetstream(js)
        check_config("create", create)
        if dead_letter is not None:
            check_subject(dead_letter)
        for name in (stream, consumer):
            _check_name(name)
        if prefetch < 1:
            raise ValueError(f"prefetch is 1 or more, not {prefetch}")
        self.policy = RetryPolicy(max_deliveries, backoff)
        self._js = js
        self._nc = client_of(js)
        self._api = StreamApi.of(js)
        self._stream = stream
        self._name = consumer
        self._dead_letter = dead_letter
        self._create = create
        self._prefetch = prefetch
        self._double_ack = double_ack
        self._mode = mode
        self._decode_message = partial(
            from_nats_message, mode=mode, dialect=dialect, parse_data=parse_data, extension_types=extension_types
        )
        self._decode_message(_EVENT)  # an option that makes no sense would make a dead letter of every message
        self._on_error = on_error

        self._headers_only = False
        self._subscription: Subscription | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: deque[Delivery] = deque()
        self._held: dict[int, Delivery] = {}  # by stream sequence; those that are ready are among them
        self._arrived = asyncio.Event()
        self._wanted = asyncio.Event()
        self._request: _Request | None = None
        self._requests = 0
        self._not_before = 0.0
        self._is_over = False
        self._fault: DeliveryError | None = None
        self._inbox = ""

    # --- The consumer's life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> PullConsumer:
        """
        Find or make the consumer, and begin to fetch.

        Raises:
            DeliveryError: ``stream-not-found``; ``consumer-not-found``; ``request-refused``: it cannot be created;
                ``incompatible-config``: it is a push consumer, or its ``ack_policy`` is not explicit;
                ``no-responders``: JetStream is not enabled, or no stream listens on the subject for dead letters;
                ``timeout``; ``permission-denied``.
        """
        if self._dead_letter is not None:
            await check_stream_on(self._js, self._dead_letter)
        config = await self._bind()
        if config.deliver_subject or config.ack_policy != AckPolicy.EXPLICIT:
            raise self._failure(
                ErrorCode.INCOMPATIBLE_CONFIG, "it must be a pull consumer whose messages are acknowledged one by one"
            )
        if config.max_deliver is not None and 0 < config.max_deliver < self.policy.max_deliveries:
            self.policy = RetryPolicy(config.max_deliver, self.policy.backoff)
        self._headers_only = bool(config.headers_only)
        waits = [config.ack_wait or _DEFAULT_ACK_WAIT, *(config.backoff or ())]
        with delivery_errors(self._target):
            # What waits in nats-py is bounded by what was asked for, so nothing is dropped there.
            self._inbox = f"{self._nc.new_inbox()}.*"
            ConnectionWatch.of(self._nc).add(self._hear)
            self._subscription = await self._nc.subscribe(self._inbox, cb=self._receive, pending_bytes_limit=0)
        self._tasks = [
            asyncio.create_task(self._keep_asking(self._inbox.removesuffix("*"))),
            asyncio.create_task(self._keep_holding(min(waits) / 3)),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        asking, holding = self._tasks
        try:
            await _end(asking)
            await self._leave()
            await self._release()
        finally:
            ConnectionWatch.of(self._nc).remove(self._hear)
            await _end(holding)

    def stop(self) -> None:
        """Give out no further deliveries: iterations end, and with them :meth:`run`. What is being handled goes on."""
        self._is_over = True
        self._arrived.set()

    async def run(self, handler: Callable[[DecodedEvent], Awaitable[object]], *, concurrency: int = 1) -> None:
        """
        Give each event to a handler, until :meth:`stop`. A handler's exception has the message delivered again and is
        reported; :class:`Reject` makes it a dead letter.

        Args:
            handler: Called with one event.
            concurrency: Most handlers at a time. With more than one the order of events is lost.

        Raises:
            DeliveryError: As the iteration does.
            ValueError: ``concurrency`` is below 1.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency is 1 or more, not {concurrency}")
        workers = [asyncio.create_task(self._work(handler)) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, handler: Callable[[DecodedEvent], Awaitable[object]]) -> None:
        async for item in self:
            try:
                async with item as event:
                    await handler(event)
            except Exception as error:
                self._report(error, item)

    async def _bind(self) -> ConsumerConfig:
        """Configuration of the consumer, which is created where it may be."""
        try:
            return await self._api.consumer(self._stream, self._name)
        except ApiError as error:
            if self._create is None or error.code is not ErrorCode.CONSUMER_NOT_FOUND:
                raise
        config = self._create.evolve(name=self._name, durable_name=self._name, ack_policy=AckPolicy.EXPLICIT)
        return await self._api.create_consumer(self._stream, self._name, config.as_dict())

    async def _leave(self) -> None:
        """Have the server stop sending, and take in what it has sent until then."""
        subscription = self._subscription
        assert subscription is not None
        if self._nc.is_connected:
            with suppress(CeNatsError, nats.errors.Error):
                await unsubscribe_and_drain(subscription, lambda: round_trip(self._nc))
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()

    async def _release(self) -> None:
        """Give back what nobody handles."""
        self._ready.clear()
        for item in [item for item in self._held.values() if not item.is_entered]:
            try:
                await self._settle(item, decide(Outcome.RELEASED, item.deliveries, self.policy), None)
            except DeliveryError as fault:
                self._report(fault, item)
        if self._nc.is_connected:
            with suppress(CeNatsError):
                await round_trip(self._nc)

    # --- Deliveries --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> PullConsumer:
        return self

    async def __anext__(self) -> Delivery:
        """
        The next event.

        Raises:
            DeliveryError: ``consumer-not-found``: it was deleted; ``incompatible-config``: its limits do not allow
                ``prefetch``; ``connection-closed``; ``permission-denied``: messages cannot be fetched, or not be
                acknowledged; ``not-open``.
        """
        if not self._tasks:
            raise self._failure(
                ErrorCode.NOT_OPEN, "it must be entered first: async with PullConsumer(...) as consumer"
            )
        while not self._is_over:
            if self._ready:
                item = self._ready.popleft()
                self._wanted.set()
                if await self._prepare(item):
                    return item
            elif self._fault is not None:
                raise self._fault
            else:
                self._arrived.clear()
                await self._arrived.wait()
        raise StopAsyncIteration

    async def _prepare(self, item: Delivery) -> bool:
        """Decode; False where the message is no event for a handler, and has been settled therefore."""
        outcome = Outcome.RECEIVED
        error: CeNatsError | None = None
        try:
            try:
                item._event = await self._decode(item.message)
                if decide(outcome, item.deliveries, self.policy).action is Action.HANDLE:
                    return True
            except DecodeError as fault:
                outcome = Outcome.MARKER if _is_marker(item.message) else Outcome.UNDECODABLE
                item._error = error = fault
            except DeliveryError as fault:
                outcome = Outcome.FAILED
                item._error = error = fault
                self._report(fault, item)
            await self._settle(item, decide(outcome, item.deliveries, self.policy), error)
        except DeliveryError as fault:
            self._report(fault, item)
        except asyncio.CancelledError:
            if not item.is_settled:
                self._ready.appendleft(item)
            raise
        return False

    async def _decode(self, message: Msg) -> DecodedEvent:
        if not self._headers_only or _is_marker(message):
            return self._decode_message(message)
        size = _size(message)
        try:
            mode = self._mode or detect_mode(message)
        except DecodeError:
            mode = ContentMode.STRUCTURED  # or no event at all; its payload knows
        if mode is ContentMode.STRUCTURED and size:
            stored = await original(self._js, message)
            if stored is not None:
                return self._decode_message(as_message(stored, self._stream))
        event = self._decode_message(message)
        if not size:
            return event
        return DecodedEvent(event._attributes, NotDelivered(size), is_json=event.is_json)

    async def _settle(self, item: Delivery, decision: Decision, error: BaseException | None) -> None:
        """
        Do what was decided.

        Raises:
            DeliveryError: As :meth:`Delivery.ack` does.
        """
        if item.is_settled or item.message.is_acked:
            self._let_go(item)
            return
        if decision.action is Action.DEAD_LETTER and not await self._bury(item, decision, error):
            decision = Decision(Action.RETRY, delay=self.policy.delay(item.deliveries))
        self._let_go(item)
        message = item.message
        with delivery_errors(self._target):
            if decision.action is Action.RETRY:
                await message.nak(decision.delay)
            elif decision.action is Action.DEAD_LETTER:
                await message.term()
            elif self._double_ack:
                await self._confirm(message)
            else:
                await message.ack()

    async def _confirm(self, message: Msg) -> None:
        try:
            await answered(self._nc, message.reply, lambda: message.ack_sync(timeout=api_timeout(self._js)))
        except DeliveryError as error:
            if error.code is ErrorCode.PERMISSION_DENIED:
                self._fail(error)
            raise

    async def _bury(self, item: Delivery, decision: Decision, error: BaseException | None) -> bool:
        """Store the dead letter; False where that failed."""
        if self._dead_letter is None:
            return True
        assert decision.reason is not None
        letter = DeadLetter(
            reason=decision.reason,
            error=_code(error),
            text=_text(error),
            subject=item.message.subject,
            stream=item.stream,
            consumer=self._name,
            sequence=item.sequence,
            deliveries=item.deliveries,
        )
        try:
            await store(self._js, self._dead_letter, letter, item.message, timeout=api_timeout(self._js))
        except (DeliveryError, EncodeError) as fault:
            self._report(fault, item)
            return False
        return True

    def _let_go(self, item: Delivery) -> None:
        item.is_settled = True
        self._held.pop(item.sequence, None)

    def _report(self, error: Exception, item: Delivery | None) -> None:
        if self._on_error is not None:
            self._on_error(error, item)
        elif item is None:
            _log.error("%s: %s", self._target, error)
        else:
            _log.error(
                "%s, sequence %d, delivery %d: %s",
                self._target,
                item.sequence,
                item.deliveries,
                error,
                exc_info=None if isinstance(error, CeNatsError) else error,
            )

    # --- The server --------------------------------------------------------------------------------------------------

    @property
    def _target(self) -> str:
        return f"consumer {self._name} of stream {self._stream}"

    def _failure(self, code: ErrorCode, text: str) -> DeliveryError:
        return DeliveryError(code, f"{self._target}: {text}")

    async def _receive(self, message: Msg) -> None:
        """nats-py calls this for everything that comes: messages, and what the server says about requests."""
        request = self._request
        if request is not None:
            request.heard = time.monotonic()
        if not message.reply.startswith(ACK_PREFIX):
            # Only that tells them apart: anybody can publish a message with a header "Status".
            await self._receive_status(message)
            return
        if request is not None:
            request.left -= 1
            if request.left <= 0:
                self._end_request()
        known = self._held.get(message.metadata.sequence.stream)
        if known is not None:
            # It took longer than ack_wait, or a restart, so the server sent it again. It is still in hand.
            known._message = message
            return
        item = Delivery(self, message)
        self._held[item.sequence] = item
        self._ready.append(item)
        self._arrived.set()

    async def _receive_status(self, message: Msg) -> None:
        headers: dict[str, str] = message.headers or {}
        status, text = headers.get("Status", ""), headers.get("Description", "")
        request = self._request
        if request is None or request.reply != message.subject or status == "100" or text.lower() == _COMPLETED:
            return
        if any(text.lower().startswith(known) for known in _FINAL):
            gone = text.lower().startswith(_DELETED)
            self._fail(self._failure(ErrorCode.CONSUMER_NOT_FOUND if gone else ErrorCode.INCOMPATIBLE_CONFIG, text))
        elif status == "503":
            await self._look_for_consumer()
        if status not in ("404", "408") and request.left == request.batch:
            self._not_before = time.monotonic() + _TICK_SECONDS
        self._end_request()

    async def _look_for_consumer(self) -> None:
        """Nobody answers: the server is still starting, or the consumer is gone."""
        with suppress(DeliveryError):
            try:
                await self._api.consumer(self._stream, self._name)
            except ApiError as error:
                if error.code not in (ErrorCode.CONSUMER_NOT_FOUND, ErrorCode.STREAM_NOT_FOUND):
                    raise
                failure = self._failure(ErrorCode.CONSUMER_NOT_FOUND, "it was deleted")
                failure.__cause__ = error
                self._fail(failure)

    @property
    def _next_subject(self) -> str:
        return f"{api_prefix(self._js)}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"

    def _hear(self, denial: Denial) -> bool:
        """End the iteration without permission to fetch or to acknowledge: handlers would run again and again."""
        if denial.is_publish(self._next_subject) or denial.is_subscription(self._inbox):
            self._fail(self._denied(denial))
            return True
        prefix, consumer = ACK_PREFIX.lower(), f".{self._stream}.{self._name}.".lower()
        if denial.operation != "publish" or not denial.subject.startswith(prefix) or consumer not in denial.subject:
            return False
        fault = self._denied(denial)
        if self._fault is None:
            self._report(fault, None)
        self._fail(fault)
        return True

    def _denied(self, denial: Denial) -> DeliveryError:
        error = denial.error()
        return DeliveryError(error.code, f"{self._target}: {error.message}")

    def _end_request(self) -> None:
        self._request = None
        self._wanted.set()

    def _fail(self, fault: DeliveryError) -> None:
        self._fault = fault
        self._arrived.set()

    async def _keep_asking(self, inbox: str) -> None:
        """Keep one request under way while there is room for what it asks for."""
        loop = asyncio.get_running_loop()
        while self._fault is None:
            if self._nc.is_closed:
                self._fail(self._failure(ErrorCode.CONNECTION_CLOSED, "the connection was closed"))
            elif self._is_due():
                try:
                    await self._ask(inbox)
                except nats.errors.Error as error:
                    _log.debug("%s: %s", self._target, error)
            self._wanted.clear()
            # Not wait_for(), which before Python 3.12 loses a cancellation that comes together with what it waits for.
            tick = loop.call_later(_TICK_SECONDS, self._wanted.set)
            await self._wanted.wait()
            tick.cancel()

    def _is_due(self) -> bool:
        now = time.monotonic()
        request = self._request
        if request is not None and request.reconnects == self._reconnects and now - request.heard < _SILENCE_SECONDS:
            return False
        return self._nc.is_connected and now >= self._not_before and len(self._ready) <= self._prefetch // 2

    @property
    def _reconnects(self) -> int:
        return self._nc.stats["reconnects"]

    async def _ask(self, inbox: str) -> None:
        self._requests += 1
        batch = self._prefetch - len(self._ready)
        reply = f"{inbox}{self._requests}"
        self._request = _Request(reply, batch, batch, self._reconnects, time.monotonic())
        question = {
            "batch": batch,
            "max_bytes": max(_MOST_BYTES, 2 * self._nc.max_payload),
            "expires": int(_EXPIRES_SECONDS * 1e9),
            "idle_heartbeat": int(_HEARTBEAT_SECONDS * 1e9),
        }
        await self._nc.publish(self._next_subject, msgspec.json.encode(question), reply)

    async def _keep_holding(self, interval: float) -> None:
        """Say that what is held is in progress."""
        while True:
            await asyncio.sleep(interval)
            for item in list(self._held.values()):
                if self._nc.is_connected and not item.is_settled:
                    with suppress(nats.errors.Error):
                        await item.message.in_progress()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return Outcome.DONE
    if isinstance(error, Reject):
        return Outcome.REJECTED
    return Outcome.FAILED if isinstance(error, Exception) else Outcome.RELEASED


def _code(error: BaseException | None) -> str:
    if error is None:
        return ""
    return str(error.code) if isinstance(error, CeNatsError) else type(error).__name__


def _text(error: BaseException | None) -> str:
    try:
        return error.message if isinstance(error, CeNatsError) else str(error or "")
    except Exception:  # somebody's exception may do anything in __str__
        return ""


def _is_marker(message: Msg) -> bool:
    headers: dict[str, Any] = message.headers or {}
    return not message.data and any(name in headers for name in MARKERS)


def _size(message: Msg) -> int:
    """Bytes that were not delivered; the server says so in a header, which others may have sent before."""
    text = (message.headers or {}).get(_SIZE, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _check_name(name: str) -> None:
    check_subject(name)
    if "." in name:
        raise EncodeError(ErrorCode.INVALID_SUBJECT, f"a name of a stream or a consumer has no dot: {name!r}")
