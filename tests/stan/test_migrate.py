"""Migration of channels of a real streaming server to streams of a real nats-server."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from uuid import uuid4

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, EncodeError, Timestamp, dedup_id, from_nats_message, stan
from ce_nats.aio import DeliveryError
from ce_nats.aio.jetstream import publish, read_stream
from ce_nats.stan import Start
from ce_nats.stan._inventory import _ranges as ranges
from ce_nats.stan.migration import CHANNEL, SEQUENCE, TIMESTAMP, Durable, MigrationResult, Monitor, migrate
from ce_nats.stan.migration import _client_id as client_id_for
from tests.support.streaming import CLUSTER, StreamingServer


def event(number=1, **members):
    return json.dumps({"specversion": "1.0", "id": str(number), "source": "/shop", "type": "t", **members}).encode()


@pytest.fixture(scope="session")
def streaming(executable, server):
    """A streaming server over the nats-server that has the streams."""
    with StreamingServer(executable, over=server.url) as streaming:
        yield streaming


@pytest.fixture
def monitor(streaming):
    return Monitor(streaming.monitor)


@pytest.fixture
def js(nc):
    return nc.jetstream()


@pytest.fixture
async def stream(js, channel):
    """A stream for the channel."""
    name = channel.replace(".", "_")
    await js.add_stream(name=name, subjects=[channel, f"{channel}.>"], storage="memory")
    yield name
    await js.delete_stream(name)


@pytest.fixture
def move(nc, js, channel, stream, monitor):
    """Migrate the channel of the test to its stream."""

    async def move(**options):
        return await migrate(nc, js, channel, stream, **{"monitor": monitor, "timeout": 2.0, **options})

    return move


@pytest.fixture
def stored(js, stream):
    async def stored():
        return [message async for batch in read_stream(js, stream) for message in batch]

    return stored


async def fill(connection, channel, payloads):
    for payload in payloads:
        await connection.publish_data(payload, channel)


# --- Messages ---------------------------------------------------------------------------------------------------------


async def test_payloads_are_copied_unchanged_with_headers(connection, channel, move, stored):
    """Payloads are events or not. Headers have the origin, and the content type of events."""
    strange = event(2, subject="Zoë € 😀").replace(b",", b" ,\n")
    payloads = [event(1, data={"a": 1}), b"no event", b"", strange, bytes(range(256)), b'{"specversion":"1.0"}']
    await fill(connection, channel, payloads)
    async with await connection.subscribe(channel, start=Start.first()) as subscription:
        times = [(await subscription.__anext__()).message.timestamp for _ in payloads]
    progress = []
    migrated = await move(on_progress=lambda *counts: progress.append(counts))
    assert migrated.is_complete
    assert migrated == MigrationResult(channel, migrated.stream, messages=6, stored=6, copied=6, events=2)
    assert progress == [(number, 6) for number in range(1, 7)]
    messages = await stored()
    assert [message.data for message in messages] == payloads
    assert {message.subject for message in messages} == {channel}
    for number, message in enumerate(messages, 1):
        headers = dict(message.headers)
        assert (headers.pop(CHANNEL), headers.pop(SEQUENCE)) == (channel, str(number))
        at = Timestamp(headers.pop(TIMESTAMP))
        assert at.text.endswith("Z")
        assert int(at.timestamp()) * 10**9 + at.nanosecond == times[number - 1]
        if number in (1, 4):
            found = from_nats_message(message)
            assert headers == {"Content-Type": "application/cloudevents+json", "Nats-Msg-Id": dedup_id(found)}
        else:
            assert headers == {"Nats-Msg-Id": f"{CLUSTER}/{channel}/{number}"}
            with pytest.raises(DecodeError):
                from_nats_message(message)


async def test_second_run_copies_new_messages_only(connection, channel, move, stored):
    await fill(connection, channel, [event(1), b"x"])
    assert (await move()).copied == 2
    await fill(connection, channel, [event(3), event(4)])
    second = await move()
    assert (second.messages, second.stored, second.copied, second.is_complete) == (4, 4, 2, True)
    third = await move()
    assert (third.messages, third.stored, third.copied, third.is_complete) == (4, 4, 0, True)
    assert [message.data for message in await stored()] == [event(1), b"x", event(3), event(4)]


async def test_many_messages_are_copied_in_order(connection, channel, move, stored):
    payloads = [event(number) for number in range(3000)]
    sent = await asyncio.gather(*(connection._send(payload, channel) for payload in payloads))
    await asyncio.gather(*sent)
    assert (await move()).is_complete
    assert [message.data for message in await stored()] == payloads


async def test_duplicate_events_are_kept(connection, channel, move, stored):
    """NATS Streaming does not detect duplicates; JetStream would drop them, within a run and between runs."""
    await fill(connection, channel, [event(1), event(1, n="b"), event(2), event(1, n="c")])
    first = await move()
    assert (first.stored, first.events, first.duplicates, first.is_complete) == (4, 4, 2, True)
    await fill(connection, channel, [event(2, n="d"), event(3)])
    second = await move()
    assert (second.stored, second.copied, second.duplicates, second.is_complete) == (6, 2, 1, True)
    messages = await stored()
    assert [message.data for message in messages] == [
        *(event(1), event(1, n="b"), event(2), event(1, n="c"), event(2, n="d"), event(3))
    ]
    ids = [dict(message.headers)["Nats-Msg-Id"] for message in messages]
    assert ids[1:2] + ids[3:5] == [f"{CLUSTER}/{channel}/{number}" for number in (2, 4, 5)]
    assert ids[0] == dedup_id(from_nats_message(messages[0]))


async def test_event_that_was_published_to_the_stream_before_is_copied(
    connection, channel, js, make_event, move, stored
):
    """Although the stream has, or had, an event with its id."""
    await publish(js, make_event(1), f"{channel}.new")
    await connection.publish(make_event(1), channel)
    migrated = await move()
    assert (migrated.stored, migrated.duplicates, migrated.is_complete) == (1, 1, True)
    await js.purge_stream(channel.replace(".", "_"))
    # The stream still has all ids, and no messages.
    migrated = await move()
    assert (migrated.stored, migrated.copied, migrated.is_complete) == (1, 1, True)
    assert len(await stored()) == 1


async def test_message_that_is_missing_in_the_stream_is_copied_again(connection, channel, js, stream, move, stored):
    await fill(connection, channel, [b"%d" % number for number in range(5)])
    await move()
    await js.delete_msg(stream, 2)
    migrated = await move()
    assert (migrated.copied, migrated.stored, migrated.is_complete) == (1, 5, True)
    assert sorted(message.data for message in await stored()) == [b"%d" % number for number in range(5)]


async def test_two_channels_are_copied_to_one_stream(connection, channel, nc, js, stream, monitor, move, stored):
    other = f"{channel}.other"
    await fill(connection, channel, [b"1", b"2"])
    await fill(connection, other, [b"a"])
    assert (await move()).is_complete
    assert (await migrate(nc, js, other, stream, monitor=monitor, subject=f"{channel}.b")).is_complete
    assert [(message.subject, message.data) for message in await stored()] == [
        *((channel, b"1"), (channel, b"2"), (f"{channel}.b", b"a"))
    ]
    assert (await move()).copied == 0


async def test_repeated_message_in_the_stream_is_reported(connection, channel, js, move):
    """Headers with invalid sequences are ignored."""
    await fill(connection, channel, [b"1", b"2"])
    await move()
    for text in ("", "0", "-2", "two", "9" * 5000, "²"):
        await js.publish(channel, b"2", headers={CHANNEL: channel, SEQUENCE: text or " "})
    assert (await move()).is_complete
    again = {CHANNEL: channel, SEQUENCE: "2", TIMESTAMP: "2020-01-01T00:00:00Z"}
    await js.publish(channel, b"2", headers=again)
    migrated = await move()
    assert (migrated.stored, migrated.repeated, migrated.is_complete) == (2, 1, False)


async def test_migration_is_incomplete_if_the_stream_does_not_keep_all_messages(connection, channel, js, stream, move):
    """Messages that the stream acknowledged and then removed are not counted, and no consumer is created."""
    await fill(connection, channel, [b"%d" % number for number in range(6)])
    await (await connection.subscribe(channel, durable="d")).close()
    await js.update_stream(name=stream, subjects=[channel, f"{channel}.>"], storage="memory", max_msgs=4)
    migrated = await move(durables={"c": Durable("d", client_id=connection.client_id)})
    assert (migrated.messages, migrated.stored, migrated.is_complete) == (6, 4, False)
    assert migrated.consumers == {}


async def test_messages_copied_by_stan2js_are_not_copied_again(connection, channel, js, stream, move, stored):
    """They have the same headers without a Content-Type, and are read as events."""
    await fill(connection, channel, [event(1), event(2)])
    async with await connection.subscribe(channel, start=Start.first()) as subscription:
        for _ in range(2):
            message = (await subscription.__anext__()).message
            at = Timestamp.fromtimestamp(message.timestamp // 10**9, Timestamp("2020-01-01T00:00:00+05:30").tzinfo)
            text = at.isoformat().replace("+", f".{message.timestamp % 10**9:09}+")
            await js.publish(
                channel, message.data, headers={CHANNEL: channel, SEQUENCE: str(message.sequence), TIMESTAMP: text}
            )
    events = [from_nats_message(message) for message in await stored()]
    assert [found.get_id() for found in events] == ["1", "2"]
    migrated = await move()
    assert (migrated.copied, migrated.stored, migrated.is_complete) == (0, 2, True)


@pytest.fixture
def limited(executable, server):
    """A streaming server that keeps three messages of a channel."""
    with StreamingServer(executable, "-mm", "3", over=server.url, cluster="limited") as streaming:
        yield streaming


async def test_expired_messages_are_counted(nc, limited, channel, move):
    """Those that expired before the migration, and those that expire during it."""
    async with await stan.connect(nc, limited.cluster, "sender") as connection:
        await fill(connection, channel, [b"%d" % number for number in range(1, 6)])
        migrated = await move(monitor=Monitor(limited.monitor))
        assert (migrated.expired, migrated.messages, migrated.stored, migrated.gaps) == (2, 3, 3, [])
        await fill(connection, channel, [b"6", b"7"])

        class Late(Monitor):
            """Publishes two messages after each request for the state."""

            async def channel(self, name):
                state = await super().channel(name)
                await fill(connection, channel, [b"8", b"9"])
                return state

        migrated = await move(monitor=Late(limited.monitor))
        assert (migrated.gaps, migrated.messages, migrated.stored) == ([(6, 6)], 2, 2)
        assert migrated.expired == 2
        assert migrated.is_complete


async def test_channel_that_expires_during_the_migration_is_reported_as_a_gap(
    nc, executable, server, channel, move, stored
):

    class Late(Monitor):
        """Returns the state of the channel after its messages have expired."""

        async def channel(self, name):
            state = await super().channel(name)
            for _ in range(500):
                if not (await super().channel(name)).messages:
                    return state
                await asyncio.sleep(0.01)
            return pytest.fail("the messages must expire")

    with StreamingServer(executable, "-ma", "1s", over=server.url, cluster="brief") as streaming:
        async with await stan.connect(nc, "brief", "me") as connection:
            await asyncio.gather(*[await connection._send(b"", channel) for _ in range(3)])
        migrated = await move(monitor=Late(streaming.monitor), timeout=0.5)
    assert (migrated.messages, migrated.stored, migrated.copied, migrated.gaps) == (0, 0, 0, [(1, 3)])
    assert migrated.is_complete


async def test_migration_times_out_if_messages_are_not_delivered(connection, channel, streaming, move):
    """According to monitoring the server has them."""

    class Mistaken(Monitor):
        async def channel(self, name):
            state = await super().channel(name)
            return replace(state, messages=state.messages + 1, last=state.last + 1)

    await connection.publish_data(b"1", channel)
    with pytest.raises(DeliveryError, match="has messages up to 2, and none was delivered after 1"):
        await move(monitor=Mistaken(streaming.monitor), timeout=0.1)


@given(st.sets(st.integers(1, 60)))
def test_ranges_have_the_same_numbers_and_gaps_between_them(numbers):
    found = ranges(sorted(numbers))
    assert [number for first, last in found for number in range(first, last + 1)] == sorted(numbers)
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(found))


async def test_empty_channel_is_migrated(connection, channel, move, stored):
    await (await connection.subscribe(channel, durable="d")).close()
    migrated = await move(durables={"c": Durable("d", client_id=connection.client_id)})
    assert migrated.is_complete
    assert (migrated.messages, migrated.consumers) == (0, {"c": 1})
    await connection.publish_data(b"1", channel)
    assert (await move()).copied == 1
    assert len(await stored()) == 1


# --- Durables ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def received(js, stream):
    """Receive messages from a consumer, and return their sequences in the channel."""

    async def received(consumer, count):
        subscription = await js.pull_subscribe_bind(consumer, stream=stream)
        seen = []
        for _ in range(count):  # one by one, because of the durable's max_in_flight
            [message] = await subscription.fetch(1, timeout=60)
            seen.append(int(message.headers[SEQUENCE]))
            await message.ack()
        return seen

    return received


@pytest.mark.parametrize(
    ("delivered", "acknowledged", "first"),
    [(3, [1, 2, 3], 4), (4, [1, 3, 4], 2), (4, [1], 2), (0, [], 1), (6, [1, 2, 3, 4, 5, 6], 7)],
    ids=["in order", "one unacknowledged", "one acknowledged", "none", "all"],
)
async def test_consumer_begins_at_the_position_of_the_durable(
    nc, js, client_id, channel, take, move, stream, received, delivered, acknowledged, first
):
    """At the first unacknowledged message. The position of the durable does not change."""
    async with await stan.connect(nc, CLUSTER, client_id) as connection:
        await fill(connection, channel, [event(number) for number in range(1, 7)])
        async with await connection.subscribe(
            channel, start=Start.first(), durable="d", max_in_flight=delivered or 1, ack_wait=45
        ) as subscription:
            for _ in range(delivered):
                item = await asyncio.wait_for(subscription.__anext__(), 60)
                if item.message.sequence in acknowledged:
                    await item.ack()
            if not delivered:  # wait for a message, and leave it unacknowledged
                await asyncio.wait_for(subscription.__anext__(), 60)
    await js.publish(f"{channel}.before", b"")  # so that sequences of the stream and of the channel differ
    durables = {"billing": Durable("d", client_id=client_id)}
    migrated = await move(durables=durables)
    assert migrated.consumers == {"billing": first + 1}
    info = await js.consumer_info(stream, "billing")
    assert (info.config.ack_wait, info.config.max_ack_pending, info.config.opt_start_seq) == (
        *(45, delivered or 1, first + 1),
    )
    assert (await move(durables=durables)).consumers == {"billing": first + 1}
    await js.publish(channel, event(8), headers={SEQUENCE: "7"})
    assert await received("billing", 8 - first) == list(range(first, 8))
    left = [number for number in range(1, 7) if number not in acknowledged]
    async with await stan.connect(nc, CLUSTER, client_id) as connection:
        subscription = await connection.subscribe(channel, durable="d", max_in_flight=10)
        assert [one.sequence for one in await take(subscription, len(left))] == left


async def test_consumer_that_is_created_by_a_later_run_skips_no_message(connection, channel, js, take, move):
    """After the first run, publishers have switched to the stream."""
    await fill(connection, channel, [b"1", b"2"])
    async with await connection.subscribe(channel, start=Start.first(), durable="d", max_in_flight=1) as subscription:
        await take(subscription, 2)
    await move()
    await js.publish(channel, b"3")
    migrated = await move(durables={"c": Durable("d", client_id=connection.client_id)})
    assert migrated.consumers == {"c": 3}


@pytest.mark.parametrize("acknowledged", [[1, 2, 3, 4, 5, 6], [1, 2, 4, 6], []], ids=str)
async def test_consumer_begins_at_the_position_of_a_durable_queue_group(nc, channel, move, received, acknowledged):
    """At the first message that no member has acknowledged."""
    names = (f"one-{uuid4().hex}", f"two-{uuid4().hex}")
    async with await stan.connect(nc, CLUSTER, names[0]) as one, await stan.connect(nc, CLUSTER, names[1]) as two:
        options = {"start": Start.first(), "durable": "d", "queue": "workers", "max_in_flight": 3}
        members = [await member.subscribe(channel, **options) for member in (one, two)]
        await fill(one, channel, [event(number) for number in range(1, 7)])
        for subscription in members:
            for _ in range(3):
                item = await asyncio.wait_for(subscription.__anext__(), 60)
                if item.message.sequence in acknowledged:
                    await item.ack()
    wanted = min({*range(1, 8)} - {*acknowledged})
    migrated = await move(durables={"workers": Durable("d", queue="workers")})
    assert migrated.consumers == {"workers": wanted}
    if wanted < 7:
        assert await received("workers", 7 - wanted) == list(range(wanted, 7))


async def test_consumer_begins_after_expired_messages(nc, limited, channel, move):
    """The durable's unacknowledged messages have expired."""
    async with await stan.connect(nc, limited.cluster, "reader") as connection:
        await fill(connection, channel, [b"1", b"2"])
        async with await connection.subscribe(channel, start=Start.first(), durable="d") as subscription:
            for _ in range(2):
                await asyncio.wait_for(subscription.__anext__(), 60)
        await fill(connection, channel, [b"%d" % number for number in range(3, 8)])
    migrated = await move(
        monitor=Monitor(limited.monitor), durables={"c": Durable("d", client_id="reader")}, timeout=1.0
    )
    assert (migrated.expired, migrated.stored, migrated.consumers) == (4, 3, {"c": 1})


