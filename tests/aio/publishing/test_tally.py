"""Counts of acknowledged messages, and what is unknown of them."""

from nats.js.api import PubAck

from ce_nats.aio import PublishResult
from ce_nats.aio.publishing._tally import Tally
from tests.support.tables import each

STORED, DUPLICATE = PubAck("S", 7), PubAck("S", 7, duplicate=True)


def test_messages_with_an_acknowledgement_of_their_own():
    tally = Tally()
    for ack in (STORED, DUPLICATE, STORED, PubAck("S", 8, duplicate=False)):
        tally.add(ack, 1)
    assert tally.result == PublishResult(messages=4, duplicates=1, batched=0)


def test_resent_duplicate_is_not_counted():
    """This publisher may have stored it."""
    tally = Tally()
    tally.add(DUPLICATE, 2)
    assert tally.result == PublishResult(messages=1, duplicates=0)


def test_duplicates_in_a_batch_are_unknown():
    tally = Tally()
    tally.add(DUPLICATE, 1)
    tally.add_batch(0)
    assert tally.duplicates == 1
    tally.add_batch(10)
    assert tally.result == PublishResult(messages=11, duplicates=None, batched=10)
    assert (tally.messages, tally.duplicates, tally.batched) == (11, None, 10)


def test_batch_that_stored_nothing_has_duplicates_only():
    tally = Tally()
    tally.add_batch(10)
    tally.note_duplicates(10)
    for attempts in (1, 1):
        tally.add(PubAck("S", 0, duplicate=True), attempts, in_batch=True)
    assert tally.result == PublishResult(messages=12, duplicates=12, batched=12)


@each("is_noted", [True, False])
def test_resent_message_of_a_batch_is_unknown(is_noted):
    tally = Tally()
    if is_noted:
        tally.add_batch(2)
        tally.note_duplicates(1)  # one of them was sent once
    else:
        tally.add(PubAck("S", 0, duplicate=True), 1, in_batch=True)
        tally.add(PubAck("S", 0, duplicate=True), 2, in_batch=True)
    assert tally.result == PublishResult(messages=2, duplicates=None, batched=2)


@each(
    ("one", "other", "total"),
    [
        (PublishResult(), PublishResult(), PublishResult()),
        (PublishResult(3, 1, 0), PublishResult(4, 2, 2), PublishResult(7, 3, 2)),
        (PublishResult(3, None, 3), PublishResult(4, 2, 0), PublishResult(7, None, 3)),
        (PublishResult(3, 0), PublishResult(4, None, 4), PublishResult(7, None, 4)),
    ],
)
def test_sum_with_something_unknown_is_unknown(one, other, total):
    assert one + other == total
