"""Order per key: failures, other clients, lost messages and acknowledgements, and processes that end."""

import asyncio
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from nats import connect
from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError
from ce_nats.aio import OutcomeKind, Reject
from ce_nats.aio import jetstream as ce_js
from ce_nats.extensions.partitioning import partition_key
from ce_nats.redelivery import DeadLetter, Reason
from tests.support.consuming import SECONDS, acks, after, consume, is_settled, number_of, publish, until_consumer
from tests.support.reading import fetch
from tests.support.relay import Relay, without
from tests.support.waiting import until

__all__ = ["acks", "consume", "is_settled", "publish"]


@pytest.fixture
def publish_keys(js, subject, make_event):
    """Publish an event for each character of a text, which is its key; ids count from 0."""
    numbers = iter(range(10_000))

    async def publish(keys):
        for key in keys:
            await ce_js.publish(js, make_event(next(numbers), None, partitionkey=key), subject)

    return publish


ROOT = Path(__file__).parents[3]
SERVICE = ROOT / "tests" / "support" / "crashing.py"


def key_of(delivery):
    return delivery.event.get_attributes()["partitionkey"]


class Log:
    """Handler that records which events were handled, per key, and stops the consumer after a number of them."""

    def __init__(self, consumer, stop_after):
        self.by_key = defaultdict(list)
        self.running = set()
        self.attempts = []
        self._consumer = consumer
        self._left = stop_after

    async def __call__(self, delivery):
        key, number = key_of(delivery), number_of(delivery.event)
        assert key not in self.running
        self.running.add(key)
        self.attempts.append((number, delivery.deliveries))
        try:
            await self.handle(delivery, key, number)
        finally:
            self.running.remove(key)
        self.by_key[key].append(number)
        self._left -= 1
        if self._left == 0:
            self._consumer.stop()

    async def handle(self, delivery, key, number):
        """Overridden by tests."""
        await asyncio.sleep(0)

    def failing(self, **failures):
        """Let attempts at the n-th event fail: ``n3=2`` fails twice."""

        async def handle(delivery, key, number):
            await asyncio.sleep(0)
            left = failures.get(f"n{number}", 0)
            if left:
                failures[f"n{number}"] = left - 1
                raise KeyError(number)

        self.handle = handle
        return self


def run(consumer, handler, **options):
    return after(consumer.run(handler, **{"concurrency": 8, "key": partition_key, **options}))


async def test_events_of_a_key_are_handled_in_order_and_keys_concurrently(publish_keys, consume, is_settled):
    await publish_keys("abcaabbbccabcdefg" * 3)
    async with consume() as consumer:
        log = Log(consumer, 51)
        most = []

        async def handle(delivery, key, number):
            most.append(len(log.running))
            for _ in range(number % 7):
                await asyncio.sleep(0)

        log.handle = handle
        await run(consumer, log)
    assert sum(map(len, log.by_key.values())) == 51
    assert all(numbers == sorted(numbers) for numbers in log.by_key.values())
    assert max(most) > 2
    await is_settled()


async def test_failed_event_holds_back_its_key_only(publish_keys, consume, is_settled, acks, js, stream):
    """It is handled again without a redelivery, and its attempts count as deliveries."""
    await publish_keys("aabab")
    outcomes, options = [], {"backoff": [0.05], "max_deliveries": 10_000, "on_error": lambda *_: None}
    async with consume(**options, on_outcome=outcomes.append) as consumer:
        log = Log(consumer, 5)

        async def handle(delivery, key, number):
            if number == 0 and (delivery.deliveries < 4 or log.by_key["b"] != [2, 4]):
                raise KeyError(number)

        log.handle = handle
        await run(consumer, log)
    assert log.by_key == {"a": [0, 1, 3], "b": [2, 4]}
    attempts = [attempt for number, attempt in log.attempts if number == 0]
    assert attempts == list(range(1, len(attempts) + 1))
    kinds = [outcome.kind for outcome in outcomes if outcome.delivery.sequence == 1]
    assert kinds == [OutcomeKind.REDELIVERED] * (len(attempts) - 1) + [OutcomeKind.ACKNOWLEDGED]
    assert outcomes[0].delay == 0.05
    await is_settled()
    assert (await js.consumer_info(stream, "c")).delivered.consumer_seq == 5
    assert {acks.get_nowait() for _ in range(acks.qsize())} == {b""}  # acknowledgements of nats-py


