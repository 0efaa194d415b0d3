import json
from base64 import b64decode, b64encode
from dataclasses import replace

import pytest
from nats.aio.msg import Msg
from nats.js.api import StreamSource

from ce_nats import EncodeError
from ce_nats.aio import DeliveryError, connect
from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.consumer._dead_letters import (
    KEPT_HEADER,
    MAX_HEADER_BYTES,
    RequeueResult,
    _check_size,
    _delivered_block,
    _header_block,
    _kept_line,
    _pending_acks,
    keeps_terminated,
    original,
    requeue,
    requeue_all,
    store,
)
from ce_nats.aio.jetstream import configure_stream, read_stream
from ce_nats.redelivery import BLOCK_HEADER, DeadLetter, Reason
from ce_nats.testing import NatsServer
from ce_nats.wire.nats import encode_header_block
from tests.support.reading import publish_all
from tests.support.tables import each

EVENT = b"ce-id: 1\r\nce-source: s\r\nce-specversion: 1.0\r\nce-type: t\r\n"


@pytest.fixture
def fetch(js, stream):
    """Fetch the next message of the stream through a pull consumer."""

    async def fetch(durable="c"):
        subscription = await js.pull_subscribe("", durable, stream)
        (message,) = await subscription.fetch(1)
        return message

    return fetch


def letter_of(message, consumer="c"):
    return DeadLetter(
        *(Reason.REJECTED, "Reject", "", message.subject, message.metadata.stream, consumer),
        *(message.metadata.sequence.stream, message.metadata.num_delivered),
    )


async def stored_block(js, dead, sequence=1):
    """Bytes of a dead letter's header block, without the version line."""
    stored = await StreamApi.of(js).stored(dead.replace(".", "_"), {"seq": sequence})
    assert stored.hdrs.startswith(b"NATS/1.0\r\n")
    return stored.hdrs[10:]


async def test_dead_letter_has_the_bytes_and_headers_of_its_original(js, subject, fetch, send_raw, dead):
    """Including repeated headers, their order, non-UTF-8 bytes and malformed lines, which nats-py cannot send."""
    lines = EVENT + b"a: 1\r\na:2\r\nno header\r\nx:  \xff\xc0\xa0 \r\nA: \xe2\x82\xac\r\n"
    send_raw(subject, lines, b"\0\xff\r\n")
    message = await fetch()
    await store(js, dead, letter_of(message), message)
    block = await stored_block(js, dead)
    assert block.endswith(lines + b"\r\n")
    own = block.removesuffix(lines + b"\r\n").decode("ascii").splitlines()
    assert [line.partition(":")[0] for line in own] == [
        "Nats-Msg-Id",
        *(f"Dead-Letter-{name}" for name in ("Reason", "Error", "Subject", "Stream", "Consumer", "Sequence")),
        "Dead-Letter-Deliveries",
    ]
    assert (await StreamApi.of(js).stored(dead.replace(".", "_"), {"seq": 1})).data == b"\0\xff\r\n"


@pytest.mark.parametrize("block", [None, b""])
async def test_dead_letter_of_message_without_headers_has_no_other_headers(
    js, subject, fetch, send_raw, dead, dead_letters, block
):
    send_raw(subject, block, b"x")
    message = await fetch()
    await store(js, dead, letter_of(message), message)
    (stored,) = await dead_letters(1)
    assert stored.data == b"x"
    assert DeadLetter.split(stored.headers) == (letter_of(message), [])


async def test_only_headers_have_a_limit_of_their_own(js, subject, fetch, dead_letters, dead):
    data = bytes(MAX_HEADER_BYTES + 1)
    await js.publish(subject, data)
    message = await fetch()
    assert await store(js, dead, letter_of(message), message) == letter_of(message)
    assert [stored.data for stored in await dead_letters(1)] == [data]


@pytest.mark.parametrize("text", ["invalid", "\u20ac" * 300])
async def test_dead_letter_of_too_large_message_has_only_its_own_headers(js, subject, fetch, dead_letters, dead, text):
    """Also without its text, if the stream has no room for it."""
    name = dead.replace(".", "_")
    await js.update_stream((await js.stream_info(name)).config.evolve(max_msg_size=1000))
    await js.publish(subject, bytes(1001), headers={"a": "b"})
    message = await fetch()
    kept = await store(js, dead, replace(letter_of(message), text=text), message)
    (stored,) = await dead_letters(1)
    assert stored.data == b""
    assert DeadLetter.split(stored.headers) == (kept, [])
    assert BLOCK_HEADER not in dict(stored.headers)
    assert (kept.is_reference, kept.text) == (True, text if text == "invalid" else "")


