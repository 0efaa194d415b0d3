"""The servers of the Compose file, run without Docker, with its arguments, on this machine."""

import asyncio
import json
import re
import subprocess
import urllib.request
from pathlib import Path

import nats
import pytest
import yaml

from ce_nats.aio import jetstream
from ce_nats.testing._server import _find_executable, _free_ports

FILE = Path(__file__).parents[2] / "examples" / "compose.yaml"


@pytest.fixture
def services():
    return yaml.safe_load(FILE.read_text())["services"]


@pytest.fixture
def cluster(services, tmp_path):
    """Free ports of this machine, by service and by port in its container."""
    names = list(services)
    inside = [(name, port) for name in names for port in (4222, 6222, 8222)]
    ports = dict(zip(inside, _free_ports(len(inside))))
    processes = []
    for name, service in services.items():
        text = "\n".join([*service["command"], "--addr=127.0.0.1", f"--port={ports[name, 4222]}"])
        text = text.replace("/data", str(tmp_path / name)).replace("0.0.0.0:6222", f"127.0.0.1:{ports[name, 6222]}")
        text = text.replace("--http_port=8222", f"--http_port={ports[name, 8222]}")
        text = re.sub(r"(nats-\d):6222", lambda match: f"127.0.0.1:{ports[match[1], 6222]}", text)
        processes.append(subprocess.Popen([_find_executable(), *text.split("\n")], stderr=subprocess.DEVNULL))
    yield ports
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.faults
async def test_stream_with_three_replicas(services, cluster, make_event):
    for name in services:
        await _healthy(cluster[name, 8222])
    async with await nats.connect(f"nats://127.0.0.1:{cluster['nats-2', 4222]}") as nc:
        js = nc.jetstream(timeout=60)
        await js.add_stream(name="ORDERS", subjects=["orders.>"], num_replicas=3)
        assert (await jetstream.publish(js, make_event(), "orders.new", timeout=60)).seq == 1
        replicas = (await js.stream_info("ORDERS")).cluster
        assert {replicas.leader, *(peer.name for peer in replicas.replicas)} == set(services)


async def _healthy(port):
    """Wait until a server is healthy, as the health check of the file does."""
    for _ in range(600):
        try:
            with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/healthz") as answer:
                if json.load(answer)["status"] == "ok":
                    return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    pytest.fail("the server must become healthy")


def test_ports_and_volumes(services):
    """Services have different ports on this machine, and different volumes."""
    assert len({service["ports"][0] for service in services.values()}) == len(services) == 3
    assert [service["volumes"] for service in services.values()] == [[f"{name}:/data"] for name in services]
    assert all("127.0.0.1:8222/healthz" in service["healthcheck"]["test"][-1] for service in services.values())
