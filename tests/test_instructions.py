"""Headers that instruct the server."""

from pathlib import Path

from ce_nats._instructions import INSTRUCTIONS, copied_headers, is_marker
from tests.support.tables import each

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "capture-replay.md"


@each(
    ("name", "is_copied", "is_kept"),
    [
        ("Nats-Rollup", False, True),
        ("Nats-Expected-Last-Subject-Sequence-Subject", False, True),
        ("Nats-Schedule", False, True),
        ("Nats-Schedule-Next", False, True),
        ("Nats-Trace-Only", False, True),
        ("Nats-Batch-Commit", False, False),
        ("Nats-Msg-Id", True, True),
        ("Nats-Streaming-Sequence", True, True),
        ("Nats-Time-Stamp", True, True),
        ("nats-rollup", True, True),  # which no server reads
        ("KV-Operation", True, True),
    ],
)
def test_copies_have_no_instructions(name, is_copied, is_kept):
    pairs = [("ce-id", "1"), (name, "x"), ("a", "b"), (name, "y")]
    others = [("ce-id", "1"), ("a", "b")]
    assert copied_headers(pairs) == (pairs if is_copied else others)
    assert copied_headers(pairs, keep_instructions=True) == (pairs if is_kept else others)


def test_markers_are_those_of_the_server():
    assert is_marker([("Nats-Marker-Reason", "MaxAge"), ("Nats-TTL", "1m")])
    assert not is_marker([("KV-Operation", "DEL")])


def test_guide_has_all_instructions():
    names = {name: f"{name}..." if name.endswith("-") else name for name in INSTRUCTIONS}
    rows = "".join(f"| `{names[name]}` | {text} |\n" for name, text in INSTRUCTIONS.items())
    assert rows in GUIDE.read_text("utf-8")
