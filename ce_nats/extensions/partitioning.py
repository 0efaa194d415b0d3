"""
The Partitioning extension of CloudEvents.

``partitionkey`` names the entity that an event is about. ``PullConsumer.run(key=partition_key)`` handles the events of
a key in order, and :func:`ce_nats.subjects.partition` returns the number of its partition.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..codec.attributes import canonical
from ..codec.event import EventLike, attributes_and_data
from ..errors import EncodeError, ErrorCode

__all__ = ["partition_key"]


class HasEvent(Protocol):
    """A delivery, or another message with an event."""

    @property
    def event(self) -> EventLike: ...


def partition_key(event: EventLike | HasEvent) -> str:
    """
    Return the key of an event: its ``partitionkey``; if it has none, its source and subject, separated by a space.

        await consumer.run(handle, concurrency=8, key=partition_key)

    Args:
        event: An event, or a delivery, whose event is used.

    Raises:
        EncodeError: ``missing-attribute``: there is neither a ``partitionkey`` nor a source; ``invalid-message``:
            ``event`` is neither an event nor a delivery; the attribute's own error if its value is invalid.
        DecodeError: The delivery has no event.
    """
    # A delivery has no get_attributes(); an event may have an attribute of any name.
    found: Any = event if hasattr(event, "get_attributes") else getattr(event, "event", event)
    attributes, _ = attributes_and_data(found)
    # "If present, MUST be a non-empty string"
    if attributes.get("partitionkey") not in (None, ""):
        return canonical(attributes["partitionkey"], "partitionkey")
    if attributes.get("source") in (None, ""):
        raise EncodeError(ErrorCode.MISSING_ATTRIBUTE, "the event must have a source", attribute="source")
    parts = [canonical(attributes[name], name) for name in ("source", "subject") if attributes.get(name) is not None]
    return " ".join(parts)
