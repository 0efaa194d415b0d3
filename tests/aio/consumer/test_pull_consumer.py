import asyncio
import logging
from functools import partial
from typing import Any

import msgspec
import pytest
from nats.js.api import ConsumerConfig

from ce_nats import ContentMode, EncodeError, to_nats_message
from ce_nats.aio import DeliveryError, PullConsumer, Reject
from ce_nats.aio import jetstream as ce_js
from ce_nats.codec.event import NotDelivered
from ce_nats.redelivery import DeadLetter, Reason
from tests.support import waiting
from tests.support.consuming import SECONDS, acks, after, consume, is_settled, number_of, publish, take

__all__ = ["acks", "consume", "is_settled", "publish"]

until = partial(waiting.until, seconds=SECONDS)


# --- Settling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"prefetch": 1}, {"double_ack": True}])
async def test_each_event_is_handled_and_acknowledged(publish, consume, is_settled, options):
    await publish(*range(200))
    numbers = []
    async with consume(**options) as consumer:
        async for delivery in consumer:
            async with delivery as event:
                numbers.append(number_of(event))
            assert (delivery.sequence, delivery.deliveries) == (len(numbers), 1)
            if len(numbers) == 200:
                break
    assert numbers == list(range(200))
    await is_settled()


async def test_a_failure_goes_on_and_is_tried_again_later_each_time(publish, consume, acks, dead_letters):
    """With the delay that the policy has for the delivery count, and as a dead letter in the end."""
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


async def test_the_dead_letter_is_acknowledged_before_the_original_is_terminated(nc, js, subject, consume, dead):
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


async def test_what_is_no_event_is_put_aside_and_not_given_out(js, subject, publish, consume, is_settled, dead_letters):
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "%C0%A0"}
    await js.publish(subject, b"no event")
    await js.publish(subject, b"", headers=headers)
    await js.publish(subject, b"", headers={"Status": "404"})  # nats-py's fetch() would drop it
    await publish(1)
    async with consume() as consumer, await take(consumer) as event:
        assert number_of(event) == 1
    await is_settled()
    letters = [DeadLetter.split(letter.headers) for letter in await dead_letters(3)]
    assert [known.error for known, _ in letters] == ["not-a-cloudevent", "invalid-utf8", "not-a-cloudevent"]
    assert {known.reason for known, _ in letters} == {Reason.UNDECODABLE}
    assert dict(letters[1][1]) == headers


async def test_without_a_subject_for_dead_letters_they_are_terminated(js, subject, publish, consume, acks, is_settled):
    await js.publish(subject, b"no event")
    await publish(1)
    async with consume(dead_letter=None) as consumer, await take(consumer):
        assert await after(acks.get()) == b"+TERM"
    await is_settled()


async def test_a_rejected_event_is_a_dead_letter_at_once(publish, consume, is_settled, dead_letters):
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
async def test_data_of_another_type_is_a_dead_letter_at_once(
    js, subject, publish, consume, is_settled, options, dead_letters
):
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
    told, _ = DeadLetter.split(letter.headers)
    assert (told.reason, told.error, told.deliveries) == (Reason.REJECTED, "data-mismatch", 1)
    assert "`$.n`" in told.text
    assert letter.data == b'{"n":"two"}'
    await is_settled()


async def test_a_block_may_settle_its_message_itself(publish, consume, acks, is_settled):
    await publish(1)
    async with consume() as consumer:
        async with (delivery := await take(consumer)):
            await delivery.nak(0.001)
        assert await after(acks.get()) == b'-NAK {"delay": 1000000}'
        async with (delivery := await take(consumer)):
            await delivery.nak()
        assert await after(acks.get()) == b"-NAK"
        async with (delivery := await take(consumer)):
            await delivery.ack()
            await delivery.reject()  # too late
        assert await after(acks.get()) == b""
    await is_settled()
    assert acks.empty()


async def test_a_message_acknowledged_with_nats_py_is_left_alone(publish, consume, acks, is_settled):
    await publish(1)
    async with consume() as consumer, (delivery := await take(consumer)):
        await delivery.message.ack()
    await is_settled()
    assert await after(acks.get()) == b""
    assert acks.empty()


