"""The command ``decode --output``: a capture as a Parquet file of events."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ce_nats.arrow import explode_cloudevents
from tests.support.waiting import until

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
GOOD = [{"key": f"ce-{name}", "value": value} for name, value in
        {"specversion": "1.0", "id": "1", "source": "/tests", "type": "t", "n": "5"}.items()]  # fmt: skip


def messages(count: int, bad: int = 0) -> pa.Table:
    headers = [GOOD] * (count - bad) + [[{"key": "ce-id", "value": "%"}]] * bad
    return pa.table({"headers": pa.array(headers, HEADERS), "data": pa.repeat(b"x" * 100, count)})


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    parquet.write_table(messages(10), tmp_path / "orders.parquet")
    return tmp_path / "orders.parquet"


def test_events_of_a_capture_are_written(cli, capture, tmp_path):
    result = cli("decode", capture, "-o", tmp_path / "events.parquet", "--extension", "n:int")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "10 messages, 10 events\n")
    written = parquet.read_table(tmp_path / "events.parquet")
    assert written.equals(explode_cloudevents(messages(10), extensions={"n": "int"}))
    assert sorted(os.listdir(tmp_path)) == ["events.parquet", "orders.parquet"]


def test_messages_that_are_not_events_have_error_codes(cli, tmp_path):
    parts = tmp_path / "orders.parquet"
    parts.mkdir()
    for number in range(2):
        parquet.write_table(messages(30_000, bad=2), parts / f"part-{number:06}.parquet")
    result = cli("decode", parts, "--output", tmp_path / "events.parquet", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "messages": 60_000,
        "events": 59_996,
        "errors": {"invalid-percent-escape": 4},
    }
    written = parquet.ParquetFile(tmp_path / "events.parquet")
    assert (written.metadata.num_rows, written.metadata.num_row_groups) == (60_000, 2)
    summary = cli("decode", parts, "--output", tmp_path / "again.parquet").stderr
    assert summary == "60000 messages, 59996 events; errors: invalid-percent-escape 4\n"


def test_existing_files_are_not_overwritten(cli, capture, tmp_path):
    before = capture.read_bytes()
    result = cli("decode", capture, "-o", capture)
    assert result.exit_code == 2
    assert result.stderr == f"ce-nats: file-exists: {capture} already exists, and is not overwritten\n"
    assert capture.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["-o", "events.csv"], 2, "--output must end in .parquet, got 'events.csv'"),
        (["-o", "events.parquet", "--extension", "n"], 2, "--extension must be NAME:TYPE, got 'n'"),
        (["-o", "events.parquet", "--extension", "n:float"], 2, "invalid-option: the type of an extension must be"),
        (["-o", "events.parquet", "-H", "a:b"], 2, "--output must be used with the path of a capture"),
        (["-o", "events.parquet", "--dialect", "sdk-go"], 2, "--output must be used with the path of a capture"),
        (["--extension", "n:int"], 2, "--extension must be used with --output"),
        (["-o", "nowhere/events.parquet"], 2, "nowhere"),
    ],
)
def test_invalid_options_are_usage_errors(cli, capture, tmp_path, monkeypatch, arguments, status, text):
    monkeypatch.chdir(tmp_path)
    result = cli("decode", capture, *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (status, "", 1)
    assert text in result.stderr
    assert os.listdir(tmp_path) == ["orders.parquet"]


def test_invalid_and_missing_captures_are_errors(cli, capture, tmp_path):
    (tmp_path / "x.parquet").write_text("not Parquet")
    assert cli("decode", tmp_path / "x.parquet", "-o", tmp_path / "y.parquet").exit_code == 1
    assert cli("decode", tmp_path / "none.parquet", "-o", tmp_path / "y.parquet").exit_code == 2
    assert cli("decode", "-o", tmp_path / "y.parquet").exit_code == 2
    assert not (tmp_path / "y.parquet").exists()


def test_error_names_the_damaged_part(cli, capture, tmp_path):
    parts = tmp_path / "parts.parquet"
    parts.mkdir()
    (parts / "part-000000.parquet").write_bytes(capture.read_bytes())
    octets = bytearray(capture.read_bytes())
    octets[4:80] = bytes(76)
    (parts / "part-000001.parquet").write_bytes(octets)
    result = cli("decode", parts, "-o", tmp_path / "events.parquet")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "invalid-message: " in result.stderr
    assert "part-000001.parquet cannot be read from row 0 on" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["orders.parquet", "parts.parquet"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.faults)],
)
def test_interrupted_command_leaves_no_file(python, tmp_path, number, status):
    """The capture is long, so that the signal arrives in time: eight million messages, in hard links to one file."""
    parts = tmp_path / "orders.parquet"
    parts.mkdir()
    for part in range(400):
        os.link(_part(tmp_path), parts / f"part-{part:06}.parquet")
    command = [python, "-m", "ce_nats", "decode", str(parts), "-o", str(tmp_path / "events.parquet")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    asyncio.run(until(lambda: list(tmp_path.glob(".events.parquet.*.partial")) or process.poll() is not None))
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == status
    left = [name for name in os.listdir(tmp_path) if name.startswith("events")]
    assert left == []
    if number != signal.SIGKILL:
        assert not list(tmp_path.glob(".events*"))


def _part(tmp_path: Path) -> Path:
    path = tmp_path / "one"
    if not path.exists():
        parquet.write_table(messages(20_000), path)
    return path


def test_progress_on_a_terminal(at_terminal, tmp_path):
    parquet.write_table(messages(60_000), tmp_path / "orders.parquet")
    status, output, drawn = at_terminal("decode", tmp_path / "orders.parquet", "-o", tmp_path / "events.parquet")
    assert (status, output) == (0, b"")
    assert "decode" in drawn
    assert "60000 messages, 60000 events" in drawn
