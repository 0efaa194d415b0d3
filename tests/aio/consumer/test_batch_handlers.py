"""Handlers of batches: what is acknowledged, divided, redelivered, dead-lettered and released."""

import asyncio
import contextlib

import pytest

from ce_nats.aio import BatchError
from ce_nats.errors import Reject
from tests.support.consuming import after, consume, is_settled, number_of, publish, until_consumer
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "publish"]


def numbers_of(batch):
    return [number_of(event) for event in batch]


def flat(calls):
    """Return the numbers of all calls."""
    return [number for call in calls for number in call]


@pytest.fixture
def run(consume):
    """
    Run a handler of batches until certain events were in a call that has returned, or in one that is not divided.

    Returns the numbers of each call.
    """

    async def run(handler, last, *, options=None, **arguments):
        calls, handled = [], set()
        async with consume(**(options or {})) as consumer:

            async def handle(batch):
                numbers = numbers_of(batch)
                calls.append(numbers)
                is_divided = len(batch) > 1
                try:
                    await handler(batch)
                    is_divided = False
                except BatchError as error:
                    is_divided &= max(error.errors) >= len(batch)
                    raise
                finally:
                    if not is_divided:
                        handled.update(numbers)
                    if last <= handled:
                        consumer.stop()

            await after(consumer.run_batches(handle, **arguments))
        return calls

    return run


async def nothing(batch):
    pass


@pytest.mark.parametrize(
    "options",
    [{}, {"double_ack": True}, {"ack_delay": 0}, {"on_outcome": lambda _: None}],
    ids=["default", "double_ack", "ack_delay", "on_outcome"],
)
async def test_events_in_order(run, publish, is_settled, js, stream, options):
    await publish(*range(300))
    calls = await run(nothing, {*range(300)}, options=options, max_events=100, max_wait=60)
    assert flat(calls) == [*range(300)]
    assert [*map(len, calls)] == [100, 100, 100]
    await is_settled()
    assert (await js.consumer_info(stream, "c")).num_redelivered == 0


async def test_each_event_is_in_one_batch(run, publish, is_settled):
    await publish(*range(300))
    together = []

    async def handle(batch):
        together.append(asyncio.current_task())
        await asyncio.sleep(0.02)

    calls = await run(handle, {*range(300)}, max_events=20, max_wait=0.01, concurrency=4)
    assert sorted(flat(calls)) == [*range(300)]
    assert len({*together}) == 4
    await is_settled()


async def test_batch_is_complete_after_its_time(consume, publish, is_settled):
    calls = []
    async with consume() as consumer:

        async def handle(batch):
            calls.append(numbers_of(batch))
            if flat(calls) == [1, 2, 3]:
                consumer.stop()

        async def later():
            await publish(1)
            await until(lambda: calls)
            await publish(2, 3)

        await after(asyncio.gather(consumer.run_batches(handle, max_wait=0.05), later()))
    assert calls[0] == [1]
    await is_settled()


async def test_failing_event_is_dead_lettered_alone(run, publish, is_settled, dead_letters):
    await publish(*range(100))
    done, deliveries = [], []

    async def insert(batch):
        numbers = numbers_of(batch)
        if 42 in numbers:
            if len(batch) == 1:
                deliveries.append(batch.deliveries[0].deliveries)
            raise ValueError("constraint")
        assert {delivery.deliveries for delivery in batch.deliveries} == {1}
        done.extend(numbers)

    options = {"max_deliveries": 3, "on_error": lambda error, delivery: None}
    task = asyncio.create_task(run(insert, {*range(100), 1000}, options=options, max_events=100))
    [letter] = await dead_letters(1)
    await publish(1000)
    await after(task)
    assert sorted(done) == [*range(42), *range(43, 100), 1000]
    assert deliveries == [1, 2, 3]
    assert letter["dead-letter-reason"] == "exhausted"
    await is_settled()


@pytest.fixture
async def dead_letters(js, dead):
    """Wait for dead letters, and return their headers."""
    subscription = await js.subscribe(dead)

    async def dead_letters(count):
        found = []
        for _ in range(count):
            message = await subscription.next_msg(timeout=30)
            found.append({name.lower(): value for name, value in message.headers.items()})
        return found

    return dead_letters


async def test_named_events_have_failed(run, publish, is_settled, dead_letters):
    await publish(*range(10))
    errors = []

    async def handle(batch):
        named = {index: Reject("odd") for index, number in enumerate(numbers_of(batch)) if number % 2}
        if named:
            raise BatchError(named)

    calls = await run(
        handle,
        {*range(10)},
        options={"on_error": lambda error, delivery: errors.append((str(error), delivery.sequence))},
    )
    assert flat(calls) == [*range(10)]  # none was handled again
    assert len(await dead_letters(5)) == 5
    assert sorted(errors) == [("odd", sequence) for sequence in (2, 4, 6, 8, 10)]
    await is_settled()


