"""Progress bars and summaries of commands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..capture._message_json import as_line
from ..errors import visible
from ._files import write
from ._terminal import console, print_to_stderr

_T = TypeVar("_T")


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


def stderr_is_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return console(stderr=True).is_terminal


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 message``, ``2 messages``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def progress(title: str, total: int | None, *, wanted: bool = True) -> Iterator[Callable[..., None]]:
    """
    Draw a progress bar on standard error, if it is a terminal.

    Yields a function to call with the number of items done, and optionally a new total, ``of``.
    """
    if not wanted or not stderr_is_terminal():
        yield lambda done, of=total: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    # Standard output is not redirected: rich would write the results to standard error.
    with Progress(*columns, console=console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(visible(title), total=total)
        yield lambda done, of=total: bar.update(task, completed=done, total=of)


async def with_progress(items: AsyncGenerator[_T, None], advance: Callable[[int], object]) -> AsyncGenerator[_T, None]:
    """Yield items unchanged, and call a function with the number of items so far."""
    count = 0
    async with aclosing(items):
        async for item in items:
            count += 1
            advance(count)
            yield item


def print_summary(counts: dict[str, Any], text: str, *, as_json: bool, to_stderr: bool = False) -> None:
    """Print a summary."""
    if as_json and not to_stderr:
        write(as_line(counts))
    else:
        for line in as_line(counts).decode().splitlines() if as_json else text.split("\n"):
            print_to_stderr(line)


def stored_before(duplicates: int | None, batched: int) -> str:
    """Return the part of a summary about published messages that the stream already had."""
    if duplicates is None:
        return f"; unknown how many of them were already stored, because {batched} were sent in batches"
    return f", {duplicates} of them already stored" if duplicates else ""
