"""How far a command is, and what it says at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..json_form import as_line
from .files import write

__all__ = ["counted", "is_watched", "progress", "report"]


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


def is_watched() -> bool:
    """Whether standard error is a terminal."""
    return Console(stderr=True).is_terminal


def counted(number: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A function that is told how many are done, and of how many; draws a bar where somebody is watching."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_watched()) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, of=total: bar.update(task, completed=done, total=of)


def report(counts: dict[str, Any], text: str, *, as_json: bool, to_stderr: bool = False) -> None:
    """What came of it: counts as JSON on standard output, or a text on standard error."""
    if as_json and not to_stderr:
        write(as_line(counts))
    else:
        typer.echo(as_line(counts).decode().strip() if as_json else text, err=True)
