"""Test mutants of the Java decoder in a Java process, which needs no Spark session; ``Runner.java`` is its program."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from pathlib import Path, PurePath
from typing import Final

import pyspark

from tests.spark.columns.test_jvm_engine import REPEATED

from . import java_cases
from .errors import ProofError
from .mutate import Mutant

FOLDER: Final = "ce_nats/spark/jvm"
SURVIVED: Final = "survived"
INVALID: Final = "invalid"
TIMEOUT: Final = "timeout"
# CPU time of a mutant, which decodes in two or three seconds.
SECONDS: Final = 15
_PROGRAM: Final = "tests/spark/columns/Repeated.java"
_OPTIONS: Final = ("-Xmx1500m", "-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class JavaRunner:
    """
    A Java process that compiles mutants, and compares the columns that they decode with those of the codec.

    Args:
        root: Root of the project, with the sources.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = tempfile.TemporaryDirectory(prefix="ce-nats-mutants-")
        folder = Path(self._folder.name)
        self._groups = java_cases.write(folder / "rows")
        (folder / "output").write_text("\n".join(REPEATED), encoding="utf-8")
        home = os.environ.get("JAVA_HOME")
        jars = str(Path(pyspark.__file__).parent / "jars" / "*")
        program = [Path(home) / "bin" / "java" if home else "java", *_OPTIONS, "-cp", jars]
        files = [Path(__file__).with_name("Runner.java"), root / FOLDER, root / _PROGRAM]
        self._command = [*program, *files, folder / "output", folder / "rows", str(SECONDS)]
        self._process: subprocess.Popen[bytes] | None = None

    def outcome(self, mutant: Mutant) -> str:
        """
        Return ``SURVIVED``, ``INVALID`` if the mutant does not compile, ``TIMEOUT``, or a difference.

        Raises:
            ProofError: The decoder without the mutant differs from the codec, or the Java process has ended.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            if (found := self._answer("", "")) != SURVIVED:
                raise ProofError(f"the decoder must return what the codec does, got {found}")
        return self._answer(PurePath(mutant.path).name, mutant.source)

    def _answer(self, name: str, source: str) -> str:
        """Return the outcome of a file with another text; no name is no such file."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        for text in (name, source):
            process.stdin.write(struct.pack(">i", len(text.encode())) + text.encode())
        process.stdin.flush()
        size = process.stdout.read(4)
        if not size:
            raise ProofError("the Java process must answer, it has ended")
        found = process.stdout.read(int.from_bytes(size, "big")).decode()
        if found == TIMEOUT or "OutOfMemory" in found:
            self._stop()  # a loop does not end otherwise, and memory may remain occupied
        return self._described(found)

    def close(self) -> None:
        """End the process; may be called again."""
        self._stop()
        self._folder.cleanup()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _described(self, found: str) -> str:
        """Return a difference with the types of its rows, whose number it has."""
        words = found.split()
        if words[0] != "group":
            return found
        group = self._groups[int(words[1])]
        return f"{group.function}, {group.kind}, {group.types}: {' '.join(words[2:])}"
