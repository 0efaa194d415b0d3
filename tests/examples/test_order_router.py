import signal

from ce_nats import aio
from tests.support.reading import fetch

SCRIPT = "examples/order_router.py"


async def test_events_are_handled_by_type(start, js, make_event):
    await js.add_stream(name="WEB_ORDERS", subjects=["web-orders.>"])
    await js.add_stream(name="DEAD_WEB_ORDERS", subjects=["dead.web-orders"])
    async with aio.Publisher(js) as publisher:
        for number, (kind, quantity) in enumerate((("placed", 2), ("paid", 1), ("placed", 0)), 1):
            event = make_event(number, {"sku": "A", "quantity": quantity}, type=f"com.example.order.{kind}")
            await publisher.publish(event, f"web-orders.{kind}")
        await publisher.publish(make_event(4), "web-orders.other")
    program = start(SCRIPT)
    subscription = await js.pull_subscribe("dead.web-orders", durable="test", stream="DEAD_WEB_ORDERS")
    letters = {letter.headers["Dead-Letter-Error"] for letter in await fetch(subscription, 2)}
    assert letters == {"Reject", "data-mismatch"}
    await program.until_printed("event 1: reserve 2 of A\n")
    await program.until_printed("event 2: com.example.order.paid on web-orders.paid\n")
    program.process.send_signal(signal.SIGTERM)
    await program.until_exit()
