"""Events in raw header blocks have the results and errors of the codec, before and after functions are compiled."""

import random
from itertools import product
from typing import Any

import pytest

from ce_nats import ContentMode, DecodedEvent, DecodeError, Dialect, Timestamp
from ce_nats.aio.core._raw_decoder import RawDecoder, raw_decoder
from ce_nats.conformance import Case
from ce_nats.conformance._cases import octets, text
from ce_nats.conformance._events import extension_types
from ce_nats.wire.nats import write_header_block
from tests.support.blocks import BINARY, EVENT, STRUCTURED, block, decode_pairs
from tests.support.strategies import outcome, refused
from tests.support.tables import each
from tests.support.vectors import cases

# More than the uses before a function is compiled.
USES = 35


def check(
    payload: Any, header_block: bytes | None, decoder: RawDecoder | None = None, uses: int = USES, **options: Any
) -> Any:
    """Check the outcome of the first calls of a decoder and of later ones; return it."""
    expected = outcome(decode_pairs, payload, header_block, **options)
    decoder = decoder or raw_decoder(**options)
    for _ in range(uses):
        assert outcome(decoder, payload, header_block) == expected
    return expected


def error(payload: Any, header_block: bytes | None, code: str, **options: Any) -> DecodeError:
    """Return the error of a message, which must have this code."""
    check(payload, header_block, **options)
    found = refused(DecodeError, code, raw_decoder(**options), payload, header_block)
    assert isinstance(found, DecodeError)
    return found


# --- Conformance cases ----------------------------------------------------------------------------------------------


def can_be_written(case: Any) -> bool:
    """Whether the headers of a case can be bytes: there may be an unpaired surrogate."""
    (given,) = case.values
    try:
        write_header_block((text(name), text(value)) for name, value in given.input["headers"] or ())
    except UnicodeEncodeError:
        return False
    return True


@each("case", [*filter(can_be_written, [*cases(op="from_nats_message"), *cases(op="detect_mode")])])
def test_case_of_a_message(case: Case) -> None:
    given = case.input
    pairs = [(text(name), text(value)) for name, value in given["headers"] or ()]
    header_block = write_header_block(pairs) if pairs else None
    check(
        octets(given.get("data", {"text": ""})),
        header_block,
        mode=given.get("mode"),
        dialect=given.get("dialect", "spec"),
        parse_data=given.get("parse_data", True),
        extension_types=extension_types(given),
    )


@each("case", cases(op="wire.nats.decode_header_block"))
def test_case_of_a_header_block(case: Case) -> None:
    for payload in (b"", EVENT):
        check(payload, octets(case.input["block"]), uses=1 if case.source.get("flags") == ["LargeInput"] else USES)


# --- Options --------------------------------------------------------------------------------------------------------


@each(
    ("options", "error_class"),
    [
        ({"mode": "other"}, ValueError),
        ({"dialect": "other"}, ValueError),
        ({"extension_types": [("x", int)]}, TypeError),
    ],
)
def test_invalid_options_are_refused_at_once(options: Any, error_class: type[Exception]) -> None:
    with pytest.raises(error_class):
        raw_decoder(**options)


@each("mode", [None, "binary", ContentMode.STRUCTURED])
@each("dialect", ["spec", Dialect.SDK_GO])
@each("parse_data", [True, False])
@each("types", [None, {}, {"x": int}, {"x": bytes, "y": bool}, {"x": set}, {"id": int}])
def test_options(mode: Any, dialect: Any, parse_data: bool, types: Any) -> None:
    options = {"mode": mode, "dialect": dialect, "parse_data": parse_data, "extension_types": types}
    decoder = raw_decoder(**options)
    for pairs, payload in product(
        (
            [],
            BINARY,
            STRUCTURED,
            [*BINARY, ("ce-x", "42"), ("ce-datacontenttype", "application/json")],
            [*BINARY, ("content-type", "text/plain")],
            [*BINARY, *STRUCTURED],
        ),
        (b"", EVENT, b"1", EVENT.replace(b'"data"', b'"x":42,"data"')),
    ):
        expected = outcome_or_type_error(decode_pairs, payload, block(*pairs), **options)
        for _ in range(USES):
            assert outcome_or_type_error(decoder, payload, block(*pairs)) == expected


def test_first_of_several_declared_types_that_do_not_fit_is_reported() -> None:
    """In wire order, whether it is an error of the message or of the caller."""
    names = [f"x{number}" for number in range(8)]
    types = {name: int if number < 4 else set for number, name in enumerate(names)}
    for first in (names, names[::-1]):
        header_block = block(*BINARY, *[(f"ce-{name}", "a") for name in first])
        expected = outcome_or_type_error(decode_pairs, b"", header_block, extension_types=types)
        decoder = raw_decoder(extension_types=types)
        for _ in range(USES):
            assert outcome_or_type_error(decoder, b"", header_block) == expected


