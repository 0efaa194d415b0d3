"""
Attribute names and values: the seven types as canonical strings and back, and invalid values.
"""

from base64 import b64decode, b64encode
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, EncodeError, Timestamp
from ce_nats.codec.attributes import (
    CORE,
    REQUIRED,
    are_valid_names,
    canonical,
    check_extension_name,
    check_extension_types,
    check_name,
    checked_attributes,
    decode_base64,
    decode_extension,
    decode_typed_attribute,
)
from tests.support.strategies import CORE as CORE_NAMES
from tests.support.strategies import (
    any_text,
    attempt,
    attribute_names,
    attribute_values,
    illegal_characters,
    int32,
    legal_text,
    objects,
    plain_event,
    refused,
)
from tests.support.tables import each

TYPES = [str, bool, int, bytes, datetime, Timestamp]


# --- Names ----------------------------------------------------------------------------------------------------------


@given(attribute_names)
def test_legal_names_are_accepted(name: str) -> None:
    """Lower-case letters and digits, of any length."""
    check_name(name, EncodeError)


@given(st.one_of(any_text, objects))
def test_other_names_are_rejected_in_both_directions(name: Any) -> None:
    """All other text, and values that are not text."""
    if isinstance(name, str) and name and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789") and name != "data":
        check_name(name, DecodeError)
    else:
        refused(DecodeError, "invalid-attribute-name", check_name, name, DecodeError)
        refused(EncodeError, "invalid-attribute-name", check_name, name, EncodeError)


@each("name", ["foo\n", "data", "Data", "ü", "a-b", "a_b", "a b", "", "٤", "ﬁ", "K", "data_base64"])
def test_names_that_look_legal_are_rejected(name: str) -> None:
    """A trailing line break, non-ASCII letters and digits, and the name of the data in JSON events."""
    error = refused(EncodeError, "invalid-attribute-name", check_name, name, EncodeError)
    assert error.attribute == name
    assert error.requirement == {"": "CE-NM-03", "data": "CE-NM-06"}.get(name, "CE-NM-01")


def test_names_of_an_event_are_legal_distinct_and_complete() -> None:
    assert are_valid_names([*REQUIRED, "x"]) is True
    for names in ([*REQUIRED, "X"], [*REQUIRED, "data"], [*REQUIRED, "x", "x"], REQUIRED[1:], [*REQUIRED[1:], "x"], []):
        assert are_valid_names(names) is False


@each("error_class", [DecodeError, EncodeError])
def test_names_of_extensions_are_not_those_of_the_specification(error_class: Any) -> None:
    check_extension_name("x", error_class)
    for name in (*CORE, "data", "X", "", 5):
        error = refused(error_class, "invalid-attribute-name", check_extension_name, name, error_class)
        assert error.attribute == str(name)


# --- Canonical strings ----------------------------------------------------------------------------------------------


@given(attribute_values)
def test_values_round_trip_through_canonical_strings(value: Any) -> None:
    """With the type declared; times to the microsecond and with the offset."""
    wanted = datetime if isinstance(value, datetime) else type(value)
    decoded = decode_extension("x", canonical(value), wanted)
    assert decoded == value
    assert canonical(decoded) == canonical(value)
    if isinstance(value, datetime):
        assert decoded.utcoffset() == value.utcoffset()


@given(legal_text())
def test_strings_are_not_changed(text: str) -> None:
    """Strings are not normalised, stripped or case-folded."""
    assert canonical(text) == decode_extension("x", text, None) == decode_extension("x", text, str) == text


@given(st.binary())
def test_bytes_are_padded_base64(octets: bytes) -> None:
    """The standard alphabet with padding, for every length."""
    assert canonical(octets) == b64encode(octets).decode()
    assert decode_base64("x", canonical(octets)) == octets


@given(any_text)
def test_base64_is_as_strict_as_in_the_standard_library(text: str) -> None:
    try:
        if text.startswith("="):
            raise ValueError  # as Python 3.11 and later; 3.10 returns empty bytes
        expected = b64decode(text.encode("utf-8", "surrogatepass"), validate=True)
    except ValueError:
        refused(DecodeError, "invalid-base64", decode_base64, "x", text)
    else:
        assert decode_base64("x", text) == expected


class Level(IntEnum):
    LOW = 3


class Colour(str, Enum):
    RED = "red"


