"""The last line of a file of JSON lines, after which a capture continues."""

import pytest

from ce_nats import Timestamp
from ce_nats.capture import _json_lines as module
from ce_nats.capture import as_json_line
from ce_nats.capture._json_lines import last_line
from ce_nats.message import StoredMessage


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


@pytest.mark.parametrize("rest", [b"", b"{", b"{" * 9])
def test_last_line_is_found_in_blocks_of_any_size(tmp_path, monkeypatch, rest):
    """A line break may be the first or the last byte of a block."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(1, 1) + line(2, 1) + rest)
    for size in range(1, path.stat().st_size + 1):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        assert last_line(path).sequence == 2
