"""The event loop of ``ce_nats.sync``: threads, forks, and the end of a program."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from ce_nats import sync
from ce_nats.sync import _loop as loops
from ce_nats.testing import NatsServer
from tests.support.synchronous import SECONDS, event_ids, stored_ids, wait_for


async def test_calls_block_inside_a_running_event_loop(server, subject, make_event):
    """As in a notebook."""
    with sync.connect(server.url) as nc, nc.subscribe(subject) as messages:
        nc.publish(make_event(1), subject)
        assert next(messages).event.get_id() == "event 1"


def test_connections_share_one_loop_and_one_thread(server):
    with sync.connect(server.url) as one, sync.connect(server.url) as other:
        assert one._link.loop is other._link.loop is loops.current()
        assert [thread.name for thread in threading.enumerate()].count("ce_nats.sync") == 1


def test_calls_from_the_thread_of_the_loop_are_rejected(nc):
    async def call() -> None:
        nc.flush()

    with pytest.raises(RuntimeError, match="event loop thread"):
        nc.run(call)


def test_open_objects_are_registered_until_they_are_closed(server, subject):
    opened = loops.current().opened
    before = len(opened)
    with sync.connect(server.url) as nc, nc.publisher(), nc.subscribe(subject):
        assert len(opened) == before + 3
    assert len(opened) == before


@pytest.mark.parametrize("cause", [asyncio.CancelledError(), RuntimeError("broken")], ids=["cancelled", "error"])
def test_exception_of_a_send_fails_one_item(cause, caplog):
    """The others are sent in order, and everyone who waits returns."""
    sent, failed = [], []

    async def send(item):
        await asyncio.sleep(0)
        if item % 100 == 7:
            raise cause
        sent.append(item)

    queue = loops.SendQueue(loops.current(), send, lambda item, error: failed.append((item, error.code)), limit=50)
    for number in range(300):
        queue.put(number)
    loops.current().run(queue.emptied)
    assert sent == [number for number in range(300) if number % 100 != 7]
    assert failed == [(number, "delivery-failed") for number in (7, 107, 207)]
    assert [record.getMessage() for record in caplog.records] == ["sending from threads: a background task failed"] * 3
    assert loops.current().run(queue.close) == []


def test_closed_queue_returns_what_was_not_sent():
    sent, blocked = [], asyncio.Event()

    async def send(item):
        if item == 2:
            await blocked.wait()
        sent.append(item)

    queue = loops.SendQueue(loops.current(), send, lambda item, error: None, limit=50)
    for number in range(5):
        queue.put(number)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(loops.current().run, queue.emptied)
        wait_for(lambda: sent == [0, 1])
        assert loops.current().run(queue.close) == [2, 3, 4]
        waiting.result(SECONDS)
    queue.put(5)
    loops.current().run(queue.emptied)
    assert sent == [0, 1, 5]


# --- Other processes --------------------------------------------------------------------------------------------------

START = """
import logging, os, sys, threading, warnings
sys.modules["program"] = sys.modules["__main__"]  # which ends after atexit, as in a new process
warnings.simplefilter("error")
warnings.simplefilter("ignore", DeprecationWarning)
from cloudevents.core.v1.event import CloudEvent
from ce_nats import sync
logging.basicConfig(format="%(message)s")
url, subject = sys.argv[1:]
def event(number):
    return CloudEvent({"source": "/s", "type": "t", "id": f"event {number}"}, None)
"""


@pytest.fixture
def command(python, server, subject, tmp_path):
    """Return a function that stores a program, and returns its command line."""

    def command(program: str, url: str = server.url, python: str = python) -> list[str]:
        path = tmp_path / "program.py"
        path.write_text(program, "utf-8")
        return [python, str(path), url, subject]

    return command


@pytest.fixture
def run(command):
    """Return a function that runs a program, and returns its status, output and errors."""

    def run(program: str, **options: str) -> tuple[int, str, str]:
        done = subprocess.run(command(program, **options), capture_output=True, text=True, timeout=SECONDS)
        return done.returncode, done.stdout, done.stderr

    return run


@contextmanager
def start(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # if the test fails


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
    "with a waiting thread": (
        "nc = sync.connect(url)\nmessages = nc.subscribe(subject)\n"
        "threading.Thread(target=list, args=[messages], daemon=True).start()\n"
        "for n in range(300): nc.publish(event(n), subject)"
    ),
    "while a stream is read": (
        "nc = sync.connect(url)\n"
        "with nc.publisher() as p:\n    for n in range(300): p.publish(event(n), subject)\n"
        "batches = nc.read_stream(subject.replace('.', '_'), batch_size=10)\nassert len(next(batches)) == 10"
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
def test_waiting_events_are_sent_when_the_program_ends(run, js, stream, program):
    assert run(START + program) == (0, "", "")
    assert stored_ids(js, stream) == event_ids(*range(300))


def test_iterations_end_with_the_program(run, stream):
    """A thread may ask for the next message when the connections are closed; here a function that runs after that."""
    program = (
        "import atexit\n"
        "atexit.register(lambda: print(list(messages), list(deliveries)))\n"
        f"from nats.js.api import ConsumerConfig\n{START}\n"
        "nc = sync.connect(url)\n"
        "messages = nc.subscribe(subject)\n"
        "stream = subject.replace('.', '_')\n"
        "deliveries = sync.connect(url).consumer(stream, 'c', dead_letter=None, create=ConsumerConfig())\n"
    )
    assert run(program, python=sys.executable) == (0, "[] []\n", "")


def test_lost_events_are_logged_when_the_program_ends_without_a_server(command, subject):
    """The program does not hang, and logs one line."""
    program = (
        "p = sync.connect(url).publisher()\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "for n in range(3): p.publish(event(n), subject)\n"
    )
    with NatsServer(jetstream=True) as mortal, start(command(START + program, mortal.url)) as process:
        assert process.stdout.readline() == "ready\n"
        mortal.stop()
        _, complaint = process.communicate("continue\n", timeout=SECONDS)
    lines = [line for line in complaint.splitlines() if "before the end of the program" in line]
    assert len(lines) == 1, complaint
    assert f"timeout: {subject}: " in lines[0]
    assert "(and 2 more)" in lines[0]
    assert process.returncode == 0
    assert "Task was destroyed" not in complaint
    assert "Traceback" not in complaint


def test_fork_opens_a_separate_connection(run, js, stream):
    """The parent's connection stays open, and the parent sends its waiting events, once."""
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
    p.flush()  # the event may arrive before its acknowledgement
    nc.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
p.publish(event(101), subject)
p.close()
assert [next(messages).event.get_id() for _ in range(102)][-1] == "event 101"
nc.close()
print("done")
"""
    assert run(START + program) == (0, "done\n", "")
    assert sorted(stored_ids(js, stream)) == sorted(event_ids(*range(102)))


def test_ctrl_c_ends_a_waiting_program(command):
    program = "nc = sync.connect(url)\nmessages = nc.subscribe(subject)\nprint('ready', flush=True)\nnext(messages)"
    with start(command(START + program)) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=SECONDS)
    assert process.returncode == -signal.SIGINT
    assert complaint.rstrip().endswith("KeyboardInterrupt")
    assert "Task was destroyed" not in complaint


def test_missing_extra_is_named(run):
    program = """
import sys
for name in [name for name in sys.modules if name.startswith(("anyio", "ce_nats.sync"))]:
    del sys.modules[name]
sys.modules["anyio"] = None
import ce_nats.sync
"""
    assert "ce_nats.sync needs anyio: pip install 'ce-nats[sync]'" in run(program)[2]
