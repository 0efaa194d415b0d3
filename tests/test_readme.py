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

# The README has the reader's stream in place, and publishes to the subject once.
FILL_STREAM = """
async def _fill():
    nc = await nats.connect({url!r})
    js = nc.jetstream()
    # A slow machine takes longer than the two minutes of the default from here to the sink.
    await js.add_stream(name="ORDERS", subjects=["orders.>"], duplicate_window=3600)
    await aio.jetstream.publish(js, event, "orders.paid")
    await js.publish("orders.bad", b"no event")
    await nc.close()
asyncio.run(_fill())
"""


def test_the_readme_has_snippets() -> None:
    assert len(SNIPPETS) >= 4


@pytest.mark.filterwarnings("default")
def test_snippets_run_in_order(tmp_path: Path) -> None:
    with NatsServer(jetstream=True) as server:
        assert any(DEFAULT_URL in snippet for snippet in SNIPPETS)
        script = []
        for snippet in SNIPPETS:
            if snippet in STREAMING:
                continue
            if "from pyspark" in snippet:
                script.append(FILL_STREAM.format(url=server.url))
            script.append(snippet.replace(DEFAULT_URL, server.url))
        program = tmp_path / "readme.py"
        program.write_text("\n".join(script), encoding="utf-8")
        run = subprocess.run(
            [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=240, env=_quiet()
        )
        assert run.returncode == 0, run.stderr[-4000:]
        assert "com.example.paid {'total': 12.5}" in run.stdout
        assert "charged 12.5" in run.stdout
        assert re.search(r"\|com\.example\.paid\| +1\|", run.stdout), run.stdout
        assert re.search(r"\|not-a-cloudevent\| +1\|", run.stdout), run.stdout
        asyncio.run(_no_consumer_is_left(server.url))


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


async def _no_consumer_is_left(url: str) -> None:
    nc = await nats.connect(url)
    info = await nc.jetstream().stream_info("ORDERS")
    await nc.close()
    assert info.state.consumer_count == 0


def _quiet() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable}
