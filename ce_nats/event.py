"""
The event that decoding gives: a ``cloudevents`` CloudEvent that was checked already.

The package's own constructor makes up an id, a time and a specversion where they are missing; a decoder must not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudevents.core.v1.event import CloudEvent

__all__ = ["DecodedEvent", "NotDelivered"]


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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecodedEvent):
            return NotImplemented
        return (self._attributes, self._data, self.has_data) == (other._attributes, other._data, other.has_data)

    __hash__ = None  # type: ignore[assignment]  # data is not hashable

    def __repr__(self) -> str:
        return f"DecodedEvent({self._attributes!r}, {self._data!r})"
