"""What the server receives for each outcome: an acknowledgement, a retry with a delay, or a dead letter."""

import asyncio
import logging

import msgspec
import pytest
from nats.js.api import ConsumerConfig

from ce_nats.aio import DeliveryError, Reject
from ce_nats.redelivery import DeadLetter, Reason
from tests.support.consuming import SECONDS, acks, after, consume, is_settled, publish, take, until_consumer

__all__ = ["acks", "consume", "is_settled", "publish"]


async def test_failed_message_is_retried_with_growing_delay_and_dead_lettered(publish, consume, acks, dead_letters):
    """The delay depends on the delivery count."""
    await publish(1)
    async with consume(backoff=[0.01, 0.02], max_deliveries=3) as consumer:
        for deliveries in (1, 2, 3):
            delivery = await take(consumer)
            assert delivery.deliveries == deliveries
            with pytest.raises(KeyError, match="customer"):
                async with delivery:
                    raise KeyError("customer")
        assert await after(acks.get()) == b'-NAK {"delay": 10000000}'
        assert await after(acks.get()) == b'-NAK {"delay": 20000000}'
        assert await after(acks.get()) == b"+TERM"
    (letter,) = await dead_letters(1)
    known, headers = DeadLetter.split(letter.headers)
    assert (known.reason, known.error, known.text) == (Reason.EXHAUSTED, "KeyError", "'customer'")
    assert (known.sequence, known.deliveries, known.consumer) == (1, 3, "c")
    assert letter.data == b'{"n":1}'
    assert ("ce-id", "event%201") in headers


async def test_rejected_event_is_dead_lettered_at_once(publish, consume, is_settled, dead_letters):
    await publish(1, 2)
    async with consume() as consumer:
        with pytest.raises(Reject):
            async with await take(consumer):
                raise Reject("no such customer")
        async with (delivery := await take(consumer)):
            await delivery.reject("nor such")
    await is_settled()
    letters = [DeadLetter.split(letter.headers)[0] for letter in await dead_letters(2)]
    assert [(known.reason, known.text) for known in letters] == [
        (Reason.REJECTED, "no such customer"),
        (Reason.REJECTED, "nor such"),
    ]


@pytest.mark.parametrize("options", [{}, {"parse_data": False}])
async def test_data_mismatch_is_dead_lettered_at_once(js, subject, publish, consume, is_settled, options, dead_letters):
    class Counted(msgspec.Struct):
        n: int

    await publish(1)
    headers = {"ce-specversion": "1.0", "ce-id": "order 2", "ce-source": "/s", "ce-type": "t"}
    headers["ce-datacontenttype"] = "application/json"
    await js.publish(subject, b'{"n":"two"}', headers=headers)
    await publish(3)
    numbers, reported = [], []
    done = asyncio.Event()

    async def count(delivery):
        numbers.append(delivery.event.data_as(Counted).n)
        if numbers[-1] == 3:
            done.set()

    async with consume(on_error=lambda error, _: reported.append(error), **options) as consumer:
        running = asyncio.create_task(consumer.run(count))
        await after(done.wait())
        consumer.stop()
        await after(running)
    assert numbers == [1, 3]
    assert [error.code for error in reported] == ["data-mismatch"]
    [letter] = await dead_letters(1)
    known, _ = DeadLetter.split(letter.headers)
    assert (known.reason, known.error, known.deliveries) == (Reason.REJECTED, "data-mismatch", 1)
    assert "`$.n`" in known.text
    assert letter.data == b'{"n":"two"}'
    await is_settled()


async def test_undecodable_message_without_dead_letter_subject_is_terminated(
    js, subject, publish, consume, acks, is_settled
):
    await js.publish(subject, b"no event")
    await publish(1)
    async with consume(dead_letter=None) as consumer, await take(consumer):
        assert await after(acks.get()) == b"+TERM"
    await is_settled()