async def test_server_headers_of_the_original_have_no_effect(js, subject, stream, fetch, dead, dead_letters):
    """Otherwise the stream of dead letters would delete its messages, or refuse the dead letter."""
    for name in (stream, dead.replace(".", "_")):
        config = (await js.stream_info(name)).config
        await js.update_stream(config.evolve(allow_rollup_hdrs=True))
    await js.publish(dead, b"stored before")
    orders = {"Nats-Rollup": "all", "Nats-Expected-Stream": stream, "Nats-Expected-Last-Sequence": "0"}
    mine = {"Dead-Letter-Reason": "mine"}
    await js.publish(subject, b"", headers={**orders, "traceparent": "t", **mine})
    message = await fetch()
    await store(js, dead, letter_of(message), message)
    _, stored = await dead_letters(2)
    assert DeadLetter.split(stored.headers) == (letter_of(message), [("traceparent", "t"), *{**orders, **mine}.items()])
    assert not orders.keys() & dict(stored.headers).keys()


async def test_message_of_a_sourced_stream_is_stored_as_dead_letter(js, subject, stream, dead, dead_letters):
    """Copies have a header that the server refuses from clients."""
    copies = f"{stream}_copies"
    await js.publish(subject, b"x")
    await js.add_stream(name=copies, sources=[StreamSource(name=stream)], storage="memory")
    subscription = await js.pull_subscribe("", "c", copies)
    (message,) = await subscription.fetch(1)
    await store(js, dead, letter_of(message), message)
    (stored,) = await dead_letters(1)
    assert [name for name, _ in DeadLetter.split(stored.headers)[1]] == ["Nats-Stream-Source"]
    await js.delete_stream(copies)


async def test_dead_letter_is_stored_once_per_consumer(js, subject, fetch, dead, dead_letters):
    """Message ids of the originals are not used."""
    for _ in range(2):
        await js.publish(subject, b"x")
    first, second = await fetch(), await fetch()
    for message in (first, first, second):
        await store(js, dead, letter_of(message), message)
    await dead_letters(2)
    await store(js, dead, letter_of(first, "other"), first)
    await dead_letters(3)


async def test_message_id_of_the_original_is_not_used(js, subject, stream, fetch, dead, dead_letters):
    await js.publish(subject, b"1", headers={"Nats-Msg-Id": "same"})
    first = await fetch()
    await store(js, dead, letter_of(first), first)
    await js.publish(dead, b"2", headers={"Nats-Msg-Id": "same"})
    one, _ = await dead_letters(2)
    assert DeadLetter.split(one.headers)[1] == [("Nats-Msg-Id", "same")]


@pytest.mark.parametrize("block", [b"no version\r\nx: 1\r\n\r\n", b"NATS/1.0\r\nx: 1"])
async def test_malformed_header_block_is_kept_verbatim(nc, subject, js, fetch, dead, dead_letters, block):
    """The server does not parse header blocks. A malformed one is kept as base64."""
    await nc._send_command(f"HPUB {subject} {len(block)} {len(block)}\r\n".encode() + block + b"\r\n")
    message = await fetch()
    await store(js, dead, letter_of(message), message)
    (stored,) = await dead_letters(1)
    assert b64decode(dict(stored.headers)["Dead-Letter-Block"]) == block


async def test_dead_letter_of_deleted_message_has_the_delivered_headers(
    js, subject, stream, fetch, send_raw, dead, dead_letters
):
    send_raw(subject, b"a: 1\r\na: 2\r\n", b"x")
    message = await fetch()
    await js.delete_msg(stream, 1)
    assert await original(js, message) is None
    await store(js, dead, letter_of(message), message)
    (stored,) = await dead_letters(1)
    known, originals = DeadLetter.split(stored.headers)
    assert (known.is_complete, originals, stored.data) == (False, [("a", "2")], b"x")


