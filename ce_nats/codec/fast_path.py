"""
Fast path: encode and decode common events at a fraction of the cost.

Most events of a stream have the same attributes in the same order, plain values, and values that occurred before. The
fast path handles only such events. For any other event it returns no result, and the full codec (``attributes``,
``binary``, ``structured``) encodes or decodes the event, or raises the error. Tests check that both give equal results.

This is the only module that trades clarity for speed. It uses three techniques:

- *Caches.* A ``source`` or ``type`` that repeats is checked once. The caches are bounded.
- *One function for each sequence of names.* It is compiled from generated source text, as in ``dataclasses``, after the
  sequence occurred several times; it handles the names one after the other, without a loop. Closures in place of it
  take a fifth longer.
- *One check of many values*, by functions in C that were written for another purpose.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from binascii import a2b_qp
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import filterfalse
from typing import Any, Final, NoReturn, TypeAlias

import msgspec

from ..errors import DecodeError, EncodeError
from ..message import Headers, HeadersLike, NatsMessage
from ..subjects import check_plain_subject, check_subject
from . import data, media_type, percent
from .attributes import (
    ABSOLUTE_URI,
    CORE,
    REQUIRED,
    ExtensionTypes,
    check_integer,
    check_name,
    decode_base64,
    decode_extension,
    scalar_text,
)
from .event import DecodedEvent
from .media_type import DataKind
from .memory import MAX_LISTS, Memory, Names, NamesMemory, are_few
from .mode import PREFIX, ContentMode, sort_names, structured_by
from .nesting import is_deeper
from .timestamp import Timestamp, format_datetime

# Limits of what a peer can make us cache: sequences of names, names in each, and characters in these.
MAX_SHAPES: Final = 256
MAX_SEEN: Final = 1024
MAX_NAMES: Final = 64
MAX_NAMES_LENGTH: Final = 1024
# Compiling a function takes as long as about 30 events, so names that occur only a few times get none.
FIRST_SIGHTINGS: Final = 8
# Events without a function, since the last one was compiled, that show that a flood of new names is over.
CALM: Final = 10_000
MAX_ESCAPES: Final = 1024
# Bytes of a JSON event before its data.
MAX_HEAD: Final = 4096

Convert: TypeAlias = Callable[[Iterable[Any]], Any]

_to_json: Final = msgspec.json.Encoder().encode
_to_builtins: Final = msgspec.to_builtins
_read_json: Final = msgspec.json.Decoder().decode
_read_strings: Final = msgspec.json.Decoder(dict[str, str]).decode
_read_scalars: Final = msgspec.json.Decoder(dict[str, str | int | bool | None]).decode
# From Python 3.11 on datetime's own reader takes a "Z".
_read_time: Final[Callable[[str], datetime]] = (
    datetime.fromisoformat if sys.version_info >= (3, 11) else partial(msgspec.convert, type=datetime)
)
_new: Final = object.__new__
_new_datetime: Final[Callable[..., Timestamp]] = datetime.__new__
_utc: Final = timezone.utc
_BINARY, _STRUCTURED = ContentMode.BINARY, ContentMode.STRUCTURED
_JSON, _TEXT = DataKind.JSON, DataKind.TEXT
_DATA: Final = b'"data":'
_DATA_BASE64: Final = b'"data_base64":'
# As ints: "in" on bytes is several times faster for an int than for bytes.
_BACKSLASH, _BLANK, _CLOSING_BRACE, _DEL, _PERCENT = b"\\ }\x7f%"
_WHITE_SPACE: Final = b" \t\r\n"


class _DataText(msgspec.Struct):
    data: msgspec.Raw


_read_data_text: Final = msgspec.json.Decoder(_DataText).decode


class Unusual(ValueError):  # noqa: N818  # not an error: the full codec may accept the event
    """The fast path does not handle this event. A ValueError, like the exceptions of the functions that it calls."""


def _refuse(_: object = None) -> NoReturn:
    raise Unusual


# --- Single values --------------------------------------------------------------------------------------------------


def _is_literal(text: str) -> bool:
    """
    Whether all characters are legal and need no percent-encoding in a header value.

    JSON puts a backslash before double quotes and control characters other than DEL. For text that contains a
    backslash, which needs no encoding either, the result is False, and the slower checks decide.
    """
    octets = _to_json(text)
    return (
        text.isascii()
        and _BACKSLASH not in octets
        and _BLANK not in octets
        and _PERCENT not in octets
        and _DEL not in octets
    )


class _Escapes(dict[int, str]):
    """Table for ``str.translate()``: the form of each character in a header value."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if not character.isprintable():  # excludes control characters, surrogates and noncharacters
            raise Unusual
        if len(self) >= MAX_ESCAPES:
            self.clear()
        self[code] = escaped = percent.encode(character)
        return escaped


