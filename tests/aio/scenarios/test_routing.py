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


async def test_batches_of_several_handlers(consume, send, is_settled, dead_letters, caplog):
    """A failed batch is divided without those of other handlers, which are called once."""
    await send(*[(("order", "refund", "log", "other")[number % 4], {"n": number}) for number in range(16)])
    router, calls = Router(), []

    @router.batch("order")
    async def orders(batch: aio.Batch):
        calls.append(("order", [event.data["n"] for event in batch]))
        if 8 in calls[-1][1]:
            raise ValueError

    @router.batch("ref*")
    async def refunds(batch: aio.Batch):
        calls.append(("refund", [event.data["n"] for event in batch]))
        batch.reject(1)
        raise aio.BatchError({2: Reject()})

    @router.on("log")
    async def log(event: DecodedEvent):
        calls.append(("log", event.data["n"]))
        if event.data["n"] == 6:
            raise Reject

    async with consume(max_deliveries=1, on_error=lambda error, delivery: None) as consumer:
        running = asyncio.create_task(consumer.run_batches(router, max_events=16, max_wait=60))
        await is_settled()
        consumer.stop()
        await after(running)
    assert calls == [
        *[("order", numbers) for numbers in ([0, 4, 8, 12], [0, 4], [8, 12], [8], [12])],
        ("refund", [1, 5, 9, 13]),
        *[("log", number) for number in (2, 6, 10, 14)],
    ]
    (divided,) = [record.getMessage() for record in caplog.records if "smaller parts" in record.getMessage()]
    assert "a batch of 4 events, from sequence 1," in divided
    letters = [DeadLetter.split(letter.headers)[0].sequence - 1 for letter in await dead_letters(8)]
    assert sorted(letters) == [3, 5, 6, 7, 8, 9, 11, 15]


async def test_order_of_keys_in_batches_of_several_handlers(consume, send, is_settled):
    await send(*[(("order", "refund")[number % 3 == 2], {"n": number}) for number in range(30)])
    router, handled = Router(), {0: [], 1: []}

    @router.batch("*")
    async def note(batch: aio.Batch):
        for event in batch:
            handled[event.data["n"] % 2].append(event.data["n"])

    router.batch("refund")(note)
    async with consume() as consumer:
        key = consumer.run_batches(router, max_wait=0.01, key=lambda delivery: delivery.event.data["n"] % 2)
        running = asyncio.create_task(key)
        await is_settled()
        consumer.stop()
        await after(running)
    assert handled == {0: [*range(0, 30, 2)], 1: [*range(1, 30, 2)]}


async def test_router_with_handlers_of_batches_is_refused_by_run(consume):
    router = Router()

    @router.batch("*")
    async def store(batch: aio.Batch): ...

    async with consume() as consumer:
        with pytest.raises(TypeError, match="run_batches"):
            await consumer.run(router)
