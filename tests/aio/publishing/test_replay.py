import asyncio

import nats
import pytest

from ce_nats import DecodeError, EncodeError, Timestamp
from ce_nats.aio import DeliveryError, PublishResult, replay
from ce_nats.aio.consumer._dead_letters import requeue
from ce_nats.aio.jetstream import configure_stream
from ce_nats.message import StoredMessage
from ce_nats.redelivery import DeadLetter, Reason
from ce_nats.testing import NatsServer
from tests.support.broker import ignore
from tests.support.reading import read, until_stored
from tests.support.waiting import until

RAW = b"a\xffb".decode("utf-8", "surrogateescape")
LETTER = DeadLetter(Reason.REJECTED, "Reject", "no such customer", "", "ORDERS", "billing", 7, 3)


def message(subject, headers=(), data=b"payload", sequence=1):
    return StoredMessage(subject, "", list(headers), data, "S", sequence, Timestamp("2026-01-02T03:04:05.123456789Z"))


async def test_messages_are_replayed_unchanged(js, stream, subject):
    """Header names that nats-py rejects, repeats, an empty value, non-UTF-8 bytes, no headers, no payload."""
    sent = [
        message(
            subject, [("ce-id", "1"), ("Tag", "b"), ("tag", "c"), ("Tag", "a"), ("(x)", ""), ("raw", RAW)], b"\0\xff"
        ),
        message(f"{subject}.ü", data=b""),
    ]
    progress = []
    result = await replay(js, sent, on_progress=progress.append)
    assert (result.messages, result.duplicates, progress) == (2, 0, [1, 2])
    found = await read(js, stream)
    assert [one[:4] for one in found] == [one[:4] for one in sent]


async def test_replay_to_core_nats_and_another_subject(nc, js, subject):
    subscription = await nc.subscribe(f"{subject}.other")
    sent = [message(subject, [("a", "1")], b"\xff"), message(subject, data=b"2")]
    result = await replay(js, sent, acknowledged=False, subject=f"{subject}.other")
    assert result.messages == 2
    first, second = await subscription.next_msg(5), await subscription.next_msg(5)
    assert (first.data, first.headers, second.data, second.headers) == (b"\xff", {"a": "1"}, b"2", None)


@pytest.mark.parametrize("is_allowed", [True, False], ids=["batches", "no batches"])
async def test_messages_of_an_atomic_batch_are_replayed_one_by_one(js, stream, subject, is_allowed):
    """A stream would keep them back until the rest of the batch arrives, or refuse them."""
    await configure_stream(js, stream, allow_atomic=is_allowed)
    batch = [("Nats-Batch-Id", "x"), ("ce-id", "1"), ("Nats-Batch-Sequence", "7"), ("Nats-Batch-Commit", "1")]
    assert (await replay(js, [message(subject, batch), message(subject)])).messages == 2
    assert [one.headers for one in await read(js, stream)] == [[("ce-id", "1")], []]


INSTRUCTIONS = [
    *(("Nats-Rollup", "all"), ("Nats-Expected-Stream", "OTHER"), ("Nats-Expected-Last-Sequence", "77")),
    *(("Nats-TTL", "1h"), ("Nats-Schedule", "@every 1s"), ("Nats-Schedule-Target", "x"), ("Nats-Incr", "+1")),
    *(("Nats-Required-Api-Level", "99"), ("Nats-Stream-Source", "OTHER 1 > >"), ("Nats-Expected-Last-Msg-Id", "x")),
]


@pytest.mark.parametrize("pair", INSTRUCTIONS, ids=lambda pair: pair[0])
async def test_copies_obey_no_instructions(js, stream, subject, pair):
    """With them the stream would delete other messages, or refuse the copy."""
    await configure_stream(js, stream, allow_rollup_hdrs=True)
    for number in range(3):
        await js.publish(subject, b"%d" % number)
    result = await replay(js, [message(subject, [("ce-id", "1"), pair]), message(subject)])
    assert (result.messages, result.stripped, result.markers) == (2, 1, 0)
    found = await read(js, stream)
    assert [one.headers for one in found] == [[], [], [], [("ce-id", "1")], []]