_escapes: Final = _Escapes()


def _escape(text: str) -> str:
    return text if _is_literal(text) else text.translate(_escapes)


def _escape_all(texts: Sequence[str]) -> list[str]:
    if _is_literal("".join(filter(str.isascii, texts))):
        return [text if text.isascii() else text.translate(_escapes) for text in texts]
    return [_escape(text) for text in texts]


def unescape(value: str) -> str:
    """
    Decode a header value to the text of the attribute, which must be printable.

    Raises:
        ValueError: The value is malformed or empty, or contains a character that may be illegal.
    """
    text = value.strip(" \t")
    if "%" in text and "=" not in text and _is_literal(text.replace("%", "")):
        return _undo_percent(text)
    text = percent.decode(text)
    return text if text and text.isprintable() else _refuse()


def _unescape_all(values: Sequence[str]) -> list[str]:
    joined = "".join(values)
    if "=" not in joined and _is_literal(joined.replace("%", "")):
        return [_undo_percent(value) if "%" in value else value for value in values]
    return [unescape(value) for value in values]


def _undo_percent(value: str) -> str:
    """
    Percent-decode a value whose other characters are literal and do not include "=".

    Quoted-printable is the same encoding with "=" for "%". a2b_qp() shortens the text by two characters for each valid
    escape, and by one or none for any other text that starts with "=", if there are no line ends. So the length shows
    whether all escapes were valid.
    """
    octets = a2b_qp(value.replace("%", "="))
    if len(octets) != len(value) - 2 * value.count("%"):
        raise Unusual
    text = octets.decode("utf-8")
    return text if text.isprintable() else _refuse()


def _scalar_texts(values: Iterable[object]) -> list[str]:
    return [value if value.__class__ is str else _scalar_text(value) for value in values]


def _scalar_text(value: object) -> str:
    """Return the canonical string of an integer or a boolean."""
    if value.__class__ is int:
        return str(check_integer("", value, EncodeError))
    return scalar_text(value) if value.__class__ is bool else _refuse()


def _is_printable(text: bytes, strings: Iterable[str]) -> bool:
    """
    Whether strings consist of printable characters, all of which are legal.

    JSON escapes control characters other than DEL, so one check of the JSON text is enough for most events.

    Args:
        text: JSON text of an object that contains the strings.
        strings: The strings.
    """
    if _BACKSLASH in text or _DEL in text:
        return "".join(strings).isprintable()
    return text.isascii() or "".join(filterfalse(str.isascii, strings)).isprintable()


def _time_text(value: object) -> str:
    if value.__class__ is datetime:
        return format_datetime(value)
    if value.__class__ is Timestamp:
        return value.text
    if value.__class__ is str:
        return _timestamp(value).text
    raise Unusual


def _timestamp(text: str) -> Timestamp:
    at = _read_time(text)
    # _read_time() accepts more than RFC 3339, but msgspec writes only RFC 3339: text that it writes back is valid.
    if _to_builtins(at) != text:
        return Timestamp.parse(text)
    reduced: Any = at.__reduce__()  # (datetime, (state, zone)), the constructor's arguments for unpickling
    state, zone = reduced[1]  # a ValueError if there is no zone
    made = _new_datetime(Timestamp, state, zone)
    made._text = text
    return made


