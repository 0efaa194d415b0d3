"""Batches of fast ingest: order, acknowledgements, refusals, and what happens without it, on real servers."""

import asyncio
import json
from contextlib import asynccontextmanager

import nats
import pytest

from ce_nats import from_nats_message
from ce_nats.aio import Publisher
from ce_nats.aio.jetstream import configure_stream
from ce_nats.aio.publishing import _fast_ingest
from ce_nats.aio.publishing._batches import BURST
from ce_nats.testing import NatsServer
from tests.support.batches import expected, ids, payloads, pending_acks, publish_all, send
from tests.support.broker import ignore
from tests.support.pausing import paused
from tests.support.programs import nats_server
from tests.support.waiting import until

SECONDS = 60
COUNT = 2_000


# --- Order and acknowledgements ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 10, 1000])
async def test_events_are_stored_in_order(js, subject, batched, make_event, window):
    count = min(COUNT, 40 * window)
    async with Publisher(js, window=window) as publisher:
        for number in range(count):
            await publisher.publish(make_event(number, {"n": number}), subject)
    assert await ids(js, batched) == expected(range(count))
    assert publisher.acknowledged == count
    assert publisher.failures == []


async def test_many_events_have_few_acknowledgements(nc, js, subject, batched, make_event):
    async with Publisher(js) as publisher:
        await publisher.publish(make_event(-1), subject)  # looks up the stream
        await publisher.flush()
        before = nc.stats["in_msgs"]
        futures = [await publisher.publish(make_event(number), subject) for number in range(COUNT)]
    assert nc.stats["in_msgs"] - before < COUNT / 50
    acks = [future.result() for future in futures]
    assert {ack.stream for ack in acks} == {batched}
    assert sum(ack.seq == 0 for ack in acks) > COUNT / 2  # an event that a slow machine sends alone has its sequence
    assert publisher.batched > COUNT / 2


async def test_event_alone_has_a_sequence_and_may_be_a_duplicate(js, subject, batched, make_event):
    async with Publisher(js) as publisher:
        for _ in range(2):
            ack = await asyncio.wait_for(await publisher.publish(make_event(1), subject), SECONDS)
            assert (ack.stream, ack.seq) == (batched, 1)
    assert (publisher.acknowledged, publisher.duplicates, publisher.batched) == (2, 1, 0)


@pytest.mark.parametrize("count", [2, BURST - 1, BURST, BURST + 1, 500])
async def test_each_future_completes_without_a_flush(js, subject, batched, make_event, count):
    publisher = Publisher(js)
    async with publisher:
        futures = [await publisher.publish(make_event(number), subject) for number in range(count)]
        await asyncio.wait_for(asyncio.gather(*futures), SECONDS)
        assert publisher.acknowledged == count
    assert await ids(js, batched) == expected(range(count))


async def test_concurrent_tasks_keep_their_order(js, subject, batched, make_event):
    async with Publisher(js, window=100) as publisher:

        async def publish(task):
            for number in range(200):
                await publisher.publish(make_event(task * 1000 + number), subject)

        await asyncio.gather(*map(publish, range(8)))
    found = await ids(js, batched)
    for task in range(8):
        own = expected(range(task * 1000, task * 1000 + 200))
        assert [name for name in found if name in set(own)] == own


async def test_batch_that_pauses_stays_usable(js, subject, batched, make_event):
    """The server abandons a batch after ten seconds without messages; it is ended before."""
    async with Publisher(js) as publisher:
        for burst in range(3):
            for number in range(100):
                await publisher.publish(make_event(100 * burst + number), subject)
            await until(lambda: not publisher._acks.pending)
    assert await ids(js, batched) == expected(range(300))


async def test_open_batch_ends_with_the_publisher(nc, js, subject, batched, make_event):
    """An exception in the block, with most events unsent."""
    publisher = Publisher(js)
    await publisher.__aenter__()
    for number in range(500):
        await publisher.publish(make_event(number), subject)
    await publisher.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert (publisher.acknowledged, publisher.failures) == (500, [])
    assert await ids(js, batched) == expected(range(500))


