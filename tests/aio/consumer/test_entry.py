"""A message that was delivered, and its place."""

from ce_nats.aio.consumer._entry import Entry, Place
from ce_nats.wire._ack_subject import AckSubject
from tests.support.tables import each


@each("place", Place)
def test_message_is_settled_before_the_server_knows(place):
    entry = Entry(1, 1, (b"a", b"", b"", None))
    entry.place = place
    assert entry.is_settled == (place in (Place.PENDING, Place.SETTLED))
    assert repr(entry) == f"Entry(1, deliveries=1, {place.value})"


@each("domain", [b"", b"hub.ABCDEF."])
def test_origin_is_that_of_the_last_delivery(domain):
    reply = b"$JS.ACK.%sS.c.%d.7.%d.1000.3" + (b".token" if domain else b"")
    entry = Entry(7, 1, (b"a", reply % (domain, 1, 20), b"", None))
    entry.replace(Entry(7, 2, (b"a", reply % (domain, 2, 21), b"", None)))
    assert entry.origin == AckSubject("S", "c", 2, 7, 21, 1000, 3)
    assert (entry.deliveries, entry.arrival) == (2, 1)
