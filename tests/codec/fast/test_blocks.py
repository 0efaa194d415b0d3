"""Header blocks that the fast path decodes, agreement with the full codec, and bounds during floods of names."""

from collections.abc import Iterator
from itertools import product
from time import process_time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ce_nats import DecodedEvent, NatsMessage, from_nats_message
from ce_nats.aio.core._raw_decoder import raw_decoder
from ce_nats.codec._bounded_cache import MAX_TUPLES
from ce_nats.codec.fast import _blocks
from ce_nats.codec.fast._blocks import (
    FLOOD_STEP,
    MAX_MISSES,
    USES_BEFORE_COMPILE,
    block_decoder,
    block_decoder_source,
    block_pattern,
    block_shapes,
    unescaped_shapes,
)
from ce_nats.message import Headers
from ce_nats.wire.nats import write_header_block
from tests.support.blocks import BINARY, EVENT, STRUCTURED, block, decode_pairs
from tests.support.fast_path import COMMON, ENCODED, ODD_TEXTS
from tests.support.strategies import exact, hostile_messages, outcome, valid_messages
from tests.support.tables import each

TYPES = {"x": int, "y": str}
JSON = ("ce-datacontenttype", "application/json")


def not_handled(*_: object) -> Any:
    raise AssertionError("the fast path did not handle the event")


def check(payload: Any, header_block: bytes | None, **options: Any) -> None:
    """Check the first and the second outcome of a decoder."""
    expected = outcome(decode_pairs, payload, header_block, **options)
    decoder = raw_decoder(**options)
    for _ in range(2):
        assert outcome(decoder, payload, header_block) == expected


# --- Agreement ------------------------------------------------------------------------------------------------------


@given(
    st.one_of(hostile_messages, valid_messages()),
    st.sampled_from([None, None, "binary", "structured"]),
    st.sampled_from(["spec", "spec", "sdk-go"]),
    st.booleans(),
    st.sampled_from([None, TYPES]),
)
def test_same_event_or_same_error(message: Any, mode: Any, dialect: Any, parse_data: bool, types: Any) -> None:
    headers = getattr(message, "headers", None)
    assume(not isinstance(headers, Iterator))
    try:
        header_block = write_header_block(Headers(headers).items())
    except ValueError:
        assume(False)
    payload = getattr(message, "data", None)
    check(payload, header_block, mode=mode, dialect=dialect, parse_data=parse_data, extension_types=types)


@given(
    st.lists(st.sampled_from([b"NATS/1.0", b"\r\n", b"\n", b"\r", b":", b" ", b"\0", b"ce-id", b"%41", b"\xc3\xbc"]))
)
def test_same_error_for_any_block(parts: list[bytes]) -> None:
    check(EVENT, b"".join(parts))
    check(EVENT, b"NATS/1.0\r\n" + b"".join(parts) + b"\r\n\r\n")


@each("name", COMMON)
def test_headers_with_an_odd_value(name: str) -> None:
    """Each attribute with each value, as sent by others: with other white space, in other case, escaped or not."""
    decoders = [(options, raw_decoder(**options)) for options in ({}, {"parse_data": False, "extension_types": TYPES})]
    for value, form in product(ODD_TEXTS, ("{}: {}", "{}:{}", "{}:  {}\t", "{}:\t{}")):
        lines = [form.format(f"ce-{key}", value if key == name else text) for key, text in ENCODED.items()]
        try:
            header_block = "\r\n".join(["NATS/1.0", *lines, "\r\n"]).encode()
        except UnicodeEncodeError:
            continue
        for options, decoder in decoders:
            assert outcome(decoder, b'{"a": [1]}', header_block) == outcome(
                decode_pairs, b'{"a": [1]}', header_block, **options
            ), header_block


