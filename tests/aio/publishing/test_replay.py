import pytest

from ce_nats import DecodeError, EncodeError, Timestamp
from ce_nats.aio import DeliveryError, replay
from ce_nats.aio.consumer._dead_letters import requeue
from ce_nats.aio.jetstream import configure_stream, read_stream
from ce_nats.message import StoredMessage
from ce_nats.redelivery import DeadLetter, Reason

RAW = b"a\xffb".decode("utf-8", "surrogateescape")
LETTER = DeadLetter(Reason.REJECTED, "Reject", "no such customer", "", "ORDERS", "billing", 7, 3)


def message(subject, headers=(), data=b"payload", sequence=1):
    return StoredMessage(subject, "", list(headers), data, "S", sequence, Timestamp("2026-01-02T03:04:05.123456789Z"))


async def all_of(js, stream):
    return [stored async for batch in read_stream(js, stream) for stored in batch]


async def test_messages_are_replayed_unchanged(nc, js, stream, subject):
    """Header names that nats-py rejects, repeats, an empty value, non-UTF-8 bytes, no headers, no payload."""
    sent = [
        message(
            subject, [("ce-id", "1"), ("Tag", "b"), ("tag", "c"), ("Tag", "a"), ("(x)", ""), ("raw", RAW)], b"\0\xff"
        ),
        message(f"{subject}.ü", data=b""),
    ]
    progress = []
    result = await replay(nc, sent, on_progress=progress.append)
    assert (result.messages, result.duplicates, progress) == (2, 0, [1, 2])
    found = await all_of(js, stream)
    assert [one[:4] for one in found] == [one[:4] for one in sent]


async def test_replay_to_core_nats_and_another_subject(nc, subject):
    subscription = await nc.subscribe(f"{subject}.other")
    sent = [message(subject, [("a", "1")], b"\xff"), message(subject, data=b"2")]
    result = await replay(nc, sent, acknowledged=False, subject=f"{subject}.other")
    assert result.messages == 2
    first, second = await subscription.next_msg(5), await subscription.next_msg(5)
    assert (first.data, first.headers, second.data, second.headers) == (b"\xff", {"a": "1"}, b"2", None)


@pytest.mark.parametrize("is_allowed", [True, False], ids=["batches", "no batches"])
async def test_messages_of_an_atomic_batch_are_replayed_one_by_one(nc, js, stream, subject, is_allowed):
    """A stream would keep them back until the rest of the batch arrives, or refuse them."""
    await configure_stream(js, stream, allow_atomic=is_allowed)
    batch = [("Nats-Batch-Id", "x"), ("ce-id", "1"), ("Nats-Batch-Sequence", "7"), ("Nats-Batch-Commit", "1")]
    assert (await replay(nc, [message(subject, batch), message(subject)])).messages == 2
    assert [one.headers for one in await all_of(js, stream)] == [[("ce-id", "1")], []]


async def test_duplicates_are_counted(nc, stream, subject):
    assert (await replay(nc, [message(subject, [("Nats-Msg-Id", "1")])] * 3)).duplicates == 2


@pytest.mark.parametrize(
    ("subject", "fields", "code"),
    [
        ("a.*", {}, "invalid-subject"),
        ("a", {"data": b"x" * 2**20 + b"x"}, "payload-too-large"),
        ("a", {"headers": [("a", "x" * 2**16)]}, "headers-too-large"),
    ],
)
async def test_message_over_a_server_limit_is_rejected(nc, subject, fields, code):
    with pytest.raises(EncodeError) as info:
        await replay(nc, [message(subject, **fields)])
    assert info.value.code == code
    assert nc.is_connected


async def test_no_responders(nc, subject):
    with pytest.raises(DeliveryError) as info:
        await replay(nc, [message(subject)])
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
    _, copy = await all_of(js, stream)
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
