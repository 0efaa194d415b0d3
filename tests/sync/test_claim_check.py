"""Large data of events, without asyncio."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import ConsumerConfig

from ce_nats import ContentMode, DeliveryError, EncodeError, from_nats_message, sync, to_nats_message
from ce_nats.routing import SyncRouter
from tests.support.strategies import events, exact

LARGE = {"text": "ü" * 1000}


@pytest.fixture
def bucket(nc, subject):
    name = subject.replace(".", "_")
    js = nc.client.jetstream()
    nc.run(js.create_object_store, name, storage="memory")
    yield name
    nc.run(js.delete_object_store, name)


def test_published_events_are_resolved(nc, stream, subject, bucket, make_event):
    claim_check = nc.claim_check(bucket, over=1000)
    nc.publish_to_stream(make_event(1, LARGE), subject, claim_check=claim_check)
    with nc.publisher(claim_check=claim_check) as publisher:
        publisher.publish(make_event(2, LARGE), subject)
        publisher.publish(make_event(3, {"n": 1}), subject)
    options = {"dead_letter": None, "create": ConsumerConfig(), "claim_check": claim_check, "timeout": 60}
    found = []
    with nc.consumer(stream, "c", **options) as consumer:
        for delivery in consumer:
            with delivery as event:
                found.append((event.data, delivery.resolve().data, delivery.event.data))
            if len(found) == 3:
                break
    assert found == [(None, LARGE, LARGE), (None, LARGE, LARGE), ({"n": 1}, {"n": 1}, {"n": 1})]


def test_event_can_be_checked_in_and_resolved(nc, bucket, make_event):
    claim_check = sync.ClaimCheck(nc, bucket, over=1000)
    event = from_nats_message(to_nats_message(claim_check.check_in(make_event(1, LARGE)), "s"))
    assert not event.has_data
    assert claim_check.resolve(event).data == LARGE
    data = claim_check.resolve(event, parse_data=False).data
    assert claim_check.read(event.extensions["dataref"]) == data
    assert isinstance(data, bytes)


def test_errors_are_raised_in_the_call(nc, stream, subject, make_event):
    claim_check = nc.claim_check("NONE", over=1000)
    with nc.publisher(claim_check=claim_check) as publisher:
        with pytest.raises(DeliveryError, match="there is no bucket NONE"):
            publisher.publish(make_event(1, LARGE), subject)
        publisher.publish(make_event(2), subject)
    assert publisher.acknowledged == 1
    with pytest.raises(EncodeError, match="bucket must"):
        nc.claim_check("a.b")
    with pytest.raises(ValueError, match="over must"):
        nc.claim_check("a", over=-1)


def test_router_passes_resolved_data(nc, stream, subject, bucket, make_event):
    claim_check = nc.claim_check(bucket, over=1000)
    nc.publish_to_stream(make_event(1, LARGE), subject, claim_check=claim_check)
    found = []
    router = SyncRouter()

    @router.on("com.example.*")
    def handle(text: dict[str, str]) -> None:
        found.append(text)
        consumer.stop()

    options = {"dead_letter": None, "create": ConsumerConfig(), "claim_check": claim_check, "timeout": 60}
    with nc.consumer(stream, "c", **options) as consumer:
        consumer.run(router)
    assert found == [LARGE]


def test_any_event_is_resolved_to_itself(nc, bucket):
    claim_check = nc.claim_check(bucket, over=0)

    @given(events(), st.sampled_from(ContentMode))
    def check(event, mode):
        expected = from_nats_message(to_nats_message(event, "s", mode=mode))
        sent = from_nats_message(to_nats_message(claim_check.check_in(event), "s", mode=mode))
        whole = claim_check.resolve(sent)
        attributes = dict(whole.get_attributes())
        if expected.has_data and "dataref" not in event.get_attributes():
            assert not sent.has_data
            assert attributes.pop("dataref").startswith(f"nats-obj:{bucket}/")
        assert (exact(whole.data), whole.has_data) == (exact(expected.data), expected.has_data)
        assert exact(attributes) == exact(dict(expected.get_attributes()))

    check()


def test_data_that_can_never_be_read_is_dead_lettered_at_once(nc, stream, subject, bucket, make_event):
    nc.publish_to_stream(make_event(1, dataref="https://example.com/data"), subject)
    calls = []

    def handle(delivery):
        calls.append(delivery.deliveries)
        consumer.stop()
        delivery.resolve()

    create = ConsumerConfig(filter_subject=subject)
    options = {"dead_letter": f"dead.{subject}", "create": create, "claim_check": nc.claim_check(bucket)}
    with nc.consumer(stream, "c", on_error=lambda *_: None, timeout=60, **options) as consumer:
        consumer.run(handle)
    (letter,) = [item for batch in nc.read_stream(stream, subject=f"dead.{subject}") for item in batch]
    assert (calls, dict(letter.headers)["Dead-Letter-Error"]) == ([1], "unsupported-dataref")
