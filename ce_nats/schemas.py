"""
Validate the data of events by their type, before they are sent and when they are received.

    schemas = Schemas({"com.example.order.placed": Order, "com.example.order.paid": {"type": "object"}})

    async with aio.Publisher(js, validate=schemas) as publisher: ...
    async with aio.PullConsumer(js, "ORDERS", "billing", dead_letter="dead.orders", validate=schemas) as consumer: ...

A schema is a type, as for ``event.data_as(type)``, or a JSON Schema, which needs the extra ``schemas``
(``pip install 'ce-nats[schemas]'``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final, Literal, NoReturn, TypeAlias

from ._callables import is_async, name_of
from .codec import models
from .codec._type_patterns import TypePatterns
from .codec.attributes import CORE, canonical
from .codec.binding import from_nats_message, to_nats_message
from .codec.data import BYTES
from .codec.event import DecodedEvent, EventLike, ExtendedEvent, NotDelivered, attributes_and_data
from .errors import CeNatsError, DecodeError, EncodeError, ErrorCode, Reject, preview, shortened, text_of

__all__ = ["Schemas", "Validate"]

_Check: TypeAlias = Callable[[DecodedEvent], object]

_SCHEMA_KEYWORD: Final = "$schema"
_REFERENCES: Final = ("$ref", "$dynamicRef")


class Validator:
    """
    Validation of events by a function.

    Args:
        function: Called with an event; raises ValueError or :class:`~ce_nats.Reject`, or returns False, if it refuses
            the event.
    """

    _parses_data = True  # for the function

    def __init__(self, function: _Check) -> None:
        self._function = function

    def check(self, event: DecodedEvent) -> None:
        """
        Check a received event.

        Args:
            event: The event.

        Raises:
            DecodeError: ``data-mismatch``; the text has id and type of the event.
            TypeError: The data was not delivered, because the consumer requests headers only.
        """
        try:
            if self._parses_data:
                _parsed_data(event)
            if self._function(event) is False:
                _mismatch(f"{name_of(self._function)} returned False")
        except CeNatsError as error:
            if error.code is not ErrorCode.DATA_MISMATCH:
                raise
            raise _named(event, error.message, error.attribute) from (error.__cause__ or error)
        except _refusals() as error:
            reason = models.error_summary(error) if isinstance(error, ValueError) else shortened(text_of(error))
            raise _named(event, reason, "data") from error

    def checked(self, event: EventLike) -> EventLike:
        """
        Check an event that is to be sent, as its receivers will see it.

        Args:
            event: The event, as for :func:`ce_nats.to_nats_message`.

        Returns:
            The event, with ``dataschema`` if it has none and one is configured for its type.

        Raises:
            EncodeError: ``data-mismatch``; the text has id and type of the event. As :func:`ce_nats.to_nats_message`
                does, if it is not valid.
        """
        event = self._extended(event)
        message = to_nats_message(event)
        try:
            self.check(from_nats_message(message, parse_data=self._parses_data))
        except DecodeError as error:
            cause = error.__cause__ or error
            raise EncodeError(ErrorCode.DATA_MISMATCH, error.message, attribute=error.attribute) from cause
        return event

    def _extended(self, event: EventLike) -> EventLike:
        return event


class Schemas(Validator):
    """
    Schemas of the data, by type of event.

        schemas = Schemas(
            {"com.example.order.placed": Order, "com.example.order.*": {"type": "object", "required": ["id"]}},
            dataschema={"com.example.order.placed": "https://example.com/order-placed/1.json"},
        )

    Keys are types, or the beginning of types and ``*``, as for :class:`ce_nats.routing.Router`: the longest that
    matches is used. Missing data is treated as null.

    JSON Schemas are compiled once. They are of draft 2020-12, or of the draft in ``$schema``. Text of other media types
    is a string for them, and other data matches none.

    References (``$ref``) are resolved within the schema, in ``registry``, and in the metaschemas. Nothing is requested
    from a network: a reference that cannot be resolved is an error of this constructor.

    Args:
        schemas: For each type a JSON Schema (a dict or a bool), or a type as for
            :meth:`ce_nats.DecodedEvent.data_as`.
        dataschema: Value of the attribute ``dataschema`` for each type. It is set in events to send that have none, and
            another value is refused, also in received events; a received event may have none.
        unknown: For events whose type has no schema: ``"allow"``, or ``"refuse"``.
        registry: A ``referencing.Registry`` with further JSON Schemas for references.
        formats: True checks ``format`` of JSON Schemas, for those formats that are supported by installed libraries;
            False ignores it.

    Raises:
        TypeError: A schema is neither a JSON Schema nor a type that msgspec or pydantic can read; an argument has
            another type.
        ValueError: A pattern, a JSON Schema, a reference in it, a URI or ``unknown`` is not valid.
        ImportError: There is a JSON Schema, and the extra ``schemas`` is not installed.
    """

    _parses_data = False  # checks do it

    def __init__(
        self,
        schemas: Mapping[str, Any],
        *,
        dataschema: Mapping[str, str] | None = None,
        unknown: Literal["allow", "refuse"] = "allow",
        registry: Any = None,
        formats: bool = False,
    ) -> None:
        super().__init__(self._check)
        if unknown not in ("allow", "refuse"):
            raise ValueError(f"unknown must be 'allow' or 'refuse', got {preview(unknown)}")
        self._refuses = unknown == "refuse"
        self._checks: TypePatterns[_Check] = TypePatterns()
        self._uris: TypePatterns[str] = TypePatterns()
        for pattern, schema in _items("schemas", schemas):
            self._checks.add(pattern, _check_of(pattern, schema, registry, formats))
        for pattern, uri in _items("dataschema", dataschema or {}):
            self._uris.add(pattern, CORE["dataschema"](canonical(uri, "dataschema"), EncodeError))

    def _check(self, event: DecodedEvent) -> None:
        uri = self._uris.match(event.type)
        if uri is not None and event.dataschema not in (None, uri[1]):
            _mismatch(f"dataschema must be {uri[1]!r}, got {preview(event.dataschema)}", "dataschema")
        check = self._checks.match(event.type)
        if check is not None:
            check[1](event)
        elif self._refuses:
            _mismatch("the type must have a schema", "type")

    def _extended(self, event: EventLike) -> EventLike:
        kind = attributes_and_data(event)[0].get("type")
        uri = self._uris.match(kind) if isinstance(kind, str) else None
        return event if uri is None else ExtendedEvent(event, {"dataschema": uri[1]})


Validate: TypeAlias = Schemas | Mapping[str, Any] | Callable[[DecodedEvent], object]
"""
Option of publishers and consumers: :class:`Schemas`, a mapping for it, or a function. The function is called with the
event as it is received, and raises ValueError or :class:`~ce_nats.Reject`, or returns False, if it refuses the event.
"""


def validator_of(validate: Validate | None) -> Validator | None:
    """
    Return the validator for the option ``validate``.

    Raises:
        TypeError: It is not a function, or an async one; as :class:`Schemas`.
    """
    if validate is None or isinstance(validate, Validator):
        return validate
    if isinstance(validate, Mapping):
        return Schemas(validate)
    if is_async(validate) or not callable(validate):
        raise TypeError(f"validate must be Schemas, a mapping or a function that is not async, got {preview(validate)}")
    return Validator(validate)


def _items(name: str, mapping: object) -> list[tuple[str, Any]]:
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{name} must be a mapping from types of events, got {preview(mapping)}")
    return list(mapping.items())


def _check_of(pattern: str, schema: Any, registry: Any, formats: bool) -> _Check:
    """Return the function that checks the data of an event by a schema."""
    if isinstance(schema, (Mapping, bool)):
        return _json_schema(pattern, deepcopy(schema), registry, formats)
    try:
        models.check_model(schema)
    except TypeError as error:
        raise TypeError(f"the schema of {pattern!r} must be a JSON Schema or a type: {error}") from error
    return lambda event: event.data_as(schema)


def _json_schema(pattern: str, schema: Any, registry: Any, formats: bool) -> _Check:
    try:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import Draft202012Validator, extend, validator_for
        from jsonschema_specifications import REGISTRY
    except ImportError as error:
        raise ImportError("JSON Schemas need jsonschema: pip install 'ce-nats[schemas]'") from error

    has_draft = isinstance(schema, Mapping) and _SCHEMA_KEYWORD in schema
    try:
        kind = validator_for(schema, default=None if has_draft else Draft202012Validator)
    except (AttributeError, TypeError, ValueError):  # not a string, or not a URI
        kind = None
    if kind is None:
        draft = preview(schema[_SCHEMA_KEYWORD])
        raise ValueError(f"$schema of the schema of {pattern!r} must be a draft of JSON Schema, got {draft}")
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        text = f"the schema of {pattern!r} must be a JSON Schema: {shortened(error.message)} at {error.json_path}"
        raise ValueError(text) from error
    known = REGISTRY if registry is None else REGISTRY.combine(registry)
    _check_references(pattern, schema, kind.META_SCHEMA[_SCHEMA_KEYWORD], known)
    # Without a registry, references would be requested from the network.
    if has_draft:  # by which a reference to the whole schema would find the class again that is extended here
        schema = {keyword: value for keyword, value in schema.items() if keyword != _SCHEMA_KEYWORD}
    options = {"registry": known, "format_checker": kind.FORMAT_CHECKER if formats else None}
    validator = extend(kind, {"uniqueItems": _unique_items})(schema, **options)

    def check(event: DecodedEvent) -> None:
        value = _json_value(event)
        try:
            error = next(validator.iter_errors(value), None)
        except RecursionError as failure:
            _mismatch("the data is nested too deep for the validator of JSON Schemas", cause=failure)
        except MemoryError:
            raise
        except Exception as failure:  # for example an OverflowError; its text may contain the data
            _mismatch(f"the validator of JSON Schemas raised {type(failure).__name__} for the data", cause=failure)
        if error is not None:
            # The text of the error contains the data.
            rule = f"{error.validator} {preview(error.validator_value)}"
            _mismatch(f"the data must match its JSON Schema: {shortened(rule)} at `{shortened(error.json_path)}`")

    return check


def _check_references(pattern: str, schema: Any, draft: str, registry: Any) -> None:
    """
    Check that all references in a JSON Schema, and in the schemas to which it refers, can be resolved.

    Raises:
        ValueError: One cannot.
    """
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    specification = specification_with(draft)
    root = specification.create_resource(schema)
    seen: set[int] = set()
    waiting = [(root, registry.resolver_with_root(root))]
    while waiting:
        resource, resolver = waiting.pop()
        if id(resource.contents) in seen or not isinstance(resource.contents, Mapping):
            continue
        seen.add(id(resource.contents))
        for keyword in _REFERENCES:
            reference = resource.contents.get(keyword)
            if isinstance(reference, str):
                try:
                    found = resolver.lookup(reference)
                except (Unresolvable, ValueError) as error:  # ValueError: a URI that cannot be parsed
                    text = f"{keyword} {preview(reference)} in the schema of {pattern!r} must be in it or in registry="
                    raise ValueError(text) from error
                waiting.append((specification.create_resource(found.contents), found.resolver))
        try:
            waiting += [(part, resolver.in_subresource(part)) for part in resource.subresources()]
        except ValueError as error:
            text = f"$id of a part of the schema of {pattern!r} must be a URI reference: {shortened(str(error))}"
            raise ValueError(text) from error


def _unique_items(validator: Any, is_wanted: Any, value: Any, schema: Any) -> Iterator[Exception]:
    """Check ``uniqueItems`` in linear time; jsonschema takes 30 s for 4,000 objects, which a sender chooses."""
    from jsonschema.exceptions import ValidationError

    if is_wanted and isinstance(value, list):
        seen: set[str] = set()
        for item in value:
            # As text, whose hash a sender cannot predict, unlike that of numbers.
            text = json.dumps(_with_integers(item), sort_keys=True)
            if text in seen:
                yield ValidationError("items must be unique")
                return
            seen.add(text)


def _with_integers(value: Any) -> Any:
    """Return a JSON value with integers for integral floats: 1.0 and 1 are equal."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return list(map(_with_integers, value))
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    return value


