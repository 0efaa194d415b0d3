"""Outages: nothing is dead-lettered, one event at once is tried, and everything continues after a success."""

import asyncio
import time

import pytest

from ce_nats import Reject, Unavailable
from ce_nats.aio.consumer._outage import METADATA_KEY, Pause
from ce_nats.extensions.partitioning import partition_key
from tests.support.consuming import acks, after, consume, is_settled, number_of, publish, take, until_consumer
from tests.support.tables import each
from tests.support.waiting import until

__all__ = ["acks", "consume", "is_settled", "publish"]


class Database:
    """
    Something that handlers need: its first calls fail.

    Args:
        failures: Number of calls that fail.
        error: Returns the exception.
    """

    def __init__(self, failures, error=lambda: Unavailable("database", 0.05)):
        self.left, self.error = failures, error
        self.stored, self.calls = [], []
        self.concurrent = self.most_concurrent = 0

    async def store(self, deliveries):
        self.calls.append([delivery.sequence for delivery in deliveries])
        self.concurrent += 1
        self.most_concurrent = max(self.concurrent, self.most_concurrent)
        await asyncio.sleep(0)
        self.concurrent -= 1
        if self.left:
            self.left -= 1
            raise self.error()
        self.stored += [(delivery.sequence, delivery.deliveries) for delivery in deliveries]


async def iterate(consumer, database, count):
    async for delivery in consumer:
        try:
            async with delivery:
                await database.store([delivery])
        except (Unavailable, OSError):
            pass
        if len(database.stored) == count:
            break


async def run(consumer, database, count, **options):
    async def handle(delivery):
        await database.store([delivery])
        if len(database.stored) == count:
            consumer.stop()

    await consumer.run(handle, concurrency=4, **options)


async def run_with_key(consumer, database, count):
    await run(consumer, database, count, key=lambda delivery: delivery.sequence % 30)


async def run_batches(consumer, database, count):
    async def handle(batch):
        await database.store(batch.deliveries)
        if len(database.stored) == count:
            consumer.stop()

    await consumer.run_batches(handle, max_events=20, max_wait=0.05)


@pytest.mark.parametrize("work", [iterate, run, run_with_key, run_batches])
async def test_declared_outage_pauses_the_consumer(publish, consume, is_settled, js, dead, caplog, work):
    await publish(*range(60))
    outcomes = []
    database = Database(8)
    async with consume(on_outcome=outcomes.append, max_deliveries=1) as consumer:
        await after(work(consumer, database, 60))
    assert sorted(database.stored) == [(sequence, 1) for sequence in range(1, 61)]
    assert {str(outcome.kind) for outcome in outcomes} == {"acknowledged", "unavailable"}
    first, last = (text.partition(": ")[2] for text in caplog.messages)
    assert first.startswith(
        "handlers fail, 1 in a row; events are kept, and one at once is tried until one succeeds: Un"
    )
    assert last.startswith("handlers succeed again after ")
    await is_settled()
    assert (await js.stream_info(await js.find_stream_name_by_subject(dead))).state.messages == 0


@pytest.mark.parametrize("work", [run, run_batches])
async def test_many_failures_in_a_row_pause_the_consumer(publish, consume, is_settled, js, dead, work):
    """Those before the pause are redelivered as usual."""
    await publish(*range(60))
    database = Database(14, OSError)
    async with consume(on_error=lambda *_: None, pause_after=12, backoff=[0]) as consumer:
        await after(work(consumer, database, 60))
    assert sorted(sequence for sequence, _ in database.stored) == [*range(1, 61)]
    await is_settled()
    assert (await js.stream_info(await js.find_stream_name_by_subject(dead))).state.messages == 0


async def test_named_exceptions_declare_an_outage(publish, consume, is_settled):
    await publish(1)
    database = Database(1, ConnectionRefusedError)
    async with consume(on_error=lambda *_: None, max_deliveries=1, unavailable=[OSError]) as consumer:
        await after(run(consumer, database, 1))
    assert database.stored == [(1, 1)]
    await is_settled()


async def test_validation_can_declare_an_outage(publish, consume, is_settled):
    """A registry of schemas, for example."""
    await publish(1, 2)
    failures = [1, 2]

    def validate(event):
        if failures:
            failures.pop()
            raise Unavailable("registry", 0.05)

    database = Database(0)
    async with consume(on_error=lambda *_: None, max_deliveries=1, validate=validate) as consumer:
        await after(run(consumer, database, 2))
    assert sorted(database.stored) == [(1, 1), (2, 1)]
    await is_settled()


async def test_one_handler_at_once_is_called_during_an_outage(publish, consume, is_settled):
    """After those that were called before it began."""
    await publish(*range(60))
    database = Database(10)
    async with consume(on_error=lambda *_: None) as consumer:
        running = asyncio.create_task(run(consumer, database, 60))
        await until(lambda: database.left <= 6)
        database.most_concurrent = 0
        await until(lambda: database.left == 0)
        assert database.most_concurrent == 1
        await after(running)
    await is_settled()


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_pause_ends_at_once_when_the_consumer_is_stopped(publish, consume, is_settled, end):
    await publish(*range(20))
    database = Database(1, lambda: Unavailable("database", 600))
    async with consume(on_error=lambda *_: None) as consumer:
        running = asyncio.create_task(run(consumer, database, 20))
        await until(lambda: database.left == 0)
        if end == "stop":
            consumer.stop()
            await after(running)
        else:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await after(running)
    async with consume() as consumer:
        await after(run(consumer, database, 20))
    await is_settled()