@each("content_type", ["application/json", "Application/CloudEvents+JSON; charset=UTF-8", "", "\u00fc"])
@each("name", ["Content-Type", "content-type"])
def test_content_type_beside_attributes(name: str, content_type: str) -> None:
    for pairs, payload in product(([], BINARY, [*BINARY, JSON]), (b"", b"1", EVENT)):
        check(payload, block((name, content_type), *pairs))
        check(payload, block(*pairs, ("Nats-Msg-Id", "1"), (name, content_type)))


# --- Events that are handled ----------------------------------------------------------------------------------------

TIME = ("ce-time", "2020-01-01T00:00:00Z")


@each(
    ("pairs", "payload"),
    [
        ([*BINARY, JSON, TIME], b'{"a":1}'),
        ([*BINARY, JSON, ("ce-x", "42")], b""),
        (BINARY, b"\xff"),
        ([*BINARY, ("ce-datacontenttype", "text/plain")], b"a"),
        ([*BINARY, ("ce-time", "2020-01-01T00:00:00+02:00")], b""),
        ([*BINARY, ("ce-time", "2020-01-01T00:00:00.123456789Z")], b""),
        ([*BINARY, ("ce-subject", "%C3%BC%20u"), ("ce-y", "%25")], b""),
        ([*BINARY, ("ce-subject", "\u00fc u"), ("ce-x", "1")], b""),
        ([(name.title(), value) for name, value in BINARY], b""),
        ([("Nats-Msg-Id", "a"), *BINARY, ("X", "\u00fc \t"), ("X", "")], b""),
        ([*BINARY, ("content-type", "application/json"), JSON], b"1"),
        (STRUCTURED, EVENT),
        ([("content-type", "application/cloudevents; charset=utf-8"), ("Nats-Msg-Id", "a")], EVENT),
        ([("Nats-Msg-Id", "a")], EVENT),
        ([], EVENT),
    ],
)
@each("parse_data", [True, False])
@each("types", [None, TYPES])
def test_common_events_are_handled(pairs: Any, payload: bytes, parse_data: bool, types: Any) -> None:
    decoder = block_decoder(not_handled, None, parse_data, types)
    assert decoder is not None
    expected = outcome(decode_pairs, payload, block(*pairs), parse_data=parse_data, extension_types=types)
    for _ in range(2):
        assert outcome(decoder, payload, block(*pairs)) == expected


@each(("mode", "pairs"), [("binary", STRUCTURED), ("binary", [("X", "1")])])
def test_other_mode_than_the_required_one_is_not_handled(mode: Any, pairs: Any) -> None:
    decoder = block_decoder(not_handled, mode, True, None)
    assert decoder is not None
    with pytest.raises(AssertionError):
        decoder(EVENT, block(*pairs))


def test_shapes_with_the_same_number_of_lines() -> None:
    decoder = block_decoder(not_handled, None, True, None)
    assert decoder is not None
    for number in range(3 * 12):
        name = f"x{number % 12}"
        assert exact(decoder(b"", block(*BINARY, (f"ce-{name}", "a"))).get_attributes()[name]) == exact("a")
    assert len(block_shapes) == 12


# --- Source text ----------------------------------------------------------------------------------------------------


def test_source_text() -> None:
    names = ("Nats-Msg-Id", "ce-type", "ce-id", "CE-Source", "ce-specversion", "ce-time", "ce-datacontenttype", "ce-x")
    assert (
        block_decoder_source((*names, "Content-Type"))
        == """\
def decode(text, payload, readers, read_event):
    found = match(text)
    if found is None:
        return None
    v1, v2, v3, v5, v6, v7, v8, = found.groups()
    other_types[v8]
    if not text.isascii() or ("%" in text and "%" in f"{v2}{v7}"):
        v2, v7, = unescape_all((v2, v7,))
    v6 = datacontenttype_values[v6]
    event = new(DecodedEvent)
    event._attributes = {'type': type_values[v1], 'id': v2, 'source': source_values[v3], 'specversion': "1.0", \
'time': timestamp(v5), 'datacontenttype': v6, name_of_v7: v7}
    event.is_json = False
    event.has_data = has_data = payload != b''
    event._data = readers[v6](payload) if has_data else None
    return event"""
    )


