import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from cloudevents.core.bindings import kafka

from ce_nats import from_nats_message
from ce_nats.aio import jetstream
from tests.support.caching import NotAvailable
from tests.support.kafka_broker import broker

pytestmark = pytest.mark.interop

SCRIPT = "examples/kafka_bridge.py"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    try:
        with broker(tmp_path_factory.mktemp("kafka")) as address:
            yield address
    except NotAvailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def bridge(start, address, monkeypatch):
    monkeypatch.setenv("KAFKA", address)
    return lambda *arguments: start(SCRIPT, *arguments)


async def test_events_from_kafka_to_nats_and_back(bridge, address, js, make_event):
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    await js.add_stream(name="DEAD", subjects=["dead.bridge.>"])
    event = make_event(1, {"total": 12.5}, subject="5 €", partitionkey="north", datacontenttype="application/json")
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        for record in (kafka.to_binary_event(event), kafka.to_structured_event(make_event(2, "text"))):
            headers = list(record.headers.items())
            key = record.key and str(record.key).encode()
            await producer.send_and_wait("orders", record.value, key=key, headers=headers)
        await producer.send_and_wait("orders", b"not an event")

    dead = await js.subscribe("dead.>")
    inwards = bridge("to-nats", "--topic", "orders", "--subject", "orders.{id}")
    refused = await dead.next_msg(120)
    assert (refused.data, refused.headers["Error"]) == (b"not an event", "not-a-cloudevent")
    inwards.process.terminate()
    await inwards.until_exit()
    stored = [message async for batch in jetstream.read_stream(js, "ORDERS") for message in batch]
    assert [from_nats_message(message).get_attributes() for message in stored] == [
        event.get_attributes(),
        {**make_event(2).get_attributes(), "datacontenttype": "application/json"},
    ]
    assert [from_nats_message(message).get_data() for message in stored] == [{"total": 12.5}, "text"]

    await js.publish("orders.bad", b"not an event")
    outwards = bridge("to-kafka", "--stream", "ORDERS", "--topic", "copy")
    async with AIOKafkaConsumer("copy", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        first, second = await consumer.getone(), await consumer.getone()
    assert first.key == b"north"
    copy = kafka.from_binary_event(kafka.KafkaMessage(dict(first.headers), first.key, first.value))
    assert "ce_time" not in dict(first.headers)  # the package adds the current time when it decodes
    assert {name: copy.get_attributes()[name] for name in event.get_attributes()} == event.get_attributes()
    assert copy.get_data() == {"total": 12.5}
    assert dict(second.headers)["ce_id"] == b"event 2"
    assert second.value == b'"text"'
    assert (await dead.next_msg(120)).data == b"not an event"
    outwards.process.terminate()
    await outwards.until_exit()
    info = await js.consumer_info("ORDERS", "ce-nats-bridge")
    assert (info.num_pending, info.num_ack_pending) == (0, 0)


async def test_unacknowledged_record_is_resent(bridge, address, js, make_event):
    """Without a stream the bridge exits with an error, and commits nothing."""
    record = kafka.to_binary_event(make_event(1, b"x"))
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        await producer.send_and_wait("lost", record.value, headers=list(record.headers.items()))
    failed = await bridge("to-nats", "--topic", "lost", "--subject", "lost.new").until_exit(1)
    assert "no-responders" in failed
    await js.add_stream(name="LOST", subjects=["lost.>"])
    retried = bridge("to-nats", "--topic", "lost", "--subject", "lost.new")
    subscription = await js.subscribe("lost.>")
    assert (await subscription.next_msg(120)).data == b"x"
    retried.process.terminate()
    await retried.until_exit()
