"""Spans and metrics from OpenTelemetry's SDK, of messages on a real server."""

import asyncio
import subprocess
import sys
from contextlib import nullcontext, suppress
from functools import partial
from uuid import uuid4

import nats
import pytest
from nats.js.api import ConsumerConfig
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.trace import SpanKind, StatusCode

from ce_nats import AtomicBatchError, DecodeError, EncodeError, SubjectTemplate, aio, dedup_id, otel, sync
from ce_nats.aio import AtomicBatch, DeliveryError, Publisher, PublishError, PullConsumer, Reject
from ce_nats.aio._jetstream_api import Lag
from ce_nats.aio.jetstream import configure_stream
from ce_nats.extensions.tracing import TraceContext, trace_of_event, trace_of_headers
from tests.support.broker import make_event, server
from tests.support.consuming import until_consumer
from tests.support.waiting import until

pytestmark = pytest.mark.server

__all__ = ["make_event", "server"]

ORIGIN = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01", "a=b")
HOP = TraceContext("00-1af7651916cd43dd8448eb211c80319c-c9c7c989f97918e1-01")


@pytest.fixture
async def js(server):
    async with await nats.connect(server.url) as nc:
        yield nc.jetstream()


@pytest.fixture
async def stream(js):
    """A stream, and the first token of its subjects."""
    name = f"s{uuid4().hex}"
    await js.add_stream(name=name, subjects=[f"{name}.>"], storage="memory")
    yield name
    await js.delete_stream(name)


