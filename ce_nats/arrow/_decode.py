"""
Decode a batch of messages to columns of events, with the codec.

Each row has the result of ``from_nats_message(message, parse_data=False)``. Most messages of a stream have the same
header names, so rows with the same names are decoded together: the names are checked once, and the values of each
attribute as a column. Rows that these checks do not cover ("odd" rows) are decoded one by one by the codec, which
raises all errors of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..codec import media_type, percent, structured
from ..codec._json_members import split_event
from ..codec.attributes import ABSOLUTE_URI, CORE, ExtensionTypes, are_valid_names, canonical, decode_extension
from ..codec.binding import from_nats_message
from ..codec.event import DecodedEvent
from ..codec.mode import SIZE_HEADER, ContentMode, SortedNames, detect_mode, sort_names, structured_by
from ..codec.timestamp import COMMON, Timestamp
from ..errors import DecodeError
from ..message import Headers, NatsMessage
from ._headers import Pairs, octets, pairs

# The attributes of the specification, in the order of their columns.
ATTRIBUTES: Final = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")

# Columns that explode_cloudevents adds, before those of errors and of declared extensions.
COLUMNS: Final = (*ATTRIBUTES, "extensions", "data", "mode")
_TEXTS: Final = tuple(name for name in ATTRIBUTES if name != "time")

_TEXT: Final = pa.string()
_INSTANT: Final = pa.timestamp("us", tz="UTC")
TYPES: Final[Mapping[str, pa.DataType]] = {
    **{name: _INSTANT if name == "time" else _TEXT for name in ATTRIBUTES},
    "time_text": _TEXT,
    "extensions": pa.map_(_TEXT, _TEXT),
    "data": pa.binary(),
    "is_json": pa.bool_(),
    "mode": _TEXT,
}
# Types of declared extensions, and the types of their columns.
DECLARED: Final[Mapping[Any, pa.DataType]] = {
    str: _TEXT,
    int: pa.int32(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: _INSTANT,
}

# Fewer rows with the same names are decoded faster one by one, unless their payloads are large: the codec would copy
# them once more, and parse JSON a second time.
_MIN_ROWS = 20
_MIN_BYTES = 128 * 2**10
_ONLY_STRINGS: Final = {str}
_LITERAL: Final = percent.LITERAL.encode("ascii")
_COMMON_TIME: Final = f"^(?:{COMMON.pattern})$"
# Instants between these are in the years 1 to 9999 in every time zone, as required by datetime and Spark's TIMESTAMP.
_FIRST: Final = pa.scalar(datetime(1, 1, 2, tzinfo=timezone.utc), _INSTANT)
_LAST: Final = pa.scalar(datetime(9999, 12, 30, tzinfo=timezone.utc), _INSTANT)

Columns = dict[str, pa.Array]


class Decoded(NamedTuple):
    """
    The events of a batch.

    Attributes:
        columns: Arrays of :data:`TYPES`, by name; a row that is not an event is NULL in all of them.
        typed: Arrays of the extensions with declared types.
        errors: Errors of the rows that are not events, by row.
    """

    columns: Columns
    typed: Columns
    errors: dict[int, DecodeError]


class Part(NamedTuple):
    """Rows that were decoded together, and their columns."""

    rows: list[int]
    columns: Columns
    typed: Columns


def decode(headers: pa.Array, data: pa.Array, types: ExtensionTypes | None = None) -> Decoded:
    """Decode a batch."""
    return _Batch(pairs(headers), octets(data).fill_null(b""), types or {}).decoded()


def combine(count: int, events: Events, errors: dict[int, DecodeError]) -> Decoded:
    """Return events that were decoded one by one as a batch of ``count`` rows."""
    return _assembled(count, [events.part()], {}, errors)


class _Batch:
    """State of the decoding of a batch."""

    def __init__(self, headers: Pairs, payloads: pa.Array, types: ExtensionTypes) -> None:
        self._headers = headers
        self._payloads = payloads
        self._types = types
        self._errors: dict[int, DecodeError] = dict(headers.errors)
        self._events = Events(types)
        self._parts: list[Part] = []

    def decoded(self) -> Decoded:
        for names, rows in self._groups():
            self._decode_group(names, rows)
        self._decode_singly(self._headers.escaped)
        if self._events.rows:
            self._parts.append(self._events.part())
        return _assembled(len(self._payloads), self._parts, self._types, self._errors)

    def _groups(self) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        """Yield tuples of header names, each with the rows that have them and whose headers are UTF-8."""
        headers = self._headers
        coded = headers.names.dictionary_encode()
        names = coded.dictionary.to_pylist()
        codes = coded.indices.fill_null(0).cast(pa.int32())
        codes_of = memoryview(codes.buffers()[1] or b"").tobytes()  # an array of dictionary_encode() has no offset
        groups: dict[bytes, list[int]] = {}
        for row, (begin, end) in enumerate(zip(headers.starts, headers.ends)):
            key = codes_of[4 * begin : 4 * end]
            try:
                groups[key].append(row)
            except KeyError:
                groups[key] = [row]
        excluded = headers.errors.keys() | headers.escaped.keys()
        for key, rows in groups.items():
            if excluded:
                rows = [row for row in rows if row not in excluded]
            if rows:
                yield tuple(names[code] for code in memoryview(key).cast("i")), rows

    def _decode_group(self, names: tuple[str, ...], rows: list[int]) -> None:
        found = sort_names(names)
        if len(found.content_type_places) > 1 or SIZE_HEADER in names:
            self._decode_singly(rows)
        elif not found.content_type_places:
            self._decode_by_names(found, rows)
        else:
            by_type: dict[str, list[int]] = {}
            for row, value in zip(rows, self._values(rows, found.content_type_places[0]).to_pylist()):
                by_type.setdefault(value, []).append(row)
            for content_type, some in by_type.items():
                self._decode_by_type(content_type, found, some)

    def _decode_by_type(self, content_type: str, found: SortedNames, rows: list[int]) -> None:
        try:
            is_structured = structured_by([content_type]) is not None
        except DecodeError as error:
            self._errors.update(dict.fromkeys(rows, error))
            return
        if is_structured:
            self._decode_structured(rows, has_header=True)
        else:
            self._decode_by_names(found, rows)

    def _decode_by_names(self, found: SortedNames, rows: list[int]) -> None:
        if not found.ce_places:
            self._decode_structured(rows, has_header=False)
            return
        sizes = (self._payloads[row].as_buffer().size for row in rows)
        if not are_valid_names(found.attributes) or _are_few(rows, sizes):
            self._decode_singly(rows)
            return
        odd: set[int] = set()
        texts = {
            name: _unescaped(self._values(rows, index), odd) for name, index in zip(found.attributes, found.ce_places)
        }
        columns, typed = _columns(texts, self._types, odd)
        columns["data"] = _data(self._payloads.take(pa.array(rows)))
        columns["is_json"] = pa.repeat(pa.scalar(False), len(rows))
        columns["mode"] = pa.repeat(pa.scalar(str(ContentMode.BINARY)), len(rows))
        self._keep(Part(rows, columns, typed), odd)

    def _keep(self, part: Part, odd: set[int]) -> None:
        """Keep rows that were decoded together; decode those with the indexes ``odd`` one by one."""
        if odd:
            self._decode_singly([part.rows[index] for index in sorted(odd)])
            kept = [index for index in range(len(part.rows)) if index not in odd]
            some = pa.array(kept, pa.int64())
            part = Part(
                [part.rows[index] for index in kept],
                {name: column.take(some) for name, column in part.columns.items()},
                {name: column.take(some) for name, column in part.typed.items()},
            )
        self._parts.append(part)

    def _values(self, rows: list[int], index: int) -> pa.Array:
        """Return the value of the header with an index in each row."""
        starts = self._headers.starts
        return self._headers.values.take(pa.array([starts[row] + index for row in rows], pa.int64()))

    def _decode_structured(self, rows: list[int], *, has_header: bool) -> None:
        groups: dict[tuple[tuple[str, ...], bool], list[tuple[int, Sequence[str], bytes | None]]] = {}
        for row, payload in zip(rows, self._payloads.take(pa.array(rows)).to_pylist()):
            try:
                members, text, _ = split_event(payload)
            except (ValueError, RecursionError):
                if payload:
                    self._add(
                        row,
                        ContentMode.STRUCTURED,
                        structured.decode,
                        payload,
                        has_cloudevents_header=has_header,
                    )
                else:
                    self._decode_singly([row])
                continue
            groups.setdefault((tuple(members), text is not None), []).append((row, [*members.values()], text))
        for (names, _), group in groups.items():
            if not are_valid_names(names) or _are_few(group, (len(text or b"") for _, _, text in group)):
                self._decode_singly(row for row, _, _ in group)
            else:
                self._decode_members(names, *zip(*group))

    def _decode_members(
        self,
        names: tuple[str, ...],
        rows: tuple[int, ...],
        values: tuple[Sequence[Any], ...],
        data_texts: tuple[bytes | None, ...],
    ) -> None:
        odd: set[int] = set()
        texts = {name: _strings(column, odd) for name, column in zip(names, zip(*values))}
        columns, typed = _columns(texts, self._types, odd)
        if data_texts[0] is not None and "datacontenttype" in texts:
            odd.update(_wrong(texts["datacontenttype"], _is_json))
        columns["data"] = pa.array(data_texts, pa.binary())
        is_json = data_texts[0] is not None and "datacontenttype" not in texts
        columns["is_json"] = pa.repeat(pa.scalar(is_json), len(rows))
        columns["mode"] = pa.repeat(pa.scalar(str(ContentMode.STRUCTURED)), len(rows))
        self._keep(Part(list(rows), columns, typed), odd)

    def _decode_singly(self, rows: Iterable[int]) -> None:
        for row in rows:
            message = NatsMessage("", self._payloads[row].as_py(), Headers._of(self._headers.of(row)))
            self._add(row, None, from_nats_message, message)

    def _add(
        self, row: int, mode: ContentMode | None, decode: Callable[..., DecodedEvent], *given: Any, **how: Any
    ) -> None:
        types = self._types
        try:
            event = decode(*given, **how, parse_data=False, extension_types=types)
        except DecodeError as error:
            self._errors[row] = error
            return
        has_types = types and not types.keys().isdisjoint(event._attributes)
        untyped = decode(*given, **how, parse_data=False) if has_types else None
        why = self._events.add(row, event, detect_mode(*given) if mode is None else mode, untyped)
        if why is not None:
            self._errors[row] = why


def _are_few(rows: Sequence[object], sizes: Iterable[int]) -> bool:
    """Return whether decoding rows one by one is faster than together."""
    return len(rows) < _MIN_ROWS and sum(sizes) < _MIN_BYTES


# --- Rows with the same attributes ----------------------------------------------------------------------------------
# ``odd`` collects the indexes of rows that the codec has to decode one by one.


def _columns(texts: Columns, types: ExtensionTypes, odd: set[int]) -> tuple[Columns, Columns]:
    """Return the columns for the texts of attributes, and those of extensions with declared types."""
    for name, is_valid in _RULES.items():
        if name in texts:
            odd.update(_wrong(texts[name], is_valid))
    columns: Columns = {name: texts[name] for name in _TEXTS if name in texts}
    if "time" in texts:
        columns["time"], columns["time_text"] = _times(texts["time"], odd)
    extensions = {name: column for name, column in texts.items() if name not in CORE}
    columns["extensions"] = _maps(extensions, len(texts["id"]))
    typed = {name: _typed(name, extensions[name], types[name], odd) for name in types if name in extensions}
    return columns, typed


def _unescaped(column: pa.Array, odd: set[int]) -> pa.Array:
    """Decode header values to attribute values."""
    odd.update(_indexes(pc.equal(pc.binary_length(column), 0)))
    if _is_literal(column):
        return column
    values = column.to_pylist()
    for index, value in enumerate(values):
        if not value.encode().translate(None, _LITERAL):
            continue
        try:
            text = percent.decode(value.strip(" \t"))
        except DecodeError:
            text = ""
        if not text or not text.isprintable():  # printable text has legal characters only
            odd.add(index)
        values[index] = text
    return pa.array(values, _TEXT)


def _strings(values: Sequence[Any], odd: set[int]) -> pa.Array:
    """Return attribute values in members of JSON events; rows with integers and booleans are odd."""
    if {*map(type, values)} != _ONLY_STRINGS:
        odd.update(index for index, value in enumerate(values) if value.__class__ is not str)
        values = [value if value.__class__ is str else "" for value in values]
    return pa.array(values, _TEXT)


def _is_literal(column: pa.Array, literal: bytes = _LITERAL) -> bool:
    """Return whether all characters are among some; by default those that need no percent-encoding in a header."""
    _, offsets, octets_of = column.buffers()
    if octets_of is None:
        return True
    bounds = memoryview(offsets).cast("i")
    used = memoryview(octets_of)[bounds[column.offset] : bounds[column.offset + len(column)]]
    return not used.tobytes().translate(None, literal)


# Checks of attributes other than ``time``. The codec raises the error of a value that fails one.
_RULES: Final[Mapping[str, Callable[[str], object]]] = {
    "specversion": lambda text: text == "1.0",
    "datacontenttype": media_type.parse,
    "dataschema": ABSOLUTE_URI.match,
}


def _is_json(content_type: str) -> bool:
    kind = media_type.parse(content_type)
    return kind is not None and kind.kind is media_type.DataKind.JSON


def _wrong(column: pa.Array, is_valid: Callable[[str], object]) -> list[int]:
    wrong = [text for text in column.drop_null().unique().to_pylist() if not is_valid(text)]
    return _indexes(pc.is_in(column, pa.array(wrong, _TEXT))) if wrong else []


def _times(column: pa.Array, odd: set[int]) -> tuple[pa.Array, pa.Array]:
    """Return instants and texts of the attribute ``time``."""
    is_common = pc.match_substring_regex(column, _COMMON_TIME)
    instants = _common_times(pc.if_else(is_common, column, pa.scalar(None, _TEXT)))
    if instants is None:
        is_common, instants = pc.and_(is_common, pa.scalar(False)), pa.nulls(len(column), _INSTANT)
    elif pc.all(is_common).as_py():
        return instants, column
    is_other = pc.invert(is_common)
    times: list[Timestamp | None] = []
    for index, text in zip(_indexes(is_other), column.filter(is_other).to_pylist()):
        try:
            times.append(Timestamp.parse(text))
        except DecodeError:
            odd.add(index)
            times.append(None)
    texts = pa.array([None if time is None else time.text for time in times], _TEXT)
    return pc.replace_with_mask(instants, is_other, _instants(times)), pc.replace_with_mask(column, is_other, texts)


def _common_times(column: pa.Array) -> pa.Array | None:
    """Parse times of the common form, which Arrow parses as the codec does; return None if one is not a valid date."""
    try:
        instants = column.cast(_INSTANT)
    except pa.ArrowInvalid:
        return None
    is_inside = pc.and_(pc.greater(instants, _FIRST), pc.less(instants, _LAST))
    return instants if pc.all(is_inside).as_py() else None


def _instants(times: Iterable[datetime | None]) -> pa.Array:
    return pa.array([None if time is None else _instant(time) for time in times], _INSTANT)


def _instant(time: datetime) -> datetime | None:
    """Return the instant in UTC, or None outside the years 1 to 9999."""
    try:
        return time.astimezone(timezone.utc)
    except OverflowError:
        return None


def _typed(name: str, column: pa.Array, wanted: Any, odd: set[int]) -> pa.Array:
    values: list[Any] = []
    for index, text in enumerate(column.to_pylist()):
        try:
            values.append(decode_extension(name, text, wanted))
        except DecodeError:
            odd.add(index)
            values.append(None)
    return _typed_array(values, wanted)


def _typed_array(values: Sequence[Any], wanted: Any) -> pa.Array:
    return _instants(values) if wanted is datetime else pa.array(values, DECLARED[wanted])


def _maps(columns: Columns, count: int) -> pa.Array:
    """Return an array of maps that all have the same names, from the columns of their values."""
    width = len(columns)
    offsets = pa.array(range(0, count * width + 1, width) if width else [0] * (count + 1), pa.int32())
    names = pa.array([*columns] * count, _TEXT)
    if width == 1:
        (values,) = columns.values()
    elif width:
        indexes = pa.array([index * count + row for row in range(count) for index in range(width)], pa.int64())
        values = pa.concat_arrays(list(columns.values())).take(indexes)
    else:
        values = pa.array([], _TEXT)
    return pa.MapArray.from_arrays(offsets, names, values)


def _data(payloads: pa.Array) -> pa.Array:
    """Replace empty payloads by NULL: an empty payload means no data."""
    is_empty = pc.equal(pc.binary_length(payloads), 0)
    return pc.if_else(is_empty, pa.scalar(None, pa.binary()), payloads) if pc.any(is_empty).as_py() else payloads


def _indexes(mask: pa.Array) -> list[int]:
    return pc.indices_nonzero(mask).to_pylist()  # type: ignore[no-any-return]


# --- Single events --------------------------------------------------------------------------------------------------


class Events:
    """Events that were decoded one by one. Only the values for the columns are kept."""

    def __init__(self, types: ExtensionTypes) -> None:
        self._types = types
        self._declared = [name for name in types if name not in CORE]
        self.rows: list[int] = []
        self._core: list[tuple[str | None, ...]] = []
        self._times: list[str | None] = []
        self._extensions: list[tuple[tuple[str, str], ...]] = []
        self._typed: list[tuple[Any, ...]] = []
        self._data: list[bytes | None] = []
        self._is_json: list[bool] = []
        self._modes: list[str] = []

    def add(
        self, row: int, event: DecodedEvent, mode: ContentMode, untyped: DecodedEvent | None = None
    ) -> DecodeError | None:
        """
        Add an event that was decoded without parsing its data.

        Returns the reason why the column of an event with data is null: it was not delivered, or its charset does not
        have it.
        """
        attributes = event._attributes
        time = attributes.get("time")
        texts = attributes if untyped is None else untyped._attributes
        self.rows.append(row)
        self._core.append(tuple(map(attributes.get, _TEXTS)))
        self._times.append(None if time is None else time.text)
        self._extensions.append(
            tuple(
                (name, value if value.__class__ is str else canonical(value))
                for name, value in texts.items()
                if name not in CORE
            )
        )
        if self._declared:
            self._typed.append(tuple(map(attributes.get, self._declared)))
        data = event._data if isinstance(event._data, bytes) else None
        self._data.append(data)
        self._is_json.append(event.is_json)
        self._modes.append(mode.value)
        return event.data_error if data is None and event.has_data else None

    def part(self) -> Part:
        """Return the rows as columns, to be combined with those of other parts."""
        core = zip(*self._core) if self._core else ((),) * len(_TEXTS)
        columns: Columns = {name: pa.array(values, _TEXT) for name, values in zip(_TEXTS, core)}
        columns["time"], columns["time_text"] = _times(pa.array(self._times, _TEXT), set())
        columns["extensions"] = pa.array(self._extensions, TYPES["extensions"])
        columns["data"] = pa.array(self._data, pa.binary())
        columns["is_json"] = pa.array(self._is_json, pa.bool_())
        columns["mode"] = pa.array(self._modes, _TEXT)
        typed = zip(*self._typed) if self._typed else ((),) * len(self._declared)
        declared = {name: _typed_array(values, self._types[name]) for name, values in zip(self._declared, typed)}
        return Part(self.rows, columns, declared)


# --- The batch ------------------------------------------------------------------------------------------------------


def _assembled(count: int, parts: Sequence[Part], types: ExtensionTypes, errors: dict[int, DecodeError]) -> Decoded:
    rows = [row for part in parts for row in part.rows]
    order: pa.Array | None = None
    if rows != list(range(count)):
        indexes: list[int | None] = [None] * count
        for index, row in enumerate(rows):
            indexes[row] = index
        order = pa.array(indexes, pa.int64())

    def joined(columns: Iterable[pa.Array | None], kind: pa.DataType) -> pa.Array:
        arrays = [pa.nulls(len(part.rows), kind) if column is None else column for part, column in zip(parts, columns)]
        whole = pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind)
        return whole if order is None else whole.take(order)

    return Decoded(
        {name: joined((part.columns.get(name) for part in parts), kind) for name, kind in TYPES.items()},
        {name: joined((part.typed.get(name) for part in parts), DECLARED[kind]) for name, kind in types.items()},
        errors,
    )