def test_pattern() -> None:
    names = ("X.Y", "ce-specversion", "ce-id", "Ce-Time")
    assert block_pattern(names) == (
        "NATS/1\\.0\r\nX\\.Y:[^\r]*\r\nce\\-specversion: ?1\\.0\r\n"
        "ce\\-id: ?([!#-~]+)\r\nCe\\-Time: ?([^ \r][^\r]*)\r\n\r\n"
    )


def test_names_of_extensions_are_not_constants() -> None:
    """Python 3.12 and later keep constants that look like names until the process ends."""
    names = (*(name for name, _ in BINARY), "ce-extension")
    shape: Any = block_shapes[names]
    assert "'extension'" not in repr(shape.__code__.co_consts + shape.__code__.co_names)


# --- Limits ---------------------------------------------------------------------------------------------------------


def test_shape_is_compiled_after_some_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_shapes, "uses_before_compile", USES_BEFORE_COMPILE)
    calls: list[Any] = []

    def otherwise(*args: Any) -> DecodedEvent:
        calls.append(args)
        return DecodedEvent({})

    decoder = block_decoder(otherwise, None, True, None)
    assert decoder is not None
    for _ in range(2 * USES_BEFORE_COMPILE):
        decoder(b"", block(*BINARY))
    assert calls == [(b"", block(*BINARY))] * (USES_BEFORE_COMPILE - 1)
    assert len(block_shapes) == 1
    assert not unescaped_shapes


def test_few_events_are_examined_during_a_flood_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[str] = []
    names = _blocks._names
    monkeypatch.setattr(_blocks, "_names", lambda text: examined.append(text) or names(text))  # type: ignore[func-returns-value]
    for shapes in (block_shapes, unescaped_shapes):
        monkeypatch.setattr(shapes, "uses_before_compile", USES_BEFORE_COMPILE)
    decoder = raw_decoder()
    for number in range(2 * MAX_MISSES):
        decoder(b"", block(*BINARY, (f"ce-x{number}", "a")))
    assert len(examined) == MAX_MISSES + MAX_MISSES // FLOOD_STEP
    for _ in range(FLOOD_STEP * USES_BEFORE_COMPILE):
        decoder(b"", block(*BINARY))
    examined.clear()
    for number in range(10):
        decoder(b"", block(*BINARY, (f"ce-y{number}", "a")))
    assert len(examined) == 10


def test_memory_is_bounded_during_a_flood_of_names() -> None:
    decoder = raw_decoder()
    cells: Any = decoder.__closure__  # type: ignore[attr-defined]
    recent = next(cell.cell_contents for cell in cells if getattr(cell.cell_contents, "__name__", "") == "get").__self__
    for number in range(3 * MAX_TUPLES):
        header_block = block(*BINARY, *[(f"X{number}", "")] * (number % 100))
        for _ in range(2):
            decoder(b"", header_block)
    assert 0 < len(block_shapes) <= MAX_TUPLES
    assert len(unescaped_shapes) <= MAX_TUPLES
    assert 0 < len(recent) <= 64 + 2


@each("part", ["a", " ", "%41", '"', "a ", "\u00fc"])
def test_time_is_linear(part: str) -> None:
    """A long value in each header, in a block that does not match at its end."""

    def seconds(length: int) -> float:
        value = part * (length // len(part))
        names = ["ce-id", "ce-source", "X", "Content-Type", "ce-y"]
        header_block = block(*[(name, value) for name in names], *BINARY, ("ce-time", value + '"'))
        start = process_time()
        outcome(decoder, b"", header_block)
        return process_time() - start

    decoder = raw_decoder()
    short, long = (min(seconds(length) for _ in range(3)) for length in (20_000, 200_000))
    assert long < 40 * short + 0.05


def test_headers_of_another_library_are_the_same_event() -> None:
    pairs = [*BINARY, JSON, TIME]
    assert raw_decoder()(b"[1]", block(*pairs)) == from_nats_message(NatsMessage("s", b"[1]", pairs))