class Telemetry:
    """A tracer and a meter in memory, and an instrumentation that uses them."""

    def __init__(self, **options):
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.tracers.get_tracer("tests")
        meters = MeterProvider([self._reader])
        self.instrumentation = otel.Instrumentation(tracer_provider=self.tracers, meter_provider=meters, **options)

    def spans(self, start=""):
        return [span for span in self._spans.get_finished_spans() if span.name.startswith(start)]

    def metrics(self):
        """Return the points of each metric, by its name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        found = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in found}


@pytest.fixture
def telemetry(stream):
    return Telemetry(subjects=[f"{stream}.{{type}}.{{region}}", f"{stream}.plain"])


@pytest.fixture
def consume(js, stream, telemetry):
    def consume(**options):
        known = {"dead_letter": None, "create": ConsumerConfig(), "backoff": [0], "on_error": lambda *_: None}
        return PullConsumer(js, stream, "billing", **{**known, "instrumentation": telemetry.instrumentation, **options})

    return consume


async def run(consumer, handler, count):
    """Handle ``count`` deliveries."""
    handled = 0

    async def counted(delivery):
        nonlocal handled
        handled += 1
        if handled == count:
            consumer.stop()
        await handler(delivery)

    async with consumer:
        await asyncio.wait_for(consumer.run(counted), 60)


def parent(span):
    return None if span.parent is None else span.parent.span_id


# --- From publisher to handler ---------------------------------------------------------------------------------------


async def test_trace_spans_publisher_and_handler(js, stream, telemetry, consume, make_event):
    """Program, send, process and a span in the handler: one trace, in which each is the child of the one before."""
    event = make_event(1, {"a": 1}, type="com.example.paid", subject="order 7", region="north")
    template = SubjectTemplate(f"{stream}.{{type}}.{{region}}")
    with telemetry.tracer.start_as_current_span("program"):
        async with Publisher(js, instrumentation=telemetry.instrumentation) as publisher:
            await publisher.publish(event, template)

    async def handle(delivery):
        with telemetry.tracer.start_as_current_span("charge"):
            assert trace_of_event(delivery.event) == trace_of_headers(delivery.message.headers)

    await run(consume(), handle, 1)
    assert trace.get_current_span() is trace.INVALID_SPAN
    by_name = {span.name.partition(" ")[0]: span for span in telemetry.spans()}
    assert len(telemetry.spans()) == 4
    program, send, process, charge = (by_name[name] for name in ("program", "send", "process", "charge"))
    assert {span.context.trace_id for span in by_name.values()} == {program.context.trace_id}
    assert [parent(span) for span in (program, send, process, charge)] == [
        *(None, program.context.span_id, send.context.span_id, process.context.span_id)
    ]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert send.end_time <= process.end_time
    assert (send.name, process.name) == (f"send {template.template}", f"process {template.template}")
    assert [link.context.span_id for link in process.links] == [send.context.span_id]
    both = {
        "messaging.system": "nats",
        "messaging.destination.name": f"{stream}.com%2Eexample%2Epaid.north",
        "messaging.destination.template": template.template,
        "messaging.message.id": dedup_id(event),
        "messaging.message.body.size": 7,
        "cloudevents.event_id": "event 1",
        "cloudevents.event_source": "/tests",
        "cloudevents.event_spec_version": "1.0",
        "cloudevents.event_type": "com.example.paid",
        "cloudevents.event_subject": "order 7",
    }
    assert dict(send.attributes) == both | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "ce_nats.outcome": "published",
    }
    assert dict(process.attributes) == both | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
        "ce_nats.outcome": "acknowledged",
        "ce_nats.deliveries": 1,
    }


async def test_trace_spans_publisher_and_handler_of_sync(server, js, stream, telemetry, make_event):
    """The span is current in the thread of the handler."""
    instrumentation = telemetry.instrumentation

    def program():
        with sync.connect(server.url) as nc, telemetry.tracer.start_as_current_span("program"):
            with nc.publisher(instrumentation=instrumentation) as publisher:
                publisher.publish(make_event(1), f"{stream}.plain")
            options = {"dead_letter": None, "create": ConsumerConfig(), "instrumentation": instrumentation}
            consumer = nc.consumer(stream, "billing", timeout=60, **options)
            with consumer, next(consumer), telemetry.tracer.start_as_current_span("charge"):
                pass
            assert trace.get_current_span().name == "program"

    await asyncio.to_thread(program)
    by_name = {span.name.partition(" ")[0]: span for span in telemetry.spans()}
    program, send, process, charge = (by_name[name] for name in ("program", "send", "process", "charge"))
    assert [parent(span) for span in (program, send, process, charge)] == [
        *(None, program.context.span_id, send.context.span_id, process.context.span_id)
    ]
    assert process.attributes["ce_nats.outcome"] == "acknowledged"


async def test_failed_delivery_has_a_span_with_error_and_outcome(js, stream, telemetry, consume, make_event):
    """Each delivery has a separate span."""
    await aio.jetstream.publish(js, make_event(1), f"{stream}.other")

    class BrokenError(Exception):
        def __str__(self):
            raise KeyError

    errors = [KeyError("customer"), Reject("never")]

    async def handle(delivery):
        raise errors[delivery.deliveries - 1]

    await run(consume(), handle, 2)
    await aio.jetstream.publish(js, make_event(2), f"{stream}.other")

    async def break_(_):
        raise BrokenError

    await run(consume(max_deliveries=1), break_, 1)
    spans = telemetry.spans("process")
    assert {span.name for span in spans} == {f"process {stream}.other"}
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR] * 3
    assert [span.status.description for span in spans] == ["'customer'", "never", ""]
    broken = f"{__name__}.test_failed_delivery_has_a_span_with_error_and_outcome.<locals>.BrokenError"
    assert [span.attributes["error.type"] for span in spans] == ["KeyError", "ce_nats.errors.Reject", broken]
    assert [span.attributes["ce_nats.outcome"] for span in spans] == ["redelivered", "terminated", "terminated"]
    assert [span.attributes["ce_nats.deliveries"] for span in spans] == [1, 2, 1]
    assert [event.name for span in spans[:2] for event in span.events] == ["exception"] * 2


async def test_sender_is_the_parent_and_the_event_a_link(js, stream, telemetry, consume, make_event):
    """The headers of the last hop are the parent; without them, the event's attributes are."""
    forwarded = make_event(1, **ORIGIN.fields())
    await aio.jetstream.publish(js, forwarded, f"{stream}.a", trace=HOP)
    await aio.jetstream.publish(js, forwarded, f"{stream}.b", dedup=None)
    await aio.jetstream.publish(js, make_event(2), f"{stream}.c")

    async def handle(delivery):
        context = otel_context.get_current()
        assert baggage.get_baggage("tenant", context) == "7"

    token = otel_context.attach(baggage.set_baggage("tenant", "7"))
    try:
        await run(consume(), handle, 3)
    finally:
        otel_context.detach(token)
    hop, event, neither = telemetry.spans("process")
    assert (hop.parent.trace_id, hop.parent.span_id) == (int(HOP.trace_id, 16), int(HOP.span_id, 16))
    assert [link.context.trace_id for link in hop.links] == [int(ORIGIN.trace_id, 16)]
    assert (event.parent.span_id, event.parent.trace_state.to_header()) == (int(ORIGIN.span_id, 16), "a=b")
    assert (neither.parent, neither.links) == (None, ())


