import importlib

import nats
import pytest
from faststream.nats import TestNatsBroker

from ce_nats import dedup_id, from_nats_message, to_nats_message
from ce_nats.aio.jetstream import read_stream
from ce_nats.redelivery import DeadLetter
from tests.examples.conftest import EXAMPLES
from tests.support.waiting import until

SUBJECTS = {"WEB_ORDERS": "web-orders.>", "WEB_INVOICES": "web-invoices.>", "DEAD_WEB_ORDERS": "dead.web-orders"}
COMMAND = ("-m", "faststream", "run", "--app-dir", "examples", "faststream_billing:app")
STARTED = "FastStream app started successfully"


@pytest.mark.filterwarnings("ignore:The JetStream Push consumer")
async def test_subscriber_with_the_test_broker_of_faststream(monkeypatch, make_event):
    monkeypatch.syspath_prepend(EXAMPLES)
    billing = importlib.import_module("faststream_billing")
    message = to_nats_message(make_event(1, {"total": 5}), "web-orders.new")
    async with TestNatsBroker(billing.broker) as broker:
        headers = dict(message.headers.items())
        await broker.publish(message.data, message.subject, headers=headers, stream="WEB_ORDERS")
        (call,) = billing.bill.mock.mock_calls
    assert call.args[0].get_id() == "event 1"


@pytest.fixture
async def streams(js):
    for name, subject in SUBJECTS.items():
        await js.add_stream(name=name, subjects=[subject])


@pytest.fixture
def order(js, make_event):
    """Publish an order."""

    async def publish(number, data, **headers):
        message = to_nats_message(make_event(number, data), "web-orders.new", mode="structured")
        await js.publish(message.subject, message.data, headers={**dict(message.headers.items()), **headers})

    return publish


@pytest.fixture
def dead_letters(js):
    """Wait for a number of dead letters."""

    async def wait(count):
        async def are_stored():
            return (await js.stream_info("DEAD_WEB_ORDERS")).state.messages >= count

        await until(are_stored)
        batches = read_stream(js, "DEAD_WEB_ORDERS")
        return [(DeadLetter.split(letter.headers)[0], letter.data) async for batch in batches for letter in batch]

    return wait


@pytest.fixture
def is_settled(js):
    async def wait():
        async def has_none():
            info = await js.consumer_info("WEB_ORDERS", "invoicing")
            return not info.num_pending and not info.num_ack_pending

        await until(has_none)

    return wait


async def invoices_of(js):
    batches = read_stream(js, "WEB_INVOICES")
    return [from_nats_message(message).data["order"] async for batch in batches for message in batch]


@pytest.mark.usefixtures("streams")
async def test_orders_become_invoices(start, js, order, dead_letters, is_settled, server):
    invoices = await js.subscribe("web-invoices.>")
    program = start(*COMMAND)
    await js.publish("web-orders.new", b"not an event")
    for _ in range(2):  # a duplicate without a Nats-Msg-Id, which the stream stores
        await order(5, {"total": 12.5})
    await program.until_printed(STARTED)

    message = await invoices.next_msg(60)
    invoice = from_nats_message(message)
    assert invoice.get_data() == {"order": "event 5", "total": 12.5}
    assert message.headers["Nats-Msg-Id"] == dedup_id(invoice)
    ((dead_letter, data),) = await dead_letters(1)
    assert data == b"not an event"
    assert (dead_letter.error, dead_letter.subject) == ("not-a-cloudevent", "web-orders.new")
    assert (dead_letter.stream, dead_letter.consumer, dead_letter.sequence) == ("WEB_ORDERS", "invoicing", 1)
    assert dead_letter.deliveries == 1

    await is_settled()
    assert (await js.stream_info("WEB_INVOICES")).state.messages == 1
    program.process.terminate()
    await program.until_exit()

    command = ["-m", "ce_nats", "dead-letters"]
    at = ["--server", server.url]
    listed = await start(*command, "list", "DEAD_WEB_ORDERS", "--reason", "undecodable", *at).until_exit()
    assert "web-orders.new  WEB_ORDERS:1" in listed
    requeued = await start(*command, "requeue", "DEAD_WEB_ORDERS", "--error", "not-a-cloudevent", *at).until_exit()
    assert "dead letter 1 is now message 4 of stream WEB_ORDERS" in requeued
    assert (await js.get_msg("WEB_ORDERS", 4)).data == b"not an event"


