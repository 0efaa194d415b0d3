"""
Compare reading and capturing a stream: nats-py alone, read_stream, and captures in JSON lines and in Parquet.

nats-py reads with its fastest consumer, the ordered push consumer, and discards the messages. ``read_stream`` returns
messages with the headers as stored; a capture writes them to a file. All variants read the same range of one stream
with file storage: messages of 300 bytes with seven headers, or with ``--small`` of 12 bytes without headers. Each round
runs all of them; ratios are computed within a round, and the median over all rounds is shown. Captured messages are
counted.

``python -m benchmarks.capture [--rounds N] [--messages N] [--small] [--markdown]``
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
from nats.js import JetStreamContext
from rich.console import Console
from rich.progress import track

from benchmarks.source import HEADERS, PAYLOAD, STREAM, fill, measured, read_with_nats_py, show
from ce_nats.aio.jetstream import read_stream
from ce_nats.capture import count_captured, write_capture
from ce_nats.testing import NatsServer

_SMALL = b'{"total": 5}'


async def with_stream(url: str, use: Callable[[JetStreamContext], Awaitable[None]]) -> None:
    async with await nats.connect(url) as nc:
        await use(nc.jetstream())


async def read(js: JetStreamContext) -> None:
    async for _ in read_stream(js, STREAM):
        pass


def capturing(path: Path, messages: int) -> Callable[[JetStreamContext], Awaitable[None]]:
    async def run(js: JetStreamContext) -> None:
        await write_capture(read_stream(js, STREAM), path, if_exists="replace")
        assert count_captured(path) == messages

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name, NatsServer(jetstream=True) as server:
        payload, headers = (_SMALL, None) if arguments.small else (PAYLOAD, HEADERS)
        asyncio.run(fill(server.url, arguments.messages, payload, headers))
        lines, parquet = (capturing(Path(name) / file, arguments.messages) for file in ("a.jsonl", "a.parquet"))
        variants: dict[str, Callable[[], object]] = {
            "nats-py, ordered consumer": lambda: asyncio.run(read_with_nats_py(server.url, arguments.messages)),
            "read_stream": lambda: asyncio.run(with_stream(server.url, read)),
            "capture, JSON lines": lambda: asyncio.run(with_stream(server.url, lines)),
            "capture, Parquet": lambda: asyncio.run(with_stream(server.url, parquet)),
        }
        results = [
            {variant: measured(run) for variant, run in variants.items()}
            for _ in track(range(arguments.rounds), "rounds", console=Console(stderr=True))
        ]
    show(results, arguments.messages, markdown=arguments.markdown)


if __name__ == "__main__":
    main()