async def test_concurrent_handlers_have_separate_current_spans(js, stream, telemetry, consume, make_event):
    async with Publisher(js, instrumentation=telemetry.instrumentation) as publisher:
        for number in range(20):
            await publisher.publish(make_event(number), f"{stream}.x")
    running, all_run = [], asyncio.Event()

    async def handle(delivery):
        running.append(delivery)
        if len(running) == 20:
            all_run.set()
            consumer.stop()
        await all_run.wait()
        with telemetry.tracer.start_as_current_span(f"inner {delivery.event.get_id()}"):
            await asyncio.sleep(0)

    consumer = consume()
    async with consumer:
        await asyncio.wait_for(consumer.run(handle, concurrency=20), 60)
    process = {span.context.span_id: span.attributes["cloudevents.event_id"] for span in telemetry.spans("process")}
    inner = telemetry.spans("inner")
    assert len(process) == len(inner) == 20
    assert all(span.name == f"inner {process[parent(span)]}" for span in inner)


async def test_rejected_event_has_a_span_and_is_not_counted(js, stream, telemetry, make_event):
    """The span has the error. An object that is not an event has no span."""
    async with Publisher(js, instrumentation=telemetry.instrumentation) as publisher:
        with pytest.raises(EncodeError):
            await publisher.publish(make_event(1), "a b")
        with pytest.raises(EncodeError):
            await publisher.publish("no event", "a")
    (span,) = telemetry.spans()
    assert span.attributes["error.type"] == "invalid-subject"
    assert span.status.status_code is StatusCode.ERROR
    assert telemetry.metrics() == {}


async def test_events_of_an_atomic_batch_have_spans(js, stream, telemetry, make_event):
    """Only those that were sent are counted."""
    await configure_stream(js, stream, allow_atomic=True)
    for is_wrong in (False, True):
        batch = AtomicBatch(js, instrumentation=telemetry.instrumentation)
        with pytest.raises(AtomicBatchError) if is_wrong else nullcontext():
            async with batch:
                for number in range(2):
                    event = make_event(number + 2 * is_wrong)
                    await batch.publish(event, f"{stream}.x{number}", expected_last_subject_sequence=0)
    with suppress(ZeroDivisionError):
        async with AtomicBatch(js, instrumentation=telemetry.instrumentation) as batch:
            await batch.publish(make_event(9), f"{stream}.x")
            raise ZeroDivisionError
    assert [span.attributes.get("error.type") for span in telemetry.spans()] == [
        *(None, None, "publish-refused", "publish-refused", "ZeroDivisionError")
    ]
    message = await js.get_msg(stream, 2)
    assert int(trace_of_headers(message.headers).span_id, 16) == telemetry.spans()[1].context.span_id
    assert sum(point.value for point in telemetry.metrics()["messaging.client.sent.messages"]) == 4


