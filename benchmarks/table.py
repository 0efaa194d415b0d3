"""Print a table of results, on the console or as Markdown for docs/speed.md, with the versions and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from rich.console import Console
from rich.table import Table


def show(titles: Sequence[str], rows: Iterable[Sequence[str]], what: str, *, markdown: bool) -> None:
    """
    Print results.

    Args:
        titles: Titles of the columns.
        rows: Cells of each row.
        what: Description of the measurement, for the line below the table.
        markdown: Print the rows as Markdown.
    """
    table = Table(*titles, box=None)
    for row in rows:
        table.add_row(*row)
        if markdown:
            print("| " + " | ".join(row) + " |")
    if not markdown:
        Console().print(table)
    versions = ", ".join(f"{package} {version(package)}" for package in ("cloudevents", "nats-py", "pyspark"))
    machine = f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    print(f"{what}; {versions}; {machine}")
