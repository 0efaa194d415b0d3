"""Every Python snippet of the README runs, in order, against a real server and a real Spark."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from ce_nats.testing import NatsServer
from tests.interop.peers import Missing, streaming_server
from tests.streaming import StreamingServer

README = Path(__file__).parents[1] / "README.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
# One of them takes a streaming server.
STREAMING = [snippet for snippet in SNIPPETS if "ce_nats.aio import stan" in snippet]
DEFAULT_URL = "nats://127.0.0.1:4222"


def test_the_readme_has_snippets() -> None:
    assert len(SNIPPETS) >= 4


def test_snippets_run_in_order_and_again(tmp_path: Path) -> None:
    """On a fresh server and with nothing else, as a reader has it. Spark's are run once, because they take a minute."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    with NatsServer(jetstream=True) as server:
        assert any(DEFAULT_URL in snippet for snippet in SNIPPETS)
        snippets = [snippet.replace(DEFAULT_URL, server.url) for snippet in SNIPPETS if snippet not in STREAMING]
        spark = next(number for number, snippet in enumerate(snippets) if "pyspark" in snippet)
        program = tmp_path / "readme.py"
        for part, seconds in ((snippets, 900), (snippets[:spark], 120)):
            program.write_text("\n".join(part), encoding="utf-8")
            run = subprocess.run(
                [sys.executable, program],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=seconds,
                env=environment,
            )
            assert run.returncode == 0, run.stderr[-4000:]
            assert "com.example.paid {'total': 12.5}" in run.stdout
            assert "charged 12.5" in run.stdout
            if part is snippets:
                assert re.search(r"\|com\.example\.paid\| +1\|", run.stdout), run.stdout
                assert re.search(r"\|not-a-cloudevent\| +1\|", run.stdout), run.stdout
        asyncio.run(_check_server(server.url))


def test_snippet_for_nats_streaming(tmp_path: Path) -> None:
    try:
        executable = streaming_server()
    except Missing as missing:
        pytest.skip(f"no nats-streaming-server: {missing}")
    [snippet] = STREAMING
    with StreamingServer(executable) as server:
        program = tmp_path / "readme.py"
        script = [SNIPPETS[0], "import asyncio, nats", snippet.replace(DEFAULT_URL, server.url)]
        program.write_text("\n".join(script), encoding="utf-8")
        run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr[-4000:]
        assert run.stdout == "1 {'total': 12.5}\n"


async def _check_server(url: str) -> None:
    """No consumer is left, and nothing was written into the stream that was read."""
    async with await nats.connect(url) as nc:
        orders = await nc.jetstream().stream_info("ORDERS")
        archive = await nc.jetstream().stream_info("ARCHIVE")
    assert orders.state.consumer_count == 0
    # An event and what is none; and the second time the event that nobody kept the first time.
    assert (orders.state.messages, archive.state.messages) == (3, 1)