@each(
    ("value", "text"),
    [
        (Level.LOW, "3"),
        (Colour.RED, "red"),
        ("\U0001f600", "\U0001f600"),
        ("\ud83d\ude00", "\U0001f600"),
        (datetime(2020, 1, 2, tzinfo=timezone.utc), "2020-01-02T00:00:00Z"),
        (datetime(2020, 1, 2, 3, 4, 5, 600, timezone(timedelta(hours=-2))), "2020-01-02T03:04:05.000600-02:00"),
        (datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=1172))), "1899-12-31T23:40:28Z"),
    ],
)
def test_canonical_strings(value: Any, text: str) -> None:
    """Booleans are true and false, enum members are their values, an offset with seconds becomes UTC."""
    assert canonical(value) == text


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (1.5, "invalid-attribute-type"),
        (("a",), "invalid-attribute-type"),
        (Decimal(1), "invalid-attribute-type"),
        (object(), "invalid-attribute-type"),
        (datetime(2020, 1, 1), "invalid-attribute-type"),
        (datetime(2020, 1, 1).date(), "invalid-attribute-type"),
        (-(2**31) - 1, "integer-out-of-range"),
        pytest.param(10**5000, "integer-out-of-range", id="5001 digits"),
        ("a\r\nb", "invalid-character"),
        ("\ud800", "invalid-character"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1, seconds=1))), "invalid-timestamp"),
    ],
)
def test_other_types_are_rejected(value: Any, code: str) -> None:
    """Values of other types are not converted to strings; the error names the attribute."""
    assert refused(EncodeError, code, canonical, value).attribute == ""
    assert refused(EncodeError, code, canonical, value, "x").attribute == "x"
    assert refused(EncodeError, code, checked_attributes, plain_event(x=value).attributes).attribute == "x"


@given(objects)
def test_any_object_is_converted_or_rejected(value: Any) -> None:
    text, error = attempt(EncodeError, canonical, value, "x")
    assert isinstance(text, str) if error is None else error.attribute == "x"


@given(legal_text(), illegal_characters, legal_text())
def test_illegal_characters_are_rejected(before: str, illegal: str, after: str) -> None:
    """Control characters, noncharacters and unpaired surrogates at any position, from Python and from JSON."""
    text = f"{before} {illegal} {after}"
    refused(EncodeError, "invalid-character", canonical, text)
    refused(DecodeError, "invalid-character", decode_typed_attribute, "x", text, None)
    refused(DecodeError, "invalid-character", decode_typed_attribute, "id", text, None)


def test_first_and_last_characters_of_illegal_ranges() -> None:
    for one in "\0\x1f\x7f\x9f\ud800\udfff\ufdd0\ufdef\ufffe\uffff\U0001fffe\U0010ffff":
        refused(DecodeError, "invalid-character", decode_typed_attribute, "x", one, None)
    for one in " ~\xa0\ud7ff\ue000\ufdcf\ufdf0\ufffd\U00010000\U0001fffd\U00020000\U0010fffd":
        assert decode_typed_attribute("x", one, None) == one


# --- The attributes of an event -------------------------------------------------------------------------------------


def test_core_attributes() -> None:
    """The specification defines eight attributes; four are required."""
    assert set(CORE) == set(CORE_NAMES)
    assert set(REQUIRED) == {"specversion", "id", "source", "type"}


@each("name", REQUIRED)
@each("value", [..., None])
def test_required_attributes_must_be_present(name: str, value: Any) -> None:
    """A required attribute that is absent or None is missing."""
    error = refused(EncodeError, "missing-attribute", checked_attributes, plain_event(**{name: value}).attributes)
    assert error.attribute == name


def test_order_of_missing_attributes() -> None:
    """specversion is reported first, then id, source and type."""
    for index, name in enumerate(REQUIRED):
        attributes = dict.fromkeys(REQUIRED[:index], "1.0")
        assert refused(EncodeError, "missing-attribute", checked_attributes, attributes).attribute == name


@each("name", CORE_NAMES)
def test_core_attributes_must_not_be_empty(name: str) -> None:
    error = refused(EncodeError, "empty-attribute", checked_attributes, plain_event(**{name: ""}).attributes)
    assert error.attribute == name
    error = refused(DecodeError, "empty-attribute", decode_typed_attribute, name, "", None)
    assert error.attribute == name