async def test_existing_consumer_is_not_moved(connection, channel, take, move):
    """The durable has moved since the consumer was created."""
    await fill(connection, channel, [b"1", b"2", b"3"])
    durables = {"c": Durable("d", client_id=connection.client_id)}
    async with await connection.subscribe(channel, start=Start.first(), durable="d", max_in_flight=1) as subscription:
        await take(subscription, 3)
    await move(durables=durables)
    await fill(connection, channel, [b"4"])
    async with await connection.subscribe(channel, durable="d", max_in_flight=1) as subscription:
        await take(subscription, 1)
    with pytest.raises(DeliveryError, match=r"^request-refused: .*start sequence can not be updated"):
        await move(durables=durables)


# --- Refusals ---------------------------------------------------------------------------------------------------------


async def test_missing_channel_is_an_error_and_is_not_created(channel, move):
    for _ in range(2):
        with pytest.raises(DeliveryError, match=rf"^stream-not-found: the streaming server has no channel '{channel}'"):
            await move()


async def test_missing_durable_is_an_error(connection, channel, move):
    await connection.publish_data(b"1", channel)
    for durable, text in [(Durable("d", client_id="me"), "d of client me"), (Durable("d", queue="q"), "queue group q")]:
        with pytest.raises(DeliveryError, match=rf"^consumer-not-found: .*has no durable .*{text}"):
            await move(durables={"c": durable})


