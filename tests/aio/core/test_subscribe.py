import asyncio
import random
from collections import Counter

import nats
import nats.errors
import pytest

from ce_nats import DecodeError, Dialect, EncodeError
from ce_nats.aio import connect, events, flush, publish, subscribe
from ce_nats.codec.event import NotDelivered

# Messages of sdk-go's protocols, as captured on a socket (INTEROP W1 to W4).
SDK_GO_JSON = (
    b'{"specversion":"1.0","id":"id 1","source":"/src/%C3%BC?q=a b","type":"com.example.t",'
    b'"subject":"Euro \xe2\x82\xac \xf0\x9f\x98\x80 100% \\"q\\"","datacontenttype":"application/json",'
    b'"time":"2020-01-02T01:04:05.123456789Z","data":{"a":1},"exbin":"AAEC/w==","exbool":true,"exint":42}'
)
SDK_GO_BINARY = (
    b"ce-id: id 1\r\nce-datacontenttype: application/json\r\n"
    b'ce-subject: Euro \xe2\x82\xac \xf0\x9f\x98\x80 100% "q"\r\n'
    b"ce-time: 2020-01-02T03:04:05.123456789+02:00\r\nce-exbool: true\r\nce-exint: 42\r\n"
    b"ce-source: /src/%C3%BC?q=a b\r\nce-specversion: 1.0\r\nce-type: com.example.t\r\nce-exbin: [0 1 2 255]\r\n"
)
MINIMAL = b"ce-id: 1\r\nce-source: s\r\nce-specversion: 1.0\r\nce-type: t\r\n"


async def take(received, count):
    """Return the next messages."""
    return [await asyncio.wait_for(anext(received), 30) for _ in range(count)]


@pytest.fixture
def send(nc, subject, make_event):
    """Return a function that publishes events with these numbers, which have then arrived."""

    async def send(*numbers):
        for number in numbers:
            await publish(nc, make_event(number), subject)
        await flush(nc)

    return send


async def test_events_arrive_in_order(nc, subject, make_event):
    async with await subscribe(nc, subject) as received:
        for number in range(3):
            await publish(nc, make_event(number, {"n": number}), subject)
        items = await take(received, 3)
    assert [item.event.get_data() for item in items] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [item.message.headers["ce-id"] for item in items] == ["event%200", "event%201", "event%202"]
    assert [item.error for item in items] == [None, None, None]


async def test_undecodable_message_is_yielded_with_its_error(nc, subject, make_event):
    async with await subscribe(nc, subject) as received:
        await publish(nc, make_event(1), subject)
        await nc.publish(subject, b"payload", headers={"ce-id": "100%"})
        await publish(nc, make_event(2), subject)
        good, bad, next_good = await take(received, 3)
    assert (good.event.get_id(), next_good.event.get_id()) == ("event 1", "event 2")
    assert (bad.error.code, bad.message.data) == ("invalid-percent-escape", b"payload")
    assert bad.message.headers == {"ce-id": "100%"}
    with pytest.raises(DecodeError) as info:
        _ = bad.event
    assert info.value is bad.error


async def test_repr_of_a_received_message(nc, subject, make_event):
    async with await subscribe(nc, subject) as received:
        await publish(nc, make_event(), subject)
        await nc.publish(subject, b"{", headers={"Content-Type": "application/cloudevents+json"})
        good, bad = await take(received, 2)
    assert "event 1" in repr(good)
    assert "invalid-json" in repr(bad)


async def test_options_are_passed_to_the_decoder(nc, subject):
    received = await subscribe(nc, subject, parse_data=False, extension_types={"n": int})
    headers = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0", "ce-n": "5"}
    await nc.publish(subject, b"{}", headers={**headers, "ce-datacontenttype": "application/json"})
    ((item),) = await take(received, 1)
    assert item.event.get_data() == b"{}"
    assert item.event.get_extension("n") == 5


async def test_end_of_the_block_unsubscribes(nc, subject, make_event):
    async with await subscribe(nc, subject) as received:
        await publish(nc, make_event(), subject)
        await take(received, 1)
    await publish(nc, make_event(), subject)
    await flush(nc)
    assert received.subscription.delivered == 1
    assert [item async for item in received] == []
    await received.stop()  # the second call does nothing


