"""
Headers as an ordered multimap, the forms that are accepted, and legal headers and subjects.

tests/test_fixtures.py runs the vectors of spec-fixtures/headers.json.
"""

import copy
import pickle
import re
from collections import ChainMap, OrderedDict, UserDict
from collections.abc import Mapping
from email.header import Header
from email.parser import BytesParser
from types import MappingProxyType, SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import MultiDict

from ce_nats import (
    CeNatsError,
    DecodeError,
    EncodeError,
    ErrorCode,
    Headers,
    NatsMessage,
    Timestamp,
    from_nats_message,
    to_nats_message,
)
from ce_nats.message import MSG_ID, StoredMessage, UnreadableHeaders, check_header, header_columns, header_pairs
from ce_nats.subjects import check_subject
from ce_nats.wire.nats import decode_header_block, encode_header_block
from tests.support.strategies import plain_event
from tests.support.tables import each

PAIRS = [("Key", "1"), ("other", "x"), ("key", "2"), ("Key", "3"), ("KEY", "3")]


EVENT_HEADERS = to_nats_message(plain_event()).headers.items()


@pytest.fixture
def headers():
    return Headers(PAIRS)


def refused(fault, code, call, *args):
    with pytest.raises(fault) as caught:
        call(*args)
    assert caught.value.code is code
    return caught.value


def mail(*lines):
    """Return headers as nats-py's get_msg() parses them."""
    return dict(BytesParser().parsebytes(b"".join(line + b"\r\n" for line in lines) + b"\r\n").items())


# --- GET, VALUES ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ignore_case", "values"),
    [
        ("Key", False, ["1", "3"]),
        ("key", False, ["2"]),
        ("kEY", False, []),
        ("missing", False, []),
        ("", False, []),
        ("key", True, ["1", "2", "3", "3"]),
        ("kEY", True, ["1", "2", "3", "3"]),
        ("OTHER", True, ["x"]),
        ("missing", True, []),
    ],
)
def test_get_returns_the_first_value(headers, name, ignore_case, values):
    """Values are in wire order, with equal ones; a missing name has none, and get() returns the empty string."""
    assert headers.values(name, ignore_case=ignore_case) == values
    assert headers.get(name, ignore_case=ignore_case) == (values[0] if values else "")


def test_values_returns_a_new_list(headers):
    headers.values("Key").append("4")
    headers.items().clear()
    headers.keys().clear()
    assert headers.values("Key") == ["1", "3"]
    assert headers.items() == PAIRS


@each(("name", "other"), [("K", "\u212a"), ("ä", "Ä"), ("ss", "ß"), ("i", "İ"), ("é", "É")])
def test_only_ascii_letters_are_case_insensitive(name, other):
    """The Kelvin sign is not a K, although str.lower() converts it to one."""
    headers = Headers([(other, "1")])
    assert headers.values(name, ignore_case=True) == []
    headers.append(name, "2", ignore_case=True)
    assert headers.items() == [(other, "1"), (name, "2")]
    headers.delete(name, ignore_case=True)
    assert headers.items() == [(other, "1")]


def test_case_is_ignored_in_names_with_other_letters():
    assert Headers([("äB", "1")]).get("äb", ignore_case=True) == "1"


# --- APPEND, SET, DELETE --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ignore_case", "known_as"),
    [
        ("key", False, "key"),
        ("kEY", False, "kEY"),
        ("new", False, "new"),
        ("kEY", True, "Key"),
        ("KEY", True, "Key"),
        ("Other", True, "other"),
        ("New", True, "New"),
    ],
)
def test_append(headers, name, ignore_case, known_as):
    """At the end, with the given name; ignoring case, under the first name that matches."""
    headers.append(name, "9", ignore_case=ignore_case)
    assert headers.items() == [*PAIRS, (known_as, "9")]


def test_changes_are_case_sensitive_by_default(headers):
    headers.append("kEY", "9")
    headers.delete("KEY")
    headers.set("keY", "8")
    assert headers.items() == [("Key", "1"), ("other", "x"), ("key", "2"), ("Key", "3"), ("kEY", "9"), ("keY", "8")]


def test_append_keeps_equal_pairs(headers):
    headers.append("Key", "1")
    assert headers.values("Key") == ["1", "3", "1"]


@pytest.mark.parametrize(
    ("name", "ignore_case", "left"),
    [
        ("Key", False, [("other", "x"), ("key", "2"), ("KEY", "3")]),
        ("kEY", False, PAIRS),
        ("missing", True, PAIRS),
        ("kEY", True, [("other", "x")]),
    ],
)
def test_delete_and_set(headers, name, ignore_case, left):
    """SET is DELETE and APPEND: the pair is the last, with the given name."""
    changed = headers.copy()
    changed.delete(name, ignore_case=ignore_case)
    assert changed.items() == left
    headers.set(name, "9", ignore_case=ignore_case)
    assert headers.items() == [*left, (name, "9")]


