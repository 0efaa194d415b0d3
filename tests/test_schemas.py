"""Schemas of data: what they refuse, before events are sent and when they are received."""

import json
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pydantic
import pytest
import referencing
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing.jsonschema import DRAFT202012

from ce_nats import (
    CeNatsError,
    DecodedEvent,
    DecodeError,
    EncodeError,
    ErrorCode,
    Reject,
    from_nats_message,
    to_nats_message,
)
from ce_nats.codec.data import JsonText
from ce_nats.codec.event import NotDelivered
from ce_nats.schemas import Schemas, validator_of
from tests.support.tables import each

KIND = "com.example.order.placed"
URI = "https://example.com/order/1"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
TOTAL = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}


@dataclass
class Order:
    total: float


class Invoice(pydantic.BaseModel):
    total: pydantic.PositiveFloat


class Refund(msgspec.Struct):
    total: float


class Tagged(msgspec.Struct):
    tags: set[Any]


@dataclass
class Ratio:
    total: int

    def __post_init__(self):
        self.ratio = 1 / self.total


class Renamed(pydantic.BaseModel):
    total: float

    @pydantic.model_validator(mode="before")
    @classmethod
    def rename(cls, values):
        return {"total": values["amount"]}


class Asked(pydantic.BaseModel):
    total: float

    @pydantic.field_validator("total")
    @classmethod
    def ask(cls, value):
        raise ConnectionError


class Nothing:
    """Neither a model nor a type of JSON."""


def event_of(data=None, **attributes):
    return CloudEvent({"id": "7", "source": "/tests", "type": KIND, **attributes}, data)


def received(data=None, *, mode="binary", parse_data=True, **attributes):
    return from_nats_message(to_nats_message(event_of(data, **attributes), mode=mode), parse_data=parse_data)


def refused(validator, event):
    """Return the text of the error with which an event is refused, when it is sent and when it is received."""
    with pytest.raises(EncodeError) as sent:
        validator.checked(event)
    with pytest.raises(DecodeError) as got:
        validator.check(from_nats_message(to_nats_message(event)))
    assert sent.value.code is got.value.code is ErrorCode.DATA_MISMATCH
    assert (sent.value.message, sent.value.attribute) == (got.value.message, got.value.attribute)
    assert got.value.message.startswith(f"event '7' of type '{event.get_attributes()['type'][:50]}")
    return got.value.message.partition(": ")[2]


SCHEMAS: list[Any] = [TOTAL, Order, Invoice, Refund]


@each("schema", SCHEMAS)
@each("mode", ["binary", "structured"])
@each("parse_data", [True, False])
def test_data_is_checked(schema, mode, parse_data):
    schemas = Schemas({KIND: schema})
    event = event_of({"total": 12.5})
    assert schemas.checked(event) is event
    schemas.check(received({"total": 12.5}, mode=mode, parse_data=parse_data))
    for wrong in ({"total": "many"}, {}, [], "text", None, 5):
        assert refused(schemas, event_of(wrong)).startswith("the data must ")
        with pytest.raises(DecodeError):
            schemas.check(received(wrong, mode=mode, parse_data=parse_data))


@each(
    ("data", "content_type"),
    [
        (b'{"total": 1}', "application/json"),
        (JsonText('{"total": 1.00}'), None),
        (Order(1.0), None),
        (Invoice(total=1), "application/vnd.example+json"),
        ({"total": 1}, "text/json"),
    ],
)
@each("schema", SCHEMAS)
def test_data_is_checked_as_it_is_sent(data, content_type, schema):
    Schemas({KIND: schema}).checked(event_of(data, **({"datacontenttype": content_type} if content_type else {})))


def test_models_with_other_data_are_refused():
    schemas = Schemas({KIND: {"properties": {"total": {"minimum": 10}}}})
    assert refused(schemas, event_of(Order(1.0))) == "the data must match its JSON Schema: minimum 10 at `$.total`"


