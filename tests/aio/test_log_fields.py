"""How a line of the log names an event."""

from cloudevents.core.v1.event import CloudEvent

from ce_nats.aio._log_fields import error_fields, event_fields, event_text, with_event
from ce_nats.errors import DeliveryError, ErrorCode, Reject
from tests.support.tables import each

EVENT = CloudEvent({"id": "1", "source": "/shop", "type": "order.paid", "subject": "42", "tenant": "a"}, None)


def test_event():
    assert event_fields(EVENT) == {
        "cloudevents.event_id": "1",
        "cloudevents.event_source": "/shop",
        "cloudevents.event_spec_version": "1.0",
        "cloudevents.event_type": "order.paid",
        "cloudevents.event_subject": "42",
    }
    assert event_text(EVENT) == "id '1', source '/shop', type 'order.paid'"


def test_text_is_one_line_and_not_long():
    event = CloudEvent({"id": "1\n\x1b[2J", "source": "/" * 1000, "type": "t"}, None)
    text = event_text(event)
    assert text.isprintable()
    assert len(text) < 200


def test_nothing_without_an_event():
    assert event_fields(None) == {}
    assert with_event("sequence 1", None) == "sequence 1"
    assert with_event("sequence 1", EVENT) == "sequence 1, id '1', source '/shop', type 'order.paid'"


@each(
    ("error", "expected"),
    [
        (DeliveryError(ErrorCode.TIMEOUT, "late"), "timeout"),
        (KeyError(1), "KeyError"),
        (Reject("no"), "ce_nats.errors.Reject"),
        (KeyboardInterrupt(), None),
        (None, None),
    ],
)
def test_error(error, expected):
    assert error_fields(error) == ({} if expected is None else {"error.type": expected})
