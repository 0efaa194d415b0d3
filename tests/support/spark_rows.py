"""Rows of messages for Spark, and comparison of decoded columns with events decoded in Python."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from pyspark.sql import Row, SparkSession

from ce_nats import DecodeError, Timestamp, from_nats_message
from ce_nats.codec.attributes import canonical
from ce_nats.conformance import Case, load_cases
from ce_nats.conformance._cases import octets, text
from ce_nats.spark import explode_cloudevents
from tests.support import damage

BASE = [("ce-specversion", "1.0"), ("ce-source", "/s"), ("ce-type", "t")]
# A binary, an invalid and a structured message.
ROWS = [
    (1, [*BASE, ("ce-id", "a"), ("ce-n", "5")], bytearray(b"x")),
    (2, [*BASE, ("ce-id", "%C0%A0")], bytearray()),
    (3, [], bytearray(b'{"specversion":"1.0","id":"b","source":"/s","type":"t","n":7,"data":[1]}')),
]
MESSAGES = "sequence long, headers array<struct<key string, value string>>, data binary"

# Of rows of conformance cases.
SCHEMA = "id string, headers array<struct<key string, value string>>, data binary"
PYTHON_TYPES = {"Boolean": bool, "Integer": int, "String": str, "Binary": bytes, "Timestamp": datetime}
SPARK_TYPES = {
    "Boolean": "boolean",
    "Integer": "int",
    "String": "string",
    "Binary": "binary",
    "Timestamp": "timestamp",
}
CORE = ("specversion", "id", "source", "type", "subject", "datacontenttype", "dataschema")
ENGINES = ("jvm", "python")


def chosen() -> list[Case]:
    """Return the cases that a row of a DataFrame can hold, without an explicit mode or another dialect."""
    cases = [case for case in load_cases() if case.op == "from_nats_message"]
    cases = [case for case in cases if "mode" not in case.input and case.input.get("dialect", "spec") == "spec"]
    return [case for case in cases if _is_utf8(case.input.get("headers"))]


def message(case: Case) -> tuple[list[tuple[str, str]], bytes]:
    pairs = [(text(name), text(value)) for name, value in case.input.get("headers") or []]
    return pairs, octets(case.input.get("data", {"text": ""}))


def in_python(case: Case, pairs: list[tuple[str, str]], payload: bytes) -> Any:
    types = {name: PYTHON_TYPES[wanted] for name, wanted in case.input.get("extension_types", {}).items()}
    try:
        return from_nats_message(SimpleNamespace(headers=pairs, data=payload), parse_data=False, extension_types=types)
    except DecodeError as error:
        return str(error.code)


def groups_of(cases: list[Case]) -> list[tuple[dict[str, str], list[Case]]]:
    """
    Return types of extensions, and the cases decoded with them: few groups, because Spark plans a query for each.

    A group may have types that a case does not declare, for extensions that its message does not have.
    """
    groups: list[tuple[dict[str, str], list[Case]]] = [({}, [])]
    for name, kind in sorted({item for case in cases for item in _types(case).items()}):
        if all(name in types for types, _ in groups[1:]):
            groups.append(({}, []))
        next(types for types, _ in groups[1:] if name not in types)[name] = kind
    for case in cases:
        own = _types(case).items()
        fitting = (
            members
            for types, members in groups
            if own <= types.items() and not any(_has(case, name) for name, _ in types.items() - own)
        )
        next(fitting).append(case)
    return groups


def _has(case: Case, extension: str) -> bool:
    pairs, data = message(case)
    return f'"{extension}"'.encode() in data or any(name.lower() == f"ce-{extension}" for name, _ in pairs)


def _types(case: Case) -> dict[str, str]:
    return dict(case.input.get("extension_types", {}))


def compare(event: Any, row: Row) -> str:
    """Return the first difference, or ``""``."""
    has_octets = not isinstance(event, str) and isinstance(event.get_data(), bytes | None)
    if isinstance(event, str) or (row["ce_error"] is not None and has_octets):
        rest = [
            name for name in row.asDict() if name.startswith("ce_") and name != "ce_error" and row[name] is not None
        ]
        return "" if event == row["ce_error"] and not rest else f"{event!r} is {row['ce_error']!r} in Spark, {rest}"
    attributes = dict(event.get_attributes())
    time = attributes.pop("time", None)
    for name in CORE:
        if attributes.pop(name, None) != row[f"ce_{name}"]:
            return f"{name} is {row[f'ce_{name}']!r} in Spark"
    if instant(time) != micros(row["ce_time"]):
        return f"time {time} is {row['ce_time']} in Spark"
    extensions = {name: canonical(value) for name, value in attributes.items()}
    if extensions != row["ce_extensions"]:
        return f"{extensions} is {row['ce_extensions']} in Spark"
    data = event.get_data() if has_octets else None
    if not has_octets and row["ce_error"] != event.data_error.code:
        return f"the error is {row['ce_error']!r} in Spark"
    if data != (None if row["ce_data"] is None else bytes(row["ce_data"])):
        return f"{data!r} is {row['ce_data']!r} in Spark"
    return ""


def instant(time: Timestamp | None) -> int | None:
    """Return microseconds of Unix time; None outside the years 1 to 9999 in UTC."""
    if time is None:
        return None
    try:
        return micros(time.astimezone(timezone.utc).replace(tzinfo=None), utc=True)
    except OverflowError:
        return None


def micros(time: datetime | None, *, utc: bool = False) -> int | None:
    if time is None:
        return None
    aware = time.replace(tzinfo=timezone.utc) if utc else time.astimezone(timezone.utc)
    since = aware - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _is_utf8(headers: Any) -> bool:
    try:
        for name, value in headers or []:
            (text(name) + text(value)).encode("utf-8")
    except UnicodeEncodeError:
        return False  # unlike a Python str, a string of Spark cannot hold an unpaired surrogate
    return True


def agree(
    spark: SparkSession, made: list[damage.Message] | list[damage.RawMessage], seed: int, kind: str = "string"
) -> Counter[str]:
    """Compare both engines with Python, and return the number of messages by mode or error code."""
    rows = [(place, headers, bytearray(data)) for place, (headers, data) in enumerate(made)]
    schema = f"id int, headers array<struct<key {kind}, value {kind}>>, data binary"
    frame = spark.createDataFrame(rows, schema).repartition(2)
    expected = [damage.in_python(message) for message in made]
    outcomes: Counter[str] = Counter()
    wrong = []
    for engine in ENGINES:
        found = explode_cloudevents(frame, engine=engine).collect()
        assert sorted(row.id for row in found) == list(range(len(made)))
        for row in found:
            difference = compare(expected[row.id], row)
            if difference:
                wrong.append(f"{engine}: {difference}\n    {made[row.id]}")
        outcomes = Counter(row.ce_error or f"event in {row.ce_mode} mode" for row in found)
    assert not wrong, f"seed {seed}: {len(wrong)} of {len(made)} differ\n" + "\n".join(wrong[:10])
    return outcomes
