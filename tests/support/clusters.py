"""Connections to clusters of servers, and streams on them."""

import asyncio
from contextlib import asynccontextmanager

import nats
import pytest
from nats.errors import NoRespondersError
from nats.js.errors import BadRequestError

from tests.support.broker import ignore
from tests.support.waiting import SECONDS


@asynccontextmanager
async def connected(*servers):
    options = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1, "error_cb": ignore}
    nc = await nats.connect([server.url for server in servers], dont_randomize=True, **options)
    try:
        yield nc
    finally:
        await nc.close()


async def add_stream(js, name, **options):
    """Add a stream with three replicas; retry while the others consider a restarted server offline."""
    for _ in range(10 * SECONDS):
        try:
            await js.add_stream(name=name, num_replicas=3, **options)
        except BadRequestError as error:
            if "peer offline" not in (error.description or ""):
                raise
            await asyncio.sleep(0.1)
        else:
            return
    pytest.fail("the cluster must accept a stream")


async def until_replicated(js, name):
    """Wait until all replicas of a stream are current."""
    for _ in range(20 * SECONDS):
        if all(replica.current for replica in (await js.stream_info(name)).cluster.replicas):
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"all replicas of stream {name} must be current")


async def change_leader(nc, stream):
    """Let the leader of a stream step down; requests that the servers do not answer during an election are repeated."""
    for _ in range(SECONDS):
        try:
            await nc.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", timeout=2)
        except (NoRespondersError, asyncio.TimeoutError):
            await asyncio.sleep(0.1)
        else:
            return
    pytest.fail(f"the leader of stream {stream} must step down")
