"""Atomic batches on a real server: all events are stored, or none."""

import asyncio

import nats
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ce_nats import AtomicBatchError, ContentMode, EncodeError, SubjectTemplate, dedup_id, from_nats_message
from ce_nats.aio import AtomicBatch, ClaimCheck, DeliveryError, OutcomeKind, Publisher
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio.jetstream import configure_stream
from ce_nats.aio.publishing import _atomic_commit
from ce_nats.extensions.tracing import TraceContext
from ce_nats.testing import NatsServer
from tests.support.batches import ids
from tests.support.broker import ignore
from tests.support.reading import read as stored

SECONDS = 60


@pytest.fixture
async def seen(nc, subject):
    """Messages that a subscriber of core NATS receives."""
    messages = []

    async def take(message):
        messages.append(message)

    await nc.subscribe(f"{subject}.>", cb=take)
    await nc.flush()
    return messages


async def publish(js, *events, **options):
    """Publish (event, subject) or (event, subject, arguments) as a batch, and return its acknowledgement."""
    async with AtomicBatch(js, **options) as batch:
        for event, subject, *arguments in events:
            await batch.publish(event, subject, **(arguments[0] if arguments else {}))
    return batch.ack


async def refusal(js, *events, **options):
    """Return the error of a batch, as code, err_code, position and text."""
    with pytest.raises((DeliveryError, EncodeError)) as info:
        await publish(js, *events, **options)
    error = info.value
    return str(error.code), getattr(error, "err_code", None), getattr(error, "position", None), error.message


# --- Stored batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ContentMode)
async def test_events_are_stored_in_order(js, subject, batches, make_event, mode):
    await ce_js.publish(js, make_event(0), subject)
    subjects = [f"{subject}.{name}" for name in "aba"]
    async with AtomicBatch(js, mode=mode) as batch:
        for number, target in enumerate(subjects, 1):
            await batch.publish(make_event(number, {"n": number}), target, headers={"x": "y"})
        assert (len(batch), batch.ack) == (3, None)
    ack = batch.ack
    assert (ack.stream, ack.first, ack.last, ack.count, ack.domain) == (batches, 2, 4, 3, None)
    messages = (await stored(js, batches))[1:]
    assert [message.subject for message in messages] == subjects
    assert [from_nats_message(message).get_data() for message in messages] == [{"n": 1}, {"n": 2}, {"n": 3}]
    for number, message in enumerate(messages, 1):
        headers = dict(message.headers)
        assert (headers["x"], headers["Nats-Msg-Id"]) == ("y", dedup_id(make_event(number)))
        assert (headers["Nats-Batch-Id"], headers["Nats-Batch-Sequence"]) == (ack.batch_id, str(number))


async def test_template_trace_and_no_message_id(js, subject, batches, make_event):
    trace = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    template = SubjectTemplate(f"{subject}.{{id}}")
    await publish(js, (make_event(id="7"), template, {"trace": trace}), (make_event(id="7"), template), dedup=None)
    first, second = await stored(js, batches)
    assert (first.subject, second.subject) == (f"{subject}.7", f"{subject}.7")
    assert from_nats_message(first).extensions["traceparent"] == trace.traceparent
    assert "Nats-Msg-Id" not in dict(first.headers)


async def test_batch_without_events_sends_nothing(js, subject, make_event):
    """Not even requests: no stream has the subject."""
    assert await publish(js) is None


async def test_largest_batch(js, subject, batches, make_event):
    events = [(make_event(number), f"{subject}.{number % 7}") for number in range(1_000)]
    ack = await publish(js, *events)
    assert (ack.first, ack.last, ack.count) == (1, 1_000, 1_000)
    assert await ids(js, batches) == [event.get_id() for event, _ in events]


async def test_batch_larger_than_the_window_of_bytes(nc, js, subject, batches, make_event):
    data = b"x" * (nc.max_payload - 1_000)
    ack = await publish(js, *((make_event(number, data), subject) for number in range(20)))
    assert ack.count == 20
    assert (await js.stream_info(batches)).state.messages == 20


