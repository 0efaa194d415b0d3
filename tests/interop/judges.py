"""
SDKs that run the conformance cases, and known causes of their faults.

The first cause that matches a fault of an answer is used; faults without a cause are grouped by kind.
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
    Cause of failed cases.

    Attributes:
        title: A sentence for docs/conformance.md.
        match: Returns whether it is the cause of a fault of a case.
        issue: Upstream issue, as ``owner/repository#number``.
    """

    title: str
    match: Match
    issue: str = ""


@dataclass(frozen=True)
class Judged:
    """
    An SDK, or one of its protocols.

    Attributes:
        key: Name in judged.json and in tests.
        name: Name on the page.
        version: Version on the page.
        calls: Functions that are called.
        program: Builds the program for ``--exec``, and returns its command.
        causes: Known causes; the first that matches a fault is used.
    """

    key: str
    name: str
    version: str
    calls: str
    program: Callable[[], list[str]]
    causes: tuple[Cause, ...]


# --- Conditions of causes -------------------------------------------------------------------------------------------


def _headers(case: Case) -> list[tuple[str, str]]:
    return [(str(name).lower(), str(value)) for name, value in case.input.get("headers") or []]


def _is_binary(case: Case) -> bool:
    if case.op == "to_nats_message":
        return case.input.get("mode", "binary") == "binary"
    return any(name.startswith("ce-") for name, _ in _headers(case))


def _is(kind: Kind, *where: str) -> Match:
    return lambda case, fault: fault.kind is kind and (not where or fault.where in where)


def _requires(name: str) -> Match:
    return lambda case, fault: fault.kind is Kind.REJECTED and name in case.requirements


def _not_encoded(case: Case, fault: Fault) -> bool:
    is_changed = fault.kind is Kind.CHANGED and fault.where.startswith("header ce-")
    return case.op == "to_nats_message" and is_changed and "%" in fault.expected


def _not_decoded(case: Case, fault: Fault) -> bool:
    values = [value for name, value in _headers(case) if name.startswith("ce-")]
    is_escaped = any("%" in value or '"' in value for value in values)
    if fault.kind is Kind.ACCEPTED:
        return is_escaped and fault.where in ("invalid-percent-escape", "unterminated-quote", "invalid-utf8")
    return case.op == "from_nats_message" and is_escaped and fault.kind in (Kind.CHANGED, Kind.REJECTED)


def _lenient_unquote(case: Case, fault: Fault) -> bool:
    return _is_binary(case) and _not_decoded(case, fault)


def _has_text(*texts: str) -> Match:
    return lambda case, fault: fault.kind is Kind.REJECTED and any(text in fault.got for text in texts)


def _time(case: Case, fault: Fault) -> bool:
    is_timestamp = case.op == "attributes.timestamp" and fault.where == "text"
    is_canonical = case.op == "attributes.canonical" and case.input.get("type") == "Timestamp"
    is_typed = fault.expected.startswith("Timestamp")
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
    return fault.kind in (Kind.CHANGED, Kind.REJECTED) and "A-24" in case.requirements


def _header_less(case: Case, fault: Fault) -> bool:
    names = [name for name, _ in _headers(case)]
    types = [value.lower() for name, value in _headers(case) if name == "content-type"]
    is_marked = any(value.startswith("application/cloudevents") for value in types)
    is_marked = is_marked or any(name.startswith("ce-") for name in names)
    return case.op == "from_nats_message" and fault.kind is Kind.REJECTED and not is_marked


# --- Causes of several SDKs -----------------------------------------------------------------------------------------

