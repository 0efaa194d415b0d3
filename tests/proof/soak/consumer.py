"""
Handle the events of the stream with eight handlers, and write to a journal which were begun and which succeeded.

The consumers in ``KEYED`` keep the order per key.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack

from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError, ErrorCode, Reject, aio
from ce_nats.extensions.partitioning import partition_key

from .events import Kind, event_digest
from .journal import STREAM, Journal, Run
from .processes import NOT_STARTED

KEYED = ("keyed", "steady")
ACK_WAIT = 5.0
MAX_DELIVERIES = 3
_BACKOFF = (0.2, 0.5)
_POLL_SECONDS = 0.5


class Handler:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, delivery: aio.Delivery) -> None:
        event = delivery.event
        kind = Kind(event.get_type().rpartition(".")[2])
        self._journal.write("begun", delivery.sequence, time.time_ns())
        await asyncio.sleep(0.001 * (delivery.sequence % 4))  # so that handlers overlap
        if kind is Kind.REJECTED:
            raise Reject("rejected by the soak")
        if kind is Kind.FAILING or (kind is Kind.FLAKY and delivery.deliveries == 1):
            raise RuntimeError(f"{kind} event")
        self._journal.write("done", delivery.sequence, event_digest(event))


def report(error: Exception, _delivery: object) -> None:
    """Print errors, except those of handlers."""
    if not isinstance(error, (RuntimeError, Reject)):
        print(f"{type(error).__name__}: {error}"[:300], flush=True)


async def main(directory: str, name: str) -> None:
    run = Run.load(directory)
    async with aio.connect(**run.options(name)) as nc:
        consumer = aio.PullConsumer(
            nc.jetstream(),
            STREAM,
            name,
            dead_letter=f"dead.{name}",
            create=ConsumerConfig(ack_wait=ACK_WAIT, max_ack_pending=1000),
            max_deliveries=MAX_DELIVERIES,
            backoff=_BACKOFF,
            on_error=report,
        )
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(consumer)
            except DeliveryError as error:
                if error.code not in (ErrorCode.TIMEOUT, ErrorCode.NO_RESPONDERS):
                    raise
                print(f"not started: {error}", flush=True)
                sys.exit(NOT_STARTED)
            key = partition_key if name in KEYED else None
            running = asyncio.create_task(consumer.run(Handler(Journal(run.journal(name))), concurrency=8, key=key))
            while not running.done():
                if run.ends.exists():
                    consumer.stop()
                await asyncio.wait([running], timeout=_POLL_SECONDS)
            await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
