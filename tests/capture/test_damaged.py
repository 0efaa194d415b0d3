"""
Damaged or hostile captures: readers raise an error with the file and the row, and memory is bounded.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ce_nats import DecodeError, Timestamp, _parquet
from ce_nats._parquet import row_batches
from ce_nats.arrow import explode_capture
from ce_nats.capture import (
    JsonLinesCapture,
    ParquetParts,
    as_json_line,
    count_captured,
    from_json_line,
    last_captured,
    open_capture,
    read_capture,
)
from ce_nats.message import StoredMessage

HEADER = pa.struct([("key", pa.string()), ("value", pa.string())])
EVENT = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")]
AT = datetime(2026, 1, 2, 3, 4, 5, 123456, timezone.utc)
# The last microsecond before the year 1, and the first one of the year 10000.
BEFORE, AFTER = -62_135_596_800_000_001, 253_402_300_800_000_000
ROOT = Path(__file__).parents[2]
SCHEMA = {
    "subject": pa.string(),
    "reply": pa.string(),
    "headers": pa.list_(HEADER),
    "data": pa.binary(),
    "stream": pa.string(),
    "sequence": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
LIMITLESS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)


def stored(sequence: int = 1, data: bytes = b"payload") -> StoredMessage:
    return StoredMessage("orders", "", EVENT, data, "ORDERS", sequence, Timestamp(AT))


def columns(count: int = 3) -> dict[str, Any]:
    pairs = [{"key": name, "value": value} for name, value in EVENT]
    values = {
        "subject": "orders",
        "reply": "",
        "headers": pairs,
        "data": b"payload",
        "stream": "ORDERS",
        "timestamp": AT,
    }
    made = {name: pa.array([values[name]] * count, kind) for name, kind in SCHEMA.items() if name != "sequence"}
    return {**made, "sequence": pa.array(range(1, count + 1), pa.int64())}


def written(path: Path, changed: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pa.table({**columns(), **changed}), path, **options)
    return path


READERS: dict[str, Callable[[Path], Any]] = {
    "read": lambda path: list(read_capture(path)),
    "count": count_captured,
    "last": last_captured,
    "explode": lambda path: explode_capture(path).read_all(),
}


def attempt(read: Callable[[Path], Any], path: Path) -> DecodeError | None:
    """Read a file, and return its error, which must be a DecodeError."""
    try:
        read(path)
    except DecodeError as error:
        found = error
    else:
        return None
    assert path.name in found.message
    assert len(str(found)) < 2100
    return found


# --- Parquet --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Captures as written, and in plain encodings, in which more of the damage is in the content."""
    directory = tmp_path_factory.mktemp("whole")
    with ParquetParts(directory / "a.parquet") as file:
        file.write([stored(number, b"payload %d" % number) for number in range(1, 40)])
    (part,) = (directory / "a.parquet").iterdir()
    table = parquet.read_table(part)
    plain, bare = directory / "plain.parquet", directory / "bare.parquet"
    parquet.write_table(table, plain, compression="none")
    parquet.write_table(table, bare, compression="none", store_schema=False, use_dictionary=False)
    return [path.read_bytes() for path in (part, plain, bare)]


# Reads copies of the files with changed bytes, and prints all errors except DecodeError. In a separate process, because
# a fault in Arrow's C++ code would crash it.
FLIPPED = """
import sys
from pathlib import Path
from random import Random
from tests.capture.test_damaged import READERS, attempt
directory = Path(sys.argv[1])
files = [path.read_bytes() for path in sorted(directory.glob("whole-*"))]
random = Random(int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    octets = bytearray(random.choice(files))
    for _ in range(random.choice([1, 1, 2, 5, 30])):
        octets[random.randrange(len(octets))] = random.randrange(256)
    path = directory / "flipped.parquet"
    path.write_bytes(octets)
    for name, read in READERS.items():
        try:
            error = attempt(read, path)
            assert error is None or error.code == "invalid-message"
        except Exception as error:
            print(number, name, type(error), error)
"""


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 80), *(pytest.param(seed, 250, marks=pytest.mark.long) for seed in range(3))]
)
def test_flipped_bytes_are_invalid_message(files: list[bytes], tmp_path: Path, seed: int, count: int) -> None:
    for number, octets in enumerate(files):
        (tmp_path / f"whole-{number}").write_bytes(octets)
    done = subprocess.run(
        [sys.executable, "-c", FLIPPED, tmp_path, str(seed), str(count)], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr[:1000]) == (0, "", "")


