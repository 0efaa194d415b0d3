from ce_nats import dedup_id, from_nats_message, to_nats_message


async def test_orders_become_invoices(start, js, make_event):
    for name in ("ORDERS", "INVOICES", "DEAD"):
        await js.add_stream(name=name, subjects=[f"{name.lower()}.>"])
    invoices = await js.subscribe("invoices.>")
    dead = await js.subscribe("dead.>")
    program = start("-m", "faststream", "run", "--app-dir", "examples", "faststream_billing:app")
    await js.publish("orders.new", b"not an event")
    order = to_nats_message(make_event(5, {"total": 12.5}), "orders.new", mode="structured")
    for _ in range(2):  # a duplicate of another kind: without a Nats-Msg-Id
        await js.publish(order.subject, order.data, headers=dict(order.headers.items()))
    await program.says("FastStream app started successfully")

    message = await invoices.next_msg(60)
    invoice = from_nats_message(message)
    assert invoice.get_data() == {"order": "event 5", "total": 12.5}
    assert message.headers["Nats-Msg-Id"] == dedup_id(invoice)
    copy = await dead.next_msg(60)
    assert copy.data == b"not an event"
    assert copy.headers["Dead-Letter-Error"] == "not-a-cloudevent"

    program.process.terminate()
    await program.ends()
    assert (await js.stream_info("INVOICES")).state.messages == 1
    assert (await js.consumer_info("ORDERS", "billing")).num_ack_pending == 0