def _checked_by(is_valid: Callable[[str], object]) -> Callable[[str], object]:
    return lambda text: is_valid(text) or _refuse()


def _header_text(is_valid: Callable[[str], object]) -> Callable[[str], str]:
    return lambda text: _escape(text) if text and is_valid(text) else _refuse()


def _attribute_text(is_valid: Callable[[str], object]) -> Callable[[str], str]:
    def make(value: str) -> str:
        text = unescape(value)
        return text if text and is_valid(text) else _refuse()

    return make


# Attributes whose values repeat, with the check that each value must pass.
_RULES: Final[Mapping[str, Callable[[str], object]]] = {
    "source": bool,
    "type": bool,
    "datacontenttype": media_type.parse,
    "dataschema": ABSOLUTE_URI.match,
}
_schemas: Final = Memory(_checked_by(ABSOLUTE_URI.match))


def _reader(content_type: str) -> Callable[[bytes], Any]:
    kind = media_type.parse(content_type)
    is_json = kind is not None and kind.kind is _JSON and kind.is_utf8
    return data.decode_json if is_json else partial(data.decode, content_type=content_type)


_readers: Final = Memory(_reader)
_subjects: Final = Memory(check_plain_subject)


# --- One function for each sequence of names ------------------------------------------------------------------------


