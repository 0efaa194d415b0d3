"""
Publish the messages of a sender, and write to its journal what was sent and what was acknowledged.

A sender that was killed begins with its unacknowledged messages, in order. The sender ``fast`` uses fast ingest and
structured mode; any other one publishes message by message, in binary mode.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

import nats.errors
from nats.js import JetStreamContext

from ce_nats import ContentMode, aio
from ce_nats.message import MSG_ID

from .events import Kind, Planned, plan
from .journal import Journal, Run, sent_and_acknowledged

FAST = "fast"
_TICK = 0.1
# Seconds. Longer than any disturbance of the servers.
_RETRY_TIMEOUT = 180.0


class Sender:
    def __init__(self, run: Run, name: str, js: JetStreamContext, publisher: aio.Publisher) -> None:
        self._run, self._name, self._js, self._publisher = run, name, js, publisher
        self._malformed: set[asyncio.Task[None]] = set()
        self._last, acknowledged = sent_and_acknowledged(run.journal(name))
        self._unacknowledged = sorted(set(range(1, self._last + 1)).difference(acknowledged))
        self._journal = Journal(run.journal(name))

    async def work(self) -> None:
        """Publish until the end of the run, and return when all messages are acknowledged."""
        for number in self._unacknowledged:
            await self._send(number)
        self._unacknowledged.clear()
        loop = asyncio.get_running_loop()
        due, next_tick = 0.0, loop.time()
        while not self._run.sending_ends.exists():
            due += self._run.rate * _TICK
            first, self._last = self._last + 1, self._last + int(due)
            due -= int(due)
            self._journal.write("sent", self._last)
            for number in range(first, self._last + 1):
                await self._send(number)
            next_tick = max(next_tick + _TICK, loop.time())  # does not catch up after a pause
            await asyncio.sleep(next_tick - loop.time())
        await self._publisher.flush()
        await asyncio.gather(*self._malformed)

    async def _send(self, number: int) -> None:
        message = plan(self._run.seed, self._name, number)
        if message.kind is Kind.MALFORMED:
            task = asyncio.create_task(self._store(message, number))
            self._malformed.add(task)
            task.add_done_callback(self._malformed.discard)
            return
        future = await self._publisher.publish(message.event(), message.subject)
        future.add_done_callback(partial(self._acknowledged, number))

    def _acknowledged(self, number: int, future: asyncio.Future[object]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._journal.write("acknowledged", number)

    async def _store(self, message: Planned, number: int) -> None:
        """Publish a message that is not an event with nats-py, until it is acknowledged."""
        headers = {"Content-Type": "application/cloudevents+json", MSG_ID: message.id}
        while True:
            try:
                await self._js.publish(message.subject, message.malformed(), timeout=5, headers=headers)
            except nats.errors.Error:
                await asyncio.sleep(0.5)
            else:
                self._journal.write("acknowledged", number)
                return


async def main(directory: str, name: str) -> None:
    run = Run.load(directory)
    is_fast = name == FAST
    mode = ContentMode.STRUCTURED if is_fast else ContentMode.BINARY
    async with aio.connect(**run.options(name)) as nc:
        js = nc.jetstream(timeout=30)
        async with aio.Publisher(js, mode=mode, fast_ingest=is_fast, retry_timeout=_RETRY_TIMEOUT) as publisher:
            await Sender(run, name, js, publisher).work()
        print(f"{publisher.acknowledged} acknowledged, {publisher.batched} of them in batches")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