async def test_durable_in_use_is_an_error(connection, channel, move, stored):
    await connection.publish_data(b"1", channel)
    async with await connection.subscribe(channel, durable="d"):
        with pytest.raises(
            DeliveryError,
            match=r"^consumer-in-use: .*durable d of client .* must have no client subscribed: stop it first",
        ):
            await move(durables={"c": Durable("d", client_id=connection.client_id)})
    assert await stored() == []


async def test_unsuitable_stream_is_an_error(connection, channel, js, stream, nc, monitor):
    await connection.publish_data(b"1", channel)
    with pytest.raises(DeliveryError, match="there is no stream none"):
        await migrate(nc, js, channel, "none", monitor=monitor)
    with pytest.raises(
        DeliveryError, match=rf"^incompatible-config: .* must listen on elsewhere, got {channel}, {channel}.>"
    ):
        await migrate(nc, js, channel, stream, monitor=monitor, subject="elsewhere")
    await js.add_stream(name="WORK", subjects=["work"], retention="workqueue")
    with pytest.raises(DeliveryError, match=r"^incompatible-config: .* must have retention limits, got workqueue"):
        await migrate(nc, js, channel, "WORK", monitor=monitor, subject="work")


async def test_channel_that_was_created_again_is_an_error(nc, executable, server, channel, move):
    """After a restart with a memory store, its sequences begin at 1 again."""
    with StreamingServer(executable, over=server.url, cluster="again") as streaming:
        monitor = Monitor(streaming.monitor)
        async with await stan.connect(nc, "again", "me") as connection:
            await fill(connection, channel, [b"1", b"2"])
        await move(monitor=monitor)
        streaming.restart()
        for payload in (b"a", b"b", b"c"):
            async with await stan.connect(nc, "again", "me") as connection:
                await fill(connection, channel, [payload])
            with pytest.raises(
                DeliveryError,
                match=r"^stream-mismatch: message 2 of channel .* the channel was deleted and created again",
            ):
                await move(monitor=monitor)


