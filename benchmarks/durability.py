"""
Measure what ``sync_interval: always`` costs: the figures of docs/guides/durability.md.

One ``Publisher`` stores typical events in a stream with one replica and with three (three servers on one machine, with
one disk), message by message and with fast ingest, on servers with the default ``sync_interval`` and with ``always``.
``one by one`` awaits each acknowledgement before it sends the next event. Rounds run all ways in turn; medians are
shown. The duration of an ``fsync()`` of 4 KiB in the same directory is printed, because everything depends on it.

``python -m benchmarks.durability [--rounds N] [--messages N] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from statistics import median

from cloudevents.core.v1.event import CloudEvent

from benchmarks import table
from benchmarks.codec import events
from ce_nats import aio
from ce_nats.testing import NatsCluster, NatsServer

ALWAYS = "jetstream { sync_interval: always }"
MONITORING = 'http: "127.0.0.1:-1"'
WAYS = ("window of 1,000", "fast ingest", "one by one")
# Fewer events one by one, which take a fsync each.
_ONE_BY_ONE_SHARE = 20


def fsync_seconds() -> float:
    """Return the median duration of an fsync() of 4 KiB."""
    found = []
    with tempfile.TemporaryFile() as file:
        for _ in range(50):
            file.write(b"x" * 4096)
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            found.append(time.perf_counter() - started)
    return median(found)


def check_setting(servers: Sequence[NatsServer], always: bool) -> None:
    """Check that the servers have the setting that is measured."""
    for server in servers:
        with urllib.request.urlopen(f"{server._monitoring}/varz", timeout=10) as response:
            config = json.load(response)["jetstream"]["config"]
        if bool(config.get("sync_always")) != always:
            raise RuntimeError(f"sync_always must be {always}, got {config}")


async def publish(urls: Sequence[str], replicas: int, way: str, batch: Sequence[CloudEvent]) -> float:
    """Return the number of events per second that are acknowledged."""
    async with aio.connect(list(urls)) as nc:
        js = nc.jetstream(timeout=60)
        is_fast = way == "fast ingest"
        await js.add_stream(name="S", subjects=["s.>"], num_replicas=replicas, allow_batched=is_fast)
        if way == "one by one":
            batch = batch[: max(1, len(batch) // _ONE_BY_ONE_SHARE)]
        started = time.perf_counter()
        async with aio.Publisher(js, window=1 if way == "one by one" else 1000) as publisher:
            for event in batch:
                await publisher.publish(event, "s.x")
        seconds = time.perf_counter() - started
        stored = (await js.stream_info("S")).state.messages
        await js.delete_stream("S")
    if stored != len(batch) or bool(publisher.batched) != is_fast:
        raise RuntimeError(f"{stored} of {len(batch)} events are stored, {publisher.batched} in batches")
    return len(batch) / seconds


async def measure(rounds: int, batch: Sequence[CloudEvent]) -> dict[tuple[int, str, bool], float]:
    """Return events per second by number of replicas, way and setting."""
    found: dict[tuple[int, str, bool], list[float]] = {}
    with ExitStack() as stack:
        servers: dict[tuple[int, bool], Sequence[NatsServer]] = {}
        for always in (False, True):
            config = f"{MONITORING}\n{ALWAYS if always else ''}"
            servers[1, always] = [stack.enter_context(NatsServer(jetstream=True, config=config))]
            servers[3, always] = stack.enter_context(NatsCluster(config=ALWAYS if always else "")).servers
        for (_, always), group in servers.items():
            check_setting(group, always)
        for _ in range(rounds):
            for replicas, way, always in product((1, 3), WAYS, (False, True)):
                urls = [server.url for server in servers[replicas, always]]
                rate = await publish(urls, replicas, way, batch)
                found.setdefault((replicas, way, always), []).append(rate)
    return {key: median(rates) for key, rates in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rates = asyncio.run(measure(arguments.rounds, events("typical", arguments.messages)))
    rows: list[list[str]] = []
    for replicas, way in product((1, 3), WAYS):
        default, always = rates[replicas, way, False], rates[replicas, way, True]
        rows.append([f"R{replicas}, {way}", f"{default:,.0f}", f"{always:,.0f}", f"{default / always:.1f}"])
    what = f"{arguments.messages:,} events, {arguments.rounds} rounds, fsync {fsync_seconds() * 1e3:.2f} ms"
    table.show(["acknowledged events/s", "default", "always", "ratio"], rows, what, markdown=arguments.markdown)


if __name__ == "__main__":
    main()
