"""Batches in ``ce_nats.sync``."""

import os
import signal
import threading
import time

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import sync
from ce_nats.routing import SyncRouter
from tests.support.synchronous import SECONDS
from tests.sync.test_consumer import open_consumer, publish

__all__ = ["open_consumer", "publish"]


def numbers_of(batch: sync.Batch) -> list[int]:
    return [int(event.get_id().split()[1]) for event in batch]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_events_are_handled_in_other_threads(publish, open_consumer, concurrency):
    publish(100)
    numbers, threads = [], set()

    def handle(batch):
        threads.add(threading.current_thread())
        numbers.extend(numbers_of(batch))
        if len(numbers) == 100:
            consumer.stop()

    with open_consumer() as consumer:
        consumer.run_batches(handle, max_events=20, max_wait=0.01, concurrency=concurrency)
    assert sorted(numbers) == [*range(100)]
    assert threading.current_thread() not in threads
    with open_consumer(timeout=0.2) as consumer:
        assert [*consumer] == []


def test_run_ends_after_the_time_without_a_message(publish, open_consumer):
    publish(3)
    numbers = []
    with open_consumer(timeout=0.5) as consumer:
        while numbers != [0, 1, 2]:  # which may take longer
            consumer.run_batches(lambda batch: numbers.extend(numbers_of(batch)), max_wait=0)
        publish(5)
        consumer._timeout = SECONDS
        assert [int(next(consumer).event.get_id().split()[1]) for _ in range(2)] == [3, 4]


def test_failed_batches_are_divided(publish, open_consumer):
    publish(10)
    numbers, errors = [], []

    def handle(batch):
        if 7 in numbers_of(batch):
            raise ValueError("constraint")
        numbers.extend(numbers_of(batch))
        if len(numbers) == 9 and errors:
            consumer.stop()

    def note(error, delivery):
        errors.append(str(error))
        if len(numbers) == 9:
            consumer.stop()

    with open_consumer(max_deliveries=1, backoff=[0], on_error=note) as consumer:
        consumer.run_batches(handle, max_wait=0.2)
    assert sorted(numbers) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert errors == ["constraint"]


def test_named_and_marked_events(publish, open_consumer):
    publish(4)
    attempts = []

    def handle(batch):
        errors = {}
        for index, number in enumerate(numbers_of(batch)):
            attempts.append(number)
            if number == 1 and attempts.count(1) == 1:
                errors[index] = ValueError()
            if number == 2 and attempts.count(2) == 1:
                batch.nak(index, 0)
            if number == 3:
                batch.reject(index)
        if len(attempts) == 6:
            consumer.stop()
        if errors:
            raise sync.BatchError(errors)

    with open_consumer(backoff=[0], on_error=lambda error, delivery: None) as consumer:
        consumer.run_batches(handle, max_wait=0.2)
    assert sorted(attempts) == [0, 1, 1, 2, 2, 3]


def test_order_of_keys(publish, open_consumer):
    publish(60)
    handled: dict[int, list[int]] = {}

    def handle(batch):
        for number in numbers_of(batch):
            handled.setdefault(number % 6, []).append(number)
        if sum(map(len, handled.values())) == 60:
            consumer.stop()

    with open_consumer() as consumer:
        consumer.run_batches(
            handle, max_wait=0.1, concurrency=3, key=lambda delivery: int(delivery.event.get_id().split()[1]) % 6
        )
    assert handled == {key: [*range(key, 60, 6)] for key in range(6)}


@pytest.mark.parametrize("handler", [None, print, 1])
def test_handler_of_another_type(open_consumer, handler):
    async def handle(batch):
        pass

    with open_consumer() as consumer, pytest.raises(TypeError, match="handler must be a function"):
        consumer.run_batches(handle if handler is print else handler)


