"""Text of messages, files, servers and arguments cannot control a terminal; tested with pseudo-terminals."""

import json
import os
import re
import signal
import socket
import sys
import threading
from base64 import b64encode
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyarrow import parquet

from ce_nats.redelivery import DeadLetter, Reason

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are needed")

# Sets the title, erases the screen with a C1 control character, deletes, and changes the text direction.
HOSTILE = "\x1b]0;owned\x07\x9b2J\x7f\u202e\u2066\u200f"
# The part that attributes may contain.
DIRECTION = "\u202e\u2066\u200f"
# Sequences that rich writes to redraw a progress bar or a table: cursor movements, and erased lines.
DRAWING = re.compile(r"\x1b\[(?:\?25[lh]|[0-9]*[AGKJH]|[0-9;]*m)")


@pytest.fixture
def on_terminal(at_terminal):
    """Return a function that runs a command with all output on a terminal, and returns exit status and output."""

    def run(*arguments, **options):
        status, _, written = at_terminal(*arguments, is_output=True, **{"COLUMNS": "300", **options})
        return status, written

    return run


# Runs commands in one process, which takes less time than one each.
PROGRAM = """
import json, sys
from ce_nats.cli import app, escape_terminals

escape_terminals()
for arguments, given in json.load(open("commands.json")):
    with open("given", "w+", encoding="utf-8") as sys.stdin:
        sys.stdin.write(given)
        sys.stdin.seek(0)
        try:
            app(arguments)
        except SystemExit as end:
            sys.stdout.flush()
            print(f"=== {end.code or 0} ===", file=sys.stderr)
"""


@pytest.fixture
def all_on_terminal(on_terminal, tmp_path):
    """Return a function that runs commands with their input, and returns exit status and output of each."""

    def run(commands):
        (tmp_path / "commands.json").write_text(json.dumps([*commands]))
        (tmp_path / "program.py").write_text(PROGRAM)
        status, written = on_terminal(program=["program.py"])
        assert status == 0, written
        parts = re.split("=== ([0-9]+) ===\n", written)
        assert len(parts) == 2 * len(commands) + 1, written
        return list(zip(map(int, parts[1::2]), parts[::2]))

    return run


def assert_harmless(written, *, is_shown=True):
    """Check that only sequences that draw tables reach the terminal, and that hostile text is shown escaped."""
    raw = {char for char in DRAWING.sub("", written) if not char.isprintable() and char not in "\r\n"}
    assert not raw, written
    assert not is_shown or "owned" in written or "\\u202e" in written, written


def message(subject="a", headers=(), data=b""):
    return json.dumps({"subject": subject, "headers": [*headers], "data_base64": b64encode(data).decode()}) + "\n"


def event(**members):
    given = {"specversion": "1.0", "id": "1", "source": "/tests", "type": f"t{DIRECTION}", **members}
    return json.dumps(given, ensure_ascii=False) + "\n"


BINARY = [["ce-specversion", "1.0"], ["ce-id", "1"], ["ce-source", "/s"], ["ce-type", "t"]]
EVENT = event(data={HOSTILE: [HOSTILE]})
JSON_HEADERS = [["Content-Type", "application/cloudevents+json"]]


DATA = [
    (["encode"], event(datacontenttype="text/plain", data=f"{HOSTILE}\n{HOSTILE}")),
    (["encode", "--json"], EVENT),
    (["encode"], event(time=HOSTILE)),
    (["encode"], event(**{HOSTILE: 1})),
    (["encode", "--subject", HOSTILE], EVENT),
    (["decode"], message(HOSTILE, JSON_HEADERS, EVENT.encode())),
    (["decode"], message(headers=[*BINARY, ["ce-time", HOSTILE]])),
    (["decode"], message(headers=[[f"ce-{HOSTILE}", "1"], ["ce-id", "1"]])),
    (["decode"], HOSTILE),
    (["decode"], "NATS/1.0\r\nce-id: " + HOSTILE + "\r\n\r\n"),
    (["explain"], message(HOSTILE, JSON_HEADERS, EVENT.encode())),
    (["explain"], message(headers=[*BINARY, ["ce-subject", f"%{HOSTILE}"], ["Tag", HOSTILE]], data=b"\x1b")),
    (["explain"], message(headers=[*BINARY, [HOSTILE, HOSTILE], [f"ce-{HOSTILE}", HOSTILE]])),
    (["explain"], message(data=HOSTILE.encode(), headers=JSON_HEADERS)),
    (["explain", "--json"], message(headers=[[HOSTILE, HOSTILE]], data=EVENT.encode())),
]