async def test_events_of_concurrent_tasks_are_one_batch(js, subject, batches, make_event):
    async with AtomicBatch(js) as batch:
        await asyncio.gather(*(batch.publish(make_event(number), subject) for number in range(50)))
    assert batch.ack.count == 50
    assert sorted(await ids(js, batches)) == sorted(f"event {number}" for number in range(50))


async def test_sequences_are_consecutive_beside_other_publishers(js, subject, batches, make_event):
    async def others():
        async with Publisher(js, dedup=None) as publisher:
            while not is_done:
                await publisher.publish(make_event(0), f"{subject}.other")
                await asyncio.sleep(0)

    is_done = False
    task = asyncio.create_task(others())
    for number in range(10):
        ack = await publish(js, *((make_event(10 * number + one), subject) for one in range(10)))
        messages = [(await js.get_msg(batches, sequence)) for sequence in range(ack.first, ack.last + 1)]
        assert [message.headers["Nats-Batch-Id"] for message in messages] == [ack.batch_id] * 10
    is_done = True
    await task


async def test_other_subscribers_may_reply(nc, js, subject, batches, make_event):
    """Their replies arrive before those of the stream."""

    async def reply(message):
        for data in (b"", b"thanks", b"[]", b"\xff"):
            await nc.publish(message.reply, data)

    await nc.subscribe(subject, cb=reply)
    assert (await publish(js, *((make_event(number), subject) for number in range(10)))).count == 10


# --- Nothing is sent -------------------------------------------------------------------------------------------------


async def interrupted(js, event, subject):
    """Raise an exception in the block of a batch."""
    async with AtomicBatch(js) as batch:
        await batch.publish(event, subject)
        raise ZeroDivisionError


async def test_exception_or_cancellation_in_the_block_abandons_the_batch(nc, js, subject, batches, make_event, seen):
    with pytest.raises(ZeroDivisionError):
        await interrupted(js, make_event(), f"{subject}.a")
    entered = asyncio.Event()

    async def wait():
        async with AtomicBatch(js) as batch:
            await batch.publish(make_event(), f"{subject}.a")
            entered.set()
            await asyncio.sleep(SECONDS)

    task = asyncio.create_task(wait())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nc.flush()
    assert (await stored(js, batches), seen) == ([], [])


async def test_events_are_sent_at_the_end_of_the_block(nc, js, subject, batches, make_event, seen):
    async with AtomicBatch(js) as batch:
        for number in range(10):
            await batch.publish(make_event(number), f"{subject}.a")
        await nc.flush()
        assert (await stored(js, batches), seen) == ([], [])
    await nc.flush()
    assert len(seen) == 10


async def test_stream_must_allow_batches(nc, js, subject, stream, make_event, seen):
    """Earlier servers ignore the setting, and store each event: tests/interop/test_servers.py."""
    for options in ({}, {"stream": stream}):
        code, _, _, text = await refusal(js, (make_event(), f"{subject}.a"), (make_event(2), subject), **options)
        assert code == "incompatible-config"
        assert f"stream {stream} must allow atomic batches, with nats-server 2.12.1 or later" in text
    await nc.flush()
    assert (await stored(js, stream), seen) == ([], [])


async def test_stream_without_acknowledgements_is_refused(js, subject, batches, make_event):
    await configure_stream(js, batches, no_ack=True)
    code, _, _, text = await refusal(js, (make_event(), subject))
    assert (code, "no_ack" in text) == ("incompatible-config", True)


async def test_subject_without_a_stream(js, subject, batches, make_event):
    unbound = f"unbound.{subject}"
    assert (await refusal(js, (make_event(), unbound)))[0] == "no-responders"
    code, _, _, text = await refusal(js, (make_event(1), subject), (make_event(2), unbound))
    assert (code, "no stream" in text, unbound in text) == ("invalid-batch", True, True)
    assert (await refusal(js, (make_event(), subject), stream="NO_SUCH_STREAM"))[0] == "stream-not-found"
    assert await stored(js, batches) == []


