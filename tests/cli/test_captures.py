import asyncio
import io
import json
import os
import re
import signal
import subprocess
import time

import nats
import pyarrow as pa
import pytest
from pyarrow import parquet

from ce_nats.aio._jetstream_api import StreamApi
from ce_nats.aio.jetstream import configure_stream, read_stream
from ce_nats.aio.reading._stored_messages import as_message
from ce_nats.capture import count_captured, open_capture, read_capture, write_capture
from ce_nats.capture._rows import to_table
from ce_nats.codec.timestamp import Timestamp
from ce_nats.message import StoredMessage
from ce_nats.testing import NatsServer
from tests.support.reading import publish_all, until_stored
from tests.support.waiting import until


def publish(with_js, subject, *payloads, headers=None):
    with_js(publish_all, [(subject, payload, headers) for payload in payloads])


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_capture_continues_after_its_last_message(at_server, event, with_js, stream, stored, subject, tmp_path, name):
    at_server("pub", "-J", subject, event())
    publish(with_js, subject, b"not an event \xff", headers={"a": "€"})
    arguments = ["capture", tmp_path / name, "--stream", stream, "--json"]
    assert json.loads(at_server(*arguments).stdout)["messages"] == 2
    assert json.loads(at_server(*arguments).stdout)["messages"] == 0
    publish(with_js, subject, b"third")
    assert json.loads(at_server(*arguments).stdout)["messages"] == 1
    expected = stored(stream)
    found = list(read_capture(tmp_path / name))
    assert [row._replace(timestamp=None) for row in found] == [row._replace(timestamp=None) for row in expected]
    assert [row.timestamp for row in found] == [row.timestamp for row in expected]
    if name == "a.parquet":
        assert parquet.read_table(tmp_path / name).num_rows == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_python_and_command_line_continue_the_same_capture(at_server, with_js, stream, subject, tmp_path, name):
    path = tmp_path / name

    async def capture_in_python(js):
        return await write_capture(read_stream(js, stream), path, if_exists="append")

    publish(with_js, subject, b"1", b"2")
    assert with_js(capture_in_python).messages == 2
    publish(with_js, subject, b"3")
    assert at_server("capture", path, "--stream", stream).stderr == "1 message captured\n"
    publish(with_js, subject, b"4", b"5")
    assert with_js(capture_in_python).messages == 2
    assert [message.data for message in read_capture(path)] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_immediately_failing_capture_leaves_no_file(at_server, tmp_path, name):
    assert at_server("capture", tmp_path / name, "--stream", "NONE").exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_stream_with_gaps_is_captured_unchanged(at_server, with_js, stream, subject, tmp_path):
    """With more messages than are read one by one; then from a later sequence, and on one subject."""

    async def fill(js):
        for number in range(1, 1_501):
            headers = {"Tag": "é"} if number % 3 else None
            await js._nc.publish(f"{subject}.{number % 2}", b"\xff%d" % number, headers=headers)
        await js.publish(f"{subject}.1", b"last")
        for number in (1, 2, 700, 701, 1_000):
            await js.delete_msg(stream, number)

    async def read_each(js):
        """Read the messages with one request each."""
        api = StreamApi.of(js)
        answers = [await api.stored(stream, {"seq": number}) for number in range(1, 1_502)]
        return [as_message(answer, stream) for answer in answers if answer is not None]

    with_js(fill)
    expected = with_js(read_each)
    for name in ("a.jsonl", "a.parquet"):
        path, part = tmp_path / name, tmp_path / f"part.{name}"
        assert json.loads(at_server("capture", path, "--stream", stream, "--json").stdout)["messages"] == 1_496
        assert json.loads(at_server("capture", path, "--stream", stream, "--json").stdout)["messages"] == 0
        found = list(read_capture(path))
        assert [row._replace(timestamp=None) for row in found] == [row._replace(timestamp=None) for row in expected]
        assert [row.timestamp for row in found] == [row.timestamp for row in expected]
        at_server("capture", part, "--stream", stream, "--subject", f"{subject}.0", "--start", 500)
        sequences = [row.sequence for row in read_capture(part)]
        assert sequences == [number for number in range(500, 1_501, 2) if number not in (700, 1_000)]


