"""Hostile input: huge, deeply nested, truncated, or with line breaks that would inject headers."""

import json
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from time import process_time
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from ce_nats import (
    CeNatsError,
    DecodeError,
    EncodeError,
    ErrorCode,
    Headers,
    NatsMessage,
    Timestamp,
    dedup_id,
    detect_mode,
    from_nats_message,
    to_nats_message,
)
from ce_nats.capture import from_json_line
from ce_nats.codec import percent
from ce_nats.codec._nesting import MAX_LEVELS
from ce_nats.codec.attributes import decode_base64, decode_extension
from ce_nats.codec.media_type import parse
from ce_nats.redelivery import DeadLetter
from ce_nats.subjects import check_pattern, check_subject
from ce_nats.wire.nats import decode_frames, decode_header_block, encode_header_block
from tests.support.strategies import (
    Event,
    Rude,
    any_events,
    attempt,
    binary_message,
    hostile_headers,
    plain_event,
    refused,
    structured_message,
)
from tests.support.tables import each

MODES = ["binary", "structured"]
MILLION = 1_000_000
START = b'{"specversion":"1.0","id":"1","source":"/s","type":"t",'


def structured(members: bytes) -> NatsMessage:
    return structured_message(START + members + b"}")


# --- Size -----------------------------------------------------------------------------------------------------------


@each(
    ("value", "code"),
    [
        ("%" * MILLION, "invalid-percent-escape"),
        ("%41" * MILLION + "%", "invalid-percent-escape"),
        ("%C0" * MILLION, "invalid-utf8"),
        ("%E2%82" * MILLION, "invalid-utf8"),
        ('"' * 300_001, "unterminated-quote"),
        ('"' + "a" * MILLION, "unterminated-quote"),
        ('"' + "\\" * MILLION, "unterminated-quote"),
        ('"' + "\\" * (MILLION + 1), "unterminated-quote"),
        ('"' + '\\"' * MILLION, "unterminated-quote"),
        ("\ud800" * MILLION, "invalid-utf8"),
        ("a" * MILLION + "%00", "invalid-character"),
    ],
)
def test_invalid_header_values_of_a_megabyte(value: str, code: str) -> None:
    """The error is that of the value, not of its size."""
    assert refused(DecodeError, code, from_nats_message, binary_message(x=value)).attribute == "x"


@each("value", ['"' * 300_000, "\\" * MILLION, '"\\""' * 300_000, "%41" * 300_000, "ü" * MILLION])
def test_valid_header_values_of_a_megabyte(value: str) -> None:
    """Balanced quotes, backslashes, escapes: size is not an error."""
    from_nats_message(binary_message(x=value))
    event = plain_event(x=value)
    assert from_nats_message(to_nats_message(event)).get_extension("x") == value


