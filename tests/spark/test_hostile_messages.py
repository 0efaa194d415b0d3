"""Hostile messages have the same attributes, data and error codes in Spark and in Python."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from encodings import aliases
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ce_nats import DecodeError, from_nats_message
from ce_nats.codec._nesting import MAX_LEVELS
from ce_nats.codec.media_type import parse
from ce_nats.spark import explode_cloudevents
from ce_nats.wire.nats import read_header_block
from tests.support.damage import Message, in_python
from tests.support.spark_rows import ENGINES, agree, compare

SEED = 20261122
COUNT_OF_BLOCKS = 5_000
BASE = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")]
MARKED = [("Content-Type", "application/cloudevents+json")]

NUMBERS = [
    *("-0", "0e999", "1e400", "9" * 400, "9" * 4300, "9" * 4301, "-" + "9" * 4299, "-" + "9" * 4300, "-0.0"),
    *("9" * 310 + ".5", "9" * 309 + ".0", "1.7976931348623158e308", "1.797693134862315807e308", "1e5", "1E+05"),
    *("1.797693134862315808e308", "0.0e99999999999999999999", "1e-99999999999999999999", "1" + "0" * 5000 + "e-5000"),
    *("0." + "0" * 400 + "1e405", "2147483647", "2147483648", "-2147483648", "-2147483649", "00", "1.", ".1", "-"),
    "+1",
    *("1e0000000000000000000000000000005", "1e+", "1d5", "1D5", "0x1", "Infinity", "NaN", "1_0", "1 0"),
]
STRINGS = [
    *("", "x", "\x7f", "\x80", "é\U0001f600", "\\ud83d\\ude00", "\\ud83d", "\\ude00\\ud83d", "\\uD83D\\u0041"),
    "\\u0000",
    *('\\u00e9\\b\\f\\n\\r\\t\\/\\"\\\\', "\\u007F", "\\u0085", "\\ufffe", "\\uD83F\\uDFFE", "\\u12", "\\u12G4", "\\a"),
    *("\t", "\n", "\x00", "\x1f", "\\", "\\u", "\ufeff", "\ufdd0", "\u2028"),
]
# Decoded in text data, whose characters are not checked.
ESCAPES = [f"\\{letter}" for letter in '"\\/bfnrtaqsu\x01'] + [
    "\\ud83f",
    "\\udbff\\udfff",
    "\\ud800\\udc00",
    "\\uabCDe",
    *("\\ud83d\\xde00", "\\ud83dxude00", "\\ud83d\\ude0x"),
]
OTHERS = [
    *("[ ]", "{ }", "[ 1 , [ ] , { } ]", '{ "a" : 1 , "b" : [ 2 ] }', "tru", "truE", "falsE", "nulL"),
    *("null", "true", "false", "True", "nul", "[]", "{}", "[1,]", '{"a":1,}', '{"a"}', "[", "{", ""),
]
NAMES = [
    *("data", "data_base64", "dat\\u0061", "datacontenttype", "dataschema", "time", "subject", "x", "X", "", "é"),
    "a b",
    *("specversion", "id", "\\ud83d", "specVersion"),
]
VALUES = [
    *("null", '""', '"x"', '"AA=="', '"AB=="', '"AAE="', '"AA"', '"A==="', '"===="', '"AA=A"', '"A A="', '"AAAA\\n"'),
    *('"AA__"', "1", "true", "[]", "{}", "1.5", '"text/plain"', '"a/b;charset=latin-1"', '"2020-01-01T00:00:00Z"'),
]
TIMES = [
    *("0001-01-01T00:00:59.5+00:01", "0001-01-01T00:00:59.999999+00:01"),
    *("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:00-00:01", "9999-12-31T23:58:59.999999-00:01"),
    *("2016-12-31T23:59:60Z", "2016-12-31T23:59:60.5Z", "2017-01-01T00:59:60+01:00", "2016-12-30T23:59:60Z"),
    *("2016-12-31T22:59:60-01:00", "9999-12-31T23:59:60Z", "9999-12-31T23:59:60-00:01", "0001-01-01T00:00:00+00:01"),
    *("0001-01-03T00:00:00Z", "0000-01-01T00:00:00Z", "2024-02-30T00:00:00Z", "2023-02-29T00:00:00Z"),
    *("2100-02-29T00:00:00Z", "2000-02-29T00:00:00Z", "2024-02-29T24:00:00Z", "2024-02-29T23:60:00Z"),
    *("2024-02-29T23:00:61Z", "2024-02-29t23:00:00z", "2024-02-29 23:00:00Z", "2024-02-29T23:00:00.Z"),
    *("2024-02-29T23:00:00.1234567890123Z", "2024-02-29T23:00:00.5+01:00", "2024-02-29T23:00:00+24:00"),
    *("2024-02-29T23:00:00+23:60", "2024-02-29T23:00:00-23:59", "2024-02-29T23:00:00", "2024-02-29T23:00:00+0100"),
    *("2024-13-01T00:00:00Z", "2024-00-01T00:00:00Z", "2024-01-00T00:00:00Z", "+024-01-01T00:00:00Z"),
    *("1969-12-31T23:59:59.999999Z", "1960-02-29T12:00:00.000001+05:30", "2024-01-01T00:00:00.123+", "T", "Z"),
    *(f"2024-01-01T00:00:00+{offset}" for offset in ("0::00", "1/:00", "00:0A", "00:1/", ":0:00", "00-00", "09:59")),
    *("2024-01-01T00:00:00ZZ", "2024-01-01T00:00:0", "\u0662024-01-01T00:00:00Z", "2024-01-01T00:00:00.5z"),
    *("2024-01-01T00:00:00.5", "2024-01-01t00:00:00+01:00", ":024-01-01T00:00:00Z"),
]
HEADER_VALUES = [
    *("", "%", "%4", "%41", "%4g", "%4@", "%4`", "%@4", "%C3%A9", "%C3", "%ED%A0%80", "%F4%90%80%80", "%C0%80"),
    *("%EF%BF%BE", "%C2%85", "%0A"),
    *('"', '""', '"a"b"c"', '"a\\"b"', '"a\\', '"a\\\\"', '\\"x"', '"%41"', '"\\%41"', "%22a%22", "%25%34%31", "+"),
    *("é", "\t a \t", "\xa0a\xa0", "a\rb", "\ufffe", "\U0001ffff", "\ufdd0", "\ufdcf", "\ufdf0", "\x80", "\x9f"),
    "\xa0",
    *("\x7f", "\ud7ff", "\ue000", "\U0010fffd", "\U0010fffe", "a:b", "a-b:", "1a:", "é:", ":"),
    *("a[:", "a{:", "[:", "{:", "@:", "`:", "a@:", "a`:", "z:", "Z:", "A:", "a+.-09:", "a/:"),
]
HEADER_NAMES = [
    *("CE-X", "cE-x", "ce-", "ce-a-b", "ce-data", "ce-é", "ce-\u212a", "\u212ae-x", "ce-\u0130", "ce-x_", "ce", "c"),
    "",
    *("ce-ID", "CE-id", "ce-x1", "ce-\x00", "ce-x "),
    *("be-x", "xe-id", "cd-x", "ce.x", "CE-AZ", "ce-az09", "ce-`", "ce-{", "ce-/", "ce-:", "ce-@", "ce-["),
]
MEDIA_TYPES = [
    *("application/cloudevents", "APPLICATION/CLOUDEVENTS", "application/cloudevents-batc"),
    *("APPLICATION/CLOUDEVENTS+JSON", "application/cloudevents+json;charset=utf-8"),
    *('application/cloudevents+json;charset="utf8"', "application/cloudevents+json;charset=x"),
    *("application/cloudevents+json;charset=us-ascii", "application/cloudevents+"),
    *("application/cloudevents;;charset=x", "application/cloudevents-batch", "application/cloudevents-batches"),
    *("application/cloudevents+xml", "application/cloudeventsx", " application/cloudevents+json\t; x", ";", "", "a/b"),
    *("\napplication/cloudevents", "application/cloudevents é", "application/cloudevents+json é;charset=x"),
    *("application/cloudevents ;charset", "appl\u0130cation/cloudevents+json", 'TEXT/PLAIN; Charset="ISO-8859-1"; x'),
    *("a/b ; charset=latin1", "a/b;;charset=latin1", 'a/b;x="charset=latin1"', 'a/b;x="\\";charset=latin1"'),
    *('a/b;charset="";', 'a/b;charset="lat\\in1"', 'a/b;charset="latin1', "a/b+JSON;charset=latin1"),
    "text/plain;charset=us-ascii",
]


# The first two bytes around each limit of RFC 3629, and bytes that may follow.
UTF8_FIRST = b"\x7f\x80\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5\xff"
UTF8_SECOND = b"\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0"
UTF8_REST = [b"", b"\x80", b"\xbf\xbf", b"\x80\x7f", b"\xbf\xc0", b"\x7f\x80", b"\xc0\x80", b"\x80\x80\x80"]


def document(*members: str) -> bytes:
    return ("{" + ",".join(('"specversion":"1.0","id":"1","source":"/s","type":"t"', *members)) + "}").encode()


def documents() -> Iterator[bytes]:
    values = [*NUMBERS, *(f'"{text}"' for text in STRINGS), *OTHERS]
    for name, value in product(("n", "data"), values):
        yield document(f'"{name}":{value}')
    for name, value in product(NAMES, VALUES):
        yield document(f'"{name}":{value}')
    for media_type, base64 in product(MEDIA_TYPES, ("null", '""', '"AA=="')):
        yield document('"data":"é"', f'"data_base64":{base64}', f'"datacontenttype":{json.dumps(media_type)}')
    for time in TIMES:
        yield document(f'"time":{json.dumps(time)}')
    for text in ("\\", "\\u", "\\u00e", "\\u00e9", "\\ud83d\\u", "\\ud83d\\ude0", "\\ud83d\\ude00"):
        yield b'{"id":"' + text.encode()  # the document ends in an escape
    whole = document()
    for text in (*STRINGS, *ESCAPES):
        yield document('"datacontenttype":"text/plain"', f'"data":"{text}"')
    yield from (
        b"{}",
        b" { } ",
        b'{"":1}',
        b"\xef\xbb\xbf" + whole,
        b"\xef\xbb\xbf" * 2 + whole,
        b" \n\t\r" + whole + b" \n",
        b"\x0b" + whole,
    )
    yield from (whole + b"\x00", whole + b"{}", whole[:-1] + b"\xff}", whole.decode().encode("utf-16"), whole * 2)
    yield from (b'{"\\u0069d":"a","id":"b"}', b'{"x":{"id":1,"id":2},"id":"1"}', b'{"id":null}', b'"id"', b"[]", b"1")


def messages() -> Iterator[Message]:
    for first, second, rest in product(UTF8_FIRST, UTF8_SECOND, UTF8_REST):
        yield MARKED, document('"subject":"@"').replace(b"@", bytes([first, second]) + rest)
    for data, headers in product(documents(), ([], MARKED)):
        yield headers, data
    attributes = ("subject", "time", "x", "dataschema", "datacontenttype")
    for value, name in product((*HEADER_VALUES, *TIMES, *MEDIA_TYPES), attributes):
        yield [*BASE, (f"ce-{name}", value)], b"x"
    for value, place in product(HEADER_VALUES, range(len(BASE))):
        yield [(name, value if which == place else old) for which, (name, old) in enumerate(BASE)], b""
    for name in HEADER_NAMES:
        yield [*BASE, (name, "v")], b"x"
    yield [*BASE, *((f"ce-x{number}", "1") for number in range(100))], b"x"
    for value, name, is_binary in product(MEDIA_TYPES, ("Content-Type", "content-type", "CONTENT-TYPE"), (True, False)):
        for data in (b"", document(), b"x"):
            yield [(name, value), *(BASE if is_binary else [])], data


def test_hostile_messages(spark: SparkSession) -> None:
    outcomes = agree(spark, list(messages()), 0)
    assert len(outcomes) > 20, outcomes


@pytest.mark.long
def test_large_and_deep_messages(spark: SparkSession) -> None:
    """Time grows linearly with size, and deep nesting does not overflow the stack."""
    million = 1_000_000
    made: list[Message] = [
        ([], document(f'"data":"{"a" * million}"')),
        ([], document('"data":"' + "\\u00e9" * million + '"', '"datacontenttype":"text/plain"')),
        ([], document(*(f'"a{number}":{number}' for number in range(100_000)))),
        ([], document('"a":1', *('"b":1' for _ in range(100_000)))),
        (MARKED, b'{"id":"' + b"a" * million),
        (MARKED, document(f'"data":{"9" * million}')),
        (MARKED, document(f'"data":0.{"9" * million}')),
        (MARKED, document(f'"data":1e{"9" * million}')),
        ([*BASE, ("ce-x", '"' * (million + 1))], b""),
        ([*BASE, ("ce-x", '"\\' * million)], b""),
        ([*BASE, ("ce-x", "%41" * million)], b""),
        ([*BASE, ("ce-x", "%" * million)], b""),
        ([*BASE, ("ce-datacontenttype", "a/b" + ';x="' * million)], b""),
        ([*BASE, ("ce-datacontenttype", "a/b" + "; \t" * million)], b""),
        ([*BASE, ("ce-time", f"2020-01-01T00:00:00.{'1' * million}Z")], b""),
        ([*BASE, *((f"ce-x{number}", "1") for number in range(20_000))], b""),
        ([*BASE, *(("ce-x", "1") for _ in range(20_000))], b""),
        ([(f"x-{number}", "1") for number in range(20_000)] + BASE, b"x"),
    ]
    agree(spark, [*made, *deep_messages(million)], 0)


def deep_messages(*depths: int) -> Iterator[Message]:
    for headers, depth in product(([], MARKED), (1, *range(MAX_LEVELS - 1, MAX_LEVELS + 3), *depths)):
        for start, end in (("[", "]"), ('{"a":', "}")):
            nested = start * depth + "1" + end * depth
            yield from ((headers, document(f'"data":{nested}')), (headers, document(f'"x":{nested}')))
            yield from ((headers, nested.encode()), (headers, (start * depth).encode()))


# --- Types of headers -----------------------------------------------------------------------------------------------

PIECES = [
    *(b"NATS/1.0", b"\r\n", b"\r", b"\n", b"ce-id", b":", b" ", b"\t", b"a", b"ce-type: t\r\n", b"ce-source:/s\r\n"),
    *(b"ce-specversion: 1.0\r\n", b"ce-id: 1\r\n", b"\0", b"\xff", b"\xc3\xa9", b" 503", b" 100 Idle", b"NATS/1.0\r\n"),
    *(b"\r\n\r\n", b"\x7f", b"x", b" 1000", b" 1a0", b" 100\t"),
]
WHOLE = b"NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in BASE).encode()


def blocks() -> list[bytes | None]:
    rng = Random(SEED)
    made: list[bytes | None] = [None, b"", b"\r\n\r\n", WHOLE, WHOLE + b"\r\n", WHOLE + b"CE-ID: 2\r\n\r\n"]
    made += [WHOLE + b"".join(b"ce-x%d: 1\r\n" % number for number in range(100)) + b"\r\n"]
    made += [
        WHOLE + line + b"\r\n\r\n" for line in (b"x: a\0", b"x\0: a", b"x : a\0", b" x: a\0", b"x: \xff\0", b"x\0")
    ]
    made += [WHOLE + line + b"\r\n\r\n" for line in (b"~: a", b"!: a", b"\x7f: a", b"\x1f: a", b"x:", b":x", b"\tx: a")]
    made += [
        b"NATS/1.0" + line + WHOLE[8:] + b"\r\n"
        for line in (
            b" 100",
            b" 099",
            b" 10/",
            b" 1:0",
            b" /00",
            b" :00",
            b"\t100",
            b" 100 \0",
            b" 100\tx",
            b" 100x",
            b" 10",
            b" ",
            b"0",
        )
    ]
    made += [b"".join(rng.choices(PIECES, k=rng.randrange(12))) for _ in range(COUNT_OF_BLOCKS)]
    made += [WHOLE + b"".join(rng.choices(PIECES, k=rng.randrange(5))) + b"\r\n" for _ in range(COUNT_OF_BLOCKS)]
    made += [b"".join(rng.choices(PIECES, k=4)) + WHOLE[8:] + b"\r\n" for _ in range(COUNT_OF_BLOCKS)]
    return made


def test_raw_header_blocks(spark: SparkSession) -> None:
    made = blocks()
    rows = [(place, block and bytearray(block), bytearray(b"x" * (place % 2))) for place, block in enumerate(made)]
    frame = spark.createDataFrame(rows, "id int, headers binary, data binary")
    expected = {place: of_block(bytes(block or b""), bytes(data)) for place, block, data in rows}
    for engine in ENGINES:
        found = explode_cloudevents(frame, engine=engine).collect()
        differences = [(engine, made[row.id], compare(expected[row.id], row)) for row in found]
        assert len(found) == len(made)
        assert [one for one in differences if one[2]][:10] == []
    codes = {one for one in expected.values() if isinstance(one, str)}
    assert {"invalid-header-block", "invalid-header-version", "invalid-header-name", "invalid-header-value"} <= codes
    assert sum(not isinstance(one, str) for one in expected.values()) > COUNT_OF_BLOCKS / 20


def of_block(block: bytes, data: bytes) -> Any:
    try:
        return in_python((read_header_block(block, "surrogateescape").headers.items() if block else [], data))
    except DecodeError as error:
        return str(error.code)


NULLS: list[tuple[str, Any, str]] = [
    ("array<struct<key string, value string>>", None, "not-a-cloudevent"),
    ("array<struct<key string, value string>>", [None], "invalid-header-name"),
    ("array<struct<key string, value string>>", [*BASE, (None, "v")], "invalid-header-name"),
    ("array<struct<key string, value string>>", [*BASE, ("x", None)], "invalid-header-value"),
    ("array<struct<key string, value string>>", [("x", None), (None, None)], "invalid-header-value"),
    ("array<struct<name binary, value string>>", [(bytearray(b"\xff"), "v")], "not-a-cloudevent"),
    ("array<struct<name binary, value string>>", [(bytearray(b"ce-\xff"), "v")], "invalid-attribute-name"),
    ("array<struct<name string, value binary>>", [("x", bytearray(b"\xc3"))], "not-a-cloudevent"),
    ("array<struct<name string, value binary>>", [("ce-x", bytearray(b"\xc3"))], "invalid-utf8"),
    (
        "array<struct<name string, value binary>>",
        [("ce-x", bytearray(b"\xc3")), (None, None)],
        "invalid-header-name",
    ),
    ("map<string,string>", None, "not-a-cloudevent"),
    ("map<string,string>", {"x": None}, "invalid-header-value"),
    ("map<string,array<string>>", None, "not-a-cloudevent"),
    ("map<string,array<string>>", {"x": None}, "invalid-header-value"),
    ("map<string,array<string>>", {"x": ["a", None]}, "invalid-header-value"),
    ("map<string,array<string>>", {"x": []}, "not-a-cloudevent"),
    ("map<string,array<string>>", {"ce-id": ["1", "2"]}, "duplicate-attribute"),
    ("map<string,array<string>>", {"content-type": ["a/b", "a/b"]}, "duplicate-header"),
    ("binary", None, "not-a-cloudevent"),
]


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in NULLS}))
def test_null_and_malformed_utf8_in_headers(spark: SparkSession, kind: str) -> None:
    cases = [(headers, data, code) for one, headers, code in NULLS if one == kind for data in (None, bytearray())]
    rows = [(place, headers, data) for place, (headers, data, _) in enumerate(cases)]
    frame = spark.createDataFrame(rows, f"place int, headers {kind}, data binary").coalesce(1)
    for engine in ENGINES:
        found = explode_cloudevents(frame, engine=engine).orderBy("place").collect()
        columns = [{name: value for name, value in row.asDict().items() if name.startswith("ce_")} for row in found]
        assert [{name: value for name, value in one.items() if value is not None} for one in columns] == [
            {"ce_error": code} for *_, code in cases
        ], engine


HEADER_TYPES = {
    "strings": "transform(pairs, pair -> struct(pair.name, cast(pair.value as string)))",
    "binaries": "transform(pairs, pair -> struct(cast(pair.name as binary), pair.value))",
    "map": "map_from_entries(transform(pairs, pair -> struct(pair.name, cast(pair.value as string))))",
    "map of arrays": "map_from_entries(transform(pairs, pair -> struct(pair.name, array(cast(pair.value as string)))))",
    "block": "block",
}


@pytest.mark.parametrize("shape", HEADER_TYPES)
def test_headers_that_are_not_used_may_have_any_bytes(spark: SparkSession, shape: str) -> None:
    """A header is checked if the event uses it: ``ce-`` headers in binary mode, Content-Type by its meaning."""
    core = [(name, value.encode()) for name, value in BASE]
    structured = [("Content-Type", b"application/cloudevents+json")]
    latin, text = ("X-Name", b"caf\xe9"), b"x"
    whole = document()
    cases: list[tuple[Sequence[tuple[str, bytes]], bytes, str | None]] = [
        ([latin, *core], text, None),
        ([*core, ("Content-Type", b"text/plain; charset=\xe9")], text, None),
        ([*core, ("ce-x", b"caf\xe9")], text, "invalid-utf8"),
        ([*core, ("ce-x", b"\xc3%A9")], text, "invalid-utf8"),
        ([*core, ("ce-x", b'"\xc3"\xa9')], text, "invalid-utf8"),
        ([*core, ("ce-x", b"\xe9%zz")], text, "invalid-percent-escape"),
        ([*core, ("ce-x", b'"\xe9')], text, "unterminated-quote"),
        ([latin], whole, None),
        ([*structured, ("ce-id", b"\xe9")], whole, None),
        ([("Content-Type", b"application/cloudevents+json; x=\xe9")], whole, None),
        ([("Content-Type", b"application/cloudevents+json; charset=\xe9")], whole, "unsupported-charset"),
        ([("Content-Type", b"application/cloudevents+\xe9")], whole, "unsupported-format"),
    ]
    rows = []
    for number, (pairs, data, _) in enumerate(cases):
        block = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in pairs)
        octets = [(name, bytearray(value)) for name, value in pairs]
        rows.append((number, octets, bytearray(b"NATS/1.0\r\n" + block + b"\r\n"), bytearray(data)))
    schema = "number int, pairs array<struct<name string, value binary>>, block binary, data binary"
    given = spark.createDataFrame(rows, schema).coalesce(1)
    frame = given.selectExpr("number", f"{HEADER_TYPES[shape]} headers", "data")
    wanted = [(number, code) for number, (_, _, code) in enumerate(cases)]
    for engine in ENGINES:
        found = explode_cloudevents(frame, engine=engine).collect()
        assert sorted((row.number, row.ce_error) for row in found) == wanted, engine
        assert {row.ce_id for row in found if row.ce_error is None} == {"1"}, engine


@pytest.mark.parametrize(
    "kind", ["int", "array<string>", "array<struct<a string>>", "map<int,string>", "map<string,int>"]
)
def test_headers_of_invalid_types(spark: SparkSession, kind: str) -> None:
    frame = spark.createDataFrame([], f"headers {kind}, data binary")
    with pytest.raises(TypeError, match="header"):
        explode_cloudevents(frame)


# --- Charsets -------------------------------------------------------------------------------------------------------

# Charsets that Java encodes differently from Python for some characters, or does not have.
NOT_IN_JAVA = {
    *("big5", "big5hkscs", "cp037", "cp1006", "cp1026", "cp1125", "cp1140", "cp273", "cp424", "cp500", "cp720"),
    "cp856",
    *("cp875", "cp932", "cp949", "cp950", "euc_jis_2004", "euc_jisx0213", "euc_jp", "euc_kr", "gb18030", "gbk", "hz"),
    *("hp-roman8", "iso2022_jp", "iso2022_jp_1", "iso2022_jp_2", "iso2022_jp_2004", "iso2022_jp_3", "iso2022_jp_ext"),
    *("iso2022_kr", "iso8859-10", "iso8859-14", "koi8-t", "kz1048", "mac-arabic", "mac-croatian", "mac-cyrillic"),
    *("mac-farsi", "mac-greek", "mac-iceland", "mac-romanian", "mac-turkish", "palmos", "ptcp154", "shift_jis"),
    *("shift_jis_2004", "shift_jisx0213", "tis-620", "utf-7"),
}
ODD_CHARSETS = [
    "UTF-8",
    "-latin1-",
    "latin 1",
    "lat-in1",
    "iso_8859--1",
    "x-windows-874",
    '" latin1 "',
    "\u212aoi8-r",
    "utf-8,",
    "x-unknown",
    "hex",
    "idna",
    "undefined",
    "iso_8859.1",
    "iso_8859-1:1987",
    "iso_646_irv_1991",
    "charmap",
    "cp737",
    "cp874",
    "koi8_u",
    "utf_8_sig",
    "utf8" + "_" * 36,
    "utf8" + "_" * 37,
    "utf8" + "_" * 100_000,
]
TEXTS = ["", "a", "é", "ж", "€", "日本", "😀", "\u0590", "a\\é¥\u203e~", "\x7f"]


def texts_in_charsets() -> Iterator[tuple[str, str, bytes]]:
    """Yield charsets, texts, and events with both."""
    for name, text in product(sorted({*aliases.aliases, *aliases.aliases.values(), *ODD_CHARSETS}), TEXTS):
        media_type = json.dumps(f"text/plain; charset={name}")
        yield name, text, document(f'"datacontenttype":{media_type}', f'"data":{json.dumps(text)}')


def is_in_java(charset: str) -> bool:
    media_type = parse(f"text/plain; charset={charset}")
    codec = media_type and media_type.codec()
    return codec is None or codecs.lookup(codec).name not in NOT_IN_JAVA


def documents_in_charsets() -> list[bytes]:
    """Return events in charsets that Java encodes as Python, or that both do not support."""
    return [data for name, _, data in texts_in_charsets() if is_in_java(name)]


def test_charsets(spark: SparkSession) -> None:
    """Text data of a JSON event has the same bytes as in Python in every charset, or is an error."""
    made = list(texts_in_charsets())
    rows = [(place, bytearray(data)) for place, (_, _, data) in enumerate(made)]
    frame = spark.createDataFrame(rows, "id int, data binary").selectExpr("id", "CAST(NULL AS BINARY) headers", "data")
    wrong = []
    for row in explode_cloudevents(frame).collect():
        name, text, data = made[row.id]
        if is_in_java(name):
            difference = bool(compare(in_python(([], data)), row))
        else:
            difference = row.ce_error != "unsupported-charset"
        if difference:
            wrong.append((name, text, row.ce_error, row.ce_data))
    assert not wrong, wrong[:10]


def test_payloads_in_a_string_column(spark: SparkSession) -> None:
    """The payload is the UTF-8 bytes of the string."""
    frame = spark.createDataFrame(
        [(BASE, "é"), ([], document('"data":"é"').decode())], "headers array<struct<k string, v string>>, data string"
    )
    first, second = explode_cloudevents(frame).collect()
    assert (first.ce_data, second.ce_data) == ("é".encode(), '"é"'.encode())
    message = SimpleNamespace(headers=[], data=document('"data":"é"'))
    assert second.ce_data == from_nats_message(message, parse_data=False).get_data()
