"""Failures and delays count for the decisions about messages, and delayed messages for a warning."""

import asyncio

import pytest
from nats.js.api import ConsumerConfig

from ce_nats.aio.consumer._attempt import Attempt
from ce_nats.aio.consumer._binding import Binding
from ce_nats.aio.consumer._decisions import Decisions, Delays
from ce_nats.aio.consumer._entry import Entry
from ce_nats.redelivery import Action, Backoff, Outcome, RetryPolicy
from tests.support.consuming import after, consume, is_settled, number_of, publish
from tests.support.tables import each
from tests.support.waiting import until

__all__ = ["consume", "is_settled", "publish"]

POLICY = RetryPolicy(max_deliveries=3, backoff=Backoff(1.0, jitter=0.0))


def binding(**settings):
    made = Binding(None, "S", "c", None)
    for setting, value in settings.items():
        setattr(made, setting, value)
    return made


def attempt(sequence=1, deliveries=1):
    return Attempt(None, Entry(sequence, deliveries, (b"s", b"", b"", None)), None)


def test_failures_of_handlers_are_counted_until_the_message_is_settled():
    """Deliveries that no handler got do not count."""
    decisions = Decisions(POLICY, binding())
    actions = [decisions.decide(attempt(), Outcome.FAILED).action for _ in range(2)]
    assert actions == [Action.RETRY, Action.RETRY]
    decisions.forget(1)
    assert decisions.decide(attempt(), Outcome.FAILED).action is Action.RETRY
    for _ in range(2):
        last = decisions.decide(attempt(), Outcome.FAILED)
    assert last.action is Action.DEAD_LETTER


@each(("max_deliver", "deliveries", "is_last"), [(0, 99, False), (3, 2, False), (3, 3, True), (3, 4, True)])
def test_server_does_not_deliver_the_last_attempt_again(max_deliver, deliveries, is_last):
    assert Decisions(POLICY, binding(max_deliver=max_deliver)).is_last(attempt(1, deliveries)._entry) is is_last


@each(
    ("delays", "warnings"),
    [
        ([(60, 0), (60, 0)], 0),
        ([(60, 0), (60, 0), (60, 0)], 1),
        ([(60, 0), (60, 0), (60, 70)], 0),  # the first two are over
        ([(60, 0)] * 9, 1),
    ],
)
def test_delays_that_fill_half_of_the_window_are_reported_once(caplog, delays, warnings):
    caplog.clear()
    waiting = Delays(binding(max_ack_pending=4))
    for seconds, now in delays:
        waiting.note(seconds, now)
    assert len(caplog.messages) == warnings


@pytest.mark.parametrize("key", [None, number_of], ids=["no key", "key"])
async def test_delayed_messages_that_fill_the_window_are_reported_once(publish, consume, js, stream, caplog, key):
    await publish(*range(10))
    create = ConsumerConfig(max_ack_pending=5)
    failed = []

    async def fail(delivery):
        failed.append(delivery.sequence)
        raise OSError("disk")

    options = {"create": create, "on_error": lambda *_: None, "backoff": [60]}
    async with consume(**options) as consumer:
        function = None if key is None else lambda delivery: key(delivery.event)
        running = asyncio.create_task(consumer.run(fail, key=function))
        await until(lambda: len(failed) == 5)
        consumer.stop()
        await after(running)
    (text,) = caplog.messages
    assert (
        "3 messages wait for their redelivery, and the server delivers no others when it is max_ack_pending, 5" in text
    )
