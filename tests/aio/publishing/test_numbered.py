"""Numbers, frames and retries of a bulk publisher, without a server; with one: test_bulk.py."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from ce_nats import NatsMessage
from ce_nats.aio.link._permissions import Denial
from ce_nats.aio.publishing._numbered import Numbered, Piece
from ce_nats.wire._frames import frames_of
from tests.support.tables import each


def sent(*counts, subject="s"):
    """Return messages in frames of these sizes, all of which were written at the time 0."""
    messages = Numbered()
    for count in counts:
        messages.add(frames_of([(NatsMessage(subject, b"x"), b"")] * count, messages.next, "_INBOX.1."))
        messages.send(Piece(messages.frames[-1], 0, count), 0.0)
    return messages


def numbers_of(pieces):
    return [list(range(frames.first + start, frames.first + stop)) for frames, start, stop in pieces]


def test_acknowledged_messages_are_counted_once():
    messages = sent(3)
    assert messages.acknowledge([0, 1]) == 2
    assert messages.acknowledge([1, 2, 7]) == 1
    assert (messages.acknowledged, messages.duplicates, messages.pending) == (3, 0, set())


def test_duplicates_count_unless_the_message_was_resent():
    messages = sent(4)
    messages.acknowledge([0], [0])
    messages.retry(3, 1.0, without_responders=False)  # it was not stored, so that it is not resent as a copy
    assert messages.begin_connection() == [1, 2, 3]
    messages.acknowledge([1, 3], [1, 3])
    assert messages.duplicates == 2


@each(
    ("counts", "numbers", "expected"),
    [
        ([5], [0, 1, 4], [[0, 1], [4]]),
        ([2, 3], [0, 1, 2, 3], [[0, 1], [2, 3]]),
        ([2, 3], [4], [[4]]),
        ([1, 1, 1], [0, 2], [[0], [2]]),
        ([3], [], []),
    ],
)
def test_runs_of_messages_are_resent_at_once(counts, numbers, expected):
    assert numbers_of(sent(*counts).resend(numbers, 1.0)) == expected


def test_retries_are_due_once_and_only_for_unacknowledged_messages():
    messages = sent(3)
    for number, at in ((0, 5.0), (1, 5.0), (2, 9.0)):
        messages.retry(number, at, without_responders=False)
    messages.acknowledge([1])
    assert messages.due(4.0) == []
    assert messages.due(5.0) == [0]
    assert messages.due(8.0) == []
    assert messages.due(9.0) == [2]


def test_oldest_unacknowledged_message_is_late():
    messages = sent(2)
    messages.send(Piece(frames_of([(NatsMessage("s", b""), b"")], 2, "r."), 0, 1), 4.0)
    assert not messages.is_late(4.9, 5.0)
    assert messages.is_late(5.0, 5.0)
    messages.acknowledge([0, 1])
    messages.forget_acknowledged()
    assert not messages.is_late(5.0, 5.0)
    assert messages.is_late(9.0, 5.0)


def test_denied_or_lost_subject_is_that_of_an_unacknowledged_message():
    messages = sent(2, subject="orders.a")
    assert messages.denied(Denial("publish", "orders.b")) == ""
    assert messages.denied(Denial("publish", "orders.a")) == "orders.a"
    assert not messages.lacks_stream("orders.a")
    messages.retry(1, 1.0, without_responders=True)
    assert messages.lacks_stream("orders.a")
    messages.acknowledge([1])
    assert not messages.lacks_stream("orders.a")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_frames_are_kept_until_their_messages_are_acknowledged(counts, data):
    messages = sent(*counts)
    total = sum(counts)
    order = data.draw(st.permutations(range(total)))
    for position, number in enumerate(order, 1):
        messages.acknowledge([number])
        messages.forget_acknowledged()
        left = sorted(order[position:])
        assert sorted(chain.from_iterable(numbers_of(messages.resend(left, 0.0)))) == left
    assert (messages.held, len(messages.frames)) == (0, 0)
    assert messages.acknowledged == messages.next == total


def test_forgotten_messages_are_neither_pending_nor_held():
    messages = sent(3, 2)
    messages.retry(4, 1.0, without_responders=True)
    messages.forget()
    assert (messages.pending, messages.held, messages.due(9.0), messages.next) == (set(), 0, [], 5)
    assert not messages.is_late(99.0, 1.0)
