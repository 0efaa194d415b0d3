"""
The protocol of event classes, and DecodedEvent, the CloudEvent that decoding returns.

The constructor of ``cloudevents`` generates a missing id, time and specversion; a decoder must not.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

from cloudevents.core.v1.event import CloudEvent

from ..errors import CeNatsError, DecodeError, EncodeError, ErrorCode, preview
from . import data, media_type, models
from .attributes import CORE
from .media_type import DataKind
from .timestamp import Timestamp

__all__ = ["DecodedEvent", "EventLike", "NotDelivered"]

T = TypeVar("T")


class EventLike(Protocol):
    """The methods that an event needs to be encoded. Every CloudEvent class of the ``cloudevents`` package has them."""

    def get_attributes(self) -> Mapping[str, Any]: ...

    def get_data(self) -> Any: ...


class NotDelivered:
    """
    Placeholder for data that was not delivered: of a consumer, or a republish, with ``headers_only``.

    An event with it cannot be encoded, in either mode, so that its data is not lost by mistake. It is not a
    dataclass, because dataclasses can be encoded.

    Attributes:
        size: Size of the payload in bytes.
    """

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return self.size == other.size if isinstance(other, NotDelivered) else NotImplemented

    def __hash__(self) -> int:
        return hash((NotDelivered, self.size))

    def __repr__(self) -> str:
        return f"NotDelivered(size={self.size})"

    @property
    def error(self) -> DecodeError:
        """The error for formats that have no such placeholder: ``data-not-delivered``."""
        text = f"the payload of {self.size} bytes was not delivered (headers only)"
        return DecodeError(ErrorCode.DATA_NOT_DELIVERED, text, attribute="data")


class DecodedEvent(CloudEvent):
    """
    A CloudEvent with exactly the attributes and the data that were received.

    Two decoded events are equal if their attributes and data are equal.

    Attributes:
        has_data: False if the message carried no data. It distinguishes a JSON ``null`` (True) from no data (False):
            ``get_data()`` returns None for both.
        is_json: True if the data came from a JSON event without a datacontenttype, which means
            ``application/json``; encoding the event again adds that datacontenttype.
    """

    has_data: bool
    is_json: bool

    def __init__(
        self, attributes: dict[str, Any], data: Any = None, *, has_data: bool | None = None, is_json: bool = False
    ) -> None:
        # The base class's constructor is not called: it generates attributes, and its checks are looser than the
        # codec's.
        self._attributes = attributes
        self._data = data
        self.has_data = data is not None if has_data is None else has_data
        self.is_json = is_json

    # Attributes as properties of the class: ``type`` and ``data`` below hide the built-in and the module in this block.

    @property
    def specversion(self) -> str:
        """Version of the CloudEvents specification, ``"1.0"``."""
        return self._attributes["specversion"]  # type: ignore[no-any-return]

    @property
    def id(self) -> str:
        """Id of the event, unique within its source."""
        return self._attributes["id"]  # type: ignore[no-any-return]

    @property
    def source(self) -> str:
        """Context in which the event happened, a URI-reference."""
        return self._attributes["source"]  # type: ignore[no-any-return]

    @property
    def type(self) -> str:
        """Type of the event."""
        return self._attributes["type"]  # type: ignore[no-any-return]

    @property
    def subject(self) -> str | None:
        """Subject of the event within its source, or None. It is not the NATS subject."""
        return self._attributes.get("subject")

    @property
    def time(self) -> Timestamp | None:
        """Time of the event, or None; ``str()`` of it is the text that was received."""
        return self._attributes.get("time")

    @property
    def datacontenttype(self) -> str | None:
        """Media type of the data, or None."""
        return self._attributes.get("datacontenttype")

    @property
    def dataschema(self) -> str | None:
        """URI of the schema of the data, or None."""
        return self._attributes.get("dataschema")

    @property
    def extensions(self) -> Mapping[str, Any]:
        """Extension attributes by name; read-only."""
        return MappingProxyType({name: value for name, value in self._attributes.items() if name not in CORE})

    @property
    def data(self) -> Any:
        """Data of the event, as :meth:`get_data` returns it."""
        return self._data

    @property
    def data_error(self) -> DecodeError | None:
        """
        Reason why the data is not what its datacontenttype says, or None. It is computed at each access.

        Bytes under a JSON or text media type are data that cannot be decoded: ``invalid-json``, ``invalid-utf8``,
        ``invalid-data`` or ``unsupported-charset``. Text whose charset is unknown or lacks a character of it has the
        error of encoding it: ``unsupported-charset`` or ``invalid-data``. ``data-not-delivered`` for a placeholder.
        """
        value = self._data
        if isinstance(value, NotDelivered):
            return value.error
        try:
            if isinstance(value, str):
                data.encode(value, self._attributes.get("datacontenttype"))
            else:
                self._parsed_data()
        except CeNatsError as error:
            return DecodeError(error.code, error.message, attribute="data", requirement=error.requirement)
        return None

    def get_data(self) -> Any:
        """
        Return a JSON value for JSON media types, ``str`` for text and XML, else ``bytes``; None for no data.

        Data that is not what its media type says is ``bytes``, or ``str`` if its charset does not have it; see
        :attr:`data_error`.
        """
        return self._data

    @overload
    def data_as(self, model: builtins.type[T]) -> T: ...

    @overload
    def data_as(self, model: Any) -> Any: ...

    def data_as(self, model: Any) -> Any:
        """
        Validate the data and return it as an instance of a type.

            order = event.data_as(Order)

        JSON is converted from its text, by the rules of the type's library, whether it was parsed before or not. With
        ``parse_data=True`` numbers were parsed as floats, so a ``Decimal`` has the precision of a float. Data of other
        media types is text or bytes. Missing data is treated as a JSON null.

        Args:
            model: A msgspec Struct, a dataclass, a TypedDict, a pydantic model, or a type composed of these:
                ``list[Order]``, ``Order | None``.

        Raises:
            DecodeError: ``data-mismatch``: the data is not of that type, or not JSON, or the validation of the type
                raised an ArithmeticError, AttributeError, LookupError, RecursionError or TypeError for it;
                ``__cause__`` is the error of the library. A JetStream consumer dead-letters the message of a handler
                that raises this error.
            TypeError: Neither msgspec nor pydantic supports the type; or the data was not delivered, because the
                consumer requests headers only.
        """
        if isinstance(self._data, NotDelivered):
            raise TypeError("data_as() needs the data, which is not delivered to a headers-only consumer")
        has_data = self.has_data
        try:
            kind, value = self._text_of_data() if has_data else (DataKind.JSON, b"null")
            return (models.read_json if kind is DataKind.JSON else models.convert)(value, model)
        except ValueError as error:
            reason = models.error_summary(error) if has_data else "the event has no data"
            text = f"the data must be {models.name_of(model)}: {reason}"
            cause = error.__cause__ if isinstance(error, models.UnsuitableDataError) else error
            raise DecodeError(ErrorCode.DATA_MISMATCH, text, attribute="data") from cause

    def _text_of_data(self) -> tuple[DataKind, Any]:
        """Return the text of JSON data, or data of another media type as ``str`` or ``bytes``."""
        value: Any = self._data
        content_type = self._attributes.get("datacontenttype")
        is_bytes = isinstance(value, data.BYTES)
        if content_type is None and _is_json(self, value):
            content_type = data.IMPLIED_TYPE
        kind = media_type.parse(content_type) if content_type is not None else None
        if kind is None or kind.kind is not DataKind.JSON:
            return DataKind.TEXT, data.decode(bytes(value), content_type) if is_bytes else value
        if not is_bytes:
            return DataKind.JSON, data.encode_json(value)
        text = bytes(value) or b"null"  # as an empty payload in binary mode
        data.decode(text, content_type)  # the libraries are less strict
        return DataKind.JSON, text

    def _parsed_data(self) -> Any:
        """
        Return data that was not parsed (``parse_data=False``) as a Python value, and any other data unchanged.

        Raises:
            DecodeError: As decoding with ``parse_data=True`` does.
        """
        value = self._data
        content_type = self._attributes.get("datacontenttype") or (data.IMPLIED_TYPE if self.is_json else None)
        if not isinstance(value, data.BYTES) or content_type is None:
            return value
        kind = media_type.parse(content_type)
        if not value and kind is not None and kind.kind is DataKind.JSON:
            return None  # an empty payload in binary mode
        return data.decode(bytes(value), content_type)

    def get_time(self) -> Timestamp | None:
        """Return the ``time`` attribute, which keeps the text that was received."""
        return self._attributes.get("time")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecodedEvent):
            return NotImplemented
        return (self._attributes, self._data, self.has_data) == (other._attributes, other._data, other.has_data)

    __hash__ = None  # type: ignore[assignment]  # data is not hashable

    def __repr__(self) -> str:
        return f"DecodedEvent({self._attributes!r}, {self._data!r})"

    def _repr_html_(self) -> str:
        from .._notebook import event_rows, html_table

        return html_table("CloudEvent", event_rows(self))


class ExtendedEvent:
    """
    An event with additional attributes. If the event already has an attribute of that name, its value is kept.

    Raises:
        EncodeError: ``invalid-message`` if ``event`` is not an event.
    """

    def __init__(self, event: EventLike, additional: Mapping[str, Any]) -> None:
        own, self._data = attributes_and_data(event)
        self._attributes = {**own, **{name: value for name, value in additional.items() if own.get(name) is None}}
        self.has_data: bool = getattr(event, "has_data", False)
        self.is_json: bool = getattr(event, "is_json", False)

    def get_attributes(self) -> dict[str, Any]:
        return self._attributes

    def get_data(self) -> Any:
        return self._data


def attributes_and_data(event: EventLike) -> tuple[Mapping[str, Any], Any]:
    """
    Return the attributes and data of any event, not checked.

    Raises:
        EncodeError: ``invalid-message`` if ``event`` is not an event.
    """
    try:
        attributes, value = event.get_attributes(), event.get_data()
    except (AttributeError, TypeError) as error:
        raise EncodeError(
            ErrorCode.INVALID_MESSAGE, f"an event must have get_attributes() and get_data(), got {preview(event)}"
        ) from error
    if attributes.__class__ is not dict and not isinstance(attributes, Mapping):
        raise EncodeError(ErrorCode.INVALID_MESSAGE, f"attributes must be a mapping, got {preview(attributes)}")
    return attributes, value


def attributes_data_and_presence(event: EventLike) -> tuple[Mapping[str, Any], Any, bool]:
    """
    Return the attributes and data of any event, not checked, and whether it has data.

    Data without a datacontenttype is JSON unless it is bytes; ``application/json`` is then added to the attributes.

    Raises:
        EncodeError: ``invalid-message`` if ``event`` is not an event.
    """
    attributes, value = attributes_and_data(event)
    # A DecodedEvent distinguishes a JSON null from no data.
    has_data = value is not None or getattr(event, "has_data", False)
    if has_data and attributes.get("datacontenttype") is None and _is_json(event, value):
        attributes = {**attributes, "datacontenttype": data.IMPLIED_TYPE}
    return attributes, value, has_data


def _is_json(event: EventLike, value: object) -> bool:
    """Whether data without a datacontenttype is JSON: values other than bytes, and bytes decoded from a JSON event."""
    return not isinstance(value, data.BYTES) or getattr(event, "is_json", False)
