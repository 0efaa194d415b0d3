"""The worker of the example runs on a real server, and its page is read as Prometheus reads it."""

import asyncio
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent
from prometheus_client.parser import text_string_to_metric_families

from ce_nats import aio
from ce_nats.testing import NatsServer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "metrics_prometheus.py"
CONSUMED = "messaging_client_consumed_messages_total"


def samples(page):
    """What the page has about messages."""
    text = urllib.request.urlopen(page, timeout=30).read().decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [sample for sample in found if sample.name.startswith("messaging_")]


def by_outcome(found, name):
    """Sums of a sample's values."""
    values = Counter()
    for one in found:
        if one.name == name:
            values[one.labels["ce_nats_outcome"]] += one.value
    return values


def until(page, count):
    """The page, once so many messages are counted."""
    for _ in range(3_000):
        found = samples(page)
        if sum(one.value for one in found if one.name == CONSUMED) >= count:
            return found
        time.sleep(0.02)
    pytest.fail(f"no {count} messages on the page: {found}")


async def publish(url):
    async with await aio.connect(url) as nc:
        js = nc.jetstream()
        async with aio.Publisher(js) as publisher:
            for number, total in enumerate((12.5, 40, -1)):
                event = CloudEvent({"source": "/orders", "type": "com.example.paid"}, {"total": total})
                await publisher.publish(event, f"orders.customer{number}.com.example.paid")
        await js.publish("orders.customer3.com.example.paid", b"no event")


@pytest.mark.skipif(sys.platform == "win32", reason="ends by a POSIX signal")
def test_the_page():
    with NatsServer(jetstream=True) as server:
        worker = subprocess.Popen(
            [sys.executable, EXAMPLE, server.url, "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT)},
        )
        try:
            page = worker.stdout.readline().strip()
            assert page, worker.stderr.read()
            asyncio.run(publish(server.url))
            found = until(page, 4)
            worker.send_signal(signal.SIGTERM)
            _, errors = worker.communicate(timeout=60)
        finally:
            worker.kill()
            worker.wait()
    assert worker.returncode == 0
    assert errors.count("Traceback") == errors.count("ce_nats.errors.Reject: total must be") == 1
    assert by_outcome(found, CONSUMED) == {"acknowledged": 2, "dead-lettered": 2}
    assert by_outcome(found, "messaging_process_duration_seconds_count") == {"acknowledged": 2, "dead-lettered": 1}
    labels = [one.labels for one in found if one.name == CONSUMED]
    assert {one["messaging_destination_template"] for one in labels} == {"orders.{customer}.{type:tokens}"}
    assert {one["messaging_consumer_group_name"] for one in labels} == {"billing"}
    assert {one.get("error_type", "") for one in labels} == {"", "ce_nats.errors.Reject", "not-a-cloudevent"}
    sums = [one for one in found if one.name == "messaging_process_duration_seconds_sum"]
    assert by_outcome(sums, sums[0].name)["acknowledged"] >= 0.02
