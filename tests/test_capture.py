import sys
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from pyarrow import parquet

from ce_nats import Timestamp
from ce_nats import capture as capture_module
from ce_nats.capture import Captured, ParquetCapture, StoredMessage, capture


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
