"""The consumer of ``ce_nats.sync``."""

import os
import signal
import threading
from collections import Counter
from typing import Any

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import EncodeError, Unavailable, sync
from ce_nats.extensions.partitioning import partition_key
from ce_nats.redelivery import DeadLetter
from ce_nats.routing import Router, SyncRouter
from tests.support.synchronous import SECONDS, wait_for


@pytest.fixture
def publish(nc, stream, subject, make_event):
    def publish(count):
        with nc.publisher() as publisher:
            for number in range(count):
                publisher.publish(make_event(number), subject)

    return publish


@pytest.fixture
def open_consumer(nc, stream, subject):
    """Open a consumer of the events; by default an iteration waits for a long time."""

    def open_consumer(**options: Any) -> sync.PullConsumer:
        config = ConsumerConfig(ack_wait=600, filter_subject=subject)
        return nc.consumer(stream, "c", **{"dead_letter": None, "create": config, "timeout": SECONDS, **options})

    return open_consumer


def number_of(delivery: sync.Delivery) -> int:
    return int(delivery.event.get_id().split()[1])


def test_deliveries_are_settled(js, stream, subject, publish, open_consumer):
    """Acknowledged, redelivered, rejected, failed, and released when the consumer is closed."""
    publish(6)
    seen = []
    with open_consumer(dead_letter=f"dead.{subject}", backoff=[0]) as consumer:
        for delivery in consumer:
            number = number_of(delivery)
            seen.append((number, delivery.deliveries))
            assert (delivery.stream, delivery.consumer, delivery.sequence) == (stream, "c", number + 1)
            if number == 1 and delivery.deliveries == 1:
                delivery.nak(0)
            elif number == 2:
                delivery.reject("no such customer")
            elif number == 3 and delivery.deliveries == 1:
                with pytest.raises(KeyError), delivery:
                    raise KeyError
            elif number == 4:
                with delivery as event:
                    assert event.get_id() == "event 4"
            elif number == 5 and delivery.deliveries == 1:
                delivery.nak()
            else:
                delivery.ack()
            assert delivery.is_settled
            if sorted(seen) == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1), (3, 2), (4, 1), (5, 1), (5, 2)]:
                break
    wait_for(lambda: (info := js.consumer_info(stream, "c")).num_ack_pending == info.num_pending == 0)
    letter = js.get_msg(stream, 7)
    assert DeadLetter.split(letter.headers.items())[0].text == "no such customer"


@pytest.mark.parametrize("is_observed", [False, True])
def test_filtered_events_are_acknowledged(js, stream, publish, open_consumer, is_observed):
    publish(98)
    outcomes, numbers = [], []
    options = {"on_outcome": outcomes.append} if is_observed else {}
    with open_consumer(filter="id LIKE '%7'", **options) as consumer:
        for delivery in consumer:
            with delivery:
                numbers.append(number_of(delivery))
            if numbers[-1] == 97:
                break
        wait_for(lambda: js.consumer_info(stream, "c").ack_floor.stream_seq == 98)
    assert numbers == list(range(7, 100, 10))
    assert Counter(str(outcome.kind) for outcome in outcomes) == (
        {"filtered": 88, "acknowledged": 10} if is_observed else {}
    )


def test_unhandled_messages_are_released(nc, stream, publish, open_consumer):
    publish(3)
    with open_consumer() as consumer:
        assert next(consumer).sequence == 1
    assert list(consumer) == []
    with open_consumer() as consumer:
        # In any order: a message that the first consumer did not read at all may be delivered before the others.
        assert sorted(next(consumer).sequence for _ in range(3)) == [1, 2, 3]
    with pytest.raises(sync.DeliveryError) as caught:
        nc.consumer(stream, "missing", dead_letter=None)
    assert caught.value.code == "consumer-not-found"


def test_policy_is_that_of_the_options(stream, open_consumer):
    with open_consumer(max_deliveries=3, backoff=[1, 2]) as consumer:
        assert (consumer.policy.max_deliveries, list(consumer.policy.backoff)) == (3, [1, 2])


# --- run() ------------------------------------------------------------------------------------------------------------


def test_handler_runs_in_the_calling_thread_in_order(js, stream, publish, open_consumer):
    publish(20)
    handled = []

    with open_consumer() as consumer:

        def handle(delivery):
            handled.append((number_of(delivery), threading.current_thread()))
            if len(handled) == 20:
                consumer.stop()

        consumer.run(handle)
    assert handled == [(number, threading.main_thread()) for number in range(20)]
    wait_for(lambda: js.consumer_info(stream, "c").num_ack_pending == 0)


def test_run_ends_after_the_timeout_and_can_be_resumed(publish, open_consumer):
    handled = []
    with open_consumer(timeout=0.3) as consumer:
        consumer.run(handled.append)
        publish(3)
        while len(handled) < 3:  # which may take longer
            consumer.run(handled.append)
        assert [number_of(delivery) for delivery in handled] == [0, 1, 2]