@pytest.mark.parametrize("reader", READERS)
def test_truncated_parquet_is_invalid_message(files: list[bytes], tmp_path: Path, reader: str) -> None:
    path = tmp_path / "truncated.parquet"
    for octets in files:
        for length in {0, 1, 4, 8, 12, *range(13, len(octets), 97), len(octets) - 1}:
            path.write_bytes(octets[:length])
            error = attempt(READERS[reader], path)
            assert error is not None
            assert error.code == "invalid-message"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"subject": pa.array([1, 2, 3])}, "column subject must be string, got int64"),
        ({"subject": pa.array([b"a"] * 3)}, "column subject must be string, got binary"),
        ({"reply": pa.array([["a"]] * 3)}, "column reply must be string, got list"),
        ({"stream": pa.array([1] * 3)}, "column stream must be string, got int64"),
        (
            {"headers": pa.array(["a"] * 3)},
            "column headers must be list<struct<key: string, value: string>>, got string",
        ),
        ({"headers": pa.array([[("a", "b")]] * 3, pa.map_(pa.string(), pa.string()))}, "column headers must be list"),
        ({"headers": pa.array([[{"key": "a"}]] * 3)}, "column headers must be list"),
        ({"headers": pa.array([[{"key": "a", "value": 1}]] * 3)}, "column headers must be list"),
        ({"data": pa.array([1.5] * 3)}, "column data must be binary, got double"),
        ({"data": pa.array(["text"] * 3)}, "column data must be binary, got string"),
        ({"sequence": pa.array(["1"] * 3)}, "column sequence must be an integer, got string"),
        ({"sequence": pa.array([1.5] * 3)}, "column sequence must be an integer, got double"),
        ({"timestamp": pa.array([1] * 3)}, "column timestamp must be a timestamp with a time zone, got int64"),
        (
            {"timestamp": pa.array([AT.replace(tzinfo=None)] * 3)},
            "column timestamp must be a timestamp with a time zone",
        ),
    ],
)
def test_columns_of_other_types_are_invalid_message(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    path = written(tmp_path / "a.parquet", changed)
    for reader in ("read", "last"):
        error = attempt(READERS[reader], path)
        assert error is not None
        assert error.code == "invalid-message"
        assert text in error.message


def test_missing_and_repeated_columns_are_invalid_message(tmp_path: Path) -> None:
    table = pa.table(columns())
    for wrong in (table.drop_columns(["stream"]), table.append_column("stream", table["stream"])):
        parquet.write_table(wrong, tmp_path / "a.parquet")
        error = attempt(READERS["read"], tmp_path / "a.parquet")
        assert "a.parquet must have one column stream" in str(error)


def not_utf8(count: int, row: int) -> pa.Array:
    """Strings with one that is not UTF-8, which Arrow does not check."""
    values = [b"orders"] * count
    values[row] = b"\xff"
    return pa.Array.from_buffers(pa.string(), count, pa.array(values, pa.binary()).buffers())


@pytest.mark.parametrize(
    ("changed", "row", "text"),
    [
        ({"subject": pa.array(["a", None, "b"])}, 1, "subject and timestamp must not be NULL"),
        ({"subject": not_utf8(3, 2)}, 2, "can't decode byte 0xff"),
        ({"stream": not_utf8(3, 0)}, 0, "can't decode byte 0xff"),
        ({"headers": pa.array([[], [None], []], pa.list_(HEADER))}, 1, "of a header must not be NULL"),
        ({"headers": pa.array([[{"key": "a"}], [], []], pa.list_(HEADER))}, 0, "of a header must not be NULL"),
        ({"sequence": pa.array([1, -1, 3])}, 1, "-1"),
        ({"timestamp": pa.array([AT, None, AT], SCHEMA["timestamp"])}, 1, "subject and timestamp must not be NULL"),
        ({"timestamp": pa.array([0, 0, 2**62], pa.timestamp("us", tz="UTC"))}, 2, "the years 1 to 9999"),
        ({"timestamp": pa.array([0, BEFORE, 0], pa.timestamp("us", tz="UTC"))}, 1, "the years 1 to 9999"),
        ({"timestamp": pa.array([AFTER, 0, 0], pa.timestamp("us", tz="UTC"))}, 0, "the years 1 to 9999"),
        ({"timestamp": pa.array([0, -(2**62), 0], pa.timestamp("ms", tz="UTC"))}, 1, ""),
    ],
)
def test_errors_have_the_number_of_the_row(tmp_path: Path, changed: dict[str, Any], row: int, text: str) -> None:
    """The rows before the invalid one are read."""
    path = written(tmp_path / "a.parquet", changed, store_schema=True)
    messages = read_capture(path)
    assert [next(messages).sequence for _ in range(row)] == list(range(1, row + 1))
    with pytest.raises(DecodeError) as info:
        next(messages)
    assert info.value.code == "invalid-message"
    assert info.value.message.startswith(f"{path}, row {row}: ")
    assert text in info.value.message


def test_first_and_last_microsecond_are_read(tmp_path: Path) -> None:
    times = pa.array([BEFORE + 1, 0, AFTER - 1], pa.timestamp("us", tz="UTC"))
    assert [
        str(message.timestamp) for message in read_capture(written(tmp_path / "a.parquet", {"timestamp": times}))
    ] == [
        "0001-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
    ]


def test_null_is_an_empty_value(tmp_path: Path) -> None:
    headers = pa.array([None, columns()["headers"][0].as_py(), None], SCHEMA["headers"])
    empty = {name: pa.nulls(3, SCHEMA[name]) for name in ("reply", "data", "stream", "sequence")}
    path = written(tmp_path / "a.parquet", {**empty, "headers": headers})
    assert list(read_capture(path)) == [
        StoredMessage("orders", "", pairs, b"", "", 0, Timestamp(AT)) for pairs in ([], EVENT, [])
    ]


def test_only_the_last_row_group_is_read_for_the_last_message(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"subject": pa.array([None, "orders", "orders"])}, row_group_size=1)
    assert last_captured(path) == stored(3)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_all_row_groups_are_read(tmp_path: Path, rows: int) -> None:
    path = written(tmp_path / "a.parquet", {}, row_group_size=rows)
    assert list(read_capture(path)) == [stored(1), stored(2), stored(3)]
    assert last_captured(path) == stored(3)
    assert count_captured(path) == 3