async def test_original_is_not_a_later_message_with_the_same_sequence(js, subject, stream, fetch):
    await js.publish(subject, b"x")
    message = await fetch()
    assert (await original(js, message)).data == b"x"
    await js.delete_stream(stream)
    await js.add_stream(name=stream, subjects=[subject], storage="memory")
    await js.publish(subject, b"y")
    assert await original(js, message) is None


@pytest.mark.parametrize("answer", [None, b"thanks", b"{}", b'{"error": {"code": 503, "description": "full"}}'])
async def test_missing_acknowledgement_is_a_delivery_error(nc, js, subject, fetch, answer):
    async def respond(message):
        await nc.publish(message.reply, answer)

    await js.publish(subject, b"x")
    message = await fetch()
    if answer is not None:
        await nc.subscribe(f"unbound.{subject}", cb=respond)
    with pytest.raises(DeliveryError):
        await store(js, f"unbound.{subject}", letter_of(message), message)


async def test_refusal_by_the_stream_is_a_delivery_error(js, subject, fetch):
    name = f"small.{subject}"
    await js.add_stream(name=name.replace(".", "_"), subjects=[name], max_msg_size=10, storage="memory")
    await js.publish(subject, json.dumps("x" * 20).encode())
    message = await fetch()
    with pytest.raises(DeliveryError, match="size exceeds"):
        await store(js, name, letter_of(message), message)
    await js.delete_stream(name.replace(".", "_"))


@pytest.mark.parametrize("codes", [[10060], [10054, 10060]])
async def test_dead_letter_is_not_shortened_for_other_reasons_than_its_size(nc, js, subject, fetch, codes):
    answers = [b'{"error": {"code": 400, "err_code": %d, "description": "refused"}}' % code for code in codes]
    answers.append(b'{"stream": "S", "seq": 1}')

    async def respond(message):
        await nc.publish(message.reply, answers.pop(0))

    await js.publish(subject, b"x")
    message = await fetch()
    await nc.subscribe(f"dead.{subject}", cb=respond)
    with pytest.raises(DeliveryError, match="publish-refused"):
        await store(js, f"dead.{subject}", letter_of(message), message)
    assert len(answers) == 1


async def test_invalid_dead_letter_subject_is_an_encode_error(js, subject, fetch):
    await js.publish(subject, b"x")
    message = await fetch()
    with pytest.raises(EncodeError) as info:
        await store(js, "dead.*", letter_of(message), message)
    assert info.value.code == "invalid-subject"


async def test_dead_letter_is_resent_while_its_copy_is_replicated(nc, js, subject, fetch):
    """Streams with replicas answer so; it is a temporary error."""
    answers = [
        b'{"error": {"code": 409, "err_code": 10158, "description": "in process"}}',
        b'{"stream": "S", "seq": 1}',
    ]

    async def respond(message):
        await nc.publish(message.reply, answers.pop(0))

    await js.publish(subject, b"x")
    message = await fetch()
    await nc.subscribe(f"dead.{subject}", cb=respond)
    await store(js, f"dead.{subject}", letter_of(message), message)
    assert answers == []


# --- Dead letters of dead letters -------------------------------------------------------------------------------------


@pytest.fixture
async def store_twice(js, fetch, dead):
    """Store the dead letter of a message, and that of it; returns what describes both, and the second subject."""
    second = f"{dead}.second"
    stream = second.replace(".", "_")
    await js.add_stream(name=stream, subjects=[second], storage="memory")

    async def store_twice():
        message = await fetch()
        await store(js, dead, letter_of(message), message)
        subscription = await js.pull_subscribe("", "second", dead.replace(".", "_"))
        (again,) = await subscription.fetch(1)
        await store(js, second, replace(letter_of(again, "second"), reason=Reason.EXHAUSTED, text="a b"), again)
        return letter_of(message), replace(letter_of(again, "second"), reason=Reason.EXHAUSTED, text="a b"), second

    yield store_twice
    await js.delete_stream(stream)


