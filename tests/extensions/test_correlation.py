"""
The Correlation extension: attributes of an event that another event caused.
"""

from typing import Any

from ce_nats import EncodeError
from ce_nats.extensions.correlation import caused_by
from tests.support.strategies import plain_event, refused
from tests.support.tables import each


@each(
    ("cause", "attributes"),
    [
        ({"id": "order-123", "correlationid": "txn"}, {"causationid": "order-123", "correlationid": "txn"}),
        ({"id": "b", "correlationid": "txn", "causationid": "a"}, {"causationid": "b", "correlationid": "txn"}),
        ({"id": "b"}, {"causationid": "b"}),
        ({"id": "b", "correlationid": ""}, {"causationid": "b"}),
    ],
)
def test_causation_and_correlation_of_a_caused_event(cause: dict[str, Any], attributes: dict[str, str]) -> None:
    """causationid is the id of the cause; correlationid is copied, and never generated."""
    assert caused_by(plain_event(**cause)) == attributes


@each(
    ("cause", "code", "attribute"),
    [
        (plain_event(id=None), "missing-attribute", "id"),
        (plain_event(id=""), "missing-attribute", "id"),
        (plain_event(id=1.5), "invalid-attribute-type", "id"),
        (plain_event(correlationid=1.5), "invalid-attribute-type", "correlationid"),
        (None, "invalid-message", None),
    ],
)
def test_cause_must_have_valid_identifiers(cause: Any, code: str, attribute: str | None) -> None:
    error = refused(EncodeError, code, caused_by, cause)
    assert error.attribute == attribute
