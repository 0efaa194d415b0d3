"""
Faults of the bindings of the cloudevents package (2.2.0), which ce_nats must not have.

All events are of the package's class, as in programs of users; it accepts more than CloudEvents allows. Its
other faults are cases in spec-fixtures/.
"""

import json
from datetime import datetime, timezone
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from ce_nats import DecodeError, EncodeError, NatsMessage, from_nats_message, to_nats_message
from tests.support.strategies import binary_message, refused, structured_message
from tests.support.tables import each

BASE = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def event(data: Any = None, **attributes: Any) -> CloudEvent:
    return CloudEvent({**BASE, "time": datetime(2020, 1, 2, tzinfo=timezone.utc), **attributes}, data)


def envelope(**more: Any) -> NatsMessage:
    return structured_message(json.dumps({**BASE, **more}).encode())


@each("name", ["foo\n", "Foo", "a_b", "naïve"])
def test_names_are_checked_completely(name: str) -> None:
    """A line break after the last letter would begin a second header."""
    unchecked = event()
    unchecked.get_attributes()[name] = "x"  # type: ignore[index]
    refused(EncodeError, "invalid-attribute-name", to_nats_message, unchecked)


# --- No invented attributes -----------------------------------------------------------------------------------------


@each("name", ["id", "source", "type", "specversion"])
def test_missing_attribute_is_not_invented(name: str) -> None:
    """A new id for every delivery would defeat deduplication. Neither decoding nor encoding creates one."""
    error = refused(DecodeError, "missing-attribute", from_nats_message, binary_message(**{name: ...}))
    assert error.attribute == name
    refused(DecodeError, "missing-attribute", from_nats_message, envelope(**{name: None}))
    incomplete = event()
    del incomplete.get_attributes()[name]  # type: ignore[attr-defined]
    refused(EncodeError, "missing-attribute", to_nats_message, incomplete)


def test_time_is_not_invented() -> None:
    """An event without a time stays without one, in both directions."""
    for message in (binary_message(), envelope()):
        decoded = from_nats_message(message)
        assert decoded.get_time() is None
        assert "ce-time" not in to_nats_message(decoded).headers
        assert b'"time"' not in to_nats_message(decoded, mode="structured").data


def test_attributes_of_the_caller_are_not_modified() -> None:
    """The dict is neither modified nor shared, so it can be reused."""
    template = dict(BASE)

    class Plain:
        def get_attributes(self) -> dict[str, str]:
            return template

        def get_data(self) -> dict[str, int]:
            return {"a": 1}

    first, second = (from_nats_message(to_nats_message(Plain())) for _ in range(2))
    assert template == BASE
    assert first == second
    assert first.get_attributes() is not second.get_attributes() is not template


def test_changes_after_construction_are_checked() -> None:
    """The whole event is checked when it is encoded."""
    changed = event()
    changed.get_attributes()["specversion"] = "9"  # type: ignore[index]
    refused(EncodeError, "unsupported-specversion", to_nats_message, changed)


def test_naive_time_is_rejected() -> None:
    """Its instant is unknown."""
    unchecked = event()
    unchecked.get_attributes()["time"] = datetime(2020, 1, 1)  # type: ignore[index]
    refused(EncodeError, "invalid-attribute-type", to_nats_message, unchecked)


def test_content_type_of_data_is_sent_once() -> None:
    """As ce-datacontenttype of the binding, without a content-type header."""
    headers = to_nats_message(event({"a": 1}, datacontenttype="application/json")).headers
    assert headers.values("datacontenttype", ignore_case=True) == headers.values("content-type", ignore_case=True) == []
    assert headers.values("ce-datacontenttype") == ["application/json"]
