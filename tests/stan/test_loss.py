"""The server goes away, and comes back or does not."""

import asyncio
import time
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone

import nats
import pytest

from ce_nats import EncodeError, stan
from ce_nats.stan import Start
from ce_nats.stan._subscription import _Moment as Moment
from ce_nats.stan.wire import CloseRequest, MsgProto
from ce_nats.testing import NatsServer
from tests.support.relay import Relay
from tests.support.streaming import CLUSTER, StreamingServer, until_pending
from tests.support.waiting import until

# Pings every second, the third without an answer is the end.
QUICK = {"ping_interval": 1, "ping_max_out": 2, "timeout": 0.5}


@asynccontextmanager
async def client(url, client_id, **options):
    nc = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_quiet)
    connection = await stan.connect(nc, CLUSTER, client_id, **{**QUICK, **options})
    try:
        yield connection
    finally:
        try:
            await connection.close()
        finally:
            await nc.close()


async def _quiet(error):
    """nats-py's own reports of what the tests do to it."""


async def one(subscription, seconds=60):
    return await asyncio.wait_for(subscription.__anext__(), seconds)


async def test_a_restart_is_survived(executable, client_id, channel):
    """With a file store the server knows its clients again: nobody connects anew, nothing is missed."""
    lost = []
    with StreamingServer(executable, file_store=True) as server:
        async with client(server.url, client_id, ping_max_out=88, on_lost=lost.append) as connection:
            plain = await connection.subscribe(channel, ack_wait=1)
            durable = await connection.subscribe(channel, durable="d", ack_wait=1)
            await connection.publish_data(b"1", channel)
            await (await one(plain)).ack()
            await (await one(durable)).ack()
            await connection.publish_data(b"2", channel)
            server.restart()
            await until(lambda: connection._nc.stats["reconnects"] == 1, 5)
            await connection.publish_data(b"3", channel)
            for subscription in (plain, durable):
                seen = set()
                while len(seen) < 2:
                    item = await one(subscription)
                    await item.ack()
                    seen.add(item.message.data)
                assert seen == {b"2", b"3"}
    assert lost == []


async def test_pings_notice_a_dead_server(executable, client_id, channel, make_event):
    """ST-PNG-03: one that keeps silent. Everything fails once, with the reason."""
    lost = []
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, on_lost=lost.append) as connection:
            subscription = await connection.subscribe(channel)
            server.pause()
            pending = await connection.publish_async(make_event(1), channel)
            with pytest.raises(stan.StanError) as caught:
                await one(subscription)
            assert (caught.value.code, caught.value.text) == ("timeout", "stan: connection lost due to PING failure")
            with pytest.raises(stan.StanError, match="stan: connection closed"):
                await pending
            told = []
            for action in (
                connection.publish(make_event(2), channel),
                connection.subscribe(channel),
                one(subscription),
            ):
                with pytest.raises(stan.StanError, match="PING failure") as caught:
                    await action
                told.append((caught.value.code, caught.value.is_refusal))
            # Nothing was sent, so nothing may have been stored; no server refused either.
            assert told == [("connection-closed", False), ("connection-closed", False), ("timeout", False)]
            server.resume()
    assert [error.text for error in lost] == ["stan: connection lost due to PING failure"]


async def test_no_responders_is_no_pong(executable, client_id):
    """ST-PNG-04: over another nats-server the absence of the streaming server is answered by NATS itself."""
    lost = []
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, on_lost=lost.append) as connection:
            server.kill()
            await until(lambda: connection.error is not None, 10)
    assert [error.text for error in lost] == ["stan: connection lost due to PING failure"]


async def test_a_server_that_forgot(executable, client_id, channel):
    """ST-PNG-05: after a restart with a memory store, the answer to the first ping says so."""
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id) as connection:
            subscription = await connection.subscribe(channel)
            server.restart()
            with pytest.raises(stan.StanError) as caught:
                await one(subscription)
            assert caught.value.code == "connection-closed"
            assert caught.value.text == "client has been replaced or is no longer registered"


