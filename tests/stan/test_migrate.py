"""Channels of a real streaming server, in streams of a real nats-server."""

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
    """Over the nats-server that has the streams, in place of the one that most tests here use."""
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


async def test_byte_for_byte(connection, channel, move, stored):
    """Payloads as they were, events or not; headers say where they come from, and what is an event."""
    strange = event(2, subject="Zoë € 😀").replace(b",", b" ,\n")
    payloads = [event(1, data={"a": 1}), b"no event", b"", strange, bytes(range(256)), b'{"specversion":"1.0"}']
    await fill(connection, channel, payloads)
    async with await connection.subscribe(channel, start=Start.first()) as subscription:
        times = [(await subscription.__anext__()).message.timestamp for _ in payloads]
    told = []
    migrated = await move(on_progress=lambda *counts: told.append(counts))
    assert migrated.is_complete
    assert migrated == MigrationResult(channel, migrated.stream, messages=6, stored=6, copied=6, events=2)
    assert told == [(number, 6) for number in range(1, 7)]
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


async def test_goes_on(connection, channel, move, stored):
    """A second run copies what is new, a third one nothing."""
    await fill(connection, channel, [event(1), b"x"])
    assert (await move()).copied == 2
    await fill(connection, channel, [event(3), event(4)])
    second = await move()
    assert (second.messages, second.stored, second.copied, second.is_complete) == (4, 4, 2, True)
    third = await move()
    assert (third.messages, third.stored, third.copied, third.is_complete) == (4, 4, 0, True)
    assert [message.data for message in await stored()] == [event(1), b"x", event(3), event(4)]


async def test_more_than_windows_and_batches(connection, channel, move, stored):
    payloads = [event(number) for number in range(3000)]
    sent = await asyncio.gather(*(connection._send(payload, channel) for payload in payloads))
    await asyncio.gather(*sent)
    assert (await move()).is_complete
    assert [message.data for message in await stored()] == payloads


async def test_duplicates_are_kept(connection, channel, move, stored):
    """Source and id make no difference to NATS Streaming; JetStream would drop the second, of this run or the last."""
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


async def test_an_event_that_was_published_already(connection, channel, js, make_event, move, stored):
    """The stream has it from somewhere else, or had it: the channel's own comes all the same."""
    await publish(js, make_event(1), f"{channel}.new")
    await connection.publish(make_event(1), channel)
    migrated = await move()
    assert (migrated.stored, migrated.duplicates, migrated.is_complete) == (1, 1, True)
    await js.purge_stream(channel.replace(".", "_"))
    # The stream remembers all ids, and no messages.
    migrated = await move()
    assert (migrated.stored, migrated.copied, migrated.is_complete) == (1, 1, True)
    assert len(await stored()) == 1


async def test_what_the_stream_lost(connection, channel, js, stream, move, stored):
    """A message in the middle that is missing is copied again, and no other."""
    await fill(connection, channel, [b"%d" % number for number in range(5)])
    await move()
    await js.delete_msg(stream, 2)
    migrated = await move()
    assert (migrated.copied, migrated.stored, migrated.is_complete) == (1, 5, True)
    assert sorted(message.data for message in await stored()) == [b"%d" % number for number in range(5)]


async def test_two_channels_in_a_stream(connection, channel, nc, js, stream, monitor, move, stored):
    other = f"{channel}.other"
    await fill(connection, channel, [b"1", b"2"])
    await fill(connection, other, [b"a"])
    assert (await move()).is_complete
    assert (await migrate(nc, js, other, stream, monitor=monitor, subject=f"{channel}.b")).is_complete
    assert [(message.subject, message.data) for message in await stored()] == [
        *((channel, b"1"), (channel, b"2"), (f"{channel}.b", b"a"))
    ]
    assert (await move()).copied == 0