def outcome_or_type_error(call: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return outcome(call, *args, **kwargs)
    except TypeError as wrong:
        return type(wrong), str(wrong)


@each("payload", [None, bytearray(b"[1]"), memoryview(EVENT), "text", 5])
@each("pairs", [BINARY, STRUCTURED, [*BINARY, ("ce-datacontenttype", "application/json")]])
def test_payloads_that_are_not_bytes(payload: Any, pairs: Any) -> None:
    check(payload, block(*pairs))


@each("header_block", [None, b"", b"NATS/1.0\r\n\r\n"])
def test_message_without_headers_is_an_event_in_json(header_block: bytes | None) -> None:
    check(EVENT, header_block)
    assert raw_decoder()(EVENT, header_block).get_data() == [1]
    error(b"", header_block, "not-a-cloudevent")


# --- Errors of header blocks ----------------------------------------------------------------------------------------


@each("version", ["NATS/1.0 503", "NATS/1.0 100 Idle Heartbeat", "NATS/1.0 404 No Messages"])
def test_status_is_not_an_event(version: str) -> None:
    found = error(b"", f"{version}\r\n\r\n".encode(), "not-a-cloudevent")
    assert f"a status message of the server ('{version[9:12]}')" in str(found).replace('"', "'")
    error(b"", f"{version}\r\nNats-Last-Consumer: 5\r\n\r\n".encode(), "not-a-cloudevent")
    assert outcome(raw_decoder(), EVENT, f"{version}\r\n\r\n".encode()) == outcome(decode_pairs, EVENT, None)


@each("names", [("ce-id", "ce-id"), ("ce-id", "CE-ID"), ("ce-x", "Ce-X")])
def test_duplicated_attribute_is_refused(names: tuple[str, str]) -> None:
    """nats-py's dict of headers hides the first one."""
    pairs = [pair for pair in BINARY if pair[0] != names[0]]
    found = error(b"1", block(*pairs, (names[0], "1"), (names[1], "1")), "duplicate-attribute")
    assert (found.attribute, found.header) == (names[0][3:], names[1])


def test_duplicated_foreign_headers_are_ignored() -> None:
    check(b"1", block(*BINARY, ("X", "1"), ("X", "2")))
    check(EVENT, block(*STRUCTURED, ("X", "1"), ("X", "2")))


INVALID_UTF8 = b"a\xff".decode("utf-8", "surrogateescape")


def test_invalid_utf8_in_foreign_headers_is_ignored() -> None:
    for pairs, payload in ((BINARY, b"1"), (STRUCTURED, EVENT)):
        expected = outcome(raw_decoder(), payload, block(*pairs))
        assert check(payload, block(("X", INVALID_UTF8), *pairs, ("Y", INVALID_UTF8))) == expected


@each("name", ["ce-id", "ce-x", "ce-time", "CE-SPECVERSION", "ce-datacontenttype"])
def test_invalid_utf8_in_an_attribute_is_refused(name: str) -> None:
    pairs = [pair for pair in BINARY if pair[0] != name.lower()]
    found = error(b"1", block(*pairs, (name, INVALID_UTF8)), "invalid-utf8")
    assert (found.attribute, found.header) == (name[3:].lower(), name)


@each("name", ["Content-Type", "content-type"])
@each("pairs", [[], BINARY])
def test_invalid_utf8_in_content_type_is_refused(name: str, pairs: Any) -> None:
    for value in (INVALID_UTF8, f"application/cloudevents+json; x={INVALID_UTF8}"):
        assert error(EVENT, block(*pairs, (name, value)), "invalid-utf8").header == name


@each(
    ("line", "code"),
    [
        (b"X: a\0b", "invalid-header-value"),
        (b"X: a\rb", "invalid-header-block"),
        (b"X: a\nb", "invalid-header-block"),
        (b"X: a\n b", "invalid-header-block"),
        (b"X: a\r\n b", "invalid-header-block"),
        (b"X", "invalid-header-block"),
        (b"X : a", "invalid-header-name"),
        (b"\xc3\xbc: a", "invalid-header-name"),
        (b": a", "invalid-header-name"),
        (b"", "invalid-header-block"),
    ],
)
@each("pairs", [BINARY, STRUCTURED])
def test_invalid_foreign_lines_are_refused(line: bytes, code: str, pairs: Any) -> None:
    """As the first, the last and the only header, also after valid blocks with the same names."""
    decoder = raw_decoder()
    for valid in (block(("X", "a"), *pairs), block(*pairs, ("X", "a"))):
        check(EVENT, valid, decoder)
    lines = block(*pairs)[len(b"NATS/1.0\r\n") : -2]
    for header_block in (
        b"NATS/1.0\r\n" + line + b"\r\n" + lines + b"\r\n",
        b"NATS/1.0\r\n" + lines + line + b"\r\n\r\n",
        b"NATS/1.0\r\n" + line + b"\r\n\r\n",
    ):
        check(EVENT, header_block, decoder)
        refused(DecodeError, code, decoder, EVENT, header_block)


@each("pairs", [BINARY, STRUCTURED])
def test_damaged_blocks(pairs: Any) -> None:
    """Each byte is removed, duplicated or replaced, with a decoder that has decoded the block before."""
    decoder = raw_decoder()
    whole = block(*pairs, ("ce-time", "2020-01-01T00:00:00Z"), ("X", "a")) if pairs is BINARY else block(*pairs)
    for _ in range(USES):
        decoder(EVENT, whole)
    for place, other in product(range(len(whole)), (b"", b"\r", b"\n", b"\0", b" ", b":", b"%", b'"', b"\xff", b"9")):
        for end in (place, place + 1):
            damaged = whole[:place] + other + whole[end:]
            assert outcome(decoder, EVENT, damaged) == outcome(decode_pairs, EVENT, damaged), damaged
    for place in range(len(whole)):
        assert outcome(decoder, EVENT, whole[:place]) == outcome(decode_pairs, EVENT, whole[:place])


# --- Values ---------------------------------------------------------------------------------------------------------


def test_errors_name_attribute_and_header() -> None:
    decoder = raw_decoder()
    for _ in range(USES):
        decoder(b"1", block(*BINARY, ("Ce-Time", "2020-01-01T00:00:00Z")))
    found = refused(
        DecodeError, "invalid-timestamp", decoder, b"1", block(*BINARY, ("Ce-Time", "2020-02-30T00:00:00Z"))
    )
    assert (found.attribute, found.header) == ("time", "Ce-Time")  # type: ignore[attr-defined]


@each("value", ["application/json", "application%2Fjson", " application/json \t", '"application/json"'])
def test_media_type_is_read_after_white_space_and_escapes(value: str) -> None:
    check(b"[1]", block(*BINARY, ("ce-datacontenttype", value)))
    event = raw_decoder()(b"[1]", block(*BINARY, ("ce-datacontenttype", value)))
    assert (event.datacontenttype, event.data) == ("application/json", [1])


def test_decoder_keeps_no_state_between_modes() -> None:
    """A binary event after a structured one, with the same number of lines, and the other way round."""
    decoder = raw_decoder()
    binary = block(*BINARY, ("ce-datacontenttype", "application/json"))
    structured = block(*STRUCTURED, *[(f"X-{number}", "1") for number in range(4)])
    for _ in range(USES):
        assert decoder(b"[2]", binary).data == [2]
        assert decoder(EVENT, structured).data == [1]
        assert decoder(EVENT, None).data == [1]


def test_one_decoder_of_blocks_in_random_order() -> None:
    """Names in any case and order, values and errors of any kind, with a few hundred shapes."""
    draw = random.Random(7)
    names = ["ce-subject", "Ce-Time", "ce-datacontenttype", "ce-x", "X", "Nats-Msg-Id", "content-type"]
    values = [
        "a",
        "1",
        "2020-01-01T00:00:00+02:00",
        "application/json",
        "a%20b",
        "\u00fc u",
        "",
        '"q"',
        "%",
        "text/plain",
    ]
    blocks = []
    for _ in range(300):
        pairs = [*BINARY, *((name, draw.choice(values)) for name in draw.sample(names, 3))]
        draw.shuffle(pairs)
        pairs = [(draw.choice([name, name.title(), name.upper()]), value) for name, value in pairs]
        blocks.append(block(*draw.choice([pairs, pairs, pairs, pairs[1:], STRUCTURED])))
    expected = {one: outcome(decode_pairs, EVENT, one) for one in blocks}
    decoder = raw_decoder()
    for one in draw.choices(blocks, k=20_000):
        assert outcome(decoder, EVENT, one) == expected[one]


def test_events_share_no_state() -> None:
    decoder = raw_decoder()
    header_block = block(
        *BINARY, ("ce-time", "2020-01-01T00:00:00.123456789Z"), ("ce-datacontenttype", "application/json")
    )
    found: list[DecodedEvent] = [decoder(b"[]", header_block) for _ in range(2 * USES)]
    assert len({id(event.get_attributes()) for event in found}) == len(found)
    assert len({id(event.data) for event in found}) == len(found)
    assert {str(event.time) for event in found} == {"2020-01-01T00:00:00.123456789Z"}
    assert isinstance(found[-1].time, Timestamp)
