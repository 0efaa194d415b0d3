"""
Compare the codec with the bindings of the ``cloudevents`` package: same events, to and from a message, both modes.

There are 256 events of each kind, which differ in id, time, subject and trace (and in the 20 extensions), because
repeating one event would favour implementations with caches. Each round runs all sides in one process, and CPU time of
the process is measured. Ratios are computed within a round, so that a busy machine slows down both sides; the median
over all rounds is shown. Each side decodes the messages that it encoded.

``--floods`` measures the cost of events that always have new names or values, for which caches are useless.

``python -m benchmarks.codec [--rounds N] [--floods] [--markdown] [--json FILE] [--svg FILE]``
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import tracemalloc
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from cloudevents.core.v1.event import CloudEvent
from nats.aio.msg import Msg
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ce_nats import ContentMode, NatsMessage, from_nats_message, to_nats_message

PEERS = {"http": http, "kafka": kafka, "rabbitmq": rabbitmq, "amqp": amqp}
SMALL = ("typical", "minimal", "20 extensions")
DISTINCT = 256
TIME_PER_RUN = 0.01  # seconds
START = datetime(2026, 11, 20, 10, 11, 12, tzinfo=timezone.utc)

Run = Callable[[], None]


class Result(NamedTuple):
    """CPU time of an operation: of ce_nats in microseconds, and of each other implementation as a multiple of it."""

    event: str
    operation: str
    microseconds: float
    ratios: dict[str, float]

    @property
    def fastest(self) -> float:
        return min(self.ratios.values())


# --- Events ---------------------------------------------------------------------------------------------------------


def attributes(rng: Random, number: int) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"{rng.getrandbits(128):032x}",
        "source": "https://example.com/orders/eu",
        "type": "com.example.order.created",
        "subject": f"Größe € 😀 {number}",
        "time": START + timedelta(microseconds=rng.randrange(10**12)),
        "datacontenttype": "application/json",
        "dataschema": "https://example.com/schema/1",
        "traceparent": f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01",
    }


def order(number: int) -> dict[str, Any]:
    item = {"sku": "A-1001", "quantity": 2, "price": 19.95}
    return {
        "order": 1234567 + number,
        "customer": {"name": "Ada Lovelace", "email": "ada@example.com", "member": True},
        "items": [item, item | {"sku": "B-2002"}, item | {"sku": "C-3003"}],
        "note": "leave at the door",
        "total": 59.85,
        "tags": ["new", "web"],
    }


def event(kind: str, rng: Random, number: int) -> CloudEvent:
    given = attributes(rng, number)
    if kind == "minimal":
        # The constructor of the package adds a time to events without one.
        return CloudEvent({name: given[name] for name in ("specversion", "id", "source", "type", "time")})
    if kind == "64 KiB":
        return CloudEvent(given, {"items": [order(number)["items"][0] | {"line": line} for line in range(1250)]})
    if kind == "20 extensions":
        given |= {f"extension{place}": f"value-{place}-{number}" for place in range(20)}
    return CloudEvent(given, order(number))


def events(kind: str, count: int = DISTINCT) -> list[CloudEvent]:
    rng = Random(1)
    return [event(kind, rng, number) for number in range(count)]


def as_received(message: NatsMessage) -> Msg:
    return Msg(None, "orders", "", message.data, dict(message.headers.items()))  # type: ignore[arg-type]


# --- Measuring ------------------------------------------------------------------------------------------------------


def each(call: Callable[[Any], Any], items: Iterable[Any]) -> Run:
    def run() -> None:
        for item in items:
            call(item)

    return run


def operations(batch: list[CloudEvent], mode: ContentMode) -> dict[str, dict[str, Run]]:
    """Return for "to" and "from" the run of each side over all events."""

    def encode() -> None:  # not each(), which would need a lambda that the other sides do not need
        for one in batch:
            to_nats_message(one, "orders", mode=mode)

    to = {"ce_nats": encode}
    received = [as_received(to_nats_message(one, "orders", mode=mode)) for one in batch]
    back = {"ce_nats": each(from_nats_message, received)}
    for name, binding in PEERS.items():
        encode_peer, decode_peer = getattr(binding, f"to_{mode}_event"), getattr(binding, f"from_{name}_event")
        to[name] = each(encode_peer, batch)
        back[name] = each(decode_peer, [encode_peer(one) for one in batch])
    return {"to": to, "from": back}


def seconds(run: Run, times: int) -> float:
    """Return the CPU time of one run in seconds."""
    started = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - started) / times


def compare(sides: dict[str, Run], rounds: int) -> tuple[float, dict[str, float]]:
    """Return the median seconds of ce_nats, and the time of each other side as a multiple of that."""
    for run in sides.values():
        run()
    times = {name: max(1, int(TIME_PER_RUN / seconds(run, 1))) for name, run in sides.items()}
    own: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in sides if name != "ce_nats"}
    for _ in range(rounds):
        took = {name: seconds(run, times[name]) for name, run in sides.items()}
        own.append(took["ce_nats"])
        for name, found in ratios.items():
            found.append(took[name] / took["ce_nats"])
    return median(own), {name: median(found) for name, found in ratios.items()}


def results(rounds: int) -> list[Result]:
    found = []
    cases = [(kind, mode) for kind in (*SMALL, "64 KiB") for mode in ContentMode]
    for kind, mode in track(cases, description="measuring", console=Console(stderr=True)):
        batch = events(kind, 16 if kind == "64 KiB" else DISTINCT)
        for direction, sides in operations(batch, mode).items():
            own, ratios = compare(sides, rounds)
            found.append(Result(kind, f"{direction} {mode}", own / len(batch) * 1e6, ratios))
    return found


# --- Floods ---------------------------------------------------------------------------------------------------------


def flood(kind: str, count: int) -> list[CloudEvent]:
    """Return typical events, each with a new name, new values or a new character."""
    made = []
    for number, one in enumerate(events("typical", count)):
        own = one.get_attributes()
        if kind == "names":
            own[f"x{number}"] = "1"
        elif kind == "values":
            own |= {
                "source": f"/orders/{number}",
                "type": f"com.example.{number}",
                "datacontenttype": f"application/vnd.example{number}+json",
                "dataschema": f"https://example.com/{number}",
            }
        elif kind == "characters":
            own["subject"] = chr(0x4E00 + number)
        made.append(one)
    return made


def floods(rounds: int, count: int = 10_000) -> list[tuple[str, str, float, float]]:
    """Return kind of flood, operation, CPU time relative to typical events, and MiB that remained allocated."""
    usual = events("typical", count)
    found = []
    for what in ("names", "values", "characters"):
        for mode in ContentMode:
            encode = partial(to_nats_message, mode=mode)
            batch = flood(what, count)
            pairs: dict[str, tuple[Callable[[Any], Any], list[Any], list[Any]]] = {
                "to": (encode, usual, batch),
                "from": (
                    from_nats_message,
                    [as_received(encode(one)) for one in usual],
                    [as_received(encode(one)) for one in batch],
                ),
            }
            for direction, (call, common, new) in pairs.items():
                _, ratios = compare({"ce_nats": each(call, common), "flood": each(call, new)}, rounds)
                found.append((f"new {what}", f"{direction} {mode}", ratios["flood"], allocated(each(call, new))))
    return found


def allocated(run: Run) -> float:
    """Return the MiB that remain allocated after a second run."""
    run()
    tracemalloc.start()
    run()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return left / 2**20


# --- Showing --------------------------------------------------------------------------------------------------------


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = ""
    packages = ", ".join(f"{name} {version(name)}" for name in ("cloudevents", "msgspec"))
    return f"{model or platform.processor()}, Python {platform.python_version()}, {packages}"


def means(found: Iterable[Result]) -> dict[str, float]:
    """Return the geometric means of the ratios over the small events."""
    small = [result for result in found if result.event in SMALL]
    return {
        "http": geometric_mean(result.ratios["http"] for result in small),
        "fastest": geometric_mean(result.fastest for result in small),
    }


def show(found: list[Result], markdown: bool) -> None:
    header = ["event", "operation", "µs", *(f"{peer} takes" for peer in PEERS)]
    rows = [
        [one.event, one.operation, f"{one.microseconds:.1f}", *(f"{one.ratios[peer]:.1f}" for peer in PEERS)]
        for one in found
    ]
    if markdown:
        for row in (header, ["---"] * len(header), *rows):
            print("| " + " | ".join(row) + " |")
    else:
        table = Table(*header, title=f"times as long as ce_nats\n{machine()}")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    mean = means(found)
    print(f"Geometric means for small events: http {mean['http']:.2f}, the fastest of the four {mean['fastest']:.2f}.")


def show_floods(found: list[tuple[str, str, float, float]]) -> None:
    table = Table("flood", "operation", "against typical events", "MiB left", title=f"floods\n{machine()}")
    for what, operation, ratio, left in found:
        table.add_row(what, operation, f"{ratio:.2f}", f"{left:.2f}")
    Console().print(table)


def as_json(found: list[Result]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "unit": "times as long as ce_nats, CPU time",
        "geometric_means": {name: round(value, 3) for name, value in means(found).items()},
        "results": [
            {
                "event": one.event,
                "operation": one.operation,
                "ce_nats_microseconds": round(one.microseconds, 2),
                **{name: round(ratio, 3) for name, ratio in one.ratios.items()},
            }
            for one in found
        ],
    }


def draw(found: list[Result], path: Path) -> None:
    """Draw bars: times of the http binding, and of the fastest binding, as multiples of the time of ce_nats."""
    import matplotlib as mpl
    from matplotlib import pyplot

    # Reproducible output for the same figures: text as text, no date, no random ids.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "ce_nats", "font.family": "sans-serif", "font.size": 9}
    labels = [f"{one.event}, {one.operation}" for one in found]
    figure, axes = pyplot.subplots(figsize=(7.5, 0.36 * len(found) + 1.1))
    positions = range(len(found))
    for offset, name, color, values in (
        (0.2, "http binding", "#7aa6c2", [one.ratios["http"] for one in found]),
        (-0.2, "fastest of the four bindings", "#2d5d7b", [one.fastest for one in found]),
    ):
        bars = axes.barh([place - offset for place in positions], values, height=0.38, color=color, label=name)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    axes.axvline(1, color="#c0392b", linewidth=1.2, label="ce_nats")
    axes.set_yticks(list(positions), labels)
    axes.invert_yaxis()
    axes.set_xlabel("times as long as ce_nats")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--floods", action="store_true", help="measure events with always new names and values instead")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown, for docs/speed.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the figures; needs matplotlib")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="show what --json wrote")
    arguments = parser.parse_args()
    if arguments.floods:
        show_floods(floods(min(arguments.rounds, 5)))
        return
    found = read(arguments.from_json) if arguments.from_json else results(arguments.rounds)
    show(found, arguments.markdown)
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(found), indent=2) + "\n", encoding="utf-8")
    if arguments.svg:
        draw(found, arguments.svg)


def read(path: Path) -> list[Result]:
    return [
        Result(one["event"], one["operation"], one["ce_nats_microseconds"], {name: one[name] for name in PEERS})
        for one in json.loads(path.read_text(encoding="utf-8"))["results"]
    ]


if __name__ == "__main__":
    main()