def test_rows_are_counted_across_row_groups(tmp_path: Path) -> None:
    subjects = pa.array(["a"] * 2500 + [None] + ["a"] * 10)
    table = pa.table({**columns(len(subjects)), "subject": subjects})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    error = attempt(READERS["read"], tmp_path / "a.parquet")
    assert "a.parquet, row 2500: " in str(error)


@pytest.mark.parametrize(
    "changed",
    [
        {"timestamp": pa.array([AT] * 3, pa.timestamp("us", tz="Mars/Olympus_Mons"))},
        {"timestamp": pa.array([AT] * 3, pa.timestamp("us", tz="+05:30"))},
        {
            "timestamp": pa.array(
                [pa.scalar(AT).cast(pa.timestamp("ns", tz="UTC")).value + 789] * 3, pa.timestamp("ns", "UTC")
            )
        },
        {"subject": pa.array(["orders"] * 3, pa.large_string()), "data": pa.array([b"payload"] * 3, pa.large_binary())},
        {"subject": pa.array(["orders"] * 3).dictionary_encode()},
        {"headers": columns()["headers"].cast(pa.large_list(HEADER))},
        {"headers": pa.array(columns()["headers"].to_pylist(), pa.list_(pa.struct([*reversed(HEADER)])))},
        {"headers": pa.array([[{"more": "x", "key": name, "value": value, "last": 1} for name, value in EVENT]] * 3)},
        {"sequence": pa.array([1, 2, 3], pa.uint8())},
        {
            "reply": pa.array([None] * 3, pa.string()),
            "data.more": pa.array([1] * 3),
            "further": pa.array([{"a": 1}] * 3),
        },
    ],
)
def test_other_types_of_the_same_values_are_read(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = written(tmp_path / "a.parquet", changed)
    assert list(read_capture(path)) == [stored(1), stored(2), stored(3)]
    assert last_captured(path) == stored(3)


def test_errors_of_the_operating_system_are_not_changed(tmp_path: Path) -> None:
    for read in READERS.values():
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "nothing.parquet") if read is not READERS["last"] else list(read_capture(tmp_path / "no"))


