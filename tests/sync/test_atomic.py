"""Atomic batches of ``ce_nats.sync``."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from ce_nats import AtomicBatchError, EncodeError, from_nats_message, sync
from tests.support.synchronous import event_ids, stored_ids


@pytest.fixture
def batches(nc, stream):
    """A stream that allows atomic batches."""
    nc.configure_stream(stream, allow_atomic=True)
    return stream


def test_events_are_stored_at_the_end_of_the_block(nc, js, batches, subject, make_event):
    outcomes = []
    with nc.atomic_batch(on_outcome=outcomes.append) as batch:
        batch.publish(make_event(1), subject, expected_last_subject_sequence=0)
        batch.publish(make_event(2), subject, headers={"x": "y"})
        assert (len(batch), batch.ack, stored_ids(js, batches)) == (2, None, [])
    assert (batch.ack.stream, batch.ack.first, batch.ack.last) == (batches, 1, 2)
    assert stored_ids(js, batches) == event_ids(1, 2)
    assert [one.ack.seq for one in outcomes] == [1, 2]


def test_refused_batch(nc, js, batches, subject, make_event):
    def publish(expected):
        with sync.AtomicBatch(nc) as batch:
            batch.publish(make_event(1), f"dead.{subject}")
            batch.publish(make_event(2), subject, expected_last_subject_sequence=expected)

    with pytest.raises(AtomicBatchError) as info:
        publish(7)
    assert (info.value.err_code, info.value.position) == (10071, 1)
    assert stored_ids(js, batches) == []


def test_exception_abandons_the_batch(nc, js, batches, subject, make_event):
    def interrupted():
        with nc.atomic_batch() as batch:
            batch.publish(make_event(1), subject)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stored_ids(js, batches) == []


def test_batch_is_used_inside_of_its_block(nc, js, batches, subject, make_event):
    batch = nc.atomic_batch()
    for _ in range(2):
        with pytest.raises(sync.DeliveryError) as info:
            batch.publish(make_event(1), subject)
        assert info.value.code == "not-open"
        if batch.ack is None:
            with batch:
                batch.publish(make_event(2), subject)
    assert stored_ids(js, batches) == event_ids(2)


def test_data_is_validated_and_stored_in_a_bucket(nc, batches, subject, make_event):
    bucket = subject.replace(".", "_")
    js = nc.client.jetstream()
    nc.run(js.create_object_store, bucket, storage="memory")
    schemas = {"com.example.test": {"maxLength": 100}}
    with nc.atomic_batch(validate=schemas, claim_check=nc.claim_check(bucket, over=10)) as batch:
        batch.publish(make_event(1, "x" * 100), subject)
        with pytest.raises(EncodeError) as info:
            batch.publish(make_event(2, "x" * 101), subject)
    assert (info.value.code, batch.ack.count) == ("data-mismatch", 1)
    (((message,),)) = list(nc.read_stream(batches))
    assert from_nats_message(message).get_attributes()["dataref"]
    nc.run(js.delete_object_store, bucket)


def test_several_threads_add_events(nc, js, batches, subject, make_event):
    """One more than allowed is refused, in one of the threads."""

    def add(number):
        try:
            batch.publish(make_event(number), subject)
        except EncodeError as error:
            return str(error.code)

    with nc.atomic_batch() as batch, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(add, range(1_001)))
    assert sorted(filter(None, results)) == ["invalid-batch"]
    assert batch.ack.count == 1_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_child_does_not_send_the_batch_of_its_parent(nc, js, batches, subject, make_event):
    with nc.atomic_batch() as batch:
        batch.publish(make_event(1), subject)
        child = os.fork()
        if not child:
            codes = []
            for use in (lambda: batch.publish(make_event(2), subject), lambda: batch.__exit__(None, None, None)):
                try:
                    use()
                except sync.DeliveryError as error:
                    codes.append(str(error.code))
            batch.__exit__(KeyError, KeyError(), None)
            os._exit(0 if codes == ["not-open"] * 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert stored_ids(js, batches) == []
    assert stored_ids(js, batches) == event_ids(1)