async def test_dead_letter_of_a_dead_letter_has_the_first_original(js, subject, stream, send_raw, store_twice):
    """Byte for byte, with headers that instruct the server, and with both reasons."""
    await js.update_stream((await js.stream_info(stream)).config.evolve(allow_rollup_hdrs=True))
    lines = EVENT + b"a: 1\r\na:2\r\nx:  \xff\xc0\xa0 \r\n"
    send_raw(subject, b"Nats-Msg-Id: theirs\r\nNats-Rollup: all\r\n" + lines, b"\0\xff\r\n")
    first, again, second = await store_twice()
    block = await stored_block(js, second)
    assert block.endswith(b"Nats-Msg-Id: theirs\r\nDead-Letter-Header: Nats-Rollup all\r\n" + lines + b"\r\n")
    (stored,) = [one async for one in read_letters(js, second)]
    assert stored.data == b"\0\xff\r\n"
    letter, headers = DeadLetter.split(stored.headers)
    assert letter == replace(first, later=(again,))
    assert [name for name, _ in headers] == [
        *("Nats-Msg-Id", "ce-id", "ce-source", "ce-specversion", "ce-type", "a", "a", "x", "Nats-Rollup")
    ]


async def test_dead_letter_of_a_dead_letter_is_requeued_if_the_original_is_there(
    js, subject, stream, store_twice, send_raw
):
    send_raw(subject, EVENT, b"x")
    _, _, second = await store_twice()
    (stored,) = [one async for one in read_letters(js, second)]
    assert (await requeue(js, stored)).seq == 2
    one, two = [message async for batch in read_stream(js, stream) for message in batch]
    assert (one.subject, one.data, one.headers) == (two.subject, two.data, two.headers[:-1])


@pytest.mark.parametrize("difference", ["deleted", "data", "headers", "subject"])
async def test_other_dead_letters_of_dead_letters_need_an_allowed_subject(
    js, subject, stream, store_twice, send_raw, difference
):
    """Any client that may publish to the stream of a consumer could write one."""
    send_raw(subject, EVENT, b"x")
    await js.publish(f"{subject}.a", b"x")
    _, _, second = await store_twice()
    (stored,) = [one async for one in read_letters(js, second)]
    if difference == "deleted":
        await js.delete_msg(stream, 1)
    elif difference == "data":
        stored = stored._replace(data=b"y")
    elif difference == "headers":
        stored = stored._replace(headers=[*stored.headers, ("ce-x", "1")])
    else:
        changed = [(name, f"{subject}.a" if name == "Dead-Letter-Subject" else value) for name, value in stored.headers]
        stored = stored._replace(headers=changed)
    with pytest.raises(EncodeError, match="dead-lettered again") as info:
        await requeue(js, stored)
    assert info.value.code == "forbidden-subject"
    assert (await requeue(js, stored, allowed=[f"{subject}.>", subject])).seq == 3


async def test_dead_letter_of_a_large_dead_letter_refers_to_it(js, subject, dead, store_twice, send_raw):
    """If the copy does not fit: the first dead letter stays in its stream."""
    send_raw(subject, EVENT, bytes(1000))
    second = f"{dead}.second"
    await js.update_stream((await js.stream_info(second.replace(".", "_"))).config.evolve(max_msg_size=1000))
    _, again, _ = await store_twice()
    (stored,) = [one async for one in read_letters(js, second)]
    letter, headers = DeadLetter.split(stored.headers)
    assert (letter.is_reference, letter.later, headers, stored.data) == (True, (), [], b"")
    assert (letter.stream, letter.sequence, letter.reason) == (again.stream, 1, again.reason)


# --- Requeueing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store_letters(js, dead, stream):
    """Store dead letters with originals on these subjects; returns a reader of all dead letters."""

    async def store_letters(*subjects):
        letters = [
            (dead, b"%d" % number, dict(DeadLetter(Reason.REJECTED, "", "", subject, stream, "c", number, 1).headers()))
            for number, subject in enumerate(subjects, 1)
        ]
        await publish_all(js, letters)
        return read_letters(js, dead)

    return store_letters


async def read_letters(js, dead):
    async for batch in read_stream(js, dead.replace(".", "_"), batch_size=10):
        for letter in batch:
            yield letter


async def read_data(js, stream):
    return [int(message.data) async for batch in read_stream(js, stream) for message in batch]


