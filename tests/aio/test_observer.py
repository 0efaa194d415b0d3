"""Outcomes of messages, as reported to hooks of consumers and publishers."""

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import replace

import nats
import pytest
from nats.js.api import ConsumerConfig, PubAck

from ce_nats import EncodeError, ErrorCode, NatsMessage, to_nats_message
from ce_nats.aio import DeliveryError, MessageOutcome, OutcomeKind, Publisher, PublishError, PullConsumer, Reject
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio._observer import Observer
from ce_nats.aio.jetstream import configure_stream
from ce_nats.codec.subject_template import SubjectTemplate
from ce_nats.redelivery import Backoff, Reason
from ce_nats.testing import FakeDelivery
from tests.support.consuming import until_consumer
from tests.support.waiting import until


@pytest.fixture
def outcomes():
    """Outcomes that were reported to the hook, in order."""
    return []


@pytest.fixture
def publish(js, subject, stream, make_event):
    async def publish(*numbers):
        for number in numbers:
            await ce_js.publish(js, make_event(number), subject)

    return publish


@pytest.fixture
def consume(js, stream, dead, outcomes):
    """Return a consumer whose hook appends to ``outcomes``; retries are immediate."""

    def consume(name="c", **options):
        create = ConsumerConfig(ack_wait=60)
        known = {"dead_letter": dead, "create": create, "backoff": [0], "on_outcome": outcomes.append}
        return PullConsumer(js, stream, name, **{**known, **options})

    return consume


async def take(consumer):
    return await asyncio.wait_for(anext(consumer), 60)


async def run(consumer, handler, outcomes, count):
    """Run until the hook has received a number of outcomes."""
    task = asyncio.create_task(consumer.run(handler))
    await until(lambda: len(outcomes) >= count or task.done())
    consumer.stop()
    await task


class Recording:
    """An instrumentation that records its calls, and those of its operations."""

    trace = None

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            return self

        return call


def test_kinds_are_their_names():
    names = {
        *("acknowledged", "expired", "redelivered", "released", "dead-lettered", "terminated", "unsettled", "settled"),
        *("filtered", "published", "refused", "unacknowledged", "unavailable"),
    }
    assert {str(kind) for kind in OutcomeKind} == names
    assert all(kind.name.lower() == kind.value.replace("-", "_") for kind in OutcomeKind)


# --- Consumers -------------------------------------------------------------------------------------------------------


async def test_each_delivery_has_one_outcome(js, subject, publish, consume, outcomes):
    """Acknowledged, redelivered and acknowledged, rejected, exhausted, and undecodable."""
    await publish(1, 2, 3, 4)
    await js.publish(subject, b"no event")

    async def handle(delivery):
        number = int(delivery.event.get_id().split()[1])
        await asyncio.sleep(0.01)
        if number == 2 and delivery.deliveries == 1:
            raise KeyError("once")
        if number == 3:
            raise Reject("never")
        if number == 4:
            raise ValueError("always")

    async with consume(max_deliveries=3, backoff=[0.01], on_error=lambda *_: None) as consumer:
        await run(consumer, handle, outcomes, 8)
    found = sorted((one.delivery.sequence, one.delivery.deliveries, str(one.kind), one.reason) for one in outcomes)
    assert found == [
        (1, 1, "acknowledged", None),
        (2, 1, "redelivered", None),
        (2, 2, "acknowledged", None),
        (3, 1, "dead-lettered", Reason.REJECTED),
        (4, 1, "redelivered", None),
        (4, 2, "redelivered", None),
        (4, 3, "dead-lettered", Reason.EXHAUSTED),
        (5, 1, "dead-lettered", Reason.UNDECODABLE),
    ]
    errors = {(one.delivery.sequence, one.delivery.deliveries): one.error for one in outcomes}
    assert [type(errors[key]).__name__ for key in sorted(errors)] == [
        *("NoneType", "KeyError", "NoneType", "Reject", "ValueError", "ValueError", "ValueError", "DecodeError")
    ]
    for one in outcomes:
        assert one.subject == subject
        assert one.message is one.delivery.message
        assert (one.event, one.ack, one.template) == (None, None, "")
        assert one.delay == (0.01 if one.kind is OutcomeKind.REDELIVERED else None)
        if one.delivery.sequence == 5:
            assert one.seconds is None
        else:
            assert 0.009 <= one.seconds < 60


