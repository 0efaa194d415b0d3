"""
Compare reading a stream: nats-py alone, the data source's reader alone, and Spark with one and two partitions.

nats-py reads with its fastest consumer, the ordered push consumer, and discards the messages. The reader decodes header
blocks and makes Arrow batches. With ``maxBytesPerTrigger`` the driver reads the sizes of messages before. Spark reads
the batches into the ``noop`` sink; the time includes planning and starting tasks. All read the same range of one stream
with file storage: messages of 300 bytes with seven headers. Each round runs all of them; ratios are computed within a
round, and the median over all rounds is shown.

``python -m benchmarks.source [--rounds N] [--messages N] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, cast

import nats
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track

from benchmarks import table
from benchmarks.spark import local_spark
from ce_nats._ranges import StreamRange
from ce_nats.spark.connector._connection import Connection
from ce_nats.spark.connector._source import NatsDataSource
from ce_nats.spark.connector._streams import Streams
from ce_nats.testing import NatsServer

STREAM = "BENCH"
HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": "4b9ac3ee-1d5a-4f0b-9b5f-7b1f1e6a0a01",
    "ce-source": "https://example.com/orders/eu",
    "ce-type": "com.example.order.created",
    "ce-time": "2026-11-20T10:11:12.123456Z",
    "ce-subject": "Gr%C3%B6%C3%9Fe",
    "Content-Type": "application/json",
}
PAYLOAD = b'{"note": "' + b"x" * 288 + b'"}'


async def fill(url: str, messages: int, payload: bytes = PAYLOAD, headers: dict[str, str] | None = HEADERS) -> None:
    nc = await nats.connect(url)
    js = nc.jetstream()
    await js.add_stream(name=STREAM, subjects=["bench.*"])
    for number in range(messages):
        await nc.publish(f"bench.{number % 1000}", payload, headers=headers)
        if number % 2000 == 0:
            await nc.flush()
    await nc.flush()
    for _ in range(10_000):
        if (await js.stream_info(STREAM)).state.messages == messages:
            break
        await asyncio.sleep(0.01)
    await nc.close()


async def read_with_nats_py(url: str, messages: int) -> None:
    nc = await nats.connect(url)
    subscription = await nc.jetstream().subscribe("bench.*", stream=STREAM, ordered_consumer=True)
    seen = 0
    async for _ in subscription.messages:
        seen += 1
        if seen == messages:
            break
    await nc.close()


def read_with_reader(url: str, messages: int) -> None:
    source = NatsDataSource({"url": url, "stream": STREAM, "minPartitions": "1"})
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    assert sum(batch.num_rows for batch in cast("Iterator[pa.RecordBatch]", reader.read(partition))) == messages


def read_with_spark(spark: SparkSession, url: str, partitions: int) -> None:
    options: dict[str, Any] = {"url": url, "stream": STREAM, "minPartitions": partitions}
    spark.read.format("nats").options(**options).load().write.format("noop").mode("overwrite").save()


def read_sizes(url: str, messages: int) -> None:
    """Find the end of a micro-batch with a maximum number of bytes, as the driver does."""
    streams = Streams(Connection((url,)))
    assert streams.fitting(StreamRange(STREAM, 1, messages), 2**62)[0] == messages
    streams.close()


def measured(run: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds of this process, of a run."""
    started, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - started, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()

    spark = local_spark()
    with NatsServer(jetstream=True) as server:
        asyncio.run(fill(server.url, arguments.messages))
        variants: dict[str, Callable[[], object]] = {
            "nats-py, ordered consumer": lambda: asyncio.run(read_with_nats_py(server.url, arguments.messages)),
            "reader, to Arrow": lambda: read_with_reader(server.url, arguments.messages),
            "sizes for maxBytesPerTrigger": lambda: read_sizes(server.url, arguments.messages),
            "Spark, 1 partition": lambda: read_with_spark(spark, server.url, 1),
            "Spark, 2 partitions": lambda: read_with_spark(spark, server.url, 2),
        }
        for run in variants.values():
            run()
        results = [
            {variant: measured(run) for variant, run in variants.items()}
            for _ in track(range(arguments.rounds), "rounds", console=Console(stderr=True))
        ]
    spark.stop()
    show(results, arguments.messages, markdown=arguments.markdown)


def show(results: list[dict[str, tuple[float, float]]], messages: int, *, markdown: bool) -> None:
    rows = []
    bare = next(iter(results[0]))
    for variant in results[0]:
        rates = [messages / round_[variant][0] for round_ in results]
        ratios = [round_[bare][0] / round_[variant][0] for round_ in results]
        in_process = not variant.startswith("Spark")
        cpu = f"{median(round_[variant][1] for round_ in results) / messages * 1e6:.1f}" if in_process else "-"
        spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
        rows.append([variant, f"{median(rates):,.0f}", f"{median(ratios):.2f}", spread, cpu])
    titles = ["read with", "messages/s", "against nats-py", "range", "CPU µs/message"]
    table.show(titles, rows, f"{messages:,} messages, {len(results)} rounds", markdown=markdown)


if __name__ == "__main__":
    main()
