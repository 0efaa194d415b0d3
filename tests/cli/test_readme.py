"""The README's commands run in a shell, in order, against a real server, and print what it says."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import nats
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Command line\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```console\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
# A command, and what it prints.
STEPS = [
    tuple(step.partition("\n")[::2]) for block in BLOCKS for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
]


@pytest.mark.skipif(os.name != "posix", reason="the examples are for a POSIX shell")
def test_the_readme_tells_what_commands_print(server, tmp_path):
    assert sum(command.startswith("ce-nats ") for command, _ in STEPS) >= 8
    asyncio.run(make_streams(server.url))
    program = tmp_path / "bin" / "ce-nats"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ce_nats "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NATS_URL": server.url, "COLUMNS": "80", "PYTHONUTF8": "1"}
    for command, expected in STEPS:
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False
        )
        printed = (done.stdout + done.stderr).decode().replace("\r\n", "\n")
        assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines(), command


async def make_streams(url):
    async with await nats.connect(url) as nc:
        await nc.jetstream().add_stream(name="SHOP", subjects=["shop.>"], storage="memory")
        await nc.jetstream().add_stream(name="DEAD", subjects=["dead.>"], storage="memory")