async def test_names_that_are_not_in_the_batch(run, publish, is_settled):
    """It is not known which events have failed, so all are handled again."""
    await publish(*range(4))
    failed = []

    async def handle(batch):
        if len(batch) > 1:
            failed.append(len(batch))
            raise BatchError({len(batch): ValueError()})

    calls = await run(handle, {*range(4)}, max_events=4, max_wait=1)
    assert failed
    assert [call[0] for call in calls if len(call) == 1] == [*range(4)]
    await is_settled()


async def test_marked_events(run, publish, is_settled, dead_letters):
    await publish(*range(6))
    attempts = {}

    async def handle(batch):
        for index, number in enumerate(numbers_of(batch)):
            attempts[number] = attempts.get(number, 0) + 1
            if number == 2:
                batch.nak(index)
                batch.reject(index, "unknown customer")
            if number in (3, 4) and attempts[number] < 3:
                batch.reject(index)
                batch.nak(index, 0)
            if number == 5:
                await batch.deliveries[index].reject("by itself")

    task = asyncio.create_task(run(handle, {*range(6), 1000}))
    letters = await dead_letters(2)
    await until(lambda: attempts.get(3) == attempts.get(4) == 3)
    await publish(1000)
    await after(task)
    assert attempts == {0: 1, 1: 1, 2: 1, 3: 3, 4: 3, 5: 1, 1000: 1}
    assert {letter["dead-letter-text"] for letter in letters} == {"unknown%20customer", "by%20itself"}
    await is_settled()


async def test_marks_of_a_failed_call_have_no_effect(run, publish, is_settled, js, dead):
    await publish(1, 2)
    failures = []

    async def handle(batch):
        if not failures:
            for index in range(len(batch)):
                batch.reject(index)
            failures.append(True)
            raise ConnectionError

    calls = await run(handle, {1, 2}, options={"on_error": lambda *_: None}, max_events=2, max_wait=1)
    assert sorted(flat(calls)) in ([1, 1, 2, 2], [1, 1, 2])
    await is_settled()
    assert (await js.stream_info(await js.find_stream_name_by_subject(dead))).state.messages == 0


async def test_events_that_a_failed_call_has_settled_are_not_handled_again(run, publish, is_settled, dead_letters):
    await publish(*range(5))
    done = []

    async def handle(batch):
        if len(batch) == 5:
            await batch.deliveries[0].ack()
            await batch.deliveries[1].reject()
            await batch.deliveries[2].nak()
            await batch.deliveries[3].message.ack()
            raise ConnectionError
        done.extend((number_of(one.event), one.deliveries) for one in batch.deliveries)

    calls = await run(handle, {2, 4}, max_events=5, max_wait=1)
    assert calls[0] == [*range(5)]
    assert sorted(done) == [(2, 2), (4, 1)]
    assert len(await dead_letters(1)) == 1
    await is_settled()


async def test_messages_that_are_not_events(run, publish, is_settled, js, subject, dead_letters):
    await publish(0)
    for number in range(1, 30):
        await js.publish(subject, b"no event")
        await publish(number)
    calls = await run(nothing, {*range(30)})
    assert flat(calls) == [*range(30)]
    assert len(await dead_letters(29)) == 29
    await is_settled()


async def test_suspects_are_handled_alone(run, publish, is_settled, js, stream, subject, consume):
    await publish(*range(5))
    async with consume(max_deliveries=1):
        pass
    subscription = await js.pull_subscribe_bind("c", stream)
    for _ in range(2):
        for message in await subscription.fetch(5, timeout=5):
            await message.nak()
    calls = await run(nothing, {*range(5)}, options={"max_deliveries": 1, "max_unfinished": 10}, max_wait=0.5)
    assert sorted(calls) == [[number] for number in range(5)]
    await is_settled()


@pytest.mark.parametrize("failure", ["timeout", "group", "awaited"])
async def test_cancellations_within_a_handler(run, publish, is_settled, failure):
    """Timeouts, task groups and cancelled tasks are failures of the handler: the parts are handled."""
    await publish(*range(8))

    async def time_out(batch):
        await asyncio.wait_for(asyncio.sleep(60), 0.01)

    async def group(batch):
        async def fail():
            raise ValueError

        await asyncio.gather(fail(), asyncio.sleep(0))

    async def awaited(batch):
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    fail = {"timeout": time_out, "group": group, "awaited": awaited}[failure]

    async def handle(batch):
        if len(batch) > 2:
            await fail(batch)

    calls = await run(handle, {*range(8)}, max_events=8, max_wait=1)
    assert flat(call for call in calls if len(call) <= 2) == [*range(8)]
    await is_settled()


