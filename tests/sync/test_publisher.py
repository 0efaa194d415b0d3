"""The publisher of ``ce_nats.sync``."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest

from ce_nats import EncodeError, sync
from tests.support.synchronous import SECONDS, event_ids, stored_ids, wait_for


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_all_events_are_stored_in_order(nc, js, stream, subject, make_event, window):
    with nc.publisher(window=window) as publisher:
        for number in range(500):
            publisher.publish(make_event(number), subject)
    assert stored_ids(js, stream) == event_ids(*range(500))
    assert (publisher.acknowledged, publisher.duplicates, publisher.failures) == (500, 0, [])


def test_event_is_sent_without_flush(nc, js, stream, subject, make_event):
    with sync.Publisher(nc) as publisher:
        publisher.publish(make_event(1), subject)
        wait_for(lambda: publisher.acknowledged == 1)
        publisher.publish(make_event(1), subject)
        publisher.flush()
        assert (publisher.acknowledged, publisher.duplicates) == (2, 1)
    assert stored_ids(js, stream) == event_ids(1)


@pytest.mark.parametrize("way", ["publish_to_stream", "publisher", "atomic_batch"])
def test_schedule_is_sent(nc, js, stream, subject, make_event, way):
    nc.configure_stream(stream, allow_msg_schedules=True, allow_atomic=True)
    schedule = sync.Schedule.at(datetime(2099, 1, 1, tzinfo=timezone.utc), f"dead.{subject}")
    if way == "publish_to_stream":
        nc.publish_to_stream(make_event(1), subject, schedule=schedule)
    else:
        with getattr(nc, way)() as publisher:
            publisher.publish(make_event(1), subject, schedule=schedule)
    ((message),) = js.read(stream)
    assert ("Nats-Schedule", "@at 2099-01-01T00:00:00Z") in message.headers


def test_failures_are_raised_once(nc, js, stream, subject, make_event):
    """An event that cannot be encoded raises in its own call, a refused one in a later call."""
    publisher = nc.publisher()
    with pytest.raises(EncodeError):
        publisher.publish(make_event(1, {1, 2}), subject)
    publisher.publish(make_event(2), subject, headers={"Nats-Expected-Stream": "another"})
    with pytest.raises(sync.PublishError) as caught:
        publisher.flush()
    assert [failure.event.get_id() for failure in caught.value.failures] == event_ids(2)
    publisher.publish(make_event(3), subject)
    publisher.publish(make_event(4), subject, headers={"Nats-Expected-Stream": "another"})
    with pytest.raises(sync.PublishError) as caught:
        publisher.close()
    assert [failure.event.get_id() for failure in caught.value.failures] == event_ids(4)
    assert stored_ids(js, stream) == event_ids(3)


def test_failures_are_kept_after_an_exception_in_the_block(nc, js, stream, subject, make_event):
    def fail(publisher):
        with publisher:
            publisher.publish(make_event(1), subject)
            publisher.publish(make_event(2), subject, headers={"Nats-Expected-Stream": "another"})
            raise KeyError

    publisher = nc.publisher()
    with pytest.raises(KeyError):
        fail(publisher)
    assert [failure.event.get_id() for failure in publisher.failures] == event_ids(2)
    assert stored_ids(js, stream) == event_ids(1)


def test_threads_share_a_connection_and_a_publisher(nc, js, stream, subject, make_event):
    with nc.publisher(window=10) as publisher:

        def send(thread):
            for number in range(100):
                publisher.publish(make_event(thread * 1000 + number), subject)

        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(send, thread) for thread in range(8)]:
                future.result(SECONDS)
    found = stored_ids(js, stream)
    assert sorted(found) == sorted(event_ids(*(thread * 1000 + number for thread in range(8) for number in range(100))))
    of_one = [one for one in found if 3000 <= int(one.split()[1]) < 4000]
    assert of_one == event_ids(*range(3000, 3100))
