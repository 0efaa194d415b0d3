"""
Table of results between ce_nats and its peers in docs/interop.md.

``python -m tests.interop.table`` runs every exchange and writes the table; the tests compare it with their own results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from pathlib import Path

from ce_nats.testing import NatsServer
from tests.support.programs import streaming_server
from tests.support.streaming import StreamingServer

from .exchange import exchange
from .peers import PROGRAMS
from .routes import ROUTES, Route
from .samples import SAMPLES

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
BEGIN = "<!-- peers -->"
END = "<!-- end of peers -->"
NOTES = tuple(dict.fromkeys(fault.note for route in ROUTES for fault in route.faults.values()))


def head() -> list[str]:
    names = " | ".join(SAMPLES)
    return [f"| peer | direction | {names} |", "|---|---|" + "---|" * len(SAMPLES)]


def row(route: Route, lost: Collection[str]) -> str:
    """
    Return the row of a route.

    Args:
        route: The route.
        lost: Names of the samples that were not received unchanged in this run.
    """
    cells = " | ".join(_fault(route, name) if name in lost else "yes" for name in SAMPLES)
    return f"| {route.peer} | {route.direction} | {cells} |"


def _fault(route: Route, name: str) -> str:
    return f"no ({NOTES.index(route.faults[name].note) + 1})" if name in route.faults else "no"


def notes() -> list[str]:
    return [f"{number}. {note}" for number, note in enumerate(NOTES, 1)]


def written() -> list[str]:
    """Return the lines of the page between the markers, without empty ones."""
    _, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    table, end, _ = rest.partition(END)
    if not (begin and end):
        raise ValueError("the page must have markers for the table of peers")
    return [line for line in table.splitlines() if line]


def write(rows: Iterable[str]) -> None:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = ["", *head(), *rows, "", *notes(), ""]
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, "utf-8")


def _run() -> list[str]:
    commands = {name: make() for name, make in PROGRAMS.items()}
    with NatsServer(jetstream=True) as server, StreamingServer(streaming_server(), over=server.url):
        return [row(route, asyncio.run(exchange(route, commands[route.program], server.url))) for route in ROUTES]


if __name__ == "__main__":
    write(_run())