@pytest.mark.parametrize("change", ["append", "set"])
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("Key", 5, ErrorCode.INVALID_HEADER_VALUE),
        ("Key", None, ErrorCode.INVALID_HEADER_VALUE),
        ("Key", b"x", ErrorCode.INVALID_HEADER_VALUE),
        (5, "x", ErrorCode.INVALID_HEADER_NAME),
        (b"Key", "x", ErrorCode.INVALID_HEADER_NAME),
    ],
)
def test_invalid_change_has_no_effect(headers, change, name, value, code):
    refused(DecodeError, code, getattr(headers, change), name, value)
    assert headers.items() == PAIRS


# --- Headers as a container -----------------------------------------------------------------------------------------


def test_length_counts_pairs_and_iteration_names(headers):
    assert len(headers) == 5
    assert list(headers) == headers.keys() == ["Key", "other", "key", "KEY"]
    assert dict(headers) == {"Key": "1", "other": "x", "key": "2", "KEY": "3"}


# --- Headers as a mapping --------------------------------------------------------------------------------------------

FIRST = {"Key": "1", "other": "x", "key": "2", "KEY": "3"}


def updated(**known):
    known.update(Headers(PAIRS))
    return known


def in_place(known):
    known |= Headers(PAIRS)
    return known


@pytest.mark.parametrize(
    "merge",
    [
        lambda headers: dict(headers),
        lambda headers: {**headers},
        lambda headers: {} | headers,
        lambda headers: in_place({}),
        lambda headers: updated(),
        lambda headers: UserDict(headers).data,
        lambda headers: dict(ChainMap({}, headers)),
        lambda headers: {name: headers[name] for name in headers},
        lambda headers: dict(zip(headers.keys(), map(headers.get, headers))),
    ],
)
def test_conversion_to_a_dict_keeps_the_first_value(headers, merge):
    """In all ways, as in GET."""
    assert isinstance(headers, Mapping)
    found = merge(headers)
    assert (type(found), found) == (dict, FIRST)
    assert list(found) == list(headers)


def test_dict_merged_with_headers(headers):
    """Values on the right side replace others; the result is a new dict."""
    known = {"Key": "0", "mine": "0"}
    for merged in (
        known | headers,
        {**known, **headers},
        OrderedDict(known) | headers,
        MappingProxyType(known) | headers,
    ):
        assert merged == known | FIRST
    assert known == {"Key": "0", "mine": "0"}


def test_headers_merged_with_a_dict(headers):
    """Repeats of other names are kept."""
    for more in ({"Key": "9", "new": ["a", "b"]}, Headers([("Key", "9"), ("new", "a"), ("new", "b")])):
        merged = headers | more
        assert type(merged) is Headers
        assert merged.items() == [
            *[("other", "x"), ("key", "2"), ("KEY", "3")],
            *[("Key", "9"), ("new", "a"), ("new", "b")],
        ]
    assert headers.items() == PAIRS
    refused(DecodeError, ErrorCode.INVALID_HEADER_VALUE, lambda: headers | {"a": 5})
    before = headers
    headers |= {"new": "a"}
    assert headers.items() == [*PAIRS, ("new", "a")]
    assert before.items() == PAIRS


@pytest.mark.parametrize("other", [None, 5, "text", [("a", "1")]])
def test_merge_with_another_type_is_a_type_error(headers, other):
    for merge in (lambda: headers | other, lambda: other | headers):
        with pytest.raises(TypeError):
            merge()


def test_interface_of_a_mapping(headers):
    assert headers.get("missing", None) is None
    assert headers.get("missing", "default") == "default"
    assert headers.get("KeY", None, ignore_case=True) == "1"
    assert headers.get("kEY", default="") == ""
    assert headers.values() == ["1", "x", "2", "3", "3"]
    assert list(zip((name for name, _ in headers.items()), headers.values(), strict=True)) == headers.items()
    match headers:
        case {"other": value, "Key": "1"}:
            assert value == "x"
        case _:
            pytest.fail("no mapping")