def test_local_commands_escape_data(all_on_terminal):
    for (command, _), (_, written) in zip(DATA, all_on_terminal(DATA), strict=True):
        assert_harmless(written, is_shown=command[0] == "explain" or "invalid-" not in written)


ARGUMENTS = [
    [HOSTILE],
    ["encode", f"--{HOSTILE}"],
    ["encode", "--mode", HOSTILE],
    ["encode", "-H", HOSTILE],
    ["decode", f"{HOSTILE}.parquet", "-o", "y.parquet"],
    ["decode", "x.parquet", "-o", f"{HOSTILE}.csv"],
    ["decode", "x.parquet", "-o", f"{HOSTILE}/y.parquet"],
    ["replay", f"{HOSTILE}.jsonl"],
    ["replay", f"{HOSTILE}.parquet"],
    ["capture", f"{HOSTILE}.txt", "--stream", "S"],
    ["capture", f"{HOSTILE}/a.jsonl", "--stream", "S"],
    ["capture", "-", "--stream", HOSTILE],
    ["sub", HOSTILE, "--count", "0"],
    ["sub", "a", "--context", HOSTILE],
    ["sub", "a", "--creds", HOSTILE],
    ["pub", "a", "--mode", HOSTILE, "--user", HOSTILE, "--password", HOSTILE],
    ["dead-letters", "list", HOSTILE],
    ["dead-letters", "show", HOSTILE, "1"],
    ["dead-letters", "requeue", HOSTILE, "1"],
    ["top", "a", "--stream", HOSTILE, "--consumer", HOSTILE],
    ["migrate", HOSTILE, "S", "--monitor", f"http://{HOSTILE}"],
    ["migrate", "a", "S", "--durable", HOSTILE],
    ["conformance", "--suite", HOSTILE],
    ["conformance", "--exec", HOSTILE],
]


def test_arguments_and_file_names_are_escaped(all_on_terminal, tmp_path):
    """Arguments may come from other programs: the name of a downloaded file, a variable of a script."""
    no_messages = pa.table({"headers": pa.array([], pa.binary()), "data": pa.array([], pa.binary())})
    parquet.write_table(no_messages, tmp_path / "x.parquet")
    ended = all_on_terminal([(arguments, event()) for arguments in ARGUMENTS])
    for arguments, (status, written) in zip(ARGUMENTS, ended, strict=True):
        assert status in (1, 2, 3), arguments
        assert_harmless(written, is_shown="--count" not in arguments)


def test_column_names_of_a_file_are_escaped(on_terminal, tmp_path):
    parquet.write_table(pa.table({HOSTILE: ["a"]}), tmp_path / "x.parquet")
    status, written = on_terminal("decode", "x.parquet", "-o", "y.parquet")
    assert status == 1
    assert_harmless(written)


def test_captured_messages_are_escaped(on_terminal, tmp_path):
    line = {"subject": HOSTILE, "headers": [[HOSTILE, HOSTILE]], "data": HOSTILE, "timestamp": HOSTILE}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({**line, "timestamp": "2026-01-01T00:00:00Z"}) + "\n")
    for name in ("a.jsonl", "b.jsonl"):
        status, written = on_terminal("replay", name)
        assert status == 1
        assert_harmless(written)


def publish(server, subject, headers, data):
    """Publish with an arbitrary subject and arbitrary headers, as any client can."""
    block = b"NATS/1.0\r\n" + b"".join(f"{name}: {value}\r\n".encode() for name, value in headers) + b"\r\n"
    head = f"HPUB {subject} {len(block)} {len(block) + len(data)}\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection, connection.makefile("rb") as answers:
        connection.sendall(b'CONNECT {"headers":true,"verbose":false}\r\n' + head + block + data + b"\r\nPING\r\n")
        for answer in answers:
            assert not answer.startswith(b"-ERR"), answer
            if answer.startswith(b"PONG"):
                return


