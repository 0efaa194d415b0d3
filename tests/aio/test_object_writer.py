"""Objects are stored once, whichever acknowledgements are lost, and however often storing is repeated."""

import asyncio

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import CeNatsError, from_nats_message, to_nats_message
from ce_nats.aio import ClaimCheck, DeliveryError, Publisher, PullConsumer, connect
from ce_nats.extensions.dataref import object_name, object_reference
from ce_nats.testing import NatsServer
from tests.support.buckets import bucket, claim_check, state, store
from tests.support.relay import LossyRelay
from tests.support.waiting import SECONDS, until

__all__ = ["bucket", "claim_check", "state", "store"]

DATA = bytes(range(256)) * 1600  # four chunks
CHUNKS = 4


@pytest.fixture
def relay(server):
    with LossyRelay(server.url) as relay:
        yield relay


@pytest.fixture
async def far_nc(relay):
    async with connect(relay.url) as nc:
        yield nc


@pytest.fixture
def far(far_nc, bucket):
    """A claim check behind the relay."""
    return ClaimCheck(far_nc.jetstream(timeout=0.5), bucket, over=1000)


@pytest.fixture
def once(far_nc, bucket):
    """A claim check behind the relay without retries, whose timeout is generous because the machine may be busy."""
    return ClaimCheck(far_nc.jetstream(timeout=2.5), bucket, over=1000, retry_timeout=0)


@pytest.fixture
def event(make_event):
    return make_event(1, DATA)


def received(event):
    return from_nats_message(to_nats_message(event, "s"))


def name_of(event):
    return object_name(event, to_nats_message(event).data)


async def has_one_object(state):
    """Return whether the bucket has the chunks and the metadata of one object, and nothing else."""
    return (await state()).messages == CHUNKS + 1


async def code_of(call):
    with pytest.raises(DeliveryError) as info:
        await asyncio.wait_for(call, SECONDS)
    return info.value.code


# --- Lost and late messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "count"), [("C", 1), ("C", 2), ("M", 1), ("M", 3)])
async def test_message_without_an_acknowledgement_is_stored_once(
    relay, claim_check, far, state, js, bucket, event, kind, count
):
    lost = relay.drop_answers(f"$O.{bucket}.{kind}.", count)
    sent = received(await asyncio.wait_for(far.check_in(event), SECONDS))
    assert lost.seen == count
    assert (await claim_check.resolve(sent)).data == DATA
    assert await has_one_object(state)
    assert (await state()).last_seq == CHUNKS + 1
    assert (await (await js.object_store(bucket)).get(object_reference(sent).name)).data == DATA


@pytest.mark.parametrize("ends", ["timeout", "cancellation"])
async def test_retry_after_a_lost_acknowledgement_of_metadata_finds_the_object(
    relay, claim_check, once, far, state, bucket, event, ends
):
    """nats-py's put() deletes the chunks, and keeps the metadata."""
    lost = relay.drop_answers(f"$O.{bucket}.M.")
    if ends == "timeout":
        assert await code_of(once.check_in(event)) == "timeout"
    else:
        storing = asyncio.create_task(far.check_in(event))
        await until(lambda: lost.seen)
        storing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing
    stored = await state()
    assert stored.messages == CHUNKS + 1
    sent = received(await claim_check.check_in(event))
    assert (await claim_check.resolve(sent)).data == DATA
    assert (await state()).last_seq == stored.last_seq


async def test_late_metadata_does_not_replace_that_of_a_retry(
    relay, claim_check, far_nc, once, state, bucket, event, make_event
):
    """The chunks that it refers to may be deleted."""
    held = relay.hold(f"$O.{bucket}.M.")
    assert await code_of(once.check_in(event)) == "timeout"
    sent = received(await claim_check.check_in(event))
    before = (await state()).last_seq
    relay.release(held)
    await far_nc.flush()
    await claim_check.check_in(make_event(2, DATA))  # stored after everything that the server has received
    assert (await state()).last_seq == before + CHUNKS + 1
    assert (await claim_check.resolve(sent)).data == DATA


@pytest.mark.parametrize(("kind", "left"), [("C", 0), ("M", CHUNKS)])
async def test_chunks_are_deleted_after_an_error_unless_metadata_was_sent(
    relay, claim_check, once, state, bucket, event, kind, left
):
    """The metadata may arrive later."""
    held = relay.hold(f"$O.{bucket}.{kind}.")
    assert await code_of(once.check_in(event)) == "timeout"
    assert held.seen == 1
    assert (await state()).messages == left
    sent = received(await claim_check.check_in(event))
    assert (await claim_check.resolve(sent)).data == DATA