def test_core_nats_messages_are_not_added_to_a_capture_of_a_stream(at_server, with_js, stream, subject, tmp_path):
    publish(with_js, subject, b"1")
    path = tmp_path / "a.jsonl"
    at_server("capture", path, "--stream", stream)
    before = path.read_bytes()
    result = at_server("capture", path, "--subject", subject, "--count", 1)
    assert (result.exit_code, path.read_bytes()) == (3, before)
    assert f"must be of stream {stream}, got" in result.stderr


def test_existing_parquet_file_is_not_changed(at_server, stream, tmp_path):
    (tmp_path / "a.parquet").write_text("a file")
    result = at_server("capture", tmp_path / "a.parquet", "--stream", stream)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "create a directory with its name" in result.stderr
    assert (tmp_path / "a.parquet").read_text() == "a file"


def test_part_of_a_stream_is_captured_to_a_pipe(at_server, with_js, stream, subject):
    publish(with_js, f"{subject}.a", b"1", b"2")
    publish(with_js, f"{subject}.b", b"3")
    result = at_server("capture", "-", "--stream", stream, "--subject", f"{subject}.a", "--start", 2)
    assert [(line["sequence"], line["data"]) for line in map(json.loads, result.stdout.splitlines())] == [(2, "2")]
    assert result.stderr == "1 message captured\n"


def test_messages_of_another_stream_are_not_added_to_a_capture(at_server, with_js, stream, subject, tmp_path):
    """A stream with another name, or a stream that was deleted and created again."""
    publish(with_js, subject, b"1", b"2")
    path = tmp_path / "a.jsonl"
    assert at_server("capture", path, "--stream", stream).exit_code == 0
    before = path.read_bytes()

    async def recreate(js, count):
        await js.purge_stream(stream)
        await js.delete_stream(stream)
        await js.add_stream(name=stream, subjects=[subject, f"{subject}.>"], storage="memory")
        for number in range(count):
            await js.publish(subject, b"%d" % number)

    for count in (1, 2):
        with_js(recreate, count)
        result = at_server("capture", path, "--stream", stream)
        assert (result.exit_code, path.read_bytes()) == (3, before)
        assert "was deleted and created again" in result.stderr
    path.write_bytes(before.replace(stream.encode(), b"OTHER"))
    assert "must be of stream OTHER, got" in at_server("capture", path, "--stream", stream).stderr


