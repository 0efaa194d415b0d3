"""
``ce_nats.sync``: what asyncio's users have, for programs without it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import CeNatsError, EncodeError, from_nats_message, sync
from ce_nats.redelivery import DeadLetter
from ce_nats.sync import _loop as loops
from ce_nats.testing import NatsServer
from tests.support.broker import make_event, server

__all__ = ["make_event", "server"]

SECONDS = 60  # to wait for what has to happen


@pytest.fixture
def nc(server: NatsServer) -> Iterator[sync.Connection]:
    with sync.connect(server.url) as connection:
        yield connection


@pytest.fixture
def subject() -> str:
    return f"test.{uuid4().hex}"


@pytest.fixture
def js(nc: sync.Connection) -> SimpleNamespace:
    """Functions of JetStream, as plain ones."""
    context = nc.client.jetstream()

    def plain(name: str) -> Any:
        return lambda *args, **options: nc.run(getattr(context, name), *args, **options)

    return SimpleNamespace(**{name: plain(name) for name in ("add_stream", "delete_stream", "stream_info", "get_msg")})


@pytest.fixture
def stream(js: SimpleNamespace, subject: str) -> Iterator[str]:
    name = subject.replace(".", "_")
    js.add_stream(name=name, subjects=[subject, f"dead.{subject}"], storage="memory")
    yield name
    js.delete_stream(name)


def stored(js, stream) -> list[str]:
    last = js.stream_info(stream).state.last_seq
    return [from_nats_message(js.get_msg(stream, number)).get_id() for number in range(1, last + 1)]


def ids(*numbers: int) -> list[str]:
    return [f"event {number}" for number in numbers]


# --- Core NATS --------------------------------------------------------------------------------------------------------


def test_what_is_published_is_received_in_order(nc, subject, make_event):
    with nc.subscribe(subject) as messages:
        for number in range(2000):
            sync.publish(nc, make_event(number, {"n": number}), subject, headers={"Trace": "1"})
        received = [next(messages) for _ in range(2000)]
    assert [item.event.get_data()["n"] for item in received] == list(range(2000))
    assert (received[0].subject, received[0].error, received[0].deliveries) == (subject, None, 1)
    assert received[0].message.headers["Trace"] == "1"


def test_what_is_no_event_is_received_as_well(nc, subject):
    with sync.subscribe(nc, subject) as messages:
        nc.run(nc.client.publish, subject, b"no event")
        assert next(messages).error.code == "not-a-cloudevent"


def test_options_reach_the_decoder(nc, subject, make_event):
    with nc.subscribe(subject, parse_data=False) as messages:
        nc.publish(make_event(1, {"n": 1}), subject, mode="structured")
        assert next(messages).event.get_data() == b'{"n":1}'


def test_an_iteration_ends_when_nothing_comes(nc, subject, make_event):
    """And another one may begin."""
    with nc.subscribe(subject, timeout=0.05) as messages:
        assert list(messages) == []
        nc.publish(make_event(1), subject)
        nc.flush()
        messages._timeout = SECONDS
        assert next(messages).event.get_id() == "event 1"


def test_an_iteration_ends_when_the_subscription_is_closed(nc, subject, make_event):
    messages = nc.subscribe(subject)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(list, messages) for _ in range(3)]
        messages.close()
        assert [one.result(SECONDS) for one in waiting] == [[], [], []]
    messages.close()
    assert list(messages) == []


def test_an_iteration_that_is_left_early_keeps_the_rest(nc, subject, make_event):
    with nc.subscribe(subject) as messages:
        for number in range(5):
            nc.publish(make_event(number), subject)
        first = next(iter(messages))
        rest = [next(messages).event.get_id() for _ in range(4)]
    assert [first.event.get_id(), *rest] == ids(0, 1, 2, 3, 4)


def test_more_messages_than_are_taken_ahead(nc, subject, make_event):
    """None is lost while the feed is full, whoever takes them."""
    with nc.subscribe(subject, timeout=SECONDS) as messages:
        for number in range(3000):
            nc.publish(make_event(number), subject)
        nc.flush()

        def take():
            return [next(messages).event.get_id() for _ in range(500)]

        with ThreadPoolExecutor(6) as pool:
            taken = [pool.submit(take) for _ in range(6)]
        assert sorted(one for future in taken for one in future.result()) == sorted(ids(*range(3000)))


def test_request_and_reply(nc, subject, make_event):
    with nc.subscribe(subject) as requests:

        def reply():
            for item in requests:
                nc.respond(item, make_event(2, {"euro": 7}))
                return

        with ThreadPoolExecutor() as pool:
            replying = pool.submit(reply)
            answer = sync.request(nc, make_event(1), subject, timeout=SECONDS)
            replying.result()
    assert answer.event.get_data() == {"euro": 7}
    assert answer.event.get_extension("causationid") == "event 1"


def test_a_reply_subject_on_which_the_server_acts_is_refused(nc, js, stream, subject, make_event):
    nc.publish_to_stream(make_event(), subject)
    with nc.subscribe(f"service.{subject}") as requests:
        nc.run(nc.client.publish, f"service.{subject}", b"", f"$JS.API.STREAM.PURGE.{stream}")
        with pytest.raises(EncodeError, match="forbidden-subject"):
            nc.respond(next(requests), make_event())
    assert js.stream_info(stream).state.messages == 1


def test_errors_are_those_of_aio(nc, subject, make_event):
    def code(call, *args, **options):
        with pytest.raises(CeNatsError) as caught:
            call(*args, **options)
        return caught.value.code

    assert code(nc.request, make_event(), subject) == "no-responders"
    assert code(nc.publish, make_event(1, {"a": object()}), subject) == "invalid-data"
    assert code(nc.publish, make_event(), "a b") == "invalid-subject"
    assert code(nc.publish, make_event(1, "x" * 2_000_000), subject) == "payload-too-large"
    assert code(nc.publish_to_stream, make_event(), subject) == "no-responders"
    assert code(sync.connect, "nats://127.0.0.1:1") == "connection-failed"
    assert code(sync.connect, "http://127.0.0.1") == "invalid-option"
    with pytest.raises(TypeError):
        sync.connect("nats://127.0.0.1:1", no_such=1)


def test_a_closed_connection(server, subject, make_event):
    nc = sync.connect(server.url)
    publisher, messages = nc.publisher(), nc.subscribe(subject)
    nc.close()
    nc.close()
    for call in (nc.publish, nc.request, nc.publish_to_stream):
        with pytest.raises(sync.DeliveryError) as caught:
            call(make_event(), subject)
        assert caught.value.code == "connection-closed"
    assert list(messages) == []
    publisher.publish(make_event(), subject)
    with pytest.raises(sync.PublishError) as caught:
        publisher.close()
    assert caught.value.code == "connection-closed"
    with pytest.raises(sync.DeliveryError) as caught:
        publisher.publish(make_event(), subject)
    assert caught.value.code == "not-open"


def test_denied_publishes_are_raised_by_the_end_of_the_block(make_event):
    users = "users: [{user: u, password: p, permissions: {publish: [ok]}}]"
    with NatsServer(config=f"authorization {{ {users} }}") as strict:
        with pytest.raises(sync.DeliveryError) as caught, sync.connect(strict.url, user="u", password="p") as nc:
            nc.publish(make_event(), "denied")
        assert caught.value.code == "permission-denied"


def test_a_server_that_is_gone(make_event, subject, caplog):
    """What was published then is an error at the end, and so is the iteration, once there are no more attempts."""
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


# --- JetStream --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_a_publisher_stores_all_events_in_order(nc, js, stream, subject, make_event, window):
    with nc.publisher(window=window) as publisher:
        for number in range(500):
            publisher.publish(make_event(number), subject)
    assert stored(js, stream) == ids(*range(500))
    assert (publisher.acknowledged, publisher.duplicates, publisher.failures) == (500, 0, [])


def test_a_publisher_sends_at_once(nc, js, stream, subject, make_event):
    """Without flush(), and with nothing behind it."""
    with sync.Publisher(nc) as publisher:
        publisher.publish(make_event(1), subject)
        wait_for(lambda: publisher.acknowledged == 1)
        publisher.publish(make_event(1), subject)
        publisher.flush()
        assert (publisher.acknowledged, publisher.duplicates) == (2, 1)
    assert stored(js, stream) == ids(1)


def test_failures_of_a_publisher(nc, js, stream, subject, make_event):
    """Each one is raised once; what cannot be encoded, at once."""
    publisher = nc.publisher()
    with pytest.raises(EncodeError):
        publisher.publish(make_event(1, {1, 2}), subject)
    publisher.publish(make_event(2), subject, headers={"Nats-Expected-Stream": "another"})
    with pytest.raises(sync.PublishError) as caught:
        publisher.flush()
    assert [failure.event.get_id() for failure in caught.value.failures] == ids(2)
    publisher.publish(make_event(3), subject)
    publisher.publish(make_event(4), subject, headers={"Nats-Expected-Stream": "another"})
    with pytest.raises(sync.PublishError) as caught:
        publisher.close()
    assert [failure.event.get_id() for failure in caught.value.failures] == ids(4)
    assert stored(js, stream) == ids(3)


def test_an_exception_in_the_block_of_a_publisher(nc, js, stream, subject, make_event):
    def fail(publisher):
        with publisher:
            publisher.publish(make_event(1), subject)
            publisher.publish(make_event(2), subject, headers={"Nats-Expected-Stream": "another"})
            raise KeyError

    publisher = nc.publisher()
    with pytest.raises(KeyError):
        fail(publisher)
    assert [failure.event.get_id() for failure in publisher.failures] == ids(2)
    assert stored(js, stream) == ids(1)


def test_threads_share_a_connection_and_a_publisher(nc, js, stream, subject, make_event):
    with nc.publisher(window=10) as publisher:

        def send(thread):
            for number in range(100):
                publisher.publish(make_event(thread * 1000 + number), subject)

        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(send, thread) for thread in range(8)]:
                future.result(SECONDS)
    found = stored(js, stream)
    assert sorted(found) == sorted(ids(*(thread * 1000 + number for thread in range(8) for number in range(100))))
    of_one = [one for one in found if 3000 <= int(one.split()[1]) < 4000]
    assert of_one == ids(*range(3000, 3100))


def test_one_event_with_its_acknowledgement(nc, stream, subject, make_event):
    first, second = (sync.publish_to_stream(nc, make_event(1), subject) for _ in range(2))
    assert (first.stream, first.seq, bool(first.duplicate)) == (stream, 1, False)
    assert (second.seq, second.duplicate) == (1, True)


def test_a_consumer(nc, js, stream, subject, make_event):
    """Acknowledged, redelivered, rejected, failed, and released when it is closed."""
    with nc.publisher() as publisher:
        for number in range(6):
            publisher.publish(make_event(number), subject)
    options = {"dead_letter": f"dead.{subject}", "config": ConsumerConfig(ack_wait=60, filter_subject=subject)}
    seen = []
    with nc.consumer(stream, "c", timeout=SECONDS, backoff=[0], **options) as consumer:
        for delivery in consumer:
            number = int(delivery.event.get_id().split()[1])
            seen.append((number, delivery.deliveries))
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
    info = nc.run(nc.client.jetstream().consumer_info, stream, "c")
    assert (info.num_ack_pending, info.num_pending) == (0, 0)
    letter = js.get_msg(stream, 7)
    assert DeadLetter.split(letter.headers.items())[0].text == "no such customer"


def test_a_consumer_gives_back_what_was_not_handled(nc, stream, subject, make_event):
    with nc.publisher() as publisher:
        for number in range(3):
            publisher.publish(make_event(number), subject)
    options: Any = {"dead_letter": None, "config": ConsumerConfig(ack_wait=600), "timeout": SECONDS}
    with sync.PullConsumer(nc, stream, "c", **options) as consumer:
        assert next(consumer).sequence == 1
    assert list(consumer) == []
    with sync.PullConsumer(nc, stream, "c", **options) as consumer:
        # In whatever order: one that was not taken from the first consumer at all may be delivered before the others.
        assert sorted(next(consumer).sequence for _ in range(3)) == [1, 2, 3]
    with pytest.raises(sync.DeliveryError) as caught:
        nc.consumer(stream, "missing", dead_letter=None)
    assert caught.value.code == "consumer-not-found"


# --- Where it runs ----------------------------------------------------------------------------------------------------


async def test_inside_of_a_running_event_loop(server, subject, make_event):
    """As in a notebook: calls block, and work."""
    with sync.connect(server.url) as nc, nc.subscribe(subject) as messages:
        nc.publish(make_event(1), subject)
        assert next(messages).event.get_id() == "event 1"


def test_there_is_one_loop_and_one_thread(server):
    with sync.connect(server.url) as one, sync.connect(server.url) as other:
        assert one.link.loop is other.link.loop is loops.current()
        assert [thread.name for thread in threading.enumerate()].count("ce_nats.sync") == 1


def test_calls_from_the_loops_own_thread_are_refused(nc, subject):
    async def call() -> None:
        nc.flush()

    with pytest.raises(RuntimeError, match="event loop thread"):
        nc.run(call)


def test_what_is_open_is_known_until_it_is_closed(server, subject):
    opened = loops.current().opened
    before = len(opened)
    with sync.connect(server.url) as nc, nc.publisher(), nc.subscribe(subject):
        assert len(opened) == before + 3
    assert len(opened) == before


def interrupted(call):
    """Call something that waits, and press Ctrl-C meanwhile."""
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        call()
    finally:
        timer.join()


def test_an_interrupted_wait_loses_no_message(nc, subject, make_event):
    with nc.subscribe(subject) as messages:
        with pytest.raises(KeyboardInterrupt):
            interrupted(lambda: next(messages))
        nc.publish(make_event(7), subject)
        assert next(messages).event.get_id() == "event 7"


def test_an_interrupted_request_is_cancelled(nc, subject, make_event):
    with nc.subscribe(subject):
        with pytest.raises(KeyboardInterrupt):
            interrupted(lambda: nc.request(make_event(), subject, timeout=SECONDS))
        nc.flush()


def wait_for(condition):
    give_up = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


# --- Other processes --------------------------------------------------------------------------------------------------

START = """
import logging, os, sys, threading
from cloudevents.core.v1.event import CloudEvent
from ce_nats import sync
logging.basicConfig(format="%(message)s")
url, subject = sys.argv[1:]
def event(number):
    return CloudEvent({"source": "/s", "type": "t", "id": f"event {number}"}, None)