@pytest.mark.parametrize(
    "take",
    [
        Headers,
        lambda headers: Headers._of(header_pairs(headers)),
        lambda headers: NatsMessage(headers=headers).headers,
        lambda headers: Headers(list(zip(*header_columns(headers), strict=True))),
        lambda headers: Headers() | headers,
        lambda headers: decode_header_block(encode_header_block(headers)).headers,
        lambda headers: Headers(to_nats_message(plain_event(), headers=headers).headers.items()[-len(PAIRS) :]),
    ],
)
def test_functions_that_accept_headers_keep_repeats(headers, take):
    """Although Headers are a mapping."""
    assert take(headers).items() == PAIRS


def test_subscript_and_membership(headers):
    assert headers["Key"] == "1"
    assert "Key" in headers
    assert "kEY" not in headers
    assert 5 not in headers
    with pytest.raises(KeyError):
        headers["kEY"]


def test_empty_headers_are_false():
    assert not Headers()
    assert Headers({"a": ""})


def test_equality_compares_pairs_in_order():
    assert Headers([("a", "1"), ("b", "2")]) == Headers({"a": "1", "b": "2"})
    assert Headers([("a", "1"), ("b", "2")]) != Headers([("b", "2"), ("a", "1")])
    assert Headers({"a": "1"}) != Headers({"A": "1"})
    assert Headers({"a": "1"}) != {"a": "1"}
    with pytest.raises(TypeError):
        hash(Headers())


def test_a_copy_is_independent(headers):
    for other in (headers.copy(), Headers(headers), copy.copy(headers), copy.deepcopy(headers)):
        assert other == headers
        other.append("new", "1")
        assert headers.items() == PAIRS


def test_headers_can_be_pickled(headers):
    assert pickle.loads(pickle.dumps(headers)) == headers


def test_repr_shows_pairs():
    assert repr(Headers({"a": "1"})) == "Headers([('a', '1')])"


# --- Forms ----------------------------------------------------------------------------------------------------------

TWO = [("a", "1"), ("b", "2")]
SHAPES = [
    pytest.param(lambda: {"a": "1", "b": "2"}, id="dict"),
    pytest.param(lambda: OrderedDict(TWO), id="OrderedDict"),
    pytest.param(lambda: UserDict(TWO), id="UserDict"),
    pytest.param(lambda: MappingProxyType(dict(TWO)), id="proxy"),
    pytest.param(lambda: {"a": ["1"], "b": ["2"]}, id="lists"),
    pytest.param(lambda: {"a": ("1",), "b": "2"}, id="mixed"),
    pytest.param(lambda: {"x": [], "a": ["1"], "y": (), "b": ["2"]}, id="empty-lists"),
    pytest.param(lambda: list(TWO), id="pairs"),
    pytest.param(lambda: tuple(TWO), id="tuple"),
    pytest.param(lambda: [["a", "1"], ["b", "2"]], id="lists-as-pairs"),
    pytest.param(lambda: [("a", ["1"]), ("b", ("2",))], id="pairs-of-lists"),
    pytest.param(lambda: iter(TWO), id="iterator"),
    pytest.param(lambda: dict(TWO).items(), id="items"),
    pytest.param(lambda: Headers(TWO), id="Headers"),
    pytest.param(lambda: OtherMultimap({"a": ["1"], "b": ["2"]}), id="items-of-lists"),
    pytest.param(lambda: MultiDict(TWO), id="multi-items"),
]


class OtherMultimap:
    """Headers that are not a mapping, as those of nats-core 0.2.0 (``tests/interop/test_nats_core.py``)."""

    def __init__(self, lists):
        self.items = lists.items


@each("shape", SHAPES)
def test_every_form_is_accepted(shape):
    assert Headers(shape()).items() == TWO
    assert list(header_pairs(shape())) == TWO
    names, values = header_columns(shape())
    assert list(zip(names, values, strict=True)) == TWO
    assert NatsMessage(headers=shape()).headers == Headers(TWO)


@each("kind", [MultiDict, httpx.Headers])
def test_multi_items_are_preferred_to_items(kind):
    """``items()`` of these mappings returns one value of each name, and so do Headers of nats-core after 0.2.0."""
    pairs = [("a", "1"), ("b", "2"), ("a", "3")]
    multimap = kind(pairs)
    assert len(multimap.items()) == 2
    assert sorted(Headers(multimap).items()) == sorted(header_pairs(multimap)) == sorted(pairs)
    with pytest.raises(DecodeError) as caught:
        from_nats_message(SimpleNamespace(data=b"", headers=kind([*EVENT_HEADERS, ("ce-id", "2")])))
    assert caught.value.code is ErrorCode.DUPLICATE_ATTRIBUTE