async def test_message_without_dead_letter_subject_is_terminated(publish, consume, outcomes):
    await publish(1)
    async with consume(dead_letter=None) as consumer:
        with pytest.raises(Reject):
            async with await take(consumer):
                raise Reject
    assert [(one.kind, one.reason) for one in outcomes] == [(OutcomeKind.TERMINATED, Reason.REJECTED)]


async def test_unhandled_messages_are_released(js, stream, publish, consume, outcomes):
    await publish(1, 2, 3)
    async with consume() as consumer, await take(consumer):
        await until_consumer(js, stream, lambda info: info.num_ack_pending == 3)
    assert [(one.delivery.sequence, one.kind, one.seconds is None) for one in outcomes] == [
        (1, OutcomeKind.ACKNOWLEDGED, False),
        (2, OutcomeKind.RELEASED, True),
        (3, OutcomeKind.RELEASED, True),
    ]


async def test_message_of_a_cancelled_handler_is_released(publish, consume, outcomes):
    await publish(1)
    began = asyncio.Event()

    async def handle(_):
        began.set()
        await asyncio.sleep(60)

    async with consume() as consumer:
        task = asyncio.create_task(consumer.run(handle))
        await asyncio.wait_for(began.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert {one.kind for one in outcomes} == {OutcomeKind.RELEASED}  # it may have been fetched again
    assert isinstance(outcomes[0].error, asyncio.CancelledError)
    assert [one.seconds is None for one in outcomes] == [False] + [True] * (len(outcomes) - 1)


@pytest.mark.parametrize(
    ("settle", "kind", "delay"),
    [
        (lambda delivery: delivery.ack(), OutcomeKind.ACKNOWLEDGED, None),
        (lambda delivery: delivery.nak(60), OutcomeKind.REDELIVERED, 60),
        (lambda delivery: delivery.reject("no"), OutcomeKind.DEAD_LETTERED, None),
        (lambda delivery: delivery.message.term(), OutcomeKind.SETTLED, None),
    ],
)
@pytest.mark.parametrize("in_block", [True, False])
async def test_explicitly_settled_message_is_reported(publish, consume, outcomes, settle, kind, delay, in_block):
    """In a block the outcome is reported at its end, with its exception; without a block, at once."""
    await publish(1)
    async with consume() as consumer:
        delivery = await take(consumer)
        if in_block:
            with suppress(KeyError):
                async with delivery:
                    await settle(delivery)
                    assert outcomes == []
                    raise KeyError
        else:
            await settle(delivery)
            await delivery.ack()
            async with delivery:
                pass
        assert [(one.kind, one.delay, one.seconds is None) for one in outcomes] == [(kind, delay, not in_block)]
        if in_block and kind is not OutcomeKind.DEAD_LETTERED:
            assert isinstance(outcomes[0].error, KeyError)
    assert len(outcomes) == 1


async def test_unsent_acknowledgement_is_reported(server, stream, publish, outcomes):
    """The outcome is unsettled: the message is redelivered after ``ack_wait``."""
    await publish(1)
    nc = await nats.connect(server.url)
    options = {"dead_letter": None, "create": ConsumerConfig(), "on_outcome": outcomes.append}
    async with PullConsumer(nc.jetstream(), stream, "c", **options) as consumer:
        delivery = await take(consumer)
        with pytest.raises(DeliveryError) as info:
            async with delivery:
                await nc.close()
    assert [(one.kind, one.error) for one in outcomes] == [(OutcomeKind.UNSETTLED, info.value)]


@pytest.mark.parametrize("error", [None, KeyError("a")], ids=["success", "error"])
def test_outcome_of_a_handler_that_settles_nothing(make_event, outcomes, error):
    delivery, instruments = FakeDelivery(to_nats_message(make_event(), "orders")), Recording()
    handling = Observer(outcomes.append, instruments).begin(delivery)
    handling.leave()
    handling.end(error)
    (outcome,) = outcomes
    expected = MessageOutcome(OutcomeKind.UNSETTLED, "orders", delivery.message, delivery, error=error)
    assert replace(outcome, seconds=None) == expected
    assert outcome.delivery is delivery
    assert instruments.calls == [("process", delivery), ("leave",), ("end", outcome, error), ("record", outcome)]


async def test_exception_in_a_hook_changes_nothing(js, stream, publish, consume, caplog):
    """The exception is logged; each message is handled and acknowledged once."""
    await publish(*range(20))
    handled = []

    def fail(outcome):
        raise KeyError(outcome.subject)

    async def handle(delivery):
        handled.append(delivery.sequence)
        if len(handled) == 20:
            consumer.stop()

    with caplog.at_level(logging.ERROR):
        async with consume(on_outcome=fail, double_ack=True) as consumer:
            await asyncio.wait_for(consumer.run(handle), 60)
    assert handled == list(range(1, 21))
    info = await js.consumer_info(stream, "c")
    assert (info.num_ack_pending, info.num_redelivered, info.num_pending) == (0, 0, 0)
    assert [record.exc_info[0] for record in caplog.records] == [KeyError] * 20


async def test_reported_delays_are_those_sent(publish, consume, outcomes, nc):
    """Delays of a Backoff are partly random; the hook receives the delays that the server receives."""
    sent = asyncio.Queue()

    async def note(message):
        sent.put_nowait(message.data)

    await nc.subscribe("$JS.ACK.>", cb=note)
    await publish(*range(20))

    async def handle(_):
        raise KeyError

    async with consume(backoff=Backoff(200, jitter=0.5), on_error=lambda *_: None, pause_after=None) as consumer:
        await run(consumer, handle, outcomes, 20)
        answers = [await asyncio.wait_for(sent.get(), 60) for _ in range(20)]
    delays = [one.delay for one in outcomes]
    assert len(set(delays)) > 10
    assert all(100 <= delay <= 200 for delay in delays)
    found = [json.loads(answer.removeprefix(b"-NAK "))["delay"] for answer in answers]
    assert sorted(found) == pytest.approx(sorted(delay * 1e9 for delay in delays))


# --- Publishers ------------------------------------------------------------------------------------------------------


async def test_each_published_event_has_one_outcome(js, subject, stream, make_event, outcomes):
    template = SubjectTemplate(f"{subject}.{{type}}")
    events = [make_event(1), make_event(2)]
    async with Publisher(js, on_outcome=outcomes.append) as publisher:
        await publisher.publish(events[0], subject)
        await publisher.publish(events[1], template)
        with pytest.raises(Exception, match="id"):
            await publisher.publish(make_event(3, id=""), subject)
    first, second = outcomes
    assert (first.kind, first.subject, first.event, first.template) == ("published", subject, events[0], "")
    assert (first.ack.seq, first.error, first.delivery) == (1, None, None)
    assert first.message.headers.get("ce-id") == "event%201"
    assert first.seconds > 0
    assert (second.subject, second.template) == (template.format(events[1]), template.template)


def test_instrumentation_receives_the_subject_or_the_template(make_event):
    instruments, event = Recording(), make_event()
    template = SubjectTemplate("orders.{type}")
    for subject in ("orders", template):
        Observer(None, instruments).send(event, subject)
    assert instruments.calls == [("send", event, "orders", ""), ("send", event, "", "orders.{type}")]


def test_only_events_can_be_sent():
    instruments = Recording()
    with pytest.raises(EncodeError, match="invalid-message"):
        Observer(None, instruments).send("no event", "orders")
    assert instruments.calls == []


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (PubAck(stream="S", seq=1), OutcomeKind.PUBLISHED),
        (DeliveryError(ErrorCode.PUBLISH_REFUSED, "full"), OutcomeKind.REFUSED),
        (DeliveryError(ErrorCode.PERMISSION_DENIED, "denied"), OutcomeKind.REFUSED),
        (DeliveryError(ErrorCode.NO_RESPONDERS, "a"), OutcomeKind.REFUSED),
        (DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, "a"), OutcomeKind.REFUSED),
        (DeliveryError(ErrorCode.TEMPORARILY_UNAVAILABLE, "a"), OutcomeKind.REFUSED),
        (DeliveryError(ErrorCode.INVALID_BATCH, "a"), OutcomeKind.REFUSED),
        (DeliveryError(ErrorCode.CONNECTION_CLOSED, "a"), OutcomeKind.UNACKNOWLEDGED),
    ],
    ids=["published", *("refused", "denied", "no stream", "config", "unavailable", "batch"), "closed"],
)
def test_outcome_of_a_sent_event(make_event, outcomes, result, kind):
    event, instruments = make_event(), Recording()
    template = SubjectTemplate("orders.{id}")
    message = NatsMessage("orders.1", b"")
    Observer(outcomes.append, instruments).send(event, template).done(message, result)
    (outcome,) = outcomes
    error, ack = (None, result) if isinstance(result, PubAck) else (result, None)
    expected = MessageOutcome(kind, "orders.1", message, event=event, error=error, ack=ack, template=template.template)
    assert replace(outcome, seconds=None) == expected
    assert 0 <= outcome.seconds < 60
    assert instruments.calls[1:] == [("end", outcome, error), ("record", outcome)]


