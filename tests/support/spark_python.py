"""
A Python for the workers of Spark that starts fast: its processes are forks of one that has imported what they need.

Spark starts a Python for each streaming query that reads from NATS, for each step of planning a source or sink, and for
the daemon of its workers. Each would import pyspark, pyarrow, pandas and ce_nats again: more than a second of CPU time,
which is most of the time of a short query, and on a busy machine more than the ten seconds that Spark waits for it.
Like ``spark_daemon``, it imports packages that start threads before a fork.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MODULES = (
    *("pandas", "pyarrow.parquet", "nats", "pyspark.worker", "pyspark.sql.datasource_internal"),
    *(
        f"pyspark.sql.worker.{name}"
        for name in ("lookup_data_sources", "create_data_source", "plan_data_source_read", "write_into_data_source")
    ),
    *("pyspark.sql.worker.commit_data_source_write", "pyspark.sql.worker.python_streaming_sink_runner"),
    *("ce_nats.spark.connector._source", "ce_nats.spark.connector._blocking", "ce_nats.aio.reading._range_reader"),
    "ce_nats.spark.columns._python_engine",
)
# Needs no packages, so it starts in few milliseconds. Python runs all other arguments than modules.
CLIENT = """
import json, os, socket, sys
address, python, *arguments = sys.argv[1:]
if arguments[:1] != ["-m"]:
    os.execv(python, [python, *arguments])
with socket.socket(socket.AF_UNIX) as server:
    server.connect(address)
    socket.send_fds(server, [b"-"], [0, 1, 2])
    server.sendall(json.dumps([arguments[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    os._exit((server.recv(1) or b"\\1")[0])
"""


@contextmanager
def fast_python(folder: Path) -> Iterator[str]:
    """Yield the path of a program to set as PYSPARK_PYTHON."""
    address, client, program = folder / "socket", folder / "client.py", folder / "python"
    client.write_text(CLIENT)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{client}" "{address}" "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    variables = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}  # as Spark sets them for its processes
    command = [sys.executable, "-m", "tests.support.spark_python", str(address)]
    root = Path(__file__).parents[2]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=root, env=variables, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield str(program)
        server.communicate()  # the server ends at the end of its input


def serve(listener: socket.socket) -> str:
    """Fork a process for each client, and return in that process, with the name of the module to run."""
    processes: dict[socket.socket, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(0.2):
                if key.fileobj is sys.stdin:
                    sys.exit()
                elif key.fileobj is listener:
                    client, _ = listener.accept()
                    files = socket.recv_fds(client, 1, 3)[1]
                    arguments, folder, variables = json.loads(client.makefile().readline())
                    processes[client] = os.fork()
                    if not processes[client]:
                        for one in (listener, *processes):
                            one.close()
                        for number, file in enumerate(files):
                            os.dup2(file, number)
                        os.chdir(folder)
                        os.environ.clear()
                        os.environ.update(variables)
                        sys.path[:0] = [folder, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
                        sys.argv[1:] = arguments[1:]
                        return str(arguments[0])
                    selector.register(client, selectors.EVENT_READ)
                    for file in files:
                        os.close(file)
                else:  # Spark has ended the client
                    selector.unregister(key.fileobj)
                    os.kill(processes[key.fileobj], signal.SIGTERM)  # type: ignore[index]
            for client, process in [*processes.items()]:
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    with suppress(KeyError):
                        selector.unregister(client)
                    with suppress(OSError):
                        client.send(bytes([os.waitstatus_to_exitcode(status) & 255]))
                    del processes[client]
                    client.close()


if __name__ == "__main__":
    for name in MODULES:
        with suppress(ImportError):  # some do not exist in older versions of pyspark
            importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print("ready", flush=True)
        module = serve(listener)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
