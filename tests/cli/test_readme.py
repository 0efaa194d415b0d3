"""The README's commands run in a shell, in order, behind the Python in front of them, and print what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ce_nats.testing import NatsServer

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON, CONSOLE = (re.compile(rf"^```{kind}\n(.*?)^```", re.DOTALL | re.MULTILINE) for kind in ("python", "console"))
SECTION = README.partition("\n## Command line\n")[2].partition("\n## ")[0]
PROGRAM = PYTHON.findall(README.partition("\n## Spark\n")[0])
BLOCKS = CONSOLE.findall(SECTION)
# A command, and what it prints.
STEPS = [
    tuple(step.partition("\n")[::2]) for block in BLOCKS for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
]


@pytest.mark.skipif(os.name != "posix", reason="the examples are for a POSIX shell")
def test_the_readme_tells_what_commands_print(tmp_path):
    assert sum(command.startswith("ce-nats ") for command, _ in STEPS) >= 8
    program = tmp_path / "bin" / "ce-nats"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ce_nats "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    with NatsServer(jetstream=True) as server:
        python = "\n".join(PROGRAM).replace("nats://127.0.0.1:4222", server.url)
        subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True, timeout=120, stdout=subprocess.DEVNULL)
        environment = {**os.environ, "PATH": path, "NATS_URL": server.url, "COLUMNS": "80", "PYTHONUTF8": "1"}
        for command, expected in STEPS:
            done = subprocess.run(
                ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=False
            )
            printed = (done.stdout + done.stderr).decode().replace("\r\n", "\n")
            assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines(), command
