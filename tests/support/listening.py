"""Listen on a port that no other client of the tests connects to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from ce_nats.testing._server import _free_ports

_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handle: _Handler) -> AsyncIterator[int]:
    """
    Run a server during the block; yields its port.

    The port is not an ephemeral one: the system may assign that of a stopped nats-server, to which clients of other
    tests, such as NATS Streaming, reconnect.

    Args:
        handle: Called for each connection, which is closed when it returns, at the end of the block at the latest.
    """
    handlers: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await handle(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has disconnected
        except asyncio.CancelledError:
            writer.transport.abort()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", *_free_ports(1))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await server.wait_closed()
