"""
Messages that are almost events: valid ones of both modes, each with a few things done to it.

Seeded, so that a message that fails today fails tomorrow. What is right for each of them is not known here; the Python
core says.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

Message: TypeAlias = tuple[list[tuple[str, str]] | None, bytes]

CORE = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
EXTENSIONS = ("traceparent", "sampledrate", "flag", "x", "t", "partitionkey", "0")

TEXTS = (
    "1", "a-1", "order 42", "Grüße", "Euro € 😀", "100%", "%41", "a+b", 'say "hi"', "back\\slash", "tab\there", "nul\0",
    "\x7f", "\x80", "\x9f", "\xa0", "\ufdcf", "\ufdd0", "\ufdef", "\ufdf0", "\ufffd", "\ufffe", "\uffff", "\U0001fffe",
    "\U0010ffff", "\u2028", "\ud7ff", "", " ", " x ", "\t", "true", "false", "True", "5", "-5", "-0", "007", "+1", "1.0",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "99999999999999999999", "QUJD", "QUI=", "QQ", "QR==", "Q Q=",
    "=", "\u212a", "e\u0301", "\u00e9", "/s", "https://example.com/a?b=c#d", "data", '"data":', "{", "}", "[]", "],", '{"a":1}',
    "x" * 300, "null", "\ufeff", "a,b;c=d", "%C3%A9", "ce-id", "\n", "a\n", "\r\n", "s", '["n5"]', "'", "ſ",
)  # fmt: skip
TIMES = (
    "2020-01-31T23:59:59Z", "2020-01-31T23:59:59.123Z", "2020-01-31T23:59:59.123456789+02:00", "2020-01-31t23:59:59z",
    "2016-12-31T23:59:60Z", "2017-01-01T05:59:60.5+06:00", "2016-12-30T23:59:60Z", "2016-12-31T23:58:60Z",
    "2020-02-29T00:00:00Z", "2021-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2000-02-29T00:00:00-00:00",
    "2020-01-31T24:00:00Z", "2020-01-31T23:60:00Z", "2020-01-31T23:59:61Z", "2020-13-01T00:00:00Z",
    "2020-00-01T00:00:00Z", "2020-04-31T00:00:00Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:60Z",
    "0001-01-01T00:59:60+01:00", "2020-01-31T23:59:59", "2020-01-31", "2020-01-31 23:59:59Z", "2020-01-31T23:59Z",
    "2020-01-31T23:59:59.Z", "2020-01-31T23:59:59+24:00", "2020-01-31T23:59:59+18:01", "2020-01-31T23:59:59-23:60",
    "2020-01-31T23:59:59+0200", " 2020-01-31T23:59:59Z", "2020-01-31T23:59:59Z\n", "2020-1-31T23:59:59Z", "now", "",
    "1582-10-10T00:00:00Z", "1600-01-01T00:00:00.000001Z", "2020-01-31T23:59:59." + "9" * 40 + "Z", "２020-01-31T23:59:59Z",
)  # fmt: skip
CONTENT_TYPES = (
    "application/json", "text/plain", "application/octet-stream", "application/xml", "image/svg+xml",
    "application/vnd.a+json", "APPLICATION/JSON", "text/json", "application/json; charset=utf-8",
    "application/json;charset=latin1", "text/plain; charset=ISO-8859-1", "text/plain;charset=us-ascii",
    "text/plain;charset=utf-16", 'text/plain; charset="utf-16le"', "text/plain; charset=UTF_8", "text/plain;charset=u8",
    "text/plain;charset=utf-16-be", "text/plain;charset=nonesuch", "text/plain;charset=rot13",
    'text/plain;a="b;charset=latin1";charset=utf-8', "text/plain;charset=", "text/plain;charset", "text/plain;",
    "text/plain;;charset=latin1", "text/plain ;CHARSET=Latin-1", "text", "/plain", "text/", "text/plain, text/html",
    "a b/c", "text/plain charset", "application/+json", "a/json+xml", "application/jsonx", "x/y+JSON", "",
    "application/json-seq", 'text/plain;charset="ut\\f-8"', "text/plain;charset=utf-8;charset=latin1", "é/x",
)  # fmt: skip
SCHEMAS = ("https://example.com/s", "urn:x", "#", "/rel", "rel", "//host/x", "1a:b", "a:", ":a", "", "a b:c", "ü:x")
VERSIONS = ("1.0", "1.0", "1.0", "1.0", "1.0", "0.3", "1", "", "1.0 ", "1.1")
MODE_HEADERS = (
    "application/cloudevents+json", "application/cloudevents", "APPLICATION/CloudEvents+JSON ; charset=UTF-8",
    "application/cloudevents+json;charset=latin1", 'application/cloudevents+json; charset="utf8"',
    "application/cloudevents+json;charset=us-ascii;x", "application/cloudevents-batch+json", "application/cloudevents+avro",
    "application/cloudeventsx", "application/json", " application/cloudevents+json\t", "", "application/cloudevents;",
    "application/cloudevents-", "application/cloudevents+json x", 'application/cloudevents;a=";charset=x"',
)  # fmt: skip
JSON_VALUES = (
    '"text"', '"\\u00e9\\n\\"q\\" \\/ \\ud83d\\ude00"', '"\\ud800"', '"\\udc00\\ud800"', '"\\\\ud800"', '"\\uD83D\\u0041"',
    "5", "-0", "0", "1.0", "1e1", "1E400", "-1e400", "1e-400", "0e999", "2147483648", "-2147483649", "9" * 25, "1.50",
    "12345678901234567890.123456789012345678901234567890", "true", "false", "null", "{}", "[]", "[1, 2 ,{\"a\" : [ ] }]",
    '{"data": {"data": "x"}, "b": "}", "c": ["]"]}', '{"a":1,"a":2}', "[1,]", "{,}", "NaN", "Infinity", "-Infinity", "01",
    "+1", ".5", "1.", "-", "tru", "'x'", "{a:1}", '"\\x"', '"\\u12"', '"\t"', '"unterminated', "1 2", "[1] [2]", "/* */ 1",
    '"' + "x" * 200 + '"', "[" * 40 + "]" * 40, '"sx"', '["n5"]', "9" * 400, "1" * 400 + "e-200", "1" + "0" * 400 + ".0",
    '{"id":"inner","type":"t"}', '"QUJD"', '"QUI="', '"QQ"', '""', '{"k":"\ud7ff"}', '"\x7f"', "[[1,2],[3,4]]", '{"a":"\\u0000"}',
    '{"u":"3e400"}', "[3e2, 3e400]", "4611686018427387847",
)  # fmt: skip


def messages(seed: int, count: int) -> list[Message]:
    """Headers as pairs (or None) and payload of some messages; about a third are left valid."""
    rng = Random(seed)
    return [_structured(rng) if rng.random() < 0.55 else _binary(rng) for _ in range(count)]


def _attributes(rng: Random) -> dict[str, str]:
    attributes = {
        "specversion": "1.0",
        "id": str(rng.randrange(10**6)),
        "source": "/sensors/" + rng.choice("abc"),
        "type": "com.example.reading",
    }
    optional = {
        "subject": rng.choice(("s", "order 42", "Grüße")),
        "time": rng.choice(TIMES[:4]),
        "datacontenttype": rng.choice(CONTENT_TYPES[:3]),
        "dataschema": SCHEMAS[0],
        rng.choice(EXTENSIONS): rng.choice(("1", "true", "abc", "QUJD", "x y")),
    }
    attributes |= {name: value for name, value in optional.items() if rng.random() < 0.6}
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
        attributes |= _strange(rng)
    names = list(attributes)
    if rng.random() < 0.3:
        rng.shuffle(names)
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 1, 2))):
        names.remove(rng.choice(names))
    return {name: attributes[name] for name in names}


def _strange(rng: Random) -> dict[str, str]:
    return rng.choice(
        (
            lambda: {rng.choice(CORE + EXTENSIONS): rng.choice(TEXTS)},
            lambda: {"time": rng.choice(TIMES)},
            lambda: {"datacontenttype": rng.choice(CONTENT_TYPES)},
            lambda: {"dataschema": rng.choice(SCHEMAS)},
            lambda: {"specversion": rng.choice(VERSIONS)},
            lambda: {rng.choice(EXTENSIONS): rng.choice(TEXTS + TIMES[:5])},
        )
    )()


# --- Binary mode ----------------------------------------------------------------------------------------------------


def _percent(rng: Random, text: str) -> str:
    escape_all = rng.random() < 0.1
    spell = "%{:02x}" if rng.random() < 0.2 else "%{:02X}"
    return "".join(
        character
        if "!" <= character <= "~" and character not in '"%' and not escape_all
        else "".join(spell.format(octet) for octet in character.encode("utf-8"))
        for character in text
    )


def _damaged(rng: Random, value: str) -> str:
    place = rng.randrange(len(value) + 1)
    bits = (
        "%", "%4", "%zz", "%C0%A0", "%ED%A0%80", "%FF", "%E2%82", '"', '"a b"', '"a\\"b"', '"a', "\\", " ", "\t", "é",
        "%00", "%0A", "%7F", "%C2%85", "%EF%BF%BF", "%EF%B7%90", "%F0%9F%BF%BE", "%EF%BF%BD", "+", "%+1", "%2B", "%25",
        "%F4%90%80%80", "%f0%9f%98%80", "%c3%a9", "\n", "%E9", "\u212a",
    )  # fmt: skip
    return value[:place] + rng.choice(bits) + value[place:]


def _binary(rng: Random) -> Message:
    pairs = [(f"ce-{name}", _percent(rng, value)) for name, value in _attributes(rng).items()]
    if rng.random() < 0.5:
        pairs.insert(rng.randrange(len(pairs) + 1), ("Nats-Msg-Id", rng.choice(TEXTS)))
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        pairs = rng.choice(BINARY_CHANGES)(rng, pairs)
    data = rng.choice((b"", b"{}", b'{"a":1}', b"\xff\x00", b"text", b"null"))
    return pairs, data


def _at(pairs: list[tuple[str, str]], rng: Random, change: Callable[[str, str], Any]) -> list[tuple[str, str]]:
    if not pairs:
        return pairs
    place = rng.randrange(len(pairs))
    return [change(*pair) if at == place else pair for at, pair in enumerate(pairs)]


BINARY_CHANGES: tuple[Callable[[Random, list[tuple[str, str]]], list[tuple[str, str]]], ...] = (
    lambda rng, pairs: _at(pairs, rng, lambda name, value: (rng.choice((name.upper(), name.title(), "Ce" + name[2:])), value)),
    lambda rng, pairs: _at(pairs, rng, lambda name, value: (name, _damaged(rng, value))),
    lambda rng, pairs: _at(pairs, rng, lambda name, value: (name, _damaged(rng, value))),
    lambda rng, pairs: _at(pairs, rng, lambda name, value: (name, f'"{value}"')),
    lambda rng, pairs: _at(pairs, rng, lambda name, value: (name, f" {value}\t")),
    lambda rng, pairs: _at(pairs, rng, lambda name, value: (name, rng.choice(TEXTS))),
    lambda rng, pairs: _at(
        pairs, rng,
        lambda name, value: (rng.choice(("ce-", "ce-my_ext", "ce-My-Ext", "ce-data", "ce-é", "ce-\u212a", "ce_id", "CE-X\n", "ce-a\nb", "Nats\nce-x", "ce-x ", "ce-０")), value),
    ),
    lambda rng, pairs: [*pairs, rng.choice(pairs)] if pairs else pairs,
    lambda rng, pairs: [*pairs, (rng.choice(pairs)[0].upper(), "x")] if pairs else pairs,
    lambda rng, pairs: [
        *pairs, (rng.choice(("Content-Type", "content-type", "CONTENT-TYPE", "Content-type")), rng.choice(MODE_HEADERS)),
    ],
    lambda rng, pairs: [(name, value) for name, value in pairs if not name.lower().startswith("ce-")],
)  # fmt: skip


# --- Structured mode ------------------------------------------------------------------------------------------------


def _structured(rng: Random) -> Message:
    is_ascii = rng.random() < 0.3
    members = [(json.dumps(name), json.dumps(value, ensure_ascii=is_ascii)) for name, value in _attributes(rng).items()]
    if rng.random() < 0.75:
        members.append(
            ('"data"', rng.choice((rng.choice(JSON_VALUES), '{"a":1,"b":[1,2]}', '"text"', '{"s":"it\'s \\n"}')))
        )
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        members = rng.choice(MEMBER_CHANGES)(rng, members)
    comma, colon = rng.choice(((",", ":"), (",", ":"), (", ", ": "), (" ,\n", "\t: ")))
    text = "{" + comma.join(name + colon + value for name, value in members) + "}"
    payload = text.encode("utf-8")
    if rng.random() < 0.15:
        payload = rng.choice(PAYLOAD_CHANGES)(rng, payload)
    headers: list[tuple[str, str]] | None = [("Content-Type", "application/cloudevents+json")]
    if rng.random() < 0.3:
        headers = rng.choice(
            (
                None,
                [],
                [("Nats-Msg-Id", "1")],
                [(rng.choice(("Content-Type", "content-type")), rng.choice(MODE_HEADERS))],
                [("Content-Type", "application/cloudevents+json"), ("ce-id", "2")],
                [("Content-Type", "application/cloudevents+json"), ("content-type", "x/y")],
            )
        )
    return headers, payload


def _insert(rng: Random, members: list[tuple[str, str]], name: str, value: str) -> list[tuple[str, str]]:
    place = rng.randrange(len(members) + 1)
    return [*members[:place], (name, value), *members[place:]]


def _change(rng: Random, members: list[tuple[str, str]], change: Callable[[str, str], Any]) -> list[tuple[str, str]]:
    return _at(members, rng, change)


def _base64(rng: Random) -> str:
    return rng.choice(
        (
            json.dumps(b64encode(rng.choice((b"x", b"\xff\x00", b"{}", b""))).decode()),
            '"QQ"',
            '"Q\\u0051=="',
            "null",
            "5",
            '"Q-=="',
            '"Q\\n=="',
        )
    )


MEMBER_CHANGES: tuple[Callable[[Random, list[tuple[str, str]]], list[tuple[str, str]]], ...] = (
    lambda rng, members: _change(rng, members, lambda name, _: (name, rng.choice(JSON_VALUES))),
    lambda rng, members: _insert(rng, members, json.dumps(rng.choice(EXTENSIONS)), rng.choice(JSON_VALUES)),
    lambda rng, members: _insert(rng, members, json.dumps(rng.choice(EXTENSIONS)), rng.choice(("5", "true", "null", "-0"))),
    lambda rng, members: _insert(
        rng, members,
        rng.choice(('"my_ext"', '"My"', '""', '"é"', '"Data"', '"DATA_BASE64"', '"x\\ny"', '"a}b"', '"data "', '"\\u0069d"', '"\\u212a"', '"d\\u0061ta"', '"x\\u0079"')),
        rng.choice(JSON_VALUES[:30]),
    ),
    lambda rng, members: _insert(rng, members, '"data_base64"', _base64(rng)),
    lambda rng, members: _insert(rng, [one for one in members if one[0] != '"data"'], '"data_base64"', _base64(rng)),
    lambda rng, members: [*members, rng.choice(members)] if members else members,
    lambda rng, members: _insert(rng, members, rng.choice(members)[0], rng.choice(JSON_VALUES)) if members else members,
    lambda rng, members: rng.sample(members, len(members)),
    lambda rng, members: [member for member in members if rng.random() < 0.7],
    lambda rng, members: _change(rng, members, lambda name, _: (name, json.dumps(rng.choice(TEXTS), ensure_ascii=rng.random() < 0.5))),
    lambda rng, members: [(name.replace("d", "\\u0064"), value) for name, value in members],
)  # fmt: skip

PAYLOAD_CHANGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    lambda rng, payload: b"\xef\xbb\xbf" + payload,
    lambda rng, payload: b"\xef\xbb\xbf\xef\xbb\xbf" + payload,
    lambda rng, payload: payload + rng.choice((b" ", b"\n", b"x", b"{}", b"\0", b"}", b",", b'"', b"\xc2\xa0", b']', b',{"end":null}]')),
    lambda rng, payload: rng.choice((b" ", b"\n", b"x", b"[", b"\0", b"\x0b")) + payload,
    lambda rng, payload: payload[: rng.randrange(len(payload) + 1)],
    lambda rng, payload: _splice(rng, payload, rng.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"))),
    lambda rng, payload: _splice(rng, payload, rng.choice((b'"', b"\\", b",", b":", b"{", b"}", b"\x01", b"'", b"\n", b" "))),
    lambda rng, payload: b"[" + payload + b"]",
    lambda rng, payload: rng.choice((b"", b"5", b"null", b'"x"', b"[]", b"{}", b"nan", b" ", b'{"a":1}', b"tru", b"\xff", b"1 2", b'"')),
    lambda rng, payload: payload.decode().encode("utf-16"),
)  # fmt: skip


def _splice(rng: Random, payload: bytes, piece: bytes) -> bytes:
    place = rng.randrange(len(payload) + 1)
    return payload[:place] + piece + payload[place:]
