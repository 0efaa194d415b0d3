"""
A worker that consumes a stream, with an endpoint for Prometheus.

    pip install 'ce-nats[otel]' opentelemetry-exporter-prometheus
    NATS_URL=nats://127.0.0.1:4222 python examples/metrics_prometheus.py 9464
    curl http://127.0.0.1:9464/metrics

The argument is the port of the endpoint, or 0 for a free one. SIGINT and SIGTERM end the worker after the running
handlers have ended. The streams WEB_ORDERS (web-orders.>) and DEAD_WEB_ORDERS (dead.web-orders) are created if they do
not exist.
"""

import asyncio
import os
import signal
import sys

from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

from ce_nats import Reject, aio
from ce_nats.otel import Instrumentation

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


async def charge(delivery: aio.Delivery) -> None:
    """Charge an order. An order without a positive total is rejected, because a retry cannot succeed."""
    data = delivery.event.get_data()
    total = data.get("total") if isinstance(data, dict) else None
    if not isinstance(total, (int, float)) or total <= 0:
        raise Reject(f"total must be a positive number, got {total!r}")
    await asyncio.sleep(0.01)


async def add_streams(js: JetStreamContext) -> None:
    await js.add_stream(name="WEB_ORDERS", subjects=["web-orders.>"])
    await js.add_stream(name="DEAD_WEB_ORDERS", subjects=["dead.web-orders"])


async def main(port: int) -> None:
    meters = MeterProvider([PrometheusMetricReader()])
    server, _ = start_http_server(port, addr="127.0.0.1")
    # The template is the label, because each subject of a customer would be a separate time series.
    instrumentation = Instrumentation(subjects=["web-orders.{customer}.{type:tokens}"], meter_provider=meters)
    async with await aio.connect(URL) as nc:
        js = nc.jetstream()
        await add_streams(js)
        async with aio.PullConsumer(
            js,
            "WEB_ORDERS",
            "metrics-worker",
            dead_letter="dead.web-orders",
            create=ConsumerConfig(),
            skip_expired=True,  # counted with the outcome "expired"
            instrumentation=instrumentation,
        ) as consumer:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, consumer.stop)
            print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
            await consumer.run(charge, concurrency=4)
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