@pytest.mark.parametrize("kept", range(CHUNKS))
async def test_cancelled_storing_leaves_no_chunks(relay, far, state, bucket, event, kept):
    answers = relay.drop_answers(f"$O.{bucket}.C.", CHUNKS, after=kept)
    storing = asyncio.create_task(far.check_in(event))
    await until(lambda: answers.seen)
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    assert (await state()).last_seq == kept + 1
    assert (await state()).messages == 0


# --- Several clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [None, 3600], ids=["forever", "ttl"])
async def test_concurrent_clients_store_one_object(server, js, subject, make_event, ttl):
    """Several processes retry the same event; a reader sees its data at any time."""
    bucket = subject.replace(".", "_")
    await js.create_object_store(bucket, storage="memory", ttl=ttl)
    event = make_event(1, DATA)
    try:
        async with connect(server.url) as first, connect(server.url) as second:
            claim_checks = [ClaimCheck(nc.jetstream(), bucket, over=1000) for nc in (first, second)] * 4
            storing = [asyncio.create_task(claim_check.check_in(event)) for claim_check in claim_checks]
            done, _ = await asyncio.wait(storing, return_when=asyncio.FIRST_COMPLETED)
            sent = received(done.pop().result())
            while not all(task.done() for task in storing):
                assert (await claim_checks[0].resolve(sent)).data == DATA
            for task in storing:
                assert task.result().get_attributes() == sent.get_attributes()
        assert (await js.stream_info(f"OBJ_{bucket}")).state.messages == CHUNKS + 1
        assert (await ClaimCheck(js, bucket).resolve(sent)).data == DATA
    finally:
        await js.delete_object_store(bucket)


async def test_retry_while_the_first_upload_still_runs(relay, claim_check, far, state, bucket, event):
    """The first one finds the object of the retry, and deletes its own chunks."""
    held = relay.hold(f"$O.{bucket}.C.")
    first = asyncio.create_task(far.check_in(event))
    await until(lambda: held.seen)
    sent = received(await claim_check.check_in(event))
    relay.release(held)
    assert received(await asyncio.wait_for(first, SECONDS)).get_attributes() == sent.get_attributes()
    assert await has_one_object(state)
    assert (await claim_check.resolve(sent)).data == DATA


async def test_retry_whose_metadata_was_replaced_meanwhile_keeps_the_new_object(
    relay, claim_check, far, store, state, bucket, event
):
    """Its chunks were deleted by the other client, so its own metadata must not be stored again."""
    lost = relay.drop_answers(f"$O.{bucket}.M.")
    first = asyncio.create_task(far.check_in(event))
    await until(lambda: lost.seen)
    await store.put(name_of(event), DATA)
    sent = received(await asyncio.wait_for(first, SECONDS))
    assert await has_one_object(state)
    assert (await claim_check.resolve(sent)).data == DATA


async def test_other_data_under_the_name_is_replaced(claim_check, store, state, event):
    await store.put(name_of(event), b"a" * 1_000_000)
    sent = received(await claim_check.check_in(event))
    assert (await claim_check.resolve(sent)).data == DATA
    assert await has_one_object(state)


@pytest.mark.parametrize("removed", ["all", 1, 2, CHUNKS])
async def test_object_without_all_its_chunks_is_stored_again(claim_check, state, js, bucket, event, removed):
    """Its metadata has the right digest and size."""
    sent = received(await claim_check.check_in(event))
    if removed == "all":
        await js.purge_stream(f"OBJ_{bucket}", subject=f"$O.{bucket}.C.>")
    else:
        await js.delete_msg(f"OBJ_{bucket}", removed)
    await claim_check.check_in(event)
    assert (await claim_check.resolve(sent)).data == DATA
    assert await has_one_object(state)


async def test_deleted_object_is_stored_again(claim_check, store, state, event):
    sent = received(await claim_check.check_in(event))
    await store.delete(name_of(event))
    await claim_check.check_in(event)
    assert (await claim_check.resolve(sent)).data == DATA
    assert await has_one_object(state)