async def test_a_message_twice_in_the_stream(connection, channel, js, move):
    """It is told, and not complete. Numbers that are none are no number of the channel's."""
    await fill(connection, channel, [b"1", b"2"])
    await move()
    for text in ("", "0", "-2", "two", "9" * 5000, "²"):
        await js.publish(channel, b"2", headers={CHANNEL: channel, SEQUENCE: text or " "})
    assert (await move()).is_complete
    again = {CHANNEL: channel, SEQUENCE: "2", TIMESTAMP: "2020-01-01T00:00:00Z"}
    await js.publish(channel, b"2", headers=again)
    migrated = await move()
    assert (migrated.stored, migrated.repeated, migrated.is_complete) == (2, 1, False)


async def test_a_stream_that_keeps_too_little(connection, channel, js, stream, move):
    """What it acknowledged and gave up at once does not count, and there are no consumers."""
    await fill(connection, channel, [b"%d" % number for number in range(6)])
    await (await connection.subscribe(channel, durable="d")).close()
    await js.update_stream(name=stream, subjects=[channel, f"{channel}.>"], storage="memory", max_msgs=4)
    migrated = await move(durables={"c": Durable("d", client_id=connection.client_id)})
    assert (migrated.messages, migrated.stored, migrated.is_complete) == (6, 4, False)
    assert migrated.consumers == {}


async def test_streams_of_stan2js(connection, channel, js, stream, move, stored):
    """Its headers are those, and no Content-Type; what is there is an event to every reader, and not copied again."""
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
def forgetful(executable, server):
    """A streaming server that keeps three messages of a channel."""
    with StreamingServer(executable, "-mm", "3", over=server.url, cluster="forgetful") as streaming:
        yield streaming


async def test_expired_messages(nc, forgetful, channel, move):
    """Those that are gone before, and those that go while they are copied, are told."""
    async with await stan.connect(nc, forgetful.cluster, "sender") as connection:
        await fill(connection, channel, [b"%d" % number for number in range(1, 6)])
        migrated = await move(monitor=Monitor(forgetful.monitor))
        assert (migrated.expired, migrated.messages, migrated.stored, migrated.gaps) == (2, 3, 3, [])
        await fill(connection, channel, [b"6", b"7"])

        class Late(Monitor):
            """Two are published between the question and what follows."""

            async def channel(self, name):
                state = await super().channel(name)
                await fill(connection, channel, [b"8", b"9"])
                return state

        migrated = await move(monitor=Late(forgetful.monitor))
        assert (migrated.gaps, migrated.messages, migrated.stored) == ([(6, 6)], 2, 2)
        assert migrated.expired == 2
        assert migrated.is_complete


async def test_messages_that_expire_meanwhile(nc, executable, server, channel, move, stored):
    """Nothing comes of a channel that is empty by now; what it had is told."""

    class Late(Monitor):
        """The first answer comes when the messages that it tells of are gone."""

        async def channel(self, name):
            state = await super().channel(name)
            for _ in range(500):
                if not (await super().channel(name)).messages:
                    return state
                await asyncio.sleep(0.01)
            return pytest.fail("they stay")

    with StreamingServer(executable, "-ma", "1s", over=server.url, cluster="brief") as streaming:
        async with await stan.connect(nc, "brief", "me") as connection:
            await asyncio.gather(*[await connection._send(b"", channel) for _ in range(3)])
        migrated = await move(monitor=Late(streaming.monitor), timeout=0.5)
    assert (migrated.messages, migrated.stored, migrated.copied, migrated.gaps) == (0, 0, 0, [(1, 3)])
    assert migrated.is_complete


async def test_messages_that_do_not_come(connection, channel, streaming, move):
    """The server has them, as monitoring says, and is silent: that has an end."""

    class Mistaken(Monitor):
        async def channel(self, name):
            state = await super().channel(name)
            return replace(state, messages=state.messages + 1, last=state.last + 1)

    await connection.publish_data(b"1", channel)
    with pytest.raises(DeliveryError, match="has messages up to 2, but none comes after 1"):
        await move(monitor=Mistaken(streaming.monitor), timeout=0.1)


@given(st.sets(st.integers(1, 60)))
def test_ranges(numbers):
    """They hold the same numbers, and do not touch."""
    found = ranges(sorted(numbers))
    assert [number for first, last in found for number in range(first, last + 1)] == sorted(numbers)
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(found))