NO_CONTENT_TYPE = Cause(
    "Structured messages have no `Content-Type`, which readers need to detect the mode.",
    _is(Kind.MISSING, "header content-type"),
)
ACCEPTS = partial(_is, Kind.ACCEPTED)
CHARACTERS = Cause("Control characters and noncharacters in attributes are accepted.", ACCEPTS("invalid-character"))
EMPTY = Cause("Empty attributes are accepted.", ACCEPTS("empty-attribute"))
NAMES = Cause(
    "Attribute names with characters other than lower-case letters and digits are accepted.",
    ACCEPTS("invalid-attribute-name"),
)
VALUES = Cause("Attribute values outside of the type system are accepted.", ACCEPTS("invalid-attribute-type"))
REPEATED = Cause(
    "Duplicate attributes are accepted; one of the values is used.",
    ACCEPTS("duplicate-attribute", "duplicate-header"),
)
CHARSETS = Cause("Charsets are ignored.", ACCEPTS("unsupported-charset"))
MEDIA_TYPES = Cause("A `datacontenttype` that is not a media type is accepted.", ACCEPTS("invalid-media-type"))
VERSIONS = Cause(
    "Versions other than 1.0 are accepted; several SDKs support 0.3 intentionally.", ACCEPTS("unsupported-specversion")
)
JSON = Cause(
    "Invalid JSON is accepted, or JSON with more than 128 levels, unpaired surrogates, or bytes that are not UTF-8.",
    ACCEPTS("invalid-json", "invalid-utf8"),
)
DATA = Cause(
    "Data that does not match its type is accepted.", ACCEPTS("invalid-data", "data-conflict", "invalid-base64")
)
TIMES = Cause("Timestamps that are not RFC 3339 are accepted.", ACCEPTS("invalid-timestamp"))
URIS = Cause("Invalid URIs are accepted.", ACCEPTS("invalid-uri"))
INTEGERS = Cause(
    "Integers out of range for 32 bits, or in other forms, are accepted.",
    ACCEPTS("integer-out-of-range", "invalid-integer"),
)
MODES = Cause(
    "Messages that are not events are accepted as events: other media types, batches, other messages.",
    ACCEPTS("not-a-cloudevent", "unsupported-format", "batch-not-supported"),
)
LEAP = _requires("RF-3339-04")
BYTE_ORDER_MARK = Cause("A byte order mark before JSON is rejected.", _requires("A-44"))
NULLS = Cause("JSON members with the value null are not treated as absent.", _requires("JF-2.2-08"))
TRAILING_BITS = Cause("Base64 with non-zero trailing bits is rejected.", _requires("RF-4648-03"))
SOURCES = Cause("A URI with a space or non-ASCII characters is changed or rejected.", _outside_rfc_3986)
REQUIRED = Cause("A missing required attribute is generated.", ACCEPTS("missing-attribute"))
BOOLEANS = Cause("Booleans other than `true` and `false` are accepted.", ACCEPTS("invalid-boolean"))
LOWER_CASE = Cause("A timestamp with lower-case `t` or `z` is rejected.", _requires("RF-3339-02"))
DATA_CHANGED = Cause("Data is decoded to another value, or to another kind of value.", _is(Kind.CHANGED, "data"))
NOT_ANSWERED = Cause(
    "The answer is not JSON (an invalid number or text), or differs between runs, or the SDK crashed.",
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
        "The reader panics if `data_base64` is a number, or is empty in addition to `data`.",
        lambda case, fault: fault.kind is Kind.NO_ANSWER and case.id.startswith("base64-data-"),
    ),
    Cause("Leap seconds are rejected, because Go's `time` does not support them.", LEAP, "golang/go#77072"),
    Cause(
        "JSON media types other than `application/json` and `text/json`, or in upper case, are not treated as JSON.",
        _has_text("unexpected data payload for media type", "unsupported content type"),
        "cloudevents/sdk-go#1273",
    ),
    Cause("The text of a timestamp is not kept: it is converted to UTC, without trailing zeros.", _time),
    *COMMON,
)
GO_BINARY = (
    Cause(
        "Binary and URI values are formatted as a Go slice, `[0 1 2]`, or a struct, `{{https   example.com…`.", _printed
    ),
    Cause("Header values are not percent-encoded.", _not_encoded, "cloudevents/sdk-go#1334"),
    Cause(
        "Header values are not percent-decoded, quoted strings are not unescaped, and malformed escapes are accepted.",
        _not_decoded,
        "cloudevents/sdk-go#1334",
    ),
    Cause(
        "The mode depends on `ce-specversion`, not on `Content-Type`; every message that is not binary is structured.",
        lambda case, fault: case.suite == "mode-detection" and "A-44" not in case.requirements,
        "cloudevents/sdk-go#1334",
    ),
    *GO,
)

# --- sdk-rust -------------------------------------------------------------------------------------------------------

RUST = (
    Cause("The text of a timestamp is not kept: it is converted to UTC, and digits are removed or added.", _time),
    Cause("JSON is limited to 128 levels including the object of the event.", _requires("A-46")),
    Cause(
        "Media types are compared case-sensitively: `Application/JSON` is not treated as JSON.",
        _has_text("expected a string"),
    ),
    *COMMON,
)

