"""Two clients that keep the order of keys: one continues, and the other one waits, is refused, or is replaced."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from ce_nats import DeliveryError
from ce_nats.extensions.partitioning import partition_key
from tests.aio.consumer.test_keyed import Log, key_of, lossy, publish_keys, run
from tests.support.consuming import after, consume, is_settled
from tests.support.relay import without
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "lossy", "publish_keys"]


async def test_second_client_is_refused_and_the_first_one_continues(publish_keys, consume, is_settled, caplog):
    """Not at once: a deployment may start a process before it stops another one."""
    await publish_keys("abcabcabc" * 20)
    async with consume(ack_wait=30) as consumer:
        log = Log(consumer, 183)
        log.handle = lambda delivery, key, number: asyncio.sleep(0.03)
        first = asyncio.create_task(run(consumer, log, concurrency=2))
        await until(lambda: len(log.attempts) > 3)
        with pytest.raises(DeliveryError, match="another client keeps the order of its keys") as caught:
            async with consume(ack_wait=30) as second:
                await after(run(second, Log(second, 1)))
        assert caught.value.code == "consumer-in-use"
        assert "another client keeps the order of its keys; waiting for 5 s until it stops" in caplog.text
        await publish_keys("abc")
        await after(first)
    await is_settled()


@pytest.mark.parametrize("method", ["run", "run_batches"])
async def test_one_of_two_clients_that_start_together_continues(publish_keys, consume, is_settled, method, monkeypatch):
    """Also with a backlog, with which none of them waits for messages. Handlers of the other one are cancelled."""
    monkeypatch.setattr("ce_nats.aio.consumer._key_order.IN_USE_SECONDS", 1.0)
    await publish_keys("abc" * 200)
    by_key = {key: [] for key in "abc"}

    def note(delivery):
        by_key[key_of(delivery)].append(delivery.sequence)

    async def handle(argument):
        await asyncio.sleep(0.01)
        for delivery in [argument] if method == "run" else argument.deliveries:
            note(delivery)

    async def work(consumer):
        async with consumer:
            await getattr(consumer, method)(handle, concurrency=2, key=partition_key)

    consumers = [consume(), consume()]
    works = [asyncio.create_task(work(consumer)) for consumer in consumers]
    [refused], [other] = await after(asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED))
    with pytest.raises(DeliveryError, match=r"^consumer-in-use: "):
        await refused
    await is_settled()
    consumers[works.index(other)].stop()
    await after(other)
    assert by_key == {key: [*range(index, 601, 3)] for index, key in enumerate("abc", 1)}


async def test_client_that_does_not_answer_is_replaced_and_ends(publish_keys, consume, is_settled, lossy, monkeypatch):
    """Its process may have been suspended."""
    monkeypatch.setattr("ce_nats.aio.consumer._key_order.IN_USE_SECONDS", 1.0)
    relay, via = lossy
    await publish_keys("ab")
    async with AsyncExitStack() as stack, consume() as replacement:
        silent = await stack.enter_async_context(consume(via=via))
        old, new = Log(silent, 10_000), Log(replacement, 10_000)
        running = asyncio.create_task(run(silent, old))
        await until(lambda: len(old.attempts) == 2)
        relay.lost = lambda chunk: without(chunk, rb"MSG _INBOX\.\w+ \d+ _INBOX\.\S+ 0(?=\r\n)")
        replacing = asyncio.create_task(run(replacement, new))
        while not running.done():
            await publish_keys("ab")
            await asyncio.sleep(0.01)
        with pytest.raises(DeliveryError, match=r"^consumer-in-use: .*has replaced this one"):
            await running
        await stack.aclose()
        await is_settled()
        replacement.stop()
        await after(replacing)
    assert new.attempts
    for key in "ab":
        numbers = old.by_key[key] + new.by_key[key]
        assert numbers == sorted(set(numbers))


async def test_client_that_replaces_another_one_waits_for_its_end(publish_keys, consume, is_settled, caplog):
    await publish_keys("abcabc")
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(consume(ack_wait=30))
        old = Log(consumer, 1000)
        running = asyncio.create_task(run(consumer, old))
        await until(lambda: len(old.attempts) == 6)
        async with consume(ack_wait=30) as replacement:
            new = Log(replacement, 3)
            replacing = asyncio.create_task(run(replacement, new))
            await until(lambda: "waiting for 5 s until it stops" in caplog.text)
            consumer.stop()
            await after(running)
            await stack.aclose()
            await publish_keys("abc")
            await after(replacing)
    assert [number for number, _ in new.attempts] == [6, 7, 8]
    await is_settled()