async def test_on_lost_may_fail(executable, client_id, channel, caplog):
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, on_lost=lambda error: 1 / 0) as connection:
            subscription = await connection.subscribe(channel)
            server.restart()
            with pytest.raises(stan.StanError):
                await one(subscription)
    assert "on_lost failed" in caplog.text


# --- Connecting again -------------------------------------------------------------------------------------------------


async def test_connects_again(executable, client_id, channel):
    """The server is frozen until its client is lost. Publishing waits meanwhile, and every subscription goes on."""
    lost = []
    with NatsServer() as around, StreamingServer(executable, over=around.url, file_store=True) as server:
        async with client(around.url, client_id, reconnect=True, on_lost=lost.append) as connection:
            for number in range(1, 5):
                await connection.publish_data(b"%d" % number, channel)
            durable = await connection.subscribe(channel, start=Start.first(), durable="d")
            plain = await connection.subscribe(channel, start=Start.first())
            new = await connection.subscribe(channel)
            queue = await connection.subscribe(channel, start=Start.first(), queue="q")
            for subscription in (durable, plain, queue):
                items = [await one(subscription) for _ in range(3)]
                await items[0].ack()
                await items[2].ack()
            held = items[1]
            await until_pending(server, channel, 6)
            server.pause()
            await until(lambda: lost, 60)
            waiting = asyncio.ensure_future(connection.publish_data(b"5", channel))
            await held.ack()  # to nobody: it comes again
            server.resume()
            await asyncio.wait_for(waiting, 60)
            assert await numbers_up_to(5, new) in ([*range(first, 6)] for first in range(1, 6))
            # The server has kept what was acknowledged.
            assert await numbers(durable, 3) == [2, 4, 5]
            # What was acknowledged behind the first message that was not comes again.
            assert await numbers(plain, 4) == [2, 3, 4, 5]
            assert await numbers(queue, 4) == [2, 3, 4, 5]
    assert len(lost) == 1


async def numbers_up_to(last, subscription):
    """Acknowledge messages up to a sequence; those stored shortly before a subscription began may be among them."""
    seen = []
    while last not in seen:
        seen += await numbers(subscription, 1)
    return seen


async def numbers(subscription, count):
    seen = []
    for _ in range(count):
        item = await one(subscription)
        await item.ack()
        seen.append(item.message.sequence)
    return sorted(seen)


@asynccontextmanager
async def interrupted(url, client_id, timeout=10):
    """A relay, a client that reconnects through it, another client without it, and what ends an interruption."""
    lost = []
    with Relay(url) as relay:
        async with (
            client(relay.url, client_id, reconnect=True, on_lost=lost.append, timeout=timeout) as connection,
            client(url, f"other-{client_id}", ping_max_out=88, timeout=10) as other,
        ):

            async def recover():
                await until(lambda: lost, 60)
                relay.resume()

            yield relay, connection, other, recover
            relay.delay = 0


@pytest.fixture
def over(executable):
    with NatsServer() as around, StreamingServer(executable, over=around.url, file_store=True):
        yield around.url


STARTS = {
    "new": lambda: Start.new(),
    "ago": lambda: Start.ago(timedelta(0)),
    "future": lambda: Start.at_time(datetime(2120, 1, 1, tzinfo=timezone.utc)),
    "now": lambda: Start.at_time(datetime.now(timezone.utc)),
    "beyond": lambda: Start.at_sequence(2),
}


