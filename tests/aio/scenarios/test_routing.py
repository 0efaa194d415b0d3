"""Routers as handlers of consumers and subscriptions."""

import asyncio
from dataclasses import dataclass

import pytest

from ce_nats import DecodedEvent, Reject, aio
from ce_nats.aio import jetstream as ce_js
from ce_nats.redelivery import DeadLetter
from ce_nats.routing import Router, SyncRouter
from tests.support.consuming import after, consume, is_settled
from tests.support.waiting import until

__all__ = ["consume", "is_settled"]


@dataclass
class Count:
    n: int


@pytest.fixture
def send(js, subject, stream, make_event):
    """Publish an event for each (type, data)."""

    async def send(*events):
        for number, (kind, data) in enumerate(events):
            await ce_js.publish(js, make_event(number, data, type=kind), subject)

    return send


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_consumer_routes_by_type(consume, send, is_settled, dead_letters, concurrency):
    await send(("order.placed", {"n": 1}), ("order.paid", {"n": 2}), ("refund", {"n": 3}), ("order.placed", {"n": "x"}))
    router, seen = Router(), []

    @router.on("order.*")
    async def other_order(event: DecodedEvent, delivery: aio.Delivery):
        seen.append((event.type, delivery.sequence))

    @router.on("order.placed")
    async def placed(count: Count, delivery: aio.Delivery):
        seen.append((count, delivery.sequence))

    async with consume() as consumer:
        running = asyncio.create_task(consumer.run(router, concurrency=concurrency))
        await is_settled()
        consumer.stop()
        await after(running)
    assert sorted(seen, key=str) == [("order.paid", 2), (Count(1), 1)]
    letters = [DeadLetter.split(letter.headers)[0] for letter in await dead_letters(2)]
    assert {(letter.sequence, letter.reason.value, letter.error, letter.deliveries) for letter in letters} == {
        (3, "rejected", "Reject", 1),
        (4, "rejected", "data-mismatch", 1),
    }
    assert {letter.sequence: letter.text for letter in letters}[3] == "no handler for events of type 'refund'"


async def test_events_of_a_key_are_routed_in_order(consume, send, is_settled):
    """The second event of each key waits until the retry of the first has succeeded."""
    await send(*((kind, {"n": number}) for number in range(3) for kind in ("a", "b")))
    router, seen = Router(), []

    @router.on("*")
    async def handle(count: Count, event: DecodedEvent, delivery: aio.Delivery):
        if (count.n, delivery.deliveries) == (0, 1):
            raise KeyError
        seen.append((event.type, count.n))

    async with consume(on_error=lambda *_: None) as consumer:
        running = asyncio.create_task(consumer.run(router, concurrency=4, key=lambda delivery: delivery.event.type))
        await is_settled()
        consumer.stop()
        await after(running)
    assert [one for one in seen if one[0] == "a"] == [("a", 0), ("a", 1), ("a", 2)]
    assert [one for one in seen if one[0] == "b"] == [("b", 0), ("b", 1), ("b", 2)]


async def test_skipped_types_are_acknowledged(consume, send, is_settled, dead_letters):
    await send(("a", {"n": 1}), ("b", {"n": 2}))
    router, seen = Router(unknown="skip"), []

    @router.on("b")
    async def handle(count: Count):
        seen.append(count)

    async with consume() as consumer:
        running = asyncio.create_task(consumer.run(router))
        await until(lambda: seen)
        await is_settled()
        consumer.stop()
        await after(running)
    assert seen == [Count(2)]
    assert await dead_letters(0) == []


async def test_failed_handler_is_retried(consume, send, is_settled):
    await send(("a", {"n": 1}))
    router, seen, errors = Router(), [], []

    @router.on("a")
    async def handle(delivery):
        seen.append(delivery.deliveries)
        if delivery.deliveries == 1:
            raise KeyError

    async with consume(on_error=lambda error, _: errors.append(type(error))) as consumer:
        running = asyncio.create_task(consumer.run(router))
        await until(lambda: len(seen) == 2)
        await is_settled()
        consumer.stop()
        await after(running)
    assert (seen, errors) == ([1, 2], [KeyError])


async def test_consumer_refuses_a_sync_router(consume, stream):
    async with consume() as consumer:
        with pytest.raises(TypeError, match="must be an async function"):
            await consumer.run(SyncRouter())


async def test_messages_of_a_subscription_are_routed(nc, make_event):
    router = Router()

    @router.on("count", data=Count)
    async def count(count: Count, item: aio.Received):
        return item.subject, count

    results = []
    async with aio.subscribe(nc, "routed.*") as received:
        await aio.publish(nc, make_event(1, {"n": 1}, type="count"), "routed.a")
        await aio.publish(nc, make_event(2, {"n": 2}, type="other"), "routed.b")
        await nc.publish("routed.c", b"not an event")
        for _ in range(3):
            try:
                results.append(await router(await after(anext(received))))
            except (Reject, ValueError) as error:
                results.append(str(error))
    assert results[:2] == [("routed.a", Count(1)), "no handler for events of type 'other'"]
    assert results[2].startswith("not-a-cloudevent: ")