async def test_stop_timeout_releases_the_batch(consume, publish, is_settled, run):
    await publish(1, 2, 3)
    async with consume() as consumer:

        async def handle(batch):
            consumer.stop()
            await asyncio.sleep(60)

        await after(consumer.run_batches(handle, stop_timeout=0.1))
    calls = await run(nothing, {1, 2, 3})
    assert sorted(flat(calls)) == [1, 2, 3]
    await is_settled()


async def test_stop_ends_the_division_of_a_failing_batch(consume, publish, is_settled, run):
    await publish(*range(64))
    calls = []
    async with consume(ack_wait=600) as consumer:

        async def fail(batch):
            calls.append(len(batch))
            if len(batch) == 16:
                consumer.stop()
            raise ConnectionError

        await after(consumer.run_batches(fail, max_events=64, max_wait=1))
    assert calls == [64, 32, 16]
    assert sorted(flat(await run(nothing, {*range(64)}, options={"ack_wait": 600}))) == [*range(64)]
    await is_settled()


async def test_cancellation_between_parts_releases_the_rest(consume, publish, is_settled, run):
    """The handler suppresses the cancellation while it handles the first half."""
    await publish(*range(8))
    done = []
    async with consume() as consumer:

        async def handle(batch):
            if len(batch) > 1:
                raise ValueError
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            done.extend(numbers_of(batch))

        task = asyncio.create_task(consumer.run_batches(handle, max_events=8, max_wait=1))
        with pytest.raises(asyncio.CancelledError):
            await after(task)
    assert len(done) == 1
    calls = await run(nothing, {*range(8)} - {*done})
    assert sorted(flat(calls)) == sorted({*range(8)} - {*done})
    await is_settled()


async def test_cancellation_while_an_event_is_dead_lettered_releases_the_rest(consume, publish, is_settled, run):
    await publish(*range(8))
    done = []
    async with consume() as consumer:

        async def handle(batch):
            if len(batch) > 2:
                raise ValueError
            done.extend(numbers_of(batch))
            batch.reject(0)
            task.cancel()

        task = asyncio.create_task(consumer.run_batches(handle, max_events=8, max_wait=1))
        with pytest.raises(asyncio.CancelledError):
            await after(task)
    calls = await run(nothing, {*range(8)} - {*done})
    assert {*flat(calls)} | {*done} == {*range(8)}
    await is_settled()


async def test_orderly_restarts_lose_and_repeat_nothing(publish, consume, is_settled, js, stream):
    await publish(*range(300))
    done = []
    for _ in range(10):
        async with consume() as consumer:

            async def handle(batch, consumer=consumer):
                await asyncio.sleep(0.005)
                done.extend(numbers_of(batch))
                if len(done) % 3 == 0 or len(done) > 250:
                    consumer.stop()

            if len(done) < 300:
                await after(consumer.run_batches(handle, max_events=40, max_wait=0.01, concurrency=2))
    async with consume() as consumer:

        async def rest(batch):
            done.extend(numbers_of(batch))
            if len(done) >= 300:
                consumer.stop()

        if len(done) < 300:
            await after(consumer.run_batches(rest))
    assert sorted(done) == [*range(300)]
    await is_settled()


async def test_cancellation_while_a_batch_is_collected(consume, publish, is_settled, run):
    await publish(1, 2, 3)
    async with consume() as consumer:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.run_batches(nothing, max_wait=60), 0.5)
    calls = await run(nothing, {1, 2, 3})
    assert sorted(flat(calls)) == [1, 2, 3]
    await is_settled()


async def test_stop_completes_the_batch(consume, publish, is_settled, nc, js, stream):
    await publish(1, 2, 3)
    calls = []

    async def handle(batch):
        calls.append(numbers_of(batch))

    async with consume() as consumer:
        running = asyncio.create_task(consumer.run_batches(handle, max_wait=60))
        await until_consumer(js, stream, lambda info: info.num_ack_pending == 3)
        await nc.flush()  # they have been received
        consumer.stop()
        await after(running)
    assert calls == [[1, 2, 3]]
    await is_settled()


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_order_of_keys(consume, publish, is_settled, concurrency):
    """
    Events of a key are in one running batch only, and a failed one holds back later ones of its key.

    Those after it in its batch are handled again, so the last effects are in order.
    """
    await publish(*range(200))
    effects, failed, running, shared, sizes = {}, set(), set(), set(), []
    async with consume(max_deliveries=20, on_error=lambda error, delivery: None) as consumer:

        async def handle(batch):
            numbers = numbers_of(batch)
            keys = {number % 10 for number in numbers}
            shared.update(keys & running)
            running.update(keys)
            sizes.append(len(batch))
            await asyncio.sleep(0.001)
            errors = {}
            for index, number in enumerate(numbers):
                if number % 17 == 3 and number not in failed:
                    failed.add(number)
                    errors[index] = ValueError()
                else:
                    effects.pop(number, None)
                    effects[number] = None
            running.difference_update(keys)
            if errors:
                raise BatchError(errors)
            if len(effects) == 200:
                consumer.stop()

        await after(
            consumer.run_batches(
                handle, max_wait=0.1, concurrency=concurrency, key=lambda delivery: number_of(delivery.event) % 10
            )
        )
    assert failed == {number for number in range(200) if number % 17 == 3}
    assert max(sizes) > 20
    assert not shared
    for key in range(10):
        assert [number for number in effects if number % 10 == key] == [*range(key, 200, 10)]
    await is_settled()


