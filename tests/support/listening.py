"""Listen on a port that no other client of the tests connects to."""

import asyncio

from ce_nats.testing._server import _free_ports


async def start_server(serve):
    """
    Start a server, as asyncio.start_server() does.

    The port is not an ephemeral one: the system may assign that of a stopped nats-server, to which clients of other
    tests, such as NATS Streaming, reconnect.
    """
    return await asyncio.start_server(serve, "127.0.0.1", *_free_ports(1))
