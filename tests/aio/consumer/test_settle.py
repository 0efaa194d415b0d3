"""What the server receives for each outcome: an acknowledgement, a retry with a delay, or a dead letter."""

import asyncio
import logging

import msgspec
import pytest
from nats.js.api import ConsumerConfig, StreamSource

from ce_nats.aio import DeliveryError, PullConsumer, Reject, connect
from ce_nats.redelivery import DeadLetter, Reason
from ce_nats.testing import NatsServer
from tests.support.consuming import SECONDS, acks, after, consume, is_settled, publish, take, until_consumer
from tests.support.waiting import until

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


async def test_original_is_terminated_after_its_dead_letter_is_acknowledged(nc, js, subject, consume, dead):
    seen = []

    async def note(message):
        seen.append((message.subject, message.data))

    await js.publish(subject, b"no event")
    await nc.subscribe(">", cb=note)
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until(lambda: any(data == b"+TERM" for _, data in seen))
        reader.cancel()
    stored = next(n for n, (subject, _) in enumerate(seen) if subject == dead)
    acked = next(n for n, (_, data) in enumerate(seen) if dead.replace(".", "_").encode() in data and b'"seq"' in data)
    terminated = next(n for n, (_, data) in enumerate(seen) if data == b"+TERM")
    assert stored < acked < terminated


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


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_loop_of_dead_letters_ends(js, subject, stream, dead, dead_letters, retention, caplog):
    """It arises after the consumer was entered: its stream sources that of the dead letters."""
    looped = f"{stream}_looped"
    await js.add_stream(name=looped, sources=[StreamSource(name=stream)], storage="memory", retention=retention)
    errors = []
    try:
        options = {"dead_letter": dead, "create": ConsumerConfig(), "backoff": [60]}
        async with PullConsumer(js, looped, "c", on_error=lambda error, _: errors.append(error), **options) as consumer:
            sources = [StreamSource(name=name) for name in (stream, dead.replace(".", "_"))]
            await js.update_stream((await js.stream_info(looped)).config.evolve(sources=sources))
            reader = asyncio.create_task(anext(consumer))
            await js.publish(subject, b"no event")
            await until(lambda: errors)
            left = 0 if retention == "limits" else 1
            await until_consumer(js, looped, lambda info: info.num_ack_pending == left and not info.num_pending, "c")
            reader.cancel()
        await dead_letters(1)
        state = (await js.stream_info(looped)).state
        assert (state.last_seq, state.messages) == ((2, 2) if retention == "limits" else (2, 1))
        assert [error.code for error in errors] == ["incompatible-config"]
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert f"must not read what is published to '{dead}'" in line
        assert line.endswith("; it stays in the stream" if retention == "limits" else "; redelivered later")
    finally:
        await js.delete_stream(looped)


async def test_dead_letters_on_a_mapped_subject(make_event, caplog):
    """Those that the consumer reads itself end, others are stored."""
    with NatsServer(jetstream=True, config='mappings = {"out.dead": "dead", "out.loop": "orders.loop"}') as server:
        async with connect(server.url) as nc:
            js = nc.jetstream()
            await js.add_stream(name="ORDERS", subjects=["orders.>"])
            await js.add_stream(name="DEAD", subjects=["dead"])
            for subject, left, dead in (("out.dead", 1, 1), ("out.loop", 3, 1)):
                async with PullConsumer(js, "ORDERS", "c", dead_letter=subject, create=ConsumerConfig()) as consumer:
                    assert f"no stream listens on the subject for dead letters, '{subject}'" in caplog.text
                    reader = asyncio.create_task(anext(consumer))
                    await js.publish("orders.new", b"no event")
                    await until_consumer(js, "ORDERS", lambda info, left=left: info.ack_floor.stream_seq == left)
                    reader.cancel()
                states = [(await js.stream_info(stream)).state.messages for stream in ("ORDERS", "DEAD")]
                assert states == [left, dead]
    assert "must not read what is published to 'out.loop'" in caplog.text


async def test_lines_about_failures_tell_what_became_of_the_event(publish, consume, dead, caplog):
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
    assert first.startswith("sequence 1, delivery 1, id 'event 1', type ")
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
