"""
The SDKs that are judged by the conformance vectors, and why they fail where it is known.

A cause is looked for by what is wrong with an answer; faults without a cause are grouped by what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ce_nats.conformance import Case

from .faults import Fault, Kind
from .peers import go_peer, node_peer, python_answers, rust_peer

Match = Callable[[Case, Fault], bool]


@dataclass(frozen=True)
class Cause:
    """
    Why cases fail.

    Attributes:
        title: A sentence for docs/conformance.md.
        match: Whether it stands behind a fault of a case.
        issue: Where it is known upstream, as ``owner/repository#number``.
    """

    title: str
    match: Match
    issue: str = ""


@dataclass(frozen=True)
class Judged:
    """
    An SDK, or one of its protocols.

    Attributes:
        key: Its name in judged.json and in tests.
        name: Its name on the page.
        version: What is judged.
        calls: Which functions answer.
        program: Makes the program of ``--exec``.
        causes: The first that fits a fault is its cause.
    """

    key: str
    name: str
    version: str
    calls: str
    program: Callable[[], list[str]]
    causes: tuple[Cause, ...]


# --- How faults are recognised --------------------------------------------------------------------------------------


def _headers(case: Case) -> list[tuple[str, str]]:
    return [(str(name).lower(), str(value)) for name, value in case.input.get("headers") or []]


def _is_binary(case: Case) -> bool:
    if case.op == "to_nats_message":
        return case.input.get("mode", "binary") == "binary"
    return any(name.startswith("ce-") for name, _ in _headers(case))


def _is(kind: Kind, *where: str) -> Match:
    return lambda case, fault: fault.kind is kind and (not where or fault.where in where)


def _requires(name: str) -> Match:
    return lambda case, fault: fault.kind is Kind.REFUSED and name in case.requirements


def _not_encoded(case: Case, fault: Fault) -> bool:
    is_changed = fault.kind is Kind.CHANGED and fault.where.startswith("header ce-")
    return case.op == "to_nats_message" and is_changed and "%" in fault.wanted


def _not_decoded(case: Case, fault: Fault) -> bool:
    values = [value for name, value in _headers(case) if name.startswith("ce-")]
    is_escaped = any("%" in value or '"' in value for value in values)
    if fault.kind is Kind.TAKEN:
        return is_escaped and fault.where in ("invalid-percent-escape", "unterminated-quote", "invalid-utf8")
    return case.op == "from_nats_message" and is_escaped and fault.kind in (Kind.CHANGED, Kind.REFUSED)


def _lenient_unquote(case: Case, fault: Fault) -> bool:
    return _is_binary(case) and _not_decoded(case, fault)


def _says(*texts: str) -> Match:
    return lambda case, fault: fault.kind is Kind.REFUSED and any(text in fault.got for text in texts)


def _time(case: Case, fault: Fault) -> bool:
    is_timestamp = case.op == "attributes.timestamp" and fault.where == "text"
    is_canonical = case.op == "attributes.canonical" and case.input.get("type") == "Timestamp"
    is_typed = fault.wanted.startswith("Timestamp")
    return fault.kind is Kind.CHANGED and (
        is_timestamp or is_canonical or is_typed or fault.where in ("time", "header ce-time")
    )


def _printed(case: Case, fault: Fault) -> bool:
    return fault.kind is Kind.CHANGED and fault.got.startswith(('"[', '"{{'))


def _printed_by_python(case: Case, fault: Fault) -> bool:
    is_printed = fault.got.startswith("\"b'") or fault.got in ('"True"', '"False"')
    return fault.kind is Kind.CHANGED and case.op == "to_nats_message" and is_printed


def _views(case: Case, fault: Fault) -> bool:
    is_view = fault.got.startswith('{"0":') or fault.got in ("{}", '"0,1,2,255"')
    return fault.kind is Kind.CHANGED and case.op == "to_nats_message" and is_view


def _outside_rfc_3986(case: Case, fault: Fault) -> bool:
    return fault.kind in (Kind.CHANGED, Kind.REFUSED) and "A-24" in case.requirements


def _header_less(case: Case, fault: Fault) -> bool:
    names = [name for name, _ in _headers(case)]
    types = [value.lower() for name, value in _headers(case) if name == "content-type"]
    is_marked = any(value.startswith("application/cloudevents") for value in types)
    is_marked = is_marked or any(name.startswith("ce-") for name in names)
    return case.op == "from_nats_message" and fault.kind is Kind.REFUSED and not is_marked


# --- Causes that several have ---------------------------------------------------------------------------------------

NO_CONTENT_TYPE = Cause(
    "Structured messages are written without `Content-Type`, by which a reader is to tell the modes apart.",
    _is(Kind.MISSING, "header content-type"),
)
TAKES = partial(_is, Kind.TAKEN)
CHARACTERS = Cause("Control characters and noncharacters pass in attributes.", TAKES("invalid-character"))
EMPTY = Cause("Empty attributes pass.", TAKES("empty-attribute"))
NAMES = Cause("Attribute names other than lower-case letters and digits pass.", TAKES("invalid-attribute-name"))
VALUES = Cause("Values of types that attributes do not have pass.", TAKES("invalid-attribute-type"))
REPEATED = Cause(
    "An attribute that is there twice passes, and one of its values is taken.",
    TAKES("duplicate-attribute", "duplicate-header"),
)
CHARSETS = Cause("Charsets are not looked at.", TAKES("unsupported-charset"))
MEDIA_TYPES = Cause("A `datacontenttype` that is no media type passes.", TAKES("invalid-media-type"))
VERSIONS = Cause("Versions other than 1.0 pass; several SDKs have 0.3 on purpose.", TAKES("unsupported-specversion"))
JSON = Cause(
    "JSON passes that is none, is deeper than 128 levels, or has lone surrogates or bytes that are not UTF-8.",
    TAKES("invalid-json", "invalid-utf8"),
)
DATA = Cause("Data passes that is not of its type.", TAKES("invalid-data", "data-conflict", "invalid-base64"))
TIMES = Cause("Timestamps pass that RFC 3339 does not have.", TAKES("invalid-timestamp"))
URIS = Cause("URIs pass that are none.", TAKES("invalid-uri"))
INTEGERS = Cause("Integers beyond 32 bits, or in other forms, pass.", TAKES("integer-out-of-range", "invalid-integer"))
MODES = Cause(
    "What is not an event in one of the two modes passes as one: other media types, batches, other messages.",
    TAKES("not-a-cloudevent", "unsupported-format", "batch-not-supported"),
)
LEAP = _requires("RF-3339-04")
BYTE_ORDER_MARK = Cause("A byte order mark before JSON is refused.", _requires("A-44"))
NULLS = Cause("Members of the JSON that are null are not taken for absent.", _requires("JF-2.2-08"))
TRAILING_BITS = Cause("Base64 with trailing bits that are not zero is refused.", _requires("RF-4648-03"))
SOURCES = Cause("A URI with a space or characters beyond ASCII is changed or refused.", _outside_rfc_3986)
REQUIRED = Cause("A required attribute that is missing is made up.", TAKES("missing-attribute"))
BOOLEANS = Cause("Booleans other than `true` and `false` pass.", TAKES("invalid-boolean"))
LOWER_CASE = Cause("A timestamp with `t` or `z` in lower case is refused.", _requires("RF-3339-02"))
DATA_CHANGED = Cause("Data comes out as another value, or as another kind of value.", _is(Kind.CHANGED, "data"))
NOT_ANSWERED = Cause(
    "The answer is no JSON (a number or text that JSON does not have), or not the same each time, or the SDK crashed.",
    _is(Kind.NO_ANSWER),
)
COMMON = (
    *(NO_CONTENT_TYPE, CHARACTERS, EMPTY, NAMES, VALUES, REPEATED, CHARSETS, MEDIA_TYPES, VERSIONS, JSON, DATA),
    *(TIMES, URIS, INTEGERS, BOOLEANS, REQUIRED, MODES, LOWER_CASE, BYTE_ORDER_MARK, NULLS, TRAILING_BITS, SOURCES),
    *(DATA_CHANGED, NOT_ANSWERED),
)

# --- sdk-go ---------------------------------------------------------------------------------------------------------

GO = (
    Cause(
        "A message panics its reader: `data_base64` that is a number, or empty beside `data`.",
        lambda case, fault: fault.kind is Kind.NO_ANSWER and case.id.startswith("base64-data-"),
    ),
    Cause("Leap seconds are refused: Go's `time` has none.", LEAP, "golang/go#77072"),
    Cause(
        "JSON types other than `application/json` and `text/json`, or in capitals, are not taken for JSON.",
        _says("unexpected data payload for media type", "unsupported content type"),
        "cloudevents/sdk-go#1273",
    ),
    Cause("The text of a timestamp is not kept: it is put into UTC, and zeros at its end are cut.", _time),
    *COMMON,
)
GO_BINARY = (
    Cause(
        "Binary and URIs are printed as Go prints a slice, `[0 1 2]`, or a struct, `{{https   example.com…`.", _printed
    ),
    Cause("Header values are not percent-encoded.", _not_encoded, "cloudevents/sdk-go#1334"),
    Cause(
        "Header values are not percent-decoded, quoted strings are not undone, and bad escapes pass.",
        _not_decoded,
        "cloudevents/sdk-go#1334",
    ),
    Cause(
        "The mode goes by `ce-specversion` and not by `Content-Type`, and all that is not binary is structured.",
        lambda case, fault: case.suite == "mode-detection" and "A-44" not in case.requirements,
        "cloudevents/sdk-go#1334",
    ),
    *GO,
)

# --- sdk-rust -------------------------------------------------------------------------------------------------------

RUST = (
    Cause("The text of a timestamp is not kept: it is put into UTC, and digits are cut or added.", _time),
    Cause("JSON is read 128 levels deep, the event's own object included.", _requires("A-46")),
    Cause("A type is compared by its letters: `Application/JSON` is no JSON.", _says("expected a string")),
    *COMMON,
)

# --- sdk-javascript -------------------------------------------------------------------------------------------------

JAVASCRIPT = (
    Cause(
        "An event without `time` gets the current one.",
        _is(Kind.MADE_UP, "time", "header ce-time"),
        "cloudevents/sdk-javascript#419",
    ),
    Cause(
        "A timestamp has milliseconds and UTC; one that cannot be read becomes the current time.",
        lambda case, fault: _time(case, fault) or _is(Kind.TAKEN, "invalid-timestamp")(case, fault),
        "cloudevents/sdk-javascript#386",
    ),
    Cause(
        "Attributes that are required are made up: `id` and `specversion`.",
        TAKES("missing-attribute"),
        "cloudevents/sdk-javascript#597",
    ),
    Cause(
        "The HTTP binding has `datacontenttype` in `Content-Type`, and writes a type where there is none.",
        _is(Kind.MADE_UP, "header content-type", "datacontenttype"),
    ),
    Cause(
        "The HTTP binding has `datacontenttype` in `Content-Type`, where NATS has `ce-datacontenttype`.",
        _is(Kind.MISSING, "header ce-datacontenttype"),
    ),
    Cause("Header values are not percent-encoded.", _not_encoded),
    Cause(
        "Header values are not percent-decoded, quoted strings are not undone, and bad escapes pass.",
        _not_decoded,
    ),
    Cause("A Binary, a `Uint8Array`, is not written in base64.", _views),
    Cause(
        "Attributes of null are kept.",
        lambda case, fault: (
            fault.kind is Kind.MADE_UP and fault.where in ("dataschema", "subject", "header ce-subject")
        ),
    ),
    Cause("Numbers and booleans are not written as JSON in binary mode.", _says("nats.js publishes")),
    Cause("A message without CloudEvents headers is refused, even with an event in it.", _header_less),
    *COMMON,
)

# --- sdk-python -----------------------------------------------------------------------------------------------------

PYTHON = (
    Cause("An event without `time` gets the current one.", _is(Kind.MADE_UP, "time", "header ce-time")),
    Cause("The text of a timestamp is not kept: it has microseconds.", _time),
    Cause(
        "The HTTP binding has `datacontenttype` in `Content-Type`, where NATS has `ce-datacontenttype`.",
        lambda case, fault: (
            _is(Kind.MADE_UP, "header content-type", "datacontenttype")(case, fault)
            or _is(Kind.MISSING, "header ce-datacontenttype")(case, fault)
        ),
    ),
    Cause("Escapes that are malformed or not UTF-8 pass, and quoted strings are not undone.", _lenient_unquote),
    Cause("Binary and Boolean are printed as Python prints them: `b'\\x00'`, `True`.", _printed_by_python),
    Cause("An event with a Binary is not written as JSON.", _says("not JSON serializable")),
    Cause("Leap seconds are refused: Python's `datetime` has none.", LEAP),
    *COMMON,
)

SDKS = (
    Judged(
        "go-jetstream",
        "sdk-go `nats_jetstream/v2`",
        "2.16.2",
        "`WriteMsg`, `NewMessage`, `binding.ToEvent`, `Event.Validate` and, for data, `DataAs`; headers as nats.go "
        "parses them",
        partial(go_peer, "answer"),
        GO_BINARY,
    ),
    Judged(
        "go-nats",
        "sdk-go `nats/v2`",
        "2.16.2",
        "the same functions of `nats/v2`. It has no binary mode: messages with `ce-` headers, and binary ones to be "
        "written, are not put to it",
        partial(go_peer, "answer"),
        GO,
    ),
    Judged(
        "rust",
        "sdk-rust",
        "0.9.0, feature `nats`",
        "`NatsCloudEvent::from_event`, `MessageExt::to_event` and the `TryFrom`s of `Data`. It has no binary mode: "
        "messages with `ce-` headers, and binary ones to be written, are not put to it",
        partial(rust_peer, "answer"),
        RUST,
    ),
    Judged(
        "javascript",
        "sdk-javascript",
        "10.0.0 with nats.js 3.4.0",
        "`HTTP.toEvent` and `validate()`, `HTTP.binary`, `HTTP.structured`. It has no NATS binding: its HTTP binding "
        "is the nearest, and nats.js carries the headers",
        partial(node_peer, "answer"),
        JAVASCRIPT,
    ),
    Judged(
        "python",
        "sdk-python",
        "2.2.0",
        "`from_http_event`, `to_binary_event` and `to_structured_event` of `cloudevents.core`, which rest on its JSON "
        "format. It has no NATS binding: its HTTP binding is the nearest",
        python_answers,
        PYTHON,
    ),
)
ARGUMENTS = {"go-jetstream": ["jetstream"], "go-nats": ["nats"]}