def test_failed_message_is_reported_and_redelivered(publish, open_consumer):
    publish(2)
    errors, seen = [], []

    def report(error, delivery):
        errors.append((repr(error), delivery.sequence, threading.current_thread().name))

    with open_consumer(backoff=[0], on_error=report) as consumer:

        def handle(delivery):
            seen.append((number_of(delivery), delivery.deliveries))
            if delivery.deliveries == 1:
                raise KeyError(number_of(delivery))
            if len(seen) == 4:
                consumer.stop()

        consumer.run(handle)
    assert sorted(seen) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert sorted(errors) == [("KeyError(0)", 1, "ce_nats.sync"), ("KeyError(1)", 2, "ce_nats.sync")]


def test_rejected_message_is_dead_lettered(js, stream, subject, publish, open_consumer):
    publish(1)
    with open_consumer(dead_letter=f"dead.{subject}") as consumer:

        def handle(delivery):
            consumer.stop()
            raise sync.Reject("no such customer")

        consumer.run(handle)
    assert DeadLetter.split(js.get_msg(stream, 2).headers.items())[0].text == "no such customer"


def test_router_is_a_handler(js, nc, stream, subject, make_event, open_consumer):
    for number, kind in enumerate(["a.b", "unknown", "a.c"]):
        nc.publish_to_stream(make_event(number, {"n": number}, type=kind), subject)
    router, seen = SyncRouter(), []

    @router.on("a.*")
    def handle(data: dict[str, int], delivery: sync.Delivery):
        seen.append((data["n"], delivery.sequence))
        if delivery.sequence == 3:
            consumer.stop()

    with open_consumer(dead_letter=f"dead.{subject}") as consumer:
        consumer.run(router)
    assert seen == [(0, 1), (2, 3)]
    letter = DeadLetter.split(js.get_msg(stream, 4).headers.items())[0]
    assert (letter.sequence, letter.text) == (2, "no handler for events of type 'unknown'")


def test_wrong_data_is_refused_and_dead_lettered(js, nc, stream, subject, make_event, open_consumer):
    schemas = {"com.example.test": {"type": "integer"}}
    with nc.publisher(validate=schemas) as publisher:
        publisher.publish(make_event(1, 1), subject)
        with pytest.raises(EncodeError, match=r"event 'event 2' of type 'com.example.test'"):
            publisher.publish(make_event(2, "x"), subject)
    nc.publish_to_stream(make_event(3, "x"), subject)
    nc.publish_to_stream(make_event(4, 4), subject)
    with open_consumer(dead_letter=f"dead.{subject}", validate=schemas) as consumer:
        for delivery in consumer:
            with delivery as event:
                if event.data == 4:
                    break
    assert DeadLetter.split(js.get_msg(stream, 4).headers.items())[0].error == "data-mismatch"


def test_async_router_is_refused(open_consumer):
    with open_consumer() as consumer, pytest.raises(TypeError, match="must be a function that is not async"):
        consumer.run(Router())


def test_handlers_run_in_several_threads(publish, open_consumer):
    publish(12)
    together = threading.Barrier(3, timeout=SECONDS)
    numbers, threads = [], set()

    with open_consumer() as consumer:

        def handle(delivery):
            together.wait()
            numbers.append(number_of(delivery))
            threads.add(threading.current_thread().name)
            if len(numbers) == 12:
                consumer.stop()

        consumer.run(handle, concurrency=3)
    assert sorted(numbers) == list(range(12))
    assert len(threads) == 3
    assert threading.main_thread().name not in threads


def test_stop_waits_for_handlers_that_run(js, stream, publish, open_consumer):
    """Messages that no handler received are released."""
    publish(10)
    started, may_end, ended = threading.Event(), threading.Event(), []
    with open_consumer() as consumer:

        def handle(delivery):
            started.set()
            may_end.wait(SECONDS)
            ended.append(number_of(delivery))

        running = threading.Thread(target=consumer.run, args=[handle])
        running.start()
        assert started.wait(SECONDS)
        consumer.stop()
        assert running.is_alive()
        may_end.set()
        running.join(SECONDS)
    assert ended == [0]
    wait_for(lambda: js.consumer_info(stream, "c").ack_floor.stream_seq == 1)


def test_deleted_consumer_ends_run_with_its_error(nc, js, stream, publish, open_consumer):
    publish(1)
    with open_consumer() as consumer:

        def handle(delivery):
            nc.run(nc.client.jetstream().delete_consumer, stream, "c")

        with pytest.raises(sync.DeliveryError) as caught:
            consumer.run(handle, concurrency=2)
    assert caught.value.code == "consumer-not-found"


