"""Acknowledgements that are written together, and ack deadlines."""

import asyncio
import gc
import re

import nats
import pytest
from nats import connect
from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError
from ce_nats.aio import PullConsumer
from tests.support.consuming import acks, after, consume, is_settled, number_of, publish, take, until_consumer
from tests.support.relay import Relay, without
from tests.support.waiting import until

__all__ = ["acks", "consume", "is_settled", "publish"]


async def test_dropped_delivery_is_held_until_the_block_ends(publish, consume, acks):
    await publish(1)
    async with consume(ack_wait=1) as consumer:
        await take(consumer)
        gc.collect()
        for _ in range(4):  # longer than ack_wait
            assert await after(acks.get()) == b"+WPI"
        await publish(2)
        async with (delivery := await take(consumer)):
            assert (delivery.sequence, delivery.deliveries) == (2, 1)
        assert await after(acks.get()) in (b"", b"+WPI")
    assert await drained(acks) == b"-NAK"


async def drained(acks):
    """Skip acknowledgements up to the release, and return it."""
    last = b""
    while last != b"-NAK":
        last = await after(acks.get())
    return last


async def test_ack_deadlines_are_extended_while_a_handler_runs(publish, consume, acks, is_settled):
    """Those of queued messages, too."""
    await publish(1, 2)
    async with consume(ack_wait=1.5) as consumer:
        async with (delivery := await take(consumer)):
            for _ in range(2 * 4):  # at a third of ack_wait, for two messages
                assert await after(acks.get()) == b"+WPI"
            assert delivery.deliveries == 1
        async with (delivery := await take(consumer)):
            assert (delivery.sequence, delivery.deliveries) == (2, 1)
    await is_settled()


async def test_message_redelivered_while_held_is_one_delivery(nc, publish, consume, is_settled):
    await publish(1, 2)
    async with consume() as consumer:
        async with (delivery := await take(consumer)) as event:
            await nc.publish(delivery.message.reply, b"-NAK")  # as the server does after ack_wait
            await until(lambda: delivery.deliveries == 2)
            assert number_of(event) == 1
        async with await take(consumer) as event:
            assert number_of(event) == 2
    await is_settled()


# --- Joined acknowledgements ------------------------------------------------------------------------------------------

ACK = rb"PUB \$JS\.ACK\.\S+ 0\r\n\r\n"


@pytest.fixture
async def relayed(server):
    """A relay, the chunks with acknowledgements that it has seen, and a JetStreamContext on a connection over it."""
    with Relay(server.url) as relay:
        chunks = []

        def note(chunk):
            if re.search(ACK, chunk):
                chunks.append(len(re.findall(ACK, chunk)))
            return chunk

        relay.lost = note
        nc = await connect(relay.url)
        yield relay, chunks, nc.jetstream()
        await nc.close()


async def run(consumer, count, suspends=False):
    seen = []

    async def handle(delivery):
        seen.append(delivery.sequence)
        if suspends:
            await asyncio.sleep(0)
        if len(seen) == count:
            consumer.stop()

    await after(consumer.run(handle))
    return seen


@pytest.mark.parametrize("suspends", [True, False])
async def test_acknowledgements_of_many_messages_are_written_together(relayed, publish, consume, is_settled, suspends):
    _, chunks, via = relayed
    await publish(*range(300))
    async with consume(via=via, prefetch=200) as consumer:
        assert await run(consumer, 300, suspends) == list(range(1, 301))
    await is_settled()
    assert sum(chunks) == 300
    assert max(chunks) > 10


async def test_each_acknowledgement_is_written_at_once_if_wanted(acks, publish, consume, is_settled):
    await publish(*range(20))
    async with consume(ack_delay=0) as consumer:
        for _ in range(20):
            async with await take(consumer):
                pass
            assert consumer._parts.ledger.acks == []
    await is_settled()


async def test_acknowledgement_does_not_wait_if_no_other_message_does(publish, consume, acks):
    """A consumer with max_ack_pending of 1 would otherwise wait for each of its messages."""
    await publish(1)
    async with consume(ack_delay=1000) as consumer:
        async with await take(consumer):
            pass
        reader = asyncio.create_task(anext(consumer))
        assert await after(acks.get()) == b""
        reader.cancel()


async def test_acknowledgement_is_written_in_time_although_the_next_handler_takes_long(publish, consume, acks):
    await publish(1, 2, 3)
    async with consume() as consumer:
        async with await take(consumer):
            pass
        async with await take(consumer):
            assert await after(acks.get()) == b""