async def test_nothing_published_meanwhile_is_missed(over, client_id, channel):
    """Also by subscriptions that had received nothing yet, although the next request is slower than the first one."""
    async with interrupted(over, client_id) as (relay, connection, other, recover):
        await other.publish_data(b"1", channel)
        subscriptions = {name: await connection.subscribe(channel, start=start()) for name, start in STARTS.items()}
        relay.interrupt()
        await other.publish_data(b"2", channel)
        relay.delay = 0.3
        await recover()
        await other.publish_data(b"3", channel)
        for name, subscription in subscriptions.items():
            assert await numbers_up_to(3, subscription) in ([2, 3], [1, 2, 3]), name


@pytest.mark.parametrize(("durable", "wanted"), [("", [[2, 3]]), ("d", [[2, 3], [1, 2, 3]])])
async def test_messages_after_a_time_are_not_missed_by_a_slow_request(over, client_id, channel, durable, wanted):
    """The server gets an age instead of a time, and reads it later. A durable's older messages cannot be left out."""
    async with interrupted(over, client_id) as (relay, connection, other, _):
        await other.publish_data(b"1", channel)
        at = datetime.now(timezone.utc)
        for data in (b"2", b"3"):
            await other.publish_data(data, channel)
        relay.delay = 0.3
        async with await connection.subscribe(channel, start=Start.at_time(at), durable=durable) as subscription:
            assert await numbers_up_to(3, subscription) in wanted


def test_time_is_measured_although_a_clock_is_set_back():
    assert Moment(wall=10, monotonic=0).since(Moment(wall=40, monotonic=-30)) == 30
    assert Moment(wall=40, monotonic=0).since(Moment(wall=10, monotonic=0)) == 30


async def test_messages_of_an_empty_channel_are_not_missed(over, client_id, channel):
    """A subscription that begins with the last message had none: all of them are later ones."""
    async with interrupted(over, client_id) as (relay, connection, other, recover):
        last = await connection.subscribe(channel, start=Start.last())
        group = await connection.subscribe(channel, start=Start.last(), queue="q")
        relay.interrupt()
        await other.publish_data(b"1", channel)
        await other.publish_data(b"2", channel)
        await recover()
        assert await numbers(last, 2) == [1, 2]
        assert await numbers(group, 2) == [1, 2]


async def test_messages_that_arrive_with_the_answer_are_acknowledged(executable, client_id, channel):
    """They are given out when the subscription can acknowledge them, so none is redelivered."""
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with interrupted(around.url, client_id) as (relay, connection, other, recover):
            subscription = await connection.subscribe(channel, ack_wait=600)
            waiting = asyncio.ensure_future(numbers(subscription, 1))
            relay.interrupt()
            await other.publish_data(b"the message", channel)
            relay.burst(b"PUB _STAN.sub.", b"the message")
            await recover()
            assert await waiting == [1]
            await until_pending(server, channel, 0)


async def test_a_request_that_was_sent_too_late_is_repeated(over, client_id, channel):
    """A handler blocks the loop between the moment that a request refers to and its transmission."""
    async with interrupted(over, client_id, timeout=1) as (relay, connection, other, recover):
        subscription = await connection.subscribe(channel)
        relay.interrupt()
        await other.publish_data(b"1", channel)
        loop, blocked = asyncio.get_running_loop(), []

        def start(loop, coroutine, **options):
            if coroutine.__name__ == "request" and "_STAN.sub." in coroutine.cr_frame.f_locals["subject"]:
                loop.set_task_factory(None)
                blocked.append(loop.call_soon(time.sleep, 2))
            return asyncio.Task(coroutine, loop=loop, **options)

        loop.set_task_factory(start)
        await recover()
        assert await numbers(subscription, 1) == [1]
        assert blocked


async def test_a_client_that_is_forgotten_while_it_subscribes_again_is_registered_again(over, client_id, channel):
    """The server refuses the rest of its subscriptions, which is no refusal of any of these."""
    async with interrupted(over, client_id) as (relay, connection, other, recover):
        subscriptions = [await connection.subscribe(channel) for _ in range(5)]
        requests = await other._nc.subscribe("_STAN.sub.>")
        relay.interrupt()
        relay.delay = 0.1
        await recover()
        await requests.next_msg(30)
        await other._nc.request(other._session.subjects.close_requests, CloseRequest(client_id=client_id).encode(), 10)
        await other.publish_data(b"1", channel)
        for subscription in subscriptions:
            assert await numbers(subscription, 1) == [1]


