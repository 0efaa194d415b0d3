"""The service of the guide: probes, orderly stops, kills, an outage of its server, and its log."""

import json
import signal
import sys
from collections import Counter

import aiohttp
import pytest

from ce_nats import aio
from tests.support.streaming import free_port
from tests.support.waiting import until

SCRIPT = "examples/service.py"


class Service:
    """A running service."""

    def __init__(self, start):
        self._port = free_port()
        self.program = start(SCRIPT, python=sys.executable, variables={"PORT": str(self._port)})

    async def status(self, probe):
        """Return the status of a probe; None without an answer."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self._port}/{probe}") as got:
                return got.status
        except aiohttp.ClientError:
            assert self.program.process.poll() is None, self.program.log
            return None

    async def until_ready(self):
        async def is_ready():
            return await self.status("ready") == 200

        await until(is_ready)

    @property
    def lines(self):
        """Lines of the log, each of which is an object, unless the program was killed while it wrote one."""
        return [json.loads(line) for line in self.program.log.splitlines() if line.endswith("}")]

    @property
    def delivered(self):
        return [line["id"] for line in self.lines if line["message"] == "delivered"]


@pytest.fixture
async def serve(start, js):
    """Return a function that starts the service, and waits until it is ready."""
    await js.add_stream(name="SHIPMENTS", subjects=["shipments.>"])
    await js.add_stream(name="DEAD_SHIPMENTS", subjects=["dead.shipments"])

    async def serve():
        service = Service(start)
        await service.until_ready()
        return service

    return serve


@pytest.fixture
def publish(js, make_event):
    """Publish events whose handlers take some time; return their ids."""

    async def publish(numbers, seconds):
        async with aio.Publisher(js) as publisher:
            for number in numbers:
                await publisher.publish(make_event(number, {"seconds": seconds}), "shipments.new")
        return [f"event {number}" for number in numbers]

    return publish


@pytest.fixture
def is_settled(js):
    async def is_settled():
        info = await js.consumer_info("SHIPMENTS", "delivery")
        return info.num_pending == info.num_ack_pending == 0

    return is_settled


async def test_orderly_restarts(serve, publish, is_settled):
    """As in a rolling update: running handlers finish, and the next process continues with the other events."""
    ids = await publish(range(40), 0.2)
    delivered = []
    for number in (signal.SIGTERM, signal.SIGINT):
        service = await serve()
        await until(lambda service=service: service.delivered)
        service.program.process.send_signal(number)
        await service.program.until_exit()
        assert service.lines[-1]["message"] == "stopped"
        delivered += service.delivered
    service = await serve()
    await until(is_settled)
    assert await service.status("live") == 200
    service.program.process.send_signal(signal.SIGTERM)
    await service.program.until_exit()
    assert Counter(delivered + service.delivered) == Counter(ids)


async def test_log_has_the_fields_of_an_event(serve, publish, is_settled, js):
    await publish([1], "soon")
    service = await serve()
    await until(lambda: [line for line in service.lines if line["level"] == "ERROR"])
    (line,) = [line for line in service.lines if line["level"] == "ERROR"]
    assert (line["cloudevents.event_id"], line["ce_nats.stream"]) == ("event 1", "SHIPMENTS")
    assert line["ce_nats.sequence"] == 1
    assert "TypeError" in line["exception"]


@pytest.mark.faults
async def test_kills_and_an_outage_of_the_server(serve, publish, is_settled, server):
    """No event is lost, and the service is not ready while it has no connection."""
    ids = await publish(range(200), 0.05)
    delivered = set()
    for _ in range(2):
        service = await serve()
        await until(lambda service=service: len(service.delivered) > 20)
        service.program.kill()
        delivered.update(service.delivered)
    service = await serve()
    server.kill()

    async def is_away():
        return await service.status("ready") == 503

    await until(is_away)
    assert await service.status("live") == 200
    server.restart()
    await service.until_ready()
    await until(is_settled)
    assert delivered | {*service.delivered} == {*ids}


async def test_without_a_server_it_ends_with_an_error(start, server):
    server.stop()
    program = start(SCRIPT, python=sys.executable, variables={"PORT": str(free_port())})
    assert '"level": "CRITICAL"' in await program.until_exit(1)
