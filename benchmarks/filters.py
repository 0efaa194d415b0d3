"""
Measure filters: evaluations of CESQL on attributes that are decoded, beside the engine of sdk-go for orientation.

Each round measures all expressions one after the other; the median of the rounds is shown. The engine in Go needs Go.

``python -m benchmarks.filters [--rounds N]``
"""

from __future__ import annotations

import argparse
import json
import subprocess
from functools import partial
from statistics import median
from timeit import timeit
from typing import Any

from rich.console import Console
from rich.table import Table

from ce_nats import DecodedEvent, cesql
from tests.interop.peers import go_peer
from tests.support.caching import NotAvailable

EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "4b0e",
    "source": "/eu/berlin",
    "type": "com.example.order.paid",
    "subject": "order-4711",
    "tier": "gold",
    "priority": 5,
}
EXPRESSIONS = {
    "one comparison": "tier = 'gold'",
    "three comparisons": "source LIKE '/eu/%' AND tier = 'gold' AND priority > 3",
    "the first of three fails": "source LIKE '/us/%' AND tier = 'gold' AND priority > 3",
    "missing attribute": "region = 'eu'",
    "set of 1,000 strings": "subject IN (" + ", ".join(f"'order-{number}'" for number in range(4000, 5000)) + ")",
    "functions": "LENGTH(subject) > 5 AND UPPER(LEFT(source, 3)) = '/EU'",
    "wildcards": "type LIKE '%example._rder%'",
}
TIMES = 20_000


def go_microseconds(expression: str) -> float | None:
    """Return the time of the engine in Go, or None without Go."""
    try:
        command = [*go_peer("cesql"), str(TIMES)]
    except NotAvailable:
        return None
    question = json.dumps({"expression": expression, "event": EVENT})
    done = subprocess.run(command, input=question, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["nanoseconds"]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    event = DecodedEvent(EVENT)
    compiled = {name: cesql.compile(text) for name, text in EXPRESSIONS.items()}
    results: dict[str, list[float]] = {name: [] for name in EXPRESSIONS}
    for _ in range(rounds):
        for name, expression in compiled.items():
            seconds = timeit(partial(expression.matches, event), number=TIMES)
            results[name].append(seconds / TIMES * 1e6)
    table = Table("expression", "passes", "ce_nats, us", "sdk-go, us")
    for name, expression in compiled.items():
        go = go_microseconds(EXPRESSIONS[name])
        passes = "yes" if expression.matches(event) else "no"
        table.add_row(name, passes, f"{median(results[name]):.2f}", "" if go is None else f"{go:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
