"""Reply subjects of a consumer's messages, ADR-15."""

import pytest

from ce_nats import DecodeError
from ce_nats.wire._ack_subject import AckSubject, ack_subject, parse_ack_subject
from tests.support.tables import each

KNOWN = AckSubject("ORDERS", "billing", 2, 7, 9, 1700000000123456789, 5)


@each(
    "subject",
    [
        "$JS.ACK.ORDERS.billing.2.7.9.1700000000123456789.5",
        "$JS.ACK._.hash.ORDERS.billing.2.7.9.1700000000123456789.5",
        "$JS.ACK.hub.hash.ORDERS.billing.2.7.9.1700000000123456789.5.random",
        "$JS.ACK.hub.hash.ORDERS.billing.2.7.9.1700000000123456789.5.random.more",
    ],
)
def test_every_form_is_parsed(subject):
    assert parse_ack_subject(subject) == KNOWN


def test_encoding():
    assert parse_ack_subject(ack_subject(KNOWN)) == KNOWN


@each(
    "subject",
    [
        "",
        "_INBOX.1",
        "$JS.ACK",
        "$JS.ACK.ORDERS.billing.2.7.9.1700000000123456789",
        "$JS.ACK.a.ORDERS.billing.2.7.9.1700000000123456789.5",
        "$JS.ACK.ORDERS.billing.2.x.9.1700000000123456789.5",
        "$JS.FC.ORDERS.billing.2.7.9.1700000000123456789.5",
    ],
)
def test_other_subjects_are_rejected(subject):
    with pytest.raises(DecodeError) as info:
        parse_ack_subject(subject)
    assert info.value.code == "invalid-subject"