class Shapes(NamesMemory[Convert]):
    """
    Cache of the functions compiled for sequences of names. Raises Unusual until a sequence has occurred often enough.

    Args:
        make: Compiles the function for a sequence of names.
    """

    def __init__(self, make: Callable[[Names], Convert]) -> None:
        super().__init__(make)
        self._seen: dict[Names, int] = {}
        self._misses = 0
        self.sightings = FIRST_SIGHTINGS

    def __missing__(self, names: Names) -> Convert:
        if not are_few(names):
            raise Unusual
        seen = self._seen.pop(names, 0) + 1
        if seen >= self.sightings:
            if len(self) >= MAX_LISTS:
                # A peer that keeps sending new names makes us compile fewer and fewer functions.
                self.sightings *= 2
            self._misses = 0
            return super().__missing__(names)
        self._misses += 1
        if self._misses >= CALM:
            self._misses = 0
            self.sightings = max(self.sightings // 2, min(self.sightings, FIRST_SIGHTINGS))
        if len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        self._seen[names] = seen
        raise Unusual


def are_valid(names: Sequence[str]) -> bool:
    """Whether attribute names are legal and distinct, and include the required attributes."""
    try:
        for name in names:
            check_name(name, DecodeError)
    except DecodeError:
        return False
    return len(set(names)) == len(names) and set(names).issuperset(REQUIRED)


def header_encoder_source(names: Sequence[str]) -> str:
    """
    Return the source text of a function that encodes attributes as name and value pairs of ``ce-`` headers.

    Args:
        names: Names of the attributes, valid, in their order.
    """
    variables = {name: f"v{place}" for place, name in enumerate(names)}
    results = {
        name: f"{name}_texts[{variable}]" if name in _RULES else variable for name, variable in variables.items()
    }
    return _source(
        "def convert(attributes):",
        f"{', '.join(variables.values())} = attributes.values()",
        *_strings_of(variables),
        *_require_version(variables["specversion"]),
        *_require_texts("escape_all", _fresh(variables)),
        *_time_to_text(variables),
        f"return [{', '.join(f'({PREFIX + name!r}, {result})' for name, result in results.items())}]",
    )


def member_encoder_source(names: Sequence[str]) -> str:
    """
    Return the source text of a function that encodes attributes as a JSON event without data.

    Args:
        names: Names of the attributes, valid, in their order.
    """
    variables = {name: f"v{place}" for place, name in enumerate(names)}
    strings = [variable for name, variable in variables.items() if name != "time"]
    time = f', "time": {variables["time"]}' if "time" in variables else ""
    return _source(
        "def convert(attributes):",
        f"{', '.join(variables.values())} = attributes.values()",
        *_strings_of(variables),
        *_require_version(variables["specversion"]),
        *_require(" and ".join(strings)),
        *(f"{memory}[{variables[name]}]" for name, memory in _CHECKS.items() if name in variables),
        *_time_to_text(variables),
        f"text = to_json({{**attributes{time}}})",
        *_require(f"is_printable(text, ({', '.join(strings)}))"),
        "return text",
    )


def header_decoder_source(names: Sequence[str]) -> str:
    """
    Return the source text of a function that decodes header values to attributes, or to None in structured mode.

    Args:
        names: Names of all headers, in the order of the values: at most one Content-Type, and ``ce-`` headers with
            valid attribute names or none.
    """
    found = sort_names(tuple(names))
    headers = [f"v{place}" for place in range(len(names))]
    variables = {name: headers[place] for name, place in zip(found.attributes, found.ce_places)}
    content_types = [headers[place] for place in found.content_type_places]
    first = ("def convert(values):", f"{', '.join(headers)}, = values", *_require_strings(headers))
    if not variables:
        return _source(*first, *(f"structured_types[{header}]" for header in content_types), "return None")
    results = {
        name: f"{name}_values[{variable}]" if name in _RULES else variable for name, variable in variables.items()
    }
    if "time" in variables:
        results["time"] = f"timestamp({variables['time']})"
    return _source(
        *first,
        *_require_version(variables["specversion"]),
        *(f"other_types[{header}]" for header in content_types),
        *_require_texts("unescape_all", _fresh(variables)),
        f"return {{{', '.join(f'{_key(name, variables)}: {result}' for name, result in results.items())}}}",
    )


def _key(name: str, variables: Mapping[str, str]) -> str:
    """Return the expression for a name. Python 3.12 and later never free constants that are identifiers."""
    return repr(name) if name in CORE else f"name_of_{variables[name]}"


_CHECKS: Final = {"datacontenttype": "media_types", "dataschema": "schemas"}


def _source(*lines: str) -> str:
    return "\n    ".join(lines)


def _fresh(variables: Mapping[str, str]) -> list[str]:
    """Return the variables whose values differ in each event."""
    return [variable for name, variable in variables.items() if name not in {*_RULES, "specversion", "time"}]


def _require(condition: str) -> Iterator[str]:
    yield f"if not ({condition}):"
    yield "    raise Unusual"


def _require_strings(variables: Iterable[str]) -> Iterator[str]:
    return _require(f"{' is '.join(f'{variable}.__class__' for variable in variables)} is str")


def _strings_of(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield lines that require strings, except for the time, and convert integer and boolean extensions to strings."""
    core = [variable for name, variable in variables.items() if name in CORE and name != "time"]
    extensions = [variable for name, variable in variables.items() if name not in CORE]
    first, *rest = _require_strings([*core, *extensions])
    yield first
    if extensions:
        yield from (f"    {line}" for line in _require_strings(core))
        yield f"    {', '.join(extensions)}, = scalar_texts(({', '.join(extensions)},))"
    else:
        yield from rest


def _require_version(variable: str) -> Iterator[str]:
    return _require(f'{variable} == "1.0"')


def _require_texts(function: str, variables: Sequence[str]) -> Iterator[str]:
    """Yield lines that refuse empty texts and call ``function`` if a check of all texts together finds it necessary."""
    yield from _require(" and ".join(variables))
    yield f"if not is_literal({_joined(variables)}):"
    yield f"    {', '.join(variables)}, = {function}(({', '.join(variables)},))"


def _time_to_text(variables: Mapping[str, str]) -> Iterator[str]:
    if "time" in variables:
        # For a time in UTC msgspec writes the same text as isoformat() with a "Z", at a tenth of the cost.
        yield "{0} = to_builtins({0}) if {0}.__class__ is datetime and {0}.tzinfo is utc else time_text({0})".format(
            variables["time"]
        )


def _joined(variables: Iterable[str]) -> str:
    return f'f"{"".join(f"{{{variable}}}" for variable in variables)}"'


_SCOPE: Final[Mapping[str, object]] = {
    "Unusual": Unusual,
    "datetime": datetime,
    "utc": _utc,
    "to_builtins": _to_builtins,
    "to_json": _to_json,
    "is_literal": _is_literal,
    "escape_all": _escape_all,
    "unescape_all": _unescape_all,
    "is_printable": _is_printable,
    "scalar_texts": _scalar_texts,
    "time_text": _time_text,
    "timestamp": _timestamp,
    "media_types": Memory(_checked_by(media_type.parse)),
    "schemas": _schemas,
    "structured_types": Memory(_checked_by(lambda value: structured_by([value]))),
    "other_types": Memory(_checked_by(lambda value: not structured_by([value]))),
    **{f"{name}_texts": Memory(_header_text(is_valid)) for name, is_valid in _RULES.items()},
    **{f"{name}_values": Memory(_attribute_text(is_valid)) for name, is_valid in _RULES.items()},
}


def _compiled(source: str, names: Mapping[str, str]) -> Convert:
    scope: dict[str, Any] = {**_SCOPE, **names}
    exec(source, scope)  # noqa: S102  # the only text from outside are attribute names, which are letters and digits
    convert: Convert = scope["convert"]
    return convert


def _encoder(source: Callable[[Sequence[str]], str]) -> Callable[[Names], Convert]:
    return lambda names: _compiled(source(names), {}) if are_valid(names) else _refuse


def _header_decoder(names: Names) -> Convert:
    found = sort_names(names)
    is_usual = len(found.content_type_places) <= 1 and (not found.attributes or are_valid(found.attributes))
    keys = {f"name_of_v{place}": name for place, name in zip(found.ce_places, found.attributes)}
    return _compiled(header_decoder_source(names), keys) if is_usual else _refuse


_header_encoders: Final = Shapes(_encoder(header_encoder_source))
_member_encoders: Final = Shapes(_encoder(member_encoder_source))
_header_decoders: Final = Shapes(_header_decoder)
_valid_names: Final = NamesMemory(are_valid)


# --- Encoding -------------------------------------------------------------------------------------------------------


def encode_headers(attributes: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Return the name and value pairs of ``ce-`` headers for attributes that were not checked; None if unusual."""
    try:
        pairs: list[tuple[str, str]] = _header_encoders[tuple(attributes)](attributes)
        return pairs
    except ValueError:
        return None


def encode_event(attributes: Mapping[str, Any], value: object, has_data: bool) -> bytes | None:
    """
    Return the JSON event, or None if it is unusual.

    Args:
        attributes: Attributes, not checked.
        value: Event data.
        has_data: As for ``structured.encode``.

    Raises:
        EncodeError: ``invalid-data``.
    """
    try:
        text: bytes = _member_encoders[tuple(attributes)](attributes)
        if not has_data:
            return text
        if value.__class__ is bytes:
            return b"".join((text[:-1], b',"data_base64":"', b64encode(value), b'"}'))
        kind = media_type.parse(attributes["datacontenttype"])
        if kind is not None and kind.kind is _TEXT and kind.is_utf8 and value.__class__ is str:
            return b"".join((text[:-1], b',"data":', _to_json(value), b"}"))
        if kind is None or kind.kind is not _JSON or isinstance(value, data.BYTES):
            return None
    except (KeyError, ValueError):
        return None
    return b"".join((text[:-1], b',"data":', data.encode_json(value), b"}"))


def make_message(subject: str, payload: bytes, pairs: list[tuple[str, str]], reply: str) -> NatsMessage:
    """
    Make a NatsMessage without the cost of its constructor.

    Raises:
        EncodeError: ``invalid-subject``.
    """
    if subject.__class__ is str:  # an object of another class can be equal to a cached subject
        if subject:
            _subjects[subject]
    elif subject != "":
        check_plain_subject(subject)
    if reply != "":
        check_subject(reply)
    headers = _new(Headers)
    headers._pairs = pairs
    message = _new(NatsMessage)
    message.subject = subject
    message.data = payload
    message.headers = headers
    message.reply = reply
    return message


# --- Decoding -------------------------------------------------------------------------------------------------------


def decode(
    headers: HeadersLike,
    payload: object,
    mode: object,
    parse_data: bool,
    extension_types: ExtensionTypes | None,
) -> DecodedEvent | None:
    """
    Decode the event in a message, or return None if it is unusual.

    Args:
        headers: Headers in any form.
        payload: The payload.
        mode: The content mode that the caller requires, not checked; None detects it from the headers.
        parse_data: False returns data as bytes.
        extension_types: Python types of extension attributes.

    Raises:
        DecodeError: For invalid data in binary mode, which is checked last.
    """
    if payload.__class__ is not bytes:
        return None
    try:
        if not headers:
            attributes = None
        elif headers.__class__ is dict:
            attributes = _header_decoders[tuple(headers)](headers.values())
        elif headers.__class__ is Headers:
            names, values = zip(*headers._pairs)
            attributes = _header_decoders[names](values)
        else:
            return None
        if mode is not None and mode is not (_STRUCTURED if attributes is None else _BINARY):
            return None
        if attributes is None:
            return _decode_event(payload, parse_data, extension_types)
        if extension_types:
            _convert(attributes, extension_types)
    except (ValueError, RecursionError):
        return None
    if not payload:
        return _new_event(attributes, None, False)
    if parse_data and "datacontenttype" in attributes:
        return _new_event(attributes, _readers[attributes["datacontenttype"]](payload), True)
    return _new_event(attributes, payload, True)


def _convert(attributes: dict[str, Any], types: ExtensionTypes) -> None:
    for name in attributes.keys() & types.keys():
        wanted: Any = types[name]
        if name not in CORE and wanted is not None and attributes[name].__class__ is not wanted:
            attributes[name] = decode_extension(name, scalar_text(attributes[name]), wanted)


def _decode_event(payload: bytes, parse_data: bool, extension_types: ExtensionTypes | None) -> DecodedEvent:
    attributes, text, value = split_event(payload)
    base64 = attributes.pop("data_base64", None)
    if not _valid_names[tuple(attributes)] or attributes["specversion"] != "1.0":
        raise Unusual
    if extension_types:
        _convert(attributes, extension_types)
    if "time" in attributes:
        attributes["time"] = _timestamp(attributes["time"])
    if "dataschema" in attributes:
        _schemas[attributes["dataschema"]]
    content_type = attributes.get("datacontenttype")
    kind = _JSON
    if content_type is not None:
        parsed = media_type.parse(content_type)
        if parsed is None:
            raise Unusual
        kind = parsed.kind
    if text is None:
        if base64 is None:
            return _new_event(attributes, None, False)
        octets = decode_base64("data_base64", base64)
        return _new_event(attributes, data.decode(octets, content_type) if parse_data else octets, True)
    if base64 is not None:
        raise Unusual
    if kind is _JSON:
        return _new_event(attributes, value if parse_data else text, True, content_type is None)
    if value.__class__ is not str:
        raise Unusual
    return _new_event(attributes, value if kind is _TEXT and parse_data else data.encode(value, content_type), True)


def split_event(payload: bytes) -> tuple[dict[str, Any], bytes | None, Any]:
    """
    Split a JSON event whose members other than ``data`` are strings, integers, booleans or null.

    The event is split at the first ``"data":``. These quotes are not escaped: a backslash before the second one would
    come between it and ``data``. The rest without the data is decoded as an object of plain values, so the name cannot
    be that of a member of a nested object.

    Returns:
        The members other than ``data`` and those that are null, in wire order: legal text, none empty or repeated,
        no other rule checked; the JSON text of ``data``, or None; its value.

    Raises:
        ValueError: The payload is not such an event.
    """
    if not payload or payload[-1] != _CLOSING_BRACE:
        payload = payload.rstrip(_WHITE_SPACE)
    at = payload.find(_DATA, 0, MAX_HEAD)
    if at < 0:
        if len(payload) > MAX_HEAD and payload.find(_DATA_BASE64, 0, MAX_HEAD) < 0:
            raise Unusual
        return _read_members(payload), None, None
    head, text, rest = payload[:at], payload[at + len(_DATA) : -1], payload[-1:]
    if is_deeper(text):
        raise Unusual
    try:
        # Data is usually the last member. Then the payload is valid JSON if the data is, and if the text before it is
        # with its comma replaced by a brace.
        value = _read_json(text)
        text = text.strip(_WHITE_SPACE)
    except ValueError:
        text = bytes(_read_data_text(payload).data)  # also checks that the whole payload is JSON
        rest = payload[at + len(_DATA) + len(text) :]
        if not payload.startswith(text, at + len(_DATA)):
            raise Unusual from None
        value = _read_json(text)
    return _read_members(_without_data(head, rest)), text, value


def _without_data(head: bytes, rest: bytes) -> bytes:
    """Return a JSON object without its member ``data``, from the text before and after that member."""
    if not head.endswith(b","):
        head = head.rstrip(_WHITE_SPACE)
    if head.endswith(b","):
        return head[:-1] + rest
    if head == b"{" and rest.startswith(b","):
        return head + rest[1:]
    raise Unusual


def _read_members(text: bytes) -> dict[str, Any]:
    members: dict[str, Any]
    try:
        members = _read_strings(text)
        strings: Collection[str] = members.values()
        quotes = 4 * len(members)
    except msgspec.ValidationError:
        members, strings = _read_scalar_members(text)
        quotes = 2 * (len(members) + len(strings))
        members = {name: value for name, value in members.items() if value is not None}
    if _BACKSLASH in text:
        if b"\\\\" in text:
            raise Unusual
        quotes += text.count(b'\\"')
    # If a name is repeated, the text has more quotes than the members account for.
    if text.count(b'"') != quotes or not all(strings) or not _is_printable(text, strings):
        raise Unusual
    return members


def _read_scalar_members(text: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the members of an object, including null ones, and the values that are strings."""
    members = _read_scalars(text)
    strings: list[str] = []
    for name, value in members.items():
        if value.__class__ is str:
            strings.append(value)
        elif value is None:
            if name != "data_base64":
                check_name(name, DecodeError)
        elif name in CORE or name == "data_base64":
            raise Unusual
        elif value.__class__ is int:
            check_integer(name, value, DecodeError)
    return members, strings


def are_distinct(payload: bytes, members: Mapping[str, object], data_text: bytes) -> bool:
    """
    Whether the number of quotes in the text of a JSON object proves that no name is repeated.

    Text with these members has at least this many quotes, and text in which a name is repeated has more.

    Args:
        payload: JSON text of the object.
        members: The decoded members, the last one of each name.
        data_text: JSON text of the member ``data``, empty if there is none.
    """
    strings = list(map(type, members.values())).count(str)
    if members.get("data").__class__ is str:
        strings -= 1
    return payload.count(b'"') == 2 * (len(members) + strings) + data_text.count(b'"')


def _new_event(attributes: dict[str, Any], value: Any, has_data: bool, is_json: bool = False) -> DecodedEvent:
    """Make a DecodedEvent without the cost of its constructor."""
    event = _new(DecodedEvent)
    event._attributes = attributes
    event._data = value
    event.has_data = has_data
    event.is_json = is_json
    return event
