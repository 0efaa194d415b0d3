import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ce_nats import DecodeError, Headers, NatsMessage
from ce_nats.capture._message_json import as_fields, as_line, as_message, read_object
from ce_nats.codec._nesting import MAX_LEVELS

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


def test_empty_members_may_be_omitted():
    assert as_message({"headers": [], "unknown": 1}) == NatsMessage()


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000])
def test_other_texts_than_objects_are_rejected(text):
    with pytest.raises(DecodeError):
        read_object(text)


@pytest.mark.parametrize("depth", [2, 500, 1000, 5000])
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
