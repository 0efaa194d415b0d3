import asyncio
from collections import Counter

import nats
import nats.errors
import pytest

from ce_nats import DecodeError, Dialect, EncodeError, from_nats_message
from ce_nats.aio import events, flush, publish, subscribe

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


async def test_drain_yields_received_messages_and_ends(nc, subject, make_event):
    received = await subscribe(nc, subject)
    for number in range(5):
        await publish(nc, make_event(number), subject)
    await flush(nc)
    draining = asyncio.create_task(received.subscription.drain())
    assert len([item async for item in received]) == 5
    await draining


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


async def test_queue_group_distributes_messages(nc, server, subject, make_event):
    other = await nats.connect(server.url)
    groups = [await subscribe(connection, subject, queue="workers") for connection in (nc, other)]
    await flush(other)
    for number in range(20):
        await publish(nc, make_event(number), subject)
    await flush(nc)
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
    assert (binary.event.get_id(), binary.event.get_data()) == ("event 1", None)
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


async def test_nats_py_returns_the_last_of_duplicate_attributes(nc, subject, send_raw):
    """A known limit: the duplicate-attribute error is only detected in streams, by read_stream."""
    async with await subscribe(nc, subject) as received:
        send_raw(subject, MINIMAL + b"ce-id: 2\r\n")
        ((item),) = await take(received, 1)
    assert item.event.get_id() == "2"


async def test_attributes_that_differ_in_case_are_duplicates(nc, subject, send_raw):
    async with await subscribe(nc, subject) as received:
        send_raw(subject, MINIMAL + b"CE-ID: 2\r\n")
        ((item),) = await take(received, 1)
    assert (item.error.code, item.error.attribute) == ("duplicate-attribute", "id")


async def test_any_header_block_yields_a_message(nc, subject, send_raw):
    """Malformed lines and non-UTF-8 bytes: each message is yielded."""
    blocks = [b"no colon\r\n", b"ce-id: \xff\r\n", b" folded: x\r\n", b": no name\r\n", b"\xff: x\r\n", b"\0\0: \0\r\n"]
    async with await subscribe(nc, subject) as received:
        for block in blocks:
            send_raw(subject, block, b"{}")
        items = await take(received, len(blocks))
    assert all(item.error for item in items)


async def test_reply_does_not_inherit_headers_of_the_request(nc, subject, make_event):
    """``message.respond()`` of nats-py repeats the headers of the request; publishing to ``reply`` does not."""
    answers = await nc.subscribe(f"{subject}.answers")
    async with await subscribe(nc, subject) as received:
        await publish(nc, make_event(1, ext="question"), subject, reply=f"{subject}.answers")
        ((item),) = await take(received, 1)
    await publish(nc, make_event(2), item.message.reply)
    answer = from_nats_message(await answers.next_msg())
    assert answer.get_id() == "event 2"
    assert "ext" not in answer.get_attributes()
