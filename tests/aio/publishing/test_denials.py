"""Which messages were denied, by the number of errors of the server."""

from ce_nats.aio.link._permissions import Denial
from ce_nats.aio.publishing._denials import Denials
from ce_nats.aio.publishing._pending_message import PendingMessage
from tests.support.tables import each

DENIAL = Denial("publish", "orders.a")


def messages(count, subject="orders.a"):
    return [PendingMessage("", subject, 0.0, None, b"%d" % number, b"", None, 0.0) for number in range(count)]


@each(("sent", "errors", "denied"), [(5, 1, 1), (5, 3, 3), (5, 5, 5), (1, 1, 1), (3, 5, 3)])
def test_last_messages_are_denied(sent, errors, denied):
    """Also if there are more errors than messages: another publisher on the connection has sent the others."""
    items = messages(sent)
    denials = Denials()
    assert not denials.add(DENIAL)
    denials.begin(DENIAL, items)
    assert all(denials.add(DENIAL) for _ in range(errors - 1))
    assert denials.end(DENIAL) == (items[: sent - denied], items[sent - denied :])


@each(("original", "other_case"), [("", True), ("orders.a", False)])
def test_subject_is_held_until_the_end(original, other_case):
    """nats-py converts errors to lower case."""
    denial = Denial("publish", "orders.a", original)
    denials = Denials()
    assert not denials
    denials.begin(denial, messages(1))
    assert denials
    assert [denials.holds(subject) for subject in ("orders.a", "Orders.A", "orders.b")] == [True, other_case, False]
    denials.end(denial)
    assert not denials
    assert not denials.holds("orders.a")


def test_subjects_are_counted_separately():
    other = Denial("publish", "orders.b")
    first, second = messages(3), messages(3, "orders.b")
    denials = Denials()
    denials.begin(DENIAL, first)
    assert not denials.add(other)
    denials.begin(other, second)
    denials.add(other)
    assert denials.end(DENIAL) == (first[:2], first[2:])
    assert denials.end(other) == (second[:1], second[1:])


def test_count_is_forgotten():
    denials = Denials()
    denials.begin(DENIAL, messages(3))
    denials.forget(DENIAL)
    assert not denials
    assert not denials.add(DENIAL)
