"""Loss of the streaming server, and reconnects."""

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
from tests.support.broker import ignore
from tests.support.relay import Relay
from tests.support.streaming import CLUSTER, StreamingServer, one, until_pending
from tests.support.waiting import until

# Pings every second; the server is considered lost after the third unanswered one.
QUICK = {"ping_interval": 1, "ping_max_out": 2, "timeout": 10}


@asynccontextmanager
async def client(url, client_id, **options):
    nc = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=ignore)
    connection = await stan.connect(nc, CLUSTER, client_id, **{**QUICK, **options})
    try:
        yield connection
    finally:
        try:
            await connection.close()
        finally:
            await nc.close()


async def test_client_survives_a_restart_with_a_file_store(executable, client_id, channel):
    """The server restores its clients: they need not register again, and no message is missed."""
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
            await until(lambda: connection._nc.stats["reconnects"] == 1)
            await connection.publish_data(b"3", channel)
            for subscription in (plain, durable):
                seen = set()
                while len(seen) < 2:
                    item = await one(subscription)
                    await item.ack()
                    seen.add(item.message.data)
                assert seen == {b"2", b"3"}
    assert lost == []


@pytest.mark.faults
async def test_unanswered_pings_fail_all_operations(own, client_id, channel, make_event):
    """ST-PNG-03: the server is silent. Each operation fails with the reason."""
    lost = []
    async with client(own.url, client_id, on_lost=lost.append) as connection:
        subscription = await connection.subscribe(channel)
        own.pause()
        pending = await connection.publish_async(make_event(1), channel)
        with pytest.raises(stan.StanError) as caught:
            await one(subscription)
        assert (caught.value.code, caught.value.text) == ("timeout", "stan: connection lost due to PING failure")
        with pytest.raises(stan.StanError, match="stan: connection closed: connection lost due to PING failure"):
            await pending
        raised = []
        for action in (
            connection.publish(make_event(2), channel),
            connection.subscribe(channel),
            one(subscription),
        ):
            with pytest.raises(stan.StanError, match="PING failure") as caught:
                await action
            raised.append((caught.value.code, caught.value.is_refusal))
        # Nothing was sent, so nothing was stored, and no server has refused.
        assert raised == [("connection-closed", False), ("connection-closed", False), ("timeout", False)]
        own.resume()
    assert [error.text for error in lost] == ["stan: connection lost due to PING failure"]


@pytest.mark.faults
async def test_no_responders_does_not_answer_a_ping(own, client_id):
    """ST-PNG-04: without the streaming server, the nats-server that it uses answers with no-responders."""
    lost = []
    async with client(own.url, client_id, on_lost=lost.append) as connection:
        own.kill()
        await until(lambda: connection.error is not None)
    assert [error.text for error in lost] == ["stan: connection lost due to PING failure"]


async def test_restart_with_a_memory_store_is_detected(own, client_id, channel):
    """ST-PNG-05: the answer to the first ping is an error."""
    async with client(own.url, client_id) as connection:
        subscription = await connection.subscribe(channel)
        own.restart()
        with pytest.raises(stan.StanError) as caught:
            await one(subscription)
        assert caught.value.code == "connection-closed"
        assert caught.value.text == "client has been replaced or is no longer registered"