async def test_batch_does_not_overtake_a_message_before_it(js, subject, batched, make_event):
    async with Publisher(js) as publisher:
        await publisher.publish(make_event(0), subject)
        await publisher.flush()
        expectation = {"Nats-Expected-Last-Sequence": "1"}
        await publisher.publish(make_event(1), subject, headers=expectation)
        for number in range(2, BURST + 10):
            await publisher.publish(make_event(number), subject)
    assert await ids(js, batched) == expected(range(BURST + 10))


async def test_subscribers_receive_the_events_and_nothing_else(nc, js, subject, batched, make_event):
    """Batches end with an event, not with a message of their own."""
    received = []

    async def receive(message):
        received.append(from_nats_message(message).get_id())

    await nc.subscribe(subject, cb=receive)
    async with Publisher(js) as publisher:
        for count in (1, 5, 100, COUNT):
            for number in range(count):
                await publisher.publish(make_event(count + number), subject)
            await until(lambda: not publisher._acks.pending)
        for number in range(100):
            await publisher.publish(make_event(number), subject)
        await publisher.flush()
    sent = [count + number for count in (1, 5, 100, COUNT) for number in range(count)] + list(range(100))
    await until(lambda: len(received) >= len(sent))
    await nc.flush()
    assert received == expected(sent)


# --- Several subjects and streams ----------------------------------------------------------------------------------


async def test_streams_with_and_without_fast_ingest(js, subject, batched, make_event):
    plain = f"{batched}_plain"
    await js.add_stream(name=plain, subjects=[f"plain.{subject}"], storage="memory")
    async with Publisher(js) as publisher:
        for number in range(500):
            await publisher.publish(make_event(number), subject)
            await publisher.publish(make_event(number), f"{subject}.{number % 7}")
            await publisher.publish(make_event(number), f"plain.{subject}")
    assert publisher.acknowledged == 1500
    assert publisher.batched >= 900
    assert await ids(js, plain) == expected(range(500))
    # The same events on both subjects of the stream: the second ones are duplicates.
    assert await ids(js, batched) == expected(range(500))
    await js.delete_stream(plain)


async def test_each_of_two_streams_has_its_batches(js, subject, batched, make_event):
    other = f"{batched}_other"
    await js.add_stream(name=other, subjects=[f"other.{subject}"], storage="memory", allow_batched=True)
    async with Publisher(js) as publisher:
        for number in range(COUNT):
            await publisher.publish(make_event(number), [subject, f"other.{subject}"][number % 2])
    assert await ids(js, batched) == expected(range(0, COUNT, 2))
    assert await ids(js, other) == expected(range(1, COUNT, 2))
    await js.delete_stream(other)


async def test_message_without_an_id_does_not_overtake_a_batch(nc, js, subject, batched):
    async with pending_acks(nc) as (acks, outcomes):
        for number in range(200):
            lines = () if number % 50 == 49 else (b"Nats-Msg-Id: %d" % number,)
            await send(acks, subject, number, *lines)
        await acks.drain()
    assert await payloads(js, batched) == list(range(200))
    assert {number for number, ack in outcomes.items() if ack.seq} >= {49, 99, 149, 199}


async def test_publisher_without_ids_publishes_one_by_one(js, subject, batched, make_event):
    async with Publisher(js, dedup=None) as publisher:
        futures = [await publisher.publish(make_event(number), subject) for number in range(100)]
    assert [future.result().seq for future in futures] == list(range(1, 101))
    assert publisher.batched == 0


async def test_fast_ingest_can_be_switched_off(js, subject, batched, make_event):
    async with Publisher(js, fast_ingest=False) as publisher:
        futures = [await publisher.publish(make_event(number), subject) for number in range(100)]
    assert [future.result().seq for future in futures] == list(range(1, 101))


async def test_setting_may_be_switched_off_meanwhile(js, subject, batched, make_event):
    async with Publisher(js) as publisher:
        for number in range(COUNT):
            if number == COUNT // 2:
                await configure_stream(js, batched, allow_batched=False)
            await publisher.publish(make_event(number), subject)
    assert publisher.acknowledged == COUNT
    assert await ids(js, batched) == expected(range(COUNT))


