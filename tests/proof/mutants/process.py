"""A process that answers lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import forks
from .errors import ProofError


class Process:
    """
    A Python program that runs tests in a copy of the project.

    Args:
        folder: The copy, its working directory.
        arguments: Module and arguments.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / forks.LOG
        environment = {**os.environ, "PYTHONPATH": str(folder), "HYPOTHESIS_PROFILE": "mutants"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C ends it through the context manager
        )

    def send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """
        Return the next answer.

        Raises:
            ProofError: The process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ProofError(f"the process of tests must answer, it has ended\n{self.log()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.send(request)
        return self.answer()

    def log(self) -> str:
        """Return the end of the output of tests."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-3000:] if self._log.exists() else ""

    def close(self) -> None:
        """End the process; may be called again."""
        self._process.terminate()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