def test_asdict_keeps_repeats(headers):
    assert headers.asdict() == {"Key": ["1", "3"], "other": ["x"], "key": ["2"], "KEY": ["3"]}
    assert list(headers.asdict()) == headers.keys()
    assert sorted(Headers(headers.asdict()).items()) == sorted(headers.items())
    headers.asdict()["Key"].append("4")
    assert headers.values("Key") == ["1", "3"]


@each("nothing", [None, {}, [], (), "", Headers(), {"a": []}])
def test_no_headers(nothing):
    assert Headers(nothing).items() == []
    assert list(header_pairs(nothing)) == []
    assert [list(column) for column in header_columns(nothing)] == [[], []]


def test_lists_keep_their_order():
    assert Headers({"a": ["2", "1", "2"], "A": "0"}).items() == [("a", "2"), ("a", "1"), ("a", "2"), ("A", "0")]


class Text(str):
    """A subclass of str, like enums of header names."""

    __slots__ = ()


def test_subclasses_of_str_are_accepted():
    assert list(header_columns({Text("a"): Text("1")})[1]) == ["1"]
    assert Headers({Text("a"): Text("1")}) == Headers({"a": "1"})


def test_source_is_not_modified():
    source = {"a": ["1"]}
    headers = Headers(source)
    headers.append("a", "2")
    assert source == {"a": ["1"]}


@each(
    ("source", "code"),
    [
        (5, ErrorCode.INVALID_HEADER_BLOCK),
        ("text", ErrorCode.INVALID_HEADER_BLOCK),
        (b"bytes", ErrorCode.INVALID_HEADER_BLOCK),
        (object(), ErrorCode.INVALID_HEADER_BLOCK),
        (["a"], ErrorCode.INVALID_HEADER_BLOCK),
        ([("a",)], ErrorCode.INVALID_HEADER_BLOCK),
        ([("a", "b", "c")], ErrorCode.INVALID_HEADER_BLOCK),
        ([None], ErrorCode.INVALID_HEADER_BLOCK),
        ({5: "x"}, ErrorCode.INVALID_HEADER_NAME),
        ({None: "x"}, ErrorCode.INVALID_HEADER_NAME),
        ({b"a": "x"}, ErrorCode.INVALID_HEADER_NAME),
        ({"a": 5}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": None}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": b"x"}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": ["x", None]}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": [["x"]]}, ErrorCode.INVALID_HEADER_VALUE),
        ({"a": {"x": "y"}}, ErrorCode.INVALID_HEADER_VALUE),
    ],
)
def test_invalid_headers_are_rejected(source, code):
    refused(DecodeError, code, Headers, source)
    refused(DecodeError, code, header_pairs, source)
    refused(DecodeError, code, header_columns, source)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3) | st.binary(max_size=3), st.lists, max_leaves=6))
def test_any_object_is_accepted_or_rejected(source):
    """Accepted headers are strings."""
    for shape in (source, {"a": source}, [("a", source)], [(source, "b")]):
        try:
            headers = Headers(shape)
        except CeNatsError:
            continue
        assert all(isinstance(text, str) for pair in headers.items() for text in pair)


# --- Mail headers ---------------------------------------------------------------------------------------------------


def test_mail_headers_keep_their_bytes():
    """A non-ASCII value is an email.header.Header, whose str() lacks the bytes."""
    parsed = mail("ce-subject: Grüße € 😀".encode(), b"ce-id: 1", b"ce-long: " + "é".encode() * 500)
    assert "Grüße" not in str(parsed["ce-subject"])
    assert Headers(parsed).items() == [("ce-subject", "Grüße € 😀"), ("ce-id", "1"), ("ce-long", "é" * 500)]
    assert list(header_columns(parsed)[1]) == ["Grüße € 😀", "1", "é" * 500]


@each("value", [b"\xff", b"\xc0\xa0", b"\xed\xa0\x80", b"\xe2\x82"])
def test_mail_headers_must_be_utf8(value):
    error = refused(DecodeError, ErrorCode.INVALID_UTF8, Headers, mail(b"ce-id: " + value))
    assert error.header == "ce-id"


def test_mail_headers_in_a_list():
    (value,) = mail("a: ü".encode()).values()
    assert Headers({"a": ["x", value]}).items() == [("a", "x"), ("a", "ü")]


def test_chunks_of_a_mail_header_are_joined():
    header = Header("Grü", "utf-8")
    header.append("ße", "utf-8")
    assert Headers({"a": header}).items() == [("a", "Grüße")]


# --- NatsMessage ----------------------------------------------------------------------------------------------------


def test_message_defaults():
    message = NatsMessage()
    assert (message.subject, message.data, message.headers, message.reply) == ("", b"", Headers(), "")
    assert NatsMessage().headers is not message.headers


