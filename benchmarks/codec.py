"""
The codec beside the bindings of the ``cloudevents`` package: same event, to and from a message, both modes.

Runs alternate within one process, round by round; a ratio is taken within a round and the median over the rounds is
shown, so that what slows the machine down for a while slows down both sides. Every side decodes what it encoded
itself. ``python -m benchmarks.codec [--rounds N] [--markdown]``
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any

from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from cloudevents.core.v1.event import CloudEvent
from nats.aio.msg import Msg
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ce_nats import ContentMode, from_nats_message, to_nats_message

PEERS = {"http": http, "kafka": kafka, "rabbitmq": rabbitmq, "amqp": amqp}
TIME_PER_RUN = 0.004  # seconds


def events() -> dict[str, CloudEvent]:
    attributes = {
        "specversion": "1.0",
        "id": "4b9ac3ee-1d5a-4f0b-9b5f-7b1f1e6a0a01",
        "source": "https://example.com/orders/eu",
        "type": "com.example.order.created",
        "subject": "Größe € 😀",
        "time": datetime(2026, 11, 20, 10, 11, 12, 123456, tzinfo=timezone.utc),
        "datacontenttype": "application/json",
        "dataschema": "https://example.com/schema/1",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    item = {"sku": "A-1001", "quantity": 2, "price": 19.95}
    order = {
        "order": 1234567,
        "customer": {"name": "Ada Lovelace", "email": "ada@example.com", "member": True},
        "items": [item, item | {"sku": "B-2002"}, item | {"sku": "C-3003"}],
        "note": "leave at the door",
        "total": 59.85,
        "tags": ["new", "web"],
    }
    minimal = {name: attributes[name] for name in ("specversion", "id", "source", "type")}
    extensions = {f"extension{number}": f"value-{number}" for number in range(20)}
    return {
        "typical": CloudEvent(dict(attributes), order),
        # The package's constructor adds a time to every event that has none.
        "minimal": CloudEvent(minimal),
        "64 KiB": CloudEvent(dict(attributes), {"items": [item | {"line": line} for line in range(1250)]}),
        "20 extensions": CloudEvent(attributes | extensions, order),
    }


def operations(event: CloudEvent, mode: ContentMode) -> dict[str, dict[str, Callable[[], Any]]]:
    """For "to" and "from", what each side does, ready to be called."""
    message = to_nats_message(event, "orders", mode=mode)
    received = Msg(None, "orders", "", message.data, dict(message.headers.items()))  # type: ignore[arg-type]
    to = {"ce_nats": lambda: to_nats_message(event, "orders", mode=mode)}
    back: dict[str, Callable[[], Any]] = {"ce_nats": lambda: from_nats_message(received)}
    for name, binding in PEERS.items():
        encode = getattr(binding, f"to_{mode}_event")
        decode = getattr(binding, f"from_{name}_event")
        to[name] = partial(encode, event)
        back[name] = partial(decode, encode(event))
    return {"to": to, "from": back}


def seconds(call: Callable[[], Any], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def compare(sides: dict[str, Callable[[], Any]], rounds: int) -> tuple[float, dict[str, float]]:
    """Median time of ce_nats in seconds, and by how many times it is faster than each other side."""
    times = {name: max(1, int(TIME_PER_RUN / seconds(call, 3))) for name, call in sides.items()}
    own: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in sides if name != "ce_nats"}
    for _ in range(rounds):
        took = {name: seconds(call, times[name]) for name, call in sides.items()}
        own.append(took["ce_nats"])
        for name, all_of_them in ratios.items():
            all_of_them.append(took[name] / took["ce_nats"])
    return median(own), {name: median(values) for name, values in ratios.items()}


def machine() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = ""
    packages = ", ".join(f"{name} {version(name)}" for name in ("cloudevents", "msgspec"))
    return f"{model or platform.processor()}, Python {platform.python_version()}, {packages}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown, for the README")
    arguments = parser.parse_args()
    rows = []
    cases = [(name, event, mode) for name, event in events().items() for mode in ContentMode]
    for name, event, mode in track(cases, description="measuring", console=Console(stderr=True)):
        for direction, sides in operations(event, mode).items():
            own, ratios = compare(sides, arguments.rounds)
            rows.append([name, f"{direction} {mode}", f"{own * 1e6:.1f}", *(f"{ratios[peer]:.1f}" for peer in PEERS)])
    header = ["event", "operation", "µs", *(f"{peer} takes" for peer in PEERS)]
    if arguments.markdown:
        for row in (header, ["---"] * len(header), *rows):
            print("| " + " | ".join(row) + " |")
    else:
        table = Table(*header, title=f"times as long as ce_nats\n{machine()}")
        for row in rows:
            table.add_row(*row)
        Console().print(table)


if __name__ == "__main__":
    main()
