import asyncio
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import nats
import pytest

from ce_nats import DecodeError, EncodeError, stan
from ce_nats.stan import Start
from ce_nats.stan.wire import ConnectResponse, MsgProto, StartPosition, SubscriptionRequest, UnsubscribeRequest
from tests.support.streaming import CLUSTER, StreamingServer, one, until_pending
from tests.support.waiting import until


async def fill(connection, channel, count, first=1):
    for number in range(first, first + count):
        await connection.publish_data(b"%d" % number, channel)


async def sequences(take, subscription, count, **options):
    return [one.sequence for one in await take(subscription, count, **options)]


async def expect_no_message(subscription, seconds=0.2):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(subscription.__anext__(), seconds)


# --- Start of a subscription ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        (Start.new(), [4]),
        (Start.last(), [3, 4]),
        (Start.first(), [1, 2, 3, 4]),
        (Start.at_sequence(2), [2, 3, 4]),
        (Start.at_sequence(0), [1, 2, 3, 4]),
        (Start.at_sequence(99), [4]),
        (Start.ago(timedelta(hours=1)), [1, 2, 3, 4]),
        (Start.at_time(datetime(2020, 1, 1, tzinfo=timezone.utc)), [1, 2, 3, 4]),
        (Start.at_time(datetime(2120, 1, 1, tzinfo=timezone.utc)), [4]),
    ],
    ids=str,
)
async def test_subscription_begins_at_its_start(connection, channel, take, start, wanted):
    """ST-SUB-02, ST-SUB-03, ST-SUB-04, ST-SUB-05, ST-SUB-06"""
    await fill(connection, channel, 3)
    async with await connection.subscribe(channel, start=start) as subscription:
        await fill(connection, channel, 1, first=4)
        assert await sequences(take, subscription, len(wanted)) == wanted
        await expect_no_message(subscription, 0.05)


async def test_start_time_has_fractions_of_a_second(connection, channel, take):
    """ST-SUB-05"""
    await fill(connection, channel, 2)
    await asyncio.sleep(0.15)  # time itself is tested: Start.ago() is later by as long as the request takes
    between = datetime.now(timezone(timedelta(hours=5)))
    await asyncio.sleep(0.15)
    await fill(connection, channel, 2, first=3)
    for start in (Start.at_time(between), Start.ago(datetime.now(timezone.utc) - between)):
        async with await connection.subscribe(channel, start=start) as subscription:
            assert await sequences(take, subscription, 2) == [3, 4]


async def test_start_time_must_have_a_time_zone():
    with pytest.raises(EncodeError, match="must be timezone-aware"):
        Start.at_time(datetime(2020, 1, 1))


@pytest.mark.parametrize(
    "start",
    [
        lambda: Start.at_time("2020-01-01T00:00:00Z"),
        lambda: Start.at_time(None),
        lambda: Start.ago(5),
        lambda: Start("first"),
        lambda: Start(StartPosition.TIME_DELTA_START),
    ],
)
async def test_start_with_values_of_other_types_is_rejected(start):
    with pytest.raises(EncodeError, match="must be a") as caught:
        start()
    assert caught.value.code == "invalid-message"


@pytest.mark.parametrize("start", ["first", None, 4, StartPosition.FIRST, Start])
async def test_start_of_another_type_is_rejected(connection, channel, start):
    with pytest.raises(EncodeError, match=r"start must be a Start, such as Start.first\(\), got") as caught:
        await connection.subscribe(channel, start=start)
    assert caught.value.code == "invalid-message"


@pytest.mark.parametrize(
    ("sequence", "code"), [(-1, "integer-out-of-range"), (2**64, "integer-out-of-range"), ("7", "invalid-message")]
)
async def test_sequence_out_of_range_for_the_protocol_is_rejected(connection, channel, sequence, code):
    with pytest.raises(EncodeError, match="startSequence") as caught:
        await connection.subscribe(channel, start=Start.at_sequence(sequence))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_in_flight", 0), ("max_in_flight", "9"), ("ack_wait", 0), ("ack_wait", 1.5), ("ack_wait", None)],
        *[("queue", None), ("durable", b"d")],
    ],
)
async def test_invalid_options_are_rejected_by_name(connection, channel, name, value):
    with pytest.raises(EncodeError, match=f"{name} must be a") as caught:
        await connection.subscribe(channel, **{name: value})
    assert caught.value.code == "invalid-message"


