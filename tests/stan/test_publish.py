import asyncio
import json

import nats
import pytest

from ce_nats import EncodeError, ErrorCode, SubjectTemplate, stan
from ce_nats.aio import DeliveryError, PublishError
from ce_nats.stan import Start
from ce_nats.stan.wire import PubAck
from ce_nats.testing import NatsServer
from tests.support.streaming import CLUSTER, StreamingServer, one
from tests.support.waiting import until


async def test_events_are_received_unchanged(connection, channel, make_event):
    sent = [make_event(1, {"total": 12.5}), make_event(2, "naïve", datacontenttype="text/plain"), make_event(3, b"\0")]
    guids = [await connection.publish(event, channel) for event in sent]
    assert len(set(guids)) == 3
    async with await connection.subscribe(channel, start=Start.first()) as subscription:
        for wanted in sent:
            item = await one(subscription)
            async with item as event:
                assert event.get_id() == wanted.get_id()
                assert event.get_data() == wanted.get_data()
            assert item.is_settled


async def test_heartbeats_of_other_clients_are_not_answered_on_api_subjects(nc, connection):
    """The connect request, which others may see, contains the inbox. Heartbeats with an inbox are answered."""
    inbox = connection._session._inboxes[0].subject
    requests = await nc.subscribe("$JS.API.STREAM.PURGE.X")
    answer = nc.new_inbox()
    answers = await nc.subscribe(answer)
    await nc.publish(inbox, b"", reply="$JS.API.STREAM.PURGE.X")
    await nc.publish(inbox, b"", reply=answer)
    await answers.next_msg(timeout=30)
    assert requests.pending_msgs == 0


async def test_channel_may_be_a_template(connection, channel, make_event, take):
    await connection.publish(make_event(1), SubjectTemplate(channel + ".{type}"))
    async with await connection.subscribe(f"{channel}.com%2Eexample%2Etest", start=Start.last()) as subscription:
        assert len(await take(subscription, 1)) == 1


async def test_many_events_are_stored_in_order(connection, channel, make_event, take):
    futures = [await connection.publish_async(make_event(number), channel) for number in range(500)]
    await connection.flush()
    assert len({future.result() for future in futures}) == 500
    async with await connection.subscribe(channel, start=Start.first(), max_in_flight=7) as subscription:
        assert [one.sequence for one in await take(subscription, 500)] == list(range(1, 501))


async def test_publishing_waits_for_room_in_the_window(nc, client_id, channel, make_event):
    async with await stan.connect(nc, CLUSTER, client_id, window=3) as connection:
        futures = []
        highest = 0
        for number in range(50):
            futures.append(await connection.publish_async(make_event(number), channel))
            highest = max(highest, sum(not future.done() for future in futures))
        assert highest == 3
    assert all(future.done() for future in futures)


async def test_end_of_the_block_waits_for_acknowledgements_after_an_exception(nc, client_id, channel, make_event):

    async def fail():
        async with await stan.connect(nc, CLUSTER, client_id) as connection:
            futures.append(await connection.publish_async(make_event(1), channel))
            1 / 0  # noqa: B018

    futures = []
    with pytest.raises(ZeroDivisionError):
        await fail()
    assert futures[0].result()


BAD_CHANNELS = [
    "",
    ".a",
    "a.",
    "a..b",
    "a b",
    "a\tb",
    "a\r\nPUB x 0",
    "*",
    "a.>",
    "a*b",
    "a/b",
    "\ud800",
    None,
    5,
]


@pytest.mark.parametrize("name", [*BAD_CHANNELS, "x" * 4000])
async def test_invalid_channels_are_rejected(connection, make_event, name):
    """ST-PUB-02: before a request, which the server would refuse or not answer."""
    with pytest.raises(EncodeError) as caught:
        await asyncio.wait_for(connection.publish_data(b"", name), 20)
    assert caught.value.code == "invalid-subject"


@pytest.mark.parametrize("name", ["a", "A.b-c_d", "ü.€", "a:b", "_", "$a"])
async def test_valid_channels_are_accepted(connection, channel, name, take):
    name = f"{channel}.{name}"
    await connection.publish_data(b"data", name)
    async with await connection.subscribe(name, start=Start.first()) as subscription:
        assert [one.data for one in await take(subscription, 1)] == [b"data"]