@pytest.mark.parametrize("option", [[], ["--json"]], ids=str)
def test_sub_escapes_messages(screen, server, subject, option):
    """Subject, headers and data of events, and of other messages."""
    running = screen("sub", *option, f"{subject}.>", "-n", 3)
    written = running.wait_for("listening on ")
    publish(server, f"{subject}.{HOSTILE}", JSON_HEADERS, EVENT.encode())
    publish(server, f"{subject}.{HOSTILE}", [["ce-id", "1"], [HOSTILE, HOSTILE]], HOSTILE.encode())
    publish(server, f"{subject}.{HOSTILE}", [], HOSTILE.encode())
    written += running.rest()
    assert running.process.wait(60) == 0
    assert_harmless(written)
    assert written.count("\\u202e") >= 3


def test_top_escapes_types_and_sources(screen, server, subject):
    running = screen("top", f"{subject}.>", "--interval", 0.1, COLUMNS="300")
    written = running.wait_for("listening on ")
    publish(server, f"{subject}.a", JSON_HEADERS, event(source=f"/{DIRECTION}").encode())
    publish(server, f"{subject}.a", [], HOSTILE.encode())
    written += running.wait_for("2 messages") + running.wait_for(r"t\\u202e.+/\\u202e")
    running.process.send_signal(signal.SIGINT)
    written += running.rest()
    assert running.process.wait(60) == 0
    assert_harmless(written)


def test_dead_letters_are_escaped(all_on_terminal, server, stream, stored, subject):
    """All headers of a dead letter, and the original message."""
    letter = DeadLetter(Reason.REJECTED, "code", "text", "subject", "stream", "consumer", 1, 1)
    headers = [(name, value if value.isdigit() or "Reason" in name else HOSTILE) for name, value in letter.headers()]
    publish(server, f"{subject}.{HOSTILE}", [*headers, (HOSTILE, HOSTILE)], HOSTILE.encode())
    publish(server, f"{subject}.{HOSTILE}", [("Dead-Letter-Reason", HOSTILE)], b"")
    assert len(stored(stream)) == 2
    commands = (
        ["list", stream],
        ["list", stream, "--json"],
        ["show", stream, "1"],
        ["show", stream, "1", "--json"],
        ["show", stream, "2"],
        ["requeue", stream, "--all"],
        ["requeue", stream, "1"],
    )
    for _, written in all_on_terminal([(["dead-letters", *command], "") for command in commands]):
        assert_harmless(written)


def test_capture_to_the_terminal_is_escaped(on_terminal, server, stream, subject):
    publish(server, f"{subject}.{HOSTILE}", [(HOSTILE, HOSTILE)], f"{HOSTILE}".encode())
    status, written = on_terminal("capture", "-", "--stream", stream)
    assert status == 0
    assert_harmless(written)
    line = next(line for line in DRAWING.sub("", written).splitlines() if "{" in line)
    assert json.loads(line[line.index("{") :])["data"] == HOSTILE


@contextmanager
def hostile_server(connect=b"PONG\r\n", description=HOSTILE):
    """Run a server with hostile errors: on connecting, and in responses of the JetStream API."""
    listener = socket.create_server(("127.0.0.1", 0))
    info = {"server_id": "A", "version": "2.12.0", "max_payload": 1048576, "headers": True, "jetstream": True}
    error = {"type": "error", "error": {"code": 400, "err_code": 10025, "description": description}}

    def serve(connection):
        with connection, connection.makefile("rb") as lines, connection.makefile("wb", 0) as output:
            output.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
            sids = {}
            for line in lines:
                words = line.decode().split()
                if words[0] == "PING":
                    output.write(connect)
                elif words[0] == "SUB":
                    sids[words[1]] = words[-1]
                elif words[0] in ("PUB", "HPUB"):
                    lines.read(int(words[-1]) + 2)
                    if words[1].startswith("$JS.API"):
                        reply = words[2]
                        sid = next(sid for name, sid in sids.items() if reply.startswith(name.rstrip("*>")))
                        body = json.dumps(error).encode()
                        output.write(f"MSG {reply} {sid} {len(body)}\r\n".encode() + body + b"\r\n")

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@pytest.mark.parametrize(
    "command",
    [
        ["capture", "-", "--stream", "S"],
        ["dead-letters", "list", "S"],
        ["top", "a", "--stream", "S", "--consumer", "C"],
    ],
)
def test_server_errors_are_escaped(on_terminal, command):
    with hostile_server() as url:
        status, written = on_terminal(*command, url=url)
    assert status == 3
    assert_harmless(written)