def test_event_that_is_not_sent_has_no_outcome(make_event, outcomes):
    instruments, error = Recording(), KeyError("a")
    Observer(outcomes.append, instruments).send(make_event(), "orders").abandon(error)
    assert outcomes == []
    assert instruments.calls[1:] == [("end", None, error)]


async def test_refused_event_has_an_outcome(js, subject, stream, make_event, outcomes):
    with pytest.raises(PublishError):
        async with Publisher(js, on_outcome=outcomes.append) as publisher:
            await publisher.publish(make_event(1), subject, headers={"Nats-Expected-Last-Sequence": "7"})
    with pytest.raises(PublishError):
        async with Publisher(js, on_outcome=outcomes.append) as publisher:
            await publisher.publish(make_event(1), "unbound")
    assert [(one.kind, one.error.code) for one in outcomes] == [
        (OutcomeKind.REFUSED, "publish-refused"),
        (OutcomeKind.REFUSED, "no-responders"),
    ]


async def test_missing_acknowledgements_have_an_outcome(nc, js, subject, make_event, outcomes):
    """After a timeout, and at the end of a cancelled block."""

    await nc.subscribe(subject)
    with pytest.raises(PublishError):
        async with Publisher(js, ack_timeout=0.1, retry_timeout=0.1, on_outcome=outcomes.append) as publisher:
            await publisher.publish(make_event(1), subject)
    with suppress(asyncio.CancelledError):
        async with Publisher(js, on_outcome=outcomes.append) as publisher:
            await publisher.publish(make_event(2), subject)
            raise asyncio.CancelledError
    assert [(one.kind, one.error.code) for one in outcomes] == [(OutcomeKind.UNACKNOWLEDGED, "timeout")] * 2