# --- Acknowledgements -----------------------------------------------------------------------------------------------


async def test_message_is_redelivered_after_an_exception_in_its_block(connection, channel, make_event, take):
    """ST-ACK-02: with a redelivery count. A message is acknowledged at the end of a block without an exception."""
    for number in (1, 2):
        await connection.publish(make_event(number), channel)
    async with await connection.subscribe(channel, start=Start.first(), ack_wait=1) as subscription:
        with pytest.raises(ZeroDivisionError):
            async with await one(subscription):
                1 / 0  # noqa: B018
        async with await one(subscription) as event:
            assert event.get_id() == "event 2"
        again = await one(subscription)
        assert (again.message.sequence, again.message.redelivered, again.message.redelivery_count) == (1, True, 1)
        assert not again.is_settled
        await again.ack()
        await again.ack()
        await expect_no_message(subscription, 1.2)


async def test_nak_leaves_a_message_unacknowledged(connection, channel, make_event):
    """In a block and outside of it; the end of the block does not acknowledge it."""
    for number in (1, 2):
        await connection.publish(make_event(number), channel)
    async with await connection.subscribe(channel, start=Start.first(), ack_wait=1) as subscription:
        first, second = await one(subscription), await one(subscription)
        async with first as event:
            assert (event.get_id(), first.subject, first.sequence, first.deliveries) == ("event 1", channel, 1, 1)
            await first.nak()
        await second.nak(5)
        again = [await one(subscription), await one(subscription)]
        assert sorted((item.sequence, item.deliveries) for item in again) == [(1, 2), (2, 2)]
        for item in again:
            await item.ack()


async def test_rejected_message_is_logged_and_not_redelivered(connection, channel, make_event, caplog):
    await connection.publish_data(b"no event", channel)
    await connection.publish(make_event(1), channel)
    async with await connection.subscribe(channel, start=Start.first(), ack_wait=1) as subscription:
        item = await one(subscription)
        await item.reject(item.error.code)
        await item.reject("twice")
        await (await one(subscription)).reject("no such customer")
        await expect_no_message(subscription, 1.2)
    assert [record.getMessage() for record in caplog.records] == [
        f"channel {channel}, sequence 1, delivery 1: rejected: invalid-json",
        f"channel {channel}, sequence 2, delivery 1, id 'event 1', source '/tests', type 'com.example.test': rejected: "
        "no such customer",
    ]
    assert vars(caplog.records[1])["cloudevents.event_id"] == "event 1"


async def test_message_that_is_redelivered_while_it_is_held_is_yielded_once(connection, channel, make_event):
    """The redelivery replaces it, whether it is queued or in its block."""
    for number in (1, 2):
        await connection.publish(make_event(number), channel)
    async with await connection.subscribe(channel, start=Start.first(), ack_wait=1) as subscription:
        first = await one(subscription)
        async with first:
            await until(lambda: first.message.redelivered)
            await until(lambda: all(one.redelivered for one in subscription._ready.values()))
            assert list(subscription._ready) == [2]
        second = await one(subscription)
        assert (second.message.sequence, second.message.redelivered) == (2, True)
        await second.ack()
        await expect_no_message(subscription)


async def test_server_waits_for_acknowledgements_after_max_in_flight(connection, channel, take):
    """ST-SUB-07"""
    await fill(connection, channel, 5)
    async with await connection.subscribe(channel, start=Start.first(), max_in_flight=2) as subscription:
        held = [await one(subscription) for _ in range(2)]
        await expect_no_message(subscription)
        await held[0].ack()
        assert (await one(subscription)).message.sequence == 3
        await expect_no_message(subscription)


async def test_message_that_is_not_an_event_is_yielded_with_an_error(connection, channel, make_event):
    """It is redelivered until the caller acknowledges it."""
    await connection.publish_data(b"no event", channel)
    await connection.publish_data(b"", channel)
    await connection.publish(make_event(3), channel)
    async with await connection.subscribe(channel, start=Start.first(), ack_wait=1) as subscription:
        first, second, third = [await one(subscription) for _ in range(3)]
        assert (str(first.error.code), first.message.data) == ("invalid-json", b"no event")
        assert second.error is not None
        assert third.error is None
        with pytest.raises(type(first.error)):
            async with first:
                pytest.fail("there is no event")
        with pytest.raises(type(first.error)):
            first.event  # noqa: B018
        await second.ack()
        async with third:
            pass
        again = await one(subscription)
        assert (again.message.sequence, again.message.redelivery_count) == (1, 1)
        await again.ack()