def _parsed_data(event: DecodedEvent) -> Any:
    """Return the data of an event; data that is not what its media type says is ``data-mismatch``."""
    try:
        return event._parsed_data()
    except DecodeError as error:
        raise DecodeError(ErrorCode.DATA_MISMATCH, error.message, attribute="data") from error


def _json_value(event: DecodedEvent) -> Any:
    """
    Return the data of an event for a JSON Schema.

    Raises:
        DecodeError: ``data-mismatch``: it is neither JSON nor text, or not valid.
        TypeError: It was not delivered.
    """
    if isinstance(event.get_data(), NotDelivered):
        raise TypeError("a schema needs the data, which is not delivered to a headers-only consumer")
    value = _parsed_data(event)
    if isinstance(value, BYTES):
        _mismatch("the data must be JSON or text for a JSON Schema, got bytes")
    return value


def _refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions by which a function refuses an event; those of jsonschema are not ValueErrors."""
    module = sys.modules.get("jsonschema.exceptions")
    return (Reject, ValueError) if module is None else (Reject, ValueError, module.ValidationError)


def _named(event: DecodedEvent, reason: str, attribute: str | None) -> DecodeError:
    text = f"event {preview(event.id)} of type {preview(event.type)}: {reason}"
    return DecodeError(ErrorCode.DATA_MISMATCH, text, attribute=attribute)


def _mismatch(text: str, attribute: str = "data", cause: Exception | None = None) -> NoReturn:
    raise DecodeError(ErrorCode.DATA_MISMATCH, text, attribute=attribute) from cause