@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("kind", [KeyError, asyncio.CancelledError, pytest.fail.Exception])
async def test_exception_in_a_publishers_hook_changes_nothing(
    js, stream, subject, make_event, caplog, kind, is_batched
):
    def fail(outcome):
        raise kind(outcome.subject)

    await configure_stream(js, stream, allow_batched=True)
    async with Publisher(js, on_outcome=fail, fast_ingest=is_batched) as publisher:
        for number in range(20):
            await publisher.publish(make_event(number), subject)
        await asyncio.wait_for(publisher.flush(), 60)
    assert publisher.acknowledged == 20
    assert bool(publisher.batched) == is_batched
    assert (await js.stream_info(stream)).state.messages == 20
    assert len(caplog.records) == 20


# --- Instrumentations ------------------------------------------------------------------------------------------------


class Failing:
    """Raises in every call, also of the objects that it returns."""

    def __init__(self, then=None):
        self.then = then
        self.trace = None

    def __getattr__(self, name):
        if name in ("send", "process") and self.then is not None:
            return lambda *_: self.then

        def fail(*_):
            raise KeyError(name)

        return fail


@pytest.mark.parametrize("instruments", [Failing(), Failing(then=Failing())])
async def test_exception_in_an_instrumentation_changes_nothing(
    js, stream, subject, make_event, consume, outcomes, instruments, caplog
):
    async with Publisher(js, on_outcome=outcomes.append, instrumentation=instruments) as publisher:
        for number in range(3):
            await publisher.publish(make_event(number), subject)
        with pytest.raises(EncodeError):
            await publisher.publish(make_event(4), "a b")
    async with consume(instrumentation=instruments, double_ack=True) as consumer:
        await run(consumer, lambda _: asyncio.sleep(0), outcomes, 6)
    assert [str(one.kind) for one in outcomes] == ["published"] * 3 + ["acknowledged"] * 3
    info = await js.consumer_info(stream, "c")
    assert (info.num_ack_pending, info.num_redelivered, info.num_pending) == (0, 0, 0)
    assert {record.exc_info[0] for record in caplog.records} == {KeyError}
