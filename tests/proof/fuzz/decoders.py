"""Every decoder against arbitrary bytes: it returns, or raises its documented error with a code."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyarrow import parquet

from ce_nats import (
    ContentMode,
    DecodeError,
    EncodeError,
    ErrorCode,
    NatsMessage,
    SubjectTemplate,
    Timestamp,
    detect_mode,
    from_nats_message,
    iggy,
)
from ce_nats.arrow import explode_capture
from ce_nats.capture import as_json_line, count_captured, from_json_line, last_captured, read_capture
from ce_nats.capture._parquet import ParquetParts
from ce_nats.cli import _arguments, _input
from ce_nats.cli._files import _lines, _split, documents, is_document
from ce_nats.codec import media_type, percent
from ce_nats.codec._type_patterns import TypePatterns
from ce_nats.extensions.dataref import ObjectReference
from ce_nats.extensions.expiry import expiry
from ce_nats.extensions.tracing import trace_of_headers
from ce_nats.message import StoredMessage
from ce_nats.redelivery import DeadLetter
from ce_nats.schemas import Schemas
from ce_nats.stan.wire import MESSAGES
from ce_nats.subjects import check_pattern, check_subject, check_subject_from_message, covers, disjoint, overlap
from ce_nats.wire._ack_subject import parse_ack_subject
from ce_nats.wire.nats import FrameReader, decode_frames, decode_header_block, encode_header_block
from tests.proof.fuzz.inputs import Pairs, fixture_messages, inputs_of, options, pairs_of, split
from tests.proof.fuzz.target import Target, checked_error, decoder, expecting, one_by_one, own
from tests.support.strategies import Event, plain_event

MARKED = {"Content-Type": "application/cloudevents+json"}
PROTOBUF = {"Content-Type": "application/cloudevents+protobuf"}


def lenient_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# --- NATS -----------------------------------------------------------------------------------------------------------


def header_block(data: bytes) -> Hashable:
    block = decode_header_block(data)
    again = own(decode_header_block, encode_header_block(block.headers))
    assert again.headers == block.headers, again.headers
    return len(block.headers), block.status is None


def frames(data: bytes) -> Hashable:
    """Frames and error do not depend on the pieces in which the bytes arrive."""
    whole = _frames_of([data])
    place = data[0] if data else 0
    assert _frames_of([data[:place], data[place:]]) == whole
    if isinstance(whole[1], DecodeError):
        raise whole[1]
    assert own(decode_frames, data) == whole[0]
    return tuple(frame.op for frame in whole[0][:3])


def _frames_of(pieces: Iterable[bytes]) -> tuple[list[Any], Any]:
    found: list[Any] = []
    reader = FrameReader()
    try:
        for piece in pieces:
            found += reader.feed(piece)
        reader.close()
    except DecodeError as error:
        return found, _ComparableError.of(error)
    return found, None


class _ComparableError(DecodeError):
    """An error that is equal to another with the same code and text."""

    @classmethod
    def of(cls, error: DecodeError) -> _ComparableError:
        return cls(error.code, error.message, requirement=error.requirement)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ComparableError) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]


def ack_subject(data: bytes) -> Hashable:
    return len(parse_ack_subject(lenient_text(data)))


def dead_letter(data: bytes) -> Hashable:
    pairs = [(name or "", value or "") for name, value in pairs_of(data) or ()]
    letter, originals = DeadLetter.split(pairs)
    again, _ = own(DeadLetter.split, letter.headers())
    # The text is limited when it is written.
    assert (again.reason, again.stream, again.sequence) == (letter.reason, letter.stream, letter.sequence)
    return letter.reason, len(originals)


# --- Events ---------------------------------------------------------------------------------------------------------


def _outcome(event: Any) -> Hashable:
    data = event.get_data()
    return event.has_data, event.is_json, type(data), len(event.get_attributes())


def structured(data: bytes) -> Hashable:
    first = data[:1] in b"[{"
    return _outcome(from_nats_message(NatsMessage("", data, MARKED), parse_data=first))


def binary(data: bytes) -> Hashable:
    """Any headers, as read from a stream or given by a program, with any options."""
    wanted = options(data)
    headers, payload = split(data)
    message: Any = Message(pairs_of(headers), payload)
    mode: Any = expecting(DecodeError, lambda _: detect_mode(message))(b"")
    event = from_nats_message(
        message,
        mode=wanted.mode,
        dialect=wanted.dialect,
        parse_data=wanted.parse_data,
        extension_types=wanted.types or None,
    )
    assert wanted.mode is not None or isinstance(mode, ContentMode), mode
    trace_of_headers(message.headers)
    return mode, _outcome(event)


class Message:
    """A message of another library, with any headers."""

    def __init__(self, headers: Pairs | None, data: bytes | None) -> None:
        self.headers = headers
        self.data = data


def protobuf(data: bytes) -> Hashable:
    return _outcome(from_nats_message(NatsMessage("", data, PROTOBUF)))


def stan(data: bytes) -> Hashable:
    """The first byte is the type of the message. What is decoded has an encoding that decodes to the same."""
    kind = [*MESSAGES.values()][data[0] % len(MESSAGES)] if data else next(iter(MESSAGES.values()))
    message = kind.decode(data[1:])
    assert own(kind.decode, message.encode()) == message
    return kind.__name__


def iggy_headers(data: bytes) -> Hashable:
    layout = [*iggy.Layout][data[0] % len(iggy.Layout)] if data else iggy.Layout.STRING_KEYS
    headers = iggy.decode_headers(data[1:], layout=layout)
    assert own(iggy.decode_headers, iggy.encode_headers(headers, layout=layout), layout=layout) == headers
    return layout, len(headers)


def iggy_messages(data: bytes) -> Hashable:
    messages = iggy.decode_messages(data[1:], polled=data[:1] > b"\x80")
    return tuple(_iggy_event(message) for message in messages[:4])


def iggy_json(data: bytes) -> Hashable:
    message = iggy.decode_json(
        data[1:], layout=iggy.Layout.TYPED_KEYS if data[:1] > b"\x80" else iggy.Layout.STRING_KEYS
    )
    return _iggy_event(message)


def _iggy_event(message: Any) -> Hashable:
    try:
        return _outcome(iggy.from_iggy_message(message))
    except DecodeError as error:
        return checked_error(error)


# --- Captures -------------------------------------------------------------------------------------------------------

STORED = StoredMessage(
    "orders",
    "",
    [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")],
    b"payload",
    "ORDERS",
    1,
    Timestamp("2024-01-02T03:04:05.123456789Z"),
)
_folder = tempfile.TemporaryDirectory(
    prefix="ce-nats-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
)


def json_line(data: bytes) -> Hashable:
    message = from_json_line(data)
    assert own(from_json_line, as_json_line(message)) == message
    return bool(message.headers), bool(message.data)


def capture(data: bytes) -> Hashable:
    """Any bytes as a file of JSON lines."""
    return _read_file("a.jsonl", data, (_read_all, last_captured))


def parquet_capture(data: bytes) -> Hashable:
    """Any bytes as a Parquet file."""
    return _read_file("a.parquet", data, (_read_all, last_captured, count_captured, _explode))


def _read_file(name: str, data: bytes, readers: Iterable[Any]) -> Hashable:
    path = Path(_folder.name) / name
    path.write_bytes(data)
    return tuple(expecting(DecodeError, lambda _, read=read: read(path) and True)(b"") for read in readers)  # type: ignore[misc]


def _read_all(path: Path) -> int:
    return sum(1 for _ in read_capture(path))


def _explode(path: Path) -> int:
    return explode_capture(path).read_all().num_rows  # type: ignore[no-any-return]


def _parquet_files() -> Iterator[bytes]:
    """Yield small captures: as written, and in plain encodings, in which more of the damage is in the content."""
    directory = Path(_folder.name) / "seed.parquet"
    with ParquetParts(directory) as file:
        file.write([STORED, STORED])
    (part,) = directory.iterdir()
    table = parquet.read_table(part)
    with tempfile.TemporaryDirectory(dir=_folder.name) as folder:
        plain, bare = Path(folder) / "plain", Path(folder) / "bare"
        parquet.write_table(table, plain, compression="none", store_schema=False)
        parquet.write_table(table.select(["headers", "data"]), bare, compression="none", use_dictionary=False)
        yield from (path.read_bytes() for path in (part, plain, bare))
    part.unlink()
    directory.rmdir()


# --- Texts ----------------------------------------------------------------------------------------------------------


def percent_value(data: bytes) -> Hashable:
    """A decoded text has an encoding that decodes to the same."""
    text = percent.decode(lenient_text(data))
    assert own(percent.decode, percent.encode(text)) == text
    return len(text) < len(data)


def timestamp(data: bytes) -> Hashable:
    time = Timestamp.parse(lenient_text(data))
    again = own(Timestamp.parse, str(time))
    assert repr(again) == repr(time)
    assert again == time
    return len(str(time)), time.nanosecond % 1000 > 0


def media(data: bytes) -> Hashable:
    found = media_type.parse(lenient_text(data))
    return found and (found.kind, found.is_utf8, found.codec)


def dataref(data: bytes) -> Hashable:
    """A reference that is accepted is within a bucket, and its text is a reference to the same object."""
    reference = ObjectReference.parse(lenient_text(data))
    assert re.fullmatch("[A-Za-z0-9_-]{1,200}", reference.bucket)
    assert own(ObjectReference.parse, str(reference)) == reference
    return reference.sha256 is None


def expiry_time(data: bytes) -> Hashable:
    return expiry(plain_event(expirytime=lenient_text(data)))


_EVENT = plain_event(x="a.b", time=datetime(2024, 1, 2, tzinfo=timezone.utc), n=5)


def template(data: bytes) -> Hashable:
    """A template is refused, or makes subjects that can be published to, and from which the values are parsed."""
    text, _, value = lenient_text(data).partition("\n")
    made = SubjectTemplate(text)
    made.parse(value)
    event = Event({**_EVENT.attributes, "x": value} if value else _EVENT.attributes)
    subject = made.format(event)
    check_subject(subject)
    check_pattern(made.wildcard)
    assert covers(made.wildcard, subject), (made.wildcard, subject)
    found = made.parse(subject)
    known = {name: str(event.attributes[name]) for name in ("x", "type", "source", "id") if name in made.names}
    assert found is not None
    assert all(found.get(name, text) == text for name, text in known.items()), found
    return len(made.names)


def subjects(data: bytes) -> Hashable:
    """Patterns that are disjoint match different subjects; a subject covers what is equal to it."""
    patterns = lenient_text(data).split("\n")[:4]
    kept = disjoint(patterns)
    assert not any(overlap(one, other) for one in kept for other in kept if one != other)
    assert all(any(covers(one, pattern) for one in kept) for pattern in patterns)
    check_subject_from_message(patterns[0], allowed=kept)
    return len(kept)


def type_patterns(data: bytes) -> Hashable:
    """The pattern that wins matches, and none that is longer does."""
    *patterns, kind = lenient_text(data).split("\n")
    known: TypePatterns[int] = TypePatterns()
    for number, pattern in enumerate(patterns):
        known.add(pattern, number)
    found = known.match(kind)
    fitting = [one for one in patterns if one == kind or (one.endswith("*") and kind.startswith(one[:-1]))]
    assert (found is None) == (not fitting), (found, fitting)
    if found is not None:
        assert found[0] == (kind if kind in fitting else max(fitting, key=len)), (found, fitting)
    return len(known.patterns), found is None


# --- Command line ---------------------------------------------------------------------------------------------------


def cli_input(data: bytes) -> Hashable:
    """Files, arguments and headers of `encode`, `decode` and `explain`: events, messages, or an error of usage."""
    kind, text = data[:1], data[1:]
    if kind < b"\x40":
        return tuple(_read(_input.read_event, document) for _, document in _split(_lines([text[:9], text[9:]])))
    if kind < b"\x80":
        return tuple(_read(_input._read_message, document) for _, document in _split(_lines([text])))
    argument = lenient_text(text)
    if kind < b"\xc0":
        return len(_input.read_headers(argument.split("\n")))
    if not is_document(argument):
        return _arguments_of(argument)
    return tuple(_read(_input.read_event, document) for _, document in documents(argument))


def _read(read: Any, document: bytes) -> Hashable:
    """An event is printed as a line that is the same event, except text with unpaired surrogates, which UTF-7 has."""
    try:
        found = read(document)
        event = from_nats_message(found) if isinstance(found, NatsMessage) else found
    except DecodeError as error:
        return checked_error(error)
    try:
        again = _input.read_event(_input.event_line(event))
    except EncodeError as error:
        if error.code is not ErrorCode.INVALID_DATA:
            raise
        return checked_error(error)
    assert again.get_data() == event.get_data(), again
    assert {**again.get_attributes(), **event.get_attributes()} == again.get_attributes(), again
    return _outcome(event)


def _arguments_of(argument: str) -> Hashable:
    return tuple(
        expecting((_arguments.InputError,), lambda _, read=read: bool(read(argument)))(b"")  # type: ignore[misc]
        for read in (_arguments.pattern, _arguments.template_if_given)
    )


# --- Schemas --------------------------------------------------------------------------------------------------------


def schema(data: bytes) -> Hashable:
    """A JSON Schema of any kind is refused with a ValueError, or checks any data with a DecodeError or without."""
    text, _, value = data.partition(b"\n")
    try:
        given = json.loads(text)
        if not isinstance(given, (dict, bool)):
            return None
        schemas = Schemas({"*": given})
    except (ValueError, RecursionError) as error:
        return type(error).__name__
    message = NatsMessage("", value, {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"})
    schemas.check(from_nats_message(message))
    return True


SCHEMAS = [
    b'{"type":"object","required":["id"],"properties":{"id":{"type":"integer","minimum":1}}}\n{"id":1}',
    b'{"type":"array","items":{"$ref":"#/$defs/a"},"$defs":{"a":{"enum":[1,null,"x"]}},"uniqueItems":true}\n[1,"x"]',
    b'{"$schema":"http://json-schema.org/draft-07/schema#","pattern":"^a+$","maxLength":5}\n"aaa"',
    b'{"anyOf":[{"const":1.5},{"not":{"type":"null"}}],"multipleOf":0.5,"maximum":1e3}\n1.5',
    b'{"$ref":"https://example.com/x"}\n1',
    b'{"$dynamicRef":"#a","$anchor":"a","$id":"https://example.com/s","if":{},"then":false}\nnull',
    b"true\n",
]


def _members(name: str, *ops: str) -> Any:
    return lambda: inputs_of(name, *ops)


def _with_first(values: Iterable[bytes], firsts: Iterable[int]) -> list[bytes]:
    return [bytes([first]) + value for value in values for first in firsts]


def _stan_seeds() -> list[bytes]:
    return _with_first(inputs_of("data", "wire.stan.decode"), range(0, len(MESSAGES), 3))


def _texts_of_headers() -> list[bytes]:
    values = (line.partition(b":")[2] for data in fixture_messages() for line in split(data)[0].split(b"\n"))
    return [value for value in values if len(value) < 100]


def _payloads() -> list[bytes]:
    return [payload for data in fixture_messages() if (payload := split(data)[1])]


LETTER = b"Dead-Letter-Reason:rejected\nDead-Letter-Stream:A\nDead-Letter-Sequence:1\nDead-Letter-Deliveries:1"
TARGETS = [
    Target("header-block", "Header blocks.", decoder(header_block), _members("block", "wire.nats.decode_header_block")),
    Target("frames", "Frames of the client protocol.", decoder(frames), _members("data", "wire.nats.decode_frames")),
    Target(
        "ack-subject",
        "Reply subjects of messages of JetStream.",
        decoder(ack_subject),
        lambda: [b"$JS.ACK.S.C.1.2.3.4.5", b"$JS.ACK.d.a.S.C.1.2.3.4.5.x"],
    ),
    Target(
        "dead-letter",
        "Headers of dead letters.",
        decoder(dead_letter),
        lambda: [
            LETTER,
            LETTER + b"\nDead-Letter-Text:a%20b\nDead-Letter-Original:gone\nDead-Letter-Time:x\nNats-Msg-Id:1",
        ],
    ),
    Target("binary", "Messages with any headers and options.", decoder(binary), lambda: list(fixture_messages())),
    Target("structured", "Events in JSON.", decoder(structured), _payloads),
    Target("protobuf", "Events in Protobuf.", decoder(protobuf), _members("data", "formats.protobuf.decode")),
    Target("stan", "Messages of NATS Streaming.", decoder(stan), _stan_seeds),
    Target(
        "iggy-headers",
        "Headers of Iggy.",
        decoder(iggy_headers),
        lambda: _with_first(inputs_of("block", "wire.iggy.decode_headers"), (0, 1)),
    ),
    Target(
        "iggy-messages",
        "Messages of Iggy, and events in them.",
        decoder(iggy_messages),
        lambda: _with_first(inputs_of("data", "wire.iggy.decode_messages"), (0, 255)),
    ),
    Target(
        "iggy-json",
        "Messages of Iggy in JSON, and events in them.",
        decoder(iggy_json),
        lambda: _with_first(inputs_of("data", "wire.iggy.decode_json"), (0, 255)),
    ),
    Target("json-line", "Lines of captures.", decoder(json_line), lambda: [as_json_line(STORED)]),
    Target("capture", "Files of JSON lines.", one_by_one(capture), lambda: [as_json_line(STORED) * 2]),
    Target("parquet", "Parquet files.", one_by_one(parquet_capture), lambda: list(_parquet_files()), batch=20),
    Target("percent", "Header values.", decoder(percent_value), _texts_of_headers),
    Target("timestamp", "Timestamps.", decoder(timestamp), _members("text", "attributes.timestamp")),
    Target("media-type", "Media types.", one_by_one(media), _texts_of_headers),
    Target(
        "dataref",
        "References to data.",
        decoder(dataref),
        lambda: [b"nats-obj:bucket/name", b"nats-obj:b/a%20%C3%BC/c"],
    ),
    Target("expiry", "Times of expiry.", decoder(expiry_time), _members("text", "attributes.timestamp")),
    Target(
        "template",
        "Subject templates.",
        one_by_one(expecting(EncodeError, template)),
        lambda: [b"orders.{type}.{x:tokens}\na.b", b"p.{partition(8,id,x)}.a-{source}-b\n/s", b"a.b"],
    ),
    Target(
        "subjects",
        "Subjects and patterns.",
        one_by_one(expecting(EncodeError, subjects)),
        lambda: [b"a.*\na.b\nb.>", b"orders.new\n*.x.>\n$JS.API.STREAM.PURGE.X", b">"],
    ),
    Target(
        "type-patterns",
        "Patterns of types.",
        one_by_one(expecting((ValueError,), type_patterns)),
        lambda: [b"com.example.*\ncom.*\n*\ncom.example.a", b"a\nb*\na"],
    ),
    Target(
        "cli",
        "Input of commands.",
        one_by_one(expecting((_arguments.InputError,), cli_input)),
        lambda: [
            *_with_first(_payloads(), (0, 255)),
            b'\x50{"headers":[["ce-id","1"]],"data":"x","subject":"a"}\n{\n"headers":[]\n}\nNATS/1.0\r\na: b\r\n\r\nx',
            b"\x90ce-id: 1\nContent-Type:a/b",
            b"\xf0orders.{type}",
        ],
        long=2**13,  # up to 4,000 lines, each an error
    ),
    # Schemas belong to the program, and may be slow; long ones are.
    Target("schema", "JSON Schemas.", decoder(schema), lambda: SCHEMAS, batch=50, long=2**11),
]