async def test_exhausted_and_rejected_events_are_dead_lettered_and_their_keys_continue(
    publish_keys, consume, is_settled, dead_letters
):
    await publish_keys("aabb")
    async with consume(on_error=lambda *_: None, max_deliveries=3) as consumer:
        log = Log(consumer, 2)

        async def handle(delivery, key, number):
            if number == 0:
                raise KeyError(number)
            if number == 2:
                raise Reject("no")

        log.handle = handle
        await run(consumer, log)
    assert log.by_key == {"a": [1], "b": [3]}
    letters = {
        letter.sequence: letter for letter in [DeadLetter.split(one.headers)[0] for one in await dead_letters(2)]
    }
    assert (letters[1].reason, letters[1].deliveries) == (Reason.EXHAUSTED, 3)
    assert letters[3].reason is Reason.REJECTED
    await is_settled()


async def test_key_waits_until_its_dead_letter_is_stored(publish_keys, consume, is_settled, js, dead):
    """The stream of dead letters is full until then."""
    name = dead.replace(".", "_")
    await publish_keys("abba")
    config = (await js.stream_info(name)).config
    await js.update_stream(config.evolve(max_msgs=1, discard="new"))
    await js.publish(dead, b"")
    reported = []
    async with consume(backoff=[0.05], on_error=lambda error, delivery: reported.append(error)) as consumer:
        log = Log(consumer, 3)

        async def handle(delivery, key, number):
            if number == 0:
                raise Reject("no")

        log.handle = handle
        running = asyncio.create_task(run(consumer, log))
        await until(lambda: log.by_key["b"] == [1, 2] and sum(number == 0 for number, _ in log.attempts) > 2)
        assert log.by_key["a"] == []
        await js.purge_stream(name)
        await after(running)
    assert log.by_key["a"] == [3]
    assert {type(error).__name__ for error in reported} == {"Reject", "ApiError"}
    await is_settled()


async def test_poisoned_key_does_not_stop_others(publish_keys, consume, is_settled):
    """Although many more of its events wait than are prefetched."""
    await publish_keys("a" * 60 + "bcbc" + "a" * 30 + "bc")
    async with consume(prefetch=4, backoff=[1000], on_error=lambda *_: None) as consumer:
        log = Log(consumer, 6).failing(n0=1)
        await run(consumer, log, concurrency=2)
    assert log.by_key == {"b": [60, 62, 94], "c": [61, 63, 95]}
    async with consume() as consumer:  # the others were released
        log = Log(consumer, 90)
        await run(consumer, log)
    assert log.by_key["a"] == [*range(60), *range(64, 94)]
    await is_settled()


async def test_nak_in_a_handler_holds_its_key(publish_keys, consume, is_settled):
    await publish_keys("aab")
    async with consume() as consumer:
        log = Log(consumer, 4)

        async def handle(delivery, key, number):
            if number == 0 and delivery.deliveries == 1:
                await delivery.nak(0.1)
                await delivery.ack()  # has no effect
                assert delivery.is_settled
                await until(lambda: log.by_key["b"])

        log.handle = handle
        await run(consumer, log)
    assert log.attempts == [(0, 1), (2, 1), (0, 2), (1, 1)]
    await is_settled()


