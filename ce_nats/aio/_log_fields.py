"""
How a line of the log names an event: in its text, and in fields for structured logs.

The fields are the argument ``extra`` of :mod:`logging`. Their names are those of OpenTelemetry's conventions, which
spans use, too.
"""

from __future__ import annotations

from typing import Final

from ..codec.event import EventLike, attributes_and_data
from ..errors import CeNatsError, preview

DESTINATION: Final = "messaging.destination.name"
GROUP: Final = "messaging.consumer.group.name"
ERROR_TYPE: Final = "error.type"
EVENT_TYPE: Final = "cloudevents.event_type"
STREAM: Final = "ce_nats.stream"
SEQUENCE: Final = "ce_nats.sequence"
DELIVERIES: Final = "ce_nats.deliveries"

_EVENT: Final = {
    "id": "cloudevents.event_id",
    "source": "cloudevents.event_source",
    "specversion": "cloudevents.event_spec_version",
    "type": EVENT_TYPE,
    "subject": "cloudevents.event_subject",
}
# Attributes in the text of a line.
_NAMES: Final = ("id", "source", "type")


def event_fields(event: EventLike | None) -> dict[str, str]:
    """Return the attributes that identify an event; none without an event."""
    if event is None:
        return {}
    own, _ = attributes_and_data(event)
    return {key: str(own[name]) for name, key in _EVENT.items() if own.get(name) is not None}


def with_event(place: str, event: EventLike | None) -> str:
    """Return the place of a message in the text of a line, and its event, if there is one."""
    return place if event is None else f"{place}, {event_text(event)}"


def event_text(event: EventLike) -> str:
    """Return the attributes for the text of a line, as ``id '1', source '/shop', type 'order.paid'``."""
    own, _ = attributes_and_data(event)
    return ", ".join(f"{name} {preview(own[name])}" for name in _NAMES if own.get(name) is not None)


def error_fields(error: BaseException | None) -> dict[str, str]:
    """Return the type of an error: its code, or the full name of its class. A cancellation is not an error."""
    if not isinstance(error, Exception):
        return {}
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {ERROR_TYPE: str(error.code) if isinstance(error, CeNatsError) else name}
