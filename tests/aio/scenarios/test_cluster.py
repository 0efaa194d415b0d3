"""Behaviour of three servers: slow replication, elections, statuses that overtake messages."""

import asyncio

import nats
import pytest
from nats.errors import NoRespondersError
from nats.js.api import ConsumerConfig

from ce_nats import Headers, NatsMessage, from_nats_message
from ce_nats.aio import DeliveryError, Publisher, PublishError, PublishResult, PullConsumer
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.jetstream import read_stream
from ce_nats.aio.publishing._bulk import BulkPublisher
from ce_nats.testing import _server as testing
from ce_nats.wire.nats import decode_header_block
from tests.support import clusters
from tests.support.broker import ignore
from tests.support.clusters import SECONDS, connected
from tests.support.waiting import until

pytestmark = pytest.mark.faults


@pytest.fixture
async def stream(cluster, subject):
    """A stream with three replicas that listens on ``subject``."""
    name = subject.replace(".", "_")
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)
        await clusters.add_stream(js, name, subjects=[subject], storage="memory")
        await clusters.until_replicated(js, name)
    return name  # not deleted: that needs JetStream's leader, which a test may have killed


@pytest.fixture
def roles(cluster, stream):
    """The leader of the stream, and the two other servers."""
    leader = cluster.leader(stream)
    return leader, [server for server in cluster.servers if server is not leader]


@pytest.fixture
async def slow(roles, subject):
    """A stream with paused replication: a connection to its leader, the messages there, and a function to resume."""
    leader, followers = roles
    seen = []

    async def note(message):
        seen.append(message)

    def resume():
        for server in followers:
            server.resume()

    async with connected(leader) as nc:
        await nc.subscribe(subject, cb=note)
        await nc.flush()
        for server in followers:
            server.pause()
        try:
            yield nc, seen, resume
        finally:
            resume()


async def ids(cluster, stream):
    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)
        messages = [message async for batch in read_stream(js, stream) for message in batch]
    return [from_nats_message(message).get_id() for message in messages]


async def until_stored(cluster, stream, expected):
    """Wait for what is stored: a new leader reports its messages before it has applied all of them."""

    async def are_stored():
        found = await ids(cluster, stream)
        assert len(found) <= len(expected), found
        return found == expected

    await until(are_stored)


def events_of(make_event, count):
    return [make_event(number) for number in range(count)], [f"event {number}" for number in range(count)]


def connecting_to(server):
    async def connect(client):
        await client.connect(server.url, allow_reconnect=False, error_cb=ignore)

    return connect


async def until_leader_is_missed(nc, subject):
    """Wait until the servers have noticed that the stream's leader is gone."""
    for _ in range(2 * SECONDS):
        try:
            await nc.request(subject, b"", headers={"Nats-Expected-Stream": "another"}, timeout=0.5)
        except NoRespondersError:
            return
        except nats.errors.TimeoutError:
            pass
    pytest.fail("requests to the stream must fail")


def with_id(event, subject):
    return NatsMessage(
        subject,
        b"",
        Headers(
            [
                *((f"ce-{name}", str(value)) for name, value in event.get_attributes().items()),
                ("Nats-Msg-Id", event.get_id()),
            ]
        ),
    )


# --- Messages that are resent before they are replicated -------------------------------------------------------------


async def test_event_resent_during_replication_is_stored_once(cluster, slow, subject, stream, make_event):
    """Each event is resent while it is replicated; the server refuses the copy meanwhile."""
    nc, seen, resume = slow
    events, expected = events_of(make_event, 20)
    async with Publisher(nc.jetstream(), ack_timeout=0.3, retry_timeout=SECONDS) as publisher:
        for event in events:
            await publisher.publish(event, subject)
        await until(lambda: publisher.failures or len(seen) >= 3 * len(events))
        assert publisher.failures == []
        resume()
    assert (publisher.acknowledged, publisher.duplicates) == (len(events), 0)
    await until_stored(cluster, stream, expected)


async def test_window_resent_during_replication_is_stored_once(cluster, roles, slow, subject, stream, make_event):
    """On a new connection each time, as Spark's workers do."""
    _, seen, resume = slow
    events, expected = events_of(make_event, 20)
    messages = [with_id(event, subject) for event in events]
    async with BulkPublisher(connecting_to(roles[0]), ack_timeout=0.5, retry_timeout=SECONDS) as publisher:
        publishing = asyncio.create_task(publisher.publish(messages))
        await until(lambda: publishing.done() or len(seen) >= 3 * len(events))
        resume()
        assert await publishing == PublishResult(len(events), 0)
    await until_stored(cluster, stream, expected)


async def test_event_published_by_two_clients_is_a_duplicate(cluster, slow, subject, stream, make_event):
    """Once the first one is stored."""
    nc, seen, resume = slow
    js = nc.jetstream(timeout=SECONDS)
    first = asyncio.create_task(ce_js.publish(js, make_event(), subject))
    await until(lambda: len(seen) == 1)
    second = asyncio.create_task(ce_js.publish(js, make_event(), subject))
    await until(lambda: second.done() or len(seen) >= 3)
    resume()
    assert [bool((await each).duplicate) for each in (first, second)] == [False, True]
    assert await ids(cluster, stream) == ["event 1"]