async def test_instructions_are_kept_on_request(js, stream, subject):
    await configure_stream(js, stream, allow_rollup_hdrs=True)
    await js.publish(subject, b"earlier")
    sent = message(subject, [("Nats-Rollup", "all"), ("Nats-Batch-Id", "x")])
    result = await replay(js, [sent], keep_instructions=True)
    assert (result.messages, result.stripped) == (1, 1)
    (found,) = await read(js, stream)
    assert found.headers == [("Nats-Rollup", "all")]


async def test_markers_of_the_server_are_not_replayed(js, stream, subject):
    marker = [("Nats-Marker-Reason", "MaxAge"), ("Nats-TTL", "1m0s")]
    progress = []
    messages = [message(subject, marker, b""), message(subject, data=b"1"), message(subject, marker, b"")]
    result = await replay(js, messages, on_progress=progress.append)
    assert (result.messages, result.stripped, result.markers, progress) == (1, 0, 2, [1])
    assert [one.data for one in await read(js, stream)] == [b"1"]


async def test_duplicates_are_counted(js, stream, subject):
    assert (await replay(js, [message(subject, [("Nats-Msg-Id", "1")])] * 3)).duplicates == 2


def with_ids(subject, count):
    return [message(subject, [("Nats-Msg-Id", str(n)), ("a", "b")], b"%d" % n) for n in range(count)]


async def test_replay_of_a_stream_into_itself_reports_that_nothing_is_stored(js, subject, batched):
    """It was reported as stored: fast ingest acknowledges duplicates without saying so."""
    assert await replay(js, with_ids(subject, 100)) == PublishResult(100, None, 100)
    stored = await read(js, batched)
    assert await replay(js, stored) == PublishResult(100, 100, 100)
    assert await read(js, batched) == stored


async def test_result_is_unknown_if_a_part_was_stored_before(js, subject, batched):
    await replay(js, with_ids(subject, 50))
    results = []
    assert (await replay(js, with_ids(subject, 100), on_end=results.append)).duplicates is None
    assert results == [PublishResult(100, None, results[0].batched)]
    assert len(await read(js, batched)) == 100


@pytest.mark.parametrize("allow_batched", [False, True])
async def test_new_ids_store_messages_again(js, stream, subject, allow_batched):
    await configure_stream(js, stream, allow_batched=allow_batched)
    originals = [*with_ids(subject, 50), message(subject, [("raw", RAW)], b"50"), message(subject, data=b"51")]
    await replay(js, originals)
    for count in (52, 104):
        assert (await replay(js, await read(js, stream), new_ids=True)).messages == count
    found = await read(js, stream)
    assert len(found) == 4 * 52
    assert [one.data for one in found] == 4 * [b"%d" % number for number in range(52)]
    ids = [value for one in found for name, value in one.headers if name == "Nats-Msg-Id"]
    assert len(ids) == len(set(ids)) == 50 + 3 * 52
    for one in found:
        others = [header for header in one.headers if header[0] != "Nats-Msg-Id"]
        assert others == originals[int(one.data)].headers[1 if int(one.data) < 50 else 0 :]


async def test_new_ids_are_stored_once_although_messages_are_resent(make_event):
    """By the new id the stream recognizes the copy, also of a message that had none."""
    with NatsServer(jetstream=True) as server:
        async with await nats.connect(server.url, reconnect_time_wait=0.05, error_cb=ignore) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s"])

            def kill(count):
                if count == 1000:
                    server.kill()
                    asyncio.get_running_loop().call_later(0.2, server.restart)

            messages = [message("s", data=b"%d" % number) for number in range(2000)]
            result = await replay(js, messages, new_ids=True, ack_timeout=0.5, window=200, on_progress=kill)
            assert result.messages == 2000
            assert sorted(int(one.data) for one in await read(js, "S")) == list(range(2000))


async def test_messages_of_core_nats_may_have_new_ids(js, subject, stream):
    original = message(subject, [("Nats-Msg-Id", "1"), ("nats-msg-id", "2"), ("Nats-Msg-Id", "3")])
    for _ in range(2):
        await replay(js, [original], acknowledged=False, new_ids=True)
    await until_stored(js, stream, 2)
    for one in await read(js, stream):
        names = [name for name, _ in one.headers]
        assert names == ["nats-msg-id", "Nats-Msg-Id"]  # the server ignores names in other cases


