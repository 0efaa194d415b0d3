"""
A service in production, which handles the events of a stream until it is stopped.

    pip install ce-nats aiohttp
    NATS_URL=nats://127.0.0.1:4222 PORT=8080 python examples/service.py

SIGTERM and Ctrl-C end it when the running handlers have returned, after 20 seconds at most. The port answers the probes
/live and /ready. The log has one JSON object per line. The streams SHIPMENTS (shipments.>) and DEAD_SHIPMENTS
(dead.shipments) must exist. The guide explains it: docs/guides/service.md.
"""

import asyncio
import datetime
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from nats.js.api import ConsumerConfig

from ce_nats import DeliveryError, aio

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
PORT = int(os.environ.get("PORT", "8080"))

log = logging.getLogger("shipments")

# --- What the service does --------------------------------------------------------------------------------------------


async def handle(delivery: aio.Delivery) -> None:
    """Deliver a parcel. It may be called again with an event, so its effect must be repeatable."""
    event = delivery.event
    await asyncio.sleep(event.data["seconds"])
    log.info("delivered", extra={"id": event.id})


# --- How it runs ------------------------------------------------------------------------------------------------------


async def main() -> None:
    async with aio.connect(URL, name="shipments", max_reconnect_attempts=None) as nc:
        consumer = aio.PullConsumer(
            nc.jetstream(),
            "SHIPMENTS",
            "delivery",
            dead_letter="dead.shipments",
            create=ConsumerConfig(ack_wait=30, max_ack_pending=1000),
            unavailable=[ConnectionError],
        )
        async with consumer:
            stopping = asyncio.Event()

            def stop() -> None:
                stopping.set()
                consumer.stop()

            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop)
            async with probes(lambda: nc.is_connected and not stopping.is_set()):
                log.info("ready")
                await consumer.run(handle, concurrency=8, stop_timeout=20)
    log.info("stopped")


@asynccontextmanager
async def probes(is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Answer /live as long as the event loop runs, and /ready if the service can handle events."""

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if is_ready() else 503)

    app = web.Application()
    app.add_routes([web.get("/live", live), web.get("/ready", ready)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=PORT).start()
        yield
    finally:
        await runner.cleanup()


class JsonLines(logging.Formatter):
    """One object per line, with the fields that ce_nats adds: stream, sequence, id, type and source of an event."""

    _known = frozenset(vars(logging.makeLogRecord({})))

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in self._known}
        time = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc).isoformat()
        line = {"time": time, "level": record.levelname, "message": record.getMessage(), **fields}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


if __name__ == "__main__":
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        asyncio.run(main())
    except DeliveryError as error:
        log.critical("%s", error)
        raise SystemExit(1) from None