async def test_undecodable_message_terminated_without_dead_letter_is_reported(js, subject, consume, is_settled, caplog):
    await js.publish(subject, b"no event")
    reported = []
    async with consume(dead_letter=None, on_error=lambda error, _: reported.append(error.code)) as consumer:
        reader = asyncio.create_task(anext(consumer))
        await is_settled()
        reader.cancel()
    assert reported == ["not-a-cloudevent"]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().endswith("; terminated without a dead letter")


async def test_messages_without_an_event_are_logged_once_and_counted(js, subject, stream, dead, consume, caplog):
    """The first one with its outcome, and the number of the others when the consumer is left, at the latest."""
    for _ in range(50):
        await js.publish(subject, b"no event")
    await js.publish(subject, b"{}", headers={"Content-Type": "application/cloudevents+json"})
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until_consumer(js, stream, lambda info: info.ack_floor.stream_seq == 51)
        reader.cancel()
    first, other, count = (text.removeprefix(f"consumer c of stream {stream}") for text in caplog.messages)
    assert first.startswith(f", sequence 1, delivery 1, subject '{subject}': not-a-cloudevent: ")
    assert other.startswith(f", sequence 51, delivery 1, subject '{subject}': missing-attribute: ")
    assert {first.rpartition("; ")[2], other.rpartition("; ")[2]} == {f"dead-lettered to {dead}"}
    assert count == f": 49 more since the last report: not-a-cloudevent; dead-lettered to {dead}"


async def test_lines_about_failures_tell_what_became_of_the_event(publish, consume, subject, dead, caplog):
    await publish(1, 2, 3)

    async def handle(delivery):
        if delivery.sequence == 1:
            raise Reject("no")
        if delivery.sequence == 2:
            await delivery.ack()
        else:
            consumer.stop()
        raise OSError("disk")

    async with consume(backoff=[60]) as consumer:
        await after(consumer.run(handle))
    first, second, third = sorted(text.partition(", ")[2] for text in caplog.messages)
    assert first.startswith(f"sequence 1, delivery 1, subject '{subject}', id 'event 1', source ")
    assert first.endswith(f": Reject: no; dead-lettered to {dead}")
    assert second.endswith(": OSError: disk; acknowledged")
    assert third.endswith(": OSError: disk; redelivered in 60 s")


async def test_double_ack_waits_for_confirmation(js, stream, publish, consume):
    await publish(1)
    async with consume(double_ack=True) as consumer:
        async with await take(consumer):
            pass
        assert (await js.consumer_info(stream, "c")).ack_floor.stream_seq == 1
        await publish(2)
        delivery = await take(consumer)
        await js.delete_consumer(stream, "c")
        js._timeout = 0.2
        with pytest.raises(DeliveryError):
            async with delivery:
                pass


@pytest.fixture
def deliver_without_outcome(js, stream):
    """Have the messages of the stream delivered a number of times and released, as by processes that crashed."""

    async def deliver(times, name="c"):
        await js.add_consumer(stream, ConsumerConfig(durable_name=name, ack_wait=60))
        earlier = await js.pull_subscribe_bind(name, stream)
        for _ in range(times):
            for message in await earlier.fetch(1, timeout=SECONDS):
                await message.nak()
        await earlier.unsubscribe()

    return deliver


async def test_message_over_the_delivery_limit_is_handled_before_it_is_dead_lettered(
    publish, consume, dead_letters, deliver_without_outcome
):
    """The server also counts deliveries that reached no handler."""
    await publish(1)
    await deliver_without_outcome(3)
    async with consume(max_deliveries=2, max_unfinished=4) as consumer:
        with pytest.raises(OSError, match="disk"):
            async with await take(consumer):
                raise OSError("disk")
    (letter,) = await dead_letters(1)
    known = DeadLetter.split(letter.headers)[0]
    assert (known.reason, known.error, known.deliveries) == (Reason.EXHAUSTED, "OSError", 4)
