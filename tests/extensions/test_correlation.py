"""
The Correlation extension: what a caused event takes over.
"""

from typing import Any

import pytest

from ce_nats import EncodeError
from ce_nats.extensions.correlation import caused_by
from tests.support.strategies import plain_event


@pytest.mark.parametrize(
    ("cause", "attributes"),
    [
        ({"id": "order-123", "correlationid": "txn"}, {"causationid": "order-123", "correlationid": "txn"}),
        ({"id": "b", "correlationid": "txn", "causationid": "a"}, {"causationid": "b", "correlationid": "txn"}),
        ({"id": "b"}, {"causationid": "b"}),
        ({"id": "b", "correlationid": ""}, {"causationid": "b"}),
    ],
)
def test_caused_by(cause: dict[str, Any], attributes: dict[str, str]) -> None:
    """The causation is the cause's id; the correlation goes on, and none is made up."""
    assert caused_by(plain_event(**cause)) == attributes


@pytest.mark.parametrize(("cause", "code"), [(plain_event(id=None), "missing-attribute"), (None, "invalid-message")])
def test_what_causes_nothing(cause: Any, code: str) -> None:
    """There is no causation without an id."""
    with pytest.raises(EncodeError) as info:
        caused_by(cause)
    assert info.value.code == code