async def test_events_must_be_for_one_stream(js, subject, batches, make_event):
    await js.add_stream(name=f"{batches}_2", subjects=[f"other.{subject}"], storage="memory")
    await configure_stream(js, f"{batches}_2", allow_atomic=True)
    events = (make_event(1), subject), (make_event(2), f"other.{subject}")
    code, _, _, text = await refusal(js, *events)
    assert code == "invalid-batch"
    assert all(
        name in text for name in (subject, f"other.{subject}", batches, f"stream {batches}_2", "nothing was sent")
    )
    # The name of the stream suppresses this check: subjects may have other names in its account.
    code, number, position, text = await refusal(js, *events, stream=batches)
    assert (code, number, position, f"{batches}_2" in text) == ("invalid-batch", 10176, 1, True)
    code, number, *_ = await refusal(js, *events[::-1], stream=batches, retry_timeout=0.2)
    assert (code, number) == ("temporarily-unavailable", 10176)
    for name in (batches, f"{batches}_2"):
        assert await stored(js, name) == []
    await js.delete_stream(f"{batches}_2")


async def test_limit_is_checked_before_anything_is_sent(js, subject, batches, make_event):
    events = [(make_event(number), subject) for number in range(1_001)]
    code, _, _, text = await refusal(js, *events)
    assert (code, text) == (
        "invalid-batch",
        f"an atomic batch must have at most 1000 events, got one more, on {subject}",
    )
    assert await stored(js, batches) == []


async def test_invalid_event_is_not_added(js, subject, batches, make_event):
    """The other events are sent if the program handles the error."""
    async with AtomicBatch(js) as batch:
        await batch.publish(make_event(1), subject)
        for event, target in (("no event", subject), (make_event(2), "a b"), (make_event(2), "a\r\nPUB b")):
            with pytest.raises(EncodeError):
                await batch.publish(event, target)
    assert batch.ack.count == 1


async def test_sizes(nc, js, subject, batches, make_event):
    for size, headers, code in (
        (0, {"x": "y" * 2**16}, "headers-too-large"),
        (nc.max_payload, {}, "payload-too-large"),
    ):
        async with AtomicBatch(js) as batch:
            with pytest.raises(EncodeError) as info:
                await batch.publish(make_event(data=b"x" * size), subject, headers=headers)
            assert info.value.code == code
    await configure_stream(js, batches, max_msg_size=1_000)
    with pytest.raises(EncodeError) as info:
        await publish(js, (make_event(1), subject), (make_event(2, b"x" * 1_000), subject), dedup=None)
    assert info.value.code == "payload-too-large"
    assert f"event at position 1 on {subject}: headers and payload must have at most 1000 bytes" in info.value.message
    size = int(info.value.message.rsplit(" ", 1)[-1])
    largest = 2_000 - size
    await refusal(js, (make_event(1), subject), (make_event(2, b"x" * (largest + 1)), subject), dedup=None)
    ack = await publish(js, (make_event(1), subject), (make_event(2, b"x" * largest), subject), dedup=None)
    assert (await js.stream_info(batches)).state.messages == ack.count == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Batch-Id": "x"},
        {"nats-batch-commit": "1"},
        {"Nats-Expected-Last-Msg-Id": "x"},
        {"Nats-Expected-Last-Sequence": "1"},
        {"Nats-Expected-Last-Subject-Sequence": "1"},
        {"Nats-Expected-Last-Subject-Sequence": ["1", "1"]},
        {"Nats-Msg-Id": "first"},
    ],
    ids=str,
)
async def test_headers_that_a_batch_cannot_have(js, subject, batches, make_event, headers):
    """Each of these is for the second event; the first one has the same subject."""
    async with AtomicBatch(js) as batch:
        await batch.publish(make_event(1), subject, headers={"Nats-Msg-Id": "first"})
        with pytest.raises(EncodeError) as info:
            await batch.publish(make_event(2), subject, headers=headers)
        assert (info.value.code, info.value.header) == ("invalid-batch", next(iter(headers)))
    assert batch.ack.count == 1


