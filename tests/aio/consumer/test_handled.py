"""Which messages are remembered, and when."""

from ce_nats.aio.consumer._entry import Entry
from ce_nats.aio.consumer._handled import Handled
from tests.support.tables import each

MOST_REMEMBERED = 16_384


def entry_of(sequence, timestamp=1):
    return Entry(sequence, 2, (b"a", f"$JS.ACK.S.c.2.{sequence}.9.{timestamp}.0".encode(), b"", None))


def test_message_is_remembered_by_sequence_and_time():
    handled = Handled()
    assert entry_of(1) not in handled
    handled.add(entry_of(1))
    assert entry_of(1) in handled
    assert entry_of(1, 2) not in handled


def test_number_of_remembered_messages_is_bounded():
    handled = Handled()
    for sequence in range(1, MOST_REMEMBERED + 2):
        handled.add(entry_of(sequence))
    assert entry_of(1) not in handled
    assert entry_of(2) in handled


@each(
    ("times", "now", "is_late"),
    [
        ([], 1e9, False),
        ([10], 29.9, False),
        ([10], 30, True),
        ([10, 20], 39.9, False),
        ([10, 20, 41], 42, True),  # redeliveries before the last extension are being read
        ([10, 20, 41, 51], 52, False),
        ([10, 20, 41, 62], 63, True),
    ],
)
def test_acknowledgements_are_late_when_deadlines_were_not_extended_in_time(times, now, is_late):
    handled = Handled()
    for time in times:
        handled.extend(time, 10)
    assert handled.is_late(now) is is_late