@pytest.mark.parametrize("error", [None, ValueError()], ids=["returns", "raises"])
async def test_redelivery_requested_with_nats_py_is_handled(publish_keys, consume, is_settled, error):
    await publish_keys("ab")
    async with consume(on_error=lambda *_: None) as consumer:
        log = Log(consumer, 3 if error is None else 2)

        async def handle(delivery, key, number):
            if number == 0 and delivery.deliveries == 1:
                await delivery.message.nak()
                if error is not None:
                    raise error

        log.handle = handle
        await run(consumer, log)
    assert sorted(log.attempts) == [(0, 1), (0, 2), (1, 1)]
    await is_settled()


async def test_key_continues_after_the_handler_of_an_acknowledged_event(publish_keys, consume, is_settled):
    await publish_keys("aab")
    async with consume() as consumer:
        log = Log(consumer, 3)

        async def handle(delivery, key, number):
            await delivery.ack()
            if number == 0:
                await until(lambda: log.by_key["b"])

        log.handle = handle
        await run(consumer, log)
    assert log.by_key == {"a": [0, 1], "b": [2]}
    await is_settled()


@pytest.mark.parametrize("has_headers_only", [False, True])
async def test_undecodable_messages_are_dead_lettered_at_once(
    publish_keys, consume, is_settled, js, subject, dead_letters, has_headers_only
):
    await js.publish(subject, b"{")
    await publish_keys("a")
    await js.publish(subject, b"{")
    await publish_keys("a")
    async with consume(headers_only=has_headers_only) as consumer:
        log = Log(consumer, 2)
        await run(consumer, log)
    assert log.by_key == {"a": [0, 1]}
    assert len(await dead_letters(2)) == 2
    await is_settled()


@pytest.mark.parametrize("failure", ["exception", "not hashable", "awaitable"])
async def test_failure_of_the_key_function_is_one_of_the_event(
    publish_keys, consume, is_settled, dead_letters, failure
):
    await publish_keys("aaa")
    calls = []

    def key(delivery):
        number = number_of(delivery.event)
        if number != 1:
            return "a"
        calls.append(number)
        if failure == "exception":
            return delivery.event.extensions["customer"]
        awaitable = asyncio.get_running_loop().create_future()
        return [] if failure == "not hashable" else awaitable

    reported = []
    options = {"max_deliveries": 3, "on_error": lambda error, delivery: reported.append(type(error).__name__)}
    async with consume(**options) as consumer:
        log = Log(consumer, 3)
        running = asyncio.create_task(run(consumer, log, key=key))
        assert len(await dead_letters(1)) == 1
        await until(lambda: len(log.attempts) == 2)
        consumer.stop()
        await after(running)
    assert log.by_key == {"a": [0, 2]}
    error = "KeyError" if failure == "exception" else "TypeError"
    assert reported == [error] * 3
    assert len(calls) == 3
    await is_settled()


async def test_consumer_with_a_limit_of_deliveries_is_refused(consume, js, stream):
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_policy="explicit", max_deliver=8))
    async with consume() as consumer:
        with pytest.raises(DeliveryError, match=r"^incompatible-config: .*max_deliver must be unlimited with a key"):
            await run(consumer, Log(consumer, 1))


@pytest.mark.parametrize("key", ["partitionkey", 5, True])
async def test_key_must_be_a_function(consume, key):
    async with consume() as consumer:
        with pytest.raises(TypeError, match=r"^key must be a function that is not async, or None, got "):
            await consumer.run(Log(consumer, 1), key=key)


async def test_async_key_is_rejected(consume):
    async def key(delivery):
        """Return nothing."""

    async with consume() as consumer:
        with pytest.raises(TypeError, match=r"^key must be a function that is not async, or None, got "):
            await consumer.run(Log(consumer, 1), key=key)


async def test_only_one_call_with_a_key_runs(publish_keys, consume, is_settled):
    await publish_keys("a")
    async with consume() as consumer:
        log = Log(consumer, 1)

        async def handle(delivery, key, number):
            with pytest.raises(RuntimeError, match="must not be called while another one is running"):
                await consumer.run(log, key=partition_key)

        log.handle = handle
        await run(consumer, log)
    assert log.by_key == {"a": [0]}
    await is_settled()