async def test_closed_connection_ends_the_iteration(server, subject):
    nc = await nats.connect(server.url)
    async with await subscribe(nc, subject) as received:
        waiting = asyncio.create_task(anext(received, None))
        await asyncio.sleep(0.01)
        await nc.close()
        assert await asyncio.wait_for(waiting, 30) is None


async def test_timeout_does_not_end_the_iteration(nc, subject, make_event):
    async with await subscribe(nc, subject) as received:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(received), 0.02)
        await publish(nc, make_event(), subject)
        ((item),) = await take(received, 1)
        assert item.event.get_id() == "event 1"


async def test_queue_group_distributes_messages(nc, server, subject, send):
    other = await nats.connect(server.url)
    groups = [await subscribe(connection, subject, queue="workers") for connection in (nc, other)]
    await flush(other)
    await send(*range(20))
    await flush(other)
    ids: Counter[str] = Counter()
    for group in groups:
        ids.update(item.event.get_id() for item in await take(group, group.subscription.pending_msgs))
    assert ids == {f"event {number}": 1 for number in range(20)}
    await other.close()


async def test_existing_subscription_is_accepted(nc, js, subject, stream, make_event):
    """Also of a push consumer: messages can be acknowledged through ``message``."""
    await publish(nc, make_event(), subject)
    subscription = await js.subscribe(subject, stream=stream, manual_ack=True)
    ((item),) = await take(events(subscription), 1)
    assert item.event.get_id() == "event 1"
    await item.message.ack_sync()
    assert (await subscription.consumer_info()).num_ack_pending == 0
    await subscription.unsubscribe()


async def test_subscription_with_a_callback_is_rejected(nc, subject):
    async def callback(message):
        pass

    subscription = await nc.subscribe(subject, cb=callback)
    with pytest.raises(ValueError, match=r"^subscription must have no callback"):
        events(subscription)


async def test_invalid_subject_is_rejected(nc):
    with pytest.raises(EncodeError) as info:
        await subscribe(nc, "a..b")
    assert info.value.code == "invalid-subject"


# --- Cancelled and concurrent iterations ------------------------------------------------------------------------------


def number_of(item):
    return int(item.event.get_id().removeprefix("event "))


async def turns_until(condition):
    """Wait until the first turn of the event loop at which a condition holds."""
    for _ in iter(condition, True):
        await asyncio.sleep(0)


@pytest.mark.faults
async def test_timeouts_around_an_iteration_lose_no_message(nc, server, subject, make_event):
    """Messages from another thread, because those of this event loop would never arrive just before a timeout."""
    count, seconds = 0, 0.001

    async def send():
        nonlocal count
        async with connect(server.url) as sender:
            while count < 2000 or timeouts <= 100:
                await publish(sender, make_event(count), subject)
                await flush(sender)
                count += 1
                await asyncio.sleep(random.uniform(0, seconds * 1.5))

    numbers, timeouts = [], 0
    async with subscribe(nc, subject) as received:
        sending = asyncio.create_task(asyncio.to_thread(asyncio.run, send()))
        while not sending.done() or received.subscription.delivered < count or received.subscription.pending_msgs:
            try:
                numbers.append(number_of(await asyncio.wait_for(anext(received), seconds)))
            except asyncio.TimeoutError:
                timeouts += 1
        await sending
    assert numbers == list(range(count))


@pytest.mark.parametrize("turns", range(10))
async def test_iteration_cancelled_at_any_turn_of_the_loop_loses_no_message(nc, subject, make_event, turns):
    """The message is in the queue at the first turn, and returned at one of the next ones."""
    async with subscribe(nc, subject) as received:
        waiting = asyncio.create_task(anext(received))
        await asyncio.sleep(0)
        await publish(nc, make_event(1), subject)
        await turns_until(lambda: received.subscription.delivered > 0)
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        (result,) = await asyncio.gather(waiting, return_exceptions=True)
        await publish(nc, make_event(2), subject)
        if isinstance(result, asyncio.CancelledError):
            result = await asyncio.wait_for(anext(received), 30)
        following = await asyncio.wait_for(anext(received), 30)
    assert (number_of(result), number_of(following)) == (1, 2)


