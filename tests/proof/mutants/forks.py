"""Run functions in forks of this process, with limits of time and memory, and end all processes that they start."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# Address space of a fork: a mutant may allocate without end.
MEMORY: Final = 8 << 30
# Limits of the start of a fork, and of a test without a mutant. CPU time ends endless loops, also on a busy machine.
# Elapsed time ends tests that wait, and is generous, because it depends on the machine.
CPU_SECONDS: Final = 30.0
ELAPSED_SECONDS: Final = 300.0
# Limits of a test with a mutant are multiples of the time that it needs without it, and these.
_CPU, _ELAPSED, _FACTOR = 5.0, 15.0, 20.0
# Statuses of forks that reached the limit of CPU time, and of elapsed time.
BY_CPU_TIME: Final = -signal.SIGPROF
BY_ELAPSED_TIME: Final = -signal.SIGALRM
LOG: Final = "log.txt"
_SUBREAPER: Final = 36


def prepare() -> None:
    """Make the descendants of killed forks children of this process, and end them with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _stop)


def run(function: Callable[[], int]) -> int:
    """Run a function in a fork, and return the exit status: its result, or minus the number of a signal."""
    child = os.fork()
    if not child:
        _run_and_exit(function)
    _, waited = os.waitpid(child, 0)
    _kill_children()
    return os.waitstatus_to_exitcode(waited)


def start_timers(cpu: float = CPU_SECONDS, elapsed: float = ELAPSED_SECONDS) -> None:
    """Kill this process after these seconds, unless the timers are started again."""
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, elapsed)


def limit_test(seconds: float, patience: float) -> None:
    """Kill this process if a test needs much more time than without a mutant; patience is a factor of elapsed time."""
    start_timers(_CPU + _FACTOR * seconds, (_ELAPSED + _FACTOR * seconds) * patience)


def redirect() -> None:
    """Write standard output and error of this process to the log, and read nothing."""
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _run_and_exit(function: Callable[[], int]) -> None:
    status = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        redirect()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        start_timers()
        status = function()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _stop(*_: Any) -> None:
    _kill_children()
    os._exit(0)


def _kill_children() -> None:
    """Kill all processes that tests have started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.exists() and (left := children.read_text().split()):
        for child in map(int, left):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
