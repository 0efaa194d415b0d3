"""The messages to one stream in batches: duplicates, refusals, lost messages, on real servers."""

import asyncio
from random import Random

import nats
import pytest

from ce_nats.aio import Publisher, PublishError
from ce_nats.aio.jetstream import configure_stream
from ce_nats.aio.publishing import _batches, _lane
from ce_nats.testing import NatsServer
from tests.support.batches import expected, ids, payloads, pending_acks, publish_all, send
from tests.support.broker import ignore

SECONDS = 60
COUNT = 2_000

# --- Duplicates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [50, 1000])
async def test_duplicates_are_stored_once(js, subject, batched, make_event, window):
    """Nothing else is published, so that their number is known: the server has stored nothing of the batches."""
    for duplicates in (None, COUNT):
        async with Publisher(js, window=window) as publisher:
            for number in range(COUNT):
                await publisher.publish(make_event(number), subject)
        assert (publisher.acknowledged, publisher.duplicates) == (COUNT, duplicates)
    assert publisher.batched > COUNT / 2
    assert await ids(js, batched) == expected(range(COUNT))


async def test_number_of_duplicates_is_unknown_if_others_are_new(js, subject, batched, make_event):
    """Other clients may publish meanwhile, so it cannot be computed from the sequences of batches."""
    for numbers in (range(0, 1000, 2), range(1000)):
        async with Publisher(js) as publisher:
            acks = [await publisher.publish(make_event(number), subject) for number in numbers]
        assert publisher.acknowledged == len(numbers)
        assert publisher.duplicates is None
        assert {ack.result().duplicate for ack in acks if not ack.result().seq} == {None}
    assert len(await ids(js, batched)) == 1000


async def test_number_of_duplicates_is_known_with_another_publisher(nc, js, subject, batched, make_event):
    async def publish(publisher, numbers):
        for number in numbers:
            await publisher.publish(make_event(number), subject)
            if number % 50 == 0:
                await asyncio.sleep(0.001)

    async with Publisher(js) as before:
        await publish(before, range(COUNT))
    async with Publisher(js) as again, Publisher(js) as other:
        await asyncio.gather(publish(again, range(COUNT)), publish(other, range(COUNT, 2 * COUNT)))
    assert (again.acknowledged, again.duplicates) == (COUNT, COUNT)
    assert (other.acknowledged, other.duplicates) == (COUNT, None)
    assert len(await ids(js, batched)) == 2 * COUNT


# --- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [{0}, {1}, {COUNT - 1}, {5, 6, 7}, {*range(0, COUNT, 100)}], ids=str)
async def test_refused_events_fail_alone(js, subject, batched, make_event, refused):
    """Events that are larger than the stream allows."""
    await configure_stream(js, batched, max_msg_size=1000)
    events = [make_event(number, "x" * 2000 if number in refused else "x") for number in range(COUNT)]
    failed = await publish_all(js, events, subject)
    assert failed == dict.fromkeys(expected(sorted(refused)), "publish-refused")
    assert await ids(js, batched) == expected(number for number in range(COUNT) if number not in refused)


async def test_events_refused_by_a_check_of_their_headers(nc, js, subject, batched):
    """The server reports these as errors of the batch, and ends it itself."""
    async with pending_acks(nc) as (acks, outcomes):
        for number in range(300):
            extra = (b"Nats-Rollup: sub",) if number % 100 == 50 else ()
            await send(acks, subject, number, b"Nats-Msg-Id: %d" % number, *extra)
        await acks.drain()
    failed = {number: outcome.err_code for number, outcome in outcomes.items() if hasattr(outcome, "err_code")}
    assert failed == dict.fromkeys([50, 150, 250], 10111)
    assert await payloads(js, batched) == [number for number in range(300) if number not in failed]


async def test_full_stream_refuses_the_rest(js, subject, batched, make_event):
    await configure_stream(js, batched, max_msgs=700, discard="new")
    failed = await publish_all(js, [make_event(number) for number in range(1000)], subject)
    assert await ids(js, batched) == expected(range(700))
    assert failed == dict.fromkeys(expected(range(700, 1000)), "publish-refused")


async def test_deleted_stream_is_an_error(js, subject, batched, make_event):
    publisher = Publisher(js, retry_timeout=2)
    await publisher.__aenter__()
    await publisher.publish(make_event(0), subject)
    await publisher.flush()
    await js.delete_stream(batched)
    for number in range(1, 100):
        await publisher.publish(make_event(number), subject)
    with pytest.raises(PublishError) as info:
        await asyncio.wait_for(publisher.__aexit__(None, None, None), SECONDS)
    assert len(info.value.failures) == 99
    assert {failure.error.code for failure in info.value.failures} <= {"no-responders", "timeout"}
    await js.add_stream(name=batched, subjects=[subject])  # for the fixture


# --- Lost messages and replies ----------------------------------------------------------------------------------------


async def test_lost_messages_change_nothing(nc, js, subject, batched, monkeypatch):
    """Pieces of what is sent are dropped, which makes gaps; replies are lost in test_batches.py."""
    rng, write, dropped = Random(1), _lane.write_publish_frame, []

    def write_some(nc, frame, *sizes):
        if rng.random() < 0.1 and len(dropped) < 40:
            dropped.append(frame)
        else:
            write(nc, frame, *sizes)

    monkeypatch.setattr(_lane, "write_publish_frame", write_some)
    monkeypatch.setattr(_batches, "PING_SECONDS", 0.05)
    async with pending_acks(nc, window=300, ack_timeout=0.5) as (acks, outcomes):
        for number in range(COUNT):
            await send(acks, subject, number, b"Nats-Msg-Id: %d" % number)
            if rng.random() < 0.01:
                await asyncio.sleep(0.01)
        await asyncio.wait_for(acks.drain(), SECONDS)
    assert dropped
    assert set(outcomes) == set(range(COUNT))
    assert {ack.stream for ack in outcomes.values()} == {batched}
    assert await payloads(js, batched) == list(range(COUNT))


@pytest.mark.faults
async def test_killed_server_loses_and_reorders_nothing(make_event):
    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, error_cb=ignore)
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"], allow_batched=True)

        async def kill():
            for _ in range(3):
                await asyncio.sleep(0.1)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)

        killing = asyncio.create_task(kill())
        number = 0
        async with Publisher(js) as publisher:
            while number < COUNT or not killing.done():
                await publisher.publish(make_event(number), "s")
                number += 1
        await killing
        assert publisher.acknowledged == number
        assert await ids(js, "S") == expected(range(number))
        await nc.close()


async def test_closed_connection_fails_what_is_not_acknowledged(server, js, subject, batched, make_event):
    nc = await nats.connect(server.url)
    publisher = Publisher(nc.jetstream())
    await publisher.__aenter__()
    for number in range(100):
        await publisher.publish(make_event(number), subject)
    await nc.close()
    with pytest.raises(PublishError) as info:
        await asyncio.wait_for(publisher.__aexit__(None, None, None), SECONDS)
    assert {failure.error.code for failure in info.value.failures} == {"timeout"}
    assert "connection was closed" in str(info.value)
    assert len(info.value.failures) + publisher.acknowledged == 100