async def test_options_reach_the_decoder(connection, channel, make_event):
    await connection.publish(make_event(1, {"a": 1}, rank=7), channel)
    options = {"parse_data": False, "extension_types": {"rank": int}}
    async with await connection.subscribe(channel, start=Start.first(), **options) as subscription:
        event = (await one(subscription)).event
        assert (event.get_data(), event.get_attributes()["rank"]) == (b'{"a":1}', 7)


async def test_deliveries_before_the_subscription_response_are_acknowledged(streaming, connection, channel, take):
    """Messages may arrive before the response that has the subject of their acknowledgements."""
    await asyncio.gather(*(connection.publish_data(b"", channel) for _ in range(2000)))
    for number in range(4):
        async with await connection.subscribe(
            channel, start=Start.first(), durable=f"d{number}", max_in_flight=2000, ack_wait=60
        ) as subscription:
            assert sorted(await sequences(take, subscription, 2000)) == list(range(1, 2001))
    await until_pending(streaming, channel, 0)


async def test_malformed_message_on_the_inbox_is_dropped(nc, connection, channel, take, caplog):
    async with await connection.subscribe(channel) as subscription:
        await nc.publish(subscription._inbox.subject, b"\x08")
        await nc.publish(subscription._inbox.subject, MsgProto(7, channel, data=b"good").encode())
        assert await sequences(take, subscription, 1) == [7]
        assert "invalid-protobuf" in caplog.text


# --- Durables and queue groups ----------------------------------------------------------------------------------------


async def test_durable_continues_at_its_position(nc, client_id, channel, take):
    """ST-SUB-09: after the subscription or the connection was closed, and for each start."""
    async with await stan.connect(nc, CLUSTER, client_id) as connection:
        await fill(connection, channel, 4)
        async with await connection.subscribe(
            channel, start=Start.first(), durable="d", max_in_flight=2
        ) as subscription:
            assert await sequences(take, subscription, 2) == [1, 2]
        async with await connection.subscribe(
            channel, start=Start.first(), durable="d", max_in_flight=1
        ) as subscription:
            assert await sequences(take, subscription, 1) == [3]
        await connection.subscribe(channel, durable="d")
    async with await stan.connect(nc, CLUSTER, client_id) as connection:
        async with await connection.subscribe(channel, durable="d") as subscription:
            assert await sequences(take, subscription, 1) == [4]
            await subscription.unsubscribe()
        async with await connection.subscribe(channel, durable="d", start=Start.first()) as subscription:
            assert await sequences(take, subscription, 4) == [1, 2, 3, 4]


async def test_closed_subscription_cannot_be_used(connection, channel, take):
    """ST-END-02: closing it again does nothing, unsubscribing raises, and iterations end."""
    subscription = await connection.subscribe(channel)
    iteration = asyncio.ensure_future(take(subscription, 1))
    await asyncio.sleep(0)
    await subscription.close()
    assert await iteration == []
    await subscription.close()
    assert subscription.is_closed
    with pytest.raises(stan.StanError, match="stan: invalid subscription"):
        await subscription.unsubscribe()
    other = await connection.subscribe(channel)
    await connection.publish_data(b"", channel)
    item = await one(other)
    await other.unsubscribe()
    with pytest.raises(stan.StanError, match="stan: invalid subscription"):
        await item.ack()
    assert connection._subscriptions == []


async def test_durable_in_use_is_refused(connection, channel):
    async with await connection.subscribe(channel, durable="d"):
        with pytest.raises(stan.StanError) as caught:
            await connection.subscribe(channel, durable="d")
        assert (caught.value.code, caught.value.text) == ("request-refused", "stan: duplicate durable registration")


async def test_queue_group_shares_messages(connection, channel):
    """ST-SUB-10: each message is delivered to one member, and redelivered to another when that one is closed."""
    members = [await connection.subscribe(channel, queue="workers", ack_wait=1, max_in_flight=5) for _ in range(2)]
    async with await connection.subscribe(channel, queue="others") as other:
        await fill(connection, channel, 10)
        first = [await one(members[0]) for _ in range(5)]
        seen = [first, [await one(members[1]) for _ in range(5)]]
        numbers = [[item.message.sequence for item in items] for items in seen]
        assert sorted(numbers[0] + numbers[1]) == list(range(1, 11))
        assert [(await one(other)).message.sequence for _ in range(10)] == list(range(1, 11))
        for item in seen[1]:
            await item.ack()
        await members[0].close()
        again = [await one(members[1]) for _ in range(5)]
        assert sorted(item.message.sequence for item in again) == sorted(numbers[0])
        await members[1].close()