async def test_originals_are_requeued_in_order_and_dead_letters_deleted(js, subject, stream, dead, store_letters):
    count = 700  # more than are in flight at once
    letters = await store_letters(*(f"{subject}.{number % 3}" for number in range(count)))
    outcomes = [outcome async for outcome in requeue_all(js, letters)]
    assert [(each.sequence, each.ack.seq, each.is_deleted, each.error) for each in outcomes] == [
        (number, number, True, None) for number in range(1, count + 1)
    ]
    assert await read_data(js, stream) == list(range(1, count + 1))
    assert [letter async for letter in read_letters(js, dead)] == []


async def test_requeued_original_has_its_sequence(js, subject, stream, dead, store_letters):
    """Also in a stream that would store several messages together."""
    await configure_stream(js, stream, allow_batched=True)
    letters = await store_letters(subject)
    assert (await requeue(js, await anext(letters))).seq == 1
    await letters.aclose()


async def test_dead_letters_that_cannot_be_requeued_stay_and_have_an_error(js, subject, stream, dead, store_letters):
    letters = await store_letters(subject, f"unbound.{subject}", "", subject)
    await js.publish(dead, b"5")  # not a dead letter
    outcomes = [outcome async for outcome in requeue_all(js, letters, timeout=2)]
    assert [(each.sequence, each.is_deleted, each.error and str(each.error.code)) for each in outcomes] == [
        (1, True, None),
        (2, False, "forbidden-subject"),
        (3, False, "invalid-subject"),
        (4, True, None),
        (5, False, "missing-attribute"),
    ]
    assert [letter.sequence async for letter in read_letters(js, dead)] == [2, 3, 5]
    assert await read_data(js, stream) == [1, 4]


async def test_dead_letters_are_deleted_after_their_originals_are_stored(nc, js, subject, dead, store_letters):
    """The stream acknowledges after 100 originals, so they must be in flight together."""
    letters = await store_letters(*[f"unbound.{subject}"] * 100)
    waiting, left = [], []

    async def acknowledge(message):
        waiting.append(message)
        if len(waiting) == 100:
            left.extend([letter.sequence async for letter in read_letters(js, dead)])
            for number, each in enumerate(waiting, 1):
                await each.respond(b'{"stream":"S","seq":%d}' % number)

    await nc.subscribe(f"unbound.{subject}", cb=acknowledge)
    outcomes = [outcome async for outcome in requeue_all(js, letters, allowed=["unbound.>"], timeout=20)]
    assert left == list(range(1, 101))
    assert all(outcome.is_deleted for outcome in outcomes)


async def test_dead_letter_stays_if_no_stream_has_its_subject(js, subject, dead, store_letters):
    letters = await store_letters(f"unbound.{subject}")
    (outcome,) = [outcome async for outcome in requeue_all(js, letters, allowed=["unbound.>"], timeout=2)]
    assert (outcome.is_deleted, str(outcome.error.code)) == (False, "no-responders")
    assert [letter.sequence async for letter in read_letters(js, dead)] == [1]


async def test_dead_letters_that_cannot_be_read_are_an_error_after_the_results(js, subject, store_letters):
    async def failing():
        letters = await store_letters(subject)
        yield await anext(letters)
        await letters.aclose()
        raise DeliveryError("timeout", "DEAD")

    outcomes = requeue_all(js, failing())
    assert (await anext(outcomes)).is_deleted
    with pytest.raises(DeliveryError, match=r"^timeout: DEAD$"):
        await anext(outcomes)


async def test_dead_letters_are_kept_without_delete(js, subject, stream, dead, store_letters):
    letters = await store_letters(subject)
    (outcome,) = [outcome async for outcome in requeue_all(js, letters, delete=False)]
    assert (outcome.ack.seq, outcome.is_deleted, outcome.error) == (1, False, None)
    assert len([letter async for letter in read_letters(js, dead)]) == 1


async def test_interrupted_requeue_loses_nothing(js, subject, stream, dead, store_letters):
    """Each original is still a dead letter or stored; the rest is requeued later, without duplicates."""
    count = 1500
    outcomes = requeue_all(js, await store_letters(*[subject] * count))
    assert (await anext(outcomes)).is_deleted
    await outcomes.aclose()
    left = {letter.sequence async for letter in read_letters(js, dead)}
    assert left
    assert left | set(await read_data(js, stream)) == set(range(1, count + 1))
    async for outcome in requeue_all(js, read_letters(js, dead)):
        assert outcome.is_deleted
    assert sorted(await read_data(js, stream)) == list(range(1, count + 1))


