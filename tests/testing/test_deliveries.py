"""Fake deliveries are settled like those of a real consumer."""

import asyncio
import json

import pytest
from nats.js.api import ConsumerConfig

from ce_nats import ContentMode, DecodeError, NatsMessage, Reject, to_nats_message
from ce_nats.aio import Batch, PullConsumer
from ce_nats.aio import jetstream as ce_js
from ce_nats.redelivery import Action, Decision, Reason, RetryPolicy
from ce_nats.testing import FakeDelivery

POLICY = RetryPolicy(max_deliveries=3, backoff=[100])


async def returns(delivery):
    assert delivery.event.get_data() == {"n": 1}


async def fails(delivery):
    raise RuntimeError


async def rejects(delivery):
    raise Reject("no")


async def acknowledges(delivery):
    await delivery.ack()
    await delivery.nak()


async def delays(delivery):
    await delivery.nak(7)


async def requests_redelivery(delivery):
    await delivery.nak()


async def rejects_and_fails(delivery):
    await delivery.reject("no")
    raise RuntimeError


async def is_cancelled(delivery):
    raise asyncio.CancelledError


HANDLERS = (returns, fails, rejects, acknowledges, delays, requests_redelivery, rejects_and_fails, is_cancelled)


async def handle(delivery, handler):
    try:
        async with delivery:
            await handler(delivery)
    except (RuntimeError, Reject, asyncio.CancelledError):
        pass


def sent(decision):
    """Return what a consumer sends to the server for a decision."""
    if decision.action is Action.RETRY:
        return ("-NAK", decision.delay)
    # An empty payload is an acknowledgement, as nats-py sends it.
    return ("+TERM" if decision.action is Action.DEAD_LETTER else "", 0)


@pytest.fixture
async def acks(nc):
    """Queue of payloads of acknowledgements."""
    payloads = asyncio.Queue()

    async def note(message):
        verb, _, options = message.data.decode().partition(" ")
        payloads.put_nowait((verb, json.loads(options)["delay"] / 1e9 if options else 0))

    await nc.subscribe("$JS.ACK.>", cb=note)
    await nc.flush()
    return payloads


@pytest.mark.parametrize("handler", HANDLERS)
async def test_fake_delivery_is_settled_like_a_real_one(js, stream, subject, make_event, acks, handler):
    event = make_event(1, {"n": 1})
    await ce_js.publish(js, event, subject)
    options = {"max_deliveries": POLICY.max_deliveries, "backoff": POLICY.backoff}
    async with PullConsumer(js, stream, "c", dead_letter=None, create=ConsumerConfig(), **options) as consumer:
        real = await anext(aiter(consumer))
        await handle(real, handler)
        made = FakeDelivery(to_nats_message(event, subject), stream=stream, policy=POLICY)
        await handle(made, handler)
        assert sent(made.decision) == await asyncio.wait_for(acks.get(), 60)
    assert made.is_settled
    assert made.event == real.event
    for name in ("subject", "stream", "sequence", "deliveries"):
        assert getattr(made, name) == getattr(real, name)


async def test_default_policy_is_that_of_a_consumer(make_event):
    message = to_nats_message(make_event(), "a")
    for deliveries, decision in {
        1: Decision(Action.RETRY, delay=RetryPolicy().delay(1)),
        7: Decision(Action.RETRY, delay=RetryPolicy().delay(7)),
        8: Decision(Action.DEAD_LETTER, reason=Reason.EXHAUSTED),
    }.items():
        made = FakeDelivery(message, deliveries=deliveries)
        assert made.decision is None
        await handle(made, fails)
        assert (made.decision, made.deliveries) == (decision, deliveries)


@pytest.mark.parametrize("mode", ContentMode)
def test_attributes(make_event, mode):
    message = to_nats_message(make_event(7, "text"), "orders.paid", mode=mode, headers={"Tag": "a"})
    made = FakeDelivery(message, stream="ORDERS", sequence=12, deliveries=2)
    assert (made.stream, made.sequence, made.deliveries, made.subject) == ("ORDERS", 12, 2, "orders.paid")
    assert (made.event.get_id(), made.event.get_data()) == ("event 7", "text")
    assert made.message.headers["Tag"] == "a"
    assert (made.message.metadata.stream, made.message.metadata.sequence.stream) == ("ORDERS", 12)
    assert made.error is None


@pytest.mark.parametrize("mode", ContentMode)
def test_columns_of_a_batch(make_event, mode):
    """A handler of batches is tested with fake deliveries, too."""
    made = [FakeDelivery(to_nats_message(make_event(n, {"n": n}), "a", mode=mode), sequence=n) for n in (1, 2)]
    columns = Batch(made).columns().to_pylist()
    assert [(row["sequence"], row["ce_id"], row["ce_data"]) for row in columns] == [
        (1, "event 1", b'{"n":1}'),
        (2, "event 2", b'{"n":2}'),
    ]


def test_marks_of_a_batch(make_event):
    batch = Batch([FakeDelivery(to_nats_message(make_event(n), "a")) for n in range(4)])
    batch.reject(1, "unknown")
    batch.nak(2)
    batch.nak(-1, 60)
    assert (batch.rejects, batch.naks) == ({1: "unknown"}, {2: None, 3: 60})
    batch.nak(1, 5)
    batch.reject(3)
    assert (batch.rejects, batch.naks) == ({3: ""}, {1: 5, 2: None})


def test_undecodable_message_is_an_error():
    with pytest.raises(DecodeError, match="not-a-cloudevent"):
        FakeDelivery(NatsMessage("a", b"no"))
