"""Envelopes: text in data is encoded in the charset of its media type."""

import pytest

from ce_nats import DecodeError, EncodeError, ErrorCode, Timestamp
from ce_nats.codec.envelope import Envelope, from_envelope, to_envelope
from tests.support.strategies import plain_event
from tests.support.tables import each

REQUIRED = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}


def decoded(data, content_type=None, **options):
    kind = {} if content_type is None else {"datacontenttype": content_type}
    return from_envelope(Envelope({**REQUIRED, **kind}, data), **options).get_data()


def test_unset_attributes_are_omitted():
    assert to_envelope(plain_event(subject=None, x="y")).attributes == plain_event(x="y").attributes


@each("data", [b"x", bytearray(b"x"), memoryview(b"x")])
@each("content_type", ["image/png", "application/json", "text/plain"])
def test_binary_data_is_bytes(data, content_type):
    found = to_envelope(plain_event(data, datacontenttype=content_type))
    assert (found.data, type(found.data)) == (b"x", bytes)


class Word(str):
    """A subclass of str."""


@each(
    ("data", "content_type", "expected"),
    [
        ("é", "text/plain; charset=latin1", "é"),
        (Word("é"), "image/png", "é"),
        ("é", "application/json", '"é"'.encode()),
        ([1], "application/json", b"[1]"),
        ([1], None, b"[1]"),
        (None, "application/json", None),
    ],
)
def test_text_is_a_str_and_json_is_bytes(data, content_type, expected):
    found = to_envelope(plain_event(data, datacontenttype=content_type)).data
    assert (found, type(found)) == (expected, type(expected))


def test_text_that_is_not_unicode_is_not_encoded():
    with pytest.raises(EncodeError) as info:
        to_envelope(plain_event("\ud800", datacontenttype="text/plain; charset=latin1"))
    assert (info.value.code, info.value.attribute) == (ErrorCode.INVALID_DATA, "data")


def test_text_is_encoded_in_the_charset_of_a_text_type():
    assert decoded("é", "text/plain; charset=latin1", parse_data=False) == b"\xe9"
    assert decoded("é", "text/plain", parse_data=False) == b"\xc3\xa9"
    assert decoded("é", "text/plain; charset=latin1") == "é"
    assert decoded("€", "text/plain; charset=latin1", parse_data=False) == "€"
    assert decoded("a", "text/plain; charset=nope", parse_data=False) == "a"
    assert decoded("é", "image/png; charset=latin1") == b"\xc3\xa9"
    assert decoded("é") == b"\xc3\xa9"


def test_empty_data_is_data_if_it_is_text():
    for content_type, data, expected in (
        ("text/plain", "", ""),
        ("text/plain", b"", None),
        ("application/json", "", None),
        ("application/json", b"", None),
        ("image/png", b"", None),
        (None, "", None),
    ):
        assert decoded(data, content_type) == expected
        assert decoded(data, content_type, parse_data=False) == (b"" if expected == "" else None)


@each(("data", "has_data"), [(None, False), (b"", False), (b"null", True)])
def test_null_is_data(data, has_data):
    event = from_envelope(Envelope({**REQUIRED, "datacontenttype": "application/json"}, data))
    assert (event.get_data(), event.has_data) == (None, has_data)


@each(
    ("data", "content_type", "code"),
    [
        ("\ud800", None, ErrorCode.INVALID_DATA),
        ("\ud800", "application/json", ErrorCode.INVALID_DATA),
        ("{", "application/json", ErrorCode.INVALID_JSON),
        (5, None, ErrorCode.INVALID_DATA),
    ],
)
def test_other_data_is_refused(data, content_type, code):
    with pytest.raises(DecodeError) as info:
        decoded(data, content_type)
    assert (info.value.code, info.value.attribute) == (code, "data")


def test_timestamps_have_the_declared_type():
    time = Timestamp.parse("2024-01-01T00:00:00Z")
    for wanted, expected in ((None, time), (Timestamp, time), (str, "2024-01-01T00:00:00Z")):
        types = None if wanted is None else {"when": wanted}
        event = from_envelope(Envelope({**REQUIRED, "when": time}, None), extension_types=types)
        assert event.get_attributes()["when"] == expected
    with pytest.raises(DecodeError) as info:
        from_envelope(Envelope({**REQUIRED, "when": time}, None), extension_types={"when": int})
    assert info.value.attribute == "when"


def test_time_is_a_timestamp_whatever_is_declared():
    time = Timestamp.parse("2024-01-01T00:00:00Z")
    for types in (None, {"time": str}, {"time": int}):
        event = from_envelope(Envelope({**REQUIRED, "time": time}, None), extension_types=types)
        assert event.get_time() is time
