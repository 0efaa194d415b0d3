"""
A program that starts fast what ``python`` starts: in a fork of a process that has imported what most programs need.

Otherwise each process imports it again, which takes a second of CPU time. Arguments, variables, directory, standard
streams, signals and exit status are those of a new process. Options of Python, and variables that it reads when it
starts, have no effect.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
MODULES = (
    *("_ce_nats_command", "ce_nats.arrow", "ce_nats.capture", "ce_nats.cli", "ce_nats.stan", "ce_nats.sync"),
    *("jsonschema", "pyarrow.parquet", "pydantic.main"),
)
# Imported by the processes that Spark starts: for each streaming query of a source, for each step of planning a source
# or a sink, and for the daemon of its workers. On a busy machine that would take longer than Spark waits.
SPARK = (
    *("pandas", "pyarrow.parquet", "nats", "pyspark.worker", "pyspark.sql.datasource_internal"),
    *(
        f"pyspark.sql.worker.{name}"
        for name in ("lookup_data_sources", "create_data_source", "plan_data_source_read", "write_into_data_source")
    ),
    *("pyspark.sql.worker.commit_data_source_write", "pyspark.sql.worker.python_streaming_sink_runner"),
    *("ce_nats.spark.connector._source", "ce_nats.spark.connector._blocking", "ce_nats.aio.reading._range_reader"),
    "ce_nats.spark.columns._python_engine",
)
SERVER = "from tests.support import forks; forks.serve()()"
# The program. It starts in 30 ms, passes on its streams and signals, and ends as the fork does.
CLIENT = """#!{python} -SE
import json, os, signal, socket, sys
if sys.argv[1].startswith("-") and sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
signals = signal.SIGINT, signal.SIGTERM
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [b"%16d" % len(request)], [0, 1, 2])
connection.sendall(request)
fork = int(connection.recv(16, socket.MSG_WAITALL))
for number in signals:
    signal.signal(number, lambda number, _: os.kill(fork, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
status = int(connection.recv(16, socket.MSG_WAITALL))
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@contextmanager
def forking(*modules: str) -> Iterator[str]:
    """
    Run the process that is forked.

    Args:
        modules: Further modules that it imports.

    Yields:
        Path of the program. Its arguments are ``-m`` and a module, or the path of a script, and the arguments of these.
    """
    if not hasattr(os, "fork"):
        yield sys.executable
        return
    with TemporaryDirectory() as directory:
        client, path = Path(directory, "python"), Path(directory, "socket")
        command = [sys.executable, "-c", SERVER, str(path), *MODULES, *modules]
        variables = {**os.environ, "PYTHONHASHSEED": "0"}  # as Spark sets it
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, env=variables, stdin=pipe, stdout=pipe) as process:
            assert process.stdout.readline() == b"listening\n"
            client.write_text(CLIENT.format(python=sys.executable, path=str(path)), "utf-8")
            client.chmod(0o755)
            yield str(client)
            process.stdin.close()  # ends it


def serve() -> Callable[[], object]:
    """Fork for each request. Return in each fork, with the function that it has to call."""
    path, *modules = sys.argv[1:]
    for name in modules:
        with suppress(ImportError):  # older versions of packages lack some
            import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("listening", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            with listener.accept()[0] as connection:
                size, streams, _, _ = socket.recv_fds(connection, 16, 3)
                request = connection.recv(int(size), socket.MSG_WAITALL)
                if os.fork() == 0:
                    listener.close()
                    return _fork(connection, request, streams)
                for stream in streams:
                    os.close(stream)
    return lambda: None


def _fork(connection: socket.socket, request: bytes, streams: list[int]) -> Callable[[], object]:
    """Fork again, to report the end of the fork to the client, and to kill it if the client ends."""

    def report(*_: object) -> None:
        connection.send(b"%16d" % os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, report)
    if fork := os.fork():
        for stream in streams:
            os.close(stream)
        connection.send(b"%16d" % fork)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        connection.recv(1)  # the end of the client
        os.kill(fork, signal.SIGKILL)
        os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return _program(*json.loads(request))


def _program(arguments: list[str], directory: str, variables: dict[str, str]) -> Callable[[], object]:
    """Set what a new process has, and return the function that runs the program."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1 if "PYTHONUNBUFFERED" in variables else -1, encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    sys.path[1:1] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        return lambda: runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(arguments[0])
    return lambda: runpy.run_path(arguments[0], run_name="__main__")