def test_dead_letters_have_at_most_the_size_that_the_server_allows():
    _check_size(b"x" * 10, b"y" * 90, 100)
    _check_size(b"x" * MAX_HEADER_BYTES, b"", MAX_HEADER_BYTES)
    with pytest.raises(EncodeError, match="at most 100 bytes for this server, got 101"):
        _check_size(b"x" * 10, b"y" * 91, 100)
    with pytest.raises(EncodeError, match=f"got {MAX_HEADER_BYTES + 1}"):
        _check_size(b"x" * (MAX_HEADER_BYTES + 1), b"", 2 * MAX_HEADER_BYTES)


@each(
    ("block", "headers"),
    [
        (b"", []),
        (b"NATS/1.0\r\n\r\n", []),
        (b"NATS/1.0\r\na: b\r\nNats-TTL: 5\r\n\r\n", [("a", "b"), (KEPT_HEADER, "Nats-TTL 5")]),
        (b"NATS/1.0\na: b\n\n", [(BLOCK_HEADER, b64encode(b"NATS/1.0\na: b\n\n").decode())]),
    ],
)
def test_header_block_has_own_headers_before_those_of_the_original(block, headers):
    letter = DeadLetter(Reason.REJECTED, "Reject", "", "orders", "ORDERS", "c", 1, 2)
    own = [("Nats-Msg-Id", "mine"), *letter.headers()]
    assert _header_block(letter, "mine", block) == encode_header_block([*own, *headers])


def test_kept_headers_have_name_and_value_of_the_original():
    assert _kept_line(b"Nats-TTL:  5 ") == KEPT_HEADER.encode() + b": Nats-TTL 5\r\n"
    assert _kept_line(b" Nats-TTL:\t5 6\t") == KEPT_HEADER.encode() + b": Nats-TTL 5 6\r\n"
    assert _kept_line(b"a:  5 ") == b"a:  5 \r\n"
    assert _kept_line(b"Nats-TTL") == b"Nats-TTL\r\n"


@each(
    ("headers", "block"),
    [
        (None, b"NATS/1.0\r\n\r\n"),
        ({"a": "1", "b": "2"}, b"NATS/1.0\r\na: 1\r\nb: 2\r\n\r\n"),
        ({"a": "\u20ac\udcff"}, b"NATS/1.0\r\na: \xe2\x82\xac?\r\n\r\n"),
    ],
)
def test_header_block_of_a_delivered_message(headers, block):
    assert _delivered_block(Msg(None, "orders", headers=headers)) == block


def test_dead_letter_is_not_deleted_unless_its_result_has_it():
    assert RequeueResult(1) == RequeueResult(1, ack=None, is_deleted=False, error=None)
    assert not RequeueResult(1).is_deleted


async def test_only_a_window_of_several_messages_uses_fast_ingest(nc):
    for window, may_batch in ((1, False), (2, True)):
        acks = _pending_acks(nc.jetstream(), window=window, timeout=1, retry_timeout=1)
        assert (acks._fast is not None) is may_batch


async def test_dead_letters_need_a_jetstream_context(nc):
    for call in (store(nc, "a", None, None), requeue(nc, None), anext(requeue_all(nc, None))):
        with pytest.raises(TypeError, match="js must be a JetStreamContext"):
            await call


async def test_streams_that_keep_terminated_messages(js, stream):
    assert await keeps_terminated(js, stream)
    await js.add_stream(name=f"{stream}_work", subjects=[f"{stream}_work.>"], retention="workqueue")
    assert not await keeps_terminated(js, f"{stream}_work")
    with pytest.raises(DeliveryError, match="stream-not-found"):
        await keeps_terminated(js, f"{stream}_gone")


async def test_without_permission_a_stream_counts_as_one_that_keeps_messages():
    user = {"user": "a", "password": "p", "permissions": {"publish": {"deny": ["$JS.API.STREAM.INFO.>"]}}}
    with NatsServer(jetstream=True, config=f"authorization: {json.dumps({'users': [user]})}") as server:
        async with connect(server.url, user="a", password="p") as nc:
            assert await keeps_terminated(nc.jetstream(), "ANY")
