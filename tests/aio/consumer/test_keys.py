"""How many messages are fetched while some are missing, and when none is."""

from ce_nats.aio._jetstream_api import Progress
from ce_nats.aio.consumer._keys import Keys
from tests.aio.consumer.test_ledger import entry_of


def test_new_messages_are_fetched_slowly_and_redelivered_ones_quickly():
    keys = Keys(0.2)
    assert keys.free_slots(8, 0.0) == 0
    keys.has_begun = True
    assert keys.free_slots(8, 0.0) == 1
    keys.receive(entry_of(1).origin, 10.0, is_known=False)
    assert keys.free_slots(8, 10.1) == 0
    assert keys.free_slots(8, 10.2) == 1
    keys.begin_request([1])
    assert not keys.complete(Progress(6, 6, 0, 6), [1])
    assert keys.missing == 5
    keys.receive(entry_of(2, 2, 7).origin, 10.3, is_known=False)
    assert [keys.free_slots(most, 10.3) for most in (8, 3, 1)] == [4, 3, 1]


def test_inbox_is_sorted_when_no_message_is_missing():
    keys = Keys(0.2)
    for sequence, consumer_sequence in ((2, 1), (1, 2)):
        entry = entry_of(sequence, 1, consumer_sequence)
        keys.receive(entry.origin, 0.0, is_known=False)
        keys.inbox.append(entry)
    keys.begin_request([1, 2])
    assert keys.complete(Progress(2, 2, 0, 2), [1, 2])
    assert [entry.sequence for entry in keys.inbox] == [1, 2]
    assert keys.is_complete
    keys.receive(entry_of(3, 1, 4).origin, 0.0, is_known=False)  # the third delivery is missing
    assert not keys.is_complete