def test_message_keeps_headers_objects():
    headers = Headers({"a": "1"})
    assert NatsMessage(headers=headers).headers is headers


def test_message_rejects_invalid_headers():
    refused(DecodeError, ErrorCode.INVALID_HEADER_BLOCK, lambda: NatsMessage(headers=5))


def test_messages_compare_by_value():
    assert NatsMessage("a", b"x", {"k": "v"}, "r") == NatsMessage("a", b"x", [("k", "v")], "r")
    assert NatsMessage("a", b"x", {"k": "v"}, "r") != NatsMessage("a", b"x", {"K": "v"}, "r")


# --- Names, values, subjects ----------------------------------------------------------------------------------------

PRINTABLE = "".join(map(chr, range(33, 127)))


def test_header_names_are_33_to_126_without_the_colon():
    check_header(PRINTABLE.replace(":", ""), "")
    for code in [*range(33), 58, *range(127, 256), 0x20AC, 0xD800, 0x1F600]:
        for name in (chr(code), f"a{chr(code)}", f"{chr(code)}a"):
            assert refused(EncodeError, ErrorCode.INVALID_HEADER_NAME, check_header, name, "x").header == name
    refused(EncodeError, ErrorCode.INVALID_HEADER_NAME, check_header, "", "x")


@each("value", ["", "x", "x y", "\x01\x7f", "\x0b\x0c\x85\u2028", "a: b", "ü€😀"])
def test_header_values(value):
    check_header("a", value)


@each("value", ["\r", "\n", "\r\n", "x\r\ny: z", "x\n", "\nx", "\0", "x\0y", "\ud800", "\udc00x", " x", "x\t"])
def test_invalid_header_values_are_rejected(value):
    error = refused(EncodeError, ErrorCode.INVALID_HEADER_VALUE, check_header, "a", value)
    assert error.header == "a"
    assert "\n" not in str(error)
    refused(DecodeError, ErrorCode.INVALID_HEADER_VALUE, check_header, "a", value, DecodeError)


@each("size", [1_000_000])
def test_large_subjects_take_linear_time(size):
    check_subject("a." * size + "a")
    refused(EncodeError, ErrorCode.INVALID_SUBJECT, check_subject, "a" * size + " ")
    refused(EncodeError, ErrorCode.INVALID_SUBJECT, check_subject, "a." * size)
    refused(EncodeError, ErrorCode.INVALID_SUBJECT, check_subject, "a." * size + "*")


@each("start", ["a", "é"])
def test_only_letters_are_equal_without_regard_to_case(start):
    """The characters next to the letters in ASCII differ by the same number, 32."""
    for one, other in ("[{", "@`", "{[", "`@"):
        assert Headers([(f"{start}{one}", "1")]).values(f"{start}{other}", ignore_case=True) == []
    for one, other in ("Aa", "Zz", "aA", "zZ"):
        assert Headers([(f"{start}{one}", "1")]).values(f"{start}{other}", ignore_case=True) == ["1"]


def test_unreadable_headers_are_not_missing_headers():
    """A message without headers may be a structured event, so programs test whether there are any."""
    error = DecodeError(ErrorCode.INVALID_HEADER_BLOCK, "the block must end")
    for readable in (None, {}, {"a": "1"}):
        headers = UnreadableHeaders(error, readable)
        assert bool(headers)
        assert headers == (readable or {})
        assert refused(DecodeError, error.code, from_nats_message, SimpleNamespace(headers=headers, data=b"")) is error


def test_messages_have_no_reply_subject_by_default():
    assert NatsMessage("a").reply == ""


def test_message_id_is_the_header_by_which_the_server_recognizes_duplicates():
    assert MSG_ID == "Nats-Msg-Id"


def test_messages_are_tables_in_notebooks():
    """tests/test_notebook.py tests all else of the tables."""
    assert cells(NatsMessage("a", b"x", {"Name": "y"})) == ["NATS message", "subject", "a", "Name", "y", "data", "x"]
    assert cells(NatsMessage("a", reply="b")) == ["NATS message", "subject", "a", "data", "", "reply", "b"]
    stored = StoredMessage("a", "", [("Name", "y")], b"x", "S", 5, Timestamp("2026-01-02T00:00:00Z"))
    assert cells(stored) == [
        "stored NATS message",
        *("stream", "S", "sequence", "5", "timestamp", "2026-01-02T00:00:00Z"),
        *("subject", "a", "Name", "y", "data", "x"),
    ]


def cells(value):
    """Return the caption and the text of all cells."""
    return re.findall(r"(?:<caption>|<th [^>]*>|<pre [^>]*>)([^<]*)", value._repr_html_())
