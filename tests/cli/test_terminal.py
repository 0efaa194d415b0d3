"""Output of commands on terminals only: progress, and a hint that standard input is read."""

import json
import os
import re
import subprocess
import sys
import threading

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are needed")


@pytest.fixture
def at_terminal(server, tmp_path):
    """
    Return a function that runs a command with a terminal as standard error.

    The function returns the exit status, standard output, and the text on the terminal. Standard input is a file with
    the content ``stdin``, or the terminal with the input ``typed``.
    """

    def run(*arguments, stdin=None, typed=None):
        import pty
        import termios

        master, terminal = pty.openpty()
        settings = termios.tcgetattr(terminal)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        os.write(master, typed or b"")
        (tmp_path / "stdin").write_bytes(stdin or b"")
        command = [sys.executable, "-m", "ce_nats", *map(str, arguments)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "NATS_URL": server.url}
        with (tmp_path / "stdin").open("rb") as given:
            process = subprocess.Popen(
                command,
                stdin=terminal if typed is not None else given,
                stdout=subprocess.PIPE,
                stderr=terminal,
                env=environment,
            )
        os.close(terminal)
        output = []
        reader = threading.Thread(target=lambda: output.append(process.stdout.read()))
        reader.start()
        drawn = b""
        while chunk := _read(master):
            drawn += chunk
        reader.join()
        process.stdout.close()
        os.close(master)
        text = re.sub("\x1b\\[[0-9;]*m", "", drawn.decode())  # colours
        return process.wait(60), output[0], text.replace("\r\n", "\n")

    return run


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


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


def test_pub_of_one_event_shows_no_progress(at_terminal, subject, event):
    assert at_terminal("pub", subject, event())[2] == "1 published\n"


def test_conformance_shows_progress(at_terminal):
    status, output, drawn = at_terminal("conformance", "--suite", "percent-encoding", "--json")
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


def test_shell_completion_of_commands(server):
    code = "import sys; sys.argv = ['ce-nats']; from ce_nats.__main__ import main; main()"
    environment = {"_CE_NATS_COMPLETE": "complete_bash", "COMP_WORDS": "ce-nats dead-letters re", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["requeue"], done.stderr
