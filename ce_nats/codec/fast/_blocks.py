"""
Decode common events from raw header blocks, without a list of headers.

For each sequence of header names there is one regular expression, which matches a whole header block and captures the
values, and one function, compiled from generated source text, that makes the event. Names have to occur several times
before these are compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from .._bounded_cache import Names
from ..attributes import ExtensionTypes
from ..event import DecodedEvent
from ..mode import ContentMode, SortedNames, sort_names
from . import _values
from ._compile import CompiledConverters, _joined, _key, _source, _uncached, is_handled
from ._decode import _convert, _decode_event, _readers
from ._values import RULES, decline

# Compiling takes as long as decoding 50 to 100 events in the ordinary way.
USES_BEFORE_COMPILE: Final = 32
# Events in a row without a shape, which show that there is a flood of names, and that looking for shapes is in vain.
MAX_MISSES: Final = 512
# During a flood, one of this number of events is examined.
FLOOD_STEP: Final = 16

BlockDecoder: TypeAlias = Callable[[bytes, bytes | None], DecodedEvent]
_Readers: TypeAlias = Mapping[str, Callable[[bytes], Any]]
_ReadEvent: TypeAlias = Callable[[bytes], DecodedEvent]
# Returns None if the block, given as text, has other headers.
_Shape: TypeAlias = Callable[[str, bytes, _Readers, _ReadEvent], DecodedEvent | None]

_STRUCTURED: Final = ContentMode.STRUCTURED
_names: Final = re.compile(r"\n([!-9;-~]+):").findall

# Each header can match in one way only, so that the time of a match is linear. No value matches a CR, and none matches
# an LF because the number of lines is known.
_ANY: Final = "[^\r]*"
_CAPTURED: Final = " ?([^ \r][^\r]*)"
# Common text, and escapes: ASCII without spaces and quotes.
_TEXT: Final = " ?([!#-~]+)"
# Text of senders that do not escape spaces and non-ASCII characters. It takes longer to match.
_UNESCAPED_TEXT: Final = r' ?([^\0-\x20"\x7f](?:[^\0-\x1f"\x7f]*[^\0-\x20"\x7f])?)'
_VERSION: Final = r" ?1\.0"


def block_decoder(
    otherwise: BlockDecoder, mode: ContentMode | None, parse_data: bool, extension_types: ExtensionTypes | None
) -> BlockDecoder | None:
    """Return a function that decodes payloads and raw header blocks, or None for options without a fast path."""
    if mode is _STRUCTURED:
        return None
    readers = _readers if parse_data else _UNPARSED

    def read_event(payload: bytes) -> DecodedEvent:
        return _decode_event(payload, parse_data, None) if mode is None else decline()

    shapes = _RecentShapes(readers, read_event)
    recent, other = shapes.get, shapes.decode_other

    def decode(payload: bytes, block: bytes | None) -> DecodedEvent:
        try:
            if block and payload.__class__ is bytes:
                text = block.decode()
                lines = text.count("\n")
                if "\0" not in text:
                    event = recent(lines, _no_event)(text, payload, readers, read_event)
                    if event is None:
                        event = other(lines, text, payload)
                    if extension_types:
                        _convert(event._attributes, extension_types)
                    return event
        except (ValueError, TypeError, RecursionError):
            pass  # the full codec raises the right error, or accepts the event
        return otherwise(payload, block)

    return decode


class _RecentShapes(dict[int, _Shape]):
    """The shape that was used last, by the number of lines of the header block; bounded as the names of a shape are."""

    def __init__(self, readers: _Readers, read_event: _ReadEvent) -> None:
        super().__init__()
        self._readers = readers
        self._read_event = read_event
        self._misses = 0

    def decode_other(self, lines: int, text: str, payload: bytes) -> Any:
        """
        Decode an event that does not have the shape that was used last.

        Raises:
            NotHandled: The names of its headers did not occur often enough, or the full codec has to decide.
            ValueError: As NotHandled.
        """
        self._misses += 1
        if self._misses > MAX_MISSES and self._misses % FLOOD_STEP:
            decline()
        names = tuple(_names(text))
        if len(names) != lines - 2:  # of the version line and the empty line
            decline()
        shape = block_shapes[names]
        event = None if shape is self.get(lines) else shape(text, payload, self._readers, self._read_event)
        if event is not None:
            self[lines] = shape
        else:
            event = unescaped_shapes[names](text, payload, self._readers, self._read_event) or decline()
        self._misses = 0
        return event


class _Unparsed(dict[str, Callable[[bytes], bytes]]):
    """Mapping of every media type to a function that returns data unchanged."""

    def __missing__(self, _: str) -> Callable[[bytes], bytes]:
        return bytes


_UNPARSED: Final = _Unparsed()


def _no_event(*_: object) -> None:
    return None


# --- Source text ----------------------------------------------------------------------------------------------------


def block_pattern(names: Sequence[str], text: str = _TEXT) -> str:
    """Return the regular expression for header blocks with these headers, in this order."""
    found = sort_names(tuple(names))
    values = {place: _pattern_of(name, text) for place, name in zip(found.ce_places, found.attributes)}
    values.update(dict.fromkeys(found.content_type_places, _CAPTURED))
    lines = (f"{re.escape(name)}:{values.get(place, _ANY)}\r\n" for place, name in enumerate(names))
    return f"NATS/1\\.0\r\n{''.join(lines)}\r\n"


def _pattern_of(name: str, text: str) -> str:
    if name == "specversion":
        return _VERSION
    return _CAPTURED if name == "time" or name in RULES else text


def block_decoder_source(names: Sequence[str]) -> str:
    """Return the source text of a function that decodes an event, or returns None if the block has other headers."""
    found = sort_names(tuple(names))
    return _source(
        "def decode(text, payload, readers, read_event):",
        "found = match(text)",
        "if found is None:",
        "    return None",
        *(_binary_lines(found) if found.attributes else _structured_lines(found)),
    )


def _structured_lines(found: SortedNames) -> Iterator[str]:
    if found.content_type_places:
        yield "structured_types[found[1]]"
    yield "return read_event(payload)"


def _binary_lines(found: SortedNames) -> Iterator[str]:
    variables = {name: f"v{place}" for name, place in zip(found.attributes, found.ce_places)}
    content_types = [f"v{place}" for place in found.content_type_places]
    captured = [variable for name, variable in variables.items() if name != "specversion"] + content_types
    captured.sort(key=lambda variable: int(variable[1:]))
    yield f"{', '.join(captured)}, = found.groups()"
    yield from (f"other_types[{variable}]" for variable in content_types)
    uncached = _uncached(variables)
    yield f'if not text.isascii() or ("%" in text and "%" in {_joined(uncached)}):'
    yield f"    {', '.join(uncached)}, = unescape_all(({', '.join(uncached)},))"
    if "datacontenttype" in variables:
        yield "{0} = datacontenttype_values[{0}]".format(variables["datacontenttype"])
    yield "event = new(DecodedEvent)"
    items = ", ".join(f"{_key(name, variables)}: {_value(name, variable)}" for name, variable in variables.items())
    yield f"event._attributes = {{{items}}}"
    yield "event.is_json = False"
    yield "event.has_data = has_data = payload != b''"
    data = f"readers[{variables['datacontenttype']}](payload)" if "datacontenttype" in variables else "payload"
    yield f"event._data = {data} if has_data else None"
    yield "return event"


def _value(name: str, variable: str) -> str:
    if name == "specversion":
        return '"1.0"'
    if name == "time":
        return f"timestamp({variable})"
    return f"{name}_values[{variable}]" if name in RULES and name != "datacontenttype" else variable


# --- Functions ------------------------------------------------------------------------------------------------------

# Names in the generated source text.
_SCOPE: Final[Mapping[str, object]] = {
    "new": object.__new__,
    "DecodedEvent": DecodedEvent,
    "unescape_all": _values.unescape_all,
    "timestamp": _values.timestamp,
    "structured_types": _values.structured_types,
    "other_types": _values.other_types,
    **{f"{name}_values": cache for name, cache in _values.attribute_texts.items()},
}


def _shape(names: Names, text: str = _TEXT) -> _Shape:
    found = sort_names(names)
    if not is_handled(names, found):
        return _no_event
    scope: dict[str, Any] = {f"name_of_v{place}": name for place, name in zip(found.ce_places, found.attributes)}
    scope |= {**_SCOPE, "match": re.compile(block_pattern(names, text)).fullmatch}
    exec(block_decoder_source(names), scope)  # noqa: S102  # no text from outside is part of the source
    shape: _Shape = scope["decode"]
    return shape


block_shapes: Final = CompiledConverters(_shape, USES_BEFORE_COMPILE)
unescaped_shapes: Final = CompiledConverters(partial(_shape, text=_UNESCAPED_TEXT), USES_BEFORE_COMPILE)