async def test_message_of_a_cancelled_task_goes_to_a_waiting_task(nc, subject, make_event):
    async with subscribe(nc, subject) as received:
        first, second = (asyncio.create_task(anext(received)) for _ in range(2))
        await asyncio.sleep(0)
        await publish(nc, make_event(1), subject)
        await turns_until(lambda: received.subscription.pending_msgs > 0 or first.done())
        first.cancel()
        results = await asyncio.gather(first, return_exceptions=True)
        if isinstance(results[0], asyncio.CancelledError):
            results.append(await asyncio.wait_for(second, 30))
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
    assert [number_of(one) for one in results if not isinstance(one, BaseException)] == [1]


async def test_tasks_with_timeouts_share_all_messages(nc, subject, make_event):
    count, numbers = 3000, []

    async def read():
        while len(numbers) < count:
            try:
                item = await asyncio.wait_for(anext(received), random.uniform(0, 0.002))
            except asyncio.TimeoutError:
                continue
            numbers.append(number_of(item))
            if random.random() < 0.1:
                await asyncio.sleep(0)

    async with subscribe(nc, subject) as received:
        readers = [asyncio.create_task(read()) for _ in range(8)]
        for number in range(count):
            await publish(nc, make_event(number), subject)
            if not number % 10:
                await flush(nc)
        await asyncio.wait_for(asyncio.gather(*readers), 60)
        assert received.subscription.pending_bytes == 0
    assert sorted(numbers) == list(range(count))


async def test_end_is_seen_by_all_waiting_tasks_and_later_iterations(nc, subject):
    async with subscribe(nc, subject) as received:
        again = events(received.subscription)
        waiting = [asyncio.create_task(anext(one, None)) for one in (received, received, again)]
        await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [None] * 3
    assert [item async for item in again] == []


async def test_messages_that_were_received_before_the_end_are_yielded(nc, subject, send):
    received = await subscribe(nc, subject)
    await send(*range(3))
    await received.stop()
    assert [number_of(item) async for item in received] == [0, 1, 2]


async def test_iteration_ends_at_the_limit_of_unsubscribe(nc, subject, send):
    received = events(await nc.subscribe(subject))
    await received.subscription.unsubscribe(limit=3)
    await send(*range(5))
    assert [number_of(item) async for item in received] == [0, 1, 2]


async def test_iteration_of_subscribe_ends_at_the_limit_of_unsubscribe(nc, subject, send):
    """Messages that nats-py has processed follow the raw ones."""
    received = await subscribe(nc, subject)
    await send(*range(2))
    await received.subscription.unsubscribe(limit=4)
    await send(*range(2, 6))
    assert [number_of(item) async for item in received] == [0, 1, 2, 3]


async def test_drain_waits_until_raw_messages_are_taken(nc, subject, send):
    received = await subscribe(nc, subject)
    await send(*range(3))
    draining = asyncio.create_task(received.subscription.drain())
    assert [number_of(item) for item in await take(received, 2)] == [0, 1]
    await flush(nc)
    assert not draining.done()
    assert [number_of(item) async for item in received] == [2]
    await draining


async def test_iteration_without_pauses_lets_other_tasks_run(nc, subject, send):
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    received = await subscribe(nc, subject)
    await send(*range(1000))
    await received.stop()
    counting = asyncio.create_task(count_turns())
    assert [number_of(item) async for item in received] == list(range(1000))
    assert turns > 5
    counting.cancel()


async def test_cancelled_error_of_validate_does_not_cancel_the_caller(nc, subject, make_event):
    def validate(event):
        raise asyncio.CancelledError

    async with subscribe(nc, subject, validate=validate) as received:
        await publish(nc, make_event(1), subject)
        with pytest.raises(RuntimeError, match=r"^validate must not raise CancelledError$"):
            await asyncio.wait_for(anext(received), 30)


