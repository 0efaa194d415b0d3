from ce_nats import dedup_id, from_nats_message, to_nats_message
from ce_nats.redelivery import DeadLetter


async def test_orders_become_invoices(start, js, make_event, server):
    for name in ("ORDERS", "INVOICES", "DEAD"):
        await js.add_stream(name=name, subjects=[f"{name.lower()}.>"])
    invoices = await js.subscribe("invoices.>")
    dead = await js.subscribe("dead.>")
    program = start("-m", "faststream", "run", "--app-dir", "examples", "faststream_billing:app")
    await js.publish("orders.new", b"not an event")
    order = to_nats_message(make_event(5, {"total": 12.5}), "orders.new", mode="structured")
    for _ in range(2):  # a duplicate without a Nats-Msg-Id, which the stream stores
        await js.publish(order.subject, order.data, headers=dict(order.headers.items()))
    await program.until_printed("FastStream app started successfully")

    message = await invoices.next_msg(60)
    invoice = from_nats_message(message)
    assert invoice.get_data() == {"order": "event 5", "total": 12.5}
    assert message.headers["Nats-Msg-Id"] == dedup_id(invoice)
    copy = await dead.next_msg(60)
    assert copy.data == b"not an event"
    dead_letter, _ = DeadLetter.split(copy.headers.items())
    assert (dead_letter.error, dead_letter.subject) == ("not-a-cloudevent", "orders.new")
    assert (dead_letter.stream, dead_letter.consumer, dead_letter.sequence) == ("ORDERS", "invoicing", 1)

    program.process.terminate()
    await program.until_exit()
    assert (await js.stream_info("INVOICES")).state.messages == 1
    assert (await js.consumer_info("ORDERS", "invoicing")).num_ack_pending == 0

    command = ["-m", "ce_nats", "dead-letters"]
    at = ["--server", server.url]
    listed = await start(*command, "list", "DEAD", "--reason", "undecodable", *at).until_exit()
    assert "orders.new  ORDERS:1" in listed
    requeued = await start(*command, "requeue", "DEAD", "--error", "not-a-cloudevent", *at).until_exit()
    assert "dead letter 1 is now message 4 of stream ORDERS" in requeued
    assert (await js.get_msg("ORDERS", 4)).data == b"not an event"
