"""Received messages have the same members everywhere: core NATS, JetStream and NATS Streaming."""

import inspect

from nats.js.api import ConsumerConfig

from ce_nats import stan
from ce_nats.aio import Delivery, PullConsumer, Received, events, flush, publish, subscribe
from ce_nats.aio import jetstream as ce_js
from tests.support.consuming import until_consumer
from tests.support.tables import each

MEMBERS = ("event", "error", "message", "subject", "sequence", "deliveries")


@each("kind", [Received, Delivery, stan.Delivery])
def test_members(kind):
    assert [name for name in MEMBERS if not hasattr(kind, name)] == []


@each("name", ["ack", "nak", "reject"])
def test_verbs(name):
    """Methods have the same parameters, so that code for one works with the other."""
    assert inspect.signature(getattr(Delivery, name)) == inspect.signature(getattr(stan.Delivery, name))


def test_delivery_is_a_received():
    """A function for Received accepts a Delivery."""
    assert issubclass(Delivery, Received)


async def test_message_of_core_nats(nc, subject, make_event):
    async with await subscribe(nc, subject) as received:
        await publish(nc, make_event(), subject, reply="a.reply")
        await flush(nc)
        item = await anext(received)
    assert (item.subject, item.sequence, item.deliveries, item.error) == (subject, 0, 1, None)
    assert item.event.get_id() == "event 1"


async def test_message_of_a_push_consumer(js, subject, stream, make_event):
    """nats-py acknowledges its messages."""
    await ce_js.publish(js, make_event(1), subject)
    await ce_js.publish(js, make_event(2), subject)
    subscription = await js.subscribe(subject, config=ConsumerConfig(ack_policy="explicit"), manual_ack=True)
    async with events(subscription) as received:
        first, second = await anext(received), await anext(received)
        assert [(item.subject, item.sequence, item.deliveries) for item in (first, second)] == [
            (subject, 1, 1),
            (subject, 2, 1),
        ]
        await second.message.nak()
        again = await anext(received)
    assert (again.sequence, again.deliveries, again.event.get_id()) == (2, 2, "event 2")


async def test_message_of_a_pull_consumer(js, subject, stream, make_event):
    await ce_js.publish(js, make_event(1), subject)
    async with PullConsumer(js, stream, "c", dead_letter=None, create=ConsumerConfig()) as consumer:
        delivery = await anext(consumer)
        assert (delivery.subject, delivery.sequence, delivery.deliveries, delivery.error) == (subject, 1, 1, None)
        assert delivery.stream == stream
        await delivery.nak(0)
        again = await anext(consumer)
        assert (again.sequence, again.deliveries) == (1, 2)
        await again.ack()


async def test_handler_receives_the_delivery(js, subject, stream, make_event):
    """It may settle the delivery explicitly."""
    seen = []
    await ce_js.publish(js, make_event(1), subject)
    async with PullConsumer(js, stream, "c", dead_letter=None, create=ConsumerConfig(), backoff=[100]) as consumer:

        async def handle(delivery):
            seen.append((delivery.subject, delivery.deliveries, delivery.event.get_id()))
            if delivery.deliveries == 1:
                await delivery.nak(0)
            else:
                consumer.stop()

        await consumer.run(handle)
    assert seen == [(subject, 1, "event 1"), (subject, 2, "event 1")]
    await until_consumer(js, stream, lambda info: info.num_ack_pending == 0)
