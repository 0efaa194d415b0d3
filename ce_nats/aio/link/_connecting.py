"""Take part in connecting: choose the transport, require TLS, reconnect after an error, end an attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.transport import TcpTransport, Transport

from ._private import get, put

# An attempt to reconnect that is cancelled ends within this time; otherwise the cancellation is repeated.
_RECONNECTING_SECONDS: Final = 0.1


def transport_of(nc: Client) -> Transport | None:
    """Return the transport of a connection."""
    return cast("Transport | None", get(nc, "_transport"))


def use_transport(nc: Client, transport: Transport) -> None:
    """Replace the transport, before the client connects."""
    put(nc, "_transport", transport)


class TlsTransport(TcpTransport):
    """nats-py's transport over TCP, with the state of TLS."""

    @property
    def has_tls(self) -> bool:
        """Whether TLS is established."""
        writer = get(self, "_io_writer")
        return writer is not None and writer.get_extra_info("ssl_object") is not None


def intercept_connects(
    nc: Client, *, before_connect: Callable[[Srv], None], before_info: Callable[[dict[str, Any], bool], None]
) -> None:
    """Register functions to call whenever the client connects, also on reconnects."""
    connect_to_server, process_info = get(nc, "_connect_to_server"), get(nc, "_process_info")

    async def connect_with_hook(server: Srv) -> None:
        before_connect(server)
        await connect_to_server(server)

    async def process_with_hook(info: dict[str, Any], initial_connection: bool = False) -> None:
        before_info(info, initial_connection)
        await process_info(info, initial_connection)

    put(nc, "_connect_to_server", connect_with_hook)
    put(nc, "_process_info", process_with_hook)


def reconnect_after(nc: Client, violation: str) -> None:
    """
    Reconnect after an error of the server for which it closes the connection; nats-py closes it permanently.

    The callback for errors is called.
    """
    process_error, process_loss = get(nc, "_process_err"), get(nc, "_process_op_err")

    async def process(text: str) -> None:
        if violation not in text:
            await process_error(text)
            return
        error = nats.errors.Error("nats: " + text.strip("'"))
        await get(nc, "_error_cb")(error)
        await process_loss(error)

    put(nc, "_process_err", process)


async def end_reconnecting(nc: Client) -> None:
    """End the task that reconnects: before Python 3.12, wait_for() may lose the cancellation by close()."""
    task: asyncio.Task[None] | None = get(nc, "_reconnection_task")
    while task is not None and not task.done() and task is not asyncio.current_task():
        task.cancel()
        await asyncio.wait([task], timeout=_RECONNECTING_SECONDS)
