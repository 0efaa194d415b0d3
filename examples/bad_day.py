"""
A service on a bad day: its database is away, it is deployed five times meanwhile, and its stream has junk and a poison
event.

    pip install ce-nats
    NATS_URL=nats://127.0.0.1:4222 python examples/bad_day.py 600

The number is that of the seconds for which the database is away. The service is this script with the argument "serve",
a separate process. The streams DAY_BILLS and DEAD_DAY_BILLS are created, and must not exist.
"""

import asyncio
import contextlib
import logging
import os
import pathlib
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter

from cloudevents.core.v1.event import CloudEvent
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from ce_nats import DecodedEvent, aio
from ce_nats.aio.jetstream import read_stream
from ce_nats.redelivery import DeadLetter

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
DATABASE = os.environ.get("DATABASE", "")
COUNT = 1000
DEPLOYMENTS = 5

# --- The service ------------------------------------------------------------------------------------------------------


def store(event: DecodedEvent) -> None:
    """Store a bill. Without the database sqlite3 raises an OperationalError, and without a total an IntegrityError."""
    with contextlib.closing(sqlite3.connect(f"file:{DATABASE}?mode=rw", uri=True)) as database, database:
        database.execute(
            "INSERT INTO bills VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET times = times + 1",
            (event.source, event.id, event.data["total"]),
        )


async def serve() -> None:
    async def bill(delivery: aio.Delivery) -> None:
        await asyncio.to_thread(store, delivery.event)

    async with aio.connect(URL) as nc:
        consumer = aio.PullConsumer(
            nc.jetstream(),
            "DAY_BILLS",
            "billing",
            dead_letter="dead.day-bills",
            create=ConsumerConfig(ack_wait=30),
            unavailable=[sqlite3.OperationalError],
            max_deliveries=4,
            backoff=[1, 2, 4],
        )
        async with consumer:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
            logging.info("ready")
            await consumer.run(bill, concurrency=8)


# --- The bad day ------------------------------------------------------------------------------------------------------


class Service:
    """
    A process of the service, whose log is printed.

    Args:
        number: Number of the deployment.
        database: File of the database.
        began: Time in seconds at which the day began.
    """

    def __init__(self, number: int, database: pathlib.Path, began: float) -> None:
        self._number = number
        self._database = database
        self._began = began
        self._ready = asyncio.Event()

    async def start(self) -> None:
        command = [sys.executable, __file__, "serve"]
        environment = {**os.environ, "DATABASE": str(self._database)}
        self._process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
        self._printing = asyncio.create_task(self._print())
        await self._ready.wait()

    async def _print(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode().rstrip()
            print(f"{time.monotonic() - self._began:6.1f} s  service {self._number}: {text}")
            if text == "ready":
                self._ready.set()

    async def stop(self) -> int:
        """Stop it as a deployment does, and return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        await self._printing
        return await self._process.wait()


async def publish(js: JetStreamContext, first: int, end: int) -> None:
    """Publish bills, and as many messages that are not events; one bill has no total."""
    async with aio.Publisher(js) as publisher:
        for number in range(first, end):
            event = CloudEvent({"source": "/shop", "type": "bill", "id": str(number)}, {"total": number})
            await publisher.publish(event, "day-bills")
            await js.publish("day-bills", b"not an event")
        if first == 0:
            poison = CloudEvent({"source": "/shop", "type": "bill", "id": "poison"}, {"total": None})
            await publisher.publish(poison, "day-bills")


def query(database: pathlib.Path, text: str) -> list[tuple[int, int]]:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(text).fetchall()


async def until_settled(js: JetStreamContext) -> None:
    """Wait until each message is settled."""
    while True:
        info = await js.consumer_info("DAY_BILLS", "billing")
        if info.num_pending == info.num_ack_pending == 0:
            return
        await asyncio.sleep(0.1)


async def main(seconds: float, directory: pathlib.Path) -> None:
    database, away, began = directory / "bills.db", directory / "away.db", time.monotonic()
    columns = "source TEXT, id TEXT, total INTEGER NOT NULL, times INTEGER, PRIMARY KEY (source, id)"
    query(database, f"CREATE TABLE bills ({columns})")
    async with aio.connect(URL) as nc:
        js = nc.jetstream()
        await js.add_stream(name="DAY_BILLS", subjects=["day-bills"])
        await js.add_stream(name="DEAD_DAY_BILLS", subjects=["dead.day-bills"])
        await publish(js, 0, COUNT // 2)
        service, statuses = Service(0, database, began), []
        await service.start()
        while query(database, "SELECT count(*), 0 FROM bills")[0][0] < COUNT // 10:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        print(f"{time.monotonic() - began:6.1f} s  the database is away")
        database.rename(away)
        await publish(js, COUNT // 2, COUNT)
        for number in range(1, DEPLOYMENTS + 1):
            await asyncio.sleep(seconds / (DEPLOYMENTS + 1))
            following = Service(number, database, began)
            await following.start()
            statuses.append(await service.stop())
            service = following
        await asyncio.sleep(seconds / (DEPLOYMENTS + 1))
        print(f"{time.monotonic() - began:6.1f} s  the database is back")
        away.rename(database)
        await until_settled(js)
        statuses.append(await service.stop())
        [(stored, times)] = query(database, "SELECT count(*), sum(times) FROM bills")
        reasons: Counter[str] = Counter()
        async for batch in read_stream(js, "DEAD_DAY_BILLS"):
            for letter in batch:
                dead_letter, _ = DeadLetter.split(letter.headers)
                reasons[f"{dead_letter.reason} ({dead_letter.error})"] += 1
    print(f"{stored} of {COUNT} bills are stored, by {times} calls that succeeded")
    print(f"exit statuses of {len(statuses)} services: {statuses}")
    for reason, count in sorted(reasons.items()):
        print(f"dead letters, {reason}: {count}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if sys.argv[1] == "serve":
        asyncio.run(serve())
    else:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(main(float(sys.argv[1]), pathlib.Path(name)))