"""


def run(program: str, url: str, subject: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", START + program, url, subject]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def start(program: str, url: str, subject: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", START + program, url, subject]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


WITHOUT_CLOSING = {
    "of a publisher": "p = sync.connect(url).publisher()\nfor n in range(300): p.publish(event(n), subject)",
    "of a connection": "nc = sync.connect(url)\nfor n in range(300): nc.publish(event(n), subject)",
    "with an exit": (
        "p = sync.connect(url).publisher()\nfor n in range(300): p.publish(event(n), subject)\nsys.exit(0)"
    ),
    "by name": (
        "p = sync.connect(url.replace('127.0.0.1', 'localhost')).publisher()\n"
        "for n in range(300): p.publish(event(n), subject)"
    ),
    "with a thread that waits": (
        "nc = sync.connect(url)\nmessages = nc.subscribe(subject)\n"
        "threading.Thread(target=list, args=[messages], daemon=True).start()\n"
        "for n in range(300): nc.publish(event(n), subject)"
    ),
    "of multiprocessing": (
        "import multiprocessing\n"
        "def work():\n"
        "    p = sync.connect(url).publisher()\n"
        "    for n in range(300): p.publish(event(n), subject)\n"
        "process = multiprocessing.get_context('fork').Process(target=work)\n"
        "process.start(); process.join(); sys.exit(process.exitcode)"
    ),
    "of a fork": (
        "p = sync.connect(url).publisher()\np.publish(event(0), subject); p.flush()\n"
        "if not os.fork():\n    for n in range(1, 300): p.publish(event(n), subject)\n"
        "    sys.exit(0)\n"
        "assert os.wait()[1] == 0"
    ),
}


@pytest.mark.parametrize("program", WITHOUT_CLOSING.values(), ids=WITHOUT_CLOSING)
def test_the_end_of_a_program_sends_what_waits(server, js, stream, subject, program):
    done = run(program, server.url, subject, "-W", "error", "-W", "ignore::DeprecationWarning")
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(js, stream) == ids(*range(300))


def test_the_end_of_a_program_whose_server_is_gone():
    """No hang, and an error of a line for what is lost."""
    program = (
        "p = sync.connect(url).publisher()\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "for n in range(3): p.publish(event(n), subject)\n"
    )
    with NatsServer(jetstream=True) as mortal, start(program, mortal.url, "lost") as process:
        assert process.stdout.readline() == "ready\n"
        mortal.stop()
        _, complaint = process.communicate("go on\n", timeout=SECONDS)
    lines = [line for line in complaint.splitlines() if "before the end of the program" in line]
    assert len(lines) == 1, complaint
    assert "timeout: lost: " in lines[0]
    assert "(and 2 more)" in lines[0]
    assert process.returncode == 0
    assert "Task was destroyed" not in complaint
    assert "Traceback" not in complaint


def test_a_fork_has_a_connection_of_its_own(server, js, stream, subject):
    """And the parent's goes on; what waited in the parent is sent by the parent, once."""
    program = """
nc = sync.connect(url)
p = nc.publisher(dedup=None)
messages = nc.subscribe(subject)
for n in range(100): p.publish(event(n), subject)
child = os.fork()
if not child:
    try:
        next(messages)
    except sync.DeliveryError as error:
        assert error.code == "not-open", error
    messages.close()
    with nc.subscribe(subject, timeout=30) as own:
        p.publish(event(100), subject)
        for item in own:
            if item.event.get_id() == "event 100":
                break
    nc.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
p.publish(event(101), subject)
p.close()
assert [next(messages).event.get_id() for _ in range(102)][-1] == "event 101"
nc.close()
print("done")
"""
    done = run(program, server.url, subject, "-W", "error", "-W", "ignore::DeprecationWarning")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert sorted(stored(js, stream)) == sorted(ids(*range(102)))


def test_ctrl_c_in_a_program(server, subject):
    program = "nc = sync.connect(url)\nmessages = nc.subscribe(subject)\nprint('ready', flush=True)\nnext(messages)"
    with start(program, server.url, subject) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=SECONDS)
    assert process.returncode == -signal.SIGINT
    assert complaint.rstrip().endswith("KeyboardInterrupt")
    assert "Task was destroyed" not in complaint


def test_the_extra_is_named_where_it_is_missing():
    program = "import sys; sys.modules['anyio'] = None; import ce_nats.sync"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ce_nats.sync needs anyio: pip install 'ce-nats[sync]'" in done.stderr
