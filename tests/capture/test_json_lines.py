"""The last line of a file of JSON lines, after which a capture continues."""

import pytest

from ce_nats import DecodeError, Timestamp
from ce_nats.capture import _json_lines as module
from ce_nats.capture import as_json_line, from_json_line
from ce_nats.capture._json_lines import last_line, read_json_lines
from ce_nats.message import StoredMessage
from tests.support.strategies import refused
from tests.support.tables import each


def line(sequence: int, size: int) -> bytes:
    time = Timestamp.parse("2024-01-01T00:00:00Z")
    return as_json_line(StoredMessage("a", "", [], b"x" * size, "S", sequence, time))


def test_last_line_is_the_last_complete_line(tmp_path):
    path = tmp_path / "a.jsonl"
    for size in (1, 70_000):
        whole = line(1, size) + line(2, size)
        for rest in (b"", b"{", line(3, size)[:-1]):
            path.write_bytes(whole + rest)
            assert last_line(path).sequence == 2


def test_files_without_a_complete_line_have_no_last_line(tmp_path):
    path = tmp_path / "a.jsonl"
    for text in (b"", b"{", line(1, 70_000)[:-1]):
        path.write_bytes(text)
        assert last_line(path) is None


@pytest.mark.parametrize(
    ("stream", "sequence", "members"),
    [
        ("S", 5, b'"stream":"S","sequence":5,'),
        ("S", 0, b'"stream":"S","sequence":0,'),
        ("", 5, b'"sequence":5,'),
        ("", 0, b""),
    ],
)
def test_stream_and_sequence_are_omitted_without_a_stream(tmp_path, stream, sequence, members):
    message = StoredMessage("a", "r", [("b", "c")], b"d", stream, sequence, Timestamp.parse("2024-01-01T00:00:00Z"))
    wanted = (
        b'{"subject":"a","reply":"r","headers":[["b","c"]],"data":"d",'
        + members
        + b'"timestamp":"2024-01-01T00:00:00Z"}\n'
    )
    assert as_json_line(message) == wanted
    with module.JsonLinesCapture(tmp_path / "a.jsonl") as file:
        file.write([message])
    assert (tmp_path / "a.jsonl").read_bytes() == wanted


@each("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_timestamps_are_in_the_years_1_to_9999_of_utc(time):
    text = line(1, 1).replace(b"2024-01-01T00:00:00Z", time.encode())
    error = refused(DecodeError, "invalid-timestamp", from_json_line, text)
    assert error.message == "timestamp must be in the years 1 to 9999 of UTC"
    assert isinstance(error.__cause__, OverflowError)


def test_errors_have_the_place_of_the_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(1, 1) + b"\n")
    for read, place in ((list, "line 2"), (None, "last line")):
        with pytest.raises(DecodeError) as caught:
            read(read_json_lines(path)) if read else last_line(path)
        assert caught.value.code == "invalid-json"
        assert caught.value.message.startswith(f"{path}, {place}: ")


@pytest.mark.parametrize("rest", [b"", b"{", b"{" * 9])
def test_last_line_is_found_in_blocks_of_any_size(tmp_path, monkeypatch, rest):
    """A line break may be the first or the last byte of a block."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(1, 1) + line(2, 1) + rest)
    for size in range(1, path.stat().st_size + 1):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        assert last_line(path).sequence == 2