async def test_again_and_again(executable, client_id, channel):
    """Two restarts with a memory store: the client is back each time, on a channel that begins at 1."""
    lost = []
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, reconnect=True, on_lost=lost.append) as connection:
            subscription = await connection.subscribe(channel, durable="d")
            for turn in range(1, 3):
                server.restart()
                await until(lambda turn=turn: len(lost) == turn and connection._session is not None, 10)
                await until(lambda: subscription._session is not None, 10)
                await connection.publish_data(b"%d" % turn, channel)
                item = await one(subscription)
                await item.ack()
                assert (item.message.data, item.message.sequence) == (b"%d" % turn, 1)
    assert {error.text for error in lost} == {"client has been replaced or is no longer registered"}


async def test_subscribes_before_it_publishes(executable, client_id, channel):
    """What waited while the server was away is received by every subscription of its own, in a new store too."""
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, reconnect=True) as connection:
            subscriptions = [await connection.subscribe(channel) for _ in range(20)]
            await connection.publish_data(b"before", channel)
            assert [await numbers(subscription, 1) for subscription in subscriptions] == [[1]] * 20
            server.kill()
            await until(lambda: connection._session is None, 10)
            waiting = asyncio.ensure_future(connection.publish_data(b"waited", channel))
            server.start()
            await asyncio.wait_for(waiting, 20)
            assert [(await one(subscription)).message.data for subscription in subscriptions] == [b"waited"] * 20


async def test_closing_while_it_subscribes_again(executable, client_id, channel):
    """The server is told, although nobody could publish yet."""
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, reconnect=True) as connection:
            for _ in range(20):
                await connection.subscribe(channel)
            requests = await connection._nc.subscribe("_STAN.sub.>")
            closed = await connection._nc.subscribe("_STAN.close.>")
            server.restart()
            await requests.next_msg(10)
            await connection.close()
            assert CloseRequest.decode((await closed.next_msg()).data).client_id == client_id
            with pytest.raises(stan.StanError, match="stan: connection closed"):
                await connection.publish_data(b"", channel)


async def test_closing_at_any_moment(executable, client_id, channel):
    """Before Python 3.12 a request that is answered at the moment at which it is cancelled is not."""
    with NatsServer() as around, StreamingServer(executable, over=around.url):
        async with client(around.url, f"other-{client_id}") as other:
            requests = await other._nc.subscribe("_STAN.sub.>", pending_msgs_limit=0)
            for moment in range(300):
                connection = await stan.connect(other._nc, CLUSTER, client_id, reconnect=True)
                for _ in range(5):
                    await connection.subscribe(channel)
                    await requests.next_msg(10)
                connection._session.error = stan.StanError("timeout", "cut off")
                connection._session.lost.set()
                await requests.next_msg(10)
                for _ in range(moment % 60):
                    await asyncio.sleep(0)
                await asyncio.wait_for(connection.close(), 10)
                while requests.pending_msgs:
                    await requests.next_msg()


async def test_the_last_number_there_is(executable, client_id, channel):
    """Behind it nothing can be asked for: one subscription fails, and the rest goes on."""
    lost = []
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, reconnect=True, on_lost=lost.append) as connection:
            first, second = [await connection.subscribe(channel) for _ in range(2)]
            await connection._nc.publish(first._listener.subject, MsgProto(2**64 - 1, channel, data=b"last").encode())
            assert await numbers(first, 1) == [2**64 - 1]
            server.restart()
            with pytest.raises(EncodeError, match="startSequence") as caught:
                await one(first)
            assert caught.value.code == "integer-out-of-range"
            await connection.publish_data(b"1", channel)
            assert await numbers(second, 1) == [1]
    assert len(lost) == 1