async def test_message_that_is_too_large_with_headers_is_named(connection, channel, move, stored):
    await connection.publish_data(b"1", channel)
    await connection.publish_data(b"x" * (2**20 - 200), channel)
    with pytest.raises(EncodeError, match="payload-too-large: message 2 of channel") as caught:
        await move()
    assert caught.value.code == "payload-too-large"


async def test_second_migration_of_a_channel_at_once_is_refused(nc, connection, channel, move):
    await connection.publish_data(b"1", channel)
    async with await stan.connect(nc, CLUSTER, client_id_for(channel)):
        with pytest.raises(stan.StanError, match="clientID already registered"):
            await move()
    assert (await move()).is_complete


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8222", "file:///etc/passwd", "http://", "http://a:b", "http://[", "x://a"]
)
def test_invalid_monitoring_url_is_rejected(url):
    with pytest.raises(EncodeError, match="monitoring must be a URL like"):
        Monitor(url)


async def test_url_that_is_not_monitoring_is_an_error(streaming, server, move):
    with pytest.raises(DeliveryError, match="Connection refused"):
        await move(monitor=Monitor("http://127.0.0.1:1"))
    with pytest.raises(DeliveryError, match=r"must be the monitoring of a streaming server, got another answer"):
        await move(monitor=Monitor(f"{streaming.monitor}/elsewhere"))
    with pytest.raises(DeliveryError, match="monitoring at "):
        await move(
            monitor=Monitor(f"http://127.0.0.1:{server.port}", timeout=1.0)
        )  # the port of nats-server for clients


async def test_monitoring_of_another_server_is_an_error(executable, channel, move):
    with StreamingServer(executable, cluster="elsewhere") as streaming:
        async with await nats.connect(streaming.url) as nc, await stan.connect(nc, "elsewhere", "me") as connection:
            await connection.publish_data(b"1", channel)
        with pytest.raises(stan.StanError, match="possibly wrong cluster ID"):
            await move(monitor=Monitor(streaming.monitor))