def test_capture_between_times(at_server, stored, event, stream, subject, tmp_path):
    """And continues after its last message, with other times as well."""
    for number in range(4):
        assert at_server("pub", "-J", subject, event(number)).exit_code == 0
    times = [message.timestamp for message in stored(stream)]
    output = tmp_path / "c.jsonl"
    for options, count in [
        (["--since", times[1], "--until", times[2]], 2),
        (["--since", "1h"], 1),
        (["--until", "1h"], 0),
    ]:
        result = at_server("capture", output, "--stream", stream, *options, "--json")
        assert (result.exit_code, json.loads(result.stdout)["messages"]) == (0, count)
    assert [message.sequence for message in read_capture(output)] == [2, 3, 4]
    result = at_server("capture", output, "--subject", subject, "--since", "1h")
    assert (result.exit_code, "--since and --until must be used with --stream" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_new_messages_are_captured_until_ctrl_c(start, with_js, subject, tmp_path, name):
    process = start("capture", tmp_path / name, "--subject", subject, "--json")
    assert process.stderr.readline().startswith(b"listening")

    async def send(js):
        await js._nc.publish(subject, b"\xff", headers={"a": "1"})
        await js._nc.publish(subject, b"", "a.reply")
        await js._nc.flush()

    with_js(send)
    if name == "a.jsonl":
        asyncio.run(until(lambda: count_captured(tmp_path / name) == 2))
        process.send_signal(signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    found = list(read_capture(tmp_path / name))
    assert json.loads(stdout)["messages"] == len(found)
    if name == "a.jsonl":
        assert [(m.subject, m.reply, m.headers, m.data, m.stream) for m in found] == [
            (subject, "", [("a", "1")], b"\xff", ""),
            (subject, "a.reply", [], b"", ""),
        ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_replay_publishes_the_same_bytes_and_headers(
    at_server, server, event, with_js, stream, stored, subject, tmp_path, name
):
    """To another server, as after the loss of the first one."""
    at_server("pub", "-J", subject, "-H", "Tag: b", "-H", "Tag: a", event(subject="€", data={"a": 1}))
    publish(with_js, subject, b"not an event \xff", b"")
    original = stored(stream)
    at_server("capture", tmp_path / name, "--stream", stream)
    with NatsServer(jetstream=True) as other:
        asyncio.run(add_stream(other.url, stream, subject))
        replay = ["replay", "-J", tmp_path / name, "--json", "--server", other.url]
        counts = {
            "messages": 3,
            "duplicates": 0,
            "batched": 0,
            "unacknowledged": 0,
            "stripped": 0,
            "markers": 0,
        }
        assert json.loads(at_server(*replay).stdout) == counts
        copied = at_server("capture", "-", "--stream", stream, "--server", other.url).stdout
        assert json.loads(at_server(*replay).stdout) == {**counts, "duplicates": 1}
    copies = [json.loads(line) for line in copied.splitlines()]
    assert [[tuple(pair) for pair in copy["headers"]] for copy in copies] == [message.headers for message in original]
    (tmp_path / "copy.jsonl").write_text(copied)
    assert [m.data for m in read_capture(tmp_path / "copy.jsonl")] == [m.data for m in original]


def test_replay_tells_what_it_leaves_out(at_server, with_js, stream, stored, subject, tmp_path):
    def line(name, value):
        fields = {"subject": subject, "headers": [["a", "1"], [name, value]], "data": "x"}
        return json.dumps({**fields, "timestamp": "2026-01-02T03:04:05Z", "stream": "S", "sequence": 1}) + "\n"

    (tmp_path / "a.jsonl").write_text(line("Nats-Expected-Stream", stream) + line("Nats-Marker-Reason", "MaxAge"))
    replay = ["replay", "-J", tmp_path / "a.jsonl"]
    assert at_server(*replay).stderr == (
        "1 message published; 1 without headers that instruct the server (see --keep-instructions); "
        "1 marker of the server not published\n"
    )
    assert (
        at_server(*replay, "--keep-instructions").stderr
        == "1 message published; 1 marker of the server not published\n"
    )
    assert [one.headers[1:] for one in stored(stream)] == [[], [("Nats-Expected-Stream", stream)]]


def test_replay_of_a_stream_into_itself(at_server, event, with_js, stream, stored, subject, tmp_path):
    """Also with fast ingest the summary says that nothing was stored."""
    with_js(lambda js: configure_stream(js, stream, allow_batched=True))
    at_server("pub", "-J", subject, stdin="".join(map(event, range(100))))
    at_server("capture", tmp_path / "a.jsonl", "--stream", stream)
    replay = ["replay", "-J", tmp_path / "a.jsonl"]
    assert at_server(*replay).stderr == "100 messages published, 100 of them already stored\n"
    assert len(stored(stream)) == 100
    counts = json.loads(at_server(*replay, "--new-ids", "--json").stdout)
    assert (counts["messages"], counts["duplicates"], counts["unacknowledged"]) == (100, None, 0)
    assert [message.data for message in stored(stream)[100:]] == [message.data for message in stored(stream)[:100]]
    assert at_server(*replay, "--new-ids").stderr.startswith("100 messages published; unknown how many of them")
    assert len(stored(stream)) == 300


async def add_stream(url, stream, subject):
    async with await nats.connect(url) as nc:
        await nc.jetstream().add_stream(name=stream, subjects=[f"{subject}", f"{subject}.>"], storage="memory")


def test_replay_through_pipes_to_core_nats(start, at_server, with_js, stream, subject):
    publish(with_js, subject, b"\xff", b"2", headers={"a": "1"})
    lines = at_server("capture", "-", "--stream", stream).stdout
    process = start("capture", "-", "--subject", f"other.{subject}", "--count", 2)
    assert process.stderr.readline().startswith(b"listening")
    result = at_server("replay", "-", "--subject", f"other.{subject}", stdin=lines)
    assert (result.exit_code, result.stderr) == (0, "2 messages published\n")
    received = [json.loads(line) for line in process.communicate(timeout=60)[0].splitlines()]
    assert [line.get("data_base64", line.get("data")) for line in received] == ["/w==", "2"]
    assert [line["headers"] for line in received] == [[["a", "1"]]] * 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_api_requests_are_not_replayed(at_server, with_js, stream, stored, subject, tmp_path, name):
    """Captured subjects are not trusted, because they were chosen by senders."""
    publish(with_js, subject, b"1", b"2")
    row = StoredMessage(f"$JS.API.STREAM.PURGE.{stream}", "", [], b"", "", 1, Timestamp("2026-01-02T03:04:05Z"))
    with open_capture(tmp_path / name) as sink:
        sink.write([row])
    for options in ([], ["-J"], ["--allow", ">"]):
        result = at_server("replay", tmp_path / name, *options)
        assert (result.exit_code, result.stderr.split(": ")[1]) == (1, "forbidden-subject")
    assert len(stored(stream)) == 2


def test_api_requests_from_a_pipe_are_not_replayed(start, with_js, stream, stored, subject):
    publish(with_js, subject, b"1", b"2")
    process = start("replay", "-")
    line = {"subject": f"$JS.API.STREAM.PURGE.{stream}", "headers": [], "data": "", "timestamp": "2026-01-02T03:04:05Z"}
    _, errors = process.communicate(json.dumps(line).encode() + b"\n", timeout=60)
    assert (process.returncode, errors.split(b": ")[1]) == (1, b"forbidden-subject")
    assert len(stored(stream)) == 2


def test_subject_that_looks_like_an_api_request_can_be_allowed(at_server, with_js, server, tmp_path):
    row = StoredMessage("SHOP.CONSUMER.CREATE.1", "", [], b"", "", 1, Timestamp("2026-01-02T03:04:05Z"))
    with open_capture(tmp_path / "a.jsonl") as sink:
        sink.write([row])
    assert at_server("replay", tmp_path / "a.jsonl").exit_code == 1
    assert at_server("replay", tmp_path / "a.jsonl", "--allow", "SHOP.>").stderr == "1 message published\n"


@pytest.mark.parametrize(
    "command",
    [["replay", "a.jsonl", "--rate"], ["top", "a", "--interval"], ["conformance", "--timeout"]],
    ids=lambda command: command[0],
)
def test_numbers_are_finite(at_server, command):
    """Some versions of typer accept NaN within limits."""
    for value in ("nan", "inf"):
        result = at_server(*command, value)
        assert (result.exit_code, result.stdout) == (2, "")
        assert re.fullmatch(f"ce-nats: invalid-option: .*{command[-1]}.*\n", result.stderr)


def test_replay_limits_the_rate(at_server, with_js, stream, stored, subject, tmp_path):
    publish(with_js, subject, *[b"x"] * 11)
    at_server("capture", tmp_path / "a.jsonl", "--stream", stream)
    began = time.monotonic()
    assert at_server("replay", "-J", tmp_path / "a.jsonl", "--rate", 10).exit_code == 0
    assert time.monotonic() - began > 0.99  # ten intervals of 0.1 s
    assert len(stored(stream)) == 22


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_interrupted_replay_prints_its_count(
    start, at_server, with_js, stream, stored, subject, tmp_path, is_acknowledged, as_json
):
    """The summary agrees with the messages in the stream."""
    publish(with_js, subject, *[b"x"] * 500)
    at_server("capture", tmp_path / "a.jsonl", "--stream", stream)
    options = (["-J"] if is_acknowledged else []) + (["--json"] if as_json else [])
    process = start("replay", tmp_path / "a.jsonl", "--rate", 50, *options)
    with_js(until_stored, stream, 505)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    if as_json:
        counts = json.loads(stdout)
        assert (counts["duplicates"], stderr) == (0, b"")
    else:
        found = re.fullmatch(rb"([0-9]+) messages published(?:; ([0-9]+) sent and not acknowledged)?\n", stderr)
        counts = {"messages": int(found[1]), "unacknowledged": int(found[2] or 0)}
    with_js(until_stored, stream, 500 + counts["messages"])
    copies = len(stored(stream)) - 500
    assert 5 <= copies <= counts["messages"] + counts["unacknowledged"] < 500
    assert is_acknowledged or counts["unacknowledged"] == 0


def test_failed_replay_prints_its_count(at_server, with_js, stream, stored, subject, tmp_path):
    publish(with_js, subject, b"1", b"2")
    lines = at_server("capture", "-", "--stream", stream).stdout
    result = at_server("replay", "-J", "-", stdin=f"{lines}not JSON\n")
    assert result.exit_code == 1
    summary, error = result.stderr.splitlines()
    published, unacknowledged = re.fullmatch(r"(\d) messages? published(?:; (\d) sent .*)?", summary).groups()
    assert int(published) + int(unacknowledged or 0) == 2
    assert error.startswith("ce-nats: invalid-json: line 3: ")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["capture", "a.txt", "--stream", "S"], 2, "must end in"),
        (["capture", "-"], 2, "--stream or --subject"),
        (["capture", "-", "--stream", "NONE"], 3, "stream-not-found"),
        (["capture", "no/such/directory/a.jsonl", "--stream", "S"], 2, "No such file"),
        (["replay", "none.jsonl"], 2, "No such file"),
        (["replay", "bad.jsonl"], 1, "invalid-json"),
        (["replay", "bad.parquet"], 1, "invalid-message"),
        (["replay", "wild.jsonl"], 1, "invalid-subject"),
        (["replay", "late.jsonl"], 1, "invalid-json: late.jsonl, line 2: b'bad"),
        (["replay", "-"], 1, "invalid-json: line 2: b'bad' is not JSON"),
        (["replay", "row.parquet"], 1, "invalid-message: row.parquet, row 1: "),
        (["capture", "late.jsonl", "--stream", "S"], 1, "invalid-json: late.jsonl, last line: "),
    ],
)
def test_errors_are_one_line(at_server, tmp_path, monkeypatch, arguments, status, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text("bad\n")
    (tmp_path / "bad.parquet").write_text("bad")
    late = '{"subject":"a.b","headers":[],"timestamp":"2026-01-01T00:00:00Z"}\nbad\n'
    (tmp_path / "late.jsonl").write_text(late)
    (tmp_path / "row.parquet").write_bytes(parquet_with_null_subject())
    (tmp_path / "wild.jsonl").write_text('{"subject":"a.*","headers":[],"timestamp":"2026-01-01T00:00:00Z"}\n')
    result = at_server(*arguments, stdin=late)
    assert (result.exit_code, result.stdout) == (status, "")
    *summary, error = result.stderr.splitlines()
    assert summary in ([], ["1 message published"])
    assert text in error


def parquet_with_null_subject() -> bytes:
    with io.BytesIO() as file:
        rows = [StoredMessage("a.b", "", [], b"", "", 0, Timestamp("2026-01-01T00:00:00Z"))] * 3
        table = to_table(rows)[0]
        parquet.write_table(table.set_column(0, "subject", pa.array(["a.b", None, "a.b"])), file)
        return file.getvalue()


def test_progress_of_capture_on_a_terminal(at_terminal, with_js, stream, subject):
    """With the number of messages, the rate and the remaining time; standard output has only messages."""
    publish(with_js, subject, *[b"x"] * 2000)
    status, output, drawn = at_terminal("capture", "-", "--stream", stream)
    assert status == 0
    assert "2000/2000" in drawn
    assert "/s" in drawn
    assert "0:00:0" in drawn
    assert [json.loads(line)["data"] for line in output.splitlines()] == ["x"] * 2000


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_progress_of_replay_on_a_terminal(at_server, at_terminal, with_js, stream, subject, tmp_path, name):
    publish(with_js, subject, *[b"x"] * 50)
    at_server("capture", tmp_path / name, "--stream", stream)
    status, _, drawn = at_terminal("replay", tmp_path / name, "--subject", f"other.{subject}")
    assert status == 0
    assert "50/50" in drawn


def test_messages_purged_during_a_capture_are_reported(start, with_js, stream, subject):
    """The command blocks in the middle, because its output is a full pipe."""
    count = 20_000

    async def fill(js):
        await publish_all(js, [(subject, b"x" * 100)] * count)
        await until_stored(js, stream, count)

    with_js(fill)
    process = start("capture", "-", "--stream", stream, "--json")
    lines = [process.stdout.readline()]
    with_js(lambda js: js.purge_stream(stream, seq=count - 9))
    lines += process.stdout.readlines()
    sequences = [json.loads(line)["sequence"] for line in lines]
    error, summary = process.stderr.read().decode().splitlines()
    process.wait()
    first = sequences[-11] + 1
    assert sequences == [*range(1, first), *range(count - 9, count + 1)]
    assert error.startswith(f"ce-nats: data-lost: stream {stream}: messages {first} to {count - 10} are gone")
    assert json.loads(summary)["lost"] == [[first, count - 10]]
    assert json.loads(summary)["messages"] == len(sequences) < count
    assert process.returncode == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_messages_purged_between_captures_are_reported(at_server, with_js, stream, subject, tmp_path, name):
    """Only once: the next capture continues after them."""
    path = tmp_path / name
    publish(with_js, subject, *[b"x"] * 5)
    assert at_server("capture", path, "--stream", stream).exit_code == 0
    publish(with_js, subject, *[b"x"] * 10)
    with_js(lambda js: js.purge_stream(stream, seq=11))
    result = at_server("capture", path, "--stream", stream)
    error, summary = result.stderr.splitlines()
    assert result.exit_code == 3
    assert error.startswith(f"ce-nats: data-lost: stream {stream}: messages 6 to 10 are gone without having been read")
    assert summary == "5 messages captured"
    assert [message.sequence for message in read_capture(path)] == [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]
    assert at_server("capture", path, "--stream", stream).exit_code == 0


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_interrupted_capture_prints_its_count(start, server, with_js, stream, subject, tmp_path, name):
    count = 50_000

    async def fill(js):
        await publish_all(js, [(subject, b"")] * count)
        await until_stored(js, stream, count)

    with_js(fill)
    path = tmp_path / name
    process = start("capture", path, "--stream", stream, "--json")
    asyncio.run(until(lambda: any(file.is_file() and file.stat().st_size for file in (path, *path.glob("*")))))
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert json.loads(stdout)["messages"] == count_captured(path)
    assert process.returncode in (0, 130)  # 0 if it was finished before


@pytest.mark.skipif(os.name != "posix", reason="needs a limit of the size of files")
@pytest.mark.parametrize("output", ["a.jsonl", "-"])
def test_capture_on_a_full_disk_prints_its_count(python, server, with_js, stream, subject, tmp_path, output):
    """The number of messages that a reader of the file finds."""
    count = 12_000
    with_js(publish_all, [(subject, b"%d" % number) for number in range(count)])
    path = tmp_path / "a.jsonl"
    program = tmp_path / "limited.py"
    program.write_text(
        "import resource, runpy\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "runpy.run_module('ce_nats', run_name='__main__', alter_sys=True)\n"
    )
    command = [python, program, "capture", path if output != "-" else "-", "--server", server.url]
    with (path if output == "-" else tmp_path / "stdout").open("wb") as stdout:
        process = subprocess.run(
            [*command, "--stream", stream, "--json"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    lines = process.stderr.decode().splitlines()
    summary = lines[0] if output == "-" else (tmp_path / "stdout").read_text()
    found = list(read_capture(path))
    assert 5_000 < json.loads(summary)["messages"] == len(found) == count_captured(path) < count
    assert [message.data for message in found] == [b"%d" % number for number in range(len(found))]
    assert (process.returncode, lines[-1]) == (2, "ce-nats: file-error: [Errno 27] File too large")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_capture_that_cannot_write_fails(python, server, with_js, stream, subject):
    publish(with_js, subject, b"1", b"2")
    command = [python, "-m", "ce_nats", "capture", "-", "--server", server.url, "--stream", stream]
    with open("/dev/full", "wb") as full:
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert process.stderr == b"ce-nats: file-error: [Errno 28] No space left on device\n"
    assert process.returncode == 2


@pytest.mark.faults
def test_capture_continues_after_a_kill(start, at_server, with_js, stored, stream, subject, tmp_path):
    """In the end, the capture has each message once."""
    publish(with_js, subject, *[b"%d" % number for number in range(3000)])
    path = tmp_path / "a.jsonl"
    process = start("capture", path, "--stream", stream)
    asyncio.run(until(lambda: path.exists() and path.stat().st_size))
    process.kill()
    process.communicate()
    with path.open("ab") as file:
        file.write(b'{"subject":"cut')
    assert at_server("capture", path, "--stream", stream).exit_code == 0
    assert [message.data for message in read_capture(path)] == [b"%d" % number for number in range(3000)]
