"""
Run cases on a program in any language: one JSON line per case on its standard input, one per answer on its standard
output.

The program is not trusted. If it exits, hangs, or prints something else, the current case fails, and the program is
restarted for the next case.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from tempfile import TemporaryFile
from threading import Timer
from types import TracebackType
from typing import IO, Any, Final

from .._numbers import check_seconds
from ._cases import Case, expand
from ._verdicts import Result, Verdict, judge

DEFAULT_TIMEOUT: Final = 10.0  # seconds per case, including the program's start for the first one
_MAX_LINE_LENGTH: Final = 64 * 1024 * 1024  # bytes of an answer
_MAX_UNANSWERED: Final = 10  # consecutive cases without an answer, after which all others fail
_STDERR_TAIL: Final = 300  # characters at the end of standard error to show


class CommandError(Exception):
    """The command cannot be run, or did not answer any of its first cases."""


class _NoAnswerError(Exception):
    """No valid answer was received; the text is the reason in one line."""


class Command:
    """
    A program that implements the protocol of the fixtures, as a context manager.

    The program is started for the first case, and stopped when the block ends.

    Args:
        command: Program and arguments, split by the rules of a POSIX shell; no shell is started.
        timeout: Seconds to wait for the answer to a case.

    Raises:
        CommandError: The command is empty or cannot be split.
        ValueError: ``timeout`` is not a number of seconds, 0 or more.
    """

    def __init__(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        check_seconds("timeout", timeout)
        try:
            self._argv = shlex.split(command, posix=True)
        except ValueError as error:
            raise CommandError(f"the command must be valid shell words, got {command!r}: {error}") from error
        if not self._argv:
            raise CommandError("the command must not be empty")
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] = TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._has_answered = False
        self._failures = 0

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._stderr.close()

    def run(self, case: Case) -> Verdict:
        """
        Run one case and judge the answer.

        Raises:
            CommandError: The program cannot be started, or did not answer any of its first cases.
        """
        if self._failures >= _MAX_UNANSWERED:
            return Verdict(case, Result.FAILED, {}, f"not run: no answer to {_MAX_UNANSWERED} consecutive cases")
        try:
            got = self._exchange(case)
        except _NoAnswerError as problem:
            self._stop()
            self._failures += 1
            if self._failures >= _MAX_UNANSWERED and not self._has_answered:
                raise CommandError(f"no answer of {self._argv[0]} to {_MAX_UNANSWERED} cases: {problem}") from problem
            return Verdict(case, Result.FAILED, {}, str(problem))
        self._has_answered = True
        self._failures = 0
        return judge(case, got, compare_codes=False)

    def _exchange(self, case: Case) -> dict[str, Any]:
        process = self._running_process()
        request = json.dumps({"id": case.id, "op": case.op, "input": expand(case.input)}).encode("ascii") + b"\n"
        with _Watchdog(self._timeout, process) as watchdog:
            line = _write_and_read(process, request)
        if watchdog.has_expired:
            raise _NoAnswerError(f"no answer within {self._timeout:g} s")
        if not line.endswith(b"\n"):
            is_too_long = len(line) >= _MAX_LINE_LENGTH
            raise _NoAnswerError(
                f"the answer must have at most {_MAX_LINE_LENGTH} bytes" if is_too_long else self._exit_text(process)
            )
        return _parse(case.id, line)

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._stderr.seek(0)
            self._stderr.truncate()
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the command is given by the user
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr,
                    start_new_session=True,  # so that its child processes can be killed with it
                )
            except (OSError, ValueError) as error:
                raise CommandError(f"{self._argv[0]} cannot be run: {error}") from error
        return self._process

    def _exit_text(self, process: subprocess.Popen[bytes]) -> str:
        try:
            status = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            return "the program closed its standard output"
        self._stderr.seek(0)
        stderr = " ".join(self._stderr.read().decode("utf-8", "replace").split())
        tail = f": {stderr[-_STDERR_TAIL:]}" if stderr else ""
        return f"the program exited with status {status}{tail}"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # At the end of input the program should exit.
        with suppress(OSError):  # closing flushes, which fails if the program has exited
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]


class _Watchdog:
    """Kills a process after a timeout, so that a blocked read or write ends."""

    def __init__(self, timeout: float, process: subprocess.Popen[bytes]) -> None:
        self.has_expired = False
        self._process = process
        self._timer = Timer(timeout, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> _Watchdog:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def _expire(self) -> None:
        self.has_expired = True
        _kill(self._process)


def _write_and_read(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    try:
        process.stdin.write(request)  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    except OSError:
        return b""  # the program exited; the caller reports its status
    return process.stdout.readline(_MAX_LINE_LENGTH)  # type: ignore[union-attr]


def _parse(case_id: str, line: bytes) -> dict[str, Any]:
    shown = line[:60].decode("utf-8", "replace").rstrip()
    try:
        got = json.loads(line, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise _NoAnswerError(f"the answer must be a line of JSON, got {shown!r}") from error
    if not isinstance(got, dict):
        raise _NoAnswerError(f"the answer must be a JSON object, got {shown!r}")
    if got.get("id", case_id) != case_id:
        # The program is out of sync: all later answers would belong to other cases.
        raise _NoAnswerError(f"the answer must have the id of the case, got {got['id']!r}")
    return got


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