async def fail_by_name(batch):
    raise BatchError({2: ValueError()})


async def fail_as_a_whole(batch):
    if 3 in numbers_of(batch):
        raise ValueError


async def nak(batch):
    batch.nak(2)


async def nak_at_once(batch):
    await batch.deliveries[2].nak(0)


async def reject(batch):
    batch.reject(2)


async def ack_at_once(batch):
    for delivery in batch.deliveries[3:]:
        await delivery.ack()
    raise BatchError({2: ValueError()})


@pytest.mark.parametrize(
    ("handler", "later"),
    [
        (fail_by_name, [[3, 4, 5]]),
        # Its halves, down to the event that fails.
        (fail_as_a_whole, [[1, 2], [3, 4, 5], [3], [3, 4, 5]]),
        (nak, [[3, 4, 5]]),
        (nak_at_once, [[3, 4, 5]]),
        (reject, []),
        (ack_at_once, [[3]]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"double_ack": True}, {"on_outcome": lambda _: None}])
async def test_successors_of_an_event_wait_until_it_is_handled(
    consume, publish, is_settled, dead_letters, handler, later, options
):
    """Those of its key in its batch are handled again, but not those that the handler has acknowledged itself."""
    await publish(1, 2, 3, 4, 5)
    calls, count = [], 1 + len(later)
    async with consume(**options, backoff=[0], on_error=lambda error, delivery: None) as consumer:

        async def handle(batch):
            calls.append([number for number in numbers_of(batch) if number <= 5])
            if len(calls) == 1 and later:
                await publish(*range(6, 11 - len(later[-1])))  # which complete the last batch
            if len(calls) == count:
                consumer.stop()
            if len(calls) < max(count, 2):
                await handler(batch)

        await after(
            consumer.run_batches(
                handle, max_events=5, max_wait=60, key=lambda delivery: number_of(delivery.event) <= 5 or "other"
            )
        )
    assert calls == [[1, 2, 3, 4, 5], *later]
    await is_settled()
    await dead_letters(handler is reject)


async def test_outcome_of_each_event(run, publish):
    await publish(*range(4))
    outcomes = []

    async def handle(batch):
        for index, number in enumerate(numbers_of(batch)):
            if number == 3:
                batch.reject(index, "odd")

    await run(handle, {*range(4)}, options={"on_outcome": outcomes.append})
    assert sorted((outcome.delivery.sequence, str(outcome.kind)) for outcome in outcomes) == [
        *((sequence, "acknowledged") for sequence in (1, 2, 3)),
        (4, "dead-lettered"),
    ]


async def test_deleted_consumer_ends_the_run(consume, publish, js, stream):
    await publish(1)
    async with consume() as consumer:

        async def handle(batch):
            await js.delete_consumer(stream, "c")

        with pytest.raises(Exception, match="consumer-not-found"):
            await after(consumer.run_batches(handle, max_wait=0.01))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"max_events": 0}, "max_events"),
        ({"max_events": 1.5}, "max_events"),
        ({"max_wait": -1}, "max_wait"),
        ({"max_wait": float("nan")}, "max_wait"),
        ({"concurrency": 0}, "concurrency"),
        ({"stop_timeout": -1}, "stop_timeout"),
    ],
)
async def test_wrong_arguments(consume, publish, arguments, match):
    await publish(1)
    async with consume() as consumer:
        with pytest.raises((TypeError, ValueError), match=match):
            await consumer.run_batches(nothing, **arguments)


@pytest.mark.parametrize("handler", [lambda batch: None, print], ids=["lambda", "print"])
async def test_handler_that_is_not_async(consume, publish, run, handler):
    await publish(1, 2)
    async with consume() as consumer:
        with pytest.raises(TypeError, match="handler must be an async function"):
            await after(consumer.run_batches(handler))
    assert sorted(flat(await run(nothing, {1, 2}))) == [1, 2]
