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
from tests.aio import waiting

SECONDS = 60  # to wait for what has to happen
until = partial(waiting.until, seconds=SECONDS)


@pytest.fixture
def publish(js, subject, stream, make_event):
    """Publish events with these numbers for ids."""

    async def publish(*numbers, **options):
        for number in numbers:
            await ce_js.publish(js, make_event(number, {"n": number}), subject, **options)

    return publish


@pytest.fixture
def consume(js, stream, dead):
    """A consumer of the stream, made at its first use; retries come at once unless the test says otherwise."""

    def consume(name="c", *, ack_wait=60, headers_only=None, **options):
        create = ConsumerConfig(ack_wait=ack_wait, headers_only=headers_only)
        return PullConsumer(js, stream, name, **{"dead_letter": dead, "config": create, "backoff": [0], **options})

    return consume


@pytest.fixture
async def acks(nc):
    """What is sent about deliveries: payloads of acknowledgements, in their order."""
    sent = asyncio.Queue()

    async def note(message):
        sent.put_nowait(message.data)

    await nc.subscribe("$JS.ACK.>", cb=note)
    await nc.flush()
    return sent


@pytest.fixture
def is_settled(js, stream):
    """Wait until the consumer has nothing outstanding and has had everything."""

    async def wait(name="c", stream=stream):
        for _ in range(500):
            info = await js.consumer_info(stream, name)
            if info.num_ack_pending == info.num_pending == 0:
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"{info.num_ack_pending} unacknowledged, {info.num_pending} not delivered")

    return wait


async def after(awaitable):
    return await asyncio.wait_for(awaitable, SECONDS)


async def take(consumer):
    """The next delivery."""
    return await after(anext(consumer))


def number_of(event):
    return int(event.get_id().split()[1])


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


async def test_what_was_delivered_too_often_is_not_handled_again(js, stream, publish, consume, dead_letters):
    """Its handler did not live to say what happened."""
    await publish(1)
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_wait=0.05))
    crashing = await js.pull_subscribe_bind("c", stream)
    for _ in range(2):
        await crashing.fetch(1)
    await crashing.unsubscribe()
    async with consume(max_deliveries=2) as consumer:
        reader = asyncio.create_task(anext(consumer))
        (letter,) = await dead_letters(1)
        reader.cancel()
    known = DeadLetter.split(letter.headers)[0]
    assert (known.reason, known.error) == (Reason.EXHAUSTED, "")
    assert known.deliveries > 2


async def test_a_limit_of_the_consumer_counts(js, stream, publish, consume, dead_letters):
    """The server would give up in silence after its own number of deliveries."""
    await publish(1)
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", max_deliver=2))
    async with consume() as consumer:
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


# --- Running a handler -----------------------------------------------------------------------------------------------


async def test_handlers_run_side_by_side(publish, consume, is_settled):
    await publish(*range(40))
    running, most, numbers = set(), [], []

    async with consume() as consumer:
        four = asyncio.Event()

        async def handle(delivery):
            event = delivery.event
            running.add(number_of(event))
            most.append(len(running))
            if len(running) == 4:
                four.set()
            await after(four.wait())
            running.remove(number_of(event))
            numbers.append(number_of(event))
            if len(numbers) == 40:
                consumer.stop()

        await after(consumer.run(handle, concurrency=4))
    assert max(most) == 4
    assert sorted(numbers) == list(range(40))
    await is_settled()


async def test_failures_of_handlers_are_reported_and_the_rest_goes_on(publish, consume, is_settled, dead_letters):
    await publish(*range(5))
    reported, handled = [], []

    def report(error, delivery):
        reported.append((type(error).__name__, delivery.sequence, delivery.deliveries))

    async with consume(on_error=report) as consumer:

        async def handle(delivery):
            event = delivery.event
            number = number_of(event)
            if number == 1 and ("KeyError", 2, 1) not in reported:
                raise KeyError(number)
            if number == 2:
                raise Reject("no")
            handled.append(number)
            if len(handled) == 4:
                consumer.stop()

        await after(consumer.run(handle))
    assert sorted(handled) == [0, 1, 3, 4]
    assert reported == [("KeyError", 2, 1), ("Reject", 3, 1)]
    await dead_letters(1)
    await is_settled()


async def test_failures_are_logged(publish, consume, caplog):
    await publish(1)
    async with consume() as consumer:

        async def handle(delivery):
            consumer.stop()
            raise KeyError("customer")

        with caplog.at_level(logging.ERROR, "ce_nats"):
            await after(consumer.run(handle))
    (record,) = caplog.records
    assert "sequence 1, delivery 1: 'customer'" in record.getMessage()
    assert record.exc_info[0] is KeyError


async def test_cancelling_a_run_cancels_its_handlers(publish, consume, acks):
    await publish(1)
    async with consume(backoff=[100]) as consumer:
        entered = asyncio.Event()

        async def handle(delivery):
            entered.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(consumer.run(handle, concurrency=2))
        await after(entered.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await after(acks.get()) == b"-NAK"


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
    monkeypatch.setattr("ce_nats.aio.fetching._EXPIRES_SECONDS", 0.25)
    monkeypatch.setattr("ce_nats.aio.fetching._HEARTBEAT_SECONDS", 0.1)
    async with consume() as consumer:
        reader = asyncio.create_task(anext(consumer))
        await until(lambda: consumer._fetcher._number >= 3)
        await publish(1)
        async with await after(reader) as event:
            assert number_of(event) == 1


async def test_a_consumer_that_is_gone_before_it_is_asked_ends_the_iteration(js, stream, publish, consume):
    await publish(1)
    async with consume(prefetch=1) as consumer:
        await until(lambda: consumer._holder.ready)
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


async def test_a_limit_on_requests_is_named(nc, js, stream, consume):
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "max_batch": 10}
    request = msgspec.json.encode({"stream_name": stream, "config": config})
    await nc.request(f"$JS.API.CONSUMER.CREATE.{stream}.c", request)
    async with consume() as consumer:
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


async def test_an_existing_consumer_is_used_as_it_is(js, stream, publish, consume):
    await js.add_consumer(stream, ConsumerConfig(durable_name="c", ack_wait=7, description="theirs"))
    await publish(1)
    async with consume(ack_wait=60) as consumer, await take(consumer):
        pass
    config = (await js.consumer_info(stream, "c")).config
    assert (config.ack_wait, config.description) == (7, "theirs")


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
