"""How many messages are fetched while some are missing, and which are remembered."""

from ce_nats.aio._jetstream_api import Progress
from ce_nats.aio.consumer._entry import Entry
from ce_nats.aio.consumer._keys import Keys
from tests.support.tables import each

MOST_REMEMBERED = 16_384


def entry_of(sequence, deliveries=1, consumer_sequence=None, timestamp=1):
    reply = f"$JS.ACK.S.c.{deliveries}.{sequence}.{consumer_sequence or sequence}.{timestamp}.0"
    return Entry(sequence, deliveries, (b"a", reply.encode(), b"", None))


def test_new_messages_are_fetched_slowly_and_redelivered_ones_quickly():
    keys = Keys(0.2)
    assert keys.free_slots(8, 0.0) == 0
    keys.has_begun = True
    assert keys.free_slots(8, 0.0) == 1
    keys.receive(entry_of(1), 10.0, is_known=False)
    assert keys.free_slots(8, 10.1) == 0
    assert keys.free_slots(8, 10.2) == 1
    keys.begin_request([1])
    assert not keys.complete(Progress(6, 6, 0, 6), [1])
    assert keys.missing == 5
    keys.receive(entry_of(2, 2, 7), 10.3, is_known=False)
    assert [keys.free_slots(most, 10.3) for most in (8, 3, 1)] == [4, 3, 1]


def test_inbox_is_sorted_when_no_message_is_missing():
    keys = Keys(0.2)
    for sequence, consumer_sequence in ((2, 1), (1, 2)):
        entry = entry_of(sequence, 1, consumer_sequence)
        keys.receive(entry, 0.0, is_known=False)
        keys.inbox.append(entry)
    keys.begin_request([1, 2])
    assert keys.complete(Progress(2, 2, 0, 2), [1, 2])
    assert [entry.sequence for entry in keys.inbox] == [1, 2]
    assert keys.is_complete
    keys.receive(entry_of(3, 1, 4), 0.0, is_known=False)  # the third delivery is missing
    assert not keys.is_complete


@each(("timestamp", "is_known"), [(1, True), (2, False)])
def test_settled_message_is_remembered_by_sequence_and_time(timestamp, is_known):
    keys = Keys(0.2)
    keys.remember(entry_of(1))
    assert keys.receive(entry_of(1, 2, 2, timestamp), 0.0, is_known=False) is is_known


def test_number_of_remembered_messages_is_bounded():
    keys = Keys(0.2)
    for sequence in range(1, MOST_REMEMBERED + 2):
        keys.remember(entry_of(sequence))
    assert not keys.receive(entry_of(1, 2), 0.0, is_known=False)
    assert keys.receive(entry_of(2, 2), 0.0, is_known=False)
