"""
Requeue the dead letters of one error after the handler was fixed.

    pip install ce-nats
    python examples/replay_dead_letters.py DEAD_ORDERS --error KeyError            lists them
    python examples/replay_dead_letters.py DEAD_ORDERS --error KeyError --replay   publishes the originals again

A dead letter is deleted after its original was stored. If an original cannot be published, its dead letter is kept, and
the exit status is 1. ``ce-nats dead-letters requeue DEAD_ORDERS --error KeyError`` does the same in a shell.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator

from nats.js import JetStreamContext

from ce_nats import DecodeError, aio
from ce_nats.aio import requeue_all
from ce_nats.aio.jetstream import read_stream
from ce_nats.message import StoredMessage
from ce_nats.redelivery import DeadLetter

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


async def failed_with(js: JetStreamContext, stream: str, error: str) -> AsyncIterator[StoredMessage]:
    async for batch in read_stream(js, stream):
        for message in batch:
            try:
                dead_letter, _ = DeadLetter.split(message.headers)
            except DecodeError as reason:
                print(f"{message.sequence}: skipped, because it is not a dead letter ({reason})")
                continue
            if dead_letter.error == error:
                origin = f"{dead_letter.stream}:{dead_letter.sequence}"
                print(f"{message.sequence}: {origin} on {dead_letter.subject}: {dead_letter.text}")
                yield message


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("stream")
    parser.add_argument("--error", required=True, help="an error code, or the class of a handler's exception")
    parser.add_argument("--replay", action="store_true")
    arguments = parser.parse_args()

    status = 0
    async with await aio.connect(URL) as nc:
        js = nc.jetstream()
        dead_letters = failed_with(js, arguments.stream, arguments.error)
        if not arguments.replay:
            print(sum([1 async for _ in dead_letters]), "would be replayed")
            return status
        async for result in requeue_all(js, dead_letters):
            if result.ack is not None:
                print(f"{result.sequence}: is message {result.ack.seq} of stream {result.ack.stream}")
            if result.error is not None:
                print(f"{result.sequence}: {result.error}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
