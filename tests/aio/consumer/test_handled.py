"""Which messages are remembered, and when."""

from ce_nats.aio.consumer._handled import Handled
from ce_nats.wire._ack_subject import AckSubject
from tests.support.tables import each

MOST_REMEMBERED = 16_384


def delivery(sequence, timestamp=1):
    return AckSubject("S", "c", 2, sequence, 9, timestamp, 0)


def test_message_is_remembered_by_sequence_and_time():
    handled = Handled()
    assert delivery(1) not in handled
    handled.add(delivery(1))
    assert delivery(1) in handled
    assert delivery(1, 2) not in handled


def test_number_of_remembered_messages_is_bounded():
    handled = Handled()
    for sequence in range(1, MOST_REMEMBERED + 2):
        handled.add(delivery(sequence))
    assert delivery(1) not in handled
    assert delivery(2) in handled


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