# --- sdk-javascript -------------------------------------------------------------------------------------------------

JAVASCRIPT = (
    Cause(
        "An event without `time` gets the current time.",
        _is(Kind.ADDED, "time", "header ce-time"),
        "cloudevents/sdk-javascript#419",
    ),
    Cause(
        "A timestamp is converted to milliseconds and UTC; an invalid one becomes the current time.",
        lambda case, fault: _time(case, fault) or _is(Kind.ACCEPTED, "invalid-timestamp")(case, fault),
        "cloudevents/sdk-javascript#386",
    ),
    Cause(
        "Missing required attributes are generated: `id` and `specversion`.",
        ACCEPTS("missing-attribute"),
        "cloudevents/sdk-javascript#597",
    ),
    Cause(
        "The HTTP binding has `datacontenttype` in `Content-Type`, and adds a type to events without one.",
        _is(Kind.ADDED, "header content-type", "datacontenttype"),
    ),
    Cause(
        "The HTTP binding has `datacontenttype` in `Content-Type`; the NATS binding has it in `ce-datacontenttype`.",
        _is(Kind.MISSING, "header ce-datacontenttype"),
    ),
    Cause("Header values are not percent-encoded.", _not_encoded),
    Cause(
        "Header values are not percent-decoded, quoted strings are not unescaped, and malformed escapes are accepted.",
        _not_decoded,
    ),
    Cause("A Binary value, a `Uint8Array`, is not encoded as base64.", _views),
    Cause(
        "Attributes with the value null are kept.",
        lambda case, fault: fault.kind is Kind.ADDED and fault.where in ("dataschema", "subject", "header ce-subject"),
    ),
    Cause("Numbers and booleans are not encoded as JSON in binary mode.", _has_text("nats.js publishes")),
    Cause("A message without CloudEvents headers is rejected, even if its payload is an event.", _header_less),
    *COMMON,
)

# --- sdk-python -----------------------------------------------------------------------------------------------------

PYTHON = (
    Cause("An event without `time` gets the current time.", _is(Kind.ADDED, "time", "header ce-time")),
    Cause("The text of a timestamp is not kept: it is converted to microseconds.", _time),
    Cause(
        "The HTTP binding has `datacontenttype` in `Content-Type`; the NATS binding has it in `ce-datacontenttype`.",
        lambda case, fault: (
            _is(Kind.ADDED, "header content-type", "datacontenttype")(case, fault)
            or _is(Kind.MISSING, "header ce-datacontenttype")(case, fault)
        ),
    ),
    Cause("Malformed and non-UTF-8 escapes are accepted, and quoted strings are not unescaped.", _lenient_unquote),
    Cause("Binary and Boolean values are formatted with Python's `repr`: `b'\\x00'`, `True`.", _printed_by_python),
    Cause("An event with a Binary value cannot be encoded as JSON.", _has_text("not JSON serializable")),
    Cause("Leap seconds are rejected, because Python's `datetime` does not support them.", LEAP),
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
        "the same functions of `nats/v2`. It has no binary mode: cases with `ce-` headers or that "
        "encode to binary mode are skipped",
        partial(go_peer, "answer"),
        GO,
    ),
    Judged(
        "rust",
        "sdk-rust",
        "0.9.0, feature `nats`",
        "`NatsCloudEvent::from_event`, `MessageExt::to_event` and the `TryFrom`s of `Data`. It has no binary mode: "
        "cases with `ce-` headers or that encode to binary mode are skipped",
        partial(rust_peer, "answer"),
        RUST,
    ),
    Judged(
        "javascript",
        "sdk-javascript",
        "10.0.0 with nats.js 3.4.0",
        "`HTTP.toEvent` and `validate()`, `HTTP.binary`, `HTTP.structured`. It has no NATS binding: its HTTP binding "
        "is used, and nats.js transports the headers",
        partial(node_peer, "answer"),
        JAVASCRIPT,
    ),
    Judged(
        "python",
        "sdk-python",
        "2.2.0",
        "`from_http_event`, `to_binary_event` and `to_structured_event` of `cloudevents.core`, which use its JSON "
        "format. It has no NATS binding: its HTTP binding is used",
        python_answers,
        PYTHON,
    ),
)
ARGUMENTS = {"go-jetstream": ["jetstream"], "go-nats": ["nats"]}
