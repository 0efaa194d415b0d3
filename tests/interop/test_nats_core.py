"""Messages of nats-core and nats-jetstream, the successors of nats-py, with their own classes in a Python 3.13."""

import json
import os
from pathlib import Path

import nats
import pytest

from tests.support.caching import available, run
from tests.support.programs import nats_core_python

ROOT = Path(__file__).parents[2]
THREE = range(3)  # received by a subscription, fetched by a consumer, read from the stream


@pytest.fixture(scope="module")
def python():
    return available(nats_core_python, "nats-core")


@pytest.fixture
async def results(server, python):
    async with await nats.connect(server.url) as nc:
        await nc.jetstream().add_stream(name="REPEATS", subjects=["repeats.>"])
        program = ROOT / "tests/interop/python/nats_core.py"
        done = run([str(python), str(program)], ROOT, NATS_URL=server.url, PYTHONPATH=str(ROOT))
        await nc.jetstream().delete_stream("REPEATS")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_events_and_repeated_headers_in_both_directions(results):
    event, steps = ["1", "päid", {"total": 17}], ["one", "two", "three"]
    for name in ("asdict", "their class"):
        assert results[name] == {"outcomes": [event for _ in THREE], "steps": [steps for _ in THREE]}
    assert results["structured"] == {"outcomes": [event for _ in THREE], "steps": [[] for _ in THREE]}
    assert results["duplicated"]["outcomes"] == ["duplicate-attribute" for _ in THREE]


async def test_example(server, python):
    async with await nats.connect(server.url) as nc:
        await nc.jetstream().add_stream(name="PARCELS", subjects=["parcels.>"])
        done = run([str(python), "examples/nats_core.py"], ROOT, NATS_URL=server.url, PYTHONPATH=str(ROOT))
        await nc.jetstream().delete_stream("PARCELS")
    assert done.stdout == "parcels.packed com.example.packed {'kg': 2.5}\nparcels.bad not-a-cloudevent\n", done.stderr


def test_both_clients_are_installed(python):
    """nats-core and nats-jetstream add modules to the package ``nats`` of nats-py."""
    code = "import nats, nats.js, nats.client, nats.jetstream; print(nats.connect is nats.client.connect)"
    assert run([str(python), "-c", code], ROOT, **os.environ).stdout == "False\n"
