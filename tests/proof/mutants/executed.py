"""Record which code of the package runs, in all threads, and whether other processes may run some of it."""

from __future__ import annotations

import cProfile
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, Final

from .codes import Key, key, relative

# A process that runs one of these runs no Python code.
_OTHERS: Final = ("nats-server", "java")
_FORKS: Final = ("os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn", "os.system")


class Recorder:
    """Records code from ``start()`` until ``stop()``, by a profiler in C, which does not slow tests down much."""

    def __init__(self) -> None:
        self._root = str(Path.cwd())
        self._profiles: list[cProfile.Profile] = []
        self._is_active = False
        self.starts_processes = False
        sys.addaudithook(self._audit)

    def start(self) -> None:
        self._profiles.clear()
        self.starts_processes = False
        self._is_active = True
        threading.setprofile(self._start_in_thread)
        self._start_profile()

    def stop(self) -> set[Key]:
        """Return the code that has run."""
        threading.setprofile(None)  # type: ignore[arg-type]
        self._profiles[0].disable()
        self._is_active = False
        codes = {id(one.code): one.code for profile in self._profiles for one in profile.getstats()}
        found = [code for code in codes.values() if isinstance(code, CodeType)]
        return {key(path, code) for code in found if (path := relative(code, self._root)) is not None}

    def _start_profile(self) -> None:
        profile = cProfile.Profile(subcalls=False, builtins=False)
        profile.enable()
        self._profiles.append(profile)

    def _start_in_thread(self, *_: Any) -> None:
        sys.setprofile(None)
        with suppress(ValueError):  # from Python 3.12, a profiler is for all threads
            self._start_profile()

    def _audit(self, event: str, arguments: Sequence[Any]) -> None:
        if not self._is_active:
            return
        if event == "subprocess.Popen":
            self.starts_processes |= not _program(arguments).startswith(_OTHERS)
        elif event in _FORKS:
            self.starts_processes = True


def _program(arguments: Sequence[Any]) -> str:
    executable, words, *_ = arguments
    first = words if isinstance(words, (str, bytes)) or not words else words[0]
    return Path(str(executable or first)).name
