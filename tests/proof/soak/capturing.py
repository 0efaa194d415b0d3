"""Append new messages of the stream to two captures, Parquet and JSON lines, every few seconds."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from nats.js import JetStreamContext

from ce_nats import aio
from ce_nats.capture import last_captured, write_capture

from .journal import STREAM, Run

_PAUSE_SECONDS = 3.0
SUFFIXES = (".parquet", ".jsonl")


def outputs(run: Run, name: str) -> list[Path]:
    return [run.path(f"{name}{suffix}") for suffix in SUFFIXES]


async def append(js: JetStreamContext, path: Path) -> None:
    last = await asyncio.to_thread(last_captured, path)
    start = 1 if last is None else last.sequence  # the last one again, by which the capture recognizes its stream
    await write_capture(aio.jetstream.read_stream(js, STREAM, start=start), path, if_exists="append")


async def main(directory: str, name: str) -> None:
    run = Run.load(directory)
    async with aio.connect(**run.options(name)) as nc:
        js = nc.jetstream(timeout=60)
        is_last = False
        while not is_last:
            is_last = run.ends.exists()
            for path in outputs(run, name):
                await append(js, path)
            if not is_last:
                await asyncio.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