@each("name", ["subject", "datacontenttype", "dataschema", "time", "region"])
def test_attributes_that_are_none_are_unset(name: str) -> None:
    """Typed event classes use None for unset attributes."""
    attributes = plain_event(**{name: None, "x": "y"}).attributes
    assert checked_attributes(attributes) == plain_event(x="y").attributes


@each("value", ["2020-01-02t03:04:05z", datetime(2020, 1, 2, 3, 4, 5, tzinfo=timezone.utc)])
def test_time_is_canonical_text(value: Any) -> None:
    text = checked_attributes(plain_event(time=value).attributes)["time"]
    assert (text, type(text)) == ("2020-01-02T03:04:05Z", str)


@each("name", CORE_NAMES)
def test_core_attributes_are_decoded(name: str) -> None:
    text = {"specversion": "1.0", "datacontenttype": "a/b", "dataschema": "a:b", "time": "2020-01-02T03:04:05Z"}
    value = decode_typed_attribute(name, text.get(name, "x"), None)
    assert (str(value), type(value)) == (text.get(name, "x"), Timestamp if name == "time" else str)


@each("name", CORE_NAMES)
@each("value", [1, True, 1.0, b"a", [], {}, object()])
def test_core_attributes_must_be_strings(name: str, value: Any) -> None:
    """From Python and from JSON."""
    attributes = plain_event(**{name: value}).attributes
    found = f"got {type(value).__name__} {value!r}"
    error = refused(EncodeError, "invalid-attribute-type", checked_attributes, attributes)
    wanted = "a timezone-aware datetime or an RFC 3339 string" if name == "time" else "a str"
    assert (error.attribute, error.message) == (name, f"attribute '{name}' must be {wanted}, {found}")
    error = refused(DecodeError, "invalid-attribute-type", decode_typed_attribute, name, value, None)
    assert (error.attribute, error.message) == (name, f"attribute '{name}' must be a string, {found}")


@each(
    ("name", "value", "code"),
    [
        ("specversion", "1.1", "unsupported-specversion"),
        ("specversion", "1.0 ", "unsupported-specversion"),
        ("dataschema", "rel/ative", "invalid-uri"),
        ("dataschema", " http://a", "invalid-uri"),
        ("datacontenttype", "json", "invalid-media-type"),
        ("datacontenttype", "a/b c", "invalid-media-type"),
        ("time", "yesterday", "invalid-timestamp"),
        ("time", datetime(2020, 1, 1), "invalid-attribute-type"),
        ("subject", "a\0", "invalid-character"),
        ("source", "a\nb", "invalid-character"),
    ],
)
def test_rules_of_single_attributes(name: str, value: Any, code: str) -> None:
    """Each rule has its own code, and the error names the attribute."""
    attributes = plain_event(**{name: value}).attributes
    assert refused(EncodeError, code, checked_attributes, attributes).attribute == name
    if isinstance(value, str):
        assert refused(DecodeError, code, decode_typed_attribute, name, value, None).attribute == name


@each("value", ["urn:", "http://ex/a b#é", "X-1+.:y", "mailto:a@b"])
def test_uris_need_only_a_scheme(value: str) -> None:
    """A fragment, spaces and non-ASCII letters are accepted, because other SDKs send them."""
    assert checked_attributes(plain_event(dataschema=value).attributes)["dataschema"] == value


def test_first_error_is_that_of_the_first_attribute() -> None:
    """One error is raised, for the first invalid attribute in the order of the event."""
    attributes = {"id": "1", "b": 1.5, "a": 2**40, "source": "", "Type": "t"}
    assert refused(EncodeError, "invalid-attribute-type", checked_attributes, attributes).attribute == "b"
    reverse = dict(reversed(attributes.items()))
    assert refused(EncodeError, "invalid-attribute-name", checked_attributes, reverse).attribute == "Type"


def test_naive_timestamp_is_rejected() -> None:
    """A Timestamp constructed from numbers without a time zone is treated like a naive datetime."""
    attributes = plain_event(time=Timestamp(2020, 1, 1)).attributes
    assert refused(EncodeError, "invalid-attribute-type", checked_attributes, attributes).attribute == "time"


def test_attributes_are_not_modified() -> None:
    """Read-only mappings are accepted, and the result is a new dict."""
    attributes = plain_event(flag=True, time="2020-01-01t00:00:00z").attributes
    before = dict(attributes)
    assert checked_attributes(MappingProxyType(attributes)) is not attributes
    assert attributes == before