@each(
    ("members", "code"),
    [
        (b'"data":' + b"[" * 100_000 + b"]" * 100_000, "invalid-json"),
        (b'"data":' + b"[" * 100_000, "invalid-json"),
        (b'"data":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "invalid-json"),
        (b'"x":' + b"[" * 100_000 + b"]" * 100_000, "invalid-json"),
        (b'"data":' + b"9" * 100_000, "invalid-json"),
        (b'"x":' + b"9" * 100_000, "invalid-json"),
        (b'"data":1e' + b"9" * 100_000, "invalid-json"),
        (b'"x":"' + b"a" * MILLION, "invalid-json"),
        (b'"x":"' + b"\\" * (MILLION + 1) + b'"', "invalid-json"),
        (b'"' + b"X" * MILLION + b'":1', "invalid-attribute-name"),
        (b'"data_base64":"' + b"A" * (MILLION + 1) + b'"', "invalid-base64"),
        (b'"time":"2020-01-01T00:00:00.' + b"1" * MILLION + b'"', "invalid-timestamp"),
        (b",".join(b'"x%d":1' % number for number in range(100_000)) + b',"x7":1', "duplicate-attribute"),
        (b'"x":1,' * 100_000 + b'"x":1', "duplicate-attribute"),
        (b'"datacontenttype":"' + b"a" * MILLION + b'"', "invalid-media-type"),
    ],
)
@each("parse_data", [True, False])
def test_invalid_large_envelopes(members: bytes, code: str, parse_data: bool) -> None:
    """Deep, long, or with many members."""
    refused(DecodeError, code, from_nats_message, structured(members), parse_data=parse_data)


def test_valid_large_envelopes() -> None:
    """A hundred thousand extensions, a fraction with a million digits, a long base64 text."""
    many = structured(b",".join(b'"x%d":"%d"' % (number, number) for number in range(100_000)))
    assert len(from_nats_message(many).get_attributes()) == 100_004
    long = structured(b'"time":"2020-01-01T00:00:00.' + b"1" * MILLION + b'Z"')
    assert len(str(from_nats_message(long).get_time())) == MILLION + len("2020-01-01T00:00:00.Z")
    assert len(from_nats_message(structured(b'"data_base64":"' + b"A" * MILLION + b'"')).get_data()) == 750_000
    digits = structured(b'"data":0.' + b"3" * 100_000)
    assert from_nats_message(digits).get_data() == 1 / 3
    assert from_nats_message(digits, parse_data=False).get_data() == b"0." + b"3" * 100_000


# Around the limit, and around the recursion limits of parsers in different interpreters.
ACCEPTED = [1, 64, MAX_LEVELS - 1, MAX_LEVELS]
REFUSED = [MAX_LEVELS + 1, MAX_LEVELS + 2, 240, 985, 990, 995, 1000, 1495, 1500, 5000, 9995, 10_000, 100_000]
NESTS = [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"}":"]", "a" : ', b"} ]")]


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Return JSON with ``depth`` levels; ``opening`` has one level or two."""
    times, rest = divmod(depth, opening.count(b"[") + opening.count(b"{"))
    return b"[" * rest + opening * times + b"1" + closing * times + b"]" * rest


@each("members", [b'"data":%b', b'"y":"\\"","data":%b', b'"data":%b,"y":"\\"","z":1'])
@each(("opening", "closing"), NESTS)
def test_depth_limit_of_decoding(members: bytes, opening: bytes, closing: bytes) -> None:
    """MAX_LEVELS levels are decoded in both modes, and one more in neither, on every interpreter."""
    for depth in ACCEPTED + REFUSED:
        text = nested(depth, opening, closing)
        messages = [(structured(members % text), True), (structured(members % text), False)]
        messages.append((binary_message(text, datacontenttype="a/json"), True))
        for message, parse_data in messages:
            data, error = attempt(DecodeError, from_nats_message, message, parse_data=parse_data)
            assert (error and error.code) == (None if depth in ACCEPTED else "invalid-json")
            if not parse_data and error is None:
                assert data.get_data() == text
    assert from_nats_message(binary_message(text, datacontenttype="a/json"), parse_data=False).get_data() == text


def test_error_of_depth() -> None:
    """It names the limit. It precedes errors of the parser, but not invalid UTF-8 and payloads that are not objects."""
    deep = nested(MAX_LEVELS + 1)
    for payload in (deep, deep[:-1], deep + b"]", deep + b"x", b"[x," + deep, b"[" * 100_000):
        error = refused(
            DecodeError, "invalid-json", from_nats_message, binary_message(payload, datacontenttype="a/json")
        )
        assert error.message == "the data is nested more than 128 levels deep"
        assert error.requirement == "RF-8259-05"
        error = refused(DecodeError, "invalid-json", from_nats_message, structured_message(b'{"data":' + payload))
        assert error.message == "the payload is nested more than 129 levels deep"
        assert "more than 129 levels" in str(
            refused(DecodeError, "not-a-cloudevent", from_nats_message, NatsMessage(data=b"[" + payload))
        )
    refused(DecodeError, "invalid-utf8", from_nats_message, binary_message(deep + b"\xff", datacontenttype="a/json"))
    refused(DecodeError, "invalid-utf8", from_nats_message, structured(b'"data":' + deep + b',"x":"\xff"'))
    refused(DecodeError, "not-an-object", from_nats_message, structured_message(deep))


@each("mode", MODES)
@each("leaf", [1, 2**70, ("a",)])
def test_depth_limit_of_encoding(mode: str, leaf: Any) -> None:
    """Encoded data can be decoded; data that is nested deeper, or contains itself, is rejected."""
    for depth in ACCEPTED + REFUSED:
        data = leaf
        for level in range(depth - isinstance(leaf, tuple)):
            data = [data] if level % 2 else {"a": data}
        message, error = attempt(EncodeError, to_nats_message, plain_event(data), mode=mode)
        if depth in ACCEPTED:
            assert (
                from_nats_message(message, parse_data=False).get_data()
                == json.dumps(data, separators=(",", ":")).encode()
            )
        else:
            check_too_deep(error)
    endless: list[Any] = [1]
    endless.append({"a": endless})
    check_too_deep(attempt(EncodeError, to_nats_message, plain_event(endless), mode=mode)[1])


def check_too_deep(error: EncodeError) -> None:
    assert error.code == "invalid-data"
    assert error.message == "the data cannot be JSON: it is nested more than 128 levels deep, or contains itself"
    assert error.requirement == "RF-8259-05"


def calls_in_progress() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def after_calls(count: int, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options) if count <= 0 else after_calls(count - 1, function, *args, **options)


@each("mode", MODES)
def test_depth_limit_with_calls_in_progress(mode: str) -> None:
    """Hundreds of calls leave room for all levels, also if the interpreter counts both together."""
    room = sys.getrecursionlimit() - calls_in_progress()
    data: Any = "a"
    for _ in range(MAX_LEVELS - 1):
        data = [data]
    message = to_nats_message(plain_event([data]), mode=mode)
    assert after_calls(room - 200, from_nats_message, message).get_data() == [data]
    assert after_calls(room - 200, to_nats_message, plain_event([data]), mode=mode) == message
    # A tuple is converted first, with two calls for each level.
    assert after_calls(room - 350, to_nats_message, plain_event((data,)), mode=mode) == message


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", MODES)
def test_recursion_limit_reached_by_the_caller(mode: str, step: int) -> None:
    """Only errors of this package are raised, even with few calls left."""
    room = sys.getrecursionlimit() - calls_in_progress()
    data: Any = "a"
    for _ in range(MAX_LEVELS - 1):
        data = [data]
    message = to_nats_message(plain_event([data], x='"'), mode=mode)
    for left in range(40, 350, step):
        for call, value, options in (
            (from_nats_message, message, {}),
            (from_nats_message, message, {"parse_data": False}),
            (to_nats_message, plain_event([data]), {"mode": mode}),
            (to_nats_message, plain_event((data,)), {"mode": mode}),
        ):
            _, error = after_calls(room - left, attempt, CeNatsError, call, value, **options)
            assert error is None or error.code in ("invalid-json", "invalid-data")
            assert error is None or "the interpreter's recursion limit allows" in error.message


def test_many_headers() -> None:
    """Thousands of headers, with and without ce-, and a duplicate at the end."""
    others = [(f"x-{number}", "1") for number in range(20_000)]
    pairs = binary_message().headers.items()
    assert from_nats_message(SimpleNamespace(headers=others + pairs, data=b"")).get_id() == "1"
    many = pairs + [(f"ce-x{number}", "1") for number in range(20_000)]
    assert len(from_nats_message(SimpleNamespace(headers=many, data=b"")).get_attributes()) == 20_004
    message = SimpleNamespace(headers=[*many, ("CE-X7", "2")], data=b"")
    assert refused(DecodeError, "duplicate-attribute", from_nats_message, message).header == "CE-X7"
    types = [("Content-Type", "a/b")] * 20_000
    refused(DecodeError, "duplicate-header", detect_mode, SimpleNamespace(headers=types, data=b""))


# --- Time -----------------------------------------------------------------------------------------------------------


def decode_header(value: str) -> Any:
    return from_nats_message(binary_message(x=value))


# The smaller size, a function that creates input of a size, and the call under test. Regular expressions reallocate
# their stack at some hundred thousand repeats, which costs a factor once; sizes stay away from there.
BLOWN_UP: dict[str, tuple[int, Callable[[int], Any], Callable[[Any], Any]]] = {
    "percent signs": (200_000, lambda n: "%" * n, percent.decode),
    "escapes": (200_000, lambda n: "%41" * n, percent.decode),
    "quotes": (40_000, lambda n: '""' * n + '"', percent.decode),
    "open quote": (400_000, lambda n: '"' + "a" * n, percent.decode),
    "backslashes": (40_000, lambda n: '"' + "\\" * n, percent.decode),
    "quoted pairs": (20_000, lambda n: '"' + '\\"' * n, percent.decode),
    "encoding": (100_000, lambda n: 'ü "%' * n, percent.encode),
    "white space": (400_000, lambda n: " \t" * n + "a", decode_header),
    "base64": (20_000, lambda n: "AAAA" * n + "A", lambda text: decode_base64("x", text)),
    "digits": (400_000, lambda n: "9" * n, lambda text: decode_extension("x", text, int)),
    "fraction": (400_000, lambda n: f"2020-01-01T00:00:00.{'1' * n}", Timestamp),
    "subject": (20_000, lambda n: "a." * n, lambda text: to_nats_message(plain_event(), text)),
    "further header": (400_000, lambda n: "a " * n, lambda text: to_nats_message(plain_event(), headers={"a": text})),
    "media type": (400_000, lambda n: "a" * n, parse),
    "parameters": (50_000, lambda n: "a/b" + ";" * n, parse),
    "quoted parameters": (50_000, lambda n: "a/b" + ';a="' * n, parse),
    "blank parameters": (50_000, lambda n: "a/b; " + " " * n, parse),
    "parameter names": (50_000, lambda n: "a/b" + ";a " * n + " " * n, parse),
    "equal signs": (50_000, lambda n: "a/b" + ";a=" * n, parse),
    "members": (10_000, lambda n: structured(_joined(b'"x%d":"\\""', n)), from_nats_message),
    "repeated member": (10_000, lambda n: structured(_joined(b'"x%d":1', n) + b',"x0":1'), from_nats_message),
    "strings in data": (50_000, lambda n: structured(b'"data":[' + b'"\\"",' * n + b"1]"), from_nats_message),
    "pairs in quotes": (40_000, lambda n: '"' + "\\x" * n + '"', percent.decode),
    "wide pairs in quotes": (20_000, lambda n: '"' + "\\\u20ac" * n + '"', percent.decode),
    "pairs in a parameter": (40_000, lambda n: 'a/b;c="' + "\\x" * n + '"', parse),
    "headers": (10_000, lambda n: binary_message(**{f"x{number}": "%22" for number in range(n)}), from_nats_message),
}


def _joined(template: bytes, count: int) -> bytes:
    return b",".join(template % number for number in range(count))


@pytest.mark.faults
@each("name", BLOWN_UP)
def test_time_is_linear(name: str) -> None:
    """Four times the input takes about four times as long, not sixteen."""
    size, make, call = BLOWN_UP[name]
    small, large = make(size), make(4 * size)
    # Noise only makes a run longer, so the shortest of several small ones is used, and the large one is repeated.
    assert any(_time(call, large) < 12 * max(min(_time(call, small) for _ in range(3)), 0.0005) for _ in range(9))


def _time(call: Callable[[Any], Any], value: Any) -> float:
    start = process_time()
    with suppress(DecodeError, EncodeError):
        call(value)
    return process_time() - start


# --- Memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.faults
@each("name", BLOWN_UP)
def test_memory_is_proportional(name: str) -> None:
    """No input needs more than 30 times its size."""
    size, make, call = BLOWN_UP[name]
    value = make(size)
    with suppress(DecodeError, EncodeError):
        call(make(10))  # loads modules and fills caches
    tracemalloc.start()
    try:
        with suppress(DecodeError, EncodeError):
            call(value)
        assert tracemalloc.get_traced_memory()[1] < 30 * _size(value)
    finally:
        tracemalloc.stop()


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return len(value.data) + sum(len(name) + len(text) for name, text in value.headers.items())


# --- Error texts ----------------------------------------------------------------------------------------------------


class Known(msgspec.Struct, forbid_unknown_fields=True):
    colour: Literal["red"] = "red"


def as_known(data: str) -> Known:
    return from_nats_message(binary_message(data.encode(), datacontenttype="a/json")).data_as(Known)


LONG = "x" * 1_000_000
DEAD_LETTER = {"Reason": "rejected", "Stream": "A", "Sequence": "1", "Deliveries": "1"}


def with_type(content_type: str) -> NatsMessage:
    return NatsMessage("s", b"", {"Content-Type": content_type})


def dead_letter(**fields: str) -> Any:
    return DeadLetter.split([(f"Dead-Letter-{name}", text) for name, text in {**DEAD_LETTER, **fields}.items()])


def _raise(error: CeNatsError) -> Any:
    raise error


def of_text(data: bytes, content_type: str) -> Any:
    return from_nats_message(structured(b'"data":' + data + b',"datacontenttype":"' + content_type.encode() + b'"'))


LONG_VALUES: dict[str, Callable[[], Any]] = {
    **{
        f"attribute {name}": lambda name=name: from_nats_message(binary_message(**{name: f"{LONG}\n"}))  # type: ignore[misc]
        for name in ("id", "specversion", "time", "dataschema", "datacontenttype", "x")
    },
    **{
        f"type {kind.__name__}": lambda kind=kind: decode_extension("x", LONG + "=", kind)  # type: ignore[misc]
        for kind in (int, bool, bytes, datetime)
    },
    "name": lambda: from_nats_message(binary_message(**{f"{LONG}_": "1"})),
    "repeated name": lambda: from_nats_message(structured(f'"{LONG}":1,"{LONG}":1'.encode())),
    "missing quote": lambda: decode_header(f'"{LONG}'),
    "escape": lambda: decode_header(f"%{LONG}"),
    "UTF-8": lambda: decode_header(f"%FF{LONG}"),
    "format": lambda: detect_mode(with_type(f"application/cloudevents+{LONG}")),
    "batch": lambda: detect_mode(with_type(f"application/cloudevents-batch{LONG}")),
    "charset of an event": lambda: detect_mode(with_type(f"application/cloudevents;charset={LONG}")),
    "charset": lambda: from_nats_message(binary_message(b"a", datacontenttype=f"text/plain;charset={LONG}")),
    "charset of JSON": lambda: from_nats_message(binary_message(b"a", datacontenttype=f"a/json;charset={LONG}")),
    "media type of JSON": lambda: of_text(b"1", f"text/{LONG}"),
    "media type": lambda: to_nats_message(plain_event(1, datacontenttype=f"text/{LONG}")),
    "array": lambda: from_nats_message(structured_message(f'["{LONG}"]'.encode())),
    "data_base64": lambda: from_nats_message(structured(f'"data_base64":["{LONG}"]'.encode())),
    "member": lambda: from_nats_message(structured(f'"x":["{LONG}"]'.encode())),
    "unknown field": lambda: as_known(f'{{"{LONG}":1}}'),
    "unknown value": lambda: as_known(f'{{"colour":"{LONG}"}}'),
    "reason of a dead letter": lambda: dead_letter(Reason=LONG),
    "number of a dead letter": lambda: dead_letter(Sequence=LONG),
    "digits of a dead letter": lambda: dead_letter(Deliveries="9" * 1_000_000),
    "text of a dead letter": lambda: dead_letter(Text=f"%{LONG}"),
    "line": lambda: from_json_line(LONG.encode()),
    "header of a line": lambda: from_json_line(b'{"headers":[["%s ","a"]],"timestamp":"a"}' % LONG.encode()),
    "time of a line": lambda: from_json_line(b'{"headers":[],"timestamp":"%s"}' % LONG.encode()),
    "subject": lambda: check_subject(f"{LONG} "),
    "pattern": lambda: check_pattern(f"{LONG} "),
    "status": lambda: decode_header_block(b"NATS/1.0 %s\r\n\r\n" % LONG.encode()),
    "header line": lambda: decode_header_block(b"NATS/1.0\r\n%s\r\n\r\n" % LONG.encode()),
    "operation": lambda: decode_frames(f"{LONG}\r\n".encode()),
    "arguments": lambda: decode_frames(f"MSG {LONG}\r\n".encode()),
    "text of a library": lambda: _raise(DecodeError(ErrorCode.INVALID_DATA, LONG)),
}


@each("name", LONG_VALUES)
def test_long_values_are_shortened_in_error_texts(name: str) -> None:
    """In the error and in its causes, which appear in logs."""
    error = attempt(CeNatsError, LONG_VALUES[name])[1]
    assert len(str(error)) <= (2100 if name == "text of a library" else 500)
    while error is not None and not isinstance(error, msgspec.ValidationError):
        assert len(str(error)) <= 2100
        error = error.__cause__


# --- Line breaks ----------------------------------------------------------------------------------------------------

BREAKS = ["\r\n", "\n", "\r", "\r\nce-id: 2", "\n\r\n", "\x00", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]
PLACES: dict[str, Callable[[str], tuple[Event, dict[str, Any]]]] = {
    "name": lambda text: (plain_event(**{"x" + text: "1"}), {}),
    "name at the end": lambda text: (plain_event(**{"x" + text + "y": "1"}), {}),
    **{
        name: lambda text, name=name: (plain_event(**{name: f"a:b{text}c"}), {})  # type: ignore[misc]
        for name in ("id", "source", "type", "subject", "dataschema", "x")
    },
    "specversion": lambda text: (plain_event(specversion=f"1.0{text}"), {}),
    "time": lambda text: (plain_event(time=f"2020-01-01T00:00:00Z{text}"), {}),
    "datacontenttype": lambda text: (plain_event("a", datacontenttype=f"text/plain;{text}"), {}),
    "charset": lambda text: (plain_event("a", datacontenttype=f'text/plain;charset="{text}"'), {}),
    "data": lambda text: (plain_event(f"a{text}b", datacontenttype="text/plain"), {}),
    "JSON data": lambda text: (plain_event({text: [text]}), {}),
    "bytes": lambda text: (plain_event(text.encode()), {}),
    "header name": lambda text: (plain_event(), {"headers": {f"a{text}": "1"}}),
    "header value": lambda text: (plain_event(), {"headers": {"a": f"b{text}c"}}),
    "header in a list": lambda text: (plain_event(), {"headers": {"a": ["b", f"b{text}c"]}}),
    "header in pairs": lambda text: (plain_event(), {"headers": [("a", f"b{text}c")]}),
    "header in Headers": lambda text: (plain_event(), {"headers": Headers([("a", f"b{text}c")])}),
    "subject of the message": lambda text: (plain_event(), {"subject": f"a{text}b"}),
    "reply": lambda text: (plain_event(), {"reply": f"a{text}"}),
}


@each("mode", MODES)
@each("place", PLACES)
@each("text", BREAKS)
def test_line_breaks_are_rejected_or_escaped(text: str, place: str, mode: str) -> None:
    """In all parts of an event and a message, so that no reader parses one header as two."""
    event, options = PLACES[place](text)
    message, error = attempt(EncodeError, to_nats_message, event, mode=mode, **options)
    if error is None:
        _check_headers(message)
        assert from_nats_message(message).get_id() == event.attributes["id"]
        assert not any(one in message.subject + message.reply for one in "\r\n\0 ")
    else:
        assert error.code.value.startswith(("invalid-", "unsupported-"))


def _check_headers(message: NatsMessage) -> None:
    """Check that readers that split at CRLF or at any ASCII line break, and nats-py, find the same headers."""
    block = encode_header_block(message.headers)
    written = [f"{name}: {value}".encode() for name, value in message.headers.items()]
    assert block.split(b"\r\n") == [b"NATS/1.0", *written, b"", b""]
    assert b"\r" not in block.replace(b"\r\n", b"")
    assert b"\n" not in block.replace(b"\r\n", b"")
    names = {name for name, _ in message.headers.items()}
    assert set(Client._parse_header_lines(block.partition(b"\r\n")[2])) == names


@given(any_events(), st.one_of(st.none(), hostile_headers), st.sampled_from(MODES))
def test_encoded_headers_are_parsed_unchanged(event: Event, headers: Any, mode: str) -> None:
    """Objects of any kind as attributes, data and headers."""
    message, error = attempt(EncodeError, to_nats_message, event, mode=mode, headers=headers)
    if error is None:
        _check_headers(message)
        assert all(value.isascii() for name, value in message.headers.items() if name.startswith("ce-"))


@each("place", PLACES)
@each("mode", MODES)
@each("text", ["\ud800", "\ude00\ud83d", "a\udc80b"])
def test_unpaired_surrogates_are_rejected(text: str, place: str, mode: str) -> None:
    """They have no UTF-8 form."""
    if place == "bytes":
        return
    event, options = PLACES[place](text)
    error = attempt(EncodeError, to_nats_message, event, mode=mode, **options)[1]
    assert error is not None
    assert error.code.value.startswith(("invalid-", "unsupported-"))


@each("value", ["\ud800", "a\udfffb", "%ED%A0%80", '"\ud800"'])
def test_received_unpaired_surrogates_are_rejected(value: str) -> None:
    """Raw (from an incorrect client) or escaped, in any attribute."""
    for name in ("id", "subject", "time", "datacontenttype", "x"):
        error = refused(DecodeError, "invalid-utf8", from_nats_message, binary_message(**{name: value}))
        assert error.attribute == name
    refused(EncodeError, "invalid-character", dedup_id, plain_event(id="\ud800"))


def test_surrogate_pairs_are_one_character() -> None:
    """An escaped pair decodes to its character."""
    for mode in MODES:
        decoded = from_nats_message(to_nats_message(plain_event(id="\ud83d\ude00", x="\ud83d\ude00"), mode=mode))
        assert decoded.get_id() == decoded.get_extension("x") == "\U0001f600"
    assert dedup_id(plain_event(id="\ud83d\ude00")) == dedup_id(plain_event(id="\U0001f600"))


# --- Objects --------------------------------------------------------------------------------------------------------


@each("make", [Rude, lambda: 10**5000])
@each("mode", MODES)
def test_objects_without_a_repr_are_rejected(make: Callable[[], Any], mode: str) -> None:
    """In any place, and with the usual error, not with that of their ``repr``."""
    value = make()
    events = [Event({**plain_event().attributes, name: item}) for name, item in ((value, "a"), ("x", value))]
    events += [plain_event({"a": value}), plain_event({value: 1}), plain_event(value, datacontenttype="text/plain")]
    for event in events:
        assert attempt(EncodeError, to_nats_message, event, mode=mode)[1] is not None
    for options in ({"headers": value}, {"headers": {value: "a"}}, {"headers": {"a": value}}, {"reply": value}):
        assert attempt(EncodeError, to_nats_message, plain_event(), mode=mode, **options)[1] is not None
    assert attempt(EncodeError, to_nats_message, plain_event(), value)[1] is not None
    assert attempt(EncodeError, to_nats_message, value)[1] is not None
    for headers, data in (
        (value, b""),
        ({value: "a"}, b""),
        ({"a": value}, b""),
        ({"ce-id": value}, b""),
        (None, value),
    ):
        message = SimpleNamespace(headers=headers, data=data)
        assert attempt(DecodeError, from_nats_message, message, mode=mode)[1] is not None
    assert attempt(DecodeError, from_nats_message, value)[1] is not None
