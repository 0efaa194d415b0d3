"""Messages that are handed out in groups, and acknowledged together."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import sync
from ce_nats.testing import NatsServer
from tests.support.synchronous import SECONDS, wait_for

COUNT = 400
LONG = 30.0  # ack_delay with which no timer writes acknowledgements


def publish(nc, subject, make_event, count=COUNT, first=0):
    with nc.publisher() as publisher:
        for number in range(first, first + count):
            publisher.publish(make_event(number), subject)


@pytest.fixture
def fill(nc, stream, subject, make_event):
    def fill(count=COUNT):
        publish(nc, subject, make_event, count)

    return fill


@pytest.fixture
def open_consumer(nc, stream):
    def open_consumer(**options):
        create = ConsumerConfig(ack_wait=600, max_ack_pending=5000)
        given = {"dead_letter": None, "create": create, "timeout": SECONDS, "prefetch": 128, **options}
        return nc.consumer(stream, "c", **given)

    return open_consumer


@pytest.fixture
def pending(js, stream):
    """Number of unacknowledged messages."""
    return lambda: js.consumer_info(stream, "c").num_ack_pending


def handle_until(consumer, number, last=lambda delivery: None):
    """Return a handler that calls ``last`` with the delivery of a number, and the sequences that it handles."""
    handled = []

    def handle(delivery):
        handled.append(delivery.sequence)
        if len(handled) == number:
            last(delivery)

    return handle, handled


def raise_exit(delivery):
    raise SystemExit


def raise_interrupt(delivery):
    raise KeyboardInterrupt


def be_interrupted(delivery):
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(SECONDS)


# --- Messages that were handed out, and not begun ---------------------------------------------------------------------


@pytest.mark.parametrize("way", ["stop", "close", "exit", "interrupt", "signal"])
def test_messages_that_no_handler_received_are_released(js, stream, fill, open_consumer, pending, way):
    """Each of them is delivered once more, and the counts of others do not grow."""
    fill()
    endings = {"exit": raise_exit, "interrupt": raise_interrupt, "signal": be_interrupted}
    with open_consumer() as consumer:
        ending = endings.get(way, lambda delivery: getattr(consumer, way)())
        handle, handled = handle_until(consumer, 200, ending)
        if way in endings:
            with pytest.raises(SystemExit if way == "exit" else KeyboardInterrupt):
                consumer.run(handle)
        else:
            consumer.run(handle)
        began = len(handled)
    assert handled == list(range(1, began + 1))
    assert began == 200
    again, counts = [], {}
    with open_consumer() as consumer:

        def handle_again(delivery):
            again.append(delivery.sequence)
            counts[delivery.sequence] = delivery.deliveries
            if delivery.sequence == COUNT:
                consumer.stop()

        consumer.run(handle_again)
    wait_for(lambda: not pending())
    released = {200} if way in endings else set()
    assert set(again) == set(range(201, COUNT + 1)) | released
    assert len(again) == len(set(again))
    # The handler of message 200 has failed: it may have been delivered again before the consumer was closed.
    assert counts.pop(200, 2) <= 3
    assert max(counts.values()) <= 2


def test_stop_in_a_handler_is_obeyed_at_once(fill, open_consumer):
    """The loop has handed out more messages."""
    fill()
    with open_consumer() as consumer:
        handle, handled = handle_until(consumer, 150, lambda _: consumer.stop())
        consumer.run(handle)
        consumer.run(handle)
        assert list(consumer) == []
    assert len(handled) == 150


def test_run_resumes_where_an_interrupted_one_has_ended(fill, open_consumer, pending):
    fill()
    with open_consumer(ack_delay=LONG) as consumer:
        first, handled = handle_until(consumer, 100, raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.run(first)
        second, later = handle_until(consumer, COUNT - 99, lambda _: consumer.stop())
        consumer.run(second)
        assert sorted([*handled[:-1], *later]) == list(range(1, COUNT + 1))
    wait_for(lambda: not pending())


def test_other_threads_take_the_messages_behind_a_slow_handler(fill, open_consumer, pending):
    """Messages that were handed out wait for no particular thread."""
    fill()
    may_end, by_thread = threading.Event(), Counter()
    with open_consumer() as consumer:

        def handle(delivery):
            by_thread[threading.current_thread().name] += 1
            if delivery.sequence == 100:
                may_end.wait(SECONDS)
            elif by_thread.total() == COUNT:
                consumer.stop()
                may_end.set()

        began = time.monotonic()
        consumer.run(handle, concurrency=3)
        assert time.monotonic() - began < SECONDS / 2
    assert by_thread.total() == COUNT
    wait_for(lambda: not pending())


def test_slow_handlers_share_the_messages(fill, open_consumer):
    """No thread waits while messages do: all four handlers run at the same time, again and again."""
    fill(100)
    together = threading.Barrier(4)
    with open_consumer() as consumer:
        handled = []

        def handle(delivery):
            together.wait(SECONDS)
            handled.append(delivery.sequence)
            if len(handled) == 100:
                consumer.stop()

        consumer.run(handle, concurrency=4)
    assert sorted(handled) == list(range(1, 101))


@pytest.mark.parametrize("prefetch", [1, 2, 3, 64])
def test_prefetch_is_the_limit_of_unhandled_messages(js, stream, fill, open_consumer, prefetch):
    """Also after fast handlers, when many messages are handed out at once."""
    fill()
    most = []

    def count(delivery):
        time.sleep(0.3)  # meanwhile no more messages arrive
        most.append(js.consumer_info(stream, "c").num_ack_pending)
        consumer.stop()

    with open_consumer(prefetch=prefetch, ack_delay=0.002) as consumer:
        handle, _ = handle_until(consumer, 150, count)
        consumer.run(handle)
    assert most[0] <= prefetch + 1


# --- Acknowledgements -------------------------------------------------------------------------------------------------


def test_handled_message_is_acknowledged_while_the_next_handler_runs(fill, open_consumer, pending):
    fill(50)
    with open_consumer(prefetch=50) as consumer:

        def handle(delivery):
            if delivery.sequence == 50:
                wait_for(lambda: pending() == 1)
                consumer.stop()

        consumer.run(handle)


def test_message_is_acknowledged_after_a_block_without_a_further_iteration(fill, open_consumer, pending):
    fill(20)
    with open_consumer() as consumer:
        for delivery in consumer:
            with delivery:
                pass
            assert delivery.is_settled
            delivery.nak()  # has no effect
            if delivery.sequence == 20:
                break
        wait_for(lambda: not pending())


def test_close_writes_acknowledgements_that_were_collected(js, stream, fill, open_consumer):
    fill(60)
    with open_consumer(ack_delay=LONG) as consumer:
        for delivery in consumer:
            with delivery:
                if delivery.sequence == 50:
                    break
    wait_for(lambda: js.consumer_info(stream, "c").ack_floor.stream_seq == 50)


def test_messages_handled_without_a_connection_are_acknowledged_after_the_reconnect(make_event):
    """No message is handled twice."""
    with NatsServer(jetstream=True) as mortal, sync.connect(mortal.url, reconnect_time_wait=0.05) as nc:
        js = nc.client.jetstream()
        nc.run(js.add_stream, name="S", subjects=["s"])
        publish(nc, "s", make_event, 300)
        handled = []
        restarting = threading.Thread(target=mortal.restart)
        create = ConsumerConfig(ack_wait=600, max_ack_pending=5000)
        with nc.consumer("S", "c", dead_letter=None, create=create, timeout=SECONDS) as consumer:

            def handle(delivery):
                handled.append(delivery.sequence)
                if len(handled) == 100:
                    wait_for(lambda: nc.run(js.consumer_info, "S", "c").ack_floor.stream_seq == 99)
                    restarting.start()
                    wait_for(lambda: not nc.client.is_connected)
                elif len(set(handled)) == 300:
                    consumer.stop()

            consumer.run(handle)
        assert sorted(handled) == list(range(1, 301))
        wait_for(lambda: nc.run(js.consumer_info, "S", "c").num_ack_pending == 0)


def test_acknowledgements_are_written_before_the_connection_is_closed(make_event, nc, server, js, stream, fill):
    fill(200)
    with sync.connect(server.url) as other:
        create, on_error = ConsumerConfig(), lambda error, delivery: None
        with other.consumer(
            stream, "c", dead_letter=None, create=create, ack_delay=LONG, on_error=on_error
        ) as consumer:
            for delivery in consumer:
                with delivery:
                    pass
                if delivery.sequence == 100:
                    break
            other.run(other.client.close)
        wait_for(lambda: js.consumer_info(stream, "c").ack_floor.stream_seq == 100)


def test_block_raises_if_its_acknowledgement_cannot_be_sent(make_event):
    with NatsServer(jetstream=True) as server, sync.connect(server.url) as nc:
        nc.run(nc.client.jetstream().add_stream, name="S", subjects=["s"])
        publish(nc, "s", make_event, 1)
        with nc.consumer("S", "c", dead_letter=None, create=ConsumerConfig(), ack_delay=LONG) as consumer:
            delivery = next(consumer)
            nc.run(nc.client.close)
            with pytest.raises(sync.DeliveryError) as caught, delivery:
                pass
            assert caught.value.code == "connection-closed"


def test_failed_acknowledgement_of_run_is_reported(make_event):
    errors = []
    with NatsServer(jetstream=True) as server, sync.connect(server.url) as nc:
        nc.run(nc.client.jetstream().add_stream, name="S", subjects=["s"])
        publish(nc, "s", make_event, 20)
        with nc.consumer(
            "S", "c", dead_letter=None, create=ConsumerConfig(), on_error=lambda error, _: errors.append(error)
        ) as consumer:

            def handle(delivery):
                nc.run(nc.client.close)

            with pytest.raises(sync.DeliveryError):
                consumer.run(handle)
    assert "connection-closed" in {error.code for error in errors}


@pytest.mark.parametrize("options", [{"double_ack": True}, {"ack_delay": 0}, {"on_outcome": repr}], ids=repr)
def test_block_waits_if_acknowledgements_are_not_joined(fill, open_consumer, pending, options):
    fill(5)
    with open_consumer(**options) as consumer:
        for delivery in consumer:
            with delivery:
                pass
            assert delivery._delivery.is_settled
            if delivery.sequence == 5:
                break
        wait_for(lambda: not pending())


def test_message_that_the_handler_has_settled_is_not_acknowledged(fill, open_consumer):
    fill(30)
    seen = Counter()
    with open_consumer(backoff=[0]) as consumer:

        def handle(delivery):
            seen[delivery.sequence] += 1
            if delivery.sequence % 3 == 0 and delivery.deliveries == 1:
                delivery.nak(0)
            elif delivery.sequence % 3 == 1:
                delivery.ack()
            if seen.total() == 40:
                consumer.stop()

        consumer.run(handle)
    assert seen == Counter({sequence: 2 if sequence % 3 == 0 else 1 for sequence in range(1, 31)})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_block_of_the_parent_process_cannot_be_left_in_a_fork(fill, open_consumer, pending):
    fill(1)
    with open_consumer() as consumer:
        delivery = next(consumer)
        child = 0
        with delivery:
            child = os.fork()
            if not child:
                try:
                    delivery.__exit__(None, None, None)
                except sync.DeliveryError as error:
                    os._exit(0 if error.code == "not-open" else 2)
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        wait_for(lambda: not pending())


# --- Restarts, interrupts, memory -------------------------------------------------------------------------------------


def test_orderly_restarts_lose_nothing_and_dead_letter_nothing(js, stream, subject, fill, open_consumer, pending):
    """Ten times, in the middle of a group."""
    fill()
    handled, counts = [], Counter()
    js.add_stream(name=f"dead_{stream}", subjects=[f"letters.{subject}"], storage="memory")
    for number in range(11):
        with open_consumer(dead_letter=f"letters.{subject}", max_deliveries=2) as consumer:

            def handle(delivery, consumer=consumer, number=number):
                handled.append(delivery.sequence)
                counts[delivery.deliveries] += 1
                if len(handled) == (37 * (number + 1) if number < 10 else COUNT):
                    consumer.stop()

            consumer.run(handle, concurrency=1 + number % 3)
    assert set(handled) == set(range(1, COUNT + 1))
    assert len(handled) == COUNT
    assert not pending()
    assert js.stream_info(f"dead_{stream}").state.messages == 0
    js.delete_stream(f"dead_{stream}")


# Calls run() again after each interrupt, until all messages are handled; prints how often each one was.
INTERRUPTED = """
import json, random, signal, sys, time
from nats.js.api import ConsumerConfig
from ce_nats import sync
url, stream, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
interrupts, is_running, handled = 0, False, []