async def test_wrong_arguments(js, nc, subject, batches, make_event):
    with pytest.raises(TypeError):
        AtomicBatch(nc)
    with pytest.raises(ValueError, match="ack_timeout"):
        AtomicBatch(js, ack_timeout=0)
    with pytest.raises(EncodeError):
        AtomicBatch(js, stream="a.b")
    async with AtomicBatch(js) as batch:
        for wrong, kind in ((-1, ValueError), ("1", TypeError), (True, TypeError), (1.0, TypeError)):
            with pytest.raises(kind, match="expected_last_subject_sequence"):
                await batch.publish(make_event(), subject, expected_last_subject_sequence=wrong)
        both = {"Nats-Expected-Last-Subject-Sequence": "0"}
        with pytest.raises(EncodeError, match="once"):
            await batch.publish(make_event(), subject, expected_last_subject_sequence=0, headers=both)
    assert batch.ack is None


async def test_batch_is_used_once_and_inside_of_its_block(js, subject, batches, make_event):
    batch = AtomicBatch(js)
    for use in (lambda: batch.publish(make_event(), subject), batch.__aenter__):
        with pytest.raises(DeliveryError) as info:
            async with AtomicBatch(js) if use != batch.__aenter__ else batch:
                await use()
        assert info.value.code == "not-open"
    with pytest.raises(DeliveryError) as info:
        await batch.publish(make_event(), subject)
    assert info.value.code == "not-open"


async def test_batches_in_each_other_are_independent(js, subject, batches, make_event):
    async with AtomicBatch(js) as outer:
        await outer.publish(make_event(1), subject)
        with pytest.raises(ZeroDivisionError):
            await interrupted(js, make_event(2), subject)
        async with AtomicBatch(js) as inner:
            await inner.publish(make_event(3), subject)
    assert (inner.ack.first, outer.ack.first) == (1, 2)
    assert await ids(js, batches) == ["event 3", "event 1"]


async def test_events_are_validated(js, subject, batches, make_event):
    schemas = {"com.example.test": {"type": "object", "required": ["n"]}}
    async with AtomicBatch(js, validate=schemas) as batch:
        await batch.publish(make_event(1, {"n": 1}), subject)
        with pytest.raises(EncodeError) as info:
            await batch.publish(make_event(2, {}), subject)
    assert (info.value.code, batch.ack.count) == ("data-mismatch", 1)


async def test_large_data_is_stored_in_a_bucket(js, subject, batches, make_event):
    bucket = subject.replace(".", "_")
    await js.create_object_store(bucket, storage="memory")
    claim_check = ClaimCheck(js, bucket, over=10)
    large = make_event(1, b"x" * 100)
    with pytest.raises(DeliveryError) as info:
        await AtomicBatch(js, claim_check=claim_check).publish(large, subject)
    assert info.value.code == "not-open"
    assert (await js.stream_info(f"OBJ_{bucket}")).state.messages == 0
    await publish(js, (large, subject), (make_event(2, b"x"), subject), claim_check=claim_check)
    first, second = map(from_nats_message, await stored(js, batches))
    assert (first.get_data(), second.get_data()) == (None, b"x")
    assert (await claim_check.resolve(first)).get_data() == b"x" * 100
    await js.delete_object_store(bucket)


# --- Refused batches -------------------------------------------------------------------------------------------------


async def test_duplicate_refuses_the_batch(js, subject, batches, make_event):
    await ce_js.publish(js, make_event(2), f"{subject}.elsewhere")
    event = make_event(2)
    with pytest.raises(AtomicBatchError) as info:
        await publish(js, (make_event(1), subject), (event, subject), (make_event(3), subject))
    error = info.value
    assert (error.code, error.err_code, error.position, error.subject) == ("publish-refused", 10201, 1, subject)
    assert error.event is event
    assert error.message == (
        f"atomic batch of 3 events for stream {batches}: event at position 1 on {subject} with Nats-Msg-Id "
        f"'{dedup_id(event)}': atomic publish batch contains duplicate message id (10201); no event is stored"
    )
    assert await ids(js, batches) == ["event 2"]


