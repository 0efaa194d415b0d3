"""Messages that the program does not handle: released at the end, and when the connection is drained or closed."""

import asyncio

import pytest

from ce_nats.aio import connect
from ce_nats.aio import jetstream as ce_js
from ce_nats.errors import DeliveryError
from tests.support.consuming import after, consume, is_settled, number_of, publish, take
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "publish"]


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_unhandled_messages_are_released_at_once(publish, consume, is_settled, prefetch):
    await publish(*range(20))
    async with consume(prefetch=prefetch) as first:
        async with await take(first) as event:
            assert number_of(event) == 0
        given_out = await take(first)
    assert given_out.is_settled
    rest = set()
    async with consume() as second:
        while len(rest) < 19:
            async with await take(second) as event:
                rest.add(number_of(event))
    assert rest == set(range(1, 20))
    await is_settled()


async def test_messages_in_transit_are_released_at_once(js, subject, stream, make_event, consume, is_settled):
    """Events are so large that most are in transit when the first one arrives."""
    for number in range(30):
        await ce_js.publish(js, make_event(number, b"x" * 400_000), subject)
    async with consume() as first:
        await take(first)
    numbers = set()
    async with consume() as second:
        while len(numbers) < 30:
            async with await take(second) as event:
                numbers.add(number_of(event))
    await is_settled()


def handling(consumer, handled, wait):
    """Return how handlers are called, each of which notes what it has handled."""

    async def handle(delivery):
        handled.append(number_of(delivery.event))
        await wait(handled)

    async def handle_batch(batch):
        handled.extend(map(number_of, batch))
        await wait(handled)

    async def iterate():
        async for delivery in consumer:
            async with delivery:
                await handle(delivery)

    return {
        "run": lambda: consumer.run(handle, concurrency=4),
        "key": lambda: consumer.run(handle, key=lambda _: 1),
        "batches": lambda: consumer.run_batches(handle_batch, max_events=5),
        "iteration": iterate,
    }


@pytest.mark.parametrize("way", ["run", "key", "batches", "iteration"])
async def test_drained_connection_waits_for_handlers_and_releases_the_rest(server, consume, publish, is_settled, way):
    """So no event is handled twice, and a new process gets the others at once."""
    await publish(*range(60))
    nc, handled, began = await connect(server.url), [], asyncio.Event()

    async def wait(handled):
        if len(handled) >= 20:
            began.set()
            await until(lambda: nc.is_draining)
            await asyncio.sleep(0)

    async with consume(via=nc.jetstream()) as consumer:
        running = asyncio.create_task(handling(consumer, handled, wait)[way]())
        await after(began.wait())
        await after(nc.drain())
        await after(running)
    assert len(handled) < 30
    async with consume() as consumer:

        async def stop(handled):
            if len(handled) >= 60:
                consumer.stop()

        await after(handling(consumer, handled, stop)[way]())
    assert sorted(handled) == [*range(60)]
    await is_settled()


@pytest.mark.parametrize("way", ["run", "key", "batches", "iteration"])
async def test_no_handler_starts_after_the_connection_was_closed(server, consume, publish, way, caplog):
    await publish(*range(60))
    nc, handled, closed = await connect(server.url), [], []

    async def wait(handled):
        if len(handled) >= 20 and not closed:
            closed.append(len(handled))
            await nc.close()

    async with consume(via=nc.jetstream()) as consumer:
        with pytest.raises(DeliveryError, match="connection-closed"):
            await after(handling(consumer, handled, wait)[way]())
    assert [len(handled)] == closed
    assert len(caplog.messages) <= 5  # only of the events that were being handled