def interrupt(number, frame):
    global interrupts, is_running
    if is_running:
        interrupts, is_running = interrupts + 1, False
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
with sync.connect(url) as nc, nc.consumer(
    stream, "c", dead_letter=None, create=ConsumerConfig(max_ack_pending=5000, ack_wait=600), timeout=3
) as consumer:

    def handle(delivery):
        handled.append(delivery.sequence)

    while len(set(handled)) < count:
        before = interrupts
        try:
            is_running = True
            if interrupts < 300:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(3e-5, 1.5e-3))
            consumer.run(handle)
            is_running = False
        except KeyboardInterrupt:
            pass
        if interrupts == before and interrupts >= 300:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    is_running = False
print(json.dumps([interrupts, handled]), flush=True)
"""


@pytest.mark.faults
def test_interrupts_of_run_at_many_moments_lose_no_message(server, stream, fill, pending):
    count = 3000
    fill(count)
    command = [sys.executable, "-c", INTERRUPTED, server.url, stream, str(count)]
    with ThreadPoolExecutor() as pool:
        done = pool.submit(subprocess.run, command, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True)
        interrupts, handled = json.loads(done.result().stdout)
    assert set(handled) == set(range(1, count + 1))
    assert interrupts > 5
    assert len(handled) - count <= interrupts  # only messages whose handling was interrupted
    assert pending() <= interrupts


def test_memory_does_not_grow(fill, open_consumer):
    fill(3000)
    sizes = []
    with open_consumer() as consumer:

        def handle(delivery):
            if delivery.sequence in (1000, 3000):
                sizes.append(tracemalloc.get_traced_memory()[0])
            if delivery.sequence == 3000:
                consumer.stop()

        tracemalloc.start()
        try:
            consumer.run(handle)
        finally:
            tracemalloc.stop()
    assert sizes[1] - sizes[0] < 200_000
