import io
import json
import sys
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from pyarrow import parquet

from ce_nats import DecodeError, Timestamp
from ce_nats import capture as capture_module
from ce_nats.capture import (
    Captured,
    JsonLinesCapture,
    ParquetCapture,
    ParquetParts,
    StoredMessage,
    as_json_line,
    capture,
    from_json_line,
    header_block,
    last_captured,
    read_capture,
)


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
    captured = await capture(batches_of([stored(2**62, headers, b"\0\xff", reply="r")], [stored(3, data=b"")]), path)
    assert captured == Captured(messages=2, data_bytes=2, escaped_values=0)
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
    """Spark reads neither nanoseconds nor INT96 as a plain timestamp; an offset is no other instant."""
    zone = timezone(timedelta(hours=2))
    with ParquetCapture(tmp_path / "a.parquet") as file:
        file.write([stored(timestamp=Timestamp(datetime(2026, 1, 2, 5, 4, 5, tzinfo=zone)))])
    schema = parquet.read_schema(tmp_path / "a.parquet")
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    physical = parquet.ParquetFile(tmp_path / "a.parquet").schema.column(schema.names.index("timestamp") + 1)
    assert (physical.name, physical.physical_type) == ("timestamp", "INT64")
    (row,) = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert row["timestamp"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def test_a_stream_without_messages_gives_a_file_without_rows(tmp_path):
    with ParquetCapture(tmp_path / "a.parquet") as file:
        pass
    assert file.captured == Captured()
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == 0


def test_small_batches_are_gathered_into_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(capture_module, "_ROWS_PER_GROUP", 10)
    with ParquetCapture(tmp_path / "a.parquet") as file:
        for sequence in range(1, 26):
            file.write([stored(sequence)])
    metadata = parquet.ParquetFile(tmp_path / "a.parquet").metadata
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [10, 10, 5]
    assert file.captured.messages == 25


def test_large_messages_fill_a_row_group_sooner(tmp_path, monkeypatch):
    monkeypatch.setattr(capture_module, "_BYTES_PER_GROUP", 1000)
    with ParquetCapture(tmp_path / "a.parquet") as file:
        for sequence in range(1, 6):
            file.write([stored(sequence, data=b"x" * 500)])
    assert parquet.ParquetFile(tmp_path / "a.parquet").metadata.num_row_groups == 3


def test_the_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.parquet"
    with ParquetCapture(path) as file:
        file.write([stored()])
        assert not path.exists()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("an older file")
    with pytest.raises(ZeroDivisionError), ParquetCapture(path) as file:
        file.write([stored(sequence=1 // 0)])
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "an older file"


async def test_a_failure_at_the_last_row_leaves_nothing(tmp_path):
    with pytest.raises(pa.ArrowException):
        await capture(batches_of([stored(), stored(sequence="no number")]), tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_utf8_are_escaped_and_counted(tmp_path):
    """A Parquet string is UTF-8; the other rows of the group are not touched."""
    raw = b"a\xffb".decode("utf-8", "surrogateescape")
    rows = [stored(1, [("x", "ä"), ("x", raw), ("y", raw)]), stored(2, [("x", "\ufffd")])]
    with ParquetCapture(tmp_path / "a.parquet") as file:
        file.write(rows)
    assert file.captured.escaped_values == 2
    first, second = parquet.read_table(tmp_path / "a.parquet")["headers"].to_pylist()
    assert [header["value"] for header in first] == ["ä", "a%FFb", "a%FFb"]
    assert second == [{"key": "x", "value": "\ufffd"}]


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'ce-nats\[spark\]'"):
        ParquetCapture(tmp_path / "a.parquet")


# --- Captures that grow ---------------------------------------------------------------------------------------------

RAW = b"a\xffb".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "message",
    [
        stored(2**62, [("ce-id", "1"), ("Tag", "b"), ("Tag", "a"), ("empty", "")], "€\r\n\0".encode(), reply="r"),
        stored(1, [("raw", RAW)], b"\0\xff", timestamp=Timestamp("2026-01-02T03:04:05.123456789+02:00")),
        stored(0, data=b"", stream=""),
    ],
)
def test_a_line_of_json_loses_nothing(message):
    line = as_json_line(message)
    assert line.count(b"\n") == 1
    assert from_json_line(line) == message
    assert str(from_json_line(line).timestamp) == str(message.timestamp)


@pytest.mark.parametrize("wrong", [{"timestamp": None}, {"timestamp": "now"}, {"sequence": True}, {"stream": 1}])
def test_a_line_that_is_no_captured_message(wrong):
    with pytest.raises(DecodeError):
        from_json_line(json.dumps({**json.loads(as_json_line(stored())), **wrong}).encode())


def growing(path):
    return ParquetParts(path) if path.suffix == ".parquet" else JsonLinesCapture(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_capture_grows(tmp_path, name):
    path = tmp_path / name
    assert last_captured(path) is None
    for first in (1, 4):
        with growing(path) as file:
            file.write([stored(first), stored(first + 1)])
            file.write([])
            file.write([stored(first + 2)])
        assert file.captured == Captured(messages=3, data_bytes=21)
        assert last_captured(path).sequence == first + 2
    assert [message.sequence for message in read_capture(path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_what_was_written_before_an_error_is_kept(tmp_path, name):
    def messages():
        yield stored(1)
        raise ConnectionError

    with pytest.raises(ConnectionError), growing(tmp_path / name) as file:
        any(file.write([message]) for message in messages())
    assert [message.sequence for message in read_capture(tmp_path / name)] == [1]


@pytest.mark.parametrize("size", [10, 2**16, 200_000])
def test_a_line_that_a_killed_process_left_is_cut_off(tmp_path, size):
    path = tmp_path / "a.jsonl"
    whole = as_json_line(stored(1, data=b"x" * size))
    path.write_bytes(whole + as_json_line(stored(2, data=b"y" * size))[:-1])
    assert last_captured(path).sequence == 1
    assert [message.sequence for message in read_capture(path)] == [1]
    with JsonLinesCapture(path) as file:
        file.write([stored(3)])
    assert path.read_bytes() == whole + as_json_line(stored(3))


def test_a_file_that_is_one_cut_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{" * 200_000)
    assert last_captured(path) is None
    with JsonLinesCapture(path):
        pass
    assert path.read_bytes() == b""


def test_lines_into_an_open_file():
    target = io.BytesIO()
    with JsonLinesCapture(target) as file:
        file.write([stored(1)])
    assert target.getvalue() == as_json_line(stored(1))


def test_parts_have_so_many_rows(tmp_path):
    """A part is there when it is complete, so that a killed process loses the current one only."""
    with ParquetParts(tmp_path / "a.parquet", rows=2) as file:
        for sequence in range(1, 6):
            file.write([stored(sequence)])
            assert len(list((tmp_path / "a.parquet").glob("part-*"))) == sequence // 2
    assert parquet.read_table(tmp_path / "a.parquet")["sequence"].to_pylist() == [1, 2, 3, 4, 5]


def test_parts_do_not_replace_a_file(tmp_path):
    (tmp_path / "a.parquet").write_text("a file")
    with pytest.raises(NotADirectoryError, match="is a file"), ParquetParts(tmp_path / "a.parquet"):
        pass
    assert (tmp_path / "a.parquet").read_text() == "a file"


async def test_a_capture_in_one_file_is_read_too(tmp_path):
    path = tmp_path / "a.parquet"
    rows = [stored(number, [("a", "1")], reply="r") for number in range(1, 2500)]
    await capture(batches_of(rows), path)
    assert list(read_capture(path)) == rows


def test_parquet_that_is_no_capture(tmp_path):
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DecodeError, match="no captured message"):
        list(read_capture(tmp_path / "a.parquet"))


def test_a_header_block_has_the_bytes_of_the_wire():
    assert header_block([("a", "ä"), ("a", RAW)]) == b"NATS/1.0\r\na: \xc3\xa4\r\na: a\xffb\r\n\r\n"
    assert header_block([]) == b""