async def test_poison_event_does_not_extend_an_outage(publish, consume, is_settled, dead_letters):
    """It is dead-lettered after the outage only, with its own failures."""
    await publish(*range(30))
    done = []

    async def handle(delivery):
        if delivery.sequence == 1:
            raise Unavailable("database", 0.02) if not done else KeyError("customer")
        done.append(delivery.sequence)
        if len(done) == 29:
            consumer.stop()

    async with consume(on_error=lambda *_: None, max_deliveries=1) as consumer:
        await after(consumer.run(handle))
    async with consume(on_error=lambda *_: None, max_deliveries=1) as consumer:
        await until_dead(consumer, handle, dead_letters)
    assert sorted(done) == [*range(2, 31)]
    await is_settled()


async def until_dead(consumer, handle, dead_letters):
    running = asyncio.create_task(consumer.run(handle))
    (letter,) = await dead_letters(1)
    assert ("Dead-Letter-Reason", "exhausted") in letter.headers
    consumer.stop()
    await after(running)


async def test_rejected_events_do_not_pause_the_consumer(publish, consume, is_settled, dead_letters, caplog):
    await publish(*range(30))

    async def refuse(delivery):
        if delivery.sequence == 30:
            consumer.stop()
        raise Reject("no customer")

    async with consume(on_error=lambda *_: None, pause_after=1) as consumer:
        await after(consumer.run(refuse))
    assert len(await dead_letters(30)) == 30
    assert caplog.messages == []
    await is_settled()


async def test_pauses_are_measured(publish, consume, is_settled):
    changes = []

    class Instruments:
        def process(self, received):
            return None

        def record(self, outcome):
            pass

        def pause(self, consumer, change):
            changes.append((consumer, change))

        def lag(self, stream, consumer, lag):
            pass

    await publish(1)
    async with consume(on_error=lambda *_: None, instrumentation=Instruments()) as consumer:
        await after(run(consumer, Database(1), 1))
        assert changes == [("c", 1), ("c", -1)]
    async with consume(on_error=lambda *_: None, instrumentation=Instruments()) as consumer:
        await publish(2)
        database = Database(1, lambda: Unavailable("database", 600))
        running = asyncio.create_task(run(consumer, database, 1))
        await until(lambda: database.left == 0)
        consumer.stop()
        await after(running)
    assert changes[2:] == [("c", 1), ("c", -1)]


@pytest.mark.parametrize(
    ("error", "text"), [(Unavailable("db", 0.5), "Unavailable: db"), (OSError("secret"), "OSError")]
)
async def test_pause_is_in_the_metadata_of_the_consumer(publish, consume, is_settled, js, stream, error, text):
    """Until it ends; the text of another exception may be confidential."""
    await publish(1)
    database = Database(1, lambda: error)

    async def pause():
        return Pause.find((await js.consumer_info(stream, "c")).config.metadata, time.time())

    async with consume(on_error=lambda *_: None, unavailable=[OSError]) as consumer:
        running = asyncio.create_task(run(consumer, database, 1))
        while (found := await pause()) is None:
            assert not running.done()
        assert found.error == text
        await after(running)
    assert await pause() is None
    await is_settled()


@each(
    ("metadata", "error"),
    [
        (None, None),
        ({}, None),
        ({METADATA_KEY: '[1000.0,1100.0,"OSError"]'}, "OSError"),
        ({METADATA_KEY: '[1000.0,1049.0,"OSError"]'}, None),  # its client has ended
        ({METADATA_KEY: "[1000.0]"}, None),
        ({METADATA_KEY: "no JSON"}, None),
    ],
)
def test_reports_of_pauses_are_valid_for_some_time(metadata, error):
    pause = Pause.find(metadata, 1200.0)
    assert (None if pause is None else pause.error) == error


async def test_released_deliveries_are_not_failures(publish, consume, is_settled, js, stream):
    """Five orderly restarts while the handler runs, and then fewer failures than allowed."""
    await publish(1)
    for _ in range(5):
        async with consume(max_deliveries=2) as consumer:
            running = asyncio.create_task(consumer.run(lambda delivery: asyncio.sleep(60)))
            await until_consumer(js, stream, lambda info: info.num_ack_pending == 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    async with consume(max_deliveries=2, on_error=lambda *_: None, backoff=[0]) as consumer:
        with pytest.raises(OSError, match="disk"):
            async with await take(consumer):
                raise OSError("disk")
        async with await take(consumer) as event:
            assert number_of(event) == 1
    await is_settled()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"pause_after": 0}, "pause_after"),
        ({"unavailable": ConnectionError}, "unavailable must be a sequence of exception classes"),
        ({"unavailable": [KeyboardInterrupt]}, "unavailable must be a sequence of exception classes"),
    ],
)
async def test_invalid_options_are_rejected(consume, options, match):
    with pytest.raises((ValueError, TypeError), match=match):
        consume(**options)


async def test_order_of_keys_is_kept_during_an_outage(publish, consume, is_settled):
    await publish(*range(40))
    database = Database(6)
    async with consume(on_error=lambda *_: None) as consumer:
        await after(run(consumer, database, 40, key=partition_key))
    assert [sequence for sequence, _ in database.stored] == [*range(1, 41)]
    await is_settled()
