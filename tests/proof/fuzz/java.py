"""The Java decoder of Spark against the codec. The decoder runs without Spark, in a Java process for all inputs."""

from __future__ import annotations

import atexit
import os
import struct
import subprocess
from collections import defaultdict
from collections.abc import Hashable, Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import IO, Any

import pyspark

from ce_nats import DecodeError
from ce_nats.spark.columns._jvm_engine import JAR
from ce_nats.wire.nats import read_header_block
from tests.proof.fuzz.inputs import (
    BLOCK,
    KINDS,
    MAP_OF_LISTS,
    block_of,
    fixture_messages,
    flattened,
    lists_of,
    octets_of,
    options,
    pairs_of,
    split,
)
from tests.proof.fuzz.target import Target
from tests.support.arrow_rows import expected

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SPARK_TYPES = {str: "string", int: "int", bool: "boolean", bytes: "binary", datetime: "timestamp"}
_PAIRS = "array<struct<key: {}, value: {}>>"
# Types of columns of headers, in the order of the first option.
_COLUMNS = {
    "text": _PAIRS.format("string", "string"),
    "text-octets": _PAIRS.format("string", "binary"),
    "octets-text": _PAIRS.format("binary", "string"),
    "octets": _PAIRS.format("binary", "binary"),
    "map": "map<string, string>",
    "map-of-lists": "map<string, array<string>>",
    "block": "binary",
}


def java(inputs: list[bytes]) -> list[Hashable]:
    """Decode messages with the same options together."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, data in enumerate(inputs):
        wanted = options(data)
        types = {name: _SPARK_TYPES[kind] for name, kind in wanted.types.items() if kind is not None}
        groups[wanted.kind, tuple(types.items())].append(place)
    outcomes: list[Hashable] = [None] * len(inputs)
    for (kind, types), places in groups.items():
        for place, one in zip(places, _compare(kind, dict(types), [split(inputs[place]) for place in places])):
            outcomes[place] = one
    return outcomes


def _compare(kind: int, types: dict[str, str], parts: list[tuple[bytes, bytes | None]]) -> Iterator[Hashable]:
    rows = [(_headers(headers, kind), payload) for headers, payload in parts]
    for row, found in zip(rows, _decoded(_COLUMNS[KINDS[kind]], types, rows), strict=True):
        right = _expected(row, types, kind)
        assert found == right, (row, found, right)
        yield right["error"], right["mode"], right["extensions"] is None


def _headers(headers: bytes, kind: int) -> Any:
    """Return the value of the column: a block, NULL, or names with values or lists of values."""
    if kind == BLOCK:
        return block_of(headers)
    pairs = pairs_of(headers)
    if pairs is None:
        return None
    if kind == MAP_OF_LISTS:
        return lists_of(pairs)
    empty = b"" if KINDS[kind] == "map" else None  # a key of a map is not NULL
    return [(empty if name is None else octets_of(name), octets_of(value)) for name, value in pairs]


def _expected(row: tuple[Any, bytes | None], types: dict[str, str], kind: int) -> dict[str, bytes | None]:
    headers, payload = row
    if kind == MAP_OF_LISTS and headers is not None:
        headers = flattened(headers)
    if isinstance(headers, bytes):
        try:
            headers = read_header_block(headers, "surrogateescape").headers.items() if headers else []
        except DecodeError as error:
            columns = dict.fromkeys(expected(([], b""), types, ""))
            return {**columns, "error": str(error.code).encode()}
    return {name: _written(value) for name, value in expected((headers, payload), types, "").items()}


def _written(value: Any) -> bytes | None:
    """Return a value as `Columns.java` writes it."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return "".join(f"{name}={text}\n" for name, text in value).encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, datetime):
        return b"%d" % ((value - _EPOCH) // timedelta(microseconds=1))
    return str(value).encode()


# --- Process --------------------------------------------------------------------------------------------------------


def _decoded(column: str, types: dict[str, str], rows: list[Any]) -> Iterator[dict[str, bytes | None]]:
    process = _process()
    to, back = process.stdin, process.stdout
    assert to is not None
    assert back is not None
    declared = ", ".join(f"{name} {kind}" for name, kind in types.items())
    to.write(struct.pack(">i", len(rows)) + _sized(column.encode()) + _sized(declared.encode()))
    to.write(b"".join(_sized_row(*row) for row in rows))
    to.flush()
    (count,) = struct.unpack(">i", back.read(4))
    names = [(_read(back) or b"").decode() for _ in range(count)]
    found = [{name: _read(back) for name in names} for _ in rows]
    return iter(found)


@cache
def _process() -> subprocess.Popen[bytes]:
    home = os.environ.get("JAVA_HOME")
    program = Path(home) / "bin" / "java" if home else "java"
    jars = os.pathsep.join((str(Path(pyspark.__file__).parent / "jars" / "*"), str(JAR)))
    source = Path(__file__).with_name("Columns.java")
    command = [program, "-Xmx512m", "-XX:+UseSerialGC", "-cp", jars, source]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    atexit.register(process.kill)
    return process


def _sized(value: Any) -> bytes:
    """Return bytes, NULL, or a list of values as `Columns.java` reads them."""
    if value is None:
        return struct.pack(">i", -1)
    if isinstance(value, list):
        return struct.pack(">i", len(value)) + b"".join(map(_sized, value))
    return struct.pack(">i", len(value)) + value


def _sized_row(headers: Any, payload: bytes | None) -> bytes:
    if not isinstance(headers, list):
        return _sized(headers) + _sized(payload)
    pairs = b"".join(_sized(part) for pair in headers for part in pair)
    return struct.pack(">i", len(headers)) + pairs + _sized(payload)


def _read(stream: IO[bytes]) -> bytes | None:
    (size,) = struct.unpack(">i", stream.read(4))
    return None if size < 0 else stream.read(size)


TARGETS = [
    Target(
        "java",
        "Columns of the Java decoder are what the codec decodes.",
        java,
        lambda: sorted(fixture_messages(), key=lambda data: data[:2]),  # few groups
        is_aligned=True,
    ),
]