def test_a_damaged_part_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.mkdir()
    (path / "part-000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(DecodeError, match=r"part-000000\.parquet is not Parquet"), open_capture(path):
        pass


def test_subjects_in_errors_may_have_invalid_utf8(tmp_path: Path) -> None:
    """The error of FAILFAST has the subject, which Arrow has not checked."""
    path = written(tmp_path / "a.parquet", {"subject": not_utf8(3, 0), "headers": pa.nulls(3, SCHEMA["headers"])})
    with pytest.raises(DecodeError, match=r"not-a-cloudevent.*\(row 0, stream ORDERS, sequence 1, subject \?\)"):
        explode_capture(path, mode="FAILFAST").read_all()


# --- Memory ---------------------------------------------------------------------------------------------------------

MEGABYTE = b"x" * 10**6


def repeated(value: bytes | str, count: int) -> pa.Array:
    """A column with one value, stored once, also in the file."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value]))


def repeated_header(count: int, offsets: list[int]) -> pa.Array:
    parts = [repeated("a", count), repeated(MEGABYTE.decode(), count)]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(parts, ["key", "value"]))


BOMBS: dict[str, Callable[[], dict[str, Any]]] = {
    "data": lambda: {"data": repeated(MEGABYTE, 1000)},
    "subject": lambda: {"subject": repeated(MEGABYTE.decode(), 1000)},
    "headers": lambda: {"headers": repeated_header(1000, list(range(1001)))},
}
# Prints the increase in memory during the work, in MiB.
MEASURED = """
import resource, sys
from ce_nats.arrow import explode_capture
from ce_nats.capture import last_captured, read_capture
path = sys.argv[2]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[1] == "first":
    next(read_capture(path))
elif sys.argv[1] == "all":
    assert sum(1 for _ in read_capture(path)) == 1000
elif sys.argv[1] == "last":
    assert last_captured(path).sequence == 1000
else:
    assert sum(len(batch) for batch in explode_capture(path)) == 1000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in other units")
@pytest.mark.parametrize("reader", ["first", "all", "last", "explode"])
def test_repeated_values_need_bounded_memory(tmp_path: Path, reader: str) -> None:
    """Each file has a few kilobytes, and a gigabyte after decoding."""
    for name, make in BOMBS.items():
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(pa.table({**columns(1000), **make()}), path, compression="zstd", store_schema=False)
        assert path.stat().st_size < 100_000
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, reader, path], capture_output=True, text=True, check=True
        )
        assert int(done.stdout) < 700, name


def test_batches_are_divided_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2**16
    monkeypatch.setattr(_parquet, "MAX_BATCH_BYTES", limit)
    path = tmp_path / "a.parquet"
    sizes = [10, 40 * 2**10, 40 * 2**10, 10, 10, 70 * 2**10, 1]
    data = pa.array([b"x" * size for size in sizes], pa.binary())
    parquet.write_table(pa.table({"data": data, "number": list(range(7))}), path)
    batches = list(row_batches(path, rows=1000))
    assert [first for first, _ in batches] == [batch["number"][0].as_py() for _, batch in batches]
    assert [len(value) for _, batch in batches for value in batch["data"].to_pylist()] == sizes
    assert all(batch.nbytes <= limit + 1000 or len(batch) == 1 for _, batch in batches)
    assert [len(batch) for _, batch in row_batches(path, rows=2, columns=["number"])] == [2, 2, 2, 1]


