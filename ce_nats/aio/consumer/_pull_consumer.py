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
``ack_wait``. ``_ledger`` knows where each message is; ``_fetch`` requests messages, ``_deliveries`` takes them,
``_settle`` and ``_acks`` notify the server, ``_handlers`` runs a handler, ``_keyed`` keeps the order of keys.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from ... import cesql
from ..._numbers import check_optional_seconds, check_seconds
from ...cesql._messages import MessageFilter
from ...codec.attributes import ExtensionTypes
from ...codec.binary import Dialect
from ...codec.binding import DialectName, Mode
from ...errors import DeliveryError, ErrorCode
from ...redelivery import Backoff, Breaker, RetryPolicy
from ...routing import AnyRouter
from ...schemas import Validate, Validator, validator_of
from ...subjects import check_name, check_plain_subject
from ...wire._ack_subject import ACK_PREFIX
from .._claim_check import ClaimCheck
from .._jetstream_api import ConsumerState, StreamApi
from .._observer import Instruments, Observer, OnOutcome
from .._util.checks import (
    check_config,
    check_count,
    check_create,
    check_exceptions,
    check_handler,
    check_hook,
    check_jetstream,
    check_key,
    check_single,
)
from ..link._client import client_of
from ..link._link import Link
from ..link._permissions import Denial
from ._acks import AckWriter
from ._batch import Batch
from ._batch_handlers import BatchWorkers, Collector
from ._binding import Binding
from ._confirm import Confirmations
from ._decisions import Decisions, Delays
from ._deliveries import Deliveries
from ._delivery import Delivery
from ._fetch import Fetcher
from ._hand_out import HandOut
from ._handlers import Workers
from ._intake import Intake
from ._isolation import Isolation
from ._key_order import OtherClients
from ._keyed import Keying
from ._lag import LagReporter
from ._ledger import Ledger
from ._letters import Letters
from ._outage import Outage
from ._prepare import HeadersOnly, Preparation, Reading
from ._record import Recorder
from ._running import Reporter, Running
from ._settle import Settler

_log: Final = logging.getLogger(__name__)