async def test_object_is_stored_although_its_first_chunks_are_deleted_meanwhile(
    relay, claim_check, far, state, js, bucket, event
):
    """By a purge of the bucket."""
    held = relay.hold(f"$O.{bucket}.C.", after=2)
    storing = asyncio.create_task(far.check_in(event))
    await until(lambda: held.seen)
    await js.purge_stream(f"OBJ_{bucket}")
    relay.release(held)
    sent = received(await asyncio.wait_for(storing, SECONDS))
    assert await has_one_object(state)
    assert (await claim_check.resolve(sent)).data == DATA


async def test_replaced_chunks_that_cannot_be_deleted_are_logged(make_event, caplog):
    """The object is stored, so the event can be published."""
    user = '{user: a, password: a, permissions: {publish: {deny: "$JS.API.STREAM.PURGE.>"}}}'
    with NatsServer(jetstream=True, config=f"authorization {{users: [{user}]}}") as server:
        async with connect(server.url, user="a", password="a") as nc:
            js = nc.jetstream()
            await js.create_object_store("DATA", ttl=3600)
            claim_check = ClaimCheck(js, "DATA", over=1000)
            for number in (1, 2):
                sent = received(await claim_check.check_in(make_event(1, DATA)))
                assert (await claim_check.resolve(sent)).data == DATA
                assert len(caplog.records) == number - 1
    assert "the chunks of a replaced object could not be deleted: permission-denied" in caplog.text


# --- Publishing and reading ------------------------------------------------------------------------------------------


async def test_consumer_resolves_the_data_of_an_event_whose_upload_was_not_acknowledged(
    relay, js, far_nc, once, subject, bucket, make_event
):
    """The program publishes again after the error, as after each timeout."""
    await js.add_stream(name=f"{bucket}_events", subjects=[subject], storage="memory")
    relay.drop_answers(f"$O.{bucket}.M.", 2)
    published, errors = [], []
    async with Publisher(far_nc.jetstream(), claim_check=once) as publisher:
        for number in range(4):
            while number not in published:
                try:
                    await publisher.publish(make_event(number, DATA + bytes([number])), subject)
                    published.append(number)
                except DeliveryError as error:
                    errors.append(error.code)
    assert errors == ["timeout", "timeout"]
    found, dead = [], []

    async def handle(delivery):
        found.append((await delivery.resolve()).data)
        if len(found) == 4:
            consumer.stop()

    options = {"dead_letter": None, "create": ConsumerConfig(), "claim_check": ClaimCheck(js, bucket)}
    consumer = PullConsumer(js, f"{bucket}_events", "reader", on_error=lambda *error: dead.append(error), **options)
    async with consumer:
        await asyncio.wait_for(consumer.run(handle), SECONDS)
    assert dead == []
    assert found == [DATA + bytes([number]) for number in range(4)]
    await js.delete_stream(f"{bucket}_events")


async def test_object_that_is_replaced_during_each_read_is_a_temporary_error(
    relay, claim_check, far, store, js, bucket, event
):
    """Nothing is wrong with it, so it must not be dead-lettered at once."""
    sent = received(await claim_check.check_in(event))
    requests = f"$JS.API.STREAM.MSG.GET.OBJ_{bucket}"
    reads = [relay.hold(requests, after=number + 1) for number in range(5)]  # the request for the first chunk
    reading = asyncio.create_task(far.resolve(sent))
    for held in reads:
        await until(lambda held=held: held.seen)
        await store.put(name_of(event), DATA)
        relay.release(held)
    assert await code_of(reading) == "temporarily-unavailable"
    assert (await far.resolve(sent)).data == DATA


@pytest.mark.parametrize(("ttl", "code"), [(3600, "object-not-found"), (None, "digest-mismatch")])
async def test_missing_chunks_in_a_bucket_with_a_time_to_live_have_expired(js, subject, make_event, ttl, code):
    """The chunks of an object are older than its metadata, so they expire before it."""
    bucket = subject.replace(".", "_")
    await js.create_object_store(bucket, storage="memory", ttl=ttl)
    try:
        claim_check = ClaimCheck(js, bucket, over=1000)
        sent = received(await claim_check.check_in(make_event(1, DATA)))
        await js.delete_msg(f"OBJ_{bucket}", 1)
        with pytest.raises(CeNatsError) as info:
            await claim_check.resolve(sent)
        assert info.value.code == code
    finally:
        await js.delete_object_store(bucket)
