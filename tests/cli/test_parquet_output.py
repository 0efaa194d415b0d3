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
from ce_nats.capture._parquet import locked
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
    for name in ("part-000000.parquet", "part-000001.parquet"):
        written = parquet.ParquetFile(tmp_path / "events.parquet" / name)
        assert (written.metadata.num_rows, written.metadata.num_row_groups) == (30_000, 1)
    summary = cli("decode", parts, "--output", tmp_path / "again.parquet").stderr
    assert summary == "60000 messages, 59996 events; errors: invalid-percent-escape 4\n"


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A capture of two parts, with 10 and 11 messages."""
    directory = tmp_path / "orders.parquet"
    directory.mkdir()
    for number in range(2):
        add_part(directory, number)
    return directory


def add_part(directory: Path, number: int) -> None:
    parquet.write_table(messages(10 + number, bad=number), directory / f"part-{number:06}.parquet")


def test_output_of_a_directory_continues(cli, parts, tmp_path):
    """Only new parts are written, also if older ones were removed from the capture."""
    output = tmp_path / "events.parquet"
    assert cli("decode", parts, "-o", output).stderr == "21 messages, 20 events; errors: invalid-percent-escape 1\n"
    result = cli("decode", parts, "-o", output)
    assert (result.exit_code, result.stderr) == (0, "0 messages, 0 events\n")
    add_part(parts, 2)
    (parts / "part-000000.parquet").unlink()
    assert cli("decode", parts, "-o", output).stderr == "12 messages, 10 events; errors: invalid-percent-escape 2\n"
    (parts / "part-000001.parquet").unlink()
    (parts / "part-000002.parquet").unlink()
    add_part(parts, 3)
    assert cli("decode", parts, "-o", output).stderr == "13 messages, 10 events; errors: invalid-percent-escape 3\n"
    assert sorted(os.listdir(output)) == [f"part-{number:06}.parquet" for number in range(4)]
    assert parquet.read_table(output).num_rows == 46


def test_output_of_another_capture_is_refused(cli, parts, tmp_path):
    """Other columns, other messages, fewer messages, or fewer parts."""
    output = tmp_path / "events.parquet"
    cli("decode", parts, "-o", output)
    last = output / "part-000001.parquet"
    result = cli("decode", parts, "-o", output, "--extension", "n:int")
    text = f"{last} has other columns: give the same --extension, or another output"
    assert (result.exit_code, result.stderr) == (2, f"ce-nats: invalid-option: {text}\n")
    for other in (messages(11), messages(10, bad=1), messages(0), None):
        (parts / last.name).unlink()
        if other is not None:
            parquet.write_table(other, parts / last.name)
        result = cli("decode", parts, "-o", output)
        text = f"{last} was made from another capture: give another output"
        assert (result.exit_code, result.stderr) == (2, f"ce-nats: invalid-option: {text}\n")
    assert sorted(os.listdir(output)) == ["part-000000.parquet", "part-000001.parquet"]


def test_output_of_a_directory_has_one_writer(cli, parts, tmp_path):
    """What a killed process has left is deleted."""
    output = tmp_path / "events.parquet"
    output.mkdir()
    (output / ".part-000001.parquet.1.partial").touch()
    with locked(output):
        result = cli("decode", parts, "-o", output)
    text = f"file-error: another process is writing to {output}"
    assert (result.exit_code, result.stderr, os.listdir(output)) == (2, f"ce-nats: {text}\n", [])
    (output / ".part-000001.parquet.1.partial").touch()
    assert cli("decode", parts, "-o", output).exit_code == 1
    assert sorted(os.listdir(output)) == ["part-000000.parquet", "part-000001.parquet"]


def test_existing_files_are_not_overwritten(cli, capture, tmp_path):
    before = capture.read_bytes()
    result = cli("decode", capture, "-o", capture)
    assert result.exit_code == 2
    assert result.stderr == f"ce-nats: file-exists: {capture} already exists, and is not overwritten\n"
    assert capture.read_bytes() == before
    parts = tmp_path / "parts.parquet"
    parts.mkdir()
    parquet.write_table(messages(1), parts / "part-000000.parquet")
    result = cli("decode", parts, "-o", capture)
    text = f"{capture} is a file, and the output of a directory must be a directory"
    assert (result.exit_code, result.stderr) == (2, f"ce-nats: file-exists: {text}\n")
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


def test_error_names_the_damaged_part(cli, parts, tmp_path):
    """Parts before it are written, and counted."""
    damaged = parts / "part-000001.parquet"
    octets = bytearray(damaged.read_bytes())
    octets[4:80] = bytes(76)
    damaged.write_bytes(octets)
    result = cli("decode", parts, "-o", tmp_path / "events.parquet")
    assert (result.exit_code, result.stdout) == (1, "")
    summary, error = result.stderr.splitlines()
    assert summary == "10 messages, 10 events"
    assert "invalid-message: " in error
    assert "part-000001.parquet cannot be read from row 0 on" in error
    assert os.listdir(tmp_path / "events.parquet") == ["part-000000.parquet"]
    (parts / "part-000000.parquet").unlink()
    assert cli("decode", parts, "-o", tmp_path / "others.parquet").exit_code == 1
    assert not (tmp_path / "others.parquet").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.faults)],
)
def test_interrupted_command_continues(cli, python, tmp_path, number, status):
    """The capture is long, so that the signal arrives in time: eight million messages, in hard links to one file."""
    parts, output = tmp_path / "orders.parquet", tmp_path / "events.parquet"
    parts.mkdir()
    for part in range(400):
        os.link(_part(tmp_path), parts / f"part-{part:06}.parquet")
    command = [python, "-m", "ce_nats", "decode", str(parts), "-o", str(output)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    asyncio.run(until(lambda: list(output.glob("part-*")) or process.poll() is not None))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    complete = len(list(output.glob("part-*")))
    if number != signal.SIGKILL:
        assert stderr.decode() == f"{complete * 20_000} messages, {complete * 20_000} events\n"
    for part in range(complete + 1, 400):
        (parts / f"part-{part:06}.parquet").unlink()
    assert cli("decode", parts, "-o", output).stderr == "20000 messages, 20000 events\n"
    assert sorted(os.listdir(output)) == sorted(os.listdir(parts))


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