def test_connection_errors_are_escaped(on_terminal):
    with hostile_server(f"-ERR '{HOSTILE} Authorization Violation'\r\n".encode()) as url:
        status, written = on_terminal("sub", "a", url=url)
    assert status == 3
    assert_harmless(written)


def test_answers_to_conformance_are_escaped(on_terminal, tmp_path):
    """In the list of failures, and in the tail of standard error."""
    answer = json.dumps({"result": HOSTILE, HOSTILE: HOSTILE}, ensure_ascii=False)
    (tmp_path / "peer.py").write_text(f"import sys\nfor _ in sys.stdin: print({answer!r}, flush=True)\n", "utf-8")
    peer = f"{sys.executable} peer.py"
    status, written = on_terminal("conformance", "--exec", peer, "--suite", "frames", "--failures")
    assert status == 1
    assert_harmless(written)
    (tmp_path / "peer.py").write_text(f"import sys\nsys.exit({HOSTILE!r})\n", "utf-8")
    status, written = on_terminal("conformance", "--exec", peer, "--suite", "frames")
    assert status == 2
    assert_harmless(written)


BUG = f"""
import logging, warnings
from ce_nats import __main__
from ce_nats.cli import app
from ce_nats.cli._progress import progress

@app.command()
def bug():
    hostile = {HOSTILE!r}
    with progress(hostile, 3) as advance:
        advance(1)
        logging.getLogger("ce_nats.aio").warning("%s", hostile)
        logging.getLogger("another").error(hostile)
    warnings.warn(hostile)
    print(hostile)
    raise ZeroDivisionError(hostile)

__main__.main()
"""


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "", "FORCE_COLOR": "1", "PYTHON_COLORS": "1"}])
def test_logs_warnings_titles_and_tracebacks_are_escaped(on_terminal, tmp_path, variables):
    """Output that is not printed by the commands themselves, for example of a bug."""
    (tmp_path / "program.py").write_text(BUG, "utf-8")
    status, written = on_terminal("bug", program=["program.py"], **variables)
    assert status == 1
    assert_harmless(written)
    assert "ZeroDivisionError: \\u001b]0;owned" in written
    assert "ce-nats: \\u001b]0;owned" in written


def test_json_on_a_terminal_is_equivalent(on_terminal):
    """Its escapes are JSON escapes, so that it can be copied."""
    status, written = on_terminal("decode", message("a", JSON_HEADERS, EVENT.encode()))
    assert status == 0
    assert json.loads(written)["data"] == {HOSTILE: [HOSTILE]}


def test_data_in_pipes_is_unchanged(cli, on_terminal):
    result = cli("decode", message("a", JSON_HEADERS, EVENT.encode()))
    assert "\x9b2J\x7f\u202e" in result.stdout


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_terminal_with_another_encoding(on_terminal, encoding):
    """In these encodings, the second byte of a UTF-8 letter is a control character."""
    given = json.loads(event(data="Л€é", type="t"))
    status, written = on_terminal("encode", "--json", json.dumps(given), PYTHONIOENCODING=encoding, encoding="latin-1")
    assert status == 0
    assert "\x9b" not in written
    status, written = on_terminal(
        "decode", message("a", JSON_HEADERS, json.dumps(given).encode()), PYTHONIOENCODING=encoding, encoding="latin-1"
    )
    assert status == 0
    assert "\x9b" not in written
    assert json.loads(written)["data"] == "Л€é"
    status, written = on_terminal(
        "explain", message("a", [], json.dumps(given).encode()), PYTHONIOENCODING=encoding, encoding="latin-1"
    )
    assert (status, "\x9b" in written) == (0, False)


def test_no_color_disables_all_styles(on_terminal):
    """Neither colours nor bold text, but still a progress bar."""
    given = message("a", JSON_HEADERS, EVENT.encode())
    assert "\x1b[1m" in on_terminal("explain", given, NO_COLOR="")[1]
    assert "\x1b" not in on_terminal("explain", given)[1]
    written = on_terminal("conformance", "--suite", "headers")[1]
    assert "\x1b[2K" in written  # the progress bar
    assert not re.search("\x1b\\[[0-9;]*m", written)