@pytest.mark.faults
@pytest.mark.parametrize("failure", [ZeroDivisionError(), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_exception_in_on_lost_is_logged(own, client_id, channel, caplog, failure):
    def fail(error):
        raise failure

    async with client(own.url, client_id, on_lost=fail) as connection:
        subscription = await connection.subscribe(channel)
        own.restart()
        with pytest.raises(stan.StanError):
            await one(subscription)
    assert "on_lost raised an exception" in caplog.text


@pytest.mark.faults
async def test_failed_background_task_fails_everything(own, client_id, channel, caplog):
    """A BaseException in ``on_lost`` ends the task that would reconnect."""

    class Fatal(BaseException):
        pass

    def fail(error):
        raise Fatal

    async with client(own.url, client_id, reconnect=True, on_lost=fail) as connection:
        subscription = await connection.subscribe(channel)
        own.restart()
        for operation in (one(subscription), connection.publish_data(b"", channel)):
            with pytest.raises(stan.StanError, match=r"a background task failed: Fatal\(\)"):
                await operation
        assert connection.error.code == "delivery-failed"
    assert f"client {client_id}: a background task failed" in caplog.text


@pytest.mark.faults
async def test_failed_ping_is_a_loss(executable, client_id, channel, caplog):
    class Broken(nats.aio.client.Client):
        """Cannot send pings."""

        async def publish(self, subject, payload=b"", reply="", headers=None):
            if subject.endswith(".pings"):
                raise RuntimeError("no pings")
            await super().publish(subject, payload, reply, headers)

    with StreamingServer(executable) as server:
        nc = Broken()
        await nc.connect(server.url)
        connection = await stan.connect(nc, CLUSTER, client_id, **QUICK)
        subscription = await connection.subscribe(channel)
        with pytest.raises(stan.StanError, match="no pings") as caught:
            await one(subscription)
        assert caught.value.code == "delivery-failed"
        await connection.close()
        await nc.close()
    assert f"client {client_id}: a background task failed" in caplog.text


# --- Reconnects -------------------------------------------------------------------------------------------------------


@pytest.mark.faults
async def test_reconnect_continues_all_subscriptions(executable, client_id, channel):
    """The server is paused until its client is lost. Publishing waits meanwhile."""
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
            await until(lambda: lost)
            waiting = asyncio.ensure_future(connection.publish_data(b"5", channel))
            await held.ack()  # lost, so the message is redelivered
            server.resume()
            await asyncio.wait_for(waiting, 60)
            assert await numbers_up_to(5, new) in ([*range(first, 6)] for first in range(1, 6))
            # The server has stored the acknowledgements.
            assert await numbers(durable, 3) == [2, 4, 5]
            # Messages after the first unacknowledged one are redelivered, acknowledged or not.
            assert await numbers(plain, 4) == [2, 3, 4, 5]
            assert await numbers(queue, 4) == [2, 3, 4, 5]
    assert len(lost) == 1


async def numbers_up_to(last, subscription):
    """Acknowledge messages up to a sequence, and return their sequences."""
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
async def interrupted(url, client_id, **options):
    """Yield a relay, a client that reconnects through it, another client, and a function that ends an interruption."""
    lost = []
    with Relay(url) as relay:
        async with (
            client(relay.url, client_id, reconnect=True, on_lost=lost.append, **options) as connection,
            client(url, f"other-{client_id}", ping_max_out=88) as other,
        ):

            async def recover():
                await until(lambda: lost)
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


async def test_messages_published_during_a_loss_are_not_missed(over, client_id, channel):
    """The subscriptions have received no message yet, and the second request is slower than the first one."""
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


@pytest.mark.faults
@pytest.mark.parametrize(("durable", "wanted"), [("", [[2, 3]]), ("d", [[2, 3], [1, 2, 3]])])
async def test_messages_after_a_time_are_not_missed_by_a_slow_request(over, client_id, channel, durable, wanted):
    """The request has an age instead of a time, and is read later. Older messages of a durable cannot be skipped."""
    async with interrupted(over, client_id) as (relay, connection, other, _):
        await other.publish_data(b"1", channel)
        at = datetime.now(timezone.utc)
        for data in (b"2", b"3"):
            await other.publish_data(data, channel)
        relay.delay = 0.3
        async with await connection.subscribe(channel, start=Start.at_time(at), durable=durable) as subscription:
            assert await numbers_up_to(3, subscription) in wanted


def test_elapsed_time_is_right_if_a_clock_is_set_back():
    assert Moment(wall=10, monotonic=0).since(Moment(wall=40, monotonic=-30)) == 30
    assert Moment(wall=40, monotonic=0).since(Moment(wall=10, monotonic=0)) == 30


@pytest.mark.faults
async def test_messages_of_an_empty_channel_are_not_missed(over, client_id, channel):
    """A subscription that begins with the last message of an empty channel receives all later messages."""
    async with interrupted(over, client_id) as (relay, connection, other, recover):
        last = await connection.subscribe(channel, start=Start.last())
        group = await connection.subscribe(channel, start=Start.last(), queue="q")
        relay.interrupt()
        await other.publish_data(b"1", channel)
        await other.publish_data(b"2", channel)
        await recover()
        assert await numbers(last, 2) == [1, 2]
        assert await numbers(group, 2) == [1, 2]


@pytest.mark.faults
async def test_messages_that_arrive_with_the_answer_are_acknowledged(own, client_id, channel):
    """They are yielded when the subscription can acknowledge them, so none is redelivered."""
    async with interrupted(own.url, client_id) as (relay, connection, other, recover):
        subscription = await connection.subscribe(channel, ack_wait=600)
        waiting = asyncio.ensure_future(numbers(subscription, 1))
        relay.interrupt()
        await other.publish_data(b"the message", channel)
        relay.burst(b"PUB _STAN.sub.", b"the message")
        await recover()
        assert await waiting == [1]
        await until_pending(own, channel, 0)


@pytest.mark.faults
async def test_a_request_that_was_sent_too_late_is_repeated(over, client_id, channel):
    """A handler blocks the loop between the time that a request refers to and its transmission."""
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


@pytest.mark.faults
async def test_client_that_is_deregistered_while_it_resubscribes_registers_again(over, client_id, channel):
    """The server refuses the remaining subscriptions because of the client, so none of them fails."""
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


@pytest.mark.faults
async def test_client_survives_two_restarts_with_a_memory_store(own, client_id, channel):
    """The channel begins at 1 each time."""
    lost = []
    async with client(own.url, client_id, reconnect=True, on_lost=lost.append) as connection:
        subscription = await connection.subscribe(channel, durable="d")
        for turn in range(1, 3):
            own.restart()
            await until(lambda turn=turn: len(lost) == turn and connection._session is not None)
            await until(lambda: subscription._session is not None)
            await connection.publish_data(b"%d" % turn, channel)
            item = await one(subscription)
            await item.ack()
            assert (item.message.data, item.message.sequence) == (b"%d" % turn, 1)
    assert {error.text for error in lost} == {"client has been replaced or is no longer registered"}


@pytest.mark.faults
async def test_client_resubscribes_before_it_publishes(own, client_id, channel):
    """A message that waited for the server is received by all subscriptions of the client, in a new store as well."""
    async with client(own.url, client_id, reconnect=True) as connection:
        subscriptions = [await connection.subscribe(channel) for _ in range(20)]
        await connection.publish_data(b"before", channel)
        assert [await numbers(subscription, 1) for subscription in subscriptions] == [[1]] * 20
        own.kill()
        await until(lambda: connection._session is None)
        waiting = asyncio.ensure_future(connection.publish_data(b"waited", channel))
        own.start()
        await asyncio.wait_for(waiting, 20)
        assert [(await one(subscription)).message.data for subscription in subscriptions] == [b"waited"] * 20


@pytest.mark.faults
async def test_closing_during_resubscription_deregisters_the_client(own, client_id, channel):
    async with client(own.url, client_id, reconnect=True) as connection:
        for _ in range(20):
            await connection.subscribe(channel)
        requests = await connection._nc.subscribe("_STAN.sub.>")
        closed = await connection._nc.subscribe("_STAN.close.>")
        own.restart()
        await requests.next_msg(10)
        await connection.close()
        assert CloseRequest.decode((await closed.next_msg()).data).client_id == client_id
        with pytest.raises(stan.StanError, match="stan: connection closed"):
            await connection.publish_data(b"", channel)


@pytest.mark.faults
async def test_closing_works_at_any_moment_of_a_reconnect(own, client_id, channel):
    """Before Python 3.12 a request that is answered while it is cancelled suppresses the cancellation."""
    async with client(own.url, f"other-{client_id}") as other:
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


@pytest.mark.faults
async def test_subscription_after_the_largest_sequence_fails_alone(own, client_id, channel):
    """The protocol cannot express the next sequence. Other subscriptions continue."""
    lost = []
    async with client(own.url, client_id, reconnect=True, on_lost=lost.append) as connection:
        first, second = [await connection.subscribe(channel) for _ in range(2)]
        await connection._nc.publish(first._inbox.subject, MsgProto(2**64 - 1, channel, data=b"last").encode())
        assert await numbers(first, 1) == [2**64 - 1]
        own.restart()
        with pytest.raises(EncodeError, match="startSequence") as caught:
            await one(first)
        assert caught.value.code == "integer-out-of-range"
        await connection.publish_data(b"1", channel)
        assert await numbers(second, 1) == [1]
    assert len(lost) == 1


@pytest.mark.faults
async def test_sequences_of_a_new_store_are_not_confused_with_old_ones(own, client_id, channel, make_event):
    """The message with the sequence of an unacknowledged one is another message, and is not acknowledged with it."""
    lost = []
    async with client(own.url, client_id, reconnect=True, on_lost=lost.append) as connection:
        subscription = await connection.subscribe(channel, ack_wait=1)
        for number in range(3):
            await connection.publish(make_event(number), channel)
        for _ in range(2):
            await (await one(subscription)).ack()
        async with await one(subscription) as old:
            own.restart()
            await until(lambda: lost and subscription._session is not None)
            for number in range(10, 13):
                await connection.publish(make_event(number), channel)
            await until(lambda: len(subscription._ready) == 3)
        assert old.get_id() == "event 2"
        new = [await one(subscription) for _ in range(3)]
        assert [(item.message.sequence, item.event.get_id()) for item in new] == [
            (1, "event 10"),
            (2, "event 11"),
            (3, "event 12"),
        ]
        # The next reconnect continues after message 1 of the new store, not after message 3 of the old one.
        await new[0].ack()
        connection._session.error = stan.StanError("timeout", "cut off")
        connection._session.lost.set()
        await until(lambda: len(lost) == 2 and subscription._session is not None)
        assert await numbers(subscription, 2) == [2, 3]


@pytest.mark.faults
async def test_client_reconnects_after_a_loss_of_nats_and_the_streaming_server(executable, client_id, channel):
    """Both are down for longer than pings allow."""
    lost = []
    with StreamingServer(executable, file_store=True) as server:
        async with client(server.url, client_id, reconnect=True, on_lost=lost.append) as connection:
            subscription = await connection.subscribe(channel)
            server.kill()
            await until(lambda: lost)
            server.start()
            await connection.publish_data(b"1", channel)
            assert (await one(subscription)).message.data == b"1"


@pytest.mark.faults
async def test_client_does_not_reconnect_if_another_one_has_its_id(own, client_id, channel):
    async with client(own.url, client_id, reconnect=True) as connection:
        subscription = await connection.subscribe(channel)
        await connection._session._inboxes[0].unsubscribe()  # it no longer answers heartbeats
        async with client(own.url, client_id):
            with pytest.raises(stan.StanError, match="stan: clientID already registered"):
                await one(subscription)
        assert connection.error.text == "stan: clientID already registered"


@pytest.mark.faults
async def test_refused_subscription_fails_alone(own, client_id, channel):
    """The server is restarted with a lower limit. The other subscription continues."""
    async with client(own.url, client_id, reconnect=True) as connection:
        first, second = [await connection.subscribe(f"{channel}.{number}") for number in range(2)]
        own._flags = ("-mc", "1")
        own.restart()
        with pytest.raises(stan.StanError, match="too many channels"):
            await one(second)
        await connection.publish_data(b"1", f"{channel}.0")
        assert (await one(first)).message.data == b"1"
        await second.close()


@pytest.mark.faults
async def test_publishing_waits_for_a_reconnect_and_closing_does_not(own, client_id, channel):
    """Publishing waits for ``ack_timeout``."""
    async with client(own.url, client_id, reconnect=True, ack_timeout=0.3, timeout=60) as connection:
        subscription = await connection.subscribe(channel)
        own.kill()
        await until(lambda: connection._session is None)
        with pytest.raises(
            stan.StanError, match=r"not reconnected in time: (connection lost|connect request timeout)"
        ) as caught:
            await connection.publish_data(b"", channel)
        assert (caught.value.code, caught.value.is_refusal) == ("connection-closed", False)
        waiting = asyncio.ensure_future(connection.publish_data(b"", channel))
        await asyncio.sleep(0)
        await asyncio.wait_for(connection.close(), 30)
        with pytest.raises(stan.StanError, match="stan: connection closed"):
            await waiting
        assert [item async for item in subscription] == []
