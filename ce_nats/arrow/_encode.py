"""
Encode a batch of events as messages, with the codec.

Each row has the result of ``to_nats_message``. Attributes are columns, so most checks run once for a column or for each
of its distinct values, and Arrow joins the columns to header blocks. Rows that these checks do not cover ("odd" rows)
are left to the caller, which encodes them one by one with the codec: it raises all errors of events.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..codec import media_type, percent
from ..codec._message_id import MAX_LENGTH, dedup_text
from ..codec.attributes import CORE, are_valid_names, canonical, check_name
from ..codec.data import IMPLIED_TYPE, decode_json
from ..codec.media_type import DataKind
from ..codec.mode import CONTENT_TYPE, PREFIX, STRUCTURED_TYPE, ContentMode
from ..codec.structured import _to_json
from ..errors import CeNatsError, DecodeError
from ..message import MSG_ID
from ._decode import _FIRST, _LAST, _RULES, _indexes, _is_literal, _times, _wrong
from ._headers import is_octets, octets

_TEXT: Final = pa.string()
_NON_EMPTY: Final = ("id", "source", "type", "subject")
# Characters that JSON text has without escapes.
_JSON_LITERAL: Final = bytes(code for code in range(0x20, 0x7F) if code not in b'"\\')
_SEPARATOR: Final = "|"  # between the parts of a deduplication id
_ANY_TIME: Final = "2000-01-01T00:00:00Z"


class Encoded(NamedTuple):
    """
    The messages of a batch of events.

    Attributes:
        lines: Lines of the header blocks, without the version line and the empty line; strings.
        payloads: Payloads, binary.
        odd: Rows that the codec has to encode; they are undefined in the other fields.
    """

    lines: pa.Array
    payloads: pa.Array
    odd: set[int]


def encode(events: pa.StructArray, mode: ContentMode, *, dedup: bool) -> Encoded:
    """Encode a batch."""
    try:
        return _Batch(events, mode).encoded(dedup=dedup)
    except _OddBatch:
        count = len(events)
        return Encoded(pa.nulls(count, _TEXT), pa.nulls(count, pa.binary()), set(range(count)))


class _OddBatch(Exception):  # noqa: N818  # not an error: the codec encodes these rows
    """All rows of a batch are odd."""


class _Batch:
    """State of the encoding of a batch."""

    def __init__(self, events: pa.StructArray, mode: ContentMode) -> None:
        fields = dict(zip((field.name for field in events.type), events.flatten()))
        self._fields: Mapping[str, pa.Array] = {
            name: column for name, column in fields.items() if not pa.types.is_null(column.type)
        }
        self._count = len(events)
        self._is_binary = mode is ContentMode.BINARY
        self.odd: set[int] = set()
        if "error" in self._fields:
            self.odd.update(_indexes(self._fields["error"].is_valid()))
        self._texts: dict[str, pa.Array] = {}
        self._quoted: dict[str, bool] = {}

    def encoded(self, *, dedup: bool) -> Encoded:
        self._read_attributes()
        content_type = self._texts.get("datacontenttype", pa.nulls(self._count, _TEXT))
        data = _Data(self._fields, content_type, self.odd)
        parts = [part for name in self._texts for part in self._parts(name)]
        maps = self._fields.get("extensions")
        if maps is not None:
            parts.append(self._of_map(maps))
        if data.is_implied is not None:
            implied = self._part("datacontenttype", pa.repeat(pa.scalar(IMPLIED_TYPE), self._count), is_quoted=True)
            parts.append(pc.if_else(data.is_implied, implied, ""))
        joined = _join(*parts)
        if self._is_binary:
            lines, payloads = joined, data.payload()
        else:
            lines = f"{CONTENT_TYPE}: {STRUCTURED_TYPE}\r\n"
            members = _join("{", pc.utf8_slice_codeunits(joined, 1), data.member(), "}")
            payloads = members.cast(pa.binary())
        if dedup:
            lines = _join(lines, f"{MSG_ID}: ", self._dedup_ids(), "\r\n")
        elif not self._is_binary:
            lines = pa.repeat(pa.scalar(lines), self._count)
        return Encoded(lines, payloads, self.odd)

    def _read_attributes(self) -> None:
        """Convert the fields of ``attributes`` to canonical strings; ``time_text`` replaces ``time``."""
        attributes = self._fields.get("attributes")
        if attributes is None:
            raise _OddBatch
        names = [field.name for field in attributes.type]
        columns = dict(zip(names, attributes.flatten()))
        times = [columns.pop(name) for name in ("time", "time_text") if name in columns]
        names = list(dict.fromkeys("time" if name == "time_text" else name for name in names))
        if not are_valid_names(names):
            raise _OddBatch
        for name in names:
            found = times if name == "time" else [columns[name]]
            found = [column for column in found if not pa.types.is_null(column.type)]
            if found:
                texts = [self._text(name, column) for column in found]
                self._texts[name] = pc.coalesce(*reversed(texts))
        for name in ("specversion", "id", "source", "type"):
            if name not in self._texts:
                raise _OddBatch
            if self._texts[name].null_count:
                self.odd.update(_indexes(self._texts[name].is_null()))

    def _text(self, name: str, column: pa.Array) -> pa.Array:
        """Return the canonical strings of an attribute, not checked for illegal characters."""
        kind = column.type
        self._quoted[name] = True
        if pa.types.is_timestamp(kind):
            return _instants(column, self.odd)
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
            self._quoted[name] = False
            if pa.types.is_int64(kind):
                wide = pc.cast(column, pa.int32(), safe=False).cast(pa.int64())
                self.odd.update(_indexes(pc.not_equal(wide, column)))
            return column.cast(_TEXT)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return _base64(column)
        if not is_octets(kind):
            raise _OddBatch
        return _checked(name, _utf8(column), self.odd)

    # --- Parts of header blocks and JSON events, which are joined later -----------------------------------------------

    def _parts(self, name: str) -> list[pa.Array | str]:
        texts = self._escape(name, self._texts[name])
        before, after = self._around(name, is_quoted=self._quoted[name])
        if texts.null_count:
            return [_join(before, texts, after).fill_null("")]
        return [before, texts, after]

    def _part(self, name: str, texts: pa.Array, *, is_quoted: bool) -> pa.Array:
        before, after = self._around(name, is_quoted=is_quoted)
        return _join(before, self._escape(name, texts), after)

    def _around(self, name: str, *, is_quoted: bool) -> tuple[str, str]:
        if self._is_binary:
            return f"{PREFIX}{name}: ", "\r\n"
        quote = '"' if is_quoted else ""
        return f',"{name}":{quote}', quote

    def _escape(self, name: str, texts: pa.Array) -> pa.Array:
        return _percent_encoded(name, texts, self.odd) if self._is_binary else _json_escaped(name, texts, self.odd)

    def _of_map(self, maps: pa.MapArray) -> pa.Array:
        """Return the parts of extensions in a map, joined for each row."""
        if not (is_octets(maps.type.key_type) and is_octets(maps.type.item_type)):
            raise _OddBatch
        offsets = maps.offsets
        first = offsets[0].as_py()
        offsets = pc.subtract(offsets, first)
        size = offsets[-1].as_py()
        keys, values = _utf8(maps.keys.slice(first, size)), _utf8(maps.items.slice(first, size))
        entries = pa.ListArray.from_arrays(offsets, keys)
        rows = pc.list_parent_indices(entries)
        if maps.null_count and pc.any(pc.greater(pc.list_value_length(entries.filter(maps.is_null())), 0)).as_py():
            raise _OddBatch
        coded = keys.dictionary_encode()
        wrong = [name for name in coded.dictionary.to_pylist() if not self._is_extension(name)]
        is_odd = pc.or_(pc.is_in(keys, pa.array(wrong, _TEXT)), values.is_null())
        entry_odd = set(_indexes(is_odd))
        distinct = pc.add(pc.multiply(rows.cast(pa.int64()), len(coded.dictionary)), coded.indices.cast(pa.int64()))
        if pc.count_distinct(distinct).as_py() != len(keys):
            raise _OddBatch
        escaped = (_percent_encoded if self._is_binary else _json_escaped)("", values, entry_odd)
        middle, after = (": ", "\r\n") if self._is_binary else ('":"', '"')
        lines = _join(PREFIX if self._is_binary else ',"', keys, middle, escaped, after)
        if entry_odd:
            self.odd.update(rows.take(pa.array(sorted(entry_odd), pa.int64())).to_pylist())
        return pc.binary_join(pa.ListArray.from_arrays(offsets, lines), "")

    def _is_extension(self, name: str) -> bool:
        try:
            check_name(name, DecodeError)
        except DecodeError:
            return False
        return name not in CORE and name not in self._texts

    def _dedup_ids(self) -> pa.Array:
        source, identifier = self._texts["source"], self._texts["id"]
        texts = _join(
            _percent_encoded("source", source, self.odd), _SEPARATOR, _percent_encoded("id", identifier, self.odd)
        )
        is_long = pc.greater(pc.binary_length(texts), MAX_LENGTH)
        is_other = pc.or_(pc.not_equal(pc.count_substring(texts, _SEPARATOR), 1), is_long)
        if not pc.any(is_other).as_py():
            return texts
        pairs = zip(_indexes(is_other), source.filter(is_other).to_pylist(), identifier.filter(is_other).to_pylist())
        others = ["" if row in self.odd else dedup_text(source, identifier) for row, source, identifier in pairs]
        return pc.replace_with_mask(texts, is_other, pa.array(others, _TEXT))


# --- Data -------------------------------------------------------------------------------------------------------------


class _Data:
    """
    The data of a batch.

    Attributes:
        is_implied: Whether each event gets the datacontenttype of JSON; None if none gets it.
    """

    def __init__(self, fields: Mapping[str, pa.Array], content_type: pa.Array, odd: set[int]) -> None:
        self._count = len(content_type)
        data, text = fields.get("data"), fields.get("data_text")
        if data is not None and not is_octets(data.type):
            odd.update(_indexes(data.is_valid()))  # a VARIANT
            data = None
        if data is not None and (pa.types.is_string(data.type) or pa.types.is_large_string(data.type)):
            text = _utf8(data) if text is None else pc.coalesce(_utf8(text), _utf8(data))
            data = None
        self._text = None if text is None else _utf8(text)
        self._octets = None if data is None else octets(data)
        if self._text is not None and self._octets is not None:
            self._octets = pc.if_else(self._text.is_valid(), pa.scalar(None, pa.binary()), self._octets)
        flags = fields.get("is_json")
        is_json = pa.repeat(pa.scalar(False), self._count) if flags is None else flags.fill_null(False)
        self._is_text = self._check_text(content_type, is_json, odd)
        self.is_implied = self._implied(content_type, is_json)

    def _check_text(self, content_type: pa.Array, is_json: pa.Array, odd: set[int]) -> pa.Array | None:
        """Check data that is text, and return in which rows it is not JSON; None if it is JSON in all rows."""
        if self._text is None or self._text.null_count == self._count:
            return None
        kinds = {text: media_type.parse(text) for text in content_type.drop_null().unique().to_pylist()}
        texts = [text for text, kind in kinds.items() if kind is None or kind.kind is not DataKind.JSON]
        others = [text for text, kind in kinds.items() if kind is None or not kind.has_all_text]
        is_text = pc.and_(pc.is_in(content_type, pa.array(texts, _TEXT)), self._text.is_valid())
        has_other = pc.is_in(content_type, pa.array(others, _TEXT))
        odd.update(_indexes(pc.and_(self._text.is_valid(), pc.or_(has_other, pc.and_(is_text, is_json)))))
        texts_of = self._text.cast(pa.binary()).to_pylist()
        for row, (text, is_other) in enumerate(zip(texts_of, is_text.to_pylist())):
            if text is None or is_other:
                continue
            try:
                decode_json(text)
            except DecodeError:
                odd.add(row)
        return is_text if pc.any(is_text).as_py() else None

    def _implied(self, content_type: pa.Array, is_json: pa.Array) -> pa.Array | None:
        is_implied = pa.repeat(pa.scalar(False), self._count)
        if self._text is not None:
            is_implied = self._text.is_valid()
        if self._octets is not None:
            is_implied = pc.or_(is_implied, pc.and_(self._octets.is_valid(), is_json))
        is_implied = pc.and_(is_implied, content_type.is_null())
        return is_implied if pc.any(is_implied).as_py() else None

    def payload(self) -> pa.Array:
        """Return payloads of binary mode."""
        parts = [self._octets, None if self._text is None else self._text.cast(pa.binary())]
        given = [part for part in parts if part is not None]
        if not given:
            return pa.repeat(pa.scalar(b"", pa.binary()), self._count)
        return pc.coalesce(*given, pa.scalar(b"", pa.binary()))

    def member(self) -> pa.Array | str:
        """Return the member ``data`` or ``data_base64`` of JSON events, with a comma before it, or ``""``."""
        members = []
        if self._text is not None:
            text = self._text
            if self._is_text is not None:
                strings = [None if value is None else _to_json(value).decode() for value in text.to_pylist()]
                text = pc.if_else(self._is_text, pa.array(strings, _TEXT), text)
            members.append(_join(',"data":', text))
        if self._octets is not None:
            members.append(_join(',"data_base64":"', _base64(self._octets), '"'))
        return pc.coalesce(*members, pa.scalar("")) if members else ""


# --- Columns ----------------------------------------------------------------------------------------------------------


def _join(*parts: pa.Array | str) -> pa.Array:
    """Concatenate texts; NULL if a part is NULL."""
    return pc.binary_join_element_wise(*parts, "")  # the last argument is the separator


def _base64(column: pa.Array) -> pa.Array:
    values = column.to_pylist()
    return pa.array([None if value is None else b64encode(value).decode("ascii") for value in values], _TEXT)


def _utf8(column: pa.Array) -> pa.Array:
    """
    Return a column of texts as strings.

    Raises:
        _OddBatch: One is not UTF-8; Spark's strings may contain any bytes.
    """
    try:
        return octets(column).cast(_TEXT)
    except pa.ArrowInvalid as error:
        raise _OddBatch from error


def _checked(name: str, texts: pa.Array, odd: set[int]) -> pa.Array:
    """Check the rules of an attribute, except for illegal characters."""
    if name == "time":
        checked = _times(texts.fill_null(_ANY_TIME), odd)[1]
        return pc.if_else(texts.is_valid(), checked, pa.scalar(None, _TEXT)) if texts.null_count else checked
    if name in _NON_EMPTY:
        odd.update(_indexes(pc.equal(pc.binary_length(texts), 0)))
    if name in _RULES:
        odd.update(_wrong(texts, _RULES[name]))
    return texts


def _instants(column: pa.Array, odd: set[int]) -> pa.Array:
    """Return the RFC 3339 text of instants: microseconds if they are not zero."""
    instants = column.cast(pa.timestamp("us", tz="UTC"))
    is_inside = pc.and_(pc.greater(instants, _FIRST), pc.less(instants, _LAST))
    if not pc.all(is_inside).as_py():
        odd.update(_indexes(pc.invert(is_inside)))
    texts = pc.binary_replace_slice(instants.cast(pa.timestamp("us")).cast(_TEXT), 10, 11, "T")
    is_whole = pc.ends_with(texts, ".000000")
    return _join(pc.if_else(is_whole, pc.utf8_slice_codeunits(texts, 0, 19), texts), "Z")


def _percent_encoded(name: str, texts: pa.Array, odd: set[int]) -> pa.Array:
    """Percent-encode texts for a header value, and check their characters."""
    return texts if _is_literal(texts) else _escaped(name, texts, odd, percent.encode, "%0A")


def _json_escaped(name: str, texts: pa.Array, odd: set[int]) -> pa.Array:
    """Escape texts for a JSON string, and check their characters."""
    return texts if _is_literal(texts, _JSON_LITERAL) else _escaped(name, texts, odd, _in_json, "\\n")


def _in_json(text: str) -> str:
    return _to_json(text)[1:-1].decode()


def _escaped(name: str, texts: pa.Array, odd: set[int], escape: Callable[[str], str], line_break: str) -> pa.Array:
    """Escape texts, and check their characters."""
    values = texts.to_pylist()
    joined = "\n".join([text or "" for text in values])
    # Printable text has legal characters only. Line breaks, which are not legal, separate the texts.
    are_printable = joined.count("\n") == len(values) - 1 and joined.replace("\n", "").isprintable()
    if are_printable and "\\" not in joined:
        escaped = pa.array(escape(joined).split(line_break), _TEXT)
        return pc.if_else(texts.is_valid(), escaped, pa.scalar(None, _TEXT)) if texts.null_count else escaped
    for index, text in enumerate(values):
        if text is not None:
            try:
                values[index] = escape(canonical(text, name))
            except CeNatsError:
                odd.add(index)
    return pa.array(values, _TEXT)