BACKOFF: Final = Backoff()
ACK_DELAY: Final = 0.002
# Interval in which a connection that is being drained looks for running blocks.
_BLOCK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """
    Options of a consumer that its parts need; the names are those of :class:`PullConsumer`.

    Attributes:
        reading: How messages are decoded.
        expiry_leeway: None if expired events are not skipped.
    """

    prefetch: int | None
    unavailable: tuple[type[Exception], ...]
    pause_after: int | None
    double_ack: bool
    ack_delay: float
    reading: Reading
    filter: cesql.Expression | None
    validator: Validator | None
    claim_check: ClaimCheck | None
    expiry_leeway: float | None
    observer: Observer | None

    def __post_init__(self) -> None:
        self.reading.of_raw()  # an invalid option would dead-letter every message

    def filter_of(self, source: str) -> MessageFilter | None:
        """Return the filter for the messages of a consumer."""
        # An observer gets the events that are filtered.
        return MessageFilter.of(
            self.filter,
            source,
            mode=self.reading.mode,
            dialect=self.reading.dialect,
            extension_types=self.reading.extension_types,
            reads_headers=self.observer is None,
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """
    The parts of an open consumer, each of which knows only those before it.

    Attributes:
        ledger: Where is each message?
        acks: Writes acknowledgements, and extends ack deadlines.
        confirmations: Acknowledgements that the server confirms; None if they are only written.
        settler: Settles messages.
        intake: Adds messages that have arrived to the ledger.
        fetcher: Requests messages.
        outage: Pauses handlers while something that they need is not available.
        preparation: Decodes messages.
        deliveries: Takes messages one after the other.
    """

    ledger: Ledger
    acks: AckWriter
    confirmations: Confirmations | None
    settler: Settler
    intake: Intake
    fetcher: Fetcher
    outage: Outage
    preparation: Preparation
    deliveries: Deliveries

    @classmethod
    def assemble(
        cls,
        js: JetStreamContext,
        binding: Binding,
        isolation: Isolation,
        options: _Options,
        policy: RetryPolicy,
        dead_letter: str | None,
        running: Running,
        recorder: Recorder,
        reporter: Reporter,
        end: Callable[[], Awaitable[None]],
        *,
        max_alone: int,
        has_headers_only: bool,
    ) -> _Parts:
        """Make the parts; the arguments are those of their constructors."""
        nc = client_of(js)
        outage = Outage(Breaker(options.pause_after), options.unavailable, running, binding, options.observer)
        ledger = Ledger(options.prefetch, isolation, outage.breaker, options.ack_delay, confirms=options.double_ack)
        acks = AckWriter(nc, ledger, running, reporter, options.ack_delay)
        confirmations = Confirmations(js, running) if options.double_ack else None
        settler = Settler(
            js,
            decisions=Decisions(policy, binding),
            letters=Letters(js, dead_letter, binding.name),
            delays=Delays(binding),
            confirmations=confirmations,
            ledger=ledger,
            acks=acks,
            running=running,
            recorder=recorder,
            reporter=reporter,
            outage=outage,
            observer=options.observer,
        )
        intake = Intake(binding, ledger, acks, settler, recorder, running)
        fetcher = Fetcher(nc, binding, ledger, acks, running, intake, end)
        preparation = Preparation(
            options.reading.of_raw(),
            settler,
            ledger,
            recorder,
            filter=options.filter_of(binding.target),
            validator=options.validator,
            claim_check=options.claim_check,
            parse_data=options.reading.parse_data,
            expiry_leeway=options.expiry_leeway,
            headers_only=HeadersOnly(js, binding.stream, options.reading) if has_headers_only else None,
            max_alone=max_alone,
        )
        return cls(
            ledger,
            acks,
            confirmations,
            settler,
            intake,
            fetcher,
            outage,
            preparation,
            Deliveries(ledger, acks, fetcher, settler, preparation, running),
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
            letter; only the copy in their stream is left. The consumer must not read this subject.
        check_dead_letter: False does not look up the stream for dead letters, which is not found if the subject is
            mapped, or imported from another account or domain. Otherwise a missing one is logged.
        create: Configuration with which the consumer is created if it does not exist; its name is filled in. An
            existing consumer is used unchanged. None creates no consumer.
        max_deliveries: Number of failures of its handler after which a message is dead-lettered. Deliveries that were
            released are not failures; a later process does not know them, and uses ``max_unfinished`` as a limit. A
            message with more deliveries than this may have ended the process, and is handled alone. If the
            ``max_deliver`` of the consumer is lower, it is the limit. Leave it unlimited, the default: after the last
            delivery a message is dead-lettered instead of released, and the server drops it without a report if the
            process is killed or the dead letter cannot be stored.
        max_unfinished: Number of deliveries after which a message is dead-lettered without being handled again, with
            the reason ``process-ended``, if it was handled alone as many times as this is above ``max_deliveries`` (at
            least once), and each time the process ended meanwhile; ``max_deliveries`` or more. By default five more
            than ``max_deliveries``. Deliveries to processes that ended in order do not count.
        backoff: Delay before each redelivery: a :class:`~ce_nats.redelivery.Backoff`, by default with a random half, or
            a sequence of delays in seconds, which are used unchanged.
        unavailable: Exceptions of handlers that are not failures of the event, as :class:`~ce_nats.Unavailable`: the
            handler needs something that is not available. No further handler is called then. Messages stay in flight,
            and one at once is handled, after pauses of 0.5 to 30 seconds, until a handler succeeds. This is logged at
            its begin and end, and each minute; the outcome is ``unavailable``.
        pause_after: Number of failures in a row, of at least ten different events, after which the same happens without
            such an exception. :class:`~ce_nats.Reject` does not count. None switches this off.
        prefetch: Maximum number of fetched messages that are not handled yet, 1 or more. By default 64, and as many as
            a batch has.
        double_ack: True waits until the server confirms each acknowledgement. :meth:`run` without a key continues with
            other messages meanwhile, at most 256; it reports acknowledgements that are not confirmed in time, and
            returns after the last one.
        ack_delay: Maximum time in seconds for which acknowledgements are collected, to be written together. If the
            process is killed meanwhile, their messages are handled again. 0 writes each one at once. They never wait
            when no other message does.
        mode: As for :func:`ce_nats.from_nats_message`.
        dialect: Dialect of binary mode of the senders.
        parse_data: False returns data as bytes.
        extension_types: Python types of extension attributes.
        filter: Expression of CloudEvents SQL on the attributes of events. Events that do not pass are acknowledged, and
            the next one is yielded; so are those on which it has an error, for instance a missing attribute: the first
            three are logged. Messages that are not events are settled as without it. With a ``key``, the key of a
            filtered event is not asked for. Headers of a message in binary mode that does not pass are checked, and its
            data is not decoded.
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
        ValueError: A number is out of range, an option of the decoder is not valid, or ``create`` has another name or
            ``ack_policy``. ``filter`` is not an expression: :class:`ce_nats.cesql.ParseError`.
        TypeError: ``js``, ``config``, a hook or an option of the decoder has another type.
    """

    def __init__(
        self,
        js: JetStreamContext,
        stream: str,
        consumer: str,
        *,
        dead_letter: str | None,
        check_dead_letter: bool = True,
        create: ConsumerConfig | None = None,
        max_deliveries: int = 8,
        max_unfinished: int | None = None,
        backoff: Backoff | Sequence[float] = BACKOFF,
        unavailable: Sequence[type[Exception]] = (),
        pause_after: int | None = 20,
        prefetch: int | None = None,
        double_ack: bool = False,
        ack_delay: float = ACK_DELAY,
        mode: Mode | None = None,
        dialect: DialectName = Dialect.SPEC,
        parse_data: bool = True,
        extension_types: ExtensionTypes | None = None,
        filter: str | cesql.Expression | None = None,
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
        check_create(create, consumer)
        check_exceptions("unavailable", unavailable)
        if pause_after is not None:
            check_count("pause_after", pause_after)
        if prefetch is not None:
            check_count("prefetch", prefetch)
        check_seconds("ack_delay", ack_delay)
        check_seconds("expiry_leeway", expiry_leeway)
        self._js = js
        self._binding = Binding(StreamApi.of(js), stream, consumer, create)
        self._policy = RetryPolicy(max_deliveries, backoff, max_unfinished)
        self._dead_letter = dead_letter
        self._checks_dead_letter = check_dead_letter
        self._options = _Options(
            prefetch=prefetch,
            unavailable=tuple(unavailable),
            pause_after=pause_after,
            double_ack=double_ack,
            ack_delay=ack_delay,
            reading=Reading(mode, dialect, parse_data, extension_types),
            filter=None if filter is None else cesql.compile(filter),
            validator=validator_of(validate),
            claim_check=claim_check,
            expiry_leeway=expiry_leeway if skip_expired else None,
            observer=Observer.of(on_outcome, instrumentation),
        )
        self._running = Running(self._binding.target)
        self._reporter = Reporter(self._binding.target, on_error)
        self._recorder = Recorder(client_of(js), self._binding)
        self._others = OtherClients()
        self._parts: _Parts | None = None
        self._lag: LagReporter | None = None
        self._keying: Keying | None = None

    @property
    def policy(self) -> RetryPolicy:
        """Number of deliveries, and delays between them."""
        return self._policy

    # --- Lifecycle --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> PullConsumer:
        """
        Look up or create the consumer, and begin to fetch.

        Raises:
            DeliveryError: ``stream-not-found``; ``consumer-not-found``; ``request-refused``: it cannot be created;
                ``incompatible-config``: it is a push consumer, its ``ack_policy`` is not explicit, it reads the subject
                for dead letters, or it has ``headers_only`` and there is ``validate``;
                ``no-responders``: JetStream is not enabled; ``timeout``; ``permission-denied``.
        """
        state = await self._binding.open()
        if self._dead_letter is not None and self._checks_dead_letter:
            await self._binding.check_dead_letter(self._js, self._dead_letter)
        # The only number without requests of this client, which the server counts some time after their arrival.
        self._others.observe(state.requests + 1, time.monotonic())
        if state.config.headers_only and self._options.validator is not None:
            text = "validate= needs the data, and the consumer has headers_only"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{self._binding.target}: {text}")
        self._parts = parts = self._assemble(state)
        Link.of(parts.settler.nc).permissions.add(self._on_denial)
        parts.acks.open(min(self._binding.waits) / 3)
        if parts.confirmations is not None:
            await parts.confirmations.open()
        await parts.fetcher.open()
        if self._options.observer is not None and self._options.observer.has_instruments:
            self._lag = LagReporter(self._binding, self._options.observer)
        return self

    def _assemble(self, state: ConsumerState) -> _Parts:
        """Make the parts of the consumer."""
        waits, config = self._binding.waits, state.config
        self._policy, limit = self._binding.limit(self._policy)
        self._recorder.open(config.metadata, limit)
        # With a limit of 1, any message that an earlier process has fetched may have ended it.
        is_expected = bool(state.lag.redelivered or (limit <= 1 and state.lag.ack_pending))
        return _Parts.assemble(
            self._js,
            self._binding,
            Isolation(limit, max(waits), time.monotonic(), is_expected=is_expected),
            self._options,
            self._policy,
            self._dead_letter,
            self._running,
            self._recorder,
            self._reporter,
            self._drain,
            max_alone=max(1, self._policy.unfinished_limit - limit),
            has_headers_only=bool(config.headers_only),
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        await self._end_order()
        parts = self._open_parts()
        try:
            await parts.fetcher.close()
            await parts.intake.close()
            if isinstance(error, asyncio.CancelledError):
                await parts.settler.background.cancel()
            await parts.settler.finish()
            await parts.intake.release(parts.ledger.unhandled())
        finally:
            Link.of(parts.settler.nc).permissions.remove(self._on_denial)
            self._reporter.close()
            if self._lag is not None:
                await self._lag.close()
            await parts.outage.close()
            await parts.acks.end()
            if parts.confirmations is not None:
                await parts.confirmations.close()

    async def _drain(self) -> None:
        """While the connection is drained: stop, wait for running blocks, and release the other messages."""
        self.stop()
        parts = self._open_parts()
        while any(entry.has_started for entry in parts.ledger.in_flight()):  # noqa: ASYNC110 - blocks of the program
            await asyncio.sleep(_BLOCK_SECONDS)
        await parts.settler.finish()
        await parts.intake.release(parts.ledger.unhandled())
        parts.acks.flush()

    def stop(self) -> None:
        """
        Yield no further deliveries: iterations end, and :meth:`run` returns when its handlers have returned.

        Handlers that still run after ten seconds are logged. ``nc.drain()`` also stops the consumer, and waits for its
        handlers, at most for the ``drain_timeout`` of the connection.
        """
        self._running.stop()
        if self._parts is not None:
            # Messages fetched from now on would only be redelivered, which counts as a delivery.
            self._parts.fetcher.stop()

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
                without a redelivery, also after :meth:`Delivery.nak`. The consumer must not have other clients, nor
                ``max_deliver``. An exception of the function is a failure of the event, which holds back no others.
                None keeps no order.
            stop_timeout: Seconds after :meth:`stop` until handlers that still run are cancelled, and their messages
                released. None waits for them.

        Raises:
            DeliveryError: As the iteration does; ``consumer-in-use``: there is a ``key``, and another client uses the
                consumer; ``incompatible-config``: there is a ``key``, and the consumer has ``max_deliver``;
                ``handler-cancelled``: a task of :meth:`run` was cancelled, and not :meth:`run` itself.
            TypeError: ``handler`` is not an async function, nor a lambda that returns an awaitable.
            ValueError: ``concurrency`` is below 1, or ``stop_timeout`` below 0.
            RuntimeError: There is a ``key``, and another call with a key is running.
        """
        check_handler(handler)
        check_single(handler)
        check_count("concurrency", concurrency)
        check_key(key)
        check_optional_seconds("stop_timeout", stop_timeout)
        parts = self._open_parts()
        await self._run(Workers(parts.deliveries, handler, self._reporter), concurrency, key, stop_timeout)

    async def _run(
        self,
        workers: Workers,
        concurrency: int,
        key: Callable[[Delivery], Hashable] | None,
        stop_timeout: float | None,
    ) -> None:
        """Run workers, and keep the order of keys meanwhile."""
        if key is None:
            await workers.run(concurrency, self._running.stopped, stop_timeout)
            return
        self._keep_order(key)
        try:
            await workers.run(concurrency, self._running.stopped, stop_timeout)
        finally:
            await self._end_order()

    async def run_batches(
        self,
        handler: Callable[[Batch], Awaitable[object]],
        *,
        max_events: int = 500,
        max_wait: float = 0.1,
        concurrency: int = 1,
        key: Callable[[Delivery], Hashable] | None = None,
        stop_timeout: float | None = None,
    ) -> None:
        """
        Call a handler with batches of events, until :meth:`stop`.

        All messages of a batch are acknowledged when the handler returns, except for those that it has settled itself,
        or with :meth:`Batch.reject` or :meth:`Batch.nak`. After an exception it is called again with each half of the
        batch, and so on down to single events: an event that always fails is redelivered with back-off and
        dead-lettered alone, and the others are acknowledged. So the handler must have no effect if it raises, or one
        that may be repeated. A :class:`~ce_nats.aio.BatchError` names the events that have failed; the others are not
        handled again. Messages that are not events are settled without the handler.

            async def store(batch):
                await database.insert(batch.events)

        Args:
            handler: An async function, called with one :class:`~ce_nats.aio.Batch`.
            max_events: Maximum number of events of a batch. It is only reached if ``max_ack_pending`` of the consumer
                is higher.
            max_wait: Seconds after the first event until a batch is complete. With 0, it has what has already arrived.
            concurrency: Maximum number of concurrent handlers. With more than one, batches are handled out of order,
                unless there is a ``key``.
            key: As for :meth:`run`. Events of a key are in one running batch only, in their order. If one of them
                fails, those after it in the batch are handled again, after it.
            stop_timeout: As for :meth:`run`.

        Raises:
            DeliveryError: As :meth:`run` does.
            TypeError: ``handler`` is not an async function, nor a lambda that returns an awaitable.
            ValueError: ``max_events`` or ``concurrency`` is below 1, or ``max_wait`` or ``stop_timeout`` below 0.
            RuntimeError: There is a ``key``, and another call with a key is running.
        """
        await self._run_batches(handler, handler, max_events, max_wait, concurrency, key, stop_timeout)

    async def _run_batches(
        self,
        handler: Callable[[Batch], Awaitable[object]],
        router: object,
        max_events: int,
        max_wait: float,
        concurrency: int,
        key: Callable[[Delivery], Hashable] | None,
        stop_timeout: float | None = None,
    ) -> None:
        """As :meth:`run_batches`, divided by the handlers of a router, if it is one: the handler of the program."""
        check_handler(handler)
        check_count("max_events", max_events)
        check_seconds("max_wait", max_wait)
        check_count("concurrency", concurrency)
        check_key(key)
        check_optional_seconds("stop_timeout", stop_timeout)
        parts = self._open_parts()
        parts.ledger.prefetch.follow(max_events)
        collector = Collector(parts.deliveries, parts.ledger, max_events, max_wait)
        found = router if isinstance(router, AnyRouter) else None
        workers = BatchWorkers(parts.deliveries, handler, self._reporter, collector, found)
        await self._run(workers, concurrency, key, stop_timeout)

    def _keep_order(self, key: Callable[[Delivery], Hashable]) -> None:
        """Keep the order of keys from now on."""
        parts = self._open_parts()
        if self._keying is not None:
            raise RuntimeError(
                f"{self._binding.target}: run() with a key must not be called while another one is running"
            )
        if self._binding.max_deliver:
            text = f"max_deliver must be unlimited with a key, got {self._binding.max_deliver}"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{self._binding.target}: {text}")
        self._keying = Keying(
            key,
            self._binding,
            parts.ledger,
            parts.preparation,
            parts.settler,
            parts.acks,
            parts.fetcher,
            self._running,
            self._others,
        )
        self._keying.open()

    async def _end_order(self) -> None:
        keying, self._keying = self._keying, None
        if keying is not None:
            await keying.close()

    # --- Deliveries --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> PullConsumer:
        return self

    async def __anext__(self) -> Delivery:
        """
        Return the next delivery with an event.

        Raises:
            DeliveryError: ``consumer-not-found``: it was deleted; ``incompatible-config``: its limits were
                lowered since it was entered; ``connection-closed``; ``permission-denied``: messages cannot be fetched
                or acknowledged; ``not-open``.
        """
        deliveries = self._open_parts().deliveries
        delivery = deliveries.take() or await deliveries.next()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    def _hand_out(self) -> HandOut:
        """Return what hands messages to other threads; called once."""
        parts = self._open_parts()
        return HandOut(parts.deliveries, parts.ledger, parts.acks, parts.fetcher, parts.settler, self._running)

    def _open_parts(self) -> _Parts:
        if self._parts is None:
            text = "it must be entered first: async with PullConsumer(...) as consumer"
            raise DeliveryError(ErrorCode.NOT_OPEN, f"{self._binding.target}: {text}")
        return self._parts

    def _on_denial(self, denial: Denial) -> bool:
        """End the iteration if acknowledgements are denied: handlers would run again after each redelivery."""
        prefix, consumer = ACK_PREFIX.lower(), f".{self._binding.stream}.{self._binding.name}.".lower()
        if denial.operation != "publish" or not denial.subject.startswith(prefix) or consumer not in denial.subject:
            return False
        error = denial.error()
        error = DeliveryError(error.code, f"{self._binding.target}: {error.message}")
        if self._running.error is None:
            self._reporter.report(error, None)
        self._running.cut_off(error)
        return True
