"""Generate damaged messages, seeded, and decode them with the Python codec."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from benchmarks.messages import Pairs, messages
from ce_nats import DecodeError, from_nats_message
from ce_nats.codec._nesting import MAX_LEVELS

# Text that parsers often handle wrongly, in header values and in JSON.
MUTATIONS = [
    *'"\\%{}[],:; \t\n\r\x00\x1f\x7f\x80\x9f\ufdd0\ufffe\ufffd\U0001f600é\u2028',
    *("%41", "%zz", "%", "%C3%A9", "%C0%A0", "%ED%A0%80", "%EF%BF%BD", "%00", "%7F", "%25", "%F4%90%80%80"),
    "%e2%82%ac",
    *('\\"', "\\\\", '\\"x', '"a"', '""', '"', "+", "1e999", "1e400", "1e999\n", "0e-999,", "-0", "0.1e3", "01"),
    *("null", "true", "NaN", "data"),
    *("\\u0041", "\\ud800", "\\ud83d\\ude00", "\\u0000", "\\u0001", "\\x", "\\'", ',"\\u0001":0}', "'", "/*", "//"),
    *("}", "]", '"data":', '"id":"x"', "4611686018427387847"),
]
NAMES = [
    "id",
    "source",
    "type",
    "specversion",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "x",
    "data_base64",
]
VALUES = [
    *("", "1.0", "0.3", "application/json", "text/plain", "text/plain; charset=latin-1", "application/x;charset=utf-7"),
    *("2024-02-30T00:00:00Z", "2024-06-30T23:59:60Z", "2024-01-01t00:00:00z", "2024-01-01T00:00:00.123456789+23:59"),
    *("0000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00", "2024-01-01", "urn:a", "relative", "AAE=", "A", "data"),
    "id",
]
CONTENT_TYPES = [
    *("application/cloudevents+json", "application/cloudevents", "Application/CloudEvents+JSON; charset=UTF-8"),
    *("application/cloudevents+json; charset=latin-1", "application/cloudevents-batch+json"),
    "application/cloudevents+avro",
    *("application/json", "text/plain", " application/cloudevents+json ", "", "application/cloudevents+json;"),
]

# Parts of JSON data that is mostly invalid, including numbers near the largest float.
TOKENS = [
    *('"', "{", "}", "[", "]", ":", ",", " ", "\n", "\t", '"a"', '"a":1', '"":', "null", "true", "NaN", "//x", "/*x*/"),
    *("1", "0", "-", ".5", "01", "1e5", "1e309", "1E+400", "1e-999", "e", "E", "e1", "e99", "E+9", "e+100", "e100"),
    *("9" * 309, "9" * 308, "9" * 210, "9" * 209, "4611686018427387847"),
    *("\\", "\\\\", '\\"', "\\/", "\\b", "\\n", "\\x", "\\'", "'", "\x01", "\x7f", "é", "\U0001f600", "\ufffd"),
    "\uffff",
    *("\\u0001", "\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\uDC00", "u0001", "\\u000", '"\x01":0}'),
    '"\\u0001":0}',
]
DOCUMENTS = [
    *('{"a":1}', "[1,2]", '"x"', "1", '{"a":{"b":[1,"\\u00e9"]}}', '"\\\\u0001"', '"e"', '"1e999"', '{"e":1e10}'),
    *('{"a":"\\ud83d\\ude00"}', f'{{"a":{"9" * 309}}}', f'{{"a":{"9" * 308}e1}}', f'{{"a":{"9" * 209}e99}}'),
]
# Nesting near the limit, where one bracket makes the difference.
DEEP = [
    *("[" * MAX_LEVELS + "]" * MAX_LEVELS, '{"a":' * MAX_LEVELS + "1.5" + "}" * MAX_LEVELS),
    *('[{"]":[' * 43 + "]}]" * 43, "[[],[1],[" * (MAX_LEVELS // 2) + "]]" * (MAX_LEVELS // 2), "[{}]," * 200),
]
# Bytes that are not UTF-8, alone or together with quotes and percent escapes that come close to a character.
NOT_UTF8 = [
    *(b"\xff", b"\xc3", b"\xa9", b"\xc0\xa0", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xff%zz"),
    *(b'\xff"', b"\xc3%A9", b"%C3\xa9", b'"\xc3"\xa9', b'"\\\xff"', b'"\\\xc3\xa9\xff"', b'\xc3"\xa9"'),
    *(b"; charset=\xff", b";\xff"),
]
# Headers without meaning for an event, which may have any bytes.
OTHER_HEADERS = [
    *((b"X-Trace", b"\xff"), (b"X-Name", b"caf\xe9"), (b"\xff", b"v"), (b"", b"\xff"), (b"traceparent", b"00-\xfe")),
    *((b"c\xffe-id", b"x"), (b"\xc3ce-id", b"x"), (b"Nats-Msg-Id", b"\xc3\x28"), (b"content-type\xff", b"text/plain")),
]
FRONT = '{"specversion":"1.0","id":"1","source":"/s","type":"t","data":'

Message = tuple[Pairs, bytes]
RawMessage = tuple[list[tuple[bytes, bytes]], bytes]


def mutated(rng: Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(MUTATIONS) + text[place + rng.randrange(2) :]


def value(rng: Random, old: str) -> str:
    return rng.choice(VALUES) if rng.random() < 0.4 else mutated(rng, old)


def change_header(rng: Random, pairs: Pairs, data: bytes) -> Message:
    place = rng.randrange(len(pairs))
    name, old = pairs[place]
    return [*pairs[:place], (name, value(rng, old)), *pairs[place + 1 :]], data


def rename_header(rng: Random, pairs: Pairs, data: bytes) -> Message:
    place = rng.randrange(len(pairs))
    name, old = pairs[place]
    other = rng.choice(
        [name.upper(), name.title(), mutated(rng, name), f"ce-{rng.choice(NAMES)}", "ce-", "Ce-X", "X-Y"]
    )
    return [*pairs[:place], (other, old), *pairs[place + 1 :]], data


def add_header(rng: Random, pairs: Pairs, data: bytes) -> Message:
    new = rng.choice(
        [
            (f"ce-{rng.choice(NAMES)}", rng.choice(VALUES)),
            ("Content-Type", rng.choice(CONTENT_TYPES)),
            ("content-type", rng.choice(CONTENT_TYPES)),
            (rng.choice(["traceparent", "Nats-Msg-Id", "ceid", "CE-ID"]), "v"),
        ]
    )
    place = rng.randrange(len(pairs) + 1)
    return [*pairs[:place], new, *pairs[place:]], data


def drop_header(rng: Random, pairs: Pairs, data: bytes) -> Message:
    place = rng.randrange(len(pairs))
    return pairs[:place] + pairs[place + 1 :], data


def drop_all_headers(_: Random, __: Pairs, data: bytes) -> Message:
    return [], data


def change_byte(rng: Random, pairs: Pairs, data: bytes) -> Message:
    place = rng.randrange(len(data) + 1)
    return pairs, data[:place] + bytes([rng.randrange(256)]) + data[place + rng.randrange(2) :]


def change_text(rng: Random, pairs: Pairs, data: bytes) -> Message:
    return pairs, mutated(rng, data.decode(errors="replace")).encode()


def cut(rng: Random, pairs: Pairs, data: bytes) -> Message:
    return pairs, data[: rng.randrange(len(data) + 1)]


def append(rng: Random, pairs: Pairs, data: bytes) -> Message:
    return pairs, data + rng.choice([b" ", b"\n", b"}", b"x", b",{}", b"],[", b"{}", b"\x00"])


def change_member(rng: Random, pairs: Pairs, data: bytes) -> Message:
    try:
        event = json.loads(data)
    except ValueError:
        return pairs, data
    if not isinstance(event, dict):
        return pairs, data
    new: Any = rng.choice(
        [*VALUES, None, True, 5, 5.0, 2**31, -(2**31), 1e300, [], {}, [1], {"data": 1}, "\ud83d\ude00"]
    )
    event[rng.choice(NAMES)] = new
    members = list(event.items())
    if rng.random() < 0.5:
        rng.shuffle(members)
    style: dict[str, Any] = rng.choice([{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}])
    return pairs, json.dumps(dict(members), **style).encode(errors="surrogatepass")


CHANGES: list[Callable[[Random, Pairs, bytes], Message]] = [
    *(change_header, rename_header, add_header, drop_header, drop_all_headers),
    *(change_byte, change_text, cut, append, change_member, change_member),
]


def damaged(count: int, seed: int) -> list[Message]:
    rng = Random(seed)
    made = []
    for pairs, data in messages(count, seed):
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            change = rng.choice(CHANGES) if pairs else rng.choice(CHANGES[5:])
            pairs, data = change(rng, pairs, data)
        made.append((pairs, data))
    return made


def strange_json(rng: Random) -> str:
    text = "".join(rng.choices(TOKENS, k=rng.randrange(1, 7)))
    if rng.random() < 0.5:
        document = rng.choice(DEEP if rng.random() < 0.1 else DOCUMENTS)
        place = rng.randrange(len(document) + 1)
        text = document[:place] + rng.choice(["", *TOKENS]) + document[place + rng.randrange(3) :]
    return f'"{text}"' if rng.random() < 0.4 else text


def with_strange_data(count: int, seed: int) -> list[Message]:
    rng = Random(seed)
    headers = [("Content-Type", "application/cloudevents+json")]
    return [(headers, f"{FRONT}{strange_json(rng)}}}".encode()) for _ in range(count)]


def in_bytes(messages: list[Message], seed: int) -> list[RawMessage]:
    """Return the messages with headers as bytes, some of which are not UTF-8, in headers of events and in others."""
    rng = Random(seed)

    def broken(text: str, chance: float) -> bytes:
        data, place = text.encode(), rng.randrange(len(text) + 1)
        return data[:place] + rng.choice(NOT_UTF8) + data[place:] if rng.random() < chance else data

    def raw(pairs: Pairs) -> list[tuple[bytes, bytes]]:
        chance = rng.choice([0, 1 / 12])
        headers = [(broken(name, chance / 4), broken(value, chance)) for name, value in pairs]
        for _ in range(rng.choice([0, 0, 1, 2])):
            headers.insert(rng.randrange(len(headers) + 1), rng.choice(OTHER_HEADERS))
        return headers

    return [(raw(pairs), data) for pairs, data in messages]


def has_only_utf8(message: RawMessage) -> bool:
    """Return whether all headers are UTF-8."""
    try:
        b"".join(part for pair in message[0] for part in (*pair, b" ")).decode()
    except UnicodeDecodeError:
        return False
    return True


def in_python(message: Message | RawMessage) -> Any:
    headers, data = message
    try:
        pairs = [tuple(map(as_text, pair)) for pair in headers]
        return from_nats_message(SimpleNamespace(headers=pairs, data=data), parse_data=False)
    except DecodeError as error:
        return str(error.code)


def as_text(part: str | bytes) -> str:
    """Return a header name or value as in a message that was read from a stream."""
    return part if isinstance(part, str) else part.decode("utf-8", "surrogateescape")