async def test_durable_queue_group_continues_with_another_client(nc, connection, client_id, channel, take):
    await fill(connection, channel, 3)
    options = {"queue": "workers", "durable": "d", "start": Start.first()}
    async with await connection.subscribe(channel, max_in_flight=1, **options) as subscription:
        assert await sequences(take, subscription, 1) == [1]
    async with (
        await stan.connect(nc, CLUSTER, f"other-{client_id}") as other,
        await other.subscribe(channel, **options) as subscription,
    ):
        assert await sequences(take, subscription, 2) == [2, 3]


# --- Refusals -------------------------------------------------------------------------------------------------------


async def test_unknown_cluster_has_no_responders(nc, client_id):
    with pytest.raises(stan.StanError, match="possibly wrong cluster ID") as caught:
        await stan.connect(nc, "other-cluster", client_id)
    assert caught.value.code == "no-responders"


SUBJECTS = ConnectResponse(
    *("pub", "sub", "unsub", "close"), sub_close_requests="subclose", ping_requests="pings", ping_interval=5, protocol=1
)


@pytest.mark.parametrize(
    "answer",
    [
        *[b"", b"\x08", b"\x0a\x01 ", b"hello"],
        *[
            replace(SUBJECTS, **{name: value}).encode()
            for name in ("pub_prefix", "sub_requests", "unsub_requests", "close_requests")
            for value in ("", "a b", "a.>")
        ],
        *[
            replace(SUBJECTS, **{name: value}).encode()
            for name in ("sub_close_requests", "ping_requests")
            for value in ("a b", "a.>", "a\r\nPUB b 0\r\n\r\n")
        ],
    ],
)
async def test_answer_of_another_responder_is_rejected(nc, client_id, answer):
    """The answer is not that of a streaming server, or would make the client publish to invalid subjects."""

    async def respond(message):
        await message.respond(answer)

    cluster = f"cluster-{client_id}"
    await nc.subscribe(f"_STAN.discover.{cluster}", cb=respond)
    with pytest.raises(DecodeError):
        await stan.connect(nc, cluster, client_id)


async def test_client_id_in_use_is_refused(nc, client_id):
    """ST-CON-04: as long as its client answers heartbeats."""
    first = await stan.connect(nc, CLUSTER, client_id)
    with pytest.raises(stan.StanError) as caught:
        await stan.connect(nc, CLUSTER, client_id)
    assert caught.value.text == "stan: clientID already registered"
    await first._session.abandon()  # it no longer answers heartbeats
    async with await stan.connect(nc, CLUSTER, client_id):
        with pytest.raises(stan.StanError) as caught:
            await first.publish_data(b"", "channel")
        assert caught.value.text == "stan: invalid publish request"
    with pytest.raises(stan.StanError, match="stan: unknown clientID"):
        await first.close()


async def test_server_refuses_too_many_subscriptions(executable, client_id, channel):
    with StreamingServer(executable, "-msu", "1") as server:
        nc = await nats.connect(server.url)
        async with await stan.connect(nc, CLUSTER, client_id) as connection:
            await connection.subscribe(channel)
            with pytest.raises(stan.StanError, match="too many subscriptions per channel"):
                await connection.subscribe(channel)
        await nc.close()


async def test_subscription_that_timed_out_is_closed_on_the_server(own, client_id, channel):
    """ST-SUB-11: the server may have created it without the answer arriving."""
    nc = await nats.connect(own.url)
    connection = await stan.connect(nc, CLUSTER, client_id, timeout=0.3)
    requests = await nc.subscribe("_STAN.sub.>")
    close_requests = await nc.subscribe("_STAN.subclose.>")
    own.pause()
    with pytest.raises(stan.StanError, match="stan: subscribe request timeout") as caught:
        await connection.subscribe(channel, durable="d")
    assert caught.value.code == "timeout"
    request = SubscriptionRequest.decode((await requests.next_msg()).data)
    close_request = UnsubscribeRequest.decode((await close_requests.next_msg()).data)
    assert close_request == UnsubscribeRequest(client_id, channel, request.inbox, "d")
    own.resume()
    await connection.close()
    await nc.close()