async def test_an_empty_channel(connection, channel, move, stored):
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
    """The channel's sequences that a consumer gets."""

    async def received(consumer, count):
        subscription = await js.pull_subscribe_bind(consumer, stream=stream)
        seen = []
        for _ in range(count):  # one by one: the consumer has no more under way than the durable had
            [message] = await subscription.fetch(1, timeout=60)
            seen.append(int(message.headers[SEQUENCE]))
            await message.ack()
        return seen

    return received


@pytest.mark.parametrize(
    ("delivered", "acknowledged", "first"),
    [(3, [1, 2, 3], 4), (4, [1, 3, 4], 2), (4, [1], 2), (0, [], 1), (6, [1, 2, 3, 4, 5, 6], 7)],
    ids=["in order", "one left out", "all but one", "nothing", "all"],
)
async def test_a_durable(nc, js, client_id, channel, take, move, stream, received, delivered, acknowledged, first):
    """Its consumer begins at the first message without an acknowledgement, and the durable stays where it was."""
    async with await stan.connect(nc, CLUSTER, client_id) as connection:
        await fill(connection, channel, [event(number) for number in range(1, 7)])
        async with await connection.subscribe(
            channel, start=Start.first(), durable="d", max_in_flight=delivered or 1, ack_wait=45
        ) as subscription:
            for _ in range(delivered):
                item = await asyncio.wait_for(subscription.__anext__(), 60)
                if item.message.sequence in acknowledged:
                    await item.ack()
            if not delivered:  # what is on its way to nobody is not acknowledged either
                await asyncio.wait_for(subscription.__anext__(), 60)
    await js.publish(f"{channel}.before", b"")  # stream sequences are others than those of the channel
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


async def test_a_consumer_that_is_made_later(connection, channel, js, take, move):
    """The channel was copied, and its publishers have gone over: what they publish there is not passed over."""
    await fill(connection, channel, [b"1", b"2"])
    async with await connection.subscribe(channel, start=Start.first(), durable="d", max_in_flight=1) as subscription:
        await take(subscription, 2)
    await move()
    await js.publish(channel, b"3")
    migrated = await move(durables={"c": Durable("d", client_id=connection.client_id)})
    assert migrated.consumers == {"c": 3}


@pytest.mark.parametrize("acknowledged", [[1, 2, 3, 4, 5, 6], [1, 2, 4, 6], []], ids=str)
async def test_a_durable_queue_group(nc, channel, move, received, acknowledged):
    """Members come and go; what they leave without an acknowledgement is where the consumer begins."""
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


async def test_a_durable_whose_messages_expired(nc, forgetful, channel, move):
    """Those that it did not acknowledge are gone: it begins with what is left."""
    async with await stan.connect(nc, forgetful.cluster, "reader") as connection:
        await fill(connection, channel, [b"1", b"2"])
        async with await connection.subscribe(channel, start=Start.first(), durable="d") as subscription:
            for _ in range(2):
                await asyncio.wait_for(subscription.__anext__(), 60)
        await fill(connection, channel, [b"%d" % number for number in range(3, 8)])
    migrated = await move(
        monitor=Monitor(forgetful.monitor), durables={"c": Durable("d", client_id="reader")}, timeout=1.0
    )
    assert (migrated.expired, migrated.stored, migrated.consumers) == (4, 3, {"c": 1})


async def test_a_durable_that_moved_on(connection, channel, take, move):
    """Its consumer stays as it is: nothing may be moved under those who use it."""
    await fill(connection, channel, [b"1", b"2", b"3"])
    durables = {"c": Durable("d", client_id=connection.client_id)}
    async with await connection.subscribe(channel, start=Start.first(), durable="d", max_in_flight=1) as subscription:
        await take(subscription, 3)
    await move(durables=durables)
    await fill(connection, channel, [b"4"])
    async with await connection.subscribe(channel, durable="d", max_in_flight=1) as subscription:
        await take(subscription, 1)
    with pytest.raises(DeliveryError, match="start sequence can not be updated"):
        await move(durables=durables)


