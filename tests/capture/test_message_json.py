import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, Headers, NatsMessage
from ce_nats.capture._message_json import as_fields, as_line, as_message, read_object
from ce_nats.codec._nesting import MAX_LEVELS
from tests.support.strategies import refused
from tests.support.tables import each

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
raw_texts = st.binary(max_size=5).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
headers = st.lists(st.tuples(texts, texts | raw_texts))


@given(headers, st.binary(), texts, texts)
def test_round_trip(pairs, data, subject, reply):
    line = as_line(as_fields(pairs, data, subject, reply))
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert as_message(read_object(line)) == NatsMessage(subject, data, Headers(pairs), reply)


def test_text_is_readable():
    fields = json.loads(as_line(as_fields([("a", "€")], "€\n".encode(), "orders.paid")))
    assert fields == {"subject": "orders.paid", "headers": [["a", "€"]], "data": "€\n"}


def test_empty_members_are_omitted():
    assert as_fields([], b"") == {"headers": [], "data": ""}
    assert as_line(as_fields([("a", "b")], b"\xff", "s", "r")) == (
        b'{"subject":"s","reply":"r","headers":[["a","b"]],"data_base64":"/w=="}\n'
    )


def test_byte_order_mark_is_ignored():
    assert read_object(b"\xef\xbb\xbf{}") == {}


def test_empty_members_may_be_omitted():
    assert as_message({"headers": [], "unknown": 1}) == NatsMessage()


@each(
    ("text", "code", "message"),
    [
        (b"", "invalid-json", "b'' is not JSON: "),
        (b"{", "invalid-json", "b'{' is not JSON: "),
        (b"\xff", "invalid-json", r"b'\xff' is not JSON: "),
        (b"[]", "not-an-object", "a message must be a JSON object, got []"),
        (b"null", "not-an-object", "a message must be a JSON object, got None"),
        (b"[" * 100_000, "invalid-json", "b'[[["),
    ],
)
def test_other_texts_than_objects_are_rejected(text, code, message):
    assert refused(DecodeError, code, read_object, text).message.startswith(message)


MEMBERS = "in a message subject and reply must be strings"
HEADERS = "in a message headers must be an array of [name, value]"
DATA = "in a message data must be a string, and data_base64 a string in base64 ("


@each(
    ("members", "code", "message"),
    [
        ({"subject": None}, "invalid-message", MEMBERS),
        ({"reply": 5}, "invalid-message", MEMBERS),
        ({"headers": None}, "invalid-message", HEADERS),
        ({"headers": {"a": "b"}}, "invalid-message", HEADERS),
        ({"headers": ["ab"]}, "invalid-message", HEADERS),
        ({"headers": [["a"]]}, "invalid-message", HEADERS),
        ({"headers": [["a", "b", "c"]]}, "invalid-message", HEADERS),
        ({"headers": [["a", "b"], 5]}, "invalid-message", HEADERS),
        ({"headers": [[1, "b"]]}, "invalid-header-name", "a header name must be a str, got 1"),
        ({"data": "", "data_base64": ""}, "data-conflict", "a message must have data or data_base64, got both"),
        ({"data": 5}, "invalid-message", DATA),
        ({"data": "\ud800"}, "invalid-message", DATA),
        ({"data_base64": 5}, "invalid-message", DATA),
        ({"data_base64": "YQ"}, "invalid-message", DATA),
        ({"data_base64": "Y Q=="}, "invalid-message", DATA),
    ],
)
def test_members_of_other_types_are_rejected(members, code, message):
    assert refused(DecodeError, code, as_message, {"headers": [], **members}).message.startswith(message)


@each(("call", "given"), [(read_object, b"{"), (as_message, {"headers": [], "data": 5})])
def test_errors_have_their_cause(call, given):
    with pytest.raises(DecodeError) as caught:
        call(given)
    assert isinstance(caught.value.__cause__, (TypeError, ValueError))


@each("depth", [2, 500, 1000, 5000])
def test_maximum_nesting(depth):
    """The maximum nesting of ignored members does not depend on the interpreter."""
    text = b'{"headers":[],"unknown":' + b"[" * depth + b"]" * depth + b"}"
    if depth < MAX_LEVELS:
        assert as_message(read_object(text)) == NatsMessage()
    else:
        with pytest.raises(DecodeError, match="nested more than 128 levels") as caught:
            read_object(text)
        assert caught.value.code == "invalid-json"


@given(
    st.dictionaries(
        st.sampled_from(["subject", "reply", "headers", "data", "data_base64"]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_no_other_errors_are_raised(fields):
    try:
        as_message(fields)
    except DecodeError as error:
        assert error.code  # noqa: PT017