async def test_repeated_batch_is_refused(js, subject, batches, make_event):
    events = [(make_event(number), subject) for number in range(3)]
    await publish(js, *events)
    assert (await refusal(js, *events))[:3] == ("publish-refused", 10201, 0)
    assert len(await ids(js, batches)) == 3


async def test_expected_sequences_of_several_subjects(js, subject, batches, make_event):
    order, stock = f"{subject}.order", f"{subject}.stock"

    def expecting(number, sequence):
        return {"expected_last_subject_sequence": sequence}

    async def attempt(number, order_sequence, stock_sequence):
        return await publish(
            js,
            (make_event(number, id=f"o{number}"), order, expecting(number, order_sequence)),
            (make_event(number, id=f"s{number}"), stock, expecting(number, stock_sequence)),
            (make_event(number, id=f"t{number}"), stock),
        )

    assert (await attempt(1, 0, 0)).last == 3
    assert (await attempt(2, 1, 3)).last == 6
    for sequences, position, last in (((4, 3), 1, 6), ((1, 6), 0, 4), ((0, 0), 0, 4)):
        with pytest.raises(AtomicBatchError) as info:
            await attempt(3, *sequences)
        error = info.value
        assert (error.err_code, error.position, error.event.get_id()) == (10071, position, f"{'os'[position]}3")
        assert f"event at position {position} on {(order, stock)[position]} " in error.message
        assert f"wrong last sequence: {last} (10071)" in error.message
    assert (await attempt(3, 4, 6)).last == 9


async def test_expected_sequence_of_the_stream_and_of_a_pattern(js, subject, batches, make_event):
    await publish(js, (make_event(1), f"{subject}.a", {"headers": {"Nats-Expected-Last-Sequence": "0"}}))
    wrong = {"headers": {"Nats-Expected-Last-Sequence": "0"}}
    assert (await refusal(js, (make_event(2), subject, wrong), (make_event(3), subject)))[1:3] == (10071, 0)
    pattern = {"Nats-Expected-Last-Subject-Sequence-Subject": f"{subject}.>"}
    for sequence, expected in (("0", (10071, 1)), ("1", None)):
        headers = {"Nats-Expected-Last-Subject-Sequence": sequence, **pattern}
        events = (make_event(4), subject), (make_event(5), f"{subject}.b", {"headers": headers})
        if expected is None:
            assert (await publish(js, *events)).count == 2
        else:
            assert (await refusal(js, *events))[1:3] == expected


async def test_one_of_several_concurrent_batches_is_stored(js, subject, batches, make_event):
    """All of them expect the same state of two subjects."""

    def batch(number):
        expecting = {"expected_last_subject_sequence": 0}
        events = [(make_event(10 * number + one), f"{subject}.{one}", expecting) for one in range(2)]
        return publish(js, *events, (make_event(10 * number + 2), f"{subject}.0"))

    results = await asyncio.gather(*map(batch, range(20)), return_exceptions=True)
    refused = [one for one in results if isinstance(one, AtomicBatchError) and one.err_code == 10071]
    assert len(refused) == 19
    assert len(await stored(js, batches)) == 3