@pytest.mark.parametrize("method", ["close", "drain", "stop"])
async def test_acknowledgements_are_written_before_the_end(server, js, stream, dead, publish, is_settled, method):
    """Of the connection, or of the consumer."""
    await publish(*range(50))
    nc = await connect(server.url)
    config = ConsumerConfig(ack_wait=60)
    async with PullConsumer(
        nc.jetstream(), stream, "c", dead_letter=dead, create=config, ack_delay=1000, prefetch=100
    ) as consumer:
        for _ in range(40):
            async with await take(consumer):
                pass
        if method != "stop":
            await getattr(nc, method)()
    await nc.close()
    await until_consumer(js, stream, lambda info: info.ack_floor.stream_seq == 40)


async def test_acknowledgements_that_cannot_be_sent_are_reported(server, stream, dead, publish):
    """nats-py gives up the connection while they wait for a reconnect."""
    await publish(1, 2)
    reported = []
    with Relay(server.url) as relay:
        nc = await nats.connect(relay.url, max_reconnect_attempts=1, reconnect_time_wait=0.1)
        context = PullConsumer(
            nc.jetstream(),
            stream,
            "c",
            dead_letter=dead,
            create=ConsumerConfig(),
            on_error=lambda error, _: reported.append(str(error)),
        )
        consumer = await context.__aenter__()
        first, second = await take(consumer), await take(consumer)
    await until(lambda: not nc.is_connected)
    async with first:
        pass
    await until(lambda: nc.is_closed)
    with pytest.raises(DeliveryError, match="connection-closed"):
        async with second:
            pass
    await context.__aexit__(None, None, None)
    assert len(reported) == 1
    assert "1 acknowledgements cannot be sent" in reported[0]


async def test_acknowledgement_waits_for_a_reconnect_and_a_redelivery_meanwhile_is_not_handled(
    relayed, publish, consume, is_settled
):
    _, _, via = relayed
    await publish(1, 2)
    handled = []
    async with consume(via=via, ack_wait=1, ack_delay=1000) as consumer:
        for _ in range(2):
            async with (delivery := await take(consumer)):
                handled.append(delivery.sequence)
        await asyncio.sleep(1.5)  # redelivered after ack_wait, because nothing was written
        reader = asyncio.create_task(anext(consumer))
        await is_settled()
        reader.cancel()
    assert handled == [1, 2]


async def test_full_buffer_raises_from_the_block(server, stream, dead, publish):
    await publish(1, 2)
    with Relay(server.url) as relay:
        nc = await nats.connect(relay.url, pending_size=10, reconnect_time_wait=60)
        context = PullConsumer(nc.jetstream(), stream, "c", dead_letter=dead, create=ConsumerConfig())
        consumer = await context.__aenter__()
        first, second = await take(consumer), await take(consumer)
    await until(lambda: not nc.is_connected)
    async with first:
        pass
    with pytest.raises(DeliveryError, match="buffer-full"):
        async with second:
            pass
    await nc.close()
    await context.__aexit__(None, None, None)


async def test_termination_follows_the_acknowledgements_before_it(publish, consume, nc):
    await publish(1, 2, 3)
    order = []

    async def note(message):
        order.append((int(message.subject.split(".")[5]), message.data))

    await nc.subscribe("$JS.ACK.>", cb=note)
    async with consume(ack_delay=1000) as consumer:
        for _ in range(2):
            async with await take(consumer):
                pass
        async with (delivery := await take(consumer)):
            await delivery.reject()
        await until(lambda: len(order) == 3)
    assert order == [(1, b""), (2, b""), (3, b"+TERM")]


async def test_lost_acknowledgements_are_repeated_by_redelivery(relayed, publish, consume, is_settled):
    relay, _, via = relayed
    await publish(1)
    acknowledgements = []

    def lose(chunk):
        left = without(chunk, rb"PUB \$JS\.ACK\.\S+ 0(?=\r\n)")
        acknowledgements.extend([chunk] if left != chunk else [])
        return left

    async with consume(via=via, ack_wait=2) as consumer:
        relay.lost = lose
        async with await take(consumer):
            pass
        await until(lambda: acknowledgements)
        relay.lost = None
        async with (delivery := await take(consumer)):
            assert delivery.deliveries == 2
    await is_settled()
