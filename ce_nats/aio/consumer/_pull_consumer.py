"""
Consume events from JetStream with a pull consumer, and settle each message.

    async with PullConsumer(js, "ORDERS", "billing", dead_letter="dead.orders") as consumer:
        async for delivery in consumer:
            async with delivery as event:
                await charge(event)

Leaving the inner block acknowledges the message; after an exception it is redelivered with back-off, and the exception
propagates. A message that is not a CloudEvent, or has failed too often, is dead-lettered: the dead letter is stored and
acknowledged before the original is terminated. ``ce_nats.redelivery.decide`` is the complete policy.

The ack deadline of each message in flight, queued or in a block, is extended after a third of the consumer's
``ack_wait``. ``_fetch`` requests messages, ``_in_flight`` queues them and extends ack deadlines, ``_isolation`` decides
which message is handled alone, ``_settle`` sends acknowledgements, ``_handlers`` runs a handler, ``_keyed`` keeps the
order of keys.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from ..._numbers import check_optional_seconds, check_seconds
from ...codec.attributes import ExtensionTypes
from ...codec.binary import Dialect
from ...codec.binding import DialectName, Mode, from_nats_message
from ...codec.event import DecodedEvent, NotDelivered
from ...codec.mode import MARKERS, ContentMode, detect_mode
from ...errors import ApiError, CeNatsError, DecodeError, DeliveryError, ErrorCode, Reject
from ...extensions.expiry import is_expired
from ...message import Headers, NatsMessage
from ...redelivery import Action, Backoff, Decision, Outcome, RetryPolicy, decide
from ...schemas import Validate, Validator, validator_of
from ...subjects import check_name, check_plain_subject
from ...wire._ack_subject import ACK_PREFIX, AckSubject
from .._claim_check import ClaimCheck
from .._jetstream_api import ConsumerState, StreamApi, check_stream_on
from .._natspy import client_of
from .._observer import Instruments, Observer, OnOutcome, guarded
from .._permissions import ConnectionWatch, Denial
from .._util.checks import (
    check_config,
    check_count,
    check_handler,
    check_hook,
    check_jetstream,
    check_key,
    config_differences,
)
from .._util.supervising import call_plain, supervise
from ..reading._stored_messages import as_message
from ._dead_letters import original
from ._delivery import Delivery
from ._fetch import Fetcher
from ._handlers import Workers
from ._in_flight import InFlightDeliveries
from ._isolation import Isolation
from ._key_order import OtherClients
from ._keyed import Key, KeyGate
from ._record import Recorder
from ._settle import Settler

_log: Final = logging.getLogger(__name__)

_SIZE: Final = "Nats-Msg-Size"
_DEFAULT_ACK_WAIT: Final = 30.0
_MAX_UNSUSPENDED_SECONDS: Final = 0.05
BACKOFF: Final = Backoff()

# An event that can be decoded in each mode.
_EVENT: Final = NatsMessage(
    data=b'{"specversion":"1.0","id":"1","source":"s","type":"t"}',
    headers=Headers([("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "s"), ("ce-type", "t")]),
)


class PullConsumer:
    """
    Asynchronous iterator over the deliveries of a JetStream consumer, and a context manager around it.

    Leaving the context releases fetched messages that were not handled. Blocks that are still running settle their
    messages, but ack deadlines are not extended any more. Several tasks may iterate.

    The iteration continues after reconnects and restarts of the server, as long as nats-py reconnects. Tombstones of
    key-value buckets are acknowledged and skipped.

    With ``headers_only`` events have their attributes, and ``NotDelivered`` instead of data. A structured event has its
    attributes in the payload, so it is read from the stream, with its data.

    Args:
        js: From ``nc.jetstream()``.
        stream: Name of the stream.
        consumer: Name of a durable pull consumer with explicit acknowledgements.
        dead_letter: Subject for dead letters, on which a stream must listen. None terminates messages without a dead
            letter; only the copy in their stream is left.
        create: Configuration with which the consumer is created if it does not exist; its name and ``ack_policy`` are
            filled in. An existing consumer is used unchanged. None creates no consumer.
        max_deliveries: Number of deliveries after which a message is dead-lettered if its handler fails. The server
            counts deliveries, released ones included. A message that was delivered more often may have ended the
            process, and is handled alone. If the ``max_deliver`` of the consumer is lower, it is the limit. Leave it
            unlimited, the default: the server stops redelivering without a report, even if the message was not handled
            or its dead letter could not be stored.
        max_unfinished: Number of deliveries after which a message is dead-lettered without being handled again, with
            the reason ``process-ended``, if it was handled alone as many times as this is above ``max_deliveries`` (at
            least once), and each time the process ended meanwhile; ``max_deliveries`` or more. By default five more
            than ``max_deliveries``. Deliveries to processes that ended in order do not count.
        backoff: Delay before each redelivery: a :class:`~ce_nats.redelivery.Backoff`, by default with a random half, or
            a sequence of delays in seconds, which are used unchanged.
        prefetch: Maximum number of fetched messages that are not handled yet, 1 or more.
        double_ack: True waits until the server confirms each acknowledgement.
        mode: As for :func:`ce_nats.from_nats_message`.
        dialect: Dialect of binary mode of the senders.
        parse_data: False returns data as bytes.
        extension_types: Python types of extension attributes.
        validate: Checks each event before it is yielded: :class:`ce_nats.schemas.Schemas`, a mapping for it, or a
            function. An event that it refuses is dead-lettered at once, with ``data-mismatch``. After any other
            exception of a function, the event is redelivered as after one of a handler. With ``claim_check`` it gets
            the event with its data.
        skip_expired: True acknowledges events whose ``expirytime`` is in the past, and yields the next event. An event
            whose ``expirytime`` is not a timestamp is yielded.
        expiry_leeway: Seconds after ``expirytime`` in which an event is still yielded, for clocks that differ.
        claim_check: Store in which :meth:`Delivery.resolve` reads data that the message only refers to.
        on_error: Called with errors from which the consumer recovered: a dead letter that could not be stored (the
            original is redelivered later), or an exception of a handler of :meth:`run`; and with ``permission-denied``
            for an acknowledgement, which also ends the iteration. By default errors are logged. A message that ends
            without a handler and without a dead letter, or with ``process-ended``, is always logged. Exceptions in
            ``on_error`` are logged.
        on_outcome: Called with the :class:`~ce_nats.aio.MessageOutcome` of each delivery, when the server has been
            notified and its handler, if any, has ended. Exceptions in it are logged.
        instrumentation: Creates spans and metrics: :class:`ce_nats.otel.Instrumentation`.

    Raises:
        EncodeError: ``invalid-subject``: ``dead_letter``, or a name, is not valid.
        ValueError: A number is out of range, or an option of the decoder is not valid.
        TypeError: ``js``, ``config``, a hook or an option of the decoder has another type.
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
        max_unfinished: int | None = None,
        backoff: Backoff | Sequence[float] = BACKOFF,
        prefetch: int = 64,
        double_ack: bool = False,
        mode: Mode | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        validate: Validate | None = None,
        skip_expired: bool = False,
        expiry_leeway: float = 0.0,
        claim_check: ClaimCheck | None = None,
        on_error: Callable[[Exception, Delivery | None], None] | None = None,
        on_outcome: OnOutcome | None = None,
        instrumentation: Instruments | None = None,
    ) -> None:
        check_jetstream(js)
        check_config("create", create)
        check_hook("on_error", on_error)
        check_hook("on_outcome", on_outcome)
        if dead_letter is not None:
            check_plain_subject(dead_letter)
        check_name("stream", stream)
        check_name("consumer", consumer)
        check_count("prefetch", prefetch)
        check_seconds("expiry_leeway", expiry_leeway)
        self._js = js
        self._nc = client_of(js)
        self._api = StreamApi.of(js)
        self._stream = stream
        self._name = consumer
        self._target = f"consumer {consumer} of stream {stream}"
        self._dead_letter = dead_letter
        self._create = create
        self._mode = mode
        self._decode_message = partial(
            from_nats_message, mode=mode, dialect=dialect, parse_data=parse_data, extension_types=extension_types
        )
        self._decode_message(_EVENT)  # an invalid option would dead-letter every message
        self._on_error = on_error
        self._headers_only = False
        self._resolve = None if claim_check is None else partial(claim_check.resolve, parse_data=parse_data)
        self._validator = validator_of(validate)
        self._skip_expired = skip_expired
        self._expiry_leeway = expiry_leeway
        self._arrived = asyncio.Event()
        self._stopped = asyncio.Event()
        self._is_open = self._has_dropped = False
        self._error: DeliveryError | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._identifying: asyncio.Task[None] | None = None
        self._created = ""
        self._suspended = 0.0
        self._waits: list[float] = []
        self._others = OtherClients()
        self._gate: KeyGate | None = None

        self._max_alone = 1
        self._recorder = Recorder(self._nc, self._api, stream, consumer)
        self._settler = Settler(
            js,
            stream,
            consumer,
            policy=RetryPolicy(max_deliveries, backoff, max_unfinished),
            dead_letter=dead_letter,
            double_ack=double_ack,
            report=self._report,
            on_unhandled=self._report_unhandled,
            on_settled=lambda delivery: self._in_flight.remove(delivery),
            on_denied=self._fail,
            recorder=self._recorder,
            observer=Observer.of(on_outcome, instrumentation),
        )
        self._in_flight = InFlightDeliveries(
            self._nc,
            self._settler,
            prefetch=prefetch,
            count=lambda origin: self._recorder.record.unexplained(origin.sequence, origin.deliveries),
            wake=self._wake,
            on_dropped=self._report_dropped,
            on_redelivered=self._release_redelivered,
            on_uncounted=self._check_identity,
            target=self._target,
            fail=self._fail,
        )
        self._fetcher = Fetcher(
            self._nc,
            self._api,
            stream,
            consumer,
            free_slots=self._in_flight.free_slots,
            deliver=self._deliver,
            fail=self._fail,
        )

    @property
    def policy(self) -> RetryPolicy:
        """Number of deliveries, and delays between them."""
        return self._settler.policy

    # --- Lifecycle --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> PullConsumer:
        """
        Look up or create the consumer, and begin to fetch.

        Raises:
            DeliveryError: ``stream-not-found``; ``consumer-not-found``; ``request-refused``: it cannot be created;
                ``incompatible-config``: it is a push consumer, its ``ack_policy`` is not explicit, or it has
                ``headers_only`` and there is ``validate``;
                ``no-responders``: JetStream is not enabled, or no stream listens on the subject for dead letters;
                ``timeout``; ``permission-denied``.
        """
        if self._dead_letter is not None:
            await check_stream_on(self._js, self._dead_letter)
        config, self._created, lag, requests = await self._bind()
        # The only number without requests of this client, which the server counts some time after their arrival.
        self._others.observe(requests + 1, time.monotonic())
        if config.deliver_subject or config.ack_policy != AckPolicy.EXPLICIT:
            text = "it must be a pull consumer whose messages are acknowledged one by one"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{self._target}: {text}")
        self._headers_only = bool(config.headers_only)
        if self._headers_only and self._validator is not None:
            text = "validate= needs the data, and the consumer has headers_only"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{self._target}: {text}")
        self._waits = waits = [config.ack_wait or _DEFAULT_ACK_WAIT, *(config.backoff or ())]
        limit = self._apply_limit(config)
        self._max_alone = max(1, self.policy.unfinished_limit - limit)
        self._recorder.open(config.metadata, limit)
        # With a limit of 1, any message that an earlier process has fetched may have ended it.
        is_expected = bool(lag.redelivered or (limit <= 1 and lag.ack_pending))
        ConnectionWatch.of(self._nc).add(self._on_denial)
        self._in_flight.open(Isolation(limit, max(waits), is_expected=is_expected), min(waits) / 3)
        await self._fetcher.open(min(waits))
        self._is_open = True
        return self

    def _apply_limit(self, config: ConsumerConfig) -> int:
        """Apply the server's limit of deliveries; return the number above which a message is handled alone."""
        policy, most = self.policy, config.max_deliver or 0
        if most <= 0:
            return policy.max_deliveries
        _log.warning(
            "%s: max_deliver is %d, so the server drops a message without a report after %d deliveries, handled or not",
            self._target,
            most,
            most,
        )
        if most < policy.max_deliveries:
            self._settler.policy = policy = RetryPolicy(most, policy.backoff, max(most, policy.unfinished_limit))
        return min(policy.max_deliveries, most - 1)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        await self._close_gate()
        try:
            await self._fetcher.close()
            if self._releasing is not None:
                await asyncio.gather(self._releasing, return_exceptions=True)
            await self._release(self._in_flight.unhandled())
        finally:
            ConnectionWatch.of(self._nc).remove(self._on_denial)
            if self._identifying is not None:
                self._identifying.cancel()
            await self._in_flight.close()

    def stop(self) -> None:
        """
        Yield no further deliveries: iterations end, and :meth:`run` returns when its handlers have returned.

        Handlers that still run after ten seconds are logged.
        """
        self._stopped.set()
        self._arrived.set()
        self._fetcher.stop()  # messages fetched from now on would only be redelivered, which counts as a delivery

    async def run(
        self,
        handler: Callable[[Delivery], Awaitable[object]],
        *,
        concurrency: int = 1,
        key: Callable[[Delivery], Hashable] | None = None,
        stop_timeout: float | None = None,
    ) -> None:
        """
        Call a handler with each delivery, until :meth:`stop`.

        The message is acknowledged when the handler returns, unless the handler has settled it. After an exception it
        is redelivered with back-off, and the exception is reported; :class:`~ce_nats.Reject`, and ``data-mismatch`` of
        ``data_as()``, dead-letter it. A ``CancelledError`` of a handler while :meth:`run` is not cancelled is a failure
        of the handler (``handler-cancelled``).

            async def charge(delivery):
                print(delivery.subject, delivery.event.get_id())

        Args:
            handler: An async function, called with one delivery.
            concurrency: Maximum number of concurrent handlers. With more than one, events are handled out of order,
                unless there is a ``key``.
            key: Function that returns the key of a delivery, any hashable value, such as
                :func:`~ce_nats.extensions.partitioning.partition_key`. Events with the same key are handled in the
                order of the stream, one after the other. A failed event holds back later ones of its key until it is
                handled successfully or dead-lettered; it stays in flight, and is handled again after the back-off
                without a redelivery, also after :meth:`Delivery.nak`. The consumer must not have other clients. An
                exception of the function is a failure of the event, which holds back no others. None keeps no order.
            stop_timeout: Seconds after :meth:`stop` until handlers that still run are cancelled, and their messages
                released. None waits for them.

        Raises:
            DeliveryError: As the iteration does; ``consumer-in-use``: there is a ``key``, and another client uses the
                consumer; ``handler-cancelled``: a task of :meth:`run` was cancelled, and not :meth:`run` itself.
            TypeError: ``handler`` is not an async function, nor a lambda that returns an awaitable.
            ValueError: ``concurrency`` is below 1, or ``stop_timeout`` below 0.
            RuntimeError: There is a ``key``, and another call with a key is running.
        """
        check_handler(handler)
        check_count("concurrency", concurrency)
        check_key(key)
        check_optional_seconds("stop_timeout", stop_timeout)
        workers = Workers(self, handler, self._report, self._target)
        if key is None:
            await workers.run(concurrency, self._stopped, stop_timeout)
            return
        self._open_gate(key)
        try:
            await workers.run(concurrency, self._stopped, stop_timeout)
        finally:
            await self._close_gate()

    def _open_gate(self, key: Key) -> None:
        """Keep the order of keys from now on."""
        self._check_open()
        if self._gate is not None:
            raise RuntimeError(f"{self._target}: run() with a key must not be called while another one is running")
        self._gate = KeyGate(
            key,
            self._in_flight,
            self._settler,
            read=self._read,
            settle_undecodable=self._settle_undecodable,
            progress=lambda: self._api.progress(self._stream, self._name),
            others=self._others,
            waits=self._waits,
            target=self._target,
            wake=self._wake,
            fail=self._fail,
        )
        self._gate.open()

    async def _close_gate(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            await gate.close()

    async def _bind(self) -> ConsumerState:
        """Return the consumer, which is created if it does not exist and may be created."""
        try:
            state = await self._api.consumer_state(self._stream, self._name)
        except ApiError as error:
            if self._create is None or error.code is not ErrorCode.CONSUMER_NOT_FOUND:
                raise
        else:
            if self._create is not None:
                self._compare(self._create, state.config)
            return state
        config = self._create.evolve(name=self._name, durable_name=self._name, ack_policy=AckPolicy.EXPLICIT)
        await self._api.create_consumer(self._stream, self._name, config.as_dict())
        return await self._api.consumer_state(self._stream, self._name)

    def _compare(self, wanted: ConsumerConfig, existing: ConsumerConfig) -> None:
        """Log the differences between ``create=`` and an existing consumer."""
        differences = config_differences(wanted, existing)
        if differences:
            text = "; ".join(differences)
            _log.warning("%s exists, and its configuration is not that of create=: %s", self._target, text)

    # --- Deliveries --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> PullConsumer:
        return self

    async def __anext__(self) -> Delivery:
        """
        Return the next delivery with an event.

        Raises:
            DeliveryError: ``consumer-not-found``: it was deleted; ``incompatible-config``: its limits do not allow
                ``prefetch``; ``connection-closed``; ``permission-denied``: messages cannot be fetched or acknowledged;
                ``not-open``.
        """
        self._check_open()
        await self._yield_to_other_tasks()
        while not self._stopped.is_set():
            delivery = self._in_flight.take()
            if delivery is not None:
                self._fetcher.wake()
                if await self._prepare(delivery):
                    return delivery
            elif self._error is not None:
                raise self._error
            else:
                self._arrived.clear()
                await self._arrived.wait()
        raise StopAsyncIteration

    def _check_open(self) -> None:
        if not self._is_open:
            text = "it must be entered first: async with PullConsumer(...) as consumer"
            raise DeliveryError(ErrorCode.NOT_OPEN, f"{self._target}: {text}")

    async def _yield_to_other_tasks(self) -> None:
        """
        Yield to other tasks from time to time.

        Neither taking a queued delivery nor acknowledging it yields to other tasks. So without this, handlers that each
        block the event loop for a short time would prevent ack deadlines from being extended until the queue is empty.
        """
        if time.monotonic() - self._suspended > _MAX_UNSUSPENDED_SECONDS:
            for _ in range(3):  # a timer, the task that it wakes, and the write of that task
                await asyncio.sleep(0)
            self._suspended = time.monotonic()

    async def _prepare(self, delivery: Delivery) -> bool:
        """Decode a message; return False if it was settled because it has no event for a handler."""
        try:
            try:
                if delivery._event is None:
                    await self._read(delivery)
            except DecodeError as error:
                await self._settle_undecodable(delivery, error)
                return False
            except DeliveryError as error:
                delivery.error = error
                self._report(error, delivery)
                # Not by the policy: the message was not handled, whatever its number of deliveries.
                retry = Decision(Action.RETRY, delay=self._settler.delay(delivery))
                await self._settler.settle_quietly(delivery, retry, error)
                return False
            if self._skip_expired and self._is_expired(delivery.event):
                await self._settler.settle_quietly(delivery, Outcome.EXPIRED)
                return False
            if self._validator is not None and not await self._is_valid(delivery, self._validator):
                return False
            decision = decide(Outcome.RECEIVED, delivery._arrival, self.policy)
            if await self._may_handle(delivery, decision):
                return True
            text = f"the process ended while it was handled: {delivery._arrival} deliveries, and none had an outcome"
            delivery.error = DeliveryError(ErrorCode.PROCESS_ENDED, text)
            await self._settler.settle_quietly(delivery, decision, delivery.error)
        except asyncio.CancelledError:
            if not delivery.is_settled:
                self._in_flight.put_back(delivery)
            raise
        return False

    async def _is_valid(self, delivery: Delivery, validator: Validator) -> bool:
        """Return whether an event is valid; settle its delivery if it is not."""
        try:
            call_plain("validate", validator.check, await delivery.resolve())
        except Exception as error:
            outcome = delivery._outcome(error)
            if outcome is Outcome.REJECTED and isinstance(error, DecodeError):
                delivery.error = error
            else:
                self._report(error, delivery)
            await self._settler.settle_quietly(delivery, outcome, error)
            return False
        return True

    def _is_expired(self, event: DecodedEvent) -> bool:
        try:
            return is_expired(event, leeway=self._expiry_leeway)
        except DecodeError:  # expirytime is not a timestamp
            return False

    async def _may_handle(self, delivery: Delivery, decision: Decision) -> bool:
        """
        Record that a suspect is handled alone. Return False if it has ended processes too often.

        Its number of deliveries alone proves nothing: it also counts processes that never called a handler.
        """
        if not self._in_flight.is_alone(delivery):
            return True
        has_limit = decision.action is not Action.HANDLE
        try:
            return await self._recorder.begin(delivery.sequence, self._max_alone if has_limit else math.inf)
        except DeliveryError as error:
            if has_limit:
                text = (
                    f"it was delivered {delivery.deliveries} times, and is handled again, because the consumer cannot "
                    f"record whether its handler ends the process: {error.message}"
                )
                self._report(DeliveryError(error.code, text), delivery)
            return True

    async def _read(self, delivery: Delivery) -> None:
        """Decode the message of a delivery."""
        delivery._set_event(await self._decode(delivery.message), self._resolve)

    async def _settle_undecodable(self, delivery: Delivery, error: DecodeError) -> None:
        delivery.error = error
        outcome = Outcome.MARKER if _is_marker(delivery.message) else Outcome.UNDECODABLE
        await self._settler.settle_quietly(delivery, outcome, error)

    async def _decode(self, message: Msg) -> DecodedEvent:
        if not self._headers_only or _is_marker(message):
            return self._decode_message(message)
        size = _size(message)
        try:
            mode = self._mode or detect_mode(message)
        except DecodeError:
            mode = ContentMode.STRUCTURED  # or not an event, which depends on the payload
        if mode is ContentMode.STRUCTURED and size:
            stored = await original(self._js, message)
            if stored is not None:
                return self._decode_message(as_message(stored, self._stream))
        event = self._decode_message(message)
        if not size:
            return event
        return DecodedEvent(event._attributes, NotDelivered(size), is_json=event.is_json)

    def _deliver(self, message: Msg, origin: AckSubject) -> None:
        self._in_flight.add(message, origin)
        self._arrived.set()

    def _wake(self) -> None:
        self._arrived.set()
        self._fetcher.wake()

    def _report(self, error: Exception, delivery: Delivery | None, ending: str = "") -> None:
        """Call ``on_error``; log the error if there is no ``on_error``, or if the message has ended."""
        on_error = self._on_error
        if on_error is not None:
            guarded(lambda: on_error(error, delivery))
        if on_error is not None and not ending:
            return
        place = "" if delivery is None else f", sequence {delivery.sequence}, delivery {delivery.deliveries}"
        is_expected = isinstance(error, (CeNatsError, Reject))
        text = f"{type(error).__name__}: {error}" if isinstance(error, Reject) else error
        _log.error("%s%s: %s%s", self._target, place, text, ending, exc_info=None if is_expected else error)

    def _report_unhandled(self, error: CeNatsError, delivery: Delivery, ending: str) -> None:
        self._report(error, delivery, f"; {ending}")

    def _release_redelivered(self, deliveries: list[Delivery]) -> None:
        """Release messages that were redelivered while they were queued."""
        _log.warning(
            "%s: messages were redelivered while they waited for a handler: the event loop was blocked for longer than "
            "ack_wait; fetching one by one from now on",
            self._target,
        )
        self._releasing = supervise(self._release(deliveries), self._target, self._fail)

    def _check_identity(self) -> None:
        """Check whether the consumer was deleted and created again, unless this is being checked."""
        if self._identifying is None or self._identifying.done():
            self._identifying = supervise(self._report_identity(), self._target, self._fail)

    async def _report_identity(self) -> None:
        """Log if another consumer has the name now; its messages are handled like those of the earlier one."""
        with suppress(DeliveryError):
            created = (await self._api.without_retries().consumer_state(self._stream, self._name)).created
            if created != self._created:
                self._created = created
                _log.warning(
                    "%s: it was deleted and created again, at %s; messages are delivered again", self._target, created
                )

    async def _release(self, deliveries: list[Delivery]) -> None:
        """Release messages to other clients, and record those that would be suspects at their next delivery."""
        await self._recorder.release({delivery.sequence: delivery._known.deliveries for delivery in deliveries})
        await self._settler.release(deliveries)

    def _report_dropped(self, origin: AckSubject) -> None:
        """Log once that the program does not settle deliveries."""
        if not self._has_dropped and not self._stopped.is_set():
            self._has_dropped = True
            _log.warning(
                "%s, sequence %d: the program has dropped an unsettled delivery; settle each one, with 'async with "
                "delivery:' for example. Such messages stay in flight until the consumer is left, and the server "
                "delivers at most max_ack_pending of them",
                self._target,
                origin.sequence,
            )

    def _on_denial(self, denial: Denial) -> bool:
        """End the iteration if acknowledgements are denied: handlers would run again after each redelivery."""
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
        """End the iteration with an error; the first one is the cause of further ones."""
        self._error = self._error or error
        self._fetcher.stop()
        self._arrived.set()


def _is_marker(message: Msg) -> bool:
    headers: dict[str, Any] = message.headers or {}
    return not message.data and any(name in headers for name in MARKERS)


def _size(message: Msg) -> int:
    """Return the number of bytes that were not delivered; clients can also send the server's header for it."""
    text = (message.headers or {}).get(_SIZE, "")
    return int(text) if text.isascii() and text.isdigit() else 0