@pytest.mark.parametrize(
    ("headers", "number", "position"),
    [
        ({"Nats-Expected-Stream": "OTHER"}, 10060, 1),
        ({"Nats-TTL": "1h"}, 10166, 1),
        ({"Nats-Rollup": "sub"}, 10111, None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_other_refusals(js, subject, batches, make_event, headers, number, position):
    events = (make_event(1), subject), (make_event(2), f"{subject}.a", {"headers": headers}), (make_event(3), subject)
    assert (await refusal(js, *events))[:3] == ("publish-refused", number, position)
    assert await stored(js, batches) == []


async def test_outcomes_are_reported(js, subject, batches, make_event):
    outcomes = []
    await publish(js, (make_event(1), subject), (make_event(2), subject), on_outcome=outcomes.append)
    assert [(one.kind, one.ack.seq, one.event.get_id()) for one in outcomes] == [
        (OutcomeKind.PUBLISHED, 1, "event 1"),
        (OutcomeKind.PUBLISHED, 2, "event 2"),
    ]
    outcomes.clear()
    await refusal(js, (make_event(3), subject), (make_event(2), subject), on_outcome=outcomes.append)
    assert [(one.kind, one.error.err_code) for one in outcomes] == [(OutcomeKind.REFUSED, 10201)] * 2
    outcomes.clear()
    await refusal(js, (make_event(3), subject), (make_event(4), f"unbound.{subject}"), on_outcome=outcomes.append)
    assert outcomes == []


# --- A model ---------------------------------------------------------------------------------------------------------

EVENTS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.none() | st.integers(-1, 1)), max_size=5)


class Model:
    """The events of a stream, and what it does with a batch."""

    def __init__(self):
        self.ids = []
        self.last = {}

    def accepts(self, batch):
        subjects = set()
        for number, subject, offset in batch:
            if number in self.ids or (offset and subject not in subjects):
                return False
            subjects.add(subject)
        return True

    def store(self, batch):
        for number, subject, _ in batch:
            self.ids.append(number)
            self.last[subject] = len(self.ids)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=6))
async def test_batches_are_stored_as_in_a_model(js, batches, subject, make_event, given_batches):
    await js.delete_stream(batches)
    await js.add_stream(name=batches, subjects=[f"{subject}.>"], storage="memory")
    await configure_stream(js, batches, allow_atomic=True)
    model = Model()
    for number, events in enumerate(given_batches):
        # Only the first event on a subject may have an expectation; ids are unique within a batch.
        events = list({event: (event, subject, offset) for event, subject, offset in events}.values())
        seen, batch = set(), []
        for event, name, offset in events:
            options = {}
            if offset is not None and name not in seen and model.last.get(name, 0) + offset >= 0:
                options["expected_last_subject_sequence"] = model.last.get(name, 0) + offset
            batch.append((event, name, offset if options else None))
            seen.add(name)
            events[len(batch) - 1] = (make_event(event), f"{subject}.{name}", options)
        if model.accepts(batch):
            ack = await publish(js, *events)
            assert (ack and ack.first) == (len(model.ids) + 1 if batch else None), number
            model.store(batch)
        else:
            assert (await refusal(js, *events))[0] == "publish-refused"
    assert await ids(js, batches) == [f"event {number}" for number in model.ids]


# --- Another account -------------------------------------------------------------------------------------------------

ACCOUNTS = """
accounts {
  SHOP { jetstream: enabled, users: [{user: shop, password: p}],
    exports: [{service: "$JS.API.>", response_type: stream}, {service: "orders.>"}] }
  OTHER { users: [{user: other, password: p}], imports: [
    {service: {account: SHOP, subject: "$JS.API.>"}, to: "shop.API.>"},
    {service: {account: SHOP, subject: "orders.>"}, to: "sent.>"} ] }
}
"""


def lose_reply(monkeypatch):
    """Let the reply to the second message, the commit, be lost."""
    send, numbers = _atomic_commit.publish_with_block, iter(range(1_000))

    async def publish_with_block(nc, message, block, reply):
        await send(nc, message, block, "" if next(numbers) == 1 else reply)

    monkeypatch.setattr(_atomic_commit, "publish_with_block", publish_with_block)


