"""
Events: what every kind of them has, and the one that decoding gives, a ``cloudevents`` CloudEvent that was checked.

The package's own constructor makes up an id, a time and a specversion where they are missing; a decoder must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cloudevents.core.v1.event import CloudEvent

from ..errors import EncodeError, ErrorCode, preview
from ..notebook import event_rows, html_table
from . import data
from .timestamp import Timestamp

__all__ = [
    "DecodedEvent",
    "Event",
    "ExtendedEvent",
    "NotDelivered",
    "attributes_and_data",
    "attributes_data_and_presence",
]


class Event(Protocol):
    """What an event has to have to be sent: every CloudEvent of the ``cloudevents`` package does."""

    def get_attributes(self) -> Mapping[str, Any]: ...

    def get_data(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """
    Stands for data that is there and was not sent along, as to a consumer that takes headers only.

    No mode has a form for it, so an event with it cannot be encoded by mistake and lose its data.

    Attributes:
        size: Bytes of the payload.
    """

    size: int

    def __bool__(self) -> bool:
        return False


class DecodedEvent(CloudEvent):
    """
    A CloudEvent as it was received: nothing added, nothing left out.

    Two decoded events are equal when their attributes and data are.

    Attributes:
        has_data: False where the message carried no data. It tells a JSON ``null`` (True) from no data (False): both
            are None to ``get_data()``.
        is_json: True where the data came from a JSON event without a datacontenttype, which means
            ``application/json``; it is written down when the event is encoded again.
    """

    has_data: bool
    is_json: bool

    def __init__(
        self, attributes: dict[str, Any], data: Any = None, *, has_data: bool | None = None, is_json: bool = False
    ) -> None:
        # The base class's constructor invents attributes and validates by looser rules than the codec's, so it is not
        # called.
        self._attributes = attributes
        self._data = data
        self.has_data = data is not None if has_data is None else has_data
        self.is_json = is_json

    def get_data(self) -> Any:
        """A JSON value for JSON media types, ``str`` for text and XML, else ``bytes``; None where there is none."""
        return self._data

    def get_time(self) -> Timestamp | None:
        """When it happened, with the text that was sent."""
        return self._attributes.get("time")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecodedEvent):
            return NotImplemented
        return (self._attributes, self._data, self.has_data) == (other._attributes, other._data, other.has_data)

    __hash__ = None  # type: ignore[assignment]  # data is not hashable

    def __repr__(self) -> str:
        return f"DecodedEvent({self._attributes!r}, {self._data!r})"

    def _repr_html_(self) -> str:
        return html_table("CloudEvent", event_rows(self))


class ExtendedEvent:
    """
    An event with further attributes, which the event itself knows nothing of; its own ones win.

    Args:
        event: Anything with ``get_attributes()`` and ``get_data()``.
        further: Attributes by name.

    Raises:
        EncodeError: ``invalid-message`` where it is not an event.
    """

    def __init__(self, event: Event, further: Mapping[str, Any]) -> None:
        own, self._data = attributes_and_data(event)
        self._attributes = {**own, **{name: value for name, value in further.items() if own.get(name) is None}}
        self.has_data: bool = getattr(event, "has_data", False)
        self.is_json: bool = getattr(event, "is_json", False)

    def get_attributes(self) -> dict[str, Any]:
        return self._attributes

    def get_data(self) -> Any:
        return self._data


def attributes_and_data(event: Event) -> tuple[Mapping[str, Any], Any]:
    """
    Attributes and data of any event, unchecked.

    Raises:
        EncodeError: ``invalid-message`` where it is not an event.
    """
    try:
        attributes, value = event.get_attributes(), event.get_data()
    except (AttributeError, TypeError) as error:
        raise EncodeError(
            ErrorCode.INVALID_MESSAGE, f"an event has get_attributes() and get_data(); {preview(event)} has not"
        ) from error
    if attributes.__class__ is not dict and not isinstance(attributes, Mapping):
        raise EncodeError(ErrorCode.INVALID_MESSAGE, f"attributes are a mapping, not {preview(attributes)}")
    return attributes, value


def attributes_data_and_presence(event: Event) -> tuple[Mapping[str, Any], Any, bool]:
    """
    Attributes, data, and whether there is data, of any event, unchecked, as they are sent in either mode.

    Data without a datacontenttype is JSON unless it is bytes, and the attributes say so.

    Raises:
        EncodeError: ``invalid-message`` where it is not an event.
    """
    attributes, value = attributes_and_data(event)
    # An event that was decoded knows null from nothing.
    has_data = value is not None or getattr(event, "has_data", False)
    if has_data and attributes.get("datacontenttype") is None and _is_json(event, value):
        attributes = {**attributes, "datacontenttype": data.IMPLIED_TYPE}
    return attributes, value, has_data


def _is_json(event: Event, value: object) -> bool:
    """Whether data without a datacontenttype is JSON: what is not bytes, and bytes that came from a JSON event."""
    return not isinstance(value, data.BYTES) or getattr(event, "is_json", False)