@pytest.mark.usefixtures("streams")
async def test_order_that_always_fails_is_dead_lettered_after_three_attempts(
    start, js, order, dead_letters, is_settled
):
    """With delays between the attempts; orders after it are billed meanwhile."""
    program = start(*COMMAND)
    await program.until_printed(STARTED)
    # A header for the server must not be part of the dead letter.
    await order(1, {"amount": 5}, **{"Nats-Expected-Stream": "WEB_ORDERS"})
    await order(2, {"total": 2})
    await order(3, {"total": 3})
    ((dead_letter, data),) = await dead_letters(1)
    await is_settled()
    assert (dead_letter.reason.value, dead_letter.error, dead_letter.text) == ("exhausted", "KeyError", "'total'")
    assert (dead_letter.sequence, dead_letter.deliveries) == (1, 3)
    assert b'"amount"' in data
    assert await invoices_of(js) == ["event 2", "event 3"]
    # The server counts all deliveries: three of the first order, one of each other one.
    assert (await js.consumer_info("WEB_ORDERS", "invoicing")).delivered.consumer_seq == 5
    times = [message.timestamp async for batch in read_stream(js, "WEB_ORDERS", end=1) for message in batch]
    stored = [message.timestamp async for batch in read_stream(js, "DEAD_WEB_ORDERS") for message in batch]
    assert (stored[0] - times[0]).total_seconds() >= 2  # half of 1 and 3 seconds
    program.process.terminate()
    log = await program.until_exit()
    assert log.count("KeyError: 'total'") == 3


@pytest.mark.usefixtures("streams")
async def test_order_is_redelivered_with_a_delay_until_its_dead_letter_is_stored(
    start, js, order, dead_letters, is_settled
):
    await js.delete_stream("DEAD_WEB_ORDERS")
    program = start(*COMMAND)
    await program.until_printed(STARTED)
    await js.publish("web-orders.new", b"not an event")
    await order(2, {"total": 2})
    await program.until_printed("the dead letter could not be stored")
    await js.add_stream(name="DEAD_WEB_ORDERS", subjects=[SUBJECTS["DEAD_WEB_ORDERS"]])
    ((dead_letter, _),) = await dead_letters(1)
    await is_settled()
    assert dead_letter.error == "not-a-cloudevent"
    assert dead_letter.deliveries >= 2
    assert await invoices_of(js) == ["event 2"]


@pytest.mark.usefixtures("streams")
async def test_order_that_ends_the_process_is_dead_lettered(start, server, js, order, dead_letters, is_settled):
    """Its deliveries have no outcome, and the server counts them."""
    config = {"durable_name": "invoicing", "deliver_subject": "deliver.invoicing", "ack_wait": 0.1}
    await js.add_consumer("WEB_ORDERS", **config, ack_policy="explicit")
    await order(1, {"total": 1})
    async with await nats.connect(server.url) as nc:  # as FastStream, in processes that were ended nine times
        unhandled = await nc.subscribe("deliver.invoicing")
        for _ in range(9):
            await unhandled.next_msg(60)
    program = start(*COMMAND)
    await program.until_printed(STARTED)
    ((dead_letter, _),) = await dead_letters(1)
    assert (dead_letter.reason.value, dead_letter.error) == ("process-ended", "")
    assert dead_letter.deliveries >= 10
    await is_settled()
    assert await invoices_of(js) == []
