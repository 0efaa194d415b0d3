"""
OpenTelemetry spans and metrics for publishing and consuming. Needs ``pip install 'ce-nats[otel]'``.

    instrumentation = Instrumentation(subjects=["orders.{region}.{type}"])
    async with aio.Publisher(js, instrumentation=instrumentation) as publisher: ...
    async with aio.PullConsumer(js, "ORDERS", "billing", instrumentation=instrumentation, ...) as consumer: ...

Names are those of OpenTelemetry's semantic conventions for messaging, for NATS and for CloudEvents, whose status is
"development". This package adds two attributes: ``ce_nats.outcome``, an :class:`~ce_nats.aio.OutcomeKind`, and
``ce_nats.deliveries``.

The headers ``traceparent`` and ``tracestate`` of a message are the trace context of its sender; the event's attributes
of the same names are the trace context in which the event was created. A ``process`` span has the sender as its parent
(or, without these headers, the event's context), and a link to the event's context.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

try:
    from opentelemetry import context as otel_context
    from opentelemetry import metrics, trace
except ImportError as error:
    raise ImportError("ce_nats.otel needs opentelemetry-api: pip install 'ce-nats[otel]'") from error

from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ._version import __version__
from .aio._jetstream_api import Lag
from .aio._log_fields import DELIVERIES, DESTINATION, EVENT_TYPE, GROUP, STREAM, error_fields, event_fields
from .aio._observer import MessageOutcome, OutcomeKind, kind_of
from .aio.consumer._delivery import Delivery
from .aio.core._received import Received
from .codec.event import DecodedEvent, EventLike, attributes_and_data
from .codec.subject_template import SubjectTemplate
from .errors import DeliveryError, text_of
from .extensions.tracing import TraceContext, current_trace, trace_of_event, trace_of_headers, trace_of_span
from .message import MSG_ID

__all__ = ["Instrumentation"]

# Bounds of histogram buckets: events of batches, and seconds, from the conventions.
_SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_SYSTEM: Final = "messaging.system"
_OPERATION_NAME: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_TEMPLATE: Final = "messaging.destination.template"
_MESSAGE_ID: Final = "messaging.message.id"
_BODY_SIZE: Final = "messaging.message.body.size"
_OUTCOME: Final = "ce_nats.outcome"
# Gauges of a consumer, and their descriptions; the names are those of the fields of Lag.
_LAG: Final = {
    "pending": "Messages that were not delivered yet.",
    "ack_pending": "Messages that were delivered and are not settled.",
    "redelivered": "Messages that are not settled, and were delivered more than once.",
}
_SEND: Final = "send"
_PROCESS: Final = "process"
_PROPAGATOR: Final = TraceContextTextMapPropagator()

Attributes = dict[str, str | int]


class _Operation:
    """The span of one message, which may be the current span. See :class:`ce_nats.aio.Operation`."""

    __slots__ = ("_ended_at", "_span", "_token", "trace")

    def __init__(self, span: trace.Span, sent: TraceContext | None = None, token: Any = None) -> None:
        self.trace = sent
        self._span = span
        self._token = token
        self._ended_at: int | None = None

    def leave(self) -> None:
        self._ended_at = time.time_ns()
        if self._token is not None:
            otel_context.detach(self._token)

    def end(self, outcome: MessageOutcome | None, error: BaseException | None) -> None:
        span = self._span
        if span.is_recording():
            if outcome is not None:
                error = error or outcome.error
                span.set_attribute(_OUTCOME, str(outcome.kind))
                if not isinstance(outcome.delivery, Delivery):
                    span.set_attributes({DESTINATION: outcome.subject, **_message(outcome.message)})
            if isinstance(error, Exception):
                span.set_attributes(error_fields(error))
                with suppress(Exception):  # __str__ of a user-defined exception may raise
                    span.record_exception(error)
                span.set_status(trace.Status(trace.StatusCode.ERROR, text_of(error)))
        span.end(self._ended_at)


class Instrumentation:
    """
    Creates spans and metrics of messages.

    Pass it to :class:`~ce_nats.aio.Publisher` and :class:`~ce_nats.aio.PullConsumer` as ``instrumentation``; several of
    them can share it. For other code that sends or receives, use :meth:`sending` and :meth:`processing`.

    - ``send SUBJECT``: a producer span, from ``publish()`` to the acknowledgement. The message carries its context.
    - ``process SUBJECT``: a consumer span, the current span while a handler runs (``run()``, or the block of a
      delivery).
    - ``messaging.client.sent.messages`` and ``messaging.client.operation.duration``: from ``publish()`` to the
      acknowledgement.
    - ``messaging.client.consumed.messages``: deliveries with an outcome other than released, and those that a handler
      released.
    - ``messaging.process.duration``: duration of handlers.
    - ``ce_nats.consumer.paused``: number of consumers whose handlers pause because of an outage.
    - ``ce_nats.consumer.pending``, ``ce_nats.consumer.ack_pending`` and ``ce_nats.consumer.redelivered``: lag of each
      open consumer in messages, as the server reports it every 15 seconds.

    Args:
        subjects: Templates of subjects. In names of spans and in metrics the matching template replaces a subject,
            because each value of an attribute creates a time series. Metrics of a subject without a template have no
            destination.
        producer_spans: False creates no spans of sent messages; messages then carry the context of the current span.
        tracer_provider: Provider of the tracer; by default OpenTelemetry's global one.
        meter_provider: Provider of the meter; by default OpenTelemetry's global one.

    Raises:
        EncodeError: ``invalid-subject``: a template is malformed.
    """

    def __init__(
        self,
        *,
        subjects: Iterable[SubjectTemplate | str] = (),
        producer_spans: bool = True,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._templates = [one if isinstance(one, SubjectTemplate) else SubjectTemplate(one) for one in subjects]
        self._producer_spans = producer_spans
        self._tracer = trace.get_tracer("ce_nats", __version__, tracer_provider)
        meter = metrics.get_meter("ce_nats", __version__, meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that a producer attempted to send."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were delivered to the application."
        )
        durations = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=_BOUNDS)
        self._sending = durations(
            "messaging.client.operation.duration", description="Duration of an operation of a producer or consumer."
        )
        self._processing = durations("messaging.process.duration", description="Duration of processing a message.")
        self._paused = meter.create_up_down_counter(
            "ce_nats.consumer.paused", "{consumer}", "Consumers whose handlers pause because of an outage."
        )
        self._batch_size = meter.create_histogram(
            "ce_nats.batch.size",
            "{event}",
            "Events of a call of a handler of batches.",
            explicit_bucket_boundaries_advisory=_SIZES,
        )
        self._batch_duration = durations("ce_nats.batch.duration", description="Duration of a handler of batches.")
        self._lags: dict[tuple[str, str], Lag] = {}  # of open consumers, by stream and name
        for name, text in _LAG.items():
            meter.create_observable_gauge(f"ce_nats.consumer.{name}", [partial(self._observe, name)], "{message}", text)

    # --- For code without a Publisher or PullConsumer -----------------------------------------------------------------

    @contextmanager
    def sending(self, event: EventLike, subject: str | SubjectTemplate) -> Iterator[TraceContext | None]:
        """
        Create the span and the metrics of one message that the block sends; yields its trace context.

            with instrumentation.sending(event, "orders.paid") as trace:
                await aio.jetstream.publish(js, event, "orders.paid", trace=trace)

        Args:
            event: The event.
            subject: Subject that it is sent to, or a template of it.

        Raises:
            EncodeError: ``invalid-message``: ``event`` is not an event.
        """
        plain, template = ("", subject.template) if isinstance(subject, SubjectTemplate) else (subject, "")
        operation = self.send(event, plain, template)
        began = time.perf_counter()

        def done(kind: OutcomeKind, error: DeliveryError | None) -> None:
            name = subject.format(event) if isinstance(subject, SubjectTemplate) else subject
            seconds = time.perf_counter() - began
            outcome = MessageOutcome(kind, name, None, event=event, error=error, seconds=seconds, template=template)
            operation.end(outcome, error)
            self.record(outcome)

        try:
            yield operation.trace
        except DeliveryError as error:
            done(kind_of(error), error)
            raise
        except BaseException as error:
            operation.end(None, error)  # it was not sent
            raise
        else:
            done(OutcomeKind.PUBLISHED, None)

    @contextmanager
    def processing(self, received: Received) -> Iterator[DecodedEvent]:
        """
        Create the span and the metrics of one message that the block processes; yields its event.

            async for received in await aio.subscribe(nc, "orders.>"):
                with instrumentation.processing(received) as event:
                    print(event.get_id())

        Args:
            received: The message. A PullConsumer with this instrumentation already creates the span of its messages.

        Raises:
            CeNatsError: ``received.error``: there is no event in the message.
        """
        operation = self.process(received)
        began = time.perf_counter()
        failure: BaseException | None = None
        try:
            yield received.event
        except BaseException as error:
            failure = error
            raise
        finally:
            operation.leave()
            operation.end(None, failure)
            self._record_processed(received, failure, time.perf_counter() - began)

    # --- Calls by consumers and publishers ----------------------------------------------------------------------------

    def send(self, event: Any, subject: str, template: str) -> _Operation:
        """Implement :meth:`ce_nats.aio.Instruments.send`."""
        if not self._producer_spans:
            return _Operation(trace.INVALID_SPAN, current_trace())
        destination = self._destination(subject, template)
        span = self._tracer.start_span(
            _name(_SEND, subject, destination),
            kind=trace.SpanKind.PRODUCER,
            attributes={**_operation(_SEND), **_subject(subject), **destination, **event_fields(event)},
            links=_links(trace_of_event(event)),
        )
        return _Operation(span, trace_of_span(span))

    def process(self, received: Received) -> _Operation:
        """Implement :meth:`ce_nats.aio.Instruments.process`."""
        message, event = received.message, None if received.error else received.event
        origin = None if event is None else trace_of_event(event)
        parent = _remote(trace_of_headers(message.headers) or origin)
        destination = self._destination(received.subject)
        span = self._tracer.start_span(
            _name(_PROCESS, received.subject, destination),
            parent,
            kind=trace.SpanKind.CONSUMER,
            attributes={
                **_operation(_PROCESS),
                **_subject(received.subject),
                **destination,
                **_group(received),
                **_message(message),
                **event_fields(event),
                DELIVERIES: received.deliveries,
            },
            links=_links(origin),
        )
        return _Operation(span, token=otel_context.attach(trace.set_span_in_context(span, parent)))

    def record(self, outcome: MessageOutcome) -> None:
        """Implement :meth:`ce_nats.aio.Instruments.record`."""
        if outcome.delivery is not None:
            if outcome.kind is not OutcomeKind.RELEASED or outcome.seconds is not None:
                self._record_processed(outcome.delivery, outcome.error, outcome.seconds, outcome)
            return
        attributes = {
            _SYSTEM: "nats",
            _OPERATION_NAME: _SEND,
            **self._metric_destination(outcome.subject, outcome.template),
            **_event_type(outcome.event),
            **error_fields(outcome.error),
            _OUTCOME: str(outcome.kind),
        }
        self._sent.add(1, attributes)
        if outcome.seconds is not None:
            self._sending.record(outcome.seconds, {**attributes, _OPERATION_TYPE: _SEND})

    def pause(self, consumer: str, change: int) -> None:
        """Implement :meth:`ce_nats.aio.Instruments.pause`."""
        self._paused.add(change, {_SYSTEM: "nats", GROUP: consumer})

    def batch(self, stream: str, consumer: str, events: int, seconds: float, error: BaseException | None) -> None:
        """Implement :meth:`ce_nats.aio.Instruments.batch`."""
        attributes = {_SYSTEM: "nats", STREAM: stream, GROUP: consumer, **error_fields(error)}
        self._batch_size.record(events, attributes)
        self._batch_duration.record(seconds, attributes)

    def lag(self, stream: str, consumer: str, lag: Lag | None) -> None:
        """Implement :meth:`ce_nats.aio.Instruments.lag`."""
        if lag is None:
            self._lags.pop((stream, consumer), None)
        else:
            self._lags[stream, consumer] = lag

    def _observe(self, name: str, _: metrics.CallbackOptions) -> Iterator[metrics.Observation]:
        """Yield the present values of a gauge; called in the thread of a reader."""
        for (stream, consumer), lag in [*self._lags.items()]:
            attributes = {_SYSTEM: "nats", STREAM: stream, GROUP: consumer}
            yield metrics.Observation(getattr(lag, name), attributes)

    def _record_processed(
        self,
        received: Received,
        error: BaseException | None,
        seconds: float | None,
        outcome: MessageOutcome | None = None,
    ) -> None:
        attributes = {
            _SYSTEM: "nats",
            _OPERATION_NAME: _PROCESS,
            **self._metric_destination(received.subject),
            **_group(received),
            **({} if received.error else _event_type(received.event)),
            **error_fields(error),
            **({} if outcome is None else {_OUTCOME: str(outcome.kind)}),
        }
        self._consumed.add(1, attributes)
        if seconds is not None:
            self._processing.record(seconds, attributes)

    def _destination(self, subject: str, template: str = "") -> Attributes:
        """Return the template that a subject was created from, or that matches it."""
        if not template:
            template = next((one.template for one in self._templates if one.parse(subject) is not None), "")
        return {_TEMPLATE: template} if template else {}

    def _metric_destination(self, subject: str, template: str = "") -> Attributes:
        """Return the destination for metrics: a template, or a subject that is a template without placeholders."""
        destination = self._destination(subject, template)
        return _subject(subject) if destination.get(_TEMPLATE) == subject else destination


def _name(operation: str, subject: str, destination: Attributes) -> str:
    return f"{operation} {destination.get(_TEMPLATE) or subject}"


def _operation(name: str) -> Attributes:
    return {_SYSTEM: "nats", _OPERATION_NAME: name, _OPERATION_TYPE: name}


def _subject(subject: str) -> Attributes:
    return {DESTINATION: subject} if subject else {}


def _group(received: Received) -> Attributes:
    """Return the name of the consumer, which shares its messages; subscriptions have none."""
    return {GROUP: received.consumer} if isinstance(received, Delivery) else {}


def _message(message: Any) -> Attributes:
    """Return id and size of a message of nats-py or of ce_nats, or nothing for None."""
    if message is None:
        return {}
    identifier = (message.headers or {}).get(MSG_ID, "")
    return {_BODY_SIZE: len(message.data), **({_MESSAGE_ID: identifier} if identifier else {})}


def _event_type(event: EventLike) -> Attributes:
    own, _ = attributes_and_data(event)
    return {EVENT_TYPE: str(own["type"])} if own.get("type") is not None else {}


def _remote(sender: TraceContext | None) -> Context:
    """Return the current context, with the sender's span instead of a span of this process."""
    current = otel_context.get_current()
    return current if sender is None else _PROPAGATOR.extract(sender.fields(), current)


def _links(origin: TraceContext | None) -> list[trace.Link]:
    if origin is None:
        return []
    context = _PROPAGATOR.extract(origin.fields(), Context())
    return [trace.Link(trace.get_current_span(context).get_span_context())]