def test_a_row_of_gigabytes_is_invalid_message(tmp_path: Path) -> None:
    """Each of the 10,000 headers of the row has the same value of a megabyte."""
    headers = repeated_header(10_000, [0, 0, 10_000, 10_000])
    path = written(tmp_path / "a.parquet", {"headers": headers}, store_schema=False)
    assert path.stat().st_size < 1_100_000
    for reader in ("read", "last", "explode"):
        error = attempt(READERS[reader], path)
        assert "a.parquet, row 1: a row must have at most 134217728 bytes, got 10000" in str(error)


# --- JSON lines -----------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = ("subject", "reply", "headers", "data", "data_base64", "stream", "sequence", "timestamp")
LINE = json.loads(as_json_line(stored()))


@LIMITLESS
@given(st.dictionaries(st.sampled_from(MEMBERS), json_values, max_size=3))
@example({"sequence": 2**63})
@example({"sequence": -1})
@example({"stream": ""})
@example({"sequence": 10**4000})
@example({"timestamp": "0001-01-01T00:00:00+23:59"})
@example({"timestamp": "9999-12-31T23:59:59-23:59"})
@example({"headers": [["a"]]})
@example({"headers": [["a", None]]})
@example({"headers": [[["a"], "b"]]})
@example({"headers": [["a", "\ud800"]]})
@example({"data": "\ud800"})
@example({"data_base64": "a"})
@example({"data_base64": "é"})
def test_lines_of_any_members_are_messages_or_errors(tmp_path: Path, members: dict[str, Any]) -> None:
    path = tmp_path / "a.jsonl"
    line = {name: value for name, value in LINE.items() if name != "data" or "data_base64" not in members}
    path.write_bytes(as_json_line(stored()) + json.dumps({**line, **members}).encode() + b"\n")
    error = attempt(READERS["read"], path)
    if error is not None:
        assert error.message.startswith(f"{path}, line 2: ")
        assert attempt(READERS["last"], path).code == error.code
        with pytest.raises(DecodeError), JsonLinesCapture(path):
            pass
    else:
        again = list(read_capture(path))
        assert [from_json_line(as_json_line(message)) for message in again] == again


@LIMITLESS
@given(st.data())
def test_flipped_bytes_in_lines_are_messages_or_errors(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.jsonl"
    octets = bytearray(as_json_line(stored(1)) + as_json_line(stored(2)))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(octets)
    for read in (READERS["read"], READERS["last"], READERS["count"]):
        attempt(read, path)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\xff", "invalid-json"),
        (json.dumps(LINE).encode("utf-16"), "invalid-json"),
        (b'{"headers":[],"timestamp":"2020-01-01T00:00:00Z","a":"\xff"}', "invalid-json"),
        (b'{"a":' * 100_000, "invalid-json"),
        (b"{}", "invalid-message"),
        (b'{"headers":[],"data":[]}', "invalid-message"),
        (b"9" * 10_000, "invalid-json"),
    ],
)
def test_errors_have_the_number_of_the_line(tmp_path: Path, line: bytes, code: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_json_line(stored()) * 3 + line + b"\n")
    messages = read_capture(path)
    assert [next(messages) for _ in range(3)] == [stored()] * 3
    with pytest.raises(DecodeError) as info:
        next(messages)
    assert info.value.code == code
    assert info.value.message.startswith(f"{path}, line 4: ")


def test_the_last_long_line_is_found_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = as_json_line(stored(data=b"x" * 2**25))
    path.write_bytes(line * 2)
    began = time.process_time()
    from_json_line(line)
    parsed = time.process_time()
    assert last_captured(path).sequence == 1
    # Each byte is read and parsed once. Copying the line for each block would take a hundred times as long.
    assert time.process_time() - parsed < 10 * (parsed - began) + 0.5