async def test_run_without_a_key_continues_after_one_with_a_key(publish_keys, consume, is_settled):
    """With everything that the first call has fetched, failed messages included."""
    await publish_keys("aaab")
    async with consume(backoff=[1000], on_error=lambda *_: None) as consumer:
        log = Log(consumer, 3).failing(n0=1)
        running = asyncio.create_task(run(consumer, log))
        await until(lambda: log.by_key["b"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        numbers = []
        async for delivery in consumer:
            async with delivery as event:
                numbers.append(number_of(event))
            if len(numbers) == 3:
                break
    assert numbers == [0, 1, 2]
    await is_settled()


async def test_overdue_handlers_are_cancelled_and_the_next_run_keeps_the_order(publish_keys, consume, is_settled):
    await publish_keys("aabb")
    async with consume() as consumer:
        log = Log(consumer, 9)

        async def handle(delivery, key, number):
            if len(log.running) == 2:
                consumer.stop()
            await asyncio.Event().wait()

        log.handle = handle
        await run(consumer, log, stop_timeout=0.1)
    async with consume() as consumer:
        log = Log(consumer, 4)
        await run(consumer, log)
    assert log.by_key == {"a": [0, 1], "b": [2, 3]}
    await is_settled()


# --- Other clients, and lost messages --------------------------------------------------------------------------------


async def pull(js, stream, count, name="c"):
    """Pull messages as another client."""
    subscription = await js.pull_subscribe_bind(consumer=name, stream=stream)
    messages = await fetch(subscription, count)
    await subscription.unsubscribe()
    return messages


async def add_consumer(js, stream, ack_wait=SECONDS):
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_policy="explicit", ack_wait=ack_wait))


async def test_messages_of_a_dead_client_are_handled_before_newer_ones(publish_keys, consume, is_settled, js, stream):
    """The server delivers the newer ones first, because the ack deadlines have not expired."""
    await add_consumer(js, stream, ack_wait=1)
    await publish_keys("abc")
    await pull(js, stream, 3)
    await publish_keys("abc" * 10)
    async with consume(ack_wait=1) as consumer:
        log = Log(consumer, 33)
        await run(consumer, log)
    assert {key: numbers == sorted(numbers) for key, numbers in log.by_key.items()} == dict.fromkeys("abc", True)
    assert dict(log.attempts[:3]) == {0: 2, 1: 2, 2: 2}
    await is_settled()


@pytest.fixture
async def lossy(server):
    """A relay that can lose frames, and a JetStreamContext on a connection over it."""
    with Relay(server.url) as relay:
        nc = await connect(relay.url)
        yield relay, nc.jetstream()
        await nc.close()


async def test_messages_that_were_lost_on_the_way_are_awaited(publish_keys, consume, is_settled, lossy):
    """A gap in the sequences of the deliveries shows it; other keys wait, too, because the keys are not known."""
    relay, via = lossy
    await publish_keys("aaa")
    async with consume(ack_wait=1, via=via) as consumer:
        log = Log(consumer, 8)
        running = asyncio.create_task(run(consumer, log))
        await until(lambda: len(log.by_key["a"]) == 3)
        waited = set()

        def lose(chunk):
            arrived = re.findall(rb"HMSG \S+ \S+ \$JS\.ACK\.\w+\.c\.(\d)\.(\d)\.", chunk)
            waited.update((int(sequence), len(log.attempts)) for deliveries, sequence in arrived)
            return without(chunk, rb"HMSG \S+ \S+ \$JS\.ACK\.\w+\.c\.1\.[57]\.\S+ \d+ \d+(?=\r\n)")

        relay.lost = lose
        await publish_keys("abbab")
        await after(running)
    assert log.by_key == {"a": [0, 1, 2, 3, 6], "b": [4, 5, 7]}
    assert {handled for sequence, handled in waited if sequence > 4} == {4}
    assert {sequence for sequence, _ in waited} == {4, 5, 6, 7, 8}
    await is_settled()