@each(
    ("data", "content_type", "schema", "is_valid"),
    [
        ("a text", "text/plain", {"type": "string", "maxLength": 6}, True),
        ("a text", "text/plain", {"type": "string", "maxLength": 5}, False),
        ("5", "text/plain", {"type": "integer"}, False),
        (b"\x00\x01", "image/png", {}, False),
        (b"\x00\x01", None, True, False),
        (b"\x00\x01", "image/png", bytes, True),
        ("a text", "text/plain", str, True),
        (None, None, {"type": "null"}, True),
        (None, None, {"type": "object"}, False),
        (None, "application/json", {"type": "null"}, True),
        ([], None, False, False),
        ([], None, True, True),
    ],
)
@each("parse_data", [True, False])
def test_data_of_other_media_types(data, content_type, schema, is_valid, parse_data):
    attributes = {"datacontenttype": content_type} if content_type else {}
    schemas, event = Schemas({KIND: schema}), received(data, parse_data=parse_data, **attributes)
    if is_valid:
        schemas.check(event)
        schemas.checked(event_of(data, **attributes))
    else:
        with pytest.raises(DecodeError):
            schemas.check(event)
        refused(schemas, event_of(data, **attributes))


@each("payload", [b"{", b'{"total": NaN}', b"\xff", b"[" * 200 + b"]" * 200])
@each("schema", [TOTAL, Order])
def test_invalid_json_is_refused(payload, schema):
    event = event_of(payload, datacontenttype="application/json")
    with pytest.raises(EncodeError) as caught:
        Schemas({KIND: schema}).checked(event)
    assert caught.value.code is ErrorCode.DATA_MISMATCH
    with pytest.raises(DecodeError) as got:
        Schemas({KIND: schema}).check(from_nats_message(to_nats_message(event), parse_data=False))
    assert got.value.code is ErrorCode.DATA_MISMATCH
    assert Schemas({"other": schema}).checked(event) is event


def test_events_that_are_not_valid_raise_their_own_error():
    with pytest.raises(EncodeError) as caught:
        Schemas({}).checked(SimpleNamespace(get_attributes=lambda: {"type": KIND}, get_data=lambda: None))
    assert caught.value.code is ErrorCode.MISSING_ATTRIBUTE
    with pytest.raises(EncodeError) as caught:
        Schemas({}).checked({"type": KIND})
    assert caught.value.code is ErrorCode.INVALID_MESSAGE


@each("schema", [TOTAL, Order])
def test_data_that_was_not_delivered_cannot_be_checked(schema):
    event = DecodedEvent(dict(received()._attributes), NotDelivered(5))
    with pytest.raises(TypeError, match="not delivered to a headers-only consumer"):
        Schemas({KIND: schema}).check(event)
    with pytest.raises(EncodeError):
        Schemas({KIND: schema}).checked(event)


# --- Types and dataschema -------------------------------------------------------------------------------------------


def test_longest_pattern_is_used():
    schemas = Schemas({"com.example.*": {"type": "string"}, "com.example.order.*": {"type": "array"}, KIND: TOTAL})
    schemas.check(received({"total": 1}))
    schemas.check(received([], type="com.example.order.paid"))
    schemas.check(received("", type="com.example.other"))
    refused(schemas, event_of({"total": 1}, type="com.example.order.paid"))


def test_types_without_a_schema_are_allowed_or_refused():
    event = event_of(5, type="other")
    assert Schemas({KIND: TOTAL}).checked(event) is event
    assert refused(Schemas({KIND: TOTAL}, unknown="refuse"), event) == "the type must have a schema"


def test_dataschema_is_set():
    schemas = Schemas({KIND: TOTAL}, dataschema={"com.example.*": URI})
    event = event_of({"total": 1})
    sent = schemas.checked(event)
    assert sent.get_attributes()["dataschema"] == URI
    assert "dataschema" not in event.get_attributes()
    assert from_nats_message(to_nats_message(sent)).data == {"total": 1}
    given = event_of({"total": 1}, dataschema=URI)
    assert schemas.checked(given).get_attributes()["dataschema"] == URI
    schemas.check(received({"total": 1}))
    other = event_of(type="other")
    assert schemas.checked(other) is other