async def test_trace_of_the_caller_is_sent(js, stream, telemetry, make_event):
    async with Publisher(js, instrumentation=telemetry.instrumentation) as publisher:
        await publisher.publish(make_event(1), f"{stream}.x", trace=HOP)
    message = await js.get_msg(stream, 1)
    assert message.headers["traceparent"] == HOP.traceparent


async def test_current_span_is_sent_without_producer_spans(js, stream, make_event):
    telemetry = Telemetry(producer_spans=False)
    with telemetry.tracer.start_as_current_span("program") as program:
        async with Publisher(js, instrumentation=telemetry.instrumentation) as publisher:
            await publisher.publish(make_event(1), f"{stream}.x")
    message = await js.get_msg(stream, 1)
    assert int(trace_of_headers(message.headers).span_id, 16) == program.get_span_context().span_id
    assert [span.name for span in telemetry.spans()] == ["program"]
    assert telemetry.metrics()["messaging.client.sent.messages"][0].value == 1


async def test_messages_are_unchanged_without_an_sdk(js, stream, make_event):
    """OpenTelemetry's API alone creates no spans."""
    instrumentation = otel.Instrumentation()
    async with Publisher(js, instrumentation=instrumentation) as publisher:
        await publisher.publish(make_event(1), f"{stream}.x")
    assert "traceparent" not in (await js.get_msg(stream, 1)).headers
    options = {"dead_letter": None, "create": ConsumerConfig(), "instrumentation": instrumentation}
    async with PullConsumer(js, stream, "c", **options) as consumer, await asyncio.wait_for(anext(consumer), 60) as got:
        assert got.get_id() == "event 1"


# --- Metrics ---------------------------------------------------------------------------------------------------------