def test_handler_that_returns_an_awaitable(publish, open_consumer):
    publish(1)
    errors = []

    class Awaitable:
        def __await__(self):
            yield

    def note(error, delivery):
        errors.append(error)
        consumer.stop()

    with open_consumer(max_deliveries=1, on_error=note) as consumer:
        consumer.run_batches(lambda batch: Awaitable())
    assert "awaitable" in str(errors[0])


def test_interrupt_waits_for_running_handlers(publish, open_consumer):
    publish(50)
    done = []

    def handle(batch):
        if len(done) == 0:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        done.extend(numbers_of(batch))
        if len(done) == 50:
            consumer.stop()

    with open_consumer() as consumer, pytest.raises(KeyboardInterrupt):
        consumer.run_batches(handle, max_events=20, max_wait=0.01)
    assert done
    first = len(done)
    with open_consumer() as consumer:
        consumer.run_batches(handle, max_events=20)
    assert sorted(done) == [*range(50)]
    assert first < 50


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_handler_that_ends_the_program_releases_its_batch_and_leaves_other_connections_open(
    nc, stream, subject, publish, open_consumer, error
):
    publish(3)
    config = ConsumerConfig(filter_subject=subject)

    def handle(batch):
        raise error

    with nc.consumer(stream, "other", dead_letter=None, create=config) as other, open_consumer() as consumer:
        with pytest.raises(type(error)) as caught:
            consumer.run_batches(handle)
        assert caught.value is error
        assert next(other).deliveries == 1
    with open_consumer() as consumer:
        assert next(consumer).deliveries > 1


@pytest.mark.parametrize("arguments", [{"max_events": 0}, {"max_wait": -1}, {"concurrency": 0}])
def test_wrong_arguments(open_consumer, arguments):
    with open_consumer() as consumer, pytest.raises(ValueError, match=next(iter(arguments))):
        consumer.run_batches(print, **arguments)


def test_failed_batch_of_a_router_is_divided_without_others(nc, subject, make_event, open_consumer):
    for number in range(8):
        nc.publish_to_stream(make_event(number, type=("a", "b")[number % 2]), subject)
    router, calls = SyncRouter(), []

    @router.batch("a")
    def first(batch):
        calls.append(("a", numbers_of(batch)))
        if 2 in calls[-1][1]:
            raise ValueError

    @router.batch("b")
    def second(batch):
        calls.append(("b", numbers_of(batch)))
        consumer.stop()

    with open_consumer(max_deliveries=1, on_error=lambda error, delivery: None) as consumer:
        consumer.run_batches(router, max_events=8, max_wait=5)
        with pytest.raises(TypeError, match="run_batches"):
            consumer.run(router)
    assert calls == [*[("a", part) for part in ([0, 2, 4, 6], [0, 2], [0], [2], [4, 6])], ("b", [1, 3, 5, 7])]


def test_methods_of_deliveries(nc, stream, subject, make_event, open_consumer):
    """They block, as those of the deliveries that a handler of single events gets."""
    js = nc.client.jetstream()
    bucket = subject.replace(".", "_")
    nc.run(js.create_object_store, bucket, storage="memory")
    claim_check = nc.claim_check(bucket, over=100)
    for number, data in enumerate(["x" * 200, {}, {}, {}]):
        nc.publish_to_stream(make_event(number, data), subject, claim_check=claim_check)
    calls, data = [], []

    def handle(batch):
        calls.append(numbers_of(batch))
        if len(calls) > 1:
            consumer.stop()
            return
        data.append(batch.deliveries[0].resolve().data)
        data.append(batch[0].data)
        batch.deliveries[1].ack()
        batch.deliveries[2].nak(0)
        batch.deliveries[3].reject("no")
        assert [delivery.is_settled for delivery in batch.deliveries] == [False, True, True, True]

    try:
        with open_consumer(claim_check=claim_check) as consumer:
            consumer.run_batches(handle, max_events=4, max_wait=5)
    finally:
        nc.run(js.delete_object_store, bucket)
    assert data == ["x" * 200] * 2
    assert calls == [[0, 1, 2, 3], [2]]
