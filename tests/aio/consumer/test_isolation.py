"""A process that crashes repeatedly: only the messages that crash it are dead-lettered."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import ConsumerConfig

from ce_nats.aio import PullConsumer
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio.consumer._entry import Entry
from ce_nats.aio.consumer._isolation import Isolation
from ce_nats.redelivery import DeadLetter, Reason
from tests.support.consuming import after, consume, is_settled, number_of, publish
from tests.support.crashing import MAX_DELIVERIES
from tests.support.reading import fetch
from tests.support.tables import each

__all__ = ["consume", "is_settled", "publish"]

ROOT = Path(__file__).parents[3]
SERVICE = ROOT / "tests" / "support" / "crashing.py"
SECONDS = 60


def run_service(*arguments):
    """Run the service until it exits; returns the sequences that it handled, and its exit status."""
    command = [sys.executable, str(SERVICE), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode in (0, 9), done.stderr
    return [int(line.split()[1]) for line in done.stdout.splitlines()], done.returncode


@pytest.mark.faults
@pytest.mark.parametrize("keys", [[], ["keys"]])
async def test_only_messages_that_crash_the_process_are_dead_lettered(
    server, js, stream, subject, dead, make_event, dead_letters, keys
):
    poison = {8, 30}
    for number in range(1, 61):
        await ce_js.publish(js, make_event(number, "poison" if number in poison else "harmless"), subject)
    handled = Counter()
    runs = 0
    while True:
        numbers, status = await asyncio.to_thread(run_service, server.url, stream, dead, 4, *keys)
        handled.update(numbers)
        runs += 1
        if status == 0:
            break
        assert runs <= 30
    assert set(handled) == set(range(1, 61)) - poison
    letters = [DeadLetter.split(letter.headers)[0] for letter in await dead_letters(2)]
    assert {letter.sequence for letter in letters} == poison
    assert {(letter.reason, letter.error) for letter in letters} == {(Reason.PROCESS_ENDED, "process-ended")}
    assert all(letter.text.startswith("the process ended while it was handled") for letter in letters)
    assert runs >= MAX_DELIVERIES + 5


@pytest.mark.parametrize("has_dead_letter", [True, False])
async def test_prefetched_messages_survive_repeated_stops(
    js, stream, subject, dead, make_event, dead_letters, has_dead_letter
):
    for number in range(40):
        await ce_js.publish(js, make_event(number, "harmless"), subject)
    handled, reported = [], []

    async def live(stop_after):
        """Handle some messages, in order or as the server redelivers them, and stop."""

        async def handle(delivery):
            handled.append(delivery.sequence)
            if len(handled) >= stop_after:
                consumer.stop()

        async with PullConsumer(
            js,
            stream,
            "c",
            dead_letter=dead if has_dead_letter else None,
            create=ConsumerConfig(ack_wait=60),
            on_error=lambda error, _: reported.append(error),
        ) as consumer:
            await asyncio.wait_for(consumer.run(handle), SECONDS)

    for _ in range(20):
        await live(len(handled) + 1)
    await live(40)
    assert sorted(handled) == list(range(1, 41))
    assert reported == []
    await dead_letters(0)


@pytest.mark.faults
async def test_messages_queued_behind_a_blocking_handler_are_not_dead_lettered(
    js, stream, subject, dead, make_event, dead_letters, caplog
):
    """Their ack deadlines expire repeatedly while they wait, and the server counts deliveries."""
    for number in range(10):
        await ce_js.publish(js, make_event(number, "harmless"), subject)
    handled = []

    async def live(count, seconds):
        async def handle(delivery):
            time.sleep(seconds)  # noqa: ASYNC251 - blocking is the fault
            handled.append(delivery.sequence)
            if len(set(handled)) >= count:
                consumer.stop()

        config = ConsumerConfig(ack_wait=0.3)
        async with PullConsumer(js, stream, "c", dead_letter=dead, create=config, max_deliveries=2) as consumer:
            await asyncio.wait_for(consumer.run(handle), SECONDS)

    await live(8, 0.5)
    assert "the event loop was blocked for longer than ack_wait" in caplog.text
    await live(10, 0)
    assert set(handled) == set(range(1, 11))
    await dead_letters(0)


async def test_batch_that_blocks_for_longer_than_ack_wait_is_handled_once(publish, consume, is_settled):
    """Its redeliveries are read after it was acknowledged."""
    await publish(*range(20))
    handled = []

    async def handle(batch):
        if not handled:
            time.sleep(0.7)  # noqa: ASYNC251 - blocking is the fault
        handled.extend(map(number_of, batch))
        if len(set(handled)) == 20:
            consumer.stop()

    async with consume(ack_wait=0.3) as consumer:
        await after(consumer.run_batches(handle, max_events=10))
    assert sorted(handled) == [*range(20)]
    await is_settled()


@given(st.lists(st.integers(1, 9), min_size=1))
def test_messages_are_fetched_one_by_one_at_first_and_after_suspects(counts):
    isolation = Isolation(5, 30.0, 0.0, is_expected=False)
    assert isolation.is_one_by_one(1.0)
    for index, count in enumerate(counts):
        isolation.receive(count, 1.0)
        assert isolation.is_one_by_one(1.0) == (max(counts[: index + 1]) > 5)


@each(("ack_wait", "seconds"), [(0.0, 1), (80.0, 101)])
def test_messages_are_fetched_one_by_one_until_those_of_an_earlier_process_were_redelivered(ack_wait, seconds):
    """Which takes longer than ack_wait."""
    isolation = Isolation(5, ack_wait, 10.0, is_expected=True)
    isolation.receive(1, 10.0)
    assert isolation.is_one_by_one(10.0 + seconds - 0.1)
    assert not isolation.is_one_by_one(10.0 + seconds)


async def test_suspect_is_handled_alone(js, stream, subject, dead, make_event):
    """Its handler begins after earlier ones have returned; later ones begin after it has returned."""
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_wait=60))
    for number in range(6):
        await ce_js.publish(js, make_event(number), subject)
    earlier = await js.pull_subscribe_bind("c", stream)
    for message in await fetch(earlier, 6):
        if message.metadata.sequence.stream in (3, 4):
            await message.nak()
    running, beside, handled = set(), {}, []
    async with PullConsumer(js, stream, "c", dead_letter=dead, max_deliveries=1, max_unfinished=10) as consumer:

        async def handle(delivery):
            running.add(delivery.sequence)
            for _ in range(20):
                beside.setdefault(delivery.sequence, set()).update(running)
                await asyncio.sleep(0.001)
            running.discard(delivery.sequence)
            handled.append(delivery.sequence)
            if len(handled) == 8:
                consumer.stop()

        for number in range(6, 12):
            await ce_js.publish(js, make_event(number), subject)
        await asyncio.wait_for(consumer.run(handle, concurrency=4), SECONDS)
    assert beside[3] == {3}
    assert beside[4] == {4}
    assert any(len(others) > 1 for others in beside.values())


async def test_suspect_waits_for_others_only_for_a_limited_time(js, stream, subject, dead, make_event, monkeypatch):
    """The caller may collect deliveries and settle them together."""
    monkeypatch.setattr("ce_nats.aio.consumer._isolation._MAX_ALONE_SECONDS", 0.1)
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_wait=60))
    for number in range(4):
        await ce_js.publish(js, make_event(number), subject)
    earlier = await js.pull_subscribe_bind("c", stream)
    for message in await fetch(earlier, 4):
        await message.nak()
    async with PullConsumer(js, stream, "c", dead_letter=dead, max_deliveries=1, max_unfinished=10) as consumer:
        collected = [await asyncio.wait_for(anext(consumer), SECONDS) for _ in range(4)]
        assert [delivery.deliveries for delivery in collected] == [2] * 4
        for delivery in collected:
            await delivery.ack()


@each(("ack_wait", "seconds"), [(5.0, 5), (30.5, 30)])
def test_time_that_a_suspect_is_handled_alone_is_limited(ack_wait, seconds):
    isolation, suspect = Isolation(5, ack_wait, 0.0, is_expected=False), Entry(1, 6, (b"a", b"b", b"", None))
    isolation.take(suspect, 10.0, 0)
    assert isolation.is_one_alone(10.0 + seconds - 0.1)
    assert not isolation.is_one_alone(10.0 + seconds)


def test_isolation_is_permanent_if_asked_for():
    isolation = Isolation(2, 1, 0.0, is_expected=False)
    isolation.receive(1, 0.0)
    assert not isolation.is_one_by_one(0.0)
    isolation.stay_one_by_one()
    assert isolation.is_permanent
    assert isolation.is_one_by_one(1e9)
