import asyncio
import errno
import io
import json
import os
import random
import sys
import threading
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from inspect import signature
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet

from ce_nats import DecodeError, Timestamp, _parquet
from ce_nats.arrow import explode_capture
from ce_nats.capture import (
    CaptureResult,
    JsonLinesCapture,
    ParquetParts,
    as_json_line,
    count_captured,
    from_json_line,
    last_captured,
    open_capture,
    read_capture,
    write_capture,
)
from ce_nats.capture import _parquet as parquet_captures
from ce_nats.capture._files import check_same_stream
from ce_nats.capture._rows import SCHEMA
from ce_nats.errors import DeliveryError
from ce_nats.message import StoredMessage
from tests.support.strategies import refused
from tests.support.tables import each


def stored(sequence: int = 1, headers=(), data: bytes = b"payload", **fields) -> StoredMessage:
    values = {
        "subject": "orders.ü",
        "reply": "",
        "headers": list(headers),
        "data": data,
        "stream": "ORDERS",
        "sequence": sequence,
        "timestamp": Timestamp("2026-01-02T03:04:05.123456789Z"),
    }
    return StoredMessage(**{**values, **fields})


async def batches_of(*batches):
    for batch in batches:
        yield batch


async def test_every_field_is_kept(tmp_path):
    path = tmp_path / "a.parquet"
    headers = [("ce-id", "1"), ("Tag", "b"), ("Tag", "a"), ("empty", "")]
    captured = await write_capture(
        batches_of([stored(2**62, headers, b"\0\xff", reply="r")], [stored(3, data=b"")]), path
    )
    assert captured == CaptureResult(messages=2, data_bytes=2, escaped_values=0)
    time = datetime(2026, 1, 2, 3, 4, 5, 123456, timezone.utc)
    assert parquet.read_table(path).to_pylist() == [
        {
            "subject": "orders.ü",
            "reply": "r",
            "headers": [{"key": name, "value": value} for name, value in headers],
            "data": b"\0\xff",
            "stream": "ORDERS",
            "sequence": 2**62,
            "timestamp": time,
        },
        {
            "subject": "orders.ü",
            "reply": "",
            "headers": [],
            "data": b"",
            "stream": "ORDERS",
            "sequence": 3,
            "timestamp": time,
        },
    ]


