"""
Compare ways to consume events from a stream with nats-py's ``fetch()``, ``from_nats_message()`` and ``ack()``.

Each variant runs next to nats-py in the same round, in alternating order, on the same messages with the same handler;
the first round is a warm-up. Shown are medians over all rounds, and medians of the ratios within rounds: a ratio of 2
is half of nats-py's CPU time, or twice its rate. A run is measured from a new consumer to the last acknowledgement,
without connecting. It fails unless each event was handled once, with its data, and acknowledged without a redelivery.

With handlers that wait, nats-py passes messages through a queue to as many tasks as there are handlers. ``subscribe``
is compared with nats-py's iteration over the same subscription. Only public names of ce_nats are used, so that
versions of the package can be compared.

``python -m benchmarks.consume [--rounds N] [--messages N] [variant ...] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import socket
import ssl
import subprocess
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, StreamConfig
from nats.js.errors import ServiceUnavailableError
from rich.console import Console
from rich.progress import track

from benchmarks.shapes import KINDS, Message, messages
from benchmarks.table import show
from ce_nats import aio, from_nats_message, sync
from ce_nats.testing import NatsCluster, NatsServer

ACK_WAIT: Final = 60.0
RUN_SECONDS: Final = 300.0


class Variant(NamedTuple):
    """
    A way to consume.

    Attributes:
        consume: Consumes all messages of a run.
        events: Kind of the messages, of ``benchmarks.shapes.KINDS``.
        handlers: Number of concurrent handlers.
        seconds: Time for which a handler waits; 0 suspends it once; None returns at once.
        share: Number of messages, as a fraction of ``--messages``.
        server: Function that starts the server.
        prefetch: Maximum number of fetched messages.
        max_ack_pending: Limit of the consumer; -1 for none.
        double_ack: Whether each acknowledgement is confirmed.
        baseline: What to compare with; None for nats-py's ``fetch()``.
    """

    consume: Callable[[Run], Awaitable[None] | None]
    events: str = "typical"
    handlers: int = 1
    seconds: float | None = None
    share: float = 1.0
    server: str = "one"
    prefetch: int = 256
    max_ack_pending: int = -1
    double_ack: bool = False
    baseline: Callable[[Run], Awaitable[None]] | None = None

    @property
    def what(self) -> str:
        """Description for the table."""
        wait = "" if self.seconds is None else f"handlers of {self.seconds * 1000:g} ms"
        server = {"one": "", "three": "three replicas", "tls": "TLS", "websocket": "WebSocket"}[self.server]
        limit = f"max_ack_pending {self.max_ack_pending}" if self.max_ack_pending > 0 else ""
        prefetch = "" if self.prefetch == 256 else f"prefetch {self.prefetch}"
        return ", ".join(filter(None, [KINDS[self.events].what, wait, server, limit, prefetch]))


class Times(NamedTuple):
    """Seconds of a run: elapsed, CPU of this process, CPU of the servers."""

    elapsed: float
    cpu: float
    servers: float


@dataclass
class Run:
    """
    One run of a variant: its consumer, and what its handlers have seen.

    Attributes:
        variant: The variant.
        place: The server.
        stream: Name of the stream.
        count: Number of messages in the stream.
        consumer: Name of the consumer.
    """

    variant: Variant
    place: Place
    stream: str
    count: int
    consumer: str
    ids: list[str] = field(default_factory=list)
    with_data: int = 0
    times: Times | None = None

    def look(self, event: Any) -> bool:
        """Read id and data of an event; return whether it is the last one."""
        self.ids.append(event.get_id())
        if event.get_data() is not None:
            self.with_data += 1
        return len(self.ids) == self.count

    async def wait(self) -> None:
        """Wait as a handler does."""
        if self.variant.seconds is not None:
            await asyncio.sleep(self.variant.seconds)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the block."""
        gc.collect()
        before = time.perf_counter(), time.process_time(), _children_seconds()
        yield
        after = time.perf_counter(), time.process_time(), _children_seconds()
        self.times = Times(*(end - start for start, end in zip(before, after)))

    def consumer_of(self, nc: Client) -> aio.PullConsumer:
        """Return the consumer of ce_nats."""
        return aio.PullConsumer(
            nc.jetstream(),
            self.stream,
            self.consumer,
            dead_letter=None,
            prefetch=self.variant.prefetch,
            double_ack=self.variant.double_ack,
        )