@pytest.mark.parametrize("is_lost", [False, True], ids=["acknowledged", "lost acknowledgement"])
async def test_stream_of_another_account(make_event, monkeypatch, is_lost):
    """Its subjects have other names there, also when it is searched for the batch."""
    if is_lost:
        lose_reply(monkeypatch)
    with NatsServer(jetstream=True, config=ACCOUNTS) as server:
        shop = await nats.connect(server.url, user="shop", password="p")
        await shop.jetstream().add_stream(name="S", subjects=["orders.>"], allow_atomic=True)
        other = await nats.connect(server.url, user="other", password="p")
        js = other.jetstream(prefix="shop.API")
        events = [(make_event(number), f"sent.{number}") for number in range(2)]
        code, _, _, text = await refusal(js, *events)
        assert (code, "pass stream= if the subject is mapped" in text) == ("no-responders", True)
        ack = await publish(js, *events, stream="S", ack_timeout=0.3)
        assert (ack.first, ack.last) == (1, 2)
        assert [one.subject for one in await stored(shop.jetstream(), "S")] == ["orders.0", "orders.1"]
        wrong = {"expected_last_subject_sequence": 7}
        events = (make_event(3), "sent.0"), (make_event(4), "sent.1", wrong)
        assert (await refusal(js, *events, stream="S"))[1:3] == (10071, None)
        await other.close()
        await shop.close()


async def test_mapped_subject_is_not_reported_as_refused(make_event, monkeypatch):
    """The server stores it on another subject of the stream, and a copy is refused after a lost acknowledgement."""
    lose_reply(monkeypatch)
    with NatsServer(jetstream=True, config='mappings = {"orders.a": "orders.b", "sent": "orders.b"}') as server:
        nc = await nats.connect(server.url)
        await nc.jetstream().add_stream(name="S", subjects=["orders.>"], allow_atomic=True)
        events = [(make_event(0), "orders.a"), (make_event(1), "sent")]
        ack = await publish(nc.jetstream(), *events, stream="S", ack_timeout=0.3)
        assert (ack.first, ack.last) == (1, 2)
        assert [one.subject for one in await stored(nc.jetstream(), "S")] == ["orders.b"] * 2
        await nc.close()


# --- Permissions and lost connections --------------------------------------------------------------------------------

DENIED = {
    "names": {"publish": {"deny": ["$JS.API.STREAM.NAMES"]}},
    "info": {"publish": {"deny": ["$JS.API.STREAM.INFO.*"]}},
    "event": {"publish": {"deny": ["s.b"]}},
    "last": {"publish": {"deny": ["s.c"]}},
    "inbox": {"subscribe": {"deny": ["_INBOX.>"]}},
}


@pytest.fixture(scope="module")
def guarded():
    users = ", ".join(
        f"{{user: {name}, password: p, permissions: {_as_config(given)}}}" for name, given in DENIED.items()
    )
    config = f"authorization {{ users: [{{user: admin, password: p}}, {users}] }}"
    with NatsServer(jetstream=True, config=config) as server:
        yield server


def _as_config(permissions):
    ((operation, rules),) = permissions.items()
    ((rule, subjects),) = rules.items()
    return f"{{{operation}: {{{rule}: [{', '.join(f'{chr(34)}{one}{chr(34)}' for one in subjects)}]}}}}"


@pytest.mark.parametrize("user", DENIED)
async def test_denied_permission(guarded, make_event, user):
    admin = await nats.connect(guarded.url, user="admin", password="p")
    name = f"S_{user}"
    await admin.jetstream().add_stream(name=name, subjects=["s.*"], storage="memory")
    await configure_stream(admin.jetstream(), name, allow_atomic=True)

    nc = await nats.connect(guarded.url, user=user, password="p", error_cb=ignore)
    events = [(make_event(number), f"s.{letter}") for number, letter in enumerate("abc")]
    code, *_ = await refusal(nc.jetstream(), *events, ack_timeout=2, retry_timeout=2)
    assert code == "permission-denied"
    assert await stored(admin.jetstream(), name) == []
    if user == "names":
        assert (await publish(nc.jetstream(), *events, stream=name)).count == 3
    await admin.jetstream().delete_stream(name)
    await nc.close()
    await admin.close()


async def test_closed_connection(server, subject, make_event):
    nc = await nats.connect(server.url)
    batch = AtomicBatch(nc.jetstream())
    await batch.__aenter__()
    await batch.publish(make_event(), subject)
    await nc.close()
    with pytest.raises(DeliveryError) as info:
        await batch.__aexit__(None, None, None)
    assert info.value.code == "connection-closed"
