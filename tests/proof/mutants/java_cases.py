"""
The rows that the Java decoder of a mutant decodes, with their columns as the codec decodes them, for ``Runner.java``.

They are those of the tests of Spark: conformance cases with all types of headers, hostile and random messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, MapType, StringType, StructType

from ce_nats import DecodeError
from ce_nats.spark.columns._schema import EVENT, FLAT, check_headers
from ce_nats.wire.nats import read_header_block
from tests.spark import test_hostile_messages as hostile
from tests.spark import test_random_messages as random_messages
from tests.support import damage
from tests.support.arrow_rows import CORE, details_of, expected
from tests.support.spark_rows import SPARK_TYPES, chosen, groups_of, message

FLAT_FUNCTION: Final = "event_columns"
EVENT_FUNCTION: Final = "from_nats"
TEXTS: Final = "array<struct<key:string,value:string>>"
OCTETS: Final = "array<struct<key:binary,value:binary>>"
MAP: Final = "map<string,string>"
LISTS: Final = "map<string,array<string>>"
BLOCK: Final = "binary"
TYPES: Final = (
    *(TEXTS, OCTETS, "array<struct<key:binary,value:string>>", "array<struct<key:string,value:binary>>"),
    *(MAP, LISTS, BLOCK),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

Pairs = list[tuple[bytes | None, bytes | None]]


class Group(NamedTuple):
    """
    Rows that are decoded with the same types.

    Attributes:
        function: Name of the function.
        kind: Type of the headers.
        types: Declared types of extensions.
        rows: Headers, as a header block if that is the type, and payloads; None if the types are not valid.
    """

    function: str
    kind: str
    types: dict[str, str]
    rows: Sequence[tuple[Any, bytes | None]] | None


def groups() -> Iterator[Group]:
    """Yield all rows; first those that find most mutants."""
    for (types, cases), kind in product(groups_of(chosen()), TYPES):
        rows = [row for case in cases if (row := _row(kind, *message(case))) is not None]
        declared = {name: SPARK_TYPES[wanted] for name, wanted in types.items()}
        yield Group(FLAT_FUNCTION, kind, declared, rows)
        if not declared:
            yield Group(EVENT_FUNCTION, kind, {}, rows)
    yield from _of_types()
    for kind, headers, _ in hostile.NULLS:
        spelling = kind.replace(" ", ":").replace(",:", ",")
        rows = [(_headers(spelling, headers), data) for data in (None, b"")]
        yield Group(FLAT_FUNCTION, spelling, {}, rows)
    for kind, value in ((MAP, b"v"), (LISTS, [b"v"])):  # a map of Spark has no NULL as key, which the decoder expects
        yield Group(FLAT_FUNCTION, kind, {}, [([(None, value)], b"x")])
    first = [*hostile.BASE, ("ce-time", "0001-01-01T00:00:00Z")]  # pyspark cannot collect it
    messages = _rows([*hostile.messages(), (first, b"x")])
    yield Group(FLAT_FUNCTION, TEXTS, {}, messages)
    yield Group(EVENT_FUNCTION, TEXTS, {}, messages)
    yield Group(FLAT_FUNCTION, BLOCK, {}, [(block, b"x" * (at % 2)) for at, block in enumerate(hostile.blocks())])
    yield Group(FLAT_FUNCTION, BLOCK, {}, [(None, data) for data in hostile.documents_in_charsets()])
    typed = [row for row in messages if b'"x":' in (row[1] or b"") or any(name == b"ce-x" for name, _ in row[0] or ())]
    for kind in SPARK_TYPES.values():
        yield Group(FLAT_FUNCTION, TEXTS, {"x": kind}, typed)
    seed = random_messages.SEED
    yield Group(FLAT_FUNCTION, TEXTS, {}, _rows(hostile.deep_messages()))
    yield Group(FLAT_FUNCTION, TEXTS, {}, _rows(damage.damaged(random_messages.COUNT, seed)))
    yield Group(FLAT_FUNCTION, TEXTS, {}, _rows(damage.with_strange_data(random_messages.COUNT_OF_DATA, seed)))
    octets = damage.in_bytes(damage.damaged(random_messages.COUNT_OF_BYTES, seed + 1), seed)
    yield Group(FLAT_FUNCTION, OCTETS, {}, [(list(headers), data) for headers, data in octets])


def write(file: Path) -> list[Group]:
    """Write all rows into a file, and return them."""
    made = list(groups())
    with file.open("wb") as out:
        out.write(struct.pack(">i", len(made)))
        for group in made:
            out.writelines(_written(group))
    return made


# --- Types ----------------------------------------------------------------------------------------------------------


def _of_types() -> Iterator[Group]:
    """Yield groups without rows, of valid and of invalid types of headers and extensions."""
    scalars: list[DataType] = [StringType(), BinaryType(), IntegerType()]
    kinds: list[DataType] = [*scalars, *map(ArrayType, scalars), StructType().add("key", StringType())]
    for count in (1, 2, 3):
        for members in product(scalars, repeat=count):
            pair = StructType()
            for name, member in zip("kvx", members):
                pair = pair.add(name, member)
            kinds.append(ArrayType(pair))
    kinds += [MapType(key, value) for key, value in product(scalars, [*scalars, *map(ArrayType, scalars)])]
    for kind in kinds:
        rows: list[Any] | None = None
        with suppress(TypeError):
            check_headers(kind)
            rows = []
        yield Group(FLAT_FUNCTION, kind.simpleString(), {}, rows)
    for wanted in ("double", "bigint", "date", "array<string>"):
        yield Group(FLAT_FUNCTION, TEXTS, {"n": wanted}, None)


# --- Messages -------------------------------------------------------------------------------------------------------


def _rows(messages: Iterable[tuple[Sequence[tuple[str, str]], bytes]]) -> list[tuple[Any, bytes | None]]:
    return [(_pairs(pairs), data) for pairs, data in messages]


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> Pairs:
    return [(_octets(name), _octets(value)) for name, value in pairs]


def _octets(text: Any) -> bytes | None:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text and bytes(text)


def _row(kind: str, pairs: list[tuple[str, str]], data: bytes) -> tuple[Any, bytes] | None:
    """Return a row with a type of headers, None if it cannot have the headers of a message."""
    given = _pairs(pairs)
    if kind == MAP and len(dict(given)) < len(given):
        return None
    if kind == LISTS:
        lists: dict[bytes | None, list[bytes | None]] = {}
        for name, value in given:
            lists.setdefault(name, []).append(value)
        return list(lists.items()), data
    if kind == BLOCK:
        return b"NATS/1.0\r\n%s\r\n" % b"".join(b"%s: %s\r\n" % pair for pair in given), data
    return given, data


def _headers(kind: str, headers: Any) -> Any:
    """Return headers of the tests of NULL as those of a row."""
    if headers is None or kind == BLOCK:
        return headers
    items = headers.items() if isinstance(headers, dict) else headers
    if kind == LISTS:
        return [(_octets(name), None if values is None else [*map(_octets, values)]) for name, values in items]
    return [None if pair is None else (_octets(pair[0]), _octets(pair[1])) for pair in items]


# --- Bytes ----------------------------------------------------------------------------------------------------------


def _written(group: Group) -> Iterator[bytes]:
    declared = ",".join(f"{name}:{kind}" for name, kind in group.types.items())
    types = f"headers {group.kind}, data binary" + (f", types struct<{declared}>" if declared else "")
    schema = _described(EVENT if group.function == EVENT_FUNCTION else FLAT)
    added = "".join(f",{name}:{kind}?" for name, kind in group.types.items())
    schema = f"{schema[:-1]}{added}>"
    yield from map(_sized, (group.function.encode(), types.encode(), schema.encode()))
    yield struct.pack(">i", -1 if group.rows is None else len(group.rows))
    written = _headers_writer(group.kind)
    for headers, data in group.rows or ():
        yield written(headers) + _sized(data) + _sized(_expected(group, headers, data))


def _described(kind: DataType) -> str:
    """Return a type, with a question mark where NULL is allowed."""
    if isinstance(kind, StructType):
        fields = (f"{one.name}:{_described(one.dataType)}{'?' if one.nullable else ''}" for one in kind)
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, MapType):
        value = f"{_described(kind.valueType)}{'?' if kind.valueContainsNull else ''}"
        return f"map<{_described(kind.keyType)},{value}>"
    return kind.simpleString()


def _headers_writer(kind: str) -> Any:
    if kind == BLOCK:
        return _sized
    if kind == MAP:
        return partial(_counted, lambda pair: _sized(pair[0]) + _sized(pair[1]))
    if kind == LISTS:
        return partial(_counted, lambda pair: _sized(pair[0]) + _counted(_sized, pair[1]))
    return partial(_counted, lambda pair: b"\1" + _sized(pair[0]) + _sized(pair[1]) if pair else b"\0")


def _counted(written: Any, items: Any) -> bytes:
    if items is None:
        return struct.pack(">i", -1)
    return struct.pack(">i", len(items)) + b"".join(map(written, items))


def _sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def _expected(group: Group, headers: Any, data: bytes | None) -> bytes:
    """Return what ``Runner.java`` must write for a row."""
    row, columns = (headers, data), {}
    if group.kind == BLOCK:
        try:
            row = _pairs(read_header_block(headers, "surrogateescape").headers.items() if headers else []), data
        except DecodeError as error:
            columns = {**dict.fromkeys(expected(([], b""), group.types, "")), "error": str(error.code)}
    elif group.kind == LISTS and headers is not None:
        row = [(name, value) for name, values in headers for value in ([None] if values is None else values)], data
    elif headers is not None:
        row = [(None, None) if pair is None else pair for pair in headers], data
    columns = columns or expected(row, group.types, "")
    if group.function == EVENT_FUNCTION:
        return b"".join(map(_sized_value, _of_event(columns, row)))
    return b"".join(map(_sized_value, columns.values()))


def _of_event(columns: dict[str, Any], row: Any) -> Iterator[Any]:
    """Yield the fields of ``from_nats``; a struct that is NULL is one field."""
    time_text, is_json = details_of(row) if columns["mode"] else (None, None)
    yield from [*(columns[name] for name in CORE), time_text] if columns["mode"] else [None]
    yield from (columns["extensions"], columns["data"], is_json, columns["mode"], columns["error"])


def _sized_value(value: Any) -> bytes:
    if isinstance(value, list):
        value = "".join(f"{name}={text}\n" for name, text in value)
    elif isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, datetime):
        value = (value - _EPOCH) // timedelta(microseconds=1)
    return _sized(value if value is None or isinstance(value, bytes) else str(value).encode())
