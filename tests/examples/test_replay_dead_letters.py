import asyncio

from nats.js.api import ConsumerConfig

from ce_nats import Reject
from ce_nats.aio import PullConsumer, jetstream

SCRIPT = "examples/replay_dead_letters.py"


async def test_dead_letters_of_one_error_are_replayed(start, js, make_event):
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    await js.add_stream(name="DEAD", subjects=["dead.>"])
    for number in (1, 2):
        await jetstream.publish(js, make_event(number), "orders.new")
    await js.publish("orders.new", b"not an event")
    await js.publish("dead.other", b"not a dead letter")

    async def fail(delivery):
        raise KeyError("total") if delivery.event.get_id() == "event 1" else Reject("no")

    async with PullConsumer(
        js, "ORDERS", "billing", dead_letter="dead.orders", max_deliveries=1, create=ConsumerConfig(), on_error=print
    ) as consumer:
        run = asyncio.create_task(consumer.run(fail))
        while (await js.stream_info("DEAD")).state.messages < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        consumer.stop()
        await run

    listed = await start(SCRIPT, "DEAD", "--error", "KeyError").until_exit()
    assert "1: skipped, because it is not a dead letter" in listed
    assert "ORDERS:1 on orders.new: 'total'\n1 would be replayed\n" in listed
    assert (await js.stream_info("ORDERS")).state.messages == 3

    assert (
        "is message 4 of stream ORDERS" in await start(SCRIPT, "DEAD", "--error", "KeyError", "--replay").until_exit()
    )
    again = await js.get_msg("ORDERS", 4)
    assert again.headers["ce-id"] == "event%201"
    assert (await js.stream_info("DEAD")).state.messages == 3

    # One that cannot be replayed is kept.
    await js.update_stream(name="ORDERS", subjects=["orders.old"])
    output = await start(SCRIPT, "DEAD", "--error", "not-a-cloudevent", "--replay").until_exit(1)
    assert "forbidden-subject" in output
    assert (await js.stream_info("DEAD")).state.messages == 3
