"""A cluster whose servers reach each other only through proxies, whose network can be interrupted."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ce_nats.testing import NatsCluster, NatsServer
from ce_nats.testing._server import _HOST, _free_ports, _member

_CHUNK = 65536
# Servers send each other the addresses of their routes. This one is refused, so that no route avoids the proxies.
_NOWHERE = f"{_HOST}:1"


class Links:
    """
    TCP proxies for the routes of each server to each other one, in a thread.

    Args:
        routes: Port on which each server accepts routes.

    Attributes:
        ports: Port of the proxy of a pair of servers: the one that connects, and the one that accepts.
    """

    def __init__(self, routes: list[int]) -> None:
        pairs = [(one, other) for one in range(len(routes)) for other in range(len(routes)) if one != other]
        self.ports = dict(zip(pairs, _free_ports(len(pairs))))
        self._routes = routes
        self._cut: set[int] = set()
        self._writers: dict[asyncio.StreamWriter, tuple[int, int]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    @contextmanager
    def stalled(self, server: int) -> Iterator[None]:
        """Hold back all bytes between a server and the others, with all connections open, and deliver them late."""
        self._loop.call_soon_threadsafe(self._open[server].clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._open[server].set)

    @contextmanager
    def cut(self, server: int) -> Iterator[None]:
        """Close all connections between a server and the others, and refuse new ones."""
        asyncio.run_coroutine_threadsafe(self._close(server), self._loop).result()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._cut.discard, server)

    async def _run(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._open = [asyncio.Event() for _ in self._routes]
        for is_open in self._open:
            is_open.set()
        proxies = [await asyncio.start_server(self._accept(pair), _HOST, port) for pair, port in self.ports.items()]
        self._started.set()
        await self._stopped.wait()
        for proxy in proxies:
            proxy.close()
        for is_open in self._open:
            is_open.set()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, pair: tuple[int, int]):
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            with suppress(OSError):
                if self._cut.isdisjoint(pair):
                    upstream = await asyncio.open_connection(_HOST, self._routes[pair[1]])
                    await asyncio.gather(
                        self._forward(pair, reader, upstream[1]), self._forward(pair, upstream[0], writer)
                    )
            writer.close()

        return serve

    async def _forward(self, pair: tuple[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = pair
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                for server in pair:
                    await self._open[server].wait()
                writer.write(chunk)
                await writer.drain()
        del self._writers[writer]
        writer.close()

    async def _close(self, server: int) -> None:
        self._cut.add(server)
        for writer, pair in self._writers.items():
            if server in pair:
                writer.transport.abort()


class LinkedCluster(NatsCluster):
    """A cluster of nats-servers that are connected by :class:`Links`."""

    links: Links

    def _start(self) -> None:
        ports = _free_ports(2 * self._size)
        routes, clients = ports[: self._size], ports[self._size :]
        self.links = Links(routes)
        name = f"ce-nats-soak-{uuid.uuid4().hex}"
        self.servers = tuple(
            NatsServer(
                jetstream=True,
                config=f'server_name: "{_member(number)}"\n'
                f'http: "{_HOST}:-1"\n'
                f'cluster {{ name: "{name}", listen: "{_HOST}:{routes[number]}", advertise: "{_NOWHERE}"\n'
                f"  routes: [{', '.join(self._urls_from(number))}] }}\n",
                timeout=self._timeout,
            )
            for number in range(self._size)
        )
        for server, port, route in zip(self.servers, clients, routes):
            server._port, server._other_ports = port, [route]
            server._launch()
        for server in self.servers:
            server._wait_until_ready()

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "links"):
            self.links.close()
            del self.links

    def _urls_from(self, number: int) -> list[str]:
        return [f'"nats://{_HOST}:{port}"' for (one, _), port in self.links.ports.items() if one == number]
