"""Subscriptions of ``ce_nats.sync``."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ce_nats import sync
from ce_nats.testing import NatsServer
from tests.support.synchronous import SECONDS, event_ids


def test_published_events_are_received_in_order(nc, subject, make_event):
    with nc.subscribe(subject) as messages:
        for number in range(2000):
            sync.publish(nc, make_event(number, {"n": number}), subject, headers={"Trace": "1"})
        received = [next(messages) for _ in range(2000)]
    assert [item.event.get_data()["n"] for item in received] == list(range(2000))
    assert (received[0].subject, received[0].error, received[0].deliveries) == (subject, None, 1)
    assert received[0].message.headers["Trace"] == "1"


def test_message_that_is_not_an_event_is_received_with_an_error(nc, subject):
    with sync.subscribe(nc, subject) as messages:
        nc.run(nc.client.publish, subject, b"no event")
        assert next(messages).error.code == "not-a-cloudevent"


def test_options_reach_the_decoder(nc, subject, make_event):
    with nc.subscribe(subject, parse_data=False) as messages:
        nc.publish(make_event(1, {"n": 1}), subject, mode="structured")
        assert next(messages).event.get_data() == b'{"n":1}'


def test_queue_group_receives_each_message_once(nc, subject, make_event):
    with nc.subscribe(subject, queue="q") as one, nc.subscribe(subject, queue="q") as other:
        for number in range(20):
            nc.publish(make_event(number), subject)
        nc.flush()
        one._timeout = other._timeout = 0.5
        received = [item.event.get_id() for messages in (one, other) for item in messages]
    assert sorted(received) == sorted(event_ids(*range(20)))


def test_iteration_ends_after_the_timeout_and_can_be_resumed(nc, subject, make_event):
    with nc.subscribe(subject, timeout=0.05) as messages:
        assert list(messages) == []
        nc.publish(make_event(1), subject)
        nc.flush()
        messages._timeout = SECONDS
        assert next(messages).event.get_id() == "event 1"


def test_iteration_ends_when_the_subscription_is_closed(nc, subject):
    messages = nc.subscribe(subject)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(list, messages) for _ in range(3)]
        messages.close()
        assert [one.result(SECONDS) for one in waiting] == [[], [], []]
    messages.close()
    assert list(messages) == []


def test_iteration_that_is_left_early_keeps_later_messages(nc, subject, make_event):
    with nc.subscribe(subject) as messages:
        for number in range(5):
            nc.publish(make_event(number), subject)
        first = next(iter(messages))
        rest = [next(messages).event.get_id() for _ in range(4)]
    assert [first.event.get_id(), *rest] == event_ids(0, 1, 2, 3, 4)


def test_no_message_is_lost_while_threads_read_slowly(nc, subject, make_event):
    """There are more messages than the subscription reads ahead."""
    with nc.subscribe(subject, timeout=SECONDS) as messages:
        for number in range(3000):
            nc.publish(make_event(number), subject)
        nc.flush()

        def read():
            return [next(messages).event.get_id() for _ in range(500)]

        with ThreadPoolExecutor(6) as pool:
            reading = [pool.submit(read) for _ in range(6)]
        assert sorted(one for future in reading for one in future.result()) == sorted(event_ids(*range(3000)))


def test_iteration_raises_when_the_connection_is_lost_permanently(make_event, subject):
    with NatsServer() as mortal:
        nc = sync.connect(mortal.url, max_reconnect_attempts=1, reconnect_time_wait=0.1)
        messages = nc.subscribe(subject)
        mortal.stop()
        with pytest.raises(sync.DeliveryError) as caught:
            next(messages)
        assert caught.value.code == "connection-closed"
        with pytest.raises(sync.DeliveryError) as caught:
            nc.publish(make_event(), subject)
        assert caught.value.code == "connection-closed"
        nc.close()


def test_interrupted_iteration_loses_no_message(nc, subject, make_event):
    with nc.subscribe(subject) as messages:
        # Python calls the handler of a signal in the main thread, which waits below.
        timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(messages)
        timer.join()
        nc.publish(make_event(7), subject)
        assert next(messages).event.get_id() == "event 7"


# Iterates in a loop that is entered again after each interrupt, prints when it was interrupted often enough, and then
# the ids in order. An item is also counted if the interrupt comes in the body of the loop.
INTERRUPTED = """
import json, random, signal, sys
from nats.js.api import ConsumerConfig
from ce_nats import sync
url, subject, count, opened = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
stream, interrupts, is_iterating = subject.replace(".", "_"), 0, False

def interrupt(number, frame):
    global interrupts, is_iterating
    if is_iterating:
        interrupts, is_iterating = interrupts + 1, False
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
items, item = [], None
with sync.connect(url) as nc, eval(opened) as messages:
    print("ready", flush=True)
    while len(items) < count:
        try:
            is_iterating = True
            if interrupts < 1000:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
            for item in messages:
                items.append(item)
                if len(items) == count:
                    is_iterating = False
                    break
        except KeyboardInterrupt:
            if item is not None and not any(item is one for one in items[-1:]):
                items.append(item)
            if interrupts == 100:
                print("interrupted", flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    ids = [item.event.get_id() for item in items]
print(json.dumps(ids), flush=True)
sys.stdin.read()
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    "opened",
    [
        "nc.subscribe(subject)",
        "nc.consumer(stream, 'c', dead_letter=None, create=ConsumerConfig(max_ack_pending=5000))",
    ],
    ids=["subscription", "consumer"],
)
def test_interrupts_at_many_moments_lose_and_repeat_no_message(nc, server, subject, stream, make_event, opened):
    """The last message is published after a hundred interrupts."""
    count = 3000
    command = [sys.executable, "-c", INTERRUPTED, server.url, subject, str(count), opened]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        for event in range(count - 1):
            nc.publish(make_event(event), subject)
            if not event % 20:
                nc.flush()
                time.sleep(0.001)
        assert process.stdout.readline() == "interrupted\n"
        nc.publish(make_event(count - 1), subject)
        ids = json.loads(process.stdout.readline())
        process.communicate()
    assert ids == event_ids(*range(count))


def test_wrong_data_is_an_error(nc, subject, make_event):
    with nc.subscribe(subject, timeout=SECONDS, validate={"com.example.test": {"type": "integer"}}) as received:
        nc.publish(make_event(1, "x"), subject)
        nc.publish(make_event(2, 2), subject)
        assert next(received).error.code == "data-mismatch"
        assert next(received).event.data == 2