async def test_a_cancelled_block_gives_its_message_back_at_once(publish, consume, acks):
    async def hang(consumer, entered):
        async with await take(consumer):
            entered.set()
            await asyncio.Event().wait()

    await publish(1)
    async with consume(backoff=[100]) as consumer:
        entered = asyncio.Event()
        task = asyncio.create_task(hang(consumer, entered))
        await after(entered.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await after(acks.get()) == b"-NAK"
        async with (delivery := await take(consumer)):
            assert delivery.deliveries == 2


async def test_cancelled_while_its_dead_letter_is_stored_a_message_is_given_back(
    nc, js, subject, publish, consume, acks
):
    async def fail(consumer):
        async with await take(consumer):
            raise Reject

    await publish(1)
    silent = await nc.subscribe(f"silent.{subject}")
    await js.add_stream(name="silent", subjects=[f"silent.{subject}"], storage="memory")
    async with consume(dead_letter=f"silent.{subject}") as consumer:
        await js.delete_stream("silent")
        task = asyncio.create_task(fail(consumer))
        await silent.next_msg(SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await after(acks.get()) == b"-NAK"


async def test_a_double_acknowledgement_is_confirmed(js, stream, publish, consume):
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
    """Have the messages of the stream delivered a number of times, without an outcome."""

    async def deliver(times, name="c"):
        await js.add_consumer(stream, ConsumerConfig(durable_name=name, ack_wait=60))
        earlier = await js.pull_subscribe_bind(name, stream)
        for _ in range(times):
            for message in await earlier.fetch(1, timeout=SECONDS):
                await message.nak()
        await earlier.unsubscribe()

    return deliver


async def test_messages_delivered_too_often_are_handled_before_they_are_dead_lettered(
    publish, consume, dead_letters, deliver_without_outcome
):
    """The server counts deliveries of which no handler knows."""
    await publish(1)
    await deliver_without_outcome(3)
    async with consume(max_deliveries=2) as consumer:
        with pytest.raises(OSError, match="disk"):
            async with await take(consumer):
                raise OSError("disk")
    (letter,) = await dead_letters(1)
    known = DeadLetter.split(letter.headers)[0]
    assert (known.reason, known.error, known.deliveries) == (Reason.EXHAUSTED, "OSError", 4)


@pytest.mark.parametrize("has_dead_letter", [True, False])
async def test_messages_without_an_outcome_are_not_handled_for_ever(
    publish, consume, dead, dead_letters, deliver_without_outcome, is_settled, caplog, has_dead_letter
):
    """Their handlers did not live to say what happened. It is logged and reported how they end."""
    await publish(1)
    await deliver_without_outcome(7)
    reported = []
    options = {
        "max_deliveries": 2,
        "on_error": lambda error, delivery: reported.append((error.code, delivery.sequence)),
    }
    async with consume(**options, dead_letter=dead if has_dead_letter else None) as consumer:
        reader = asyncio.create_task(anext(consumer))
        await is_settled()
        reader.cancel()
    assert reported == [("process-ended", 1)]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    ending = f"dead-lettered to {dead}" if has_dead_letter else "terminated without a dead letter"
    assert record.getMessage().endswith(f"8 deliveries, and none had an outcome; {ending}")
    letters = [DeadLetter.split(letter.headers)[0] for letter in await dead_letters(int(has_dead_letter))]
    assert all((known.reason, known.deliveries) == (Reason.PROCESS_ENDED, 8) for known in letters)


async def test_invalid_messages_without_a_dead_letter_are_reported(js, subject, consume, is_settled, caplog):
    await js.publish(subject, b"no event")
    reported = []
    async with consume(dead_letter=None, on_error=lambda error, _: reported.append(error.code)) as consumer:
        reader = asyncio.create_task(anext(consumer))
        await is_settled()
        reader.cancel()
    assert reported == ["not-a-cloudevent"]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().endswith("; terminated without a dead letter")


async def test_a_hook_for_errors_that_raises_stops_nothing(publish, consume, is_settled, caplog):
    await publish(1, 2)

    def fail(error, delivery):
        raise KeyError("hook")

    async with consume(on_error=fail) as consumer:
        seen = []

        async def handle(delivery):
            seen.append(delivery.sequence)
            if len(seen) == 1:
                raise OSError("disk")
            if len(seen) == 3:
                consumer.stop()

        await after(consumer.run(handle))
    assert sorted(seen) == [1, 1, 2]
    assert "must not raise" in caplog.text
    await is_settled()


async def test_a_limit_of_the_consumer_counts(js, stream, publish, consume, dead_letters, caplog):
    """The server would give up in silence after its own number of deliveries."""
    await publish(1)
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", max_deliver=2))
    async with consume() as consumer:
        assert "max_deliver is 2, so the server drops a message without a report" in caplog.text
        for _ in range(2):
            with pytest.raises(OSError, match="disk"):
                async with await take(consumer):
                    raise OSError("disk")
    await dead_letters(1)


# --- Holding and giving back -----------------------------------------------------------------------------------------


async def test_long_handlers_keep_their_messages(publish, consume, acks, is_settled):
    """And so do messages that wait for their turn."""
    await publish(1, 2)
    async with consume(ack_wait=1.5) as consumer:
        async with (delivery := await take(consumer)):
            for _ in range(2 * 4):  # at a third of ack_wait, for two messages
                assert await after(acks.get()) == b"+WPI"
            assert delivery.deliveries == 1
        async with (delivery := await take(consumer)):
            assert (delivery.sequence, delivery.deliveries) == (2, 1)
    await is_settled()


async def test_a_message_that_comes_again_while_it_is_held_is_one_delivery(nc, publish, consume, is_settled):
    await publish(1, 2)
    async with consume() as consumer:
        async with (delivery := await take(consumer)) as event:
            await nc.publish(delivery.message.reply, b"-NAK")  # the server does so by itself when ack_wait is over
            await until(lambda: delivery.deliveries == 2)
            assert number_of(event) == 1
        async with await take(consumer) as event:
            assert number_of(event) == 2
    await is_settled()


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_what_was_fetched_and_not_handled_goes_to_others_at_once(publish, consume, is_settled, prefetch):
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


async def test_what_is_on_its_way_goes_to_others_at_once(js, subject, stream, make_event, consume, is_settled):
    """Events so large that most are still on their way when the first one is there."""
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


async def test_a_cancelled_wait_loses_nothing(js, subject, publish, consume, dead_letters, is_settled):
    """Neither for an event nor while a dead letter is stored, wherever the cancellation strikes."""
    async with consume() as consumer:
        delivery = None
        for turns in range(60):
            if turns == 10:
                await js.publish(subject, b"no event")
                await publish(2)
            reader = asyncio.create_task(anext(consumer))
            for _ in range(turns):
                await asyncio.sleep(0)
            reader.cancel()
            got: Any = (await asyncio.gather(reader, return_exceptions=True))[0]
            if not isinstance(got, asyncio.CancelledError):
                delivery = got
                break
        async with delivery or await take(consumer) as event:
            assert number_of(event) == 2
        await is_settled()
    await dead_letters(1)


async def test_stopping_lets_handlers_finish(publish, consume, is_settled):
    await publish(*range(10))
    handled = []

    async with consume() as consumer:

        async def handle(delivery):
            consumer.stop()
            await asyncio.sleep(0)
            handled.append(number_of(delivery.event))

        await after(consumer.run(handle))
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
    assert handled == [0]
    async with consume() as consumer:
        async for delivery in consumer:
            async with delivery as event:
                handled.append(number_of(event))
            if len(handled) == 10:
                consumer.stop()
    assert sorted(handled) == list(range(10))
    await is_settled()


# --- What is no event, and headers alone -----------------------------------------------------------------------------


async def test_tombstones_are_neither_events_nor_errors(js, subject, dead, make_event, dead_letters, is_settled):
    bucket = subject.replace(".", "_")
    kv = await js.create_key_value(bucket=bucket, history=5, storage="memory")
    event = to_nats_message(make_event(1), mode=ContentMode.STRUCTURED)
    await kv.put("a", event.data)
    await kv.delete("a")
    await kv.purge("b")
    await kv.put("b", event.data)
    async with PullConsumer(
        js, f"KV_{bucket}", "c", dead_letter=dead, config=ConsumerConfig(), on_error=None
    ) as consumer:
        for _ in range(1):
            async with await take(consumer) as event:
                assert number_of(event) == 1
        async with (delivery := await take(consumer)):
            assert delivery.message.subject.endswith(".b")
        await is_settled("c", f"KV_{bucket}")
    await dead_letters(0)
    await js.delete_key_value(bucket)


async def test_headers_alone_give_attributes(publish, consume, js, subject, make_event, is_settled, dead_letters):
    await publish(1)
    await ce_js.publish(js, make_event(2), subject)
    await ce_js.publish(js, make_event(3, {"n": 3}), subject, mode=ContentMode.STRUCTURED)
    await js.publish(subject, b'{"specversion":"1.0","id":"event 4","source":"s","type":"t","data":4}')
    await js.publish(subject, b"no event")
    await js.publish(subject, b"")
    async with consume(headers_only=True) as consumer:
        events = []
        for _ in range(4):
            async with await take(consumer) as event:
                events.append(event)
        reader = asyncio.create_task(anext(consumer))
        letters = await dead_letters(2)
        reader.cancel()
    assert [number_of(event) for event in events] == [1, 2, 3, 4]
    assert [event.get_data() for event in events] == [NotDelivered(len(b'{"n":1}')), None, {"n": 3}, 4]
    assert [event.has_data for event in events] == [True, False, True, True]
    with pytest.raises(EncodeError):
        to_nats_message(events[0])
    assert letters[0].data == b"no event"
    await is_settled()


# --- The consumer on the server --------------------------------------------------------------------------------------


async def test_an_idle_consumer_goes_on(publish, consume, monkeypatch):
    """Requests expire, and heartbeats come meanwhile; neither is a message."""
    monkeypatch.setattr("ce_nats.aio.consumer._fetch._EXPIRES_SECONDS", 0.25)
    monkeypatch.setattr("ce_nats.aio.consumer._fetch._HEARTBEAT_SECONDS", 0.1)
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until(lambda: consumer._fetcher._number >= 3)
        await publish(1)
        async with await after(reader) as event:
            assert number_of(event) == 1


async def test_a_consumer_that_is_gone_before_it_is_asked_ends_the_iteration(js, stream, publish, consume):
    await publish(1)
    async with consume(prefetch=1) as consumer:
        await until(lambda: consumer._holder._ready)
        await js.delete_consumer(stream, "c")
        async with await take(consumer):
            pass
        with pytest.raises(DeliveryError, match=r"^consumer-not-found: .*: it was deleted"):
            await take(consumer)


async def test_unanswered_requests_to_a_deleted_consumer_end_the_iteration(js, stream, publish, consume, monkeypatch):
    """nats-server 2.10.25 does not answer them; here a subscriber hides that nobody does."""
    monkeypatch.setattr("ce_nats.aio.consumer._fetch._MAX_IDLE_SECONDS", 0.5)
    await publish(1)
    async with consume(prefetch=1) as consumer:
        await until(lambda: consumer._holder._ready)
        await js._nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c")
        await js.delete_consumer(stream, "c")
        async with await take(consumer):
            pass
        with pytest.raises(DeliveryError, match=r"^consumer-not-found: .*: it was deleted"):
            await take(consumer)


@pytest.mark.parametrize("method", ["deleted", "with its stream"])
async def test_a_consumer_that_is_gone_ends_the_iteration(js, stream, subject, consume, method):
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until(lambda: consumer._fetcher._request)
        await consumer._nc.flush()
        if method == "deleted":
            await js.delete_consumer(stream, "c")
        else:
            await js.delete_stream(stream)
        with pytest.raises(DeliveryError, match=rf"^consumer-not-found: consumer c of stream {stream}"):
            await after(reader)
        with pytest.raises(DeliveryError):
            await take(consumer)
    if method != "deleted":
        await js.add_stream(name=stream, subjects=[subject])


async def test_a_connection_that_is_closed_ends_the_iteration(server, stream, dead):
    import nats

    other = await nats.connect(server.url)
    async with PullConsumer(other.jetstream(), stream, "c", dead_letter=dead, config=ConsumerConfig()) as consumer:
        reader = asyncio.create_task(anext(consumer))
        await other.close()
        with pytest.raises(DeliveryError, match=r"^connection-closed: "):
            await after(reader)


async def test_a_limit_on_requests_is_named(nc, js, stream, publish, consume):
    """Once there is a message: the first request is for one."""
    await publish(1)
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "max_batch": 10}
    request = msgspec.json.encode({"stream_name": stream, "config": config})
    await nc.request(f"$JS.API.CONSUMER.CREATE.{stream}.c", request)
    async with consume() as consumer:
        async with await take(consumer):
            pass
        with pytest.raises(DeliveryError, match=r"^incompatible-config: .*Exceeded MaxRequestBatch of 10"):
            await take(consumer)


async def test_only_pull_consumers_with_single_acknowledgements_will_do(js, stream, consume):
    await js.add_consumer(stream, ConsumerConfig(durable_name="push", deliver_subject="x", ack_policy="explicit"))
    await js.add_consumer(stream, ConsumerConfig(durable_name="all", ack_policy="all"))
    for name in ("push", "all"):
        with pytest.raises(DeliveryError, match=r"^incompatible-config: .*one by one"):
            await consume(name).__aenter__()
    with pytest.raises(DeliveryError, match=r"^consumer-not-found: "):
        await consume("other", config=None).__aenter__()
    with pytest.raises(DeliveryError, match=r"^stream-not-found: "):
        await PullConsumer(js, "NOSTREAM", "c", dead_letter=None, config=ConsumerConfig()).__aenter__()
    with pytest.raises(DeliveryError, match=r"^not-open: .*entered first"):
        await anext(consume())


async def test_an_existing_consumer_is_used_unchanged(js, stream, publish, consume, caplog):
    """And the log says in what it differs from the configuration that was given."""
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_wait=7, description="theirs"))
    await publish(1)
    async with consume(ack_wait=60) as consumer, await take(consumer):
        pass
    config = (await js.consumer_info(stream, "c")).config
    assert (config.ack_wait, config.description) == (7, "theirs")
    (record,) = caplog.records
    assert record.getMessage() == (
        f"consumer c of stream {stream} exists, and its configuration is not that of config=: ack_wait is 7.0, not 60"
    )
    async with consume(ack_wait=7):
        pass
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dead_letter": "dead.>"}, EncodeError),
        ({"name": "a.b"}, EncodeError),
        ({"name": "a b"}, EncodeError),
        ({"prefetch": 0}, ValueError),
        ({"max_deliveries": 0}, ValueError),
        ({"backoff": []}, ValueError),
        ({"dialect": "esperanto"}, ValueError),
        ({"mode": "batch"}, ValueError),
        ({"extension_types": 5}, TypeError),
    ],
)
async def test_options_that_make_no_sense_are_refused(consume, options, error):
    with pytest.raises(error):
        consume(**options)


async def test_options_reach_the_decoder(js, subject, stream, consume):
    await js.publish(
        subject,
        b"[1]",
        headers={
            "ce-specversion": "1.0",
            "ce-id": "event%201 100%",
            "ce-source": "s",
            "ce-type": "t",
            "ce-n": "5",
            "content-type": "application/json",
        },
    )
    options = {"dialect": "sdk-go", "parse_data": False, "extension_types": {"n": int}}
    async with consume(**options) as consumer, await take(consumer) as event:
        assert (event.get_id(), event.get_extension("n"), event.get_data()) == ("event%201 100%", 5, b"[1]")