async def test_invalid_names_are_rejected(nc, connection, channel):
    """ST-CON-02, ST-SUB-08: before a request."""
    for name in ("", "a.b", "a b", "é", "a\n", None):
        with pytest.raises(EncodeError, match="client id"):
            await stan.connect(nc, CLUSTER, name)
    for name in ("test cluster", "", None):
        with pytest.raises(EncodeError):
            await stan.connect(nc, name, "client")
    with pytest.raises(EncodeError, match="colon"):
        await connection.subscribe(channel, queue="workers", durable="a:b")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("window", 0), ("window", 1.5), ("window", "1"), ("window", True)],
        *[("ping_interval", 0), ("ping_interval", None), ("ping_max_out", 1), ("ping_max_out", 2.5)],
        *[("timeout", -1), ("timeout", 0), ("timeout", float("nan")), ("timeout", float("inf")), ("timeout", "2")],
        *[("ack_timeout", 0), ("ack_timeout", -1.5), ("ack_timeout", None), ("ack_timeout", True)],
        ("discover_prefix", None),
    ],
)
async def test_invalid_options_are_rejected_by_name(nc, name, value):
    with pytest.raises(EncodeError, match=f"{name} must be a") as caught:
        await stan.connect(nc, CLUSTER, "client", **{name: value})
    assert caught.value.code == "invalid-message"


async def test_numbers_out_of_range_for_the_protocol_are_rejected(nc):
    with pytest.raises(EncodeError, match="pingInterval") as caught:
        await stan.connect(nc, CLUSTER, "client", ping_interval=2**31)
    assert caught.value.code == "integer-out-of-range"


async def test_too_large_message_is_rejected(nc, connection, channel, take):
    """The largest message that fits is stored, and one byte more is not sent."""
    overhead = len(connection.client_id) + len(channel) + 2 * 22
    overhead += 2 * 4 + 4  # tags and lengths; the length of the data takes three bytes
    fits = b"x" * (nc.max_payload - overhead)
    await connection.publish_data(fits, channel)
    with pytest.raises(EncodeError) as caught:
        await connection.publish_data(fits + b"x", channel)
    assert caught.value.code == "payload-too-large"
    assert nc.is_connected


async def test_data_of_another_type_is_rejected(connection, channel):
    with pytest.raises(EncodeError) as caught:
        await connection.publish_data("text", channel)
    assert caught.value.code == "invalid-message"


async def test_invalid_event_is_rejected(connection, channel, make_event):
    with pytest.raises(EncodeError):
        await connection.publish(make_event(1, {1, 2}), channel)


async def test_refusal_is_raised_with_its_text(executable, client_id, channel, make_event):
    """ST-PUB-04: by ``publish()``, and by ``flush()`` after ``publish_async()``."""
    with StreamingServer(executable, "-mc", "1") as server:
        nc = await nats.connect(server.url)
        async with await stan.connect(nc, CLUSTER, client_id) as connection:
            await connection.publish(make_event(1), channel)
            with pytest.raises(stan.StanError) as caught:
                await connection.publish(make_event(2), f"{channel}.other")
            assert (caught.value.code, caught.value.text) == (ErrorCode.PUBLISH_REFUSED, "too many channels")
            with pytest.raises(stan.StanError, match="different cases not allowed"):
                await connection.publish(make_event(3), channel.upper())
            events = [make_event(4), make_event(5), make_event(6)]
            for event, name in zip(events, (f"{channel}.b", channel, f"{channel}.c")):
                await connection.publish_async(event, name)
            with pytest.raises(PublishError, match=r"too many channels; event with id .* \(and 1 more\)") as failed:
                await connection.flush()
            assert [failure.event for failure in failed.value.failures] == [events[0], events[2]]
            await connection.flush()
        await nc.close()


async def test_end_of_the_block_raises_failures(executable, client_id, channel, make_event):
    with StreamingServer(executable, "-mc", "1") as server:
        nc = await nats.connect(server.url)
        connection = await stan.connect(nc, CLUSTER, client_id)
        await connection.publish_async(make_event(1), channel)
        await connection.publish_async(make_event(2), f"{channel}.other")
        with pytest.raises(PublishError):
            await connection.__aexit__(None, None, None)
        await nc.close()


async def test_missing_acknowledgement_is_raised(own, client_id, channel, make_event):
    """ST-PUB-05: the server is silent, or does not run."""
    nc = await nats.connect(own.url)
    connection = await stan.connect(nc, CLUSTER, client_id, ack_timeout=0.5, window=1)
    own.pause()
    first = await connection.publish_async(make_event(1), channel)
    second = await connection.publish_async(make_event(2), channel)  # when the first one has timed out
    with pytest.raises(stan.StanError) as caught:
        await first
    assert (caught.value.code, caught.value.text) == ("timeout", "stan: publish ack timeout")
    with pytest.raises(PublishError) as failed:
        await connection.flush()
    assert len(failed.value.failures) == 2
    assert second.done()
    own.kill()
    await until_no_responders(nc)
    with pytest.raises(stan.StanError) as caught:
        await connection.publish(make_event(3), channel)
    assert caught.value.code == "no-responders"
    with pytest.raises(stan.StanError, match="close request timeout"):
        await connection.close()
    await connection.close()
    await nc.close()


