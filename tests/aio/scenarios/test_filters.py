"""Filters of consumers and subscriptions."""

import asyncio
from collections import Counter

import pytest

from ce_nats import ContentMode, DecodedEvent, aio, cesql
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio import publish as publish_core
from ce_nats.routing import Router
from tests.support.consuming import after, consume, is_settled, number_of
from tests.support.waiting import until

__all__ = ["consume", "is_settled"]

EVEN = "count % 2 = 0"


@pytest.fixture
def send(js, subject, stream, make_event):
    """Publish events with the attribute ``count``; strings are ids of events without it, bytes other messages."""

    async def send(*values, mode=ContentMode.BINARY, data=None):
        for value in values:
            if isinstance(value, bytes):
                await js.publish(subject, value)
            elif isinstance(value, str):
                await ce_js.publish(js, make_event(0, id=value), subject, mode=mode)
            else:
                await ce_js.publish(js, make_event(value, data, count=value), subject, mode=mode)

    return send


@pytest.mark.parametrize("mode", list(ContentMode))
@pytest.mark.parametrize("options", [{}, {"double_ack": True}, {"prefetch": 1}, {"on_outcome": True}])
async def test_only_events_that_pass_are_handled(consume, send, is_settled, mode, options):
    """All others are acknowledged; only an observer sees them, with their events."""
    await send(*range(200), mode=mode)
    outcomes, numbers = [], []
    if "on_outcome" in options:
        options = {"on_outcome": outcomes.append}

    async def handle(delivery):
        numbers.append(number_of(delivery.event))

    async with consume(filter=EVEN, **options) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await is_settled()
        consumer.stop()
        await after(running)
    assert numbers == list(range(0, 200, 2))
    if outcomes:
        await until(lambda: len(outcomes) == 200)
        assert Counter(str(outcome.kind) for outcome in outcomes) == {"acknowledged": 100, "filtered": 100}
        filtered = [outcome for outcome in outcomes if outcome.kind is aio.OutcomeKind.FILTERED]
        assert {number_of(outcome.delivery.event) % 2 for outcome in filtered} == {1}
        assert {outcome.seconds for outcome in filtered} == {None}


@pytest.mark.parametrize("options", [{}, {"on_outcome": lambda _: None}])
async def test_errors_do_not_pass_and_the_first_are_logged(consume, send, is_settled, caplog, options):
    """Each event once, also with an observer."""
    await send(0, 2, 4, *(f"none {number}" for number in range(6)), 6)
    async with consume(filter=cesql.compile(EVEN), **options) as consumer:
        running = asyncio.create_task(consumer.run(_ignore))
        await is_settled()
        consumer.stop()
        await after(running)
    lines = [record.message for record in caplog.records if record.name == "ce_nats.filter"]
    assert len(lines) == 3
    for number, line in enumerate(lines):
        assert f"the event with id 'none {number}' does not pass: missing-attribute at position 0" in line
    assert lines[2].endswith("further errors of the filter are not logged")


async def _ignore(delivery):
    pass


async def test_messages_that_are_not_events_are_dead_lettered(consume, send, is_settled, dead_letters, js, subject):
    """As without a filter, also those whose headers look like an event's."""
    await send(b"no event", 1)
    named = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-count": "1"}
    await js.publish(subject, b"", headers={**named, "ce-time": "2024-02-30T00:00:00Z"})
    await js.publish(subject, b"", headers={**named, "ce-type": "%FF"})
    async with consume(filter=EVEN) as consumer:
        running = asyncio.create_task(consumer.run(_ignore))
        await dead_letters(3)
        await is_settled()
        consumer.stop()
        await after(running)


async def test_batches_have_only_events_that_pass(consume, send, is_settled):
    await send(*range(100))
    batches = []

    async def handle(batch):
        batches.append([number_of(event) for event in batch.events])

    async with consume(filter=EVEN) as consumer:
        running = asyncio.create_task(consumer.run_batches(handle, max_events=20))
        await is_settled()
        consumer.stop()
        await after(running)
    assert [number for batch in batches for number in batch] == list(range(0, 100, 2))


async def test_filtered_event_does_not_hold_back_its_key(consume, send, is_settled):
    """It is acknowledged while an event before it is retried; its key is not asked for."""
    await send(2, 1, 3, 4)
    asked, failed, numbers = [], asyncio.Event(), []

    def key(delivery):
        asked.append(number_of(delivery.event))
        return "one"

    async def handle(delivery):
        numbers.append(number_of(delivery.event))
        if len(numbers) == 1:
            raise ValueError("later")

    async with consume(filter=EVEN, backoff=[0.05], on_error=lambda *_: failed.set()) as consumer:
        running = asyncio.create_task(consumer.run(handle, key=key, concurrency=4))
        await is_settled()
        consumer.stop()
        await after(running)
    assert numbers == [2, 2, 4]
    assert asked == [2, 4]
    assert failed.is_set()


async def test_failures_are_not_forgotten_because_of_filtered_events(consume, send):
    """An acknowledgement by the filter is not a success of the handler, which would end an outage."""
    await send(*range(40))
    outcomes = []

    async def fail(delivery):
        raise OSError("down")

    async with consume(filter=EVEN, pause_after=10, on_outcome=outcomes.append) as consumer:
        running = asyncio.create_task(consumer.run(fail))
        await until(lambda: "unavailable" in {str(outcome.kind) for outcome in outcomes})
        consumer.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("raw", [True, False])
async def test_subscription(nc, subject, make_event, raw):
    """Events that do not pass are dropped; messages that are not events arrive with their errors."""
    plain = await nc.subscribe(subject)
    async with aio.subscribe(nc, subject, filter=EVEN) as received:
        items = received if raw else aio.events(plain, filter=EVEN)
        for number in range(10):
            mode = ContentMode.STRUCTURED if number >= 5 else ContentMode.BINARY
            await publish_core(nc, make_event(number, count=number), subject, mode=mode)
        await nc.publish(subject, b"no event")
        numbers = []
        async for item in items:
            if item.error is not None:
                break
            numbers.append(number_of(item.event))
    await plain.unsubscribe()
    assert numbers == [0, 2, 4, 6, 8]


async def test_refused_expressions(js, nc, subject, stream):
    """They are errors of the call, with the position."""
    for text in ("count %", "count = 'x"):
        with pytest.raises(cesql.ParseError):
            aio.PullConsumer(js, stream, "c", dead_letter=None, filter=text)
        with pytest.raises(cesql.ParseError):
            await aio.subscribe(nc, subject, filter=text)
    with pytest.raises(TypeError, match="must be a str"):
        aio.PullConsumer(js, stream, "c", dead_letter=None, filter=lambda event: True)


async def test_filter_of_a_router(consume, send, is_settled):
    """Its events are acknowledged with the same outcome; handlers of batches get only those that pass."""
    await send(*range(100))
    outcomes, numbers = [], []
    router = Router()

    @router.on("com.example.*", filter=EVEN)
    async def handle(event: DecodedEvent):
        numbers.append(number_of(event))

    @router.batch("com.example.test", filter="count % 5 = 0")
    async def handle_batch(batch: aio.Batch):
        numbers.extend(map(number_of, batch.events))

    async with consume(on_outcome=outcomes.append) as consumer:
        running = asyncio.create_task(consumer.run_batches(router, max_events=30))
        await is_settled()
        consumer.stop()
        await after(running)
    assert numbers == list(range(0, 100, 5))
    await until(lambda: len(outcomes) == 100)
    assert Counter(str(outcome.kind) for outcome in outcomes) == {"acknowledged": 20, "filtered": 80}
