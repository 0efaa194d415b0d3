"""Events into a database in batches: programs that are killed, and that are stopped while others continue."""

import asyncio
import random
import signal
import sqlite3
import sys

import pytest

from tests.support.consuming import after, consume, is_settled, publish

pytestmark = pytest.mark.faults

__all__ = ["consume", "is_settled", "publish"]

PROGRAM = """
import asyncio, signal, sqlite3, sys
from nats.js.api import ConsumerConfig
from ce_nats import aio

url, stream, path = sys.argv[1:]
database = sqlite3.connect(path, timeout=60)
INSERT = "INSERT INTO t (source, id, n) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET times = times + 1"


async def main():
    async with aio.connect(url) as nc:
        config = ConsumerConfig(ack_wait=2)
        async with aio.PullConsumer(
            nc.jetstream(), stream, "c", dead_letter=None, create=config, max_deliveries=100, backoff=[0]
        ) as consumer:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)

            async def store(batch):
                rows = [(event.source, event.id, event.data["n"]) for event in batch]
                with database:
                    database.executemany(INSERT, rows)
                await asyncio.sleep(0.05)

            await consumer.run_batches(store, max_events=10, max_wait=0.02, concurrency=2)


asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_every_event_is_in_the_table_once(tmp_path, server, stream, publish, is_settled, js, how):
    """Two programs, of which one is ended again and again; if it is stopped in order, no event is handled twice."""
    count = 3000
    path = tmp_path / "table.db"
    database = sqlite3.connect(path, timeout=60)
    with database:
        database.execute(
            "CREATE TABLE t (source, id, n, times DEFAULT 1, PRIMARY KEY (source, id))".replace("times", "times")
        )
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    await publish(*range(count))

    def start():
        return asyncio.create_subprocess_exec(
            sys.executable, program, server.url, stream, path, stdout=asyncio.subprocess.DEVNULL
        )

    def rows():
        return database.execute("SELECT count(*), sum(times) FROM t").fetchone()

    other = await start()
    try:
        for _ in range(5):
            one = await start()
            await asyncio.sleep(0.5 + random.random() / 2)
            one.send_signal(how)
            code = await after(one.wait())
            assert code in ((0, -signal.SIGTERM) if how is signal.SIGTERM else (-signal.SIGKILL,))
        last = await start()
        await is_settled()
        last.send_signal(signal.SIGTERM)
        assert await after(last.wait()) in (0, -signal.SIGTERM)
    finally:
        other.send_signal(signal.SIGTERM)
        await after(other.wait())
    stored, times = rows()
    assert stored == count
    assert sorted(number for (number,) in database.execute("SELECT n FROM t")) == [*range(count)]
    if how is signal.SIGTERM:
        assert times == count
    database.close()
