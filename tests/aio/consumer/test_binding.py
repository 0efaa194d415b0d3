"""Consumers on the server: their configuration, and one that is another one than before."""

import asyncio
import json

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from ce_nats.aio import DeliveryError, PullConsumer
from tests.support.consuming import acks, after, consume, has_none, is_settled, publish, take, until_consumer
from tests.support.waiting import until

__all__ = ["acks", "consume", "is_settled", "publish"]


async def test_max_deliver_of_the_consumer_limits_deliveries(js, stream, publish, consume, dead_letters, caplog):
    """The server drops a message without a report after max_deliver deliveries."""
    await publish(1)
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", max_deliver=2))
    async with consume() as consumer:
        assert (
            "max_deliver is 2: after the last delivery a message is dead-lettered instead of redelivered" in caplog.text
        )
        for _ in range(2):
            with pytest.raises(OSError, match="disk"):
                async with await take(consumer):
                    raise OSError("disk")
    await dead_letters(1)


@pytest.mark.parametrize("has_dead_letter", [True, False])
async def test_last_delivery_that_the_server_allows_is_dead_lettered_instead_of_released(
    js, stream, publish, consume, dead_letters, caplog, has_dead_letter
):
    await publish(1, 2)
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", max_deliver=1))
    async with consume(**({} if has_dead_letter else {"dead_letter": None})) as consumer:
        first = await take(consumer)
        async with first:
            await first.nak()
        await take(consumer)  # which is released
    await until_consumer(js, stream, has_none)
    reported = [text for text in caplog.messages if "max_deliver is 1, so the server does not deliver it again" in text]
    assert len(reported) == 1  # of the one that no handler had
    if has_dead_letter:
        letters = await dead_letters(2)
        assert {dict(letter.headers)["Dead-Letter-Reason"] for letter in letters} == {"exhausted"}


async def test_deliveries_do_not_grow_with_orderly_restarts(js, stream, publish, consume, is_settled):
    """Messages that were fetched and not handled are released, which the server counts."""
    await publish(*range(60))
    deliveries = []
    while len(deliveries) < 60:
        async with consume() as consumer:
            for _ in range(3):
                delivery = await take(consumer)
                async with delivery:
                    deliveries.append(delivery.deliveries)
    assert max(deliveries) <= 4
    await is_settled()


async def test_consumer_must_be_pull_with_explicit_acknowledgements(js, stream, consume):
    await js.add_consumer(stream, ConsumerConfig(durable_name="push", deliver_subject="x", ack_policy="explicit"))
    await js.add_consumer(stream, ConsumerConfig(durable_name="all", ack_policy="all"))
    for name in ("push", "all"):
        with pytest.raises(DeliveryError, match=r"^incompatible-config: .*one by one"):
            await consume(name).__aenter__()
    with pytest.raises(DeliveryError, match=r"^consumer-not-found: "):
        await consume("other", create=None).__aenter__()
    with pytest.raises(DeliveryError, match=r"^stream-not-found: "):
        await PullConsumer(js, "NOSTREAM", "c", dead_letter=None, create=ConsumerConfig()).__aenter__()
    with pytest.raises(DeliveryError, match=r"^not-open: .*entered first"):
        await anext(consume())


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (ConsumerConfig(durable_name="other"), "create must have the durable_name 'c' or none, got 'other'"),
        (ConsumerConfig(name="other"), "create must have the name 'c' or none, got 'other'"),
        (ConsumerConfig(ack_policy="none"), "create must have the ack_policy explicit, got 'none'"),
        (ConsumerConfig(ack_policy=AckPolicy.ALL), "create must have the ack_policy explicit, got 'all'"),
    ],
)
def test_consumer_is_not_created_otherwise_than_the_program_says(js, config, text):
    """Before, the name and the policy were replaced without a word."""
    with pytest.raises(ValueError, match=text):
        PullConsumer(js, "S", "c", dead_letter=None, create=config)
    for same in ("c", None):
        PullConsumer(js, "S", "c", dead_letter=None, create=ConsumerConfig(name=same, durable_name=same))


async def test_existing_consumer_is_used_unchanged(js, stream, publish, consume, caplog):
    """Differences from the given configuration are logged."""
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_wait=7, description="theirs"))
    await publish(1)
    async with consume(ack_wait=60) as consumer, await take(consumer):
        pass
    config = (await js.consumer_info(stream, "c")).config
    assert (config.ack_wait, config.description) == (7, "theirs")
    (record,) = caplog.records
    assert record.getMessage() == (
        f"consumer c of stream {stream} exists, and its configuration is not that of create=: ack_wait is 7.0, not 60"
    )
    async with consume(ack_wait=7):
        pass
    assert len(caplog.records) == 1


@pytest.mark.parametrize("key", [None, lambda delivery: delivery.sequence % 7], ids=["no key", "key"])
async def test_consumer_that_was_created_again_is_named_and_its_messages_are_fetched_together(
    nc, js, stream, publish, consume, is_settled, caplog, key
):
    """Its messages are delivered again, and not because the event loop was blocked."""
    await publish(*range(40))
    batches, handled = [], set()
    entered, permits = asyncio.Event(), asyncio.Semaphore(0)

    async def note(message):
        batches.append(json.loads(message.data)["batch"])

    async def handle(delivery):
        entered.set()
        await permits.acquire()
        handled.add(delivery.sequence)

    await nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", cb=note)
    async with consume(prefetch=8, ack_wait=10) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2, key=key))
        await after(entered.wait())
        # It is full: the deletion would end a request.
        await until_consumer(js, stream, lambda info: info.num_waiting == 0 and info.num_ack_pending >= 7)
        await js.delete_consumer(stream, "c")
        # Without messages that are handled when the next request is sent.
        config = ConsumerConfig(durable_name="c", ack_wait=10, deliver_policy="by_start_sequence", opt_start_seq=7)
        await js.add_consumer(stream, config)
        before = len(batches)
        for number in range(40):
            permits.release()
            if number == 5:
                await until(lambda: caplog.records)  # other events wait for a handler
        await is_settled()
        consumer.stop()
        await after(running)
    assert handled == set(range(1, 41))
    assert max(batches[before:]) > 1
    (record,) = caplog.records
    assert "it was deleted and created again, at 20" in record.getMessage()