async def test_other_clients_are_detected(publish_keys, consume, is_settled, js, stream, caplog, monkeypatch):
    """Nothing is handled while it has messages, and a warning is logged."""
    monkeypatch.setattr("ce_nats.aio.consumer._keyed._LOG_SECONDS", 0.1)
    await add_consumer(js, stream, ack_wait=4)
    await publish_keys("ab")
    (first,) = await pull(js, stream, 1)
    async with consume(ack_wait=4) as consumer:
        log = Log(consumer, 2)

        async def work():
            while True:
                await first.in_progress()
                await asyncio.sleep(0.05)

        working = asyncio.create_task(work())
        running = asyncio.create_task(run(consumer, log))
        await until(lambda: any("waiting for 1 unacknowledged message" in text for text in caplog.messages))
        assert log.attempts == []
        working.cancel()
        await first.nak()
        await after(running)
    assert [number for number, _ in log.attempts] == [0, 1]
    await is_settled()


async def test_event_whose_acknowledgement_was_lost_is_not_handled_again(publish_keys, consume, is_settled, lossy):
    """It would be handled after later events of its key."""
    relay, via = lossy
    await publish_keys("aab")
    lost = []

    def lose(chunk):
        left = without(chunk, rb"PUB \$JS\.ACK\.\w+\.c\.1\.1\.\S+ 0(?=\r\n)")
        if left != chunk:
            lost.append(chunk)
        return left

    relay.lost = lose
    async with consume(ack_wait=0.5, via=via) as consumer:
        log = Log(consumer, 5)
        running = asyncio.create_task(run(consumer, log))
        await until(lambda: log.by_key == {"a": [0, 1], "b": [2]})
        await is_settled()
        await publish_keys("ab")
        await after(running)
    assert log.by_key == {"a": [0, 1, 3], "b": [2, 4]}
    assert lost
    await is_settled()


async def test_consumer_deleted_while_messages_are_missing_ends_the_run(publish_keys, consume, js, stream, caplog):
    await add_consumer(js, stream)
    await publish_keys("ab")
    await pull(js, stream, 1)
    async with consume() as consumer:
        running = asyncio.create_task(run(consumer, Log(consumer, 2)))
        await until_consumer(js, stream, lambda info: info.num_ack_pending == 2)
        await js.delete_consumer(stream, "c")
        with pytest.raises(Exception, match="consumer-not-found"):
            await after(running)


# --- Processes that end ----------------------------------------------------------------------------------------------


async def handled_by_service(limit, *arguments):
    """Run the service until it ends, or kill it after a number of events; return their sequences."""
    command = [sys.executable, str(SERVICE), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
    handled = []
    while line := await after(process.stdout.readline()):
        handled.append(int(line.split()[1]))
        if len(handled) == limit:
            process.kill()
    await process.wait()
    return handled


@pytest.mark.faults
async def test_order_is_kept_when_processes_are_killed(server, js, stream, subject, dead, make_event, dead_letters):
    """In the middle of their work, while events are published; some events fail, and some are handled again."""

    async def publish(numbers):
        for number in numbers:
            await ce_js.publish(js, make_event(number, "failing" if number % 4 == 0 else ""), subject)

    handled, published = [], 0
    for limit in (7, 23, 1, None):
        count = 60 if published == 0 else 20
        publishing = asyncio.create_task(publish(range(published, published + count)))
        if limit is None:
            await publishing
        handled += await handled_by_service(limit, server.url, stream, dead, "4", "keys")
        await publishing
        published += count
    assert set(handled) == set(range(1, published + 1))
    for key in range(5):
        first_times = list(dict.fromkeys(number for number in handled if number % 5 == key))
        assert first_times == sorted(first_times)
    await dead_letters(0)
