"""
Run cases on a program in any language: one JSON line per case to its standard input, one JSON line back.

The program is not trusted: it may exit, hang, or print anything. Each of these fails the current case, and the program
is restarted for the next one.
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

from ._cases import Case, expand
from ._verdicts import Result, Verdict, judge

DEFAULT_TIMEOUT: Final = 10.0  # seconds per case, including the program's start for the first one
_MAX_LINE_LENGTH: Final = 64 * 1024 * 1024  # bytes of an answer
_MAX_UNANSWERED: Final = 10  # cases in a row without an answer, after which the program is not asked again
_STDERR_TAIL: Final = 300  # characters of its standard error that are shown


class CommandError(Exception):
    """The command cannot be run, or did not answer any of its first cases."""


class _NoAnswerError(Exception):
    """No valid answer was received; the text is the reason in one line."""


class Command:
    """
    An implementation that is run as a command.

    Use it as a context manager; the program is stopped on exit.

    Args:
        command: Program and arguments, split as a POSIX shell splits them; no shell is started.
        timeout: Seconds to wait for the answer to a case.

    Raises:
        CommandError: The command is empty or cannot be split.
    """

    def __init__(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        try:
            self._argv = shlex.split(command, posix=True)
        except ValueError as error:
            raise CommandError(f"{command!r} cannot be split into words: {error}") from error
        if not self._argv:
            raise CommandError("the command is empty")
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
            return Verdict(case, Result.FAILED, {}, f"not asked: no answer to {_MAX_UNANSWERED} cases in a row")
        try:
            got = self._ask(case)
        except _NoAnswerError as problem:
            self._stop()
            self._failures += 1
            if self._failures >= _MAX_UNANSWERED and not self._has_answered:
                raise CommandError(
                    f"{self._argv[0]} must answer, got no answer to {_MAX_UNANSWERED} cases: {problem}"
                ) from problem
            return Verdict(case, Result.FAILED, {}, str(problem))
        self._has_answered = True
        self._failures = 0
        return judge(case, got, codes_count=False)

    def _ask(self, case: Case) -> dict[str, Any]:
        process = self._started()
        question = json.dumps({"id": case.id, "op": case.op, "input": expand(case.input)}).encode("ascii") + b"\n"
        with _Watchdog(self._timeout, process) as watchdog:
            line = _exchange(process, question)
        if watchdog.has_expired:
            raise _NoAnswerError(f"no answer within {self._timeout:g} s")
        if not line.endswith(b"\n"):
            is_too_long = len(line) >= _MAX_LINE_LENGTH
            raise _NoAnswerError(
                f"an answer of more than {_MAX_LINE_LENGTH} bytes" if is_too_long else self._exit_text(process)
            )
        return _parse(case.id, line)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._stderr.seek(0)
            self._stderr.truncate()
            try:
                self._process = subprocess.Popen(  # noqa: S603  # to run what the user names is the purpose
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
            return "it closed its output"
        self._stderr.seek(0)
        stderr = " ".join(self._stderr.read().decode("utf-8", "replace").split())
        tail = f": {stderr[-_STDERR_TAIL:]}" if stderr else ""
        return f"it ended with status {status}{tail}"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # End of input tells the program to exit.
        with suppress(OSError):  # closing flushes, which fails if the program has exited
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]


class _Watchdog:
    """Kills a process after a time-out, which ends a blocked read from it or write to it."""

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


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    try:
        process.stdin.write(question)  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    except OSError:
        return b""  # the program has exited; the caller reports its status
    return process.stdout.readline(_MAX_LINE_LENGTH)  # type: ignore[union-attr]


def _parse(case_id: str, line: bytes) -> dict[str, Any]:
    shown = line[:60].decode("utf-8", "replace").rstrip()
    try:
        got = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _NoAnswerError(f"not a line of JSON: {shown!r}") from error
    if not isinstance(got, dict):
        raise _NoAnswerError(f"not a JSON object: {shown!r}")
    if got.get("id", case_id) != case_id:
        # The program is out of step: all later answers would be to other cases.
        raise _NoAnswerError(f"an answer to {got['id']!r}")
    return got


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
