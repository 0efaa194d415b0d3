"""The last line of a file of JSON lines, after which a capture continues."""

from ce_nats import Timestamp
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