# --- Messages of other SDKs, of the server and of nats-py ------------------------------------------------------------


async def test_w1_structured_event_without_headers(nc, subject, send_raw):
    async with await subscribe(nc, subject) as received:
        send_raw(subject, None, SDK_GO_JSON)
        ((item),) = await take(received, 1)
    assert item.message.headers is None
    assert item.event.get_subject() == 'Euro € 😀 100% "q"'
    assert str(item.event.get_time()) == "2020-01-02T01:04:05.123456789Z"
    assert (item.event.get_extension("exbool"), item.event.get_extension("exint")) == (True, 42)


async def test_w2_binary_event_of_sdk_go_needs_its_dialect(nc, subject, send_raw):
    async with (
        await subscribe(nc, subject) as strict,
        await subscribe(nc, subject, dialect=Dialect.SDK_GO) as lenient,
    ):
        send_raw(subject, SDK_GO_BINARY, b'{"a":1}')
        (refused,), (taken,) = await take(strict, 1), await take(lenient, 1)
    assert (refused.error.code, refused.error.attribute) == ("invalid-percent-escape", "subject")
    assert taken.event.get_source() == "/src/%C3%BC?q=a b"
    assert taken.event.get_subject() == 'Euro € 😀 100% "q"'
    assert taken.event.get_data() == {"a": 1}


async def test_w3_binary_event_without_data(nc, subject, send_raw):
    async with await subscribe(nc, subject) as received:
        send_raw(subject, MINIMAL)
        ((item),) = await take(received, 1)
    assert item.event.get_attributes() == {"id": "1", "source": "s", "specversion": "1.0", "type": "t"}
    assert item.event.has_data is False


async def test_w4_message_id_does_not_make_binary_mode(nc, subject, send_raw):
    async with await subscribe(nc, subject) as received:
        send_raw(subject, b"Nats-Msg-Id: id 1\r\n", SDK_GO_JSON)
        ((item),) = await take(received, 1)
    assert item.event.get_id() == "id 1"


async def test_w5_republished_event(nc, js, subject):
    """RePublish adds headers to an event without headers."""
    name = subject.replace(".", "_")
    republish = nats.js.api.RePublish(src=f"{subject}.in", dest=f"{subject}.out")
    await js.add_stream(name=name, subjects=[f"{subject}.in"], republish=republish)
    async with await subscribe(nc, f"{subject}.out") as received:
        await js.publish(f"{subject}.in", SDK_GO_JSON)
        ((item),) = await take(received, 1)
    assert item.message.headers["Nats-Stream"] == name
    assert item.event.get_id() == "id 1"
    await js.delete_stream(name)


async def test_w6_headers_without_payload(nc, js, subject, stream, make_event):
    """A headers-only consumer delivers attributes of binary mode without data, and nothing of a JSON event."""
    await publish(nc, make_event(data=b"12345"), subject)
    await js.publish(subject, SDK_GO_JSON)
    subscription = await js.subscribe(subject, stream=stream, headers_only=True, manual_ack=True)
    binary, structured = await take(events(subscription), 2)
    assert binary.message.headers["Nats-Msg-Size"] == "5"
    assert (binary.event.get_id(), binary.event.get_data()) == ("event 1", NotDelivered(5))
    assert structured.error.code == "not-a-cloudevent"
    assert "headers only" in structured.error.message
    await subscription.unsubscribe()


async def test_w7_tombstone_is_reported(nc, js, subject):
    bucket = subject.replace(".", "_")
    values = await js.create_key_value(bucket=bucket)
    async with await subscribe(nc, f"$KV.{bucket}.>") as received:
        await values.delete("key")
        ((item),) = await take(received, 1)
    assert item.message.headers["KV-Operation"] == "DEL"
    assert item.error.code == "not-a-cloudevent"
    await js.delete_key_value(bucket)


async def test_status_message_is_skipped(nc, subject, make_event):
    """The no-responders status 503 of the server arrives between events."""
    async with await subscribe(nc, subject) as received:
        await publish(nc, make_event(1), subject)
        await nc.publish(f"no.subscriber.{subject}", b"", reply=subject)
        await publish(nc, make_event(2), subject)
        items = await take(received, 2)
    assert received.subscription.delivered == 3
    assert [item.event.get_id() for item in items] == ["event 1", "event 2"]