# --- Refusals ---------------------------------------------------------------------------------------------------------


async def test_no_such_channel(channel, move):
    """It is refused, and does not come into being."""
    for _ in range(2):
        with pytest.raises(DeliveryError, match=rf"^stream-not-found: the streaming server has no channel '{channel}'"):
            await move()


async def test_no_such_durable(connection, channel, move):
    await connection.publish_data(b"1", channel)
    for durable, text in [(Durable("d", client_id="me"), "d of client me"), (Durable("d", queue="q"), "queue group q")]:
        with pytest.raises(DeliveryError, match=rf"^consumer-not-found: .*has no durable .*{text}"):
            await move(durables={"c": durable})


async def test_a_durable_in_use(connection, channel, move, stored):
    await connection.publish_data(b"1", channel)
    async with await connection.subscribe(channel, durable="d"):
        with pytest.raises(
            DeliveryError,
            match=r"^consumer-in-use: .*durable d of client .* must have no client subscribed: stop it first",
        ):
            await move(durables={"c": Durable("d", client_id=connection.client_id)})
    assert await stored() == []


async def test_streams_that_will_not_do(connection, channel, js, stream, nc, monitor):
    await connection.publish_data(b"1", channel)
    with pytest.raises(DeliveryError, match="there is no stream none"):
        await migrate(nc, js, channel, "none", monitor=monitor)
    with pytest.raises(
        DeliveryError, match=rf"^incompatible-config: .* listens on {channel}, {channel}.>, not on elsewhere"
    ):
        await migrate(nc, js, channel, stream, monitor=monitor, subject="elsewhere")
    await js.add_stream(name="WORK", subjects=["work"], retention="workqueue")
    with pytest.raises(DeliveryError, match=r"^incompatible-config: .* must have retention limits, got workqueue"):
        await migrate(nc, js, channel, "WORK", monitor=monitor, subject="work")


async def test_a_channel_that_was_made_again(nc, executable, server, channel, move):
    """A streaming server that keeps nothing over a restart numbers from 1 again."""
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


async def test_a_message_that_is_too_large(connection, channel, move, stored):
    """It fitted without headers. What is before it is copied, and the message says which it is."""
    await connection.publish_data(b"1", channel)
    await connection.publish_data(b"x" * (2**20 - 200), channel)
    with pytest.raises(EncodeError, match="payload-too-large: message 2 of channel") as caught:
        await move()
    assert caught.value.code == "payload-too-large"


async def test_one_at_a_time(nc, connection, channel, move):
    """Whoever migrates a channel has its name to itself."""
    await connection.publish_data(b"1", channel)
    async with await stan.connect(nc, CLUSTER, client_id_for(channel)):
        with pytest.raises(stan.StanError, match="clientID already registered"):
            await move()
    assert (await move()).is_complete


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8222", "file:///etc/passwd", "http://", "http://a:b", "http://[", "x://a"]
)
def test_monitoring_urls(url):
    with pytest.raises(EncodeError, match="monitoring must be a URL like"):
        Monitor(url)


async def test_what_is_no_monitoring(streaming, server, move):
    with pytest.raises(DeliveryError, match="Connection refused"):
        await move(monitor=Monitor("http://127.0.0.1:1"))
    with pytest.raises(DeliveryError, match=r"is not that of a streaming server"):
        await move(monitor=Monitor(f"{streaming.monitor}/elsewhere"))
    with pytest.raises(DeliveryError, match="monitoring at "):
        await move(monitor=Monitor(f"http://127.0.0.1:{server.port}", timeout=1.0))  # NATS itself speaks no HTTP


async def test_a_cluster_that_nats_does_not_have(executable, channel, move):
    """Monitoring of one server, and NATS of another."""
    with StreamingServer(executable, cluster="elsewhere") as streaming:
        async with await nats.connect(streaming.url) as nc, await stan.connect(nc, "elsewhere", "me") as connection:
            await connection.publish_data(b"1", channel)
        with pytest.raises(stan.StanError, match="possibly wrong cluster ID"):
            await move(monitor=Monitor(streaming.monitor))