@pytest.mark.parametrize("setting", [{"no_ack": True}, {"allow_msg_counter": True}], ids=["no_ack", "counter"])
async def test_streams_whose_acknowledgements_matter_have_no_batches(nc, js, subject, batched, setting):
    api = _fast_ingest.StreamApi(nc, "$JS.API", 5)
    assert (await api.stream_on(subject)).accepts_batches
    name = f"{batched}_other"
    await js.add_stream(name=name, subjects=[f"other.{subject}"], allow_batched=True, **setting)
    assert not (await api.stream_on(f"other.{subject}")).accepts_batches
    await js.delete_stream(name)


async def test_lookups_of_subjects_without_a_stream_end(nc, subject):
    async with pending_acks(nc) as (acks, _):
        for number in range(2 * _fast_ingest._MAX_MISSES):
            before = nc.stats["out_msgs"]
            assert await acks._fast.look_up(f"none.{subject}.{number}") is None
            assert (nc.stats["out_msgs"] > before) is (number < _fast_ingest._MAX_MISSES)


# --- Permissions and other servers ------------------------------------------------------------------------------------


@asynccontextmanager
async def restricted(**permissions):
    """Yield a JetStream context of a user with these permissions, and one of a user with all."""
    users = [{"user": "all", "password": "p"}, {"user": "some", "password": "p", "permissions": permissions}]
    with NatsServer(jetstream=True, config=f"authorization: {json.dumps({'users': users})}") as server:
        options = {"user": "some", "password": "p", "error_cb": ignore, "inbox_prefix": "_INBOX_some"}
        nc = await nats.connect(server.url, **options)
        all_nc = await nats.connect(server.url, user="all", password="p")
        await all_nc.jetstream().add_stream(name="S", subjects=["s.>"], allow_batched=True)
        yield nc.jetstream(), all_nc.jetstream()
        await nc.close()
        await all_nc.close()


async def test_denied_subject_fails_alone(make_event):
    async with restricted(publish={"deny": ["s.denied"]}) as (js, all_js):
        events = [make_event(number) for number in range(300)]
        failed = await publish_all(js, events, *["s.a"] * 99, "s.denied")
        assert failed == dict.fromkeys(expected([99, 199, 299]), "permission-denied")
        assert await ids(all_js, "S") == expected(number for number in range(300) if number % 100 != 99)


async def test_ordinary_messages_if_streams_cannot_be_looked_up(make_event):
    async with restricted(publish={"deny": ["$JS.API.STREAM.>"]}) as (js, all_js):
        async with Publisher(js, ack_timeout=0.3) as publisher:
            for number in range(300):
                await publisher.publish(make_event(number), "s.a")
        assert (publisher.acknowledged, publisher.batched) == (300, 0)
        assert await ids(all_js, "S") == expected(range(300))


@pytest.mark.faults
async def test_lookup_is_repeated_until_the_server_responds(make_event, monkeypatch):
    """Else the publisher would use no batches as long as it is open."""
    monkeypatch.setattr(_fast_ingest, "_LOOKUP_SECONDS", 0.2)
    with NatsServer(jetstream=True) as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"], allow_batched=True)

        async def publish():
            async with Publisher(js) as publisher:
                for number in range(300):
                    await publisher.publish(make_event(number), "s")
            return publisher.batched

        before = nc.stats["out_msgs"]
        with paused(server):
            publishing = asyncio.create_task(publish())
            await until(lambda: nc.stats["out_msgs"] >= before + 3)
        assert await asyncio.wait_for(publishing, SECONDS) > 150
        assert await ids(js, "S") == expected(range(300))
        await nc.close()


@pytest.mark.parametrize("version", ["2.10.26", "2.12.3"])
async def test_server_without_fast_ingest_gets_ordinary_messages(make_event, version):
    with NatsServer(jetstream=True, executable=nats_server(version)) as server:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        async with Publisher(js) as publisher:
            for number in range(300):
                await publisher.publish(make_event(number), "s")
        assert (publisher.acknowledged, publisher.batched) == (300, 0)
        await nc.close()
