"""Exit statuses and error texts of commands. No server is needed."""

import asyncio
import os
import signal
import subprocess
from typing import Any

import pytest
import typer

from ce_nats import DecodeError, DeliveryError, EncodeError, ErrorCode, __version__
from ce_nats.cli._arguments import InputError
from ce_nats.cli._program import BAD_INPUT, NOT_DELIVERED, USAGE, print_error, run, with_exit_status

ENDS = [
    (EncodeError(ErrorCode.INVALID_SUBJECT, "no\nsubject"), BAD_INPUT, "ce-nats: invalid-subject: no subject"),
    (DecodeError(ErrorCode.INVALID_JSON, "bad"), BAD_INPUT, "ce-nats: invalid-json: bad"),
    (DeliveryError(ErrorCode.TIMEOUT, "late"), NOT_DELIVERED, "ce-nats: timeout: late"),
    (InputError("empty"), USAGE, "ce-nats: invalid-option: empty"),
    (FileNotFoundError(2, "No such file", "x"), USAGE, "ce-nats: file-not-found: No such file: 'x'"),
    (EncodeError(ErrorCode.INVALID_OPTION, "bad"), USAGE, "ce-nats: invalid-option: bad"),
    (InputError("bad", ErrorCode.INVALID_SUBJECT), USAGE, "ce-nats: invalid-subject: bad"),
    (FileExistsError("x exists"), USAGE, "ce-nats: file-exists: x exists"),
    (PermissionError(13, "Permission denied", "x"), USAGE, "ce-nats: file-error: Permission denied: 'x'"),
    (ImportError("needs pyarrow"), USAGE, "ce-nats: missing-package: needs pyarrow"),
    (OSError(), USAGE, "ce-nats: file-error: OSError"),
]


@pytest.mark.parametrize(("error", "status", "line"), ENDS)
def test_errors_are_one_line_and_a_status(
    error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        with_exit_status(command)()
    assert caught.value.exit_code == status
    assert capsys.readouterr() == ("", f"{line}\n")


def test_error_has_its_position(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(DecodeError(ErrorCode.INVALID_JSON, "bad"), "line 3")
    assert capsys.readouterr().err == "ce-nats: invalid-json: line 3: bad\n"


def test_ctrl_c_is_status_130() -> None:
    def command() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as caught:
        with_exit_status(command)()
    assert caught.value.exit_code == 128 + signal.SIGINT


def test_unexpected_exceptions_are_not_caught() -> None:
    """They are printed with a traceback."""

    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_exit_status(command)()


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals are needed")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_cancels_the_work(number: signal.Signals) -> None:
    """The command waits until the cancelled work has cleaned up."""
    ended: list[Any] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    with pytest.raises(typer.Exit) as caught:
        with_exit_status(lambda: run(work()))()
    assert caught.value.exit_code == 128 + number
    assert ended == [number]


def test_version_is_printed(python: str) -> None:
    command = [python, "-m", "ce_nats", "--version"]
    assert subprocess.check_output(command, text=True, timeout=60) == f"ce-nats {__version__}\n"


def test_closed_pipe_is_status_141(python: str) -> None:
    """Also for tables and the help, for which the libraries would exit with status 1."""
    for command in (["--help"], ["conformance", "--suite", "headers"], ["explain", '{"headers":[["a","b"]]}']):
        reading, writing = os.pipe()
        os.close(reading)
        process = subprocess.run(
            [python, "-m", "ce_nats", *command], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
        )
        os.close(writing)
        assert (process.returncode, process.stderr) == (141, b"")