def test_other_dataschema_is_refused():
    schemas = Schemas({}, dataschema={KIND: URI})
    text = refused(schemas, event_of(dataschema="https://example.com/order/2"))
    assert text == f"dataschema must be '{URI}', got 'https://example.com/order/2'"
    with pytest.raises(EncodeError) as caught:
        schemas.checked(event_of(dataschema="x"))
    assert caught.value.attribute == "dataschema"


@each(
    ("schemas", "options", "error", "text"),
    [
        ([TOTAL], {}, TypeError, "schemas must be a mapping from types of events"),
        ({KIND: TOTAL}, {"dataschema": URI}, TypeError, "dataschema must be a mapping"),
        ({KIND: Nothing}, {}, TypeError, f"the schema of '{KIND}' must be a JSON Schema or a type: .*Nothing"),
        ({KIND: 5}, {}, TypeError, "must be a JSON Schema or a type"),
        ({KIND: "{}"}, {}, TypeError, "must be a JSON Schema or a type"),
        ({KIND: None}, {"unknown": "skip"}, ValueError, "unknown must be 'allow' or 'refuse', got 'skip'"),
        ({"a*b": TOTAL}, {}, ValueError, "pattern must be a type"),
        ({5: TOTAL}, {}, TypeError, "pattern must be a str"),
        ({}, {"dataschema": {KIND: "not a uri"}}, ValueError, "dataschema"),
        ({}, {"dataschema": {KIND: 5}}, ValueError, "dataschema"),
        ({KIND: {"type": "many"}}, {}, ValueError, rf"the schema of '{KIND}' must be a JSON Schema: .* at \$.type"),
        ({KIND: {"$schema": "https://example.com/mine"}}, {}, ValueError, "must be a draft of JSON Schema"),
        ({KIND: {"$schema": 5}}, {}, ValueError, "must be a draft of JSON Schema, got 5"),
        ({KIND: {"$schema": ["a"]}}, {}, ValueError, "must be a draft of JSON Schema"),
        ({KIND: {"$schema": "http://[a"}}, {}, ValueError, "must be a draft of JSON Schema"),
        ({KIND: {"items": {"$id": "http://[a", "$ref": "b"}}}, {}, ValueError, r"\$ref 'b' .* must be in it"),
        ({KIND: {"items": {"$id": "http://[a", "items": {"$id": "b"}}}}, {}, ValueError, r"\$id of a part of .* URI"),
        ({KIND: {"$ref": "#/$defs/gone"}}, {}, ValueError, r"\$ref '#/\$defs/gone' in the schema of .* must be in it"),
        ({KIND: {"items": {"not": {"$ref": "https://a.example/"}}}}, {}, ValueError, "must be in it or in registry="),
        ({KIND: {"$dynamicRef": "https://example.com/x"}}, {}, ValueError, r"\$dynamicRef"),
    ],
)
def test_invalid_schemas_are_rejected(schemas, options, error, text):
    with pytest.raises(error, match=text):
        Schemas(schemas, **options)


# --- JSON Schema ----------------------------------------------------------------------------------------------------


@each(
    "draft",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        DRAFT,
    ],
)
def test_drafts(draft):
    definitions = {
        "definitions": {"total": {"type": "number"}},
        "properties": {"total": {"$ref": "#/definitions/total"}},
    }
    schemas = Schemas({KIND: {"$schema": draft, **definitions}})
    schemas.check(received({"total": 1}))
    refused(schemas, event_of({"total": "x"}))


def test_references_to_the_registry():
    money = {"$id": "https://example.com/money", "$defs": {"amount": {"type": "number"}}}
    registry = referencing.Registry().with_resource(money["$id"], DRAFT202012.create_resource(money))
    schema = {"properties": {"total": {"$ref": "https://example.com/money#/$defs/amount"}}}
    schemas = Schemas({KIND: schema}, registry=registry)
    schemas.check(received({"total": 1}))
    refused(schemas, event_of({"total": "x"}))