def _children_seconds() -> float:
    """Return the CPU seconds of child processes, the servers; Linux only, else 0."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                threads = stat.parent.glob("task/*/schedstat")
                found += sum(int(thread.read_text().split()[0]) for thread in threads)
        except OSError:
            pass  # it has ended
    return found / 1e9


# --- nats-py ----------------------------------------------------------------------------------------------------------


async def _batches(run: Run, nc: Client, most: int) -> Any:
    """Yield batches of messages that ``fetch()`` returns, until all have arrived."""
    subscription = await nc.jetstream().pull_subscribe_bind(consumer=run.consumer, stream=run.stream)
    fetched = 0
    while fetched < run.count:
        try:
            batch = await subscription.fetch(min(most, run.count - fetched), timeout=30)
        except ServiceUnavailableError:  # a new consumer with replicas has no leader for a moment
            continue
        fetched += len(batch)
        yield batch


async def fetch(run: Run) -> None:
    limit = run.variant.max_ack_pending
    async with await nats.connect(**run.place.options) as nc:
        with run.measured():
            async for batch in _batches(run, nc, min(run.variant.prefetch, limit if limit > 0 else 10**6)):
                for message in batch:
                    run.look(from_nats_message(message))
                    await run.wait()
                    await message.ack()
            await nc.flush()


async def fetch_with_tasks(run: Run) -> None:
    queue: asyncio.Queue[Msg] = asyncio.Queue(run.variant.prefetch)

    async def work() -> None:
        while True:
            message = await queue.get()
            run.look(from_nats_message(message))
            await run.wait()
            await message.ack()
            queue.task_done()

    async with await nats.connect(**run.place.options) as nc:
        with run.measured():
            workers = [asyncio.create_task(work()) for _ in range(run.variant.handlers)]
            async for batch in _batches(run, nc, run.variant.prefetch):
                for message in batch:
                    await queue.put(message)
            await queue.join()
            await nc.flush()
        for worker in workers:
            worker.cancel()


async def iterate_subscription(run: Run) -> None:
    async with await nats.connect(**run.place.options) as nc:
        inbox = nc.new_inbox()
        subscription = await nc.subscribe(inbox)
        with run.measured():
            await _push(run, nc, inbox)
            async for message in subscription.messages:
                if run.look(from_nats_message(message)):
                    break


async def _push(run: Run, nc: Client, subject: str) -> None:
    """Have the server publish all messages on a subject, as fast as it can."""
    config = ConsumerConfig(name=run.consumer, deliver_subject=subject, ack_policy=AckPolicy.NONE)
    await nc.jetstream().add_consumer(run.stream, config)


# --- ce_nats ----------------------------------------------------------------------------------------------------------


async def handle(
    run: Run, connect: Callable[..., Awaitable[Client]] = aio.connect, key: Callable[[Any], Any] | None = None
) -> None:
    async def with_event(delivery: aio.Delivery) -> None:
        is_last = run.look(delivery.event)
        await run.wait()
        if is_last:
            consumer.stop()

    async with await connect(**run.place.options) as nc:
        with run.measured():
            async with run.consumer_of(nc) as consumer:
                await consumer.run(with_event, concurrency=run.variant.handlers, key=key)
            await nc.flush()


async def handle_batches(run: Run, look: Callable[[Run, aio.Batch], None]) -> None:
    async def with_batch(batch: aio.Batch) -> None:
        look(run, batch)
        if len(run.ids) == run.count:
            consumer.stop()

    async with await aio.connect(**run.place.options) as nc:
        with run.measured():
            async with run.consumer_of(nc) as consumer:
                await consumer.run_batches(with_batch)
            await nc.flush()


def _look_at_events(run: Run, batch: aio.Batch) -> None:
    for event in batch:
        run.look(event)


def _look_at_columns(run: Run, batch: aio.Batch) -> None:
    columns = batch.columns()
    run.ids += columns["ce_id"].to_pylist()
    run.with_data += len(columns) - columns["ce_data"].null_count


async def iterate(run: Run) -> None:
    async with await aio.connect(**run.place.options) as nc:
        with run.measured():
            async with run.consumer_of(nc) as consumer:
                async for delivery in consumer:
                    async with delivery as event:
                        is_last = run.look(event)
                    if is_last:
                        break
            await nc.flush()


async def subscribe(run: Run) -> None:
    async with await aio.connect(**run.place.options) as nc:
        inbox = nc.new_inbox()
        async with aio.subscribe(nc, inbox) as events:
            with run.measured():
                await _push(run, nc, inbox)
                async for received in events:
                    if run.look(received.event):
                        break


def handle_in_thread(run: Run) -> None:
    def with_event(delivery: sync.Delivery) -> None:
        if run.look(delivery.event):
            consumer.stop()

    with sync.connect(**run.place.options) as nc, run.measured():
        with nc.consumer(run.stream, run.consumer, dead_letter=None, prefetch=run.variant.prefetch) as consumer:
            consumer.run(with_event, concurrency=run.variant.handlers)
        nc.flush()


def iterate_in_thread(run: Run) -> None:
    with sync.connect(**run.place.options) as nc, run.measured():
        with nc.consumer(run.stream, run.consumer, dead_letter=None, prefetch=run.variant.prefetch) as consumer:
            for delivery in consumer:
                with delivery as event:
                    is_last = run.look(event)
                if is_last:
                    break
        nc.flush()


VARIANTS: Final = {
    "run": Variant(handle),
    "run8": Variant(handle, handlers=8),
    "mixed": Variant(handle, "mixed"),
    "mixed8": Variant(handle, "mixed", 8),
    "suspend": Variant(handle, seconds=0),
    "suspend8": Variant(handle, handlers=8, seconds=0),
    "batches": Variant(partial(handle_batches, look=_look_at_events)),
    "batch-columns": Variant(partial(handle_batches, look=_look_at_columns)),
    "iterate": Variant(iterate),
    "nats-client": Variant(partial(handle, connect=nats.connect)),
    "structured": Variant(handle, "structured"),
    "double-ack": Variant(handle, handlers=8, double_ack=True),
    "key": Variant(partial(handle, key=lambda delivery: delivery.event.get_subject()), handlers=8),
    "subscribe": Variant(subscribe, baseline=iterate_subscription),
    "sync": Variant(handle_in_thread),
    "sync8": Variant(handle_in_thread, handlers=8),
    "sync-iterate": Variant(iterate_in_thread),
    "50ms": Variant(handle, handlers=8, seconds=0.05, share=0.04),
    "escapes": Variant(handle, "escapes"),
    "offset": Variant(handle, "offset"),
    "no-type": Variant(handle, "no-type"),
    "no-data": Variant(handle, "no-data"),
    "title-case": Variant(handle, "title-case"),
    "content-type": Variant(handle, "content-type"),
    "twelve": Variant(handle, "twelve"),
    "flood": Variant(handle, "flood"),
    "ack-pending-1": Variant(handle, share=0.2, max_ack_pending=1),
    "ack-pending-8": Variant(handle, handlers=8, max_ack_pending=8),
    "16kb": Variant(handle, "16kb", share=0.3),
    "tls": Variant(handle, server="tls"),
    "websocket": Variant(handle, server="websocket"),
    "8ms": Variant(handle, handlers=8, seconds=0.008, share=0.25),
    "8ms-64": Variant(handle, handlers=8, seconds=0.008, share=0.25, prefetch=64),
    "8ms-replicas": Variant(handle, handlers=8, seconds=0.008, share=0.25, server="three"),
    "8ms-64-replicas": Variant(handle, handlers=8, seconds=0.008, share=0.25, server="three", prefetch=64),
}


# --- Servers ----------------------------------------------------------------------------------------------------------


class Place:
    """
    A server with streams, or a cluster.

    Args:
        options: Arguments with which clients connect, for ``nats.connect()`` and ``ce_nats.aio.connect()``.
        admin: URL for the management of streams.
        replicas: Number of replicas of streams.
    """

    def __init__(self, options: dict[str, Any], admin: str, replicas: int = 1) -> None:
        self.options = options
        self._replicas = replicas
        self._nc = sync.connect(admin)
        self._js = self._nc.client.jetstream(timeout=30)
        self._messages: dict[str, list[Message]] = {}

    def close(self) -> None:
        self._nc.close()

    def run(self, variant: Variant, count: int) -> Run:
        """Return a new run, with a new consumer unless the variant creates it."""
        stream = f"{variant.events}-{count}"
        if stream not in self._messages:
            self._messages[stream] = messages(variant.events, count)
            self._nc.run(self._fill, stream)
        consumer = f"c{time.monotonic_ns()}"
        if variant.baseline is None:
            config = ConsumerConfig(
                durable_name=consumer,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ACK_WAIT,
                max_ack_pending=variant.max_ack_pending,
            )
            self._nc.run(self._js.add_consumer, stream, config)
        return Run(variant, self, stream, count, consumer)

    async def _fill(self, stream: str) -> None:
        subject = f"bench.{stream}"
        await self._js.add_stream(StreamConfig(stream, subjects=[subject], num_replicas=self._replicas))
        js = self._nc.client.jetstream(publish_async_max_pending=1000)
        for message in self._messages[stream]:
            await js.publish_async(subject, message.data, headers=message.headers)
        await js.publish_async_completed()

    def check(self, run: Run) -> None:
        """Fail unless all messages were handled and acknowledged once; delete the consumer."""
        expected = self._messages[run.stream]
        assert sorted(run.ids) == sorted(message.id for message in expected)
        assert run.with_data == sum(message.has_data for message in expected)
        if run.variant.baseline is None:
            info = self._settled(run)
            floor, delivered = info.ack_floor, info.delivered
            assert (info.num_ack_pending, info.num_redelivered) == (0, 0), info
            assert floor
            assert delivered
            assert floor.stream_seq == floor.consumer_seq == delivered.consumer_seq == run.count, info
        self._nc.run(self._js.delete_consumer, run.stream, run.consumer)

    def _settled(self, run: Run) -> ConsumerInfo:
        """Return the state of a consumer when the server has processed its acknowledgements, or after 4 seconds."""
        deadline = time.monotonic() + 4
        while True:
            info: ConsumerInfo = self._nc.run(self._js.consumer_info, run.stream, run.consumer)
            if not info.num_ack_pending or time.monotonic() > deadline:
                return info
            time.sleep(0.02)


def _certificate(directory: str) -> str:
    """Create a certificate for 127.0.0.1, and its key in the same file; return the path."""
    path = f"{directory}/server.pem"
    made = ["-keyout", path, "-out", f"{path}.crt", "-days", "2", "-subj", "/CN=bench"]
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, *name]
    subprocess.run(command, check=True, capture_output=True)
    with Path(path).open("a") as file:
        file.write(Path(f"{path}.crt").read_text())
    return path


def start(server: str, stack: ExitStack) -> Place:
    """Start a server, which ends with the stack: ``one``, ``three``, ``tls`` or ``websocket``."""
    if server == "three":
        cluster = stack.enter_context(NatsCluster())
        return Place({"servers": cluster.urls}, ",".join(cluster.urls), 3)
    config = ""
    options: dict[str, Any] = {}
    if server == "tls":
        path = _certificate(stack.enter_context(TemporaryDirectory()))
        config = f'tls {{ cert_file: "{path}", key_file: "{path}" }}\nallow_non_tls: true'
        options = {"tls": ssl.create_default_context(cafile=path)}
    elif server == "websocket":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}'
        options = {"servers": f"ws://127.0.0.1:{port}"}
    url = stack.enter_context(NatsServer(jetstream=True, config=config)).url
    return Place({"servers": url, **options}, url)


# --- Measuring --------------------------------------------------------------------------------------------------------


def once(place: Place, variant: Variant, consume: Callable[[Run], Awaitable[None] | None], count: int) -> Times:
    """Return the times of a run that was checked."""
    run = place.run(variant, count)
    waiting = consume(run)
    if waiting is not None:
        asyncio.run(asyncio.wait_for(waiting, RUN_SECONDS))
    place.check(run)
    assert run.times is not None
    return run.times


def kept(measure: Callable[[], Any]) -> float:
    """Return the KiB that remain allocated after a run."""
    gc.collect()
    tracemalloc.start()
    measure()
    gc.collect()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return left / 2**10


def row(name: str, place: Place, arguments: argparse.Namespace) -> list[str]:
    """Measure a variant in all rounds; return its row of the table."""
    variant = VARIANTS[name]
    count = max(1, round(arguments.messages * variant.share))
    base = variant.baseline or (fetch_with_tasks if variant.seconds else fetch)
    sides = [partial(once, place, variant, consume, count) for consume in (base, variant.consume)]
    rounds: list[list[Times]] = []
    for number in range(arguments.rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        found = {side: sides[side]() for side in order}
        rounds.append([found[0], found[1]])
    rounds = rounds[1:]
    micro = 1e6 / count
    return [
        name,
        variant.what,
        f"{count:,}",
        f"{count / median(ours.elapsed for _, ours in rounds):,.0f}",
        f"{median(ours.cpu for _, ours in rounds) * micro:.1f}",
        f"{median(theirs.cpu for theirs, _ in rounds) * micro:.1f}",
        f"{median(ours.servers for _, ours in rounds) * micro:.1f}",
        f"{median(theirs.cpu / ours.cpu for theirs, ours in rounds):.2f}",
        f"{median(theirs.elapsed / ours.elapsed for theirs, ours in rounds):.2f}",
        " / ".join(f"{kept(side):,.0f}" for side in reversed(sides)) if variant.events == "flood" else "",
    ]


TITLES: Final = (
    *("variant", "events", "messages", "events/s", "CPU µs", "nats-py's", "servers'"),
    *("CPU ratio", "rate ratio", "KiB kept / nats-py's"),
)


def measured(names: Sequence[str], arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Yield a row for each variant."""
    with ExitStack() as stack:
        place_of = cache(lambda server: start(server, stack))
        places = []
        try:
            for name in track(names, "variants", console=Console(stderr=True)):
                place = place_of(VARIANTS[name].server)
                places.append(place)
                yield row(name, place, arguments)
        finally:
            for place in set(places):
                place.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("variant", nargs="*", help=f"by default all: {' '.join(VARIANTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=6000)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.variant) - set(VARIANTS):
        parser.error(f"unknown variant {', '.join(sorted(unknown))}")
    names = arguments.variant or list(VARIANTS)
    if find_spec("aiohttp") is None:
        print("websocket is skipped: it needs aiohttp")
        names = [name for name in names if VARIANTS[name].server != "websocket"]
    show(TITLES, list(measured(names, arguments)), f"{arguments.rounds} rounds", markdown=arguments.markdown)


if __name__ == "__main__":
    main()