async def test_numbers_that_begin_again(executable, client_id, channel, make_event):
    """In a new store a number is that of another message: it is not taken for the old one, nor acknowledged as such."""
    lost = []
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, reconnect=True, on_lost=lost.append) as connection:
            subscription = await connection.subscribe(channel, ack_wait=1)
            for number in range(3):
                await connection.publish(make_event(number), channel)
            for _ in range(2):
                await (await one(subscription)).ack()
            async with await one(subscription) as old:
                server.restart()
                await until(lambda: lost and subscription._session is not None, 10)
                for number in range(10, 13):
                    await connection.publish(make_event(number), channel)
                await until(lambda: len(subscription._ready) == 3, 5)
            assert old.get_id() == "event 2"
            new = [await one(subscription) for _ in range(3)]
            assert [(item.message.sequence, item.event.get_id()) for item in new] == [
                (1, "event 10"),
                (2, "event 11"),
                (3, "event 12"),
            ]
            # It also knows where to go on: behind message 1 of the new store, not message 3 of the old one.
            await new[0].ack()
            connection._session.error = stan.StanError("timeout", "cut off")
            connection._session.lost.set()
            await until(lambda: len(lost) == 2 and subscription._session is not None, 10)
            assert await numbers(subscription, 2) == [2, 3]


async def test_nats_goes_too(executable, client_id, channel):
    """Longer than pings allow; the client is back when both are."""
    lost = []
    with StreamingServer(executable, file_store=True) as server:
        async with client(server.url, client_id, reconnect=True, on_lost=lost.append) as connection:
            subscription = await connection.subscribe(channel)
            server.kill()
            await until(lambda: lost, 60)
            server.start()
            await connection.publish_data(b"1", channel)
            assert (await one(subscription)).message.data == b"1"


async def test_somebody_else_has_the_id(executable, client_id, channel):
    """Then there is no coming back, and the two do not fight."""
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, reconnect=True) as connection:
            subscription = await connection.subscribe(channel)
            await connection._session._listeners[0].unsubscribe()  # it does not answer heartbeats any more
            async with client(around.url, client_id):
                with pytest.raises(stan.StanError, match="stan: clientID already registered"):
                    await one(subscription)
            assert connection.error.text == "stan: clientID already registered"
        assert server.url == around.url


async def test_a_subscription_that_is_refused(executable, client_id, channel):
    """A server that came back with less room: one subscription fails, the rest goes on."""
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, reconnect=True) as connection:
            first, second = [await connection.subscribe(f"{channel}.{number}") for number in range(2)]
            server._flags = ("-mc", "1")
            server.restart()
            with pytest.raises(stan.StanError, match="too many channels"):
                await one(second)
            await connection.publish_data(b"1", f"{channel}.0")
            assert (await one(first)).message.data == b"1"
            await second.close()


async def test_while_the_server_is_away(executable, client_id, channel):
    """Publishing waits no longer than it may; closing waits for nothing, and leaves nothing running."""
    with NatsServer() as around, StreamingServer(executable, over=around.url) as server:
        async with client(around.url, client_id, reconnect=True, ack_timeout=0.3) as connection:
            subscription = await connection.subscribe(channel)
            server.kill()
            await until(lambda: connection._session is None, 10)
            with pytest.raises(stan.StanError, match="not connected again in time") as caught:
                await connection.publish_data(b"", channel)
            assert (caught.value.code, caught.value.is_refusal) == ("connection-closed", False)
            waiting = asyncio.ensure_future(connection.publish_data(b"", channel))
            await asyncio.sleep(0)
            await asyncio.wait_for(connection.close(), 2)
            with pytest.raises(stan.StanError, match="stan: connection closed"):
                await waiting
            assert [item async for item in subscription] == []