async def test_metrics_have_attributes_of_low_cardinality(js, stream, telemetry, consume, make_event):
    """One point for each combination of attributes. A subject is an attribute only by its template."""
    async with Publisher(js, instrumentation=telemetry.instrumentation) as publisher:
        for number in range(3):
            await publisher.publish(make_event(number), f"{stream}.t.region{number}")
        await publisher.publish(make_event(3), f"{stream}.plain")
        await publisher.publish(make_event(4), f"{stream}.user.4711.x")
    await js.publish(f"{stream}.plain", b"no event")
    with pytest.raises(PublishError):
        async with Publisher(js, instrumentation=telemetry.instrumentation) as publisher:
            await publisher.publish(make_event(5), "no.stream")

    async def handle(delivery):
        await asyncio.sleep(0.01)
        if delivery.subject.endswith(".x"):
            raise KeyError("customer")

    outcomes = []
    async with consume(max_deliveries=1, on_outcome=outcomes.append) as consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: len(outcomes) == 6 or task.done())
        consumer.stop()
        await task
    metrics = telemetry.metrics()
    common = {
        "messaging.system": "nats",
        "messaging.operation.name": "send",
        "cloudevents.event_type": "com.example.test",
    }
    low = {"messaging.destination.template": f"{stream}.{{type}}.{{region}}"}
    plain = {"messaging.destination.name": f"{stream}.plain"}
    sent = [
        (3, common | low | {"ce_nats.outcome": "published"}),
        (1, common | plain | {"ce_nats.outcome": "published"}),
        (1, common | {"ce_nats.outcome": "published"}),
        (1, common | {"ce_nats.outcome": "refused", "error.type": "no-responders"}),
    ]
    assert [(one.value, dict(one.attributes)) for one in metrics["messaging.client.sent.messages"]] == sent
    assert [(one.count, dict(one.attributes)) for one in metrics["messaging.client.operation.duration"]] == [
        (count, attributes | {"messaging.operation.type": "send"}) for count, attributes in sent
    ]
    common |= {"messaging.operation.name": "process", "messaging.consumer.group.name": "billing"}
    handled = [
        (3, common | low | {"ce_nats.outcome": "acknowledged"}),
        (1, common | plain | {"ce_nats.outcome": "acknowledged"}),
        (1, common | {"ce_nats.outcome": "terminated", "error.type": "KeyError"}),
    ]
    undecodable = common | plain | {"ce_nats.outcome": "terminated", "error.type": "not-a-cloudevent"}
    del undecodable["cloudevents.event_type"]
    assert [(one.value, dict(one.attributes)) for one in metrics["messaging.client.consumed.messages"]] == [
        *handled,
        (1, undecodable),
    ]
    durations = metrics["messaging.process.duration"]
    assert [(one.count, dict(one.attributes)) for one in durations] == handled
    assert all(0.009 <= one.min <= one.max < 60 for one in durations)
    assert durations[0].explicit_bounds == (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


async def test_lag_of_an_open_consumer(js, stream, telemetry, consume, make_event):
    for number in range(3):
        await aio.jetstream.publish(js, make_event(number), f"{stream}.plain")

    def lag():
        points = {name: telemetry.metrics().get(f"ce_nats.consumer.{name}") for name in Lag._fields}
        return {name: point.value for name, [point] in points.items()} if all(points.values()) else None

    async with consume():
        await until(lag)
        found = lag()
        assert found["pending"] + found["ack_pending"] == 3
        assert found["redelivered"] == 0
        [point] = telemetry.metrics()["ce_nats.consumer.pending"]
        own = {"messaging.system": "nats", "messaging.consumer.group.name": "billing", "ce_nats.stream": stream}
        assert dict(point.attributes) == own
    assert lag() is None


async def test_batches(js, stream, telemetry, consume, make_event):
    for number in range(4):
        await aio.jetstream.publish(js, make_event(number), f"{stream}.plain")
    calls = []

    async def handle(batch):
        calls.append(len(batch))
        if len(calls) == 1:
            raise KeyError
        await asyncio.sleep(0.01)
        if len(calls) == 3:
            consumer.stop()

    async with consume() as consumer:
        await asyncio.wait_for(consumer.run_batches(handle, max_events=4, max_wait=60), 60)
    own = {"messaging.system": "nats", "messaging.consumer.group.name": "billing", "ce_nats.stream": stream}
    metrics = telemetry.metrics()
    failed, done = sorted(metrics["ce_nats.batch.size"], key=lambda point: point.count)
    assert (failed.sum, dict(failed.attributes)) == (4, own | {"error.type": "KeyError"})
    assert (done.sum, done.count, dict(done.attributes)) == (4, 2, own)
    slowest = max(metrics["ce_nats.batch.duration"], key=lambda point: point.max)
    assert 0.009 <= slowest.min <= slowest.max < 60
    assert dict(slowest.attributes) == own


async def test_expired_events_are_counted_and_have_no_duration(consume, stream, js, make_event, telemetry):
    await aio.jetstream.publish(js, make_event(expirytime="2020-01-01T00:00:00Z"), f"{stream}.plain")
    outcomes = []
    options = {"on_outcome": outcomes.append, "instrumentation": telemetry.instrumentation}
    async with consume(skip_expired=True, **options) as consumer:
        task = asyncio.create_task(anext(consumer, None))
        await until(lambda: outcomes)
        consumer.stop()
        await task
    metrics = telemetry.metrics()
    (counted,) = metrics["messaging.client.consumed.messages"]
    assert (counted.value, counted.attributes["ce_nats.outcome"]) == (1, "expired")
    assert "messaging.process.duration" not in metrics
    assert telemetry.spans("process") == []


async def test_metric_is_the_duration_of_the_span(js, stream, telemetry, consume, make_event):
    """The conventions require it. A busy machine may stop the program between both."""
    await aio.jetstream.publish(js, make_event(1), f"{stream}.x")
    await run(consume(), lambda _: asyncio.sleep(0.05), 1)
    (span,) = telemetry.spans("process")
    (point,) = telemetry.metrics()["messaging.process.duration"]
    assert 0.05 <= point.sum == pytest.approx((span.end_time - span.start_time) / 1e9, abs=1)


async def test_message_that_is_released_unhandled_is_not_counted(js, stream, telemetry, consume, make_event):
    for number in range(2):
        await aio.jetstream.publish(js, make_event(number), f"{stream}.x")
    outcomes = []
    async with consume(on_outcome=outcomes.append) as consumer, await asyncio.wait_for(anext(consumer), 60):
        await until_consumer(js, stream, lambda info: info.num_ack_pending == 2, "billing")
    assert [str(one.kind) for one in outcomes] == ["acknowledged", "released"]
    assert [one.value for one in telemetry.metrics()["messaging.client.consumed.messages"]] == [1]


def test_names_are_those_of_the_conventions():
    """Those that the released package of the conventions has."""
    names = {value for name, value in vars(messaging_attributes).items() if name.startswith("MESSAGING_")}
    own = {value for value in vars(otel).values() if isinstance(value, str) and value.startswith("messaging.")}
    assert len(own) == 8
    assert own <= names
    instruments = Telemetry().instrumentation
    kinds = ("SENT_MESSAGES", "CONSUMED_MESSAGES", "OPERATION_DURATION")
    expected = {getattr(messaging_metrics, f"MESSAGING_CLIENT_{kind}") for kind in kinds}
    expected.add(messaging_metrics.MESSAGING_PROCESS_DURATION)
    assert {
        one.name for one in (instruments._sent, instruments._consumed, instruments._sending, instruments._processing)
    } == expected


# --- Without a Publisher or a PullConsumer ---------------------------------------------------------------------------


async def test_single_messages_are_instrumented(js, stream, telemetry, make_event):
    """Published and received on core NATS."""
    nc = js._nc
    instrumentation = telemetry.instrumentation
    async with await aio.subscribe(nc, "core.>") as messages:
        template = SubjectTemplate("core.{id}")
        with instrumentation.sending(make_event(1), template) as context:
            await aio.publish(nc, make_event(1), template, trace=context)
        await nc.publish("core.x", b"no event")
        received = await asyncio.wait_for(anext(messages), 60)
        with pytest.raises(KeyError), instrumentation.processing(received) as event:
            raise KeyError(event.get_id())
        received = await asyncio.wait_for(anext(messages), 60)
        with pytest.raises(DecodeError), instrumentation.processing(received):
            pytest.fail("there is no event")
    send, process, no_event = telemetry.spans()
    assert parent(process) == send.context.span_id
    assert (send.name, process.name) == ("send core.{id}", "process core.event%201")
    assert process.attributes["error.type"] == "KeyError"
    assert "messaging.consumer.group.name" not in process.attributes
    assert no_event.attributes["error.type"] == "not-a-cloudevent"
    metrics = telemetry.metrics()
    assert [one.value for one in metrics["messaging.client.sent.messages"]] == [1]
    assert [one.value for one in metrics["messaging.client.consumed.messages"]] == [1, 1]


async def test_failures_of_single_messages_are_recorded(js, telemetry, make_event):
    """A message that the server refuses is counted as sent, a message that cannot be encoded is not."""
    sending = partial(telemetry.instrumentation.sending, make_event(1))
    with pytest.raises(DeliveryError), sending("no.stream"):
        await aio.jetstream.publish(js, make_event(1), "no.stream")
    with pytest.raises(EncodeError), sending("a b"):
        await aio.jetstream.publish(js, make_event(1), "a b")
    assert [span.attributes["error.type"] for span in telemetry.spans()] == ["no-responders", "invalid-subject"]
    (point,) = telemetry.metrics()["messaging.client.sent.messages"]
    assert (point.value, point.attributes["ce_nats.outcome"]) == (1, "refused")


def test_malformed_template_is_rejected():
    with pytest.raises(EncodeError):
        otel.Instrumentation(subjects=["orders.*"])


def test_missing_extra_is_named():
    code = "import sys; sys.modules['opentelemetry'] = None; import ce_nats.aio; import ce_nats.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        done.stderr.splitlines()[-1] == "ImportError: ce_nats.otel needs opentelemetry-api: pip install 'ce-nats[otel]'"
    )
