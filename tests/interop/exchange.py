"""Exchange all samples over one route, through a real server."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import nats
from nats.aio.client import Client

from ce_nats import aio
from ce_nats import stan as aio_stan
from tests.support.streaming import CLUSTER

from .routes import Route
from .samples import SAMPLES, Differences, own_differences, peer_differences, request_line

# Timeout of an exchange in seconds, long enough for a busy machine; the peers have the same timeout.
TIMEOUT = 60.0


async def exchange(route: Route, command: Sequence[str], url: str) -> dict[str, Differences]:
    """
    Exchange all samples over a route, and return the differences by sample.

    Args:
        route: The route.
        command: The command of the peer.
        url: URL of a server with JetStream, and for ``stan`` with a streaming server.
    """
    connection = await nats.connect(url)
    subject = f"interop.{uuid4().hex}"
    stream = CLUSTER if route.protocol == "stan" else subject.replace(".", "_")
    if route.protocol == "jetstream":
        await connection.jetstream().add_stream(name=stream, subjects=[subject], storage="memory")
    try:
        if route.sends:
            found = await asyncio.wait_for(_receive(route, command, connection, url, stream, subject), TIMEOUT)
        else:
            found = await asyncio.wait_for(_send(route, command, connection, url, stream, subject), TIMEOUT)
    finally:
        if route.protocol == "jetstream":
            await connection.jetstream().delete_stream(stream)
        await connection.close()
    return {name: differences for name, differences in zip(SAMPLES, found) if differences}


async def _receive(
    route: Route, command: Sequence[str], connection: Client, url: str, stream: str, subject: str
) -> list[Differences]:
    received: list[Any]
    if route.protocol == "stan":
        await _run_sender(route, command, url, stream, subject)
        received = await _read_channel(connection, subject)
    else:
        if route.protocol == "jetstream":
            await _run_sender(route, command, url, stream, subject)
            subscription = await connection.jetstream().subscribe(subject, ordered_consumer=True)
        else:
            subscription = await connection.subscribe(subject)
            await aio.flush(connection)
            await _run_sender(route, command, url, stream, subject)
        async with aio.events(subscription, dialect=route.dialect, parse_data=False) as messages:
            received = [await messages.__anext__() for _ in SAMPLES]
    return [
        own_differences(sample, None if item.error else item.event, item.error)
        for sample, item in zip(SAMPLES.values(), received)
    ]


async def _read_channel(connection: Client, channel: str) -> list[Any]:
    async with (
        await aio_stan.connect(connection, CLUSTER, "ce_nats") as streaming,
        await streaming.subscribe(channel, start=aio_stan.Start.first(), parse_data=False) as subscription,
    ):
        received = [await subscription.__anext__() for _ in SAMPLES]
        for item in received:
            await item.ack()
    return received


async def _run_sender(route: Route, command: Sequence[str], url: str, stream: str, subject: str) -> None:
    arguments = ("send", route.protocol, route.mode.value, url, stream, subject)
    process = await asyncio.create_subprocess_exec(*command, *arguments, stdin=PIPE, stderr=PIPE)
    _, errors = await process.communicate(b"".join(map(request_line, SAMPLES.values())))
    assert process.returncode == 0, errors.decode()


async def _send(
    route: Route, command: Sequence[str], connection: Client, url: str, stream: str, subject: str
) -> list[Differences]:
    arguments = ("receive", route.protocol, str(len(SAMPLES)), url, stream, subject)
    # Streams and channels store the messages, so that the peer can subscribe later.
    if route.protocol == "stan":
        async with await aio_stan.connect(connection, CLUSTER, "ce_nats") as streaming:
            for sample in SAMPLES.values():
                await streaming.publish_async(sample, subject)
        lines = await run_receiver([*command, *arguments])
    elif route.protocol == "jetstream":
        js = connection.jetstream()
        for number, sample in enumerate(SAMPLES.values()):
            await aio.jetstream.publish(js, sample, subject, mode=route.mode, headers={"Nats-Msg-Id": str(number)})
        lines = await run_receiver([*command, *arguments])
    else:

        async def publish() -> None:
            for sample in SAMPLES.values():
                await aio.publish(connection, sample, subject, mode=route.mode, format=route.format)
            await aio.flush(connection)

        lines = await run_receiver([*command, *arguments], publish)
    return [peer_differences(sample, line) for sample, line in zip(SAMPLES.values(), lines, strict=True)]


async def run_receiver(command: Sequence[str], when_ready: Callable[[], Awaitable[None]] | None = None) -> list[bytes]:
    """Return the peer's lines, one for each message; ``when_ready`` is called when the peer has subscribed."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    try:
        first = await process.stdout.readline()
        if first and when_ready is not None:
            await when_ready()
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    # With JetStream, messages may arrive before the peer prints that it has subscribed.
    return [line for line in (first + output).splitlines() if "ready" not in json.loads(line)]