def test_references_of_a_schema_in_the_registry_are_checked():
    part = {"$id": "https://example.com/part", "items": {"$ref": "https://example.com/gone"}}
    registry = referencing.Registry().with_resource(part["$id"], DRAFT202012.create_resource(part))
    with pytest.raises(ValueError, match=r"'https://example.com/gone' in the schema"):
        Schemas({KIND: {"$ref": "https://example.com/part"}}, registry=registry)


def test_references_to_metaschemas():
    schemas = Schemas({KIND: {"$ref": DRAFT}})
    schemas.check(received({"type": "object"}))
    refused(schemas, event_of({"type": "many"}))


def test_nothing_is_requested_from_the_network():
    """jsonschema itself would request references of schemas without a registry."""
    code = """
import sys, warnings
warnings.simplefilter("ignore")
sys.addaudithook(lambda event, _: print(event) if event == "socket.connect" else None)
import jsonschema
from ce_nats.schemas import Schemas
try:
    Schemas({"a": {"$ref": "http://127.0.0.1:1/schema.json"}})
except ValueError as error:
    print(error)
try:
    jsonschema.Draft202012Validator({"$ref": "http://127.0.0.1:1/schema.json"}).validate(5)
except Exception:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *others = done.stdout.splitlines()
    assert first.endswith("must be in it or in registry=")
    assert set(others) == {"socket.connect"}  # by jsonschema alone, so the test can fail


def test_formats_are_checked_on_request():
    schema = {"properties": {"ip": {"format": "ipv4"}}}
    Schemas({KIND: schema}).check(received({"ip": "x"}))
    schemas = Schemas({KIND: schema}, formats=True)
    assert refused(schemas, event_of({"ip": "x"})) == "the data must match its JSON Schema: format 'ipv4' at `$.ip`"


def nested(levels):
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def called_at_depth(frames, call):
    return call() if frames == 0 else called_at_depth(frames - 1, call)


def test_deeply_nested_data_raises_no_recursion_error():
    schemas = Schemas({KIND: {"properties": {"a": {"$ref": "#"}}}})
    schemas.check(received(nested(100)))
    event = received(nested(120))
    with pytest.raises(DecodeError, match="nested too deep for the validator"):
        called_at_depth(sys.getrecursionlimit() // 2 + 100, lambda: schemas.check(event))


NUMBER_OF_400_DIGITS = 10**400 + 1
HOSTILE = {
    "multiple": ({"multipleOf": 0.01}, NUMBER_OF_400_DIGITS, OverflowError),
    "multiple of a tiny number": ({"multipleOf": 1e-300}, -NUMBER_OF_400_DIGITS, OverflowError),
    "multiple in an array": ({"contains": {"multipleOf": 0.5}}, [NUMBER_OF_400_DIGITS, 1], OverflowError),
    "multiple in draft 4": (
        {"$schema": "http://json-schema.org/draft-04/schema#", "multipleOf": 0.01},
        NUMBER_OF_400_DIGITS,
        OverflowError,
    ),
    "unhashable in a set of msgspec": (set[Any], [[1]], TypeError),
    "unhashable in a field": (Tagged, {"tags": [{}]}, TypeError),
    "division by zero": (Ratio, {"total": 0}, ZeroDivisionError),
    "missing key": (Renamed, {"total": 0}, KeyError),
}


@each("name", HOSTILE)
def test_data_that_makes_a_validator_fail_is_refused(name):
    """With the exception of the validator as the cause, and without the data in the text."""
    schema, value, kind = HOSTILE[name]
    schemas, event = Schemas({KIND: schema}), event_of(value)
    text = refused(schemas, event)
    assert text.endswith(f"raised {kind.__name__}{' for the data' if isinstance(schema, dict) else ''}")
    with pytest.raises(EncodeError) as sent:
        schemas.checked(event)
    with pytest.raises(DecodeError) as got:
        schemas.check(received(value))
    assert isinstance(sent.value.__cause__, kind)
    assert isinstance(got.value.__cause__, kind)


def test_other_exceptions_of_models_propagate():
    """They are failures of the program, such as those of a database that a validator asks."""
    with pytest.raises(ConnectionError):
        Schemas({KIND: Asked}).check(received({"total": 1}))


VALUES: Any = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**400), 10**400),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)),
    max_leaves=8,
)
OF_NUMBERS: list[Any] = [
    {"multipleOf": 0.01},
    {"minimum": 0.5, "exclusiveMaximum": 1e300},
    {"uniqueItems": True, "items": {"multipleOf": 3}},
    {"enum": [1, 1.5, {"a": [1.0]}]},
    {"additionalProperties": {"$ref": "#"}, "multipleOf": 1e-5},
    {"$schema": "http://json-schema.org/draft-03/schema#", "divisibleBy": 0.01},
    int,
    float,
    Order,
    Invoice,
    set[Any],
    dict[str, Decimal],
]


@given(VALUES, st.sampled_from(range(len(OF_NUMBERS))))
def test_no_data_raises_anything_but_a_mismatch(value, number):
    try:
        Schemas({KIND: OF_NUMBERS[number]}).check(received(value))
    except DecodeError as error:
        assert error.code is ErrorCode.DATA_MISMATCH  # noqa: PT017


@each("digits", [4000, 5000])
@each("schema", [{"multipleOf": 0.01}, {"type": "string"}, Order])
def test_number_with_more_digits_than_python_converts(digits, schema):
    """Python refuses to convert integers of more than 4,300 digits from or to text."""
    message = to_nats_message(event_of(b"1" * digits, datacontenttype="application/json"), mode="binary")
    event = from_nats_message(message, parse_data=False)
    with pytest.raises(DecodeError) as caught:
        Schemas({KIND: schema}).check(event)
    assert caught.value.code is ErrorCode.DATA_MISMATCH
    with pytest.raises(EncodeError):
        Schemas({KIND: schema}).checked(event_of(10**digits))


def test_endless_references_refuse_everything():
    refused(Schemas({KIND: {"$ref": "#"}}), event_of(5))


def test_text_of_the_error_does_not_contain_the_data():
    secret = "4111 1111 1111 1111"
    for schema in (TOTAL, Order, Invoice, Refund):
        assert secret not in refused(Schemas({KIND: schema}), event_of({"total": secret}))


def test_long_values_are_shortened():
    schemas = Schemas({KIND: {"additionalProperties": {"enum": ["x" * 10_000]}}})
    assert len(refused(schemas, event_of({"k" * 10_000: 1}))) < 500


def test_later_changes_of_a_schema_have_no_effect():
    schema = {"properties": {"total": {"type": "number"}}}
    schemas = Schemas({KIND: schema})
    schema["properties"]["total"]["type"] = "string"
    schemas.check(received({"total": 1}))
    refused(schemas, event_of({"total": "x"}))


@each(
    ("items", "is_valid"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False], True),
        ([[1], [1.0]], False),
        ([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], False),
        ([{"a": 1}, {"a": 2}], True),
        (["1", 1], True),
        ([None, None], False),
        ([1.5, 1.5], False),
        (["a", "a"], False),
        ([10**400, 10**400], False),
        ({"a": 1}, True),
        ("aa", True),
    ],
)
def test_unique_items(items, is_valid):
    event = received(items)
    if is_valid:
        Schemas({KIND: {"uniqueItems": True}}).check(event)
    else:
        refused(Schemas({KIND: {"uniqueItems": True}}), event)
    Schemas({KIND: {"uniqueItems": False}}).check(event)


def test_unique_items_of_many_objects_take_linear_time():
    """The quadratic comparison of jsonschema would take hours, also in a schema that refers to itself."""
    schema = {"$schema": DRAFT, "properties": {"a": {"$ref": "#"}}, "uniqueItems": True}
    event = received({"a": {"a": [{"b": number} for number in range(50_000)]}})
    Schemas({KIND: schema}).check(event)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["total", "a"]), inner, max_size=2),
    max_leaves=6,
)


@given(values, st.sampled_from(["binary", "structured"]), st.booleans())
def test_result_is_that_of_the_validator(value, mode, parse_data):
    """In both directions and modes, for parsed data and bytes."""
    schema = {"anyOf": [TOTAL, {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True}, {"type": "string"}]}
    schemas, is_valid = Schemas({KIND: schema}), Draft202012Validator(schema).is_valid(json.loads(json.dumps(value)))
    event = received(value, mode=mode, parse_data=parse_data)
    for check, argument in ((schemas.check, event), (schemas.checked, event_of(value))):
        try:
            check(argument)
        except CeNatsError as error:
            assert error.code is ErrorCode.DATA_MISMATCH  # noqa: PT017
            assert not is_valid
        else:
            assert is_valid


# --- Functions ------------------------------------------------------------------------------------------------------


def raises_reject(event):
    raise Reject("no")


def raises_value_error(event):
    raise ValueError("no")


def raises_error_of_jsonschema(event):
    jsonschema.validate(event.data, {"type": "string"})


def raises_mismatch(event):
    event.data_as(Refund)


def raises_error_of_pydantic(event):
    Invoice.model_validate(event.data)


def returns_false(event):
    return False


@each(
    ("function", "text"),
    [
        (raises_reject, "no"),
        (raises_value_error, "no"),
        (raises_error_of_jsonschema, "5 is not of type 'string'"),
        (raises_mismatch, "the data must be Refund: "),
        (raises_error_of_pydantic, "Input should be"),
        (returns_false, "the function returns_false returned False"),
    ],
)
def test_function_refuses_events(function, text):
    assert refused(validator_of(function), event_of(5)).startswith(text)


@each("validate", [lambda event: None, {"*": True}, {"*": str}])
@each("mode", ["binary", "structured"])
def test_data_that_its_media_type_does_not_explain_is_refused(validate, mode):
    """Also by a function that would accept it, and a schema that any data matches."""
    event = event_of(b"\xe9", datacontenttype="text/plain")
    received = from_nats_message(to_nats_message(event, mode=mode))
    assert "the data must be text in utf-8" in refused(validator_of(validate), received)
    assert validator_of({"other": True}).check(received) is None


@each("result", [None, True, 0, "", []])
def test_function_accepts_events(result):
    seen = []

    def accept(event):
        seen.append(event)
        return result

    validator = validator_of(accept)
    event = event_of(b'{"total": 1}', datacontenttype="application/json")
    assert validator.checked(event) is event
    assert (seen[0].type, seen[0].data) == (KIND, {"total": 1})


def test_other_exceptions_of_functions_propagate():
    def fails(event):
        raise KeyError("total")

    for call in (validator_of(fails).checked, validator_of(fails).check):
        with pytest.raises(KeyError):
            call(received(5))


async def is_async(event): ...


@each("validate", [5, "x", [TOTAL], is_async])
def test_validate_must_be_schemas_a_mapping_or_a_function(validate):
    with pytest.raises(TypeError, match=r"^validate must be Schemas, a mapping or a function that is not async, got "):
        validator_of(validate)


def test_mapping_is_short_for_schemas():
    refused(validator_of({KIND: TOTAL}), event_of([]))
    assert validator_of(None) is None
    schemas = Schemas({})
    assert validator_of(schemas) is schemas


def test_models_need_no_jsonschema():
    code = """
import sys
sys.modules["jsonschema"] = None
from ce_nats.schemas import Schemas
Schemas({"a": int})
try:
    Schemas({"a": {}})
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "JSON Schemas need jsonschema: pip install 'ce-nats[schemas]'\n"
