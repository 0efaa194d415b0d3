"""Output of commands on terminals only: progress, and a hint that standard input is read."""

import json
import os
import re
import subprocess

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are needed")

END = b"\x04"  # Ctrl-D


def test_pub_of_many_events_shows_progress(at_terminal, subject, event):
    """Errors are printed on separate lines above the progress bar."""
    lines = [event(number).encode() for number in range(3000)]
    lines.insert(2000, b"not an event\n")
    status, output, drawn = at_terminal("pub", subject, stdin=b"".join(lines))
    assert (status, output) == (1, b"")
    assert re.search(r"pub .* [1-9][0-9]*/\?", drawn)
    assert re.search(r"(^|\n|\r|\x1b\[2K)ce-nats: invalid-json: line 2001", drawn)
    assert drawn.endswith("3000 published\n")


@pytest.mark.usefixtures("stream")  # which listens
def test_pub_of_one_event_shows_no_progress(at_terminal, subject, event):
    assert at_terminal("pub", subject, event())[2] == "1 published\n"


def test_conformance_shows_progress(at_terminal):
    status, output, drawn = at_terminal("conformance", "--suite", "headers", "--json")
    assert (status, "conformance" in drawn) == (0, True)
    assert json.loads(output)


@pytest.mark.parametrize("command", ["encode", "decode", "explain"])
def test_hint_when_standard_input_is_a_terminal(at_terminal, command, event):
    given = (
        event() if command == "encode" else '{"headers":[["Content-Type","application/cloudevents+json"]],"data":""}\n'
    )
    _, _, drawn = at_terminal(command, typed=given.encode() + END)
    assert drawn.startswith("ce-nats: reading from standard input; press Ctrl-D on an empty line to end it\n")


def test_hint_when_standard_input_of_pub_is_a_terminal(at_terminal, subject, event):
    status, _, drawn = at_terminal("pub", subject, typed=event().encode() + END)
    assert status == 0
    assert drawn.startswith("ce-nats: reading from standard input")
    assert drawn.endswith("1 published\n")


def test_no_hint_in_a_pipe(cli, event):
    assert cli("encode", stdin=event()).stderr == ""


def test_shell_completion_of_commands(python, tmp_path):
    program = tmp_path / "ce-nats"
    program.write_text("from ce_nats.__main__ import main; main()")
    environment = {"_CE_NATS_COMPLETE": "complete_bash", "COMP_WORDS": "ce-nats dead-letters re", "COMP_CWORD": "2"}
    done = subprocess.run(
        [python, program], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["requeue"], done.stderr