# --- Decoding extensions --------------------------------------------------------------------------------------------


@given(any_text, st.sampled_from(TYPES))
def test_any_text_is_converted_or_rejected(text: str, wanted: type) -> None:
    """The result has the declared type, or the error names the attribute."""
    value, error = attempt(DecodeError, decode_extension, "x", text, wanted)
    assert isinstance(value, wanted) if error is None else error.attribute == "x"


@pytest.mark.parametrize(
    ("text", "wanted", "code"),
    [
        ("true ", bool, "invalid-boolean"),
        (" 1", int, "invalid-integer"),
        ("1\n", int, "invalid-integer"),
        ("٤", int, "invalid-integer"),
        ("21474836470", int, "integer-out-of-range"),
        ("-21474836480", int, "integer-out-of-range"),
        pytest.param("9" * 100_000, int, "integer-out-of-range", id="many digits"),
        pytest.param("-" + "9" * 100_000, int, "integer-out-of-range", id="many digits below zero"),
        ("eA", bytes, "invalid-base64"),
        ("eA==\n", bytes, "invalid-base64"),
        ("-_==", bytes, "invalid-base64"),
        ("now", datetime, "invalid-timestamp"),
    ],
)
def test_text_of_another_type_is_rejected(text: str, wanted: type, code: str) -> None:
    """Only the strict forms are accepted."""
    assert refused(DecodeError, code, decode_extension, "x", text, wanted).attribute == "x"


@each("types", ["x", 5, [("x", int)], int])
def test_declared_types_must_be_a_mapping(types: Any) -> None:
    check_extension_types(None)
    check_extension_types(MappingProxyType({"x": int}))
    with pytest.raises(TypeError) as info:
        check_extension_types(types)
    assert str(info.value) == f"extension_types must be a mapping of names to types, got {types!r}"


@each("wanted", [float, list, "int", 5])
def test_unsupported_declared_types_are_rejected(wanted: Any) -> None:
    with pytest.raises(TypeError, match=r"^extension_types\['x'\] must be bool, int, str, bytes or datetime, got "):
        decode_extension("x", "1", wanted)


@given(st.one_of(st.booleans(), int32, legal_text()))
def test_json_values_keep_their_type(value: Any) -> None:
    """Without a declared type, and with the type that the value has."""
    for wanted in (None, type(value)):
        decoded = decode_typed_attribute("x", value, wanted)
        assert (type(decoded), decoded) == (type(value), value)


def test_json_values_are_converted_to_the_declared_type() -> None:
    """A value declared as str becomes its canonical string, as in binary mode; others must match."""
    assert decode_typed_attribute("x", True, str) == "true"
    assert decode_typed_attribute("x", 5, str) == "5"
    assert decode_typed_attribute("x", "5", int) == 5
    refused(DecodeError, "invalid-integer", decode_typed_attribute, "x", True, int)
    refused(DecodeError, "invalid-boolean", decode_typed_attribute, "x", 1, bool)


@each("value", [1.5, 1.0, 1e300, [], {}, [1], {"a": 1}])
def test_other_json_values_are_rejected(value: Any) -> None:
    """Numbers with a fraction, arrays and objects."""
    error = refused(DecodeError, "invalid-attribute-type", decode_typed_attribute, "x", value, None)
    assert error.attribute == "x"
    assert f"attribute 'x' must be a string, boolean or integer, got {type(value).__name__} {value!r}" == error.message


def test_json_integers_have_32_bits() -> None:
    for value in (-(2**31), 2**31 - 1):
        assert decode_typed_attribute("x", value, None) == value
    for value in (-(2**31) - 1, 2**31):
        error = refused(DecodeError, "integer-out-of-range", decode_typed_attribute, "x", value, None)
        assert (error.attribute, error.message) == ("x", "attribute 'x' must be from -2147483648 to 2147483647")


@each(("wanted", "expected"), [(None, b"\xff\x00"), (bytes, b"\xff\x00"), (str, "/wA="), (int, None), (bool, None)])
def test_bytes_are_base64_if_another_type_is_declared(wanted: type | None, expected: object) -> None:
    if expected is None:
        with pytest.raises(DecodeError) as info:
            decode_typed_attribute("x", b"\xff\x00", wanted)
        assert info.value.attribute == "x"
    else:
        assert decode_typed_attribute("x", b"\xff\x00", wanted) == expected
