"""A slow, interrupted or bursty network: a TCP proxy of a server."""

import asyncio
import threading
from contextlib import suppress

from .listening import start_server


class Relay:
    """
    TCP proxy of the server at a URL, as a context manager. It runs in a thread.

    Attributes:
        url: URL of the proxy.
        delay: Seconds of delay for bytes from clients; may be changed at any time.
    """

    def __init__(self, url):
        host, _, port = url.removeprefix("nats://").rpartition(":")
        self._target = host, int(port)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._started = threading.Event()
        self._open = {}  # writers by the tasks that serve them
        self._held = None  # bytes to send after an interruption, as (writer, bytes)
        self._burst = None
        self.url = ""
        self.delay = 0.0

    def __enter__(self):
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *error):
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def interrupt(self):
        """Hold back all bytes in both directions, with all connections open."""
        self._held = []

    def resume(self):
        """Send the bytes that were held back, and forward again."""
        self._loop.call_soon_threadsafe(self._release)

    def burst(self, request, last):
        """
        Hold back answers after a request, and send them together.

        Args:
            request: Bytes of a request that start it.
            last: Bytes of the last answer to hold back.
        """
        self._burst = _Burst(request, last)

    async def _run(self):
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await start_server(self._serve)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        async with server:
            await self._stopped.wait()
            for writers in self._open.values():
                for writer in writers:
                    writer.close()
            await asyncio.gather(*self._open)

    async def _serve(self, reader, writer):
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        self._open[asyncio.current_task()] = writer, upstream_writer
        await asyncio.gather(self._forward(reader, upstream_writer), self._return(upstream_reader, writer))

    async def _forward(self, reader, writer):
        due = 0.0
        with suppress(OSError):
            while chunk := await reader.read(65536):
                if self._burst is not None:
                    self._burst.note_request(chunk)
                due = max(self._loop.time() + self.delay, due + 1e-6)  # in order, although the delay may decrease
                self._loop.call_at(due, self._send, writer, chunk)
        writer.close()

    async def _return(self, reader, writer):
        with suppress(OSError):
            while chunk := await reader.read(65536):
                if self._burst is not None:
                    chunk = self._burst.collect(chunk)
                self._send(writer, chunk)
        writer.close()

    def _send(self, writer, chunk):
        if self._held is not None:
            self._held.append((writer, chunk))
        elif not writer.is_closing():
            writer.write(chunk)

    def _release(self):
        held, self._held = self._held, None
        for writer, chunk in held or ():
            self._send(writer, chunk)


class _Burst:
    def __init__(self, request, last):
        self._request, self._last = request, last
        self._is_collecting = False
        self._collected = b""

    def note_request(self, chunk):
        self._is_collecting = self._is_collecting or self._request in chunk

    def collect(self, chunk):
        """Return the bytes to send now."""
        if not self._is_collecting:
            return chunk
        self._collected += chunk
        if self._last not in self._collected:
            return b""
        self._is_collecting, self._request = False, b"\0"  # once
        collected, self._collected = self._collected, b""
        return collected
