"""
Consume events from JetStream: pulled, settled one by one, dead-lettered as a last resort.

    async with PullConsumer(js, "ORDERS", "billing", dead_letter="dead.orders") as consumer:
        async for delivery in consumer:
            async with delivery as event:
                await charge(event)

Leaving the inner block acknowledges the message; after an exception it is redelivered with back-off, and the exception
propagates. A message that is not a CloudEvent, or failed too often, is dead-lettered: the dead letter is stored and
acknowledged before the original is terminated. ``ce_nats.redelivery.decide`` is the whole policy.

The ack deadline of every message that is held, in a block or waiting for one, is extended at a third of the consumer's
``ack_wait``. Three modules do the work: ``fetching`` asks for messages, ``holding`` keeps them, ``settling`` tells the
server what became of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from ..codec.attributes import ExtensionTypes
from ..codec.binary import Dialect
from ..codec.binding import DialectName, Mode, from_nats_message
from ..codec.event import DecodedEvent, NotDelivered
from ..codec.mode import MARKERS, ContentMode, detect_mode
from ..errors import ApiError, CeNatsError, DecodeError, DeliveryError, ErrorCode
from ..message import Headers, NatsMessage
from ..redelivery import Action, Backoff, Outcome, RetryPolicy, decide
from ..subjects import check_name, check_plain_subject
from ..wire.ack_subject import ACK_PREFIX, AckSubject
from ._nats import client_of
from .checks import check_config, check_jetstream
from .deadletter import original
from .delivery import Delivery
from .fetching import Fetcher
from .holding import Holder
from .outcomes import Instruments, Observer, OnOutcome
from .settling import Settler
from .stored import as_message
from .streams import StreamApi, check_stream_on
from .watch import ConnectionWatch, Denial

_log: Final = logging.getLogger(__name__)

_SIZE: Final = "Nats-Msg-Size"
_DEFAULT_ACK_WAIT: Final = 30.0
_BACKOFF: Final = Backoff()

# Can be decoded in every mode.
_EVENT: Final = NatsMessage(
    data=b'{"specversion":"1.0","id":"1","source":"s","type":"t"}',
    headers=Headers([("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "s"), ("ce-type", "t")]),
)


class PullConsumer:
    """
    Asynchronous iterator over the deliveries of a JetStream consumer, and a context manager around it.

    Leaving the context releases at once what was fetched and not handled. Blocks of deliveries that still run then
    settle their messages themselves, but their ack deadlines are not extended any more. Several tasks may iterate.

    Iteration survives reconnects and restarts of the server, as long as nats-py reconnects. Tombstones of key-value
    buckets are acknowledged and skipped.

    With ``headers_only`` events have their attributes, and ``NotDelivered`` for data where there is some. A structured
    event has its attributes in the payload, so it is read from the stream, and complete.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        consumer: Name of a durable pull consumer with explicit acknowledgements.
        dead_letter: Subject for dead letters, which a stream must listen on. None: messages are terminated without a
            copy, and only the stream's own copy is left.
        config: The consumer's configuration, with which it is created where there is none of that name; name and kind
            are filled in. One that exists is used as it is. None creates none.
        max_deliveries: Deliveries after which a message is dead-lettered; as the server counts them, so that a delivery
            that was released counts, too. A consumer whose own ``max_deliver`` is lower sets the limit; leave that
            unlimited, as it is by default: the server gives up silently, even where no dead letter could be stored.
        backoff: Delay before each redelivery: a :class:`~ce_nats.redelivery.Backoff`, half of whose delays is random by
            default, or seconds one by one, which are kept as they are.
        prefetch: Most messages fetched and not handled yet.
        double_ack: Wait until the server confirms each acknowledgement.
        mode: As for :func:`ce_nats.from_nats_message`, and the next three too.
        dialect: Whose binary mode the senders write.
        parse_data: False gives data as bytes.
        extension_types: Python types of extension attributes.
        on_error: Called with errors from which the consumer recovered: a dead letter that could not be stored (the
            original is redelivered later), an exception of a handler of :meth:`run`; and with ``permission-denied`` for
            an acknowledgement, which also ends the iteration. By default they are logged.
        on_outcome: Called with the :class:`~ce_nats.aio.MessageOutcome` of each delivery: once the server has been told
            and, where there is a handler, once that has ended. An exception in it is logged.
        instrumentation: Makes spans and metrics: :class:`ce_nats.otel.Instrumentation`.

    Raises:
        EncodeError: ``invalid-subject``: ``dead_letter``, or a name, is not valid.
        ValueError: A number is out of its range, or an option of the decoder is not valid.
        TypeError: ``js``, ``config`` or an option of the decoder has another type.
    """

    def __init__(
        self,
        js: JetStreamContext,
        stream: str,
        consumer: str,
        *,
        dead_letter: str | None,
        config: ConsumerConfig | None = None,
        max_deliveries: int = 5,
        backoff: Backoff | Sequence[float] = _BACKOFF,
        prefetch: int = 64,
        double_ack: bool = False,
        mode: Mode | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        on_error: Callable[[Exception, Delivery | None], None] | None = None,
        on_outcome: OnOutcome | None = None,
        instrumentation: Instruments | None = None,
    ) -> None:
        check_jetstream(js)
        check_config("config", config)
        if dead_letter is not None:
            check_plain_subject(dead_letter)
        check_name("stream", stream)
        check_name("consumer", consumer)
        if prefetch < 1:
            raise ValueError(f"prefetch must be 1 or more, got {prefetch}")
        self._js = js
        self._nc = client_of(js)
        self._api = StreamApi.of(js)
        self._stream = stream
        self._name = consumer
        self._target = f"consumer {consumer} of stream {stream}"
        self._dead_letter = dead_letter
        self._config = config
        self._mode = mode
        self._decode_message = partial(
            from_nats_message, mode=mode, dialect=dialect, parse_data=parse_data, extension_types=extension_types
        )
        self._decode_message(_EVENT)  # an option that is not valid would dead-letter every message
        self._on_error = on_error
        self._headers_only = False
        self._arrived = asyncio.Event()
        self._is_entered = self._is_over = False
        self._error: DeliveryError | None = None

        self._settler = Settler(
            js,
            stream,
            consumer,
            policy=RetryPolicy(max_deliveries, backoff),
            dead_letter=dead_letter,
            double_ack=double_ack,
            report=self._report,
            on_settled=lambda delivery: self._holder.remove(delivery),
            on_denied=self._fail,
            observer=Observer.of(on_outcome, instrumentation),
        )
        self._holder = Holder(self._nc, self._settler)
        self._fetcher = Fetcher(
            self._nc,
            self._api,
            stream,
            consumer,
            prefetch=prefetch,
            waiting=lambda: len(self._holder.ready),
            deliver=self._deliver,
            fail=self._fail,
        )

    @property
    def policy(self) -> RetryPolicy:
        """How often a message is tried, and when again."""
        return self._settler.policy

    # --- The consumer's life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> PullConsumer:
        """
        Find or create the consumer, and begin to fetch.

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
            text = "it must be a pull consumer whose messages are acknowledged one by one"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{self._target}: {text}")
        if config.max_deliver is not None and 0 < config.max_deliver < self.policy.max_deliveries:
            self._settler.policy = RetryPolicy(config.max_deliver, self.policy.backoff)
        self._headers_only = bool(config.headers_only)
        waits = [config.ack_wait or _DEFAULT_ACK_WAIT, *(config.backoff or ())]
        ConnectionWatch.of(self._nc).add(self._on_denial)
        await self._fetcher.open()
        self._holder.open(min(waits) / 3)
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        try:
            await self._fetcher.close()
            await self._settler.release(self._holder.unhandled())
        finally:
            ConnectionWatch.of(self._nc).remove(self._on_denial)
            await self._holder.close()

    def stop(self) -> None:
        """Give out no further deliveries: iterations end, and with them :meth:`run`. What is being handled goes on."""
        self._is_over = True
        self._arrived.set()

    async def run(self, handler: Callable[[Delivery], Awaitable[object]], *, concurrency: int = 1) -> None:
        """
        Call a handler with each delivery, until :meth:`stop`.

        The message is acknowledged when the handler returns, unless it has settled the delivery itself. After an
        exception it is redelivered with back-off, and the exception is reported; :class:`~ce_nats.Reject`, and
        ``data-mismatch`` of ``data_as()``, dead-letter it.

            async def charge(delivery):
                print(delivery.subject, delivery.event.get_id())

        Args:
            handler: Called with one delivery.
            concurrency: Most handlers at a time. With more than one the order of events is lost.

        Raises:
            DeliveryError: As the iteration does.
            ValueError: ``concurrency`` is below 1.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, got {concurrency}")
        workers = [asyncio.create_task(self._work(handler)) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, handler: Callable[[Delivery], Awaitable[object]]) -> None:
        async for delivery in self:
            try:
                async with delivery:
                    await handler(delivery)
            except Exception as error:
                self._report(error, delivery)

    async def _bind(self) -> ConsumerConfig:
        """Configuration of the consumer, which is created where it may be."""
        try:
            return await self._api.consumer(self._stream, self._name)
        except ApiError as error:
            if self._config is None or error.code is not ErrorCode.CONSUMER_NOT_FOUND:
                raise
        config = self._config.evolve(name=self._name, durable_name=self._name, ack_policy=AckPolicy.EXPLICIT)
        return await self._api.create_consumer(self._stream, self._name, config.as_dict())

    # --- Deliveries --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> PullConsumer:
        return self

    async def __anext__(self) -> Delivery:
        """
        The next delivery with an event.

        Raises:
            DeliveryError: ``consumer-not-found``: it was deleted; ``incompatible-config``: its limits do not allow
                ``prefetch``; ``connection-closed``; ``permission-denied``: messages cannot be fetched, or not be
                acknowledged; ``not-open``.
        """
        if not self._is_entered:
            text = "it must be entered first: async with PullConsumer(...) as consumer"
            raise DeliveryError(ErrorCode.NOT_OPEN, f"{self._target}: {text}")
        ready = self._holder.ready
        while not self._is_over:
            if ready:
                delivery = ready.popleft()
                self._fetcher.wake()
                if await self._prepare(delivery):
                    return delivery
            elif self._error is not None:
                raise self._error
            else:
                self._arrived.clear()
                await self._arrived.wait()
        raise StopAsyncIteration

    async def _prepare(self, delivery: Delivery) -> bool:
        """Decode; False where the message has no event for a handler, and has been settled therefore."""
        outcome = Outcome.RECEIVED
        try:
            try:
                delivery.decoded(await self._decode(delivery.message))
                if decide(outcome, delivery.deliveries, self.policy).action is Action.HANDLE:
                    return True
            except DecodeError as error:
                outcome = Outcome.MARKER if _is_marker(delivery.message) else Outcome.UNDECODABLE
                delivery.error = error
            except DeliveryError as error:
                outcome = Outcome.FAILED
                delivery.error = error
                self._report(error, delivery)
            await self._settler.settle_quietly(delivery, outcome, delivery.error)
        except asyncio.CancelledError:
            if not delivery.is_settled:
                self._holder.ready.appendleft(delivery)
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

    def _deliver(self, message: Msg, origin: AckSubject) -> None:
        self._holder.add(message, origin)
        self._arrived.set()

    def _report(self, error: Exception, delivery: Delivery | None) -> None:
        """Call ``on_error``, or log."""
        if self._on_error is not None:
            self._on_error(error, delivery)
        elif delivery is None:
            _log.error("%s: %s", self._target, error)
        else:
            _log.error(
                "%s, sequence %d, delivery %d: %s",
                self._target,
                delivery.sequence,
                delivery.deliveries,
                error,
                exc_info=None if isinstance(error, CeNatsError) else error,
            )

    def _on_denial(self, denial: Denial) -> bool:
        """End the iteration where acknowledgements are denied: handlers would run again and again."""
        prefix, consumer = ACK_PREFIX.lower(), f".{self._stream}.{self._name}.".lower()
        if denial.operation != "publish" or not denial.subject.startswith(prefix) or consumer not in denial.subject:
            return False
        error = denial.error()
        error = DeliveryError(error.code, f"{self._target}: {error.message}")
        if self._error is None:
            self._report(error, None)
        self._fail(error)
        return True

    def _fail(self, error: DeliveryError) -> None:
        """End the iteration with an error."""
        self._error = error
        self._fetcher.stop()
        self._arrived.set()


def _is_marker(message: Msg) -> bool:
    headers: dict[str, Any] = message.headers or {}
    return not message.data and any(name in headers for name in MARKERS)


def _size(message: Msg) -> int:
    """Bytes that were not delivered; the server says so in a header, which others may have sent before."""
    text = (message.headers or {}).get(_SIZE, "")
    return int(text) if text.isascii() and text.isdigit() else 0
