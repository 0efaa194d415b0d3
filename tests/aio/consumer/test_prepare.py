"""Messages that no handler gets: not events, tombstones, expired; and events without their data."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from nats.js.api import ConsumerConfig, RePublish

from ce_nats import ContentMode, EncodeError, to_nats_message
from ce_nats.aio import OutcomeKind, PullConsumer, subscribe
from ce_nats.aio import jetstream as ce_js
from ce_nats.codec.event import NotDelivered
from ce_nats.redelivery import DeadLetter, Reason
from tests.support.consuming import acks, after, consume, is_settled, number_of, publish, take

__all__ = ["acks", "consume", "is_settled", "publish"]

PAST, FUTURE = "2020-01-01T00:00:00Z", "9999-01-01T00:00:00Z"


async def test_undecodable_messages_are_dead_lettered_and_not_yielded(
    js, subject, publish, consume, is_settled, dead_letters
):
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "%C0%A0"}
    await js.publish(subject, b"no event")
    await js.publish(subject, b"", headers=headers)
    await js.publish(subject, b"", headers={"Status": "404"})  # nats-py's fetch() would drop it
    await publish(1)
    async with consume() as consumer, await take(consumer) as event:
        assert number_of(event) == 1
    await is_settled()
    letters = [DeadLetter.split(letter.headers) for letter in await dead_letters(3)]
    letters.sort(key=lambda letter: letter[0].sequence)
    assert [known.error for known, _ in letters] == ["not-a-cloudevent", "invalid-utf8", "not-a-cloudevent"]
    assert {known.reason for known, _ in letters} == {Reason.UNDECODABLE}
    assert dict(letters[1][1]) == headers


async def test_tombstones_are_neither_events_nor_errors(js, subject, dead, make_event, dead_letters, is_settled):
    bucket = subject.replace(".", "_")
    kv = await js.create_key_value(bucket=bucket, history=5, storage="memory")
    event = to_nats_message(make_event(1), mode=ContentMode.STRUCTURED)
    await kv.put("a", event.data)
    await kv.delete("a")
    await kv.purge("b")
    await kv.put("b", event.data)
    async with PullConsumer(
        js, f"KV_{bucket}", "c", dead_letter=dead, create=ConsumerConfig(), on_error=None
    ) as consumer:
        for _ in range(1):
            async with await take(consumer) as event:
                assert number_of(event) == 1
        async with (delivery := await take(consumer)):
            assert delivery.message.subject.endswith(".b")
        await is_settled("c", f"KV_{bucket}")
    await dead_letters(0)
    await js.delete_key_value(bucket)


async def test_headers_only_deliveries_have_attributes(
    publish, consume, js, subject, make_event, is_settled, dead_letters
):
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
    assert sorted(letter.data for letter in letters) == [b"", b"no event"]
    await is_settled()


async def test_copies_with_headers_only_have_attributes(
    nc, js, stream, subject, make_event, consume, is_settled, dead_letters
):
    """Of a stream with republish, for subscribers and in a stream that stores them. No event is in them to be read."""
    config = RePublish(src=f"{subject}_original", dest=subject, headers_only=True)
    await js.add_stream(name=f"{stream}_original", subjects=[f"{subject}_original"], republish=config)
    async with subscribe(nc, subject) as items:
        await ce_js.publish(js, make_event(1, {"n": 1}), f"{subject}_original")
        await ce_js.publish(js, make_event(2, {"n": 2}), f"{subject}_original", mode=ContentMode.STRUCTURED)
        first, second = [await anext(items) for _ in range(2)]
    assert first.event.data == NotDelivered(len(b'{"n":1}'))
    assert second.error.code == "not-a-cloudevent"
    with pytest.raises(EncodeError):
        to_nats_message(first.event)
    async with consume() as consumer:
        async with await take(consumer) as event:
            assert (number_of(event), event.data) == (1, NotDelivered(len(b'{"n":1}')))
        reader = asyncio.create_task(anext(consumer))
        (letter,) = await dead_letters(1)
        reader.cancel()
    assert ("Dead-Letter-Error", "not-a-cloudevent") in letter.headers
    await is_settled()
    await js.delete_stream(f"{stream}_original")


@pytest.fixture
def publish_expiring(js, subject, stream, make_event):
    """Publish an event for each value of ``expirytime``; None omits it."""

    async def publish(*values):
        for number, value in enumerate(values):
            given = {} if value is None else {"expirytime": value}
            await ce_js.publish(js, make_event(number, **given), subject)

    return publish


@pytest.mark.parametrize("double_ack", [False, True])
async def test_expired_events_are_acknowledged_and_not_yielded(publish_expiring, consume, is_settled, double_ack):
    await publish_expiring(PAST, FUTURE, PAST, None, "no timestamp", PAST)
    outcomes = []
    async with consume(skip_expired=True, double_ack=double_ack, on_outcome=outcomes.append) as consumer:
        for number in (1, 3, 4):
            async with await take(consumer) as event:
                assert number_of(event) == number
        stopping = asyncio.create_task(anext(consumer, None))
        await is_settled()
        consumer.stop()
        assert await after(stopping) is None
    kinds = {number_of(outcome.delivery.event): outcome.kind for outcome in outcomes}
    expired, handled = OutcomeKind.EXPIRED, OutcomeKind.ACKNOWLEDGED
    assert kinds == {0: expired, 1: handled, 2: expired, 3: handled, 4: handled, 5: expired}
    assert {(outcome.error, outcome.seconds) for outcome in outcomes if outcome.kind is expired} == {(None, None)}


async def test_expired_events_are_handled_by_default(publish_expiring, consume):
    await publish_expiring(PAST)
    async with consume() as consumer, await take(consumer) as event:
        assert event.extensions["expirytime"] == PAST


async def test_event_expires_after_its_leeway(publish_expiring, consume):
    now = datetime.now(timezone.utc)
    await publish_expiring(now - timedelta(hours=2), now - timedelta(minutes=1))
    async with consume(skip_expired=True, expiry_leeway=3600.0) as consumer, await take(consumer) as event:
        assert number_of(event) == 1


async def test_expired_event_is_skipped_after_a_failure(publish_expiring, consume, is_settled, dead_letters):
    """A retried event that expires meanwhile is neither handled again nor dead-lettered."""
    await publish_expiring(datetime.now(timezone.utc) + timedelta(seconds=0.5))
    handled = []
    async with consume(skip_expired=True, backoff=[0.6], max_deliveries=2) as consumer:

        async def handle(delivery):
            handled.append(delivery.deliveries)
            raise OSError("disk")

        running = asyncio.create_task(consumer.run(handle))
        await is_settled()
        consumer.stop()
        await after(running)
    assert len(handled) <= 1
    await dead_letters(0)


@pytest.mark.parametrize("leeway", [-1.0, float("inf"), float("nan")])
def test_leeway_must_be_finite(js, leeway):
    with pytest.raises(ValueError, match=r"^expiry_leeway must be a number of seconds"):
        PullConsumer(js, "S", "c", dead_letter=None, skip_expired=True, expiry_leeway=leeway)