async def test_slow_replication_is_a_timeout(slow, subject, make_event):
    """The event may be stored later."""
    nc, seen, _ = slow
    js = nc.jetstream()
    first = asyncio.create_task(ce_js.publish(js, make_event(), subject, timeout=SECONDS))
    await until(lambda: len(seen) == 1)
    async with Publisher(js, ack_timeout=SECONDS, retry_timeout=0.5) as publisher:
        ack = await publisher.publish(make_event(), subject)
        await asyncio.wait([ack])
        assert [failure.error.code for failure in publisher.failures] == ["timeout"]
        publisher.failures.clear()
    with pytest.raises(DeliveryError) as info:
        await ce_js.publish(js, make_event(), subject, timeout=0.5)
    assert info.value.code == "timeout"
    first.cancel()


# --- Elections -------------------------------------------------------------------------------------------------------


async def test_first_publish_during_an_election_waits_for_it(cluster, roles, subject, stream, make_event):
    """No acknowledgement has shown yet that a stream exists. No event is stored twice, with or without an id."""
    leader, followers = roles
    events, expected = events_of(make_event, 6)
    async with connected(*followers) as nc:
        js = nc.jetstream()
        leader.kill()
        await until_leader_is_missed(nc, subject)
        async with (
            Publisher(js, retry_timeout=SECONDS) as publisher,
            Publisher(js, retry_timeout=SECONDS, dedup=None) as plain,
            BulkPublisher(connecting_to(followers[1]), retry_timeout=SECONDS) as bulk,
        ):
            for event in events[:2]:
                await publisher.publish(event, subject)
            for event in events[2:4]:
                await plain.publish(event, subject)
            sent, _ = await asyncio.gather(
                bulk.publish([with_id(events[4], subject)]),
                ce_js.publish(js, events[5], subject, timeout=SECONDS),
            )
    assert (publisher.acknowledged, plain.acknowledged, sent) == (2, 2, PublishResult(1, 0))
    assert sorted(await ids(cluster, stream)) == expected


async def test_missing_stream_is_an_error_on_all_servers(cluster, subject, make_event):
    """Also on one that is not the leader."""
    for server in cluster.servers:
        async with connected(server) as nc:
            async with Publisher(nc.jetstream(), retry_timeout=600) as publisher:
                await publisher.publish(make_event(), subject)
                with pytest.raises(PublishError, match=f"{subject}: no stream listens: create one with") as info:
                    await asyncio.wait_for(publisher.flush(), SECONDS)
            assert info.value.code == "no-responders"


async def test_stream_without_its_server_is_temporarily_unavailable(cluster, subject):
    """The other servers know that the stream exists."""
    name = subject.replace(".", "_")
    async with connected(*cluster.servers) as nc:
        await nc.jetstream(timeout=SECONDS).add_stream(name=name, subjects=[subject], num_replicas=1)
    alone = cluster.leader(name)
    # SIGTERM, which the server announces to the others; a killed server is noticed after minutes.
    testing._end(alone._processes)
    async with connected(*[server for server in cluster.servers if server is not alone]) as nc:
        api = StreamApi(nc).without_retries()
        for _ in range(SECONDS):
            with pytest.raises(DeliveryError) as info:
                await api.state(name)
            if info.value.code != "timeout":  # until the others have noticed
                break
    assert info.value.code == "temporarily-unavailable"
    alone.start()
    cluster.wait_until_ready()  # until it knows the leader, it drops requests
    async with connected(*cluster.servers) as nc:
        await clusters.add_stream(nc.jetstream(timeout=SECONDS), f"{name}-after", subjects=[f"{subject}.after"])


# --- Pulling ---------------------------------------------------------------------------------------------------------


async def test_batch_completed_before_its_messages_is_not_a_refusal(cluster, subject, stream, make_event):
    """The status overtakes the messages, which wait for the replication of the consumer's position."""
    count, handled, seen, refusals = 100, [], [], []

    async with connected(*cluster.servers) as nc:
        js = nc.jetstream(timeout=SECONDS)
        async with Publisher(js) as publisher:
            for number in range(count):
                await publisher.publish(make_event(number), subject)
        async with PullConsumer(
            js, stream, "c", dead_letter=None, create=ConsumerConfig(ack_wait=SECONDS), prefetch=4
        ) as consumer:
            _note_statuses(consumer._parts.fetcher, seen, refusals)
            async for delivery in consumer:
                async with delivery as event:
                    handled.append(event.get_id())
                if len(handled) == count:
                    break
    assert handled == [f"event {number}" for number in range(count)]
    assert "Batch Completed" in seen
    # On a busy machine the consumer may lose its leader, which is a refused request.
    assert "Batch Completed" not in refusals


def _note_statuses(fetcher, seen, refusals):
    """Record each status from now on, and those after which the fetcher pauses."""
    receive = fetcher._receive_status

    def receive_and_note(raw):
        before = fetcher._answers.not_before
        receive(raw)
        text = decode_header_block(raw[3]).status.description
        seen.append(text)
        if fetcher._answers.not_before != before:
            refusals.append(text)

    fetcher._receive_status = receive_and_note
