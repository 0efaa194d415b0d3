"""Connections of ``ce_nats.sync``, and their operations."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import CeNatsError, EncodeError, NatsMessage, from_nats_message, sync
from ce_nats.testing import NatsServer
from tests.support.synchronous import SECONDS, event_ids, stored_ids, wait_for


def test_request_and_reply(nc, subject, make_event):
    with nc.subscribe(subject) as requests:

        def reply():
            for item in requests:
                nc.respond(item, make_event(2, {"euro": 7}))
                return

        with ThreadPoolExecutor() as pool:
            replying = pool.submit(reply)
            answer = sync.request(nc, make_event(1), subject, timeout=SECONDS)
            replying.result()
    assert answer.event.get_data() == {"euro": 7}
    assert answer.event.get_extension("causationid") == "event 1"


def test_reply_to_a_subject_of_the_server_is_rejected(nc, js, stream, subject, make_event):
    nc.publish_to_stream(make_event(), subject)
    with nc.subscribe(f"service.{subject}") as requests:
        nc.run(nc.client.publish, f"service.{subject}", b"", f"$JS.API.STREAM.PURGE.{stream}")
        with pytest.raises(EncodeError, match="forbidden-subject"):
            nc.respond(next(requests), make_event())
    assert js.stream_info(stream).state.messages == 1


def test_errors_are_those_of_aio(nc, subject, make_event):
    def code(call, *args, **options):
        with pytest.raises(CeNatsError) as caught:
            call(*args, **options)
        return caught.value.code

    assert code(nc.request, make_event(), subject) == "no-responders"
    assert code(nc.publish, make_event(1, {"a": object()}), subject) == "invalid-data"
    assert code(nc.publish, make_event(), "a b") == "invalid-subject"
    assert code(nc.publish, make_event(1, "x" * 2_000_000), subject) == "payload-too-large"
    assert code(nc.publish_to_stream, make_event(), subject) == "no-responders"
    assert code(lambda: list(nc.read_stream("missing"))) == "stream-not-found"
    assert code(sync.connect, "nats://127.0.0.1:1") == "connection-failed"
    assert code(sync.connect, "http://127.0.0.1") == "invalid-option"


@pytest.mark.parametrize(
    "call",
    [
        lambda nc, event: sync.connect("nats://127.0.0.1:1", no_such=1),
        lambda nc, event: nc.publish(event, "s", no_such=1),
        lambda nc, event: nc.publish_to_stream(event, "s", no_such=1),
        lambda nc, event: nc.request(event, "s", no_such=1),
        lambda nc, event: nc.respond(None, event, no_such=1),
        lambda nc, event: nc.subscribe("s", no_such=1),
        lambda nc, event: nc.publisher(no_such=1),
        lambda nc, event: nc.consumer("S", "c", dead_letter=None, no_such=1),
        lambda nc, event: nc.consumer("S", "c"),  # dead_letter must be chosen
        lambda nc, event: nc.read_stream("S", no_such=1),
        lambda nc, event: nc.replay([], no_such=1),
        lambda nc, event: nc.requeue_all([], no_such=1),
    ],
)
def test_wrong_option_is_a_type_error_at_the_call(nc, make_event, call):
    with pytest.raises(TypeError, match=r"no_such|dead_letter"):
        call(nc, make_event())


def test_closed_connection_raises(server, subject, make_event):
    nc = sync.connect(server.url)
    publisher, messages = nc.publisher(), nc.subscribe(subject)
    nc.close()
    nc.close()
    for call in (nc.publish, nc.request, nc.publish_to_stream):
        with pytest.raises(sync.DeliveryError) as caught:
            call(make_event(), subject)
        assert caught.value.code == "connection-closed"
    assert list(messages) == []
    publisher.publish(make_event(), subject)
    with pytest.raises(sync.PublishError) as caught:
        publisher.close()
    assert caught.value.code == "connection-closed"
    with pytest.raises(sync.DeliveryError) as caught:
        publisher.publish(make_event(), subject)
    assert caught.value.code == "not-open"


def test_end_of_the_block_raises_denied_publishes(make_event):
    users = "users: [{user: u, password: p, permissions: {publish: [ok]}}]"
    with NatsServer(config=f"authorization {{ {users} }}") as strict:
        with pytest.raises(sync.DeliveryError) as caught, sync.connect(strict.url, user="u", password="p") as nc:
            nc.publish(make_event(), "denied")
        assert caught.value.code == "permission-denied"


def test_publish_to_stream_returns_the_acknowledgement(nc, stream, subject, make_event):
    first, second = (sync.publish_to_stream(nc, make_event(1), subject) for _ in range(2))
    assert (first.stream, first.seq, bool(first.duplicate)) == (stream, 1, False)
    assert (second.seq, second.duplicate) == (1, True)


def test_interrupted_request_is_cancelled(nc, subject, make_event):
    with nc.subscribe(subject):
        timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            nc.request(make_event(), subject, timeout=SECONDS)
        timer.join()
        nc.flush()


# --- Streams ----------------------------------------------------------------------------------------------------------


def publish(nc, subject, events):
    with nc.publisher() as publisher:
        for event in events:
            publisher.publish(event, subject)


def decoded_ids(messages):
    return [from_nats_message(NatsMessage(one.subject, one.data, one.headers)).get_id() for one in messages]


def test_stream_is_read_in_batches(nc, stream, subject, make_event):
    publish(nc, subject, map(make_event, range(300)))
    batches = list(sync.read_stream(nc, stream, start=2, end=290, batch_size=100))
    assert list(map(len, batches)) == [100, 100, 89]
    messages = [message for batch in batches for message in batch]
    assert decoded_ids(messages) == event_ids(*range(1, 290))
    (some,) = nc.read_stream(stream, start_time=messages[10].timestamp, end_time=messages[12].timestamp)
    assert [message.sequence for message in some] == [12, 13, 14]


def test_stream_is_configured(nc, stream):
    assert sync.configure_stream(nc, stream, max_msgs=3)["max_msgs"] == 3
    with pytest.raises(CeNatsError) as info:
        nc.configure_stream("missing", max_msgs=3)
    assert info.value.code == "stream-not-found"
    with pytest.raises(sync.DeliveryError, match="consumer-not-found"):
        nc.configure_consumer(stream, "missing", max_deliver=3)


def test_reading_a_stream_can_end_early(nc, js, stream, subject, make_event):
    """The consumer on the server is deleted."""
    publish(nc, subject, map(make_event, range(600)))
    batches = nc.read_stream(stream, batch_size=10)
    assert len(next(batches)) == 10
    assert js.stream_info(stream).state.consumer_count == 1
    batches.close()
    assert js.stream_info(stream).state.consumer_count == 0


def test_messages_are_replayed_from_an_iterable_that_uses_the_connection(nc, js, stream, subject, make_event):
    publish(nc, subject, map(make_event, range(250)))
    messages = (message for batch in nc.read_stream(stream) for message in batch)
    counts = []
    result = nc.replay(messages, subject=f"dead.{subject}", on_progress=counts.append)
    assert (result.messages, result.duplicates) == (250, 250)
    assert counts == list(range(1, 251))


def test_stream_is_replayed_into_itself_with_new_ids(nc, js, stream, subject, make_event):
    publish(nc, subject, map(make_event, range(50)))
    messages = next(nc.read_stream(stream))
    assert nc.replay(messages).duplicates == 50
    assert nc.replay(messages, new_ids=True).duplicates == 0
    assert stored_ids(js, stream) == event_ids(*range(50), *range(50))


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


def test_prefix_of_the_api_is_taken_from_the_context(make_event, monkeypatch, tmp_path):
    """There is no other way to set it: the connection makes the JetStream context."""
    with NatsServer(jetstream=True, config=ACCOUNTS) as server:
        directory = tmp_path / "nats" / "context"
        directory.mkdir(parents=True)
        context = {"url": server.url, "user": "other", "password": "s3cret", "jetstream_api_prefix": "shop.api"}
        (directory / "shop.json").write_text(json.dumps(context))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        with (
            sync.connect(server.url, user="shop", password="s3cret") as owner,
            sync.connect(context="shop") as nc,
        ):
            owner.run(owner.client.jetstream().add_stream, name="ORDERS", subjects=["orders.>"])
            with nc.publisher() as publisher:
                publisher.publish(make_event(1), "orders.a")
            messages = next(nc.read_stream("ORDERS"))
            assert nc.replay(messages, new_ids=True).messages == 1
            assert [len(batch) for batch in nc.read_stream("ORDERS")] == [2]


def test_replay_sends_messages_before_an_exception_of_the_iterable(nc, js, stream, subject, make_event):
    publish(nc, subject, map(make_event, range(3)))
    stored = next(nc.read_stream(stream))
    js.add_stream(name=f"{stream}_copy", subjects=[f"copy.{subject}"], storage="memory")

    def messages():
        yield from stored
        raise KeyError

    try:
        with pytest.raises(KeyError):
            nc.replay(messages(), subject=f"copy.{subject}")
        wait_for(lambda: js.stream_info(f"{stream}_copy").state.last_seq == 3)  # they were sent, not awaited
        assert stored_ids(js, f"{stream}_copy") == event_ids(0, 1, 2)
    finally:
        js.delete_stream(f"{stream}_copy")


def test_dead_letters_are_requeued(nc, js, stream, subject, make_event):
    publish(nc, subject, map(make_event, range(4)))
    config = ConsumerConfig(ack_wait=60, filter_subject=subject)
    with nc.consumer(stream, "c", dead_letter=f"dead.{subject}", create=config, timeout=SECONDS) as consumer:
        for _ in range(4):
            next(consumer).reject("no such customer")

    def letters():
        return [letter for batch in nc.read_stream(stream, subject=f"dead.{subject}") for letter in batch]

    first, *others = letters()
    assert nc.requeue(first).stream == stream
    assert len(letters()) == 4  # requeue() keeps the dead letter
    results = list(sync.requeue_all(nc, others))
    assert [(result.is_deleted, result.error) for result in results] == [(True, None)] * 3
    assert [letter.sequence for letter in letters()] == [first.sequence]
    requeued = [one for batch in nc.read_stream(stream, subject=subject, start=9) for one in batch]
    assert decoded_ids(requeued) == event_ids(0, 1, 2, 3)