async def test_invalid_acknowledgements_are_ignored(own, client_id, channel, make_event, caplog):
    """An empty message, garbage, and the acknowledgement of another message."""
    nc = await nats.connect(own.url)
    published = await nc.subscribe("_STAN.pub.>")
    connection = await stan.connect(nc, CLUSTER, client_id)
    own.pause()
    future = await connection.publish_async(make_event(1), channel)
    reply = (await published.next_msg()).reply
    for payload in (b"", b"\x08", PubAck("other").encode()):
        await nc.publish(reply, payload)
    await until(lambda: len(caplog.records) == 3)
    assert not future.done()
    own.resume()
    assert await future
    await connection.close()
    await nc.close()


async def until_no_responders(nc):
    """Wait until the nats-server has removed the subscriptions of the streaming server."""
    for _ in range(600):
        try:
            await nc.request(f"_STAN.discover.{CLUSTER}", timeout=0.1)
        except nats.errors.NoRespondersError:
            return
        except nats.errors.TimeoutError:
            continue
    pytest.fail("the streaming server must have no subscriptions")


async def test_closed_connection_raises(nc, client_id, channel, make_event):
    connection = await stan.connect(nc, CLUSTER, client_id)
    subscription = await connection.subscribe(channel)
    await connection.close()
    await connection.close()
    with pytest.raises(stan.StanError, match="stan: connection closed"):
        await connection.publish(make_event(1), channel)
    with pytest.raises(stan.StanError, match="stan: connection closed"):
        await connection.subscribe(channel)
    assert [item async for item in subscription] == []
    assert nc.is_connected


async def test_closing_fails_unacknowledged_events(own, client_id, channel, make_event):
    nc = await nats.connect(own.url)
    connection = await stan.connect(nc, CLUSTER, client_id, timeout=0.2)
    own.pause()
    future = await connection.publish_async(make_event(1), channel)
    with pytest.raises(stan.StanError, match="stan: close request timeout"):
        await connection.close()
    with pytest.raises(stan.StanError, match="stan: connection closed"):
        await future
    assert [failure.error.code for failure in connection.failures] == ["timeout"]
    await nc.close()


async def test_closed_nats_connection_fails_all_operations(streaming, client_id, channel, make_event):
    """``on_lost`` is called once."""
    lost = []
    nc = await nats.connect(streaming.url)
    connection = await stan.connect(nc, CLUSTER, client_id, on_lost=lost.append, reconnect=True)
    subscription = await connection.subscribe(channel)
    await nc.close()
    with pytest.raises(stan.StanError, match="stan: the NATS connection was closed"):
        await one(subscription)
    with pytest.raises(DeliveryError):
        await connection.publish(make_event(1), channel)
    assert [error.text for error in lost] == ["stan: the NATS connection was closed"]
    assert isinstance(connection.error, stan.StanError)
    with pytest.raises(DeliveryError, match="NATS connection was closed"):
        await connection.close()
    await connection.close()
    with pytest.raises(DeliveryError):
        await stan.connect(nc, CLUSTER, client_id)


@pytest.mark.parametrize("is_detected", [False, True])
async def test_closing_after_the_nats_connection_raises(streaming, client_id, is_detected):
    """The server could not be notified."""
    nc = await nats.connect(streaming.url)
    connection = await stan.connect(nc, CLUSTER, client_id)
    await nc.close()
    if is_detected:
        await until(lambda: connection.error is not None)
    with pytest.raises(DeliveryError, match="connection-closed: the NATS connection was closed"):
        await connection.close()
    await connection.close()


@pytest.mark.parametrize(
    ("denied", "words"),
    [
        ({"publish": {"deny": ["_STAN.discover.>"]}}, "publish to '_STAN.discover."),
        ({"subscribe": {"deny": ["_INBOX.>"]}}, "subscribe to '_INBOX."),
        ({"publish": {"deny": ["_STAN.pub.>"]}}, "publish to '_STAN.pub."),
        ({"subscribe": {"deny": ["_STAN.acks.>"]}}, "subscribe to '_STAN.acks."),
    ],
)
async def test_denied_permissions_are_raised_without_a_timeout(executable, make_event, denied, words):

    async def work():
        connection = await stan.connect(nc, CLUSTER, "denied", timeout=60, ack_timeout=60)
        await connection.publish(make_event(1), "orders")

    users = [{"user": "all", "password": "p"}, {"user": "some", "password": "p", "permissions": denied}]
    around = NatsServer(config=f"authorization: {json.dumps({'users': users})}")
    with around as server, StreamingServer(executable, over=server.url.replace("//", "//all:p@")):
        async with await nats.connect(server.url, user="some", password="p") as nc:
            with pytest.raises(DeliveryError) as caught:
                await asyncio.wait_for(work(), 30)
    assert caught.value.code == "permission-denied"
    assert words.lower() in str(caught.value).lower()