@pytest.mark.parametrize("concurrency", [1, 2])
def test_ctrl_c_ends_run(js, stream, publish, open_consumer, concurrency):
    publish(1)
    handled = []
    with open_consumer() as consumer:

        def handle(delivery):
            handled.append(delivery)
            os.kill(os.getpid(), signal.SIGINT)
            if concurrency == 1:
                threading.Event().wait(SECONDS)  # interrupted: the handler runs in the main thread

        with pytest.raises(KeyboardInterrupt):
            consumer.run(handle, concurrency=concurrency)
    assert len(handled) == 1
    handled_to_its_end = 0 if concurrency == 1 else 1  # otherwise it was released
    wait_for(lambda: js.consumer_info(stream, "c").ack_floor.stream_seq == handled_to_its_end)


def test_handler_must_not_be_async(publish, open_consumer):
    async def handle(delivery): ...

    with open_consumer() as consumer:
        for wrong in (handle, None):
            with pytest.raises(TypeError, match="handler must be a function that is not async"):
                consumer.run(wrong)
        with pytest.raises(ValueError, match="concurrency must be 1 or more, got 0"):
            consumer.run(print, concurrency=0)
        with pytest.raises(ValueError, match="concurrency must be an integer, got True"):
            consumer.run(print, concurrency=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "5", -1], ids=repr)
def test_timeouts_of_iterations_are_checked(nc, stream, subject, value):
    for call in (
        lambda: nc.subscribe(subject, timeout=value),
        lambda: nc.consumer(stream, "c", dead_letter=None, timeout=value),
    ):
        with pytest.raises(ValueError, match=r"^timeout must be a number of seconds from 0 to .+"):
            call()


def test_message_is_not_acknowledged_if_the_handler_returns_an_awaitable(publish, open_consumer):
    class Awaitable:
        def __await__(self):
            yield

    publish(1)
    errors = []
    with open_consumer(on_error=lambda error, delivery: errors.append(error)) as consumer:

        def handle(delivery):
            consumer.stop()
            return Awaitable()

        consumer.run(handle)
    assert [type(error) for error in errors] == [TypeError]


def test_events_of_a_key_are_handled_in_order_by_threads(js, stream, nc, subject, make_event, open_consumer):
    """One thread at a time handles events of a key; a failed one holds back its key only."""
    with nc.publisher() as publisher:
        for number in range(30):
            publisher.publish(make_event(number, partitionkey="abc"[number % 3]), subject)
    lock, running, handled, failed = threading.Lock(), set(), [], []
    with open_consumer(backoff=[0.05], on_error=lambda *_: None) as consumer:

        def handle(delivery: sync.Delivery) -> None:
            key, number = delivery.event.extensions["partitionkey"], number_of(delivery)
            with lock:
                assert key not in running
                running.add(key)
            try:
                if number in (0, 7) and number not in failed:
                    failed.append(number)
                    raise KeyError(number)
            finally:
                with lock:
                    running.remove(key)
            with lock:
                handled.append(number)
                if len(handled) == 30:
                    consumer.stop()

        consumer.run(handle, concurrency=4, key=partition_key)
    assert failed == [0, 7]
    assert sorted(handled) == list(range(30))
    for remainder in range(3):
        numbers = [number for number in handled if number % 3 == remainder]
        assert numbers == sorted(numbers)


def test_orderly_stops_dead_letter_nothing(js, stream, publish, subject, open_consumer):
    """Each process fetches all events that were released before, and handles one."""
    publish(30)
    handled = []
    for _ in range(30):
        with open_consumer(dead_letter=f"dead.{subject}", max_deliveries=2) as consumer:

            def handle(delivery: sync.Delivery, consumer: sync.PullConsumer = consumer) -> None:
                handled.append(delivery.sequence)
                consumer.stop()

            consumer.run(handle, concurrency=2, key=lambda delivery: delivery.sequence % 7)
        if len(set(handled)) == 30:
            break
    assert sorted(set(handled)) == list(range(1, 31))
    assert js.stream_info(stream).state.messages == 30  # it listens on the subject for dead letters, too


def test_key_that_is_not_a_function_is_rejected(open_consumer):
    with open_consumer() as consumer, pytest.raises(TypeError, match=r"^key must be a function that is not async"):
        consumer.run(print, key="partitionkey")


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("method", ["run", "run_batches"])
def test_outage_pauses_the_handlers(publish, open_consumer, concurrency, method):
    """Also those whose messages were read ahead."""
    publish(100)
    failures, stored = [0.05] * 6, []

    def handle(argument):
        deliveries = [argument] if method == "run" else argument.deliveries
        if len(stored) >= 50 and failures:
            raise Unavailable("database", failures.pop())
        stored.extend((delivery.sequence, delivery.deliveries) for delivery in deliveries)
        if len(stored) == 100:
            consumer.stop()

    options = {"max_events": 10} if method == "run_batches" else {}
    with open_consumer(max_deliveries=1, on_error=lambda *_: None) as consumer:
        getattr(consumer, method)(handle, concurrency=concurrency, **options)
    assert sorted(number for _, number in stored) == [1] * 100
    assert len({sequence for sequence, _ in stored}) == 100