async def test_control_messages_of_batches_are_skipped(nc, subject, make_event):
    async with subscribe(nc, subject) as received:
        for operation in (3, 4):
            await nc.publish(subject, b"", reply=f"_INBOX.a.b.100.fail.7.{operation}.$FI")
        await nc.publish(subject, b"", reply="_INBOX.a.b.100.fail.7.1.$FI")
        await publish(nc, make_event(1), subject)
        assert (await anext(received)).error is not None  # an empty message of a batch
        assert (await anext(received)).event.get_id() == "event 1"


async def test_header_named_status_does_not_hide_a_message(nc, subject, make_event):
    async with await subscribe(nc, subject) as received:
        await publish(nc, make_event(1), subject, headers={"Status": "503"})
        await nc.publish(subject, b"not an event", headers={"Status": "503"})
        await nc.publish(subject, b"", headers={"Status": "shipped"})
        await nc.publish(subject, b"", headers={"Status": "503", "ce-id": "1"})
        event, text, empty, broken = await take(received, 4)
    assert event.event.get_id() == "event 1"
    assert (text.error.code, empty.error.code) == ("not-a-cloudevent", "not-a-cloudevent")
    assert broken.error.code == "missing-attribute"


async def test_duplicate_attribute_is_an_error(nc, subject, send_raw):
    """For a subscription of the caller, nats-py's dict hides it."""
    async with await subscribe(nc, subject) as received, events(await nc.subscribe(subject)) as by_nats_py:
        await flush(nc)
        send_raw(subject, MINIMAL + b"ce-id: 2\r\n")
        (item,), (last,) = await take(received, 1), await take(by_nats_py, 1)
    assert (item.error.code, item.error.attribute) == ("duplicate-attribute", "id")
    assert item.message.headers["ce-id"] == "2"
    assert last.event.get_id() == "2"


async def test_message_of_nats_py_is_created_once(nc, subject, send_raw):
    async with await subscribe(nc, subject) as received:
        send_raw(subject, MINIMAL + b"a: 1\r\nA: 2\r\nb: \xff\r\n", b"data", reply="answers")
        ((item),) = await take(received, 1)
    message = item.message
    assert item.message is message
    assert (message.subject, message.reply, message.data) == (subject, "answers", b"data")
    assert (message.headers["a"], message.headers["A"], message.headers["b"]) == ("1", "2", "\ufffd")
    assert message.sid == received._sid
    assert (item.subject, item.sequence, item.deliveries) == (subject, 0, 1)


@pytest.mark.parametrize("validates", [False, True])
async def test_malformed_header_block_and_subject_are_errors(nc, subject, send_raw, validates):
    async with await subscribe(nc, f"{subject}.*", validate=(lambda event: None) if validates else None) as received:
        send_raw(f"{subject}.a", MINIMAL + b"no colon\r\n")
        await nc.publish(f"{subject}.ü", SDK_GO_JSON)
        malformed, valid = await take(received, 2)
        raw = (b"\xff", b"", SDK_GO_JSON, None)
        received._queue._receive([raw])
        ((other),) = await take(received, 1)
    assert malformed.error.code == "invalid-header-block"
    assert valid.event.get_id() == "id 1"
    assert valid.subject == f"{subject}.ü"
    assert (other.error.code, other.subject) == ("invalid-utf8", "\ufffd")


async def test_any_header_block_yields_a_message(nc, subject, send_raw):
    """Malformed lines and non-UTF-8 bytes: each message is yielded."""
    blocks = [b"no colon\r\n", b"ce-id: \xff\r\n", b" folded: x\r\n", b": no name\r\n", b"\xff: x\r\n", b"\0\0: \0\r\n"]
    async with await subscribe(nc, subject) as received:
        for block in blocks:
            send_raw(subject, block, b"{}")
        items = await take(received, len(blocks))
    assert all(item.error for item in items)