def test_times_are_microseconds_in_utc(tmp_path):
    """Spark does not read nanoseconds as a timestamp. An offset does not change the instant."""
    zone = timezone(timedelta(hours=2))
    with ParquetParts(tmp_path / "a.parquet") as file:
        file.write([stored(timestamp=Timestamp(datetime(2026, 1, 2, 5, 4, 5, tzinfo=zone)))])
    (part,) = (tmp_path / "a.parquet").iterdir()
    schema = parquet.read_schema(part)
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    physical = parquet.ParquetFile(part).schema.column(schema.names.index("timestamp") + 1)
    assert (physical.name, physical.physical_type) == ("timestamp", "INT64")
    (row,) = parquet.read_table(part).to_pylist()
    assert row["timestamp"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def test_int96_times_are_instants(tmp_path):
    """Spark writes TIMESTAMP as INT96 by default; nanoseconds of Arrow end in the year 2262."""
    times = [Timestamp("2026-01-02T03:04:05.123456Z"), Timestamp("9999-12-31T23:59:59Z")]
    with ParquetParts(tmp_path / "a.parquet") as file:
        file.write([stored(number, timestamp=time) for number, time in enumerate(times, 1)])
    table = parquet.read_table(tmp_path / "a.parquet")
    parquet.write_table(table, tmp_path / "b.parquet", use_deprecated_int96_timestamps=True)
    column = parquet.ParquetFile(tmp_path / "b.parquet").schema.column(len(table.column_names))
    assert (column.name, column.physical_type) == ("timestamp", "INT96")
    assert [message.timestamp for message in read_capture(tmp_path / "b.parquet")] == times
    exploded = explode_capture(tmp_path / "b.parquet").read_all()
    assert exploded["timestamp"].equals(table["timestamp"])


def test_an_empty_capture_has_columns_and_is_continued(tmp_path):
    """Spark rejects a directory without files, so there is a file without rows."""
    path = tmp_path / "a.parquet"
    with ParquetParts(path) as file:
        pass
    assert file.captured == CaptureResult()
    table = parquet.read_table(path)
    assert (table.num_rows, table.column_names[0]) == (0, "subject")
    assert last_captured(path) is None
    with ParquetParts(path) as file:
        file.write([stored(1)])
    with ParquetParts(path):
        pass
    assert len(list(path.iterdir())) == 2
    assert last_captured(path).sequence == 1


def test_small_batches_are_collected_into_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(_parquet, "ROWS_PER_GROUP", 10)
    monkeypatch.setattr(parquet_captures, "_ROWS_PER_TABLE", 5)
    with ParquetParts(tmp_path / "a.parquet") as file:
        for sequence in range(1, 26):
            file.write([stored(sequence)])
    metadata = parquet.ParquetFile(tmp_path / "a.parquet" / "part-000000.parquet").metadata
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [10, 10, 5]
    assert file.captured.messages == 25


def test_large_messages_fill_a_row_group_sooner(tmp_path, monkeypatch):
    monkeypatch.setattr(_parquet, "BYTES_PER_GROUP", 1000)
    monkeypatch.setattr(parquet_captures, "_ROWS_PER_TABLE", 1)
    with ParquetParts(tmp_path / "a.parquet") as file:
        for sequence in range(1, 6):
            file.write([stored(sequence, data=b"x" * 500)])
    assert parquet.ParquetFile(tmp_path / "a.parquet" / "part-000000.parquet").metadata.num_row_groups == 3


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
async def test_no_file_remains_after_an_error_before_the_first_row(tmp_path, name):
    """The same call can be repeated when the server is available."""

    async def failing():
        raise ConnectionError
        yield

    with pytest.raises(ConnectionError):
        await write_capture(failing(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


async def test_no_file_remains_after_an_error_of_writing(tmp_path):
    with pytest.raises(pa.ArrowException):
        await write_capture(batches_of([stored(), stored(sequence="no number")]), tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_not_utf8_are_escaped_and_counted(tmp_path):
    """A Parquet string is UTF-8. Other rows of the group are not changed."""
    raw = b"a\xffb".decode("utf-8", "surrogateescape")
    rows = [stored(1, [("x", "ä"), ("x", raw), ("y", raw)]), stored(2, [("x", "\ufffd")])]
    with ParquetParts(tmp_path / "a.parquet") as file:
        file.write(rows)
    assert file.captured.escaped_values == 2
    first, second = parquet.read_table(tmp_path / "a.parquet")["headers"].to_pylist()
    assert [header["value"] for header in first] == ["ä", "a%FFb", "a%FFb"]
    assert second == [{"key": "x", "value": "\ufffd"}]


def test_totals_are_those_of_all_tables_and_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_captures, "_ROWS_PER_TABLE", 1)
    headers = [("x", b"\xff".decode("utf-8", "surrogateescape"))]
    with ParquetParts(tmp_path / "a.parquet", rows=2) as file:
        for sequence in range(1, 6):
            file.write([stored(sequence, headers)])
        file.write([])
    assert file.captured == CaptureResult(messages=5, data_bytes=35, escaped_values=5)


def test_elements_of_lists_are_named_as_by_spark():
    assert SCHEMA.field("headers").type.value_field.name == "element"


def test_directories_above_are_created(tmp_path):
    path = tmp_path / "new" / "a.parquet"
    with ParquetParts(path) as file:
        file.write([stored(1)])
    assert sequences(path) == [1]


def test_a_part_has_500_000_rows_by_default():
    assert signature(ParquetParts).parameters["rows"].default == 500_000


def test_parts_are_numbered(tmp_path):
    """Also those of a capture that continues another one."""
    path = tmp_path / "a.parquet"
    for count, first in ((2, 1), (4, 3), (5, 5)):
        with ParquetParts(path, rows=1) as file:
            file.write([stored(first)])
            if count < 5:
                file.write([stored(first + 1)])
        assert sorted(part.name for part in path.iterdir()) == [f"part-{n:06}.parquet" for n in range(count)]


def test_the_error_without_pyarrow_has_the_extra_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'ce-nats\[arrow\]'"):
        ParquetParts(tmp_path / "a.parquet")


# --- Existing captures ----------------------------------------------------------------------------------------------

NAMES = ["a.parquet", "a.jsonl", "a.ndjson"]


def sequences(path):
    return [message.sequence for message in read_capture(path)]


@pytest.mark.parametrize("name", NAMES)
async def test_captures_are_not_overwritten(tmp_path, name):
    path = tmp_path / name
    await write_capture(batches_of([stored(1), stored(2)]), path)
    before = sorted((entry, entry.stat().st_mtime_ns) for entry in tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match="if_exists='append'"):
        await write_capture(batches_of([stored(3)]), path)
    assert sorted((entry, entry.stat().st_mtime_ns) for entry in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", NAMES)
async def test_append_continues_after_the_last_message(tmp_path, name):
    path = tmp_path / name
    assert await write_capture(batches_of([stored(1), stored(2)]), path, if_exists="append") == CaptureResult(2, 14)
    again = batches_of([stored(1), stored(2)], [stored(3)])
    assert await write_capture(again, path, if_exists="append") == CaptureResult(1, 7)
    assert sequences(path) == [1, 2, 3]
    assert count_captured(path) == 3


@pytest.mark.parametrize("name", NAMES)
async def test_all_messages_are_appended_to_a_capture_without_a_stream(tmp_path, name):
    for _ in range(2):
        await write_capture(batches_of([stored(0, stream="")]), tmp_path / name, if_exists="append")
    assert count_captured(tmp_path / name) == 2


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
async def test_messages_of_another_stream_are_rejected(tmp_path, name):
    """A stream with another name, or one that was deleted and created again, at any sequence."""
    path = tmp_path / name
    await write_capture(batches_of([stored(1), stored(2)]), path)
    later = Timestamp("2026-01-02T03:04:06Z")
    for wrong in (
        stored(3, stream="OTHER"),
        stored(3, stream=""),
        stored(1, timestamp=later),
        stored(2, timestamp=later),
        stored(2, timestamp=Timestamp("2026-01-01T00:00:00Z")),
    ):
        with pytest.raises(DeliveryError) as info:
            await write_capture(batches_of([wrong], [stored(3)]), path, if_exists="append")
        assert info.value.code == "stream-mismatch"
    assert sequences(path) == [1, 2]


@each(
    ("old", "new", "text"),
    [
        ("ORDERS", "OTHER", "messages of this capture must be of stream ORDERS, got messages of stream OTHER"),
        ("ORDERS", "", "messages of this capture must be of stream ORDERS, got messages without a stream"),
        ("", "OTHER", "messages of this capture must be without a stream, got messages of stream OTHER"),
    ],
)
def test_streams_of_a_capture_and_of_messages_are_compared(old, new, text):
    check_same_stream(stored(stream=old), old)
    assert refused(DeliveryError, "stream-mismatch", check_same_stream, stored(stream=old), new).message == text


@pytest.mark.parametrize("name", NAMES)
async def test_only_the_new_capture_remains_after_replace(tmp_path, name):
    path = tmp_path / name
    for first in (1, 3):
        await write_capture(batches_of([stored(first), stored(first + 1)]), path, if_exists="replace")
    assert sequences(path) == [3, 4]
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", NAMES)
async def test_the_old_capture_remains_if_replace_fails(tmp_path, name):
    async def failing():
        yield [stored(3)]
        raise ConnectionError

    path = tmp_path / name
    await write_capture(batches_of([stored(1)]), path)
    with pytest.raises(ConnectionError):
        await write_capture(failing(), path, if_exists="replace")
    assert sequences(path) == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


SPARK_FILE = "part-00000-6a3a0c35-c000.snappy.parquet"


@pytest.mark.parametrize(
    ("foreign", "if_exists"),
    [(SPARK_FILE, "append"), (SPARK_FILE, "replace"), ("_SUCCESS", "replace"), ("notes.txt", "replace")],
)
async def test_a_directory_with_other_files_is_not_continued_or_replaced(tmp_path, foreign, if_exists):
    """Spark's file names start with the same prefix."""
    path = tmp_path / "a.parquet"
    path.mkdir()
    (path / foreign).write_text("something else")
    with pytest.raises(FileExistsError, match=foreign):
        await write_capture(batches_of([stored(1)]), path, if_exists=if_exists)
    assert [entry.name for entry in path.iterdir()] == [foreign]


async def test_a_directory_of_a_killed_capture_is_replaced(tmp_path):
    path = tmp_path / "a.parquet"
    path.mkdir()
    (path / ".part-000000.parquet.1.partial").touch()
    await write_capture(batches_of([stored(1)]), path, if_exists="replace")
    assert [entry.name for entry in path.iterdir()] == ["part-000000.parquet"]


async def test_a_single_file_of_an_earlier_version_is_read(tmp_path):
    """To be continued, it must become the first part of a directory; the error has the instructions."""
    path = tmp_path / "a.parquet"
    rows = [stored(number, [("a", "1")], reply="r") for number in range(1, 2500)]
    with ParquetParts(tmp_path / "b.parquet") as file:
        file.write(rows)
    (tmp_path / "b.parquet" / "part-000000.parquet").rename(path)
    assert list(read_capture(path)) == rows
    assert (last_captured(path), count_captured(path)) == (rows[-1], len(rows))
    with pytest.raises(NotADirectoryError, match="move it there as part-000000"):
        await write_capture(batches_of([stored(2500)]), path, if_exists="append")
    path.rename(tmp_path / "moved")
    path.mkdir()
    (tmp_path / "moved").rename(path / "part-000000.parquet")
    await write_capture(batches_of([stored(2500)]), path, if_exists="append")
    assert sequences(path) == list(range(1, 2501))


@pytest.mark.parametrize(
    ("name", "if_exists", "words"),
    [
        ("a.parquet", "overwrite", "if_exists must be 'fail', 'append' or 'replace', got 'overwrite'"),
        ("a.txt", "fail", "path must end in .parquet, .jsonl or .ndjson, got '.*a.txt'"),
        ("a", "append", "path must end in"),
    ],
)
async def test_invalid_arguments_are_rejected(tmp_path, name, if_exists, words):
    with pytest.raises(ValueError, match=words):
        await write_capture(batches_of([stored(1)]), tmp_path / name, if_exists=if_exists)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="needs file locks")
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_concurrent_captures_are_rejected(tmp_path, name):
    """They would write parts with the same name, or interleaved lines."""
    with open_capture(tmp_path / name) as file:
        file.write([stored(1)])
        with pytest.raises(BlockingIOError, match="another process"), open_capture(tmp_path / name):
            pass
        file.write([stored(2)])
    assert sequences(tmp_path / name) == [1, 2]


def refuse_lock(*_):
    raise OSError(errno.ENOLCK, "no locks available")


@pytest.mark.skipif(os.name != "posix", reason="needs file locks")
@pytest.mark.parametrize(
    ("modules", "is_kept"),
    [({}, False), ({"fcntl": None}, True), ({"fcntl": SimpleNamespace(LOCK_EX=2, LOCK_NB=4, flock=refuse_lock)}, True)],
    ids=["locks", "no module", "no locks"],
)
def test_part_of_a_killed_process_is_kept_without_locks(tmp_path, monkeypatch, modules, is_kept):
    """On Windows, and in file systems without locks, another capture may still be writing it."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    path = tmp_path / "a.parquet"
    path.mkdir()
    partial = path / ".part-000000.parquet.1.partial"
    partial.touch()
    with open_capture(path):
        assert partial.exists() is is_kept


# Writes three messages, two to a part, and is killed.
KILLED = """
import os, sys
from ce_nats import Timestamp
from ce_nats.capture import open_capture
from ce_nats.message import StoredMessage
with open_capture(sys.argv[1]) as file:
    file._rows = 2
    for number in (1, 2, 3):
        time = Timestamp("2026-01-02T03:04:05.123456789Z")
        file.write([StoredMessage("a", "", [], b"payload", "ORDERS", number, time)])
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
async def test_a_killed_capture_is_continued(tmp_path, name):
    """Only the completed parts of the killed capture remain."""
    path = tmp_path / name
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, path)
    assert await ended.wait() == -9
    if name == "a.parquet":
        assert sorted(entry.name[:6] for entry in path.iterdir()) == [".part-", "part-0"]
    found = sequences(path)
    assert found in ([1, 2], [1, 2, 3])
    captured = await write_capture(batches_of([stored(number) for number in range(1, 6)]), path, if_exists="append")
    assert captured.messages == 5 - len(found)
    assert sequences(path) == [1, 2, 3, 4, 5]
    if name == "a.parquet":
        assert [entry.name for entry in sorted(path.iterdir())] == ["part-000000.parquet", "part-000001.parquet"]


async def test_a_cancelled_capture_keeps_written_messages(tmp_path, monkeypatch):
    """The file is completed after the writing thread has ended."""
    writing, resumed = threading.Event(), threading.Event()
    write = ParquetParts.write

    def slow(self, batch):
        writing.set()
        assert resumed.wait(30)
        write(self, batch)

    monkeypatch.setattr(ParquetParts, "write", slow)
    task = asyncio.create_task(write_capture(batches_of([stored(1)], [stored(2)]), tmp_path / "a.parquet"))
    assert await asyncio.to_thread(writing.wait, 30)
    for _ in range(3):  # a scope of anyio cancels until the task ends
        task.cancel()
        await asyncio.sleep(0)
    resumed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sequences(tmp_path / "a.parquet") == [1]


async def test_failure_of_a_cancelled_capture_is_logged(tmp_path, monkeypatch, caplog):
    writing, resumed = threading.Event(), threading.Event()

    def fail(self, batch):
        writing.set()
        assert resumed.wait(30)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JsonLinesCapture, "write", fail)
    task = asyncio.create_task(write_capture(batches_of([stored(1)]), tmp_path / "a.jsonl"))
    assert await asyncio.to_thread(writing.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    resumed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "a capture was cancelled, and its last batch was not written" in caplog.text


@contextmanager
def file_size_limit(size):
    """Fail writes beyond a size, as on a full disk; yield a function that ends this."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("has_space", [False, True], ids=["still full", "space again"])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_messages_of_a_capture_on_a_full_disk_are_counted(tmp_path, monkeypatch, name, has_space):
    """The totals are those that a reader finds, also if there is space again when the capture ends."""
    monkeypatch.setattr(parquet_captures, "_ROWS_PER_TABLE", 100)
    monkeypatch.setattr(_parquet, "ROWS_PER_GROUP", 100)
    path, numbers = tmp_path / name, random.Random(1)
    capture = ParquetParts(path, rows=300) if name == "a.parquet" else JsonLinesCapture(path)

    def fill(end):
        with capture:
            for first in range(1, 1001, 100):
                size = 1000 if first < 600 else 10_000
                batch = [stored(number, data=numbers.randbytes(size)) for number in range(first, first + 100)]
                try:
                    capture.write(batch)
                except OSError:
                    if has_space:
                        end()
                    raise

    with file_size_limit(700_000) as end, pytest.raises(OSError, match="File too large"):
        fill(end)
    found = list(read_capture(path))
    assert [message.sequence for message in found] == list(range(1, len(found) + 1))
    assert len(found) > 300
    totals = capture.captured
    assert (totals.messages, totals.data_bytes) == (len(found), sum(len(message.data) for message in found))
    assert count_captured(path) == len(found)
    messages = [stored(number) for number in range(1, 1001)]
    with open_capture(path) as continued:
        continued.write(messages[len(found) :])
    assert sequences(path) == list(range(1, 1001))


# --- Contents of captures -------------------------------------------------------------------------------------------

RAW = b"a\xffb".decode("utf-8", "surrogateescape")


@each(
    "message",
    [
        stored(2**62, [("ce-id", "1"), ("Tag", "b"), ("Tag", "a"), ("empty", "")], "€\r\n\0".encode(), reply="r"),
        stored(1, [("raw", RAW)], b"\0\xff", timestamp=Timestamp("2026-01-02T03:04:05.123456789+02:00")),
        stored(0, data=b"", stream=""),
    ],
)
def test_messages_are_restored_from_json_lines(message):
    line = as_json_line(message)
    assert line.count(b"\n") == 1
    assert from_json_line(line) == message
    assert str(from_json_line(line).timestamp) == str(message.timestamp)


@each(
    "odd",
    [stored(3, [("raw", RAW)]), stored(3, data="€".encode()), stored(3, data=b"\xff"), stored(3, data=b'"\x7f\\')],
)
def test_batches_are_restored_from_json_lines(odd):
    """A batch of plain ASCII is encoded at once, another one line by line."""
    batch = [stored(1, subject="a", headers=[("a", '"')], reply="r"), stored(0, subject="b", stream="", data=b""), odd]
    for messages in (batch, batch[:2], [odd], []):
        target = io.BytesIO()
        with JsonLinesCapture(target) as file:
            file.write(messages)
        assert target.getvalue().isascii()
        assert list(map(from_json_line, target.getvalue().splitlines())) == messages
        assert [json.loads(line) for line in target.getvalue().splitlines()] == [
            json.loads(as_json_line(message)) for message in messages
        ]


def test_headers_in_parquet_belong_to_their_rows(tmp_path, monkeypatch):
    """Rows are converted to tables in groups, and a row group consists of several tables."""
    monkeypatch.setattr(parquet_captures, "_ROWS_PER_TABLE", 3)
    rows = [stored(n, [("a", str(n))] * (n % 4)) for n in range(1, 20)]
    with ParquetParts(tmp_path / "a.parquet") as file:
        for start in range(0, len(rows), 2):
            file.write(rows[start : start + 2])
    found = list(read_capture(tmp_path / "a.parquet"))
    assert [row.headers for row in found] == [row.headers for row in rows]
    (part,) = (tmp_path / "a.parquet").iterdir()
    assert parquet.ParquetFile(part).num_row_groups == 1


@each(
    ("wrong", "code"),
    [
        ({"timestamp": None}, "invalid-message"),
        ({"timestamp": "now"}, "invalid-timestamp"),
        ({"sequence": True}, "invalid-message"),
        ({"sequence": -1}, "invalid-message"),
        ({"sequence": 2**63}, "invalid-message"),
        ({"stream": 1}, "invalid-message"),
        ({"subject": "a\ud800"}, "invalid-utf8"),
        ({"reply": "a\ud800"}, "invalid-utf8"),
        ({"stream": "a\ud800"}, "invalid-utf8"),
        ({"headers": [["a\ud800", ""]]}, "invalid-utf8"),
        ({"headers": [["a", "\udbff"]]}, "invalid-utf8"),
    ],
)
def test_lines_that_are_not_captured_messages_are_rejected(wrong, code):
    with pytest.raises(DecodeError) as info:
        from_json_line(json.dumps({**json.loads(as_json_line(stored())), **wrong}).encode())
    assert info.value.code == code


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_messages_written_before_an_error_are_kept(tmp_path, name):
    def messages():
        yield stored(1)
        raise ConnectionError

    with pytest.raises(ConnectionError), open_capture(tmp_path / name) as file:
        any(file.write([message]) for message in messages())
    assert [message.sequence for message in read_capture(tmp_path / name)] == [1]


@pytest.mark.parametrize("size", [10, 2**16, 200_000])
def test_an_incomplete_last_line_is_removed(tmp_path, size):
    path = tmp_path / "a.jsonl"
    whole = as_json_line(stored(1, data=b"x" * size))
    path.write_bytes(whole + as_json_line(stored(2, data=b"y" * size))[:-1])
    assert last_captured(path).sequence == 1
    assert [message.sequence for message in read_capture(path)] == [1]
    with JsonLinesCapture(path) as file:
        file.write([stored(3)])
    assert path.read_bytes() == whole + as_json_line(stored(3))


def test_a_file_with_only_an_incomplete_line_is_empty(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{" * 200_000)
    assert last_captured(path) is None
    with JsonLinesCapture(path):
        pass
    assert path.read_bytes() == b""


def test_parts_have_a_maximum_number_of_rows(tmp_path):
    """A part appears when it is complete, so a killed process loses only the current one."""
    with ParquetParts(tmp_path / "a.parquet", rows=2) as file:
        for sequence in range(1, 6):
            file.write([stored(sequence)])
            assert len(list((tmp_path / "a.parquet").glob("part-*"))) == sequence // 2
    assert parquet.read_table(tmp_path / "a.parquet")["sequence"].to_pylist() == [1, 2, 3, 4, 5]


def test_a_directory_of_parts_does_not_replace_a_file(tmp_path):
    (tmp_path / "a.parquet").write_text("a file")
    with pytest.raises(NotADirectoryError, match="and is a file"), ParquetParts(tmp_path / "a.parquet"):
        pass
    assert (tmp_path / "a.parquet").read_text() == "a file"
