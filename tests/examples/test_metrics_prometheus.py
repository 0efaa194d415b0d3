"""Metrics of the worker, parsed as by Prometheus."""

import asyncio
import signal
import sys
import urllib.request
from collections import Counter

import pytest
from cloudevents.core.v1.event import CloudEvent
from prometheus_client.parser import text_string_to_metric_families

from ce_nats import aio
from tests.support.waiting import until

CONSUMED = "messaging_client_consumed_messages_total"
DURATION = "messaging_process_duration_seconds"


def samples(page):
    """Return the samples about messages on the page."""
    text = urllib.request.urlopen(page, timeout=30).read().decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [sample for sample in found if sample.name.startswith("messaging_")]


def by_outcome(found, name):
    """Return the sums of a metric's values by outcome."""
    values = Counter()
    for one in found:
        if one.name == name:
            values[one.labels["ce_nats_outcome"]] += one.value
    return values


async def until_counted(page, consumed, handled):
    """Wait until numbers of consumed and of handled messages are counted, and return the samples."""

    async def counted():
        found = await asyncio.to_thread(samples, page)
        counts = [sum(by_outcome(found, name).values()) for name in (CONSUMED, f"{DURATION}_count")]
        return found if counts == [consumed, handled] else None

    return await until(counted)


async def publish(js):
    """Publish orders, two valid, one invalid and one expired, and a message that is not an event."""
    async with aio.Publisher(js) as publisher:
        for number, total in enumerate((12.5, 40, -1)):
            event = CloudEvent({"source": "/orders", "type": "com.example.paid"}, {"total": total})
            await publisher.publish(event, f"web-orders.customer{number}.com.example.paid")
        attributes = {"source": "/orders", "type": "com.example.paid", "expirytime": "2020-01-01T00:00:00Z"}
        await publisher.publish(CloudEvent(attributes, {"total": 5}), "web-orders.customer4.com.example.paid")
    await js.publish("web-orders.customer3.com.example.paid", b"no event")


@pytest.mark.skipif(sys.platform == "win32", reason="ends by a POSIX signal")
async def test_metrics_page(start, js):
    worker = start("examples/metrics_prometheus.py", 0)
    page = "http://127.0.0.1:" + await worker.until_printed("http://127.0.0.1:")
    await publish(js)
    found = await until_counted(page, 5, 3)
    worker.process.send_signal(signal.SIGTERM)
    log = await worker.until_exit()
    assert log.count("Reject: total must be") == 1
    assert "Traceback" not in log
    assert by_outcome(found, CONSUMED) == {"acknowledged": 2, "dead-lettered": 2, "expired": 1}
    assert by_outcome(found, f"{DURATION}_count") == {"acknowledged": 2, "dead-lettered": 1}
    assert by_outcome(found, f"{DURATION}_sum")["acknowledged"] >= 0.02
    labels = [one.labels for one in found if one.name == CONSUMED]
    assert {one["messaging_destination_template"] for one in labels} == {"web-orders.{customer}.{type:tokens}"}
    assert {one["messaging_consumer_group_name"] for one in labels} == {"metrics-worker"}
    assert {one.get("error_type", "") for one in labels} == {"", "ce_nats.errors.Reject", "not-a-cloudevent"}
    assert (await js.stream_info("DEAD_WEB_ORDERS")).state.messages == 2
