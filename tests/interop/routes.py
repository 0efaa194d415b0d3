"""
The routes between ce_nats and its peers, and the known faults on each.

The tests assert the faults: if a peer fixes one, a test fails, and the entry must be removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ce_nats import ContentMode, Dialect

from .samples import GENERATED, SAMPLES, Differences


@dataclass(frozen=True)
class Fault:
    """
    Fault of a sample that is not received unchanged.

    Attributes:
        note: The reason, for docs/interop.md.
        seen: The differences, as the comparison of samples returns them.
    """

    note: str
    seen: Differences


@dataclass(frozen=True)
class Route:
    """
    One row of the table.

    Attributes:
        peer: Name and version, for docs/interop.md.
        program: The program of ``peers.py``: ``go``, ``rust`` or ``js``.
        protocol: ``nats``, ``jetstream`` or ``stan``; ``protobuf`` for that event format over nats.go.
        sends: True if the peer sends and ce_nats receives, False for the reverse.
        mode: The content mode of the sender.
        dialect: The dialect with which ce_nats decodes.
        format: The event format of structured mode, if not JSON.
        faults: Known faults by name of the sample.
    """

    peer: str
    program: str
    protocol: str
    sends: bool
    mode: ContentMode
    dialect: Dialect = Dialect.SPEC
    format: str | None = None
    faults: Mapping[str, Fault] = field(default_factory=dict)

    @property
    def direction(self) -> str:
        """Direction, mode, format and dialect, for docs/interop.md."""
        mode = f"{self.mode.value}, {self.format}" if self.format else self.mode.value
        if not self.sends:
            return f"ce_nats → peer, {mode}"
        dialect = "" if self.dialect is Dialect.SPEC else f", `Dialect.{self.dialect.name}`"
        return f"peer → ce_nats, {mode}{dialect}"

    def __str__(self) -> str:
        direction = "receives" if not self.sends else "sends"
        return f"{self.program}-{self.protocol}-{direction}-{self.mode.value}-{self.dialect.value}"


GO_CORE = "sdk-go 2.16.2, `nats/v2`"
GO_STREAM = "sdk-go 2.16.2, `nats_jetstream/v2`"
GO_STREAMING = "sdk-go 2.16.2, `stan/v2`"
GO_PROTOBUF = "sdk-go 2.16.2, `format/protobuf/v2` over nats.go"
RUST = "sdk-rust 0.9.0"
JS = "nats.js 3.4.0 and cloudevents 10.0.0"

BINARY, STRUCTURED = ContentMode.BINARY, ContentMode.STRUCTURED

NO_BINARY = "The SDK has no binary mode: it decodes the payload as the event (sdk-go: cloudevents/sdk-go#814)."
NOT_DECODED = "Header values are not percent-decoded (cloudevents/sdk-go#1334)."
NOT_ENCODED = (
    "Header values are not percent-encoded (cloudevents/sdk-go#1334). By the specification `100% sure` is an error, "
    "and `%C3%A9` and quotes are decoded to other text; `Dialect.SDK_GO` does not decode values."
)
PRINTED_BYTES = "Bytes are formatted as a Go slice, `[0 1 2 255]`; the specification requires base64."
MILLISECONDS = "The precision of JavaScript's `Date` is milliseconds."
OWN_TIME = "An event without a time gets the current time (cloudevents/sdk-javascript#419)."

SERDE = "Error while serializing/deserializing to json"
BYTES = Fault(PRINTED_BYTES, {"digest": "[0 1 2 255]"})
JS_FAULTS = {
    "nanoseconds": Fault(MILLISECONDS, {"time": "2024-02-29T22:10:11.123Z"}),
    "no time": Fault(OWN_TIME, {"time": GENERATED}),
}


def _no_binary(other: str, *, no_data: str, text_data: str, binary_data: str) -> dict[str, Fault]:
    """Return the errors of peers that read the payload as a JSON event."""
    errors = {"no data": no_data, "text data": text_data, "binary data": binary_data}
    return {name: Fault(NO_BINARY, {"error": errors.get(name, other)}) for name in SAMPLES}


ROUTES = (
    Route(GO_CORE, "go", "nats", True, STRUCTURED),
    Route(GO_CORE, "go", "nats", False, STRUCTURED),
    Route(
        GO_CORE,
        "go",
        "nats",
        False,
        BINARY,
        faults=_no_binary(
            "specversion: no specversion\n",
            no_data="unexpected end of JSON input",
            text_data="invalid character 'a' in literal null (expecting 'u')",
            binary_data="invalid character '\\x00' looking for beginning of value",
        ),
    ),
    Route(GO_STREAM, "go", "jetstream", True, STRUCTURED),
    Route(GO_STREAM, "go", "jetstream", False, STRUCTURED),
    Route(GO_STREAM, "go", "jetstream", True, BINARY, Dialect.SDK_GO, faults={"bytes": BYTES}),
    Route(
        GO_STREAM,
        "go",
        "jetstream",
        True,
        BINARY,
        faults={
            "percent signs": Fault(NOT_ENCODED, {"error": "invalid-percent-escape: subject"}),
            "percent-escapes": Fault(NOT_ENCODED, {"source": "/café?q=a b"}),
            "quotes": Fault(NOT_ENCODED, {"note": "quoted text"}),
            "bytes": BYTES,
        },
    ),
    Route(
        GO_STREAM,
        "go",
        "jetstream",
        False,
        BINARY,
        faults={
            "Unicode": Fault(NOT_DECODED, {"subject": "Zo%C3%AB%20owes%205%20%E2%82%AC%20%F0%9F%98%80"}),
            "percent signs": Fault(NOT_DECODED, {"subject": "100%25%20sure"}),
            "percent-escapes": Fault(NOT_DECODED, {"source": "/caf%25C3%25A9?q=a%2520b"}),
            "quotes": Fault(NOT_DECODED, {"note": "%22quoted%22%20text"}),
        },
    ),
    Route(GO_STREAMING, "go", "stan", True, STRUCTURED),
    Route(GO_STREAMING, "go", "stan", False, STRUCTURED),
    Route(GO_PROTOBUF, "go", "protobuf", True, STRUCTURED, format="protobuf"),
    Route(GO_PROTOBUF, "go", "protobuf", False, STRUCTURED, format="protobuf"),
    Route(RUST, "rust", "nats", True, STRUCTURED),
    Route(RUST, "rust", "nats", False, STRUCTURED),
    Route(
        RUST,
        "rust",
        "nats",
        False,
        BINARY,
        faults=_no_binary(
            f"{SERDE}: missing field `specversion`",
            no_data=f"{SERDE}: EOF while parsing a value at line 1 column 0",
            text_data=f"{SERDE}: expected ident at line 1 column 2",
            binary_data=f"{SERDE}: expected value at line 1 column 1",
        ),
    ),
    Route(JS, "js", "nats", True, STRUCTURED, faults=JS_FAULTS),
    Route(JS, "js", "nats", False, STRUCTURED, faults=JS_FAULTS),
)