async def test_message_with_a_new_id_may_be_too_large(js, subject, stream):
    almost = message(subject, data=b"x" * 2**20)
    assert (await replay(js, [almost])).messages == 1
    with pytest.raises(EncodeError) as info:
        await replay(js, [almost], new_ids=True)
    assert info.value.code == "payload-too-large"


ACCOUNTS = """
accounts {
  SHOP {
    jetstream: enabled
    users: [{user: shop, password: s3cret}]
    exports: [{service: "$JS.API.>"}, {service: "orders.>"}]
  }
  OTHER {
    users: [{user: other, password: s3cret}]
    imports: [
      {service: {account: SHOP, subject: "$JS.API.>"}, to: "shop.api.>"}
      {service: {account: SHOP, subject: "orders.>"}}
    ]
  }
}
"""


async def test_messages_wait_for_a_stream_of_another_account(nc):
    """As those of a Publisher. The default prefix has no API in this account, so it said that no stream listens."""
    with NatsServer(jetstream=True, config=ACCOUNTS) as server:
        shop = await nats.connect(server.url, user="shop", password="s3cret")
        other = await nats.connect(server.url, user="other", password="s3cret")
        replaying = asyncio.create_task(
            replay(other.jetstream(prefix="shop.api"), [message("orders.new", data=b"1")], retry_timeout=60)
        )
        before = other.stats["out_msgs"]
        await until(lambda: other.stats["out_msgs"] >= before + 3)
        assert not replaying.done()
        await shop.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
        assert (await asyncio.wait_for(replaying, 60)).messages == 1
        assert [one.data for one in await read(shop.jetstream(), "ORDERS")] == [b"1"]
        await other.close()
        await shop.close()


@pytest.mark.parametrize(
    ("subject", "fields", "code"),
    [
        ("a.*", {}, "invalid-subject"),
        ("a", {"data": b"x" * 2**20 + b"x"}, "payload-too-large"),
        ("a", {"headers": [("a", "x" * 2**16)]}, "headers-too-large"),
    ],
)
async def test_message_over_a_server_limit_is_rejected(nc, js, subject, fields, code):
    with pytest.raises(EncodeError) as info:
        await replay(js, [message(subject, **fields)])
    assert info.value.code == code
    assert nc.is_connected


async def test_no_responders(js, subject):
    with pytest.raises(DeliveryError) as info:
        await replay(js, [message(subject)])
    assert info.value.code == "no-responders"


async def test_requeue_omits_server_headers(nc, js, stream, subject):
    """Nats-Rollup would empty the stream again; the stream would drop a repeated Nats-Msg-Id."""
    await js.publish(subject, b"before", headers={"Nats-Msg-Id": "theirs"})
    put_aside = [("Dead-Letter-Header", "Nats-Rollup all"), ("Dead-Letter-Header", "Dead-Letter-Reason rejected")]
    own = [("Nats-Msg-Id", "own"), *letter(subject, stream=stream).headers()]
    originals = [("Tag", "b"), ("Tag", "a"), ("raw", RAW), ("Nats-Msg-Id", "theirs")]
    stored = message("dead", [*own, *put_aside, *originals], b"\xff", 9)
    assert (await requeue(js, stored)).duplicate is None
    assert (await requeue(js, stored)).duplicate is True
    _, copy = await read(js, stream)
    identifier = ("Nats-Msg-Id", "requeued:S:9:1767323045123456789")
    expected = [("Tag", "b"), ("Tag", "a"), ("raw", RAW), ("Dead-Letter-Reason", "rejected"), identifier]
    assert (copy.subject, copy.headers, copy.data) == (subject, expected, b"\xff")


def letter(subject, **fields):
    known = {name: getattr(LETTER, name) for name in LETTER.__slots__}
    return DeadLetter(**{**known, "subject": subject, **fields})


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        (letter("a", is_complete=False).headers(), EncodeError),
        ([*letter("a").headers(), ("Dead-Letter-Block", "bm8gYmxvY2s=")], EncodeError),
        (letter("").headers(), EncodeError),
        ([("ce-id", "1")], DecodeError),
    ],
)
async def test_requeue_rejects_incomplete_dead_letters(js, headers, kind):
    with pytest.raises(kind):
        await requeue(js, message("dead", headers))
