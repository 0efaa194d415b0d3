"""The command ``top``: rates of published events by type and source."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Final, TypeAlias

import typer
from rich.live import Live

from ..aio import Events
from ..aio._jetstream_api import StreamApi, is_final
from ..aio.consumer._outage import Pause
from ..aio.link._client import client_of
from ..capture._message_json import as_line
from ..codec.binary import Dialect
from ..errors import DeliveryError
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, with_connection
from ._files import write
from ._options import DialectOption, JsonOption, PatternArgument
from ._program import run_until_stopped, with_exit_status
from ._subscription import open_subscription
from ._terminal import console
from ._top_report import MAX_PAIRS, Consumer, Report, Traffic, report_fields, report_table

# Lines of a terminal that are not pairs: heading, column names, others, and the line with the cursor.
_OTHER_LINES: Final = 6
_MAX_INTERVAL: Final = 86_400.0

Show: TypeAlias = Callable[[Report], None]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_exit_status(with_connection(top)))


def top(
    settings: Settings,
    subject: PatternArgument,
    stream: Annotated[
        str | None, typer.Option("--stream", help="Stream of --consumer.", callback=arguments.name)
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Consumer whose lag is shown.", callback=arguments.name),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            min=0.1,
            max=_MAX_INTERVAL,
            help="Seconds between reports.",
            callback=arguments.finite,
        ),
    ] = 2.0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Number of reports to print.")] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, max=MAX_PAIRS // 2, help="Maximum number of rows; the others are summed in one row."
        ),
    ] = 20,
    dialect: DialectOption = Dialect.SPEC,
    as_json: JsonOption = False,
) -> None:
    """
    Show publish rates by type and source.

    Counts events by type, source and content mode, the sizes of payloads, and the error codes of messages that are not
    events, from now on. Rates are those of the last interval. On a terminal, the table is redrawn; in a pipe, each
    report is printed below the previous one. The command ends after --count reports or with Ctrl-C (exit status 0), or
    when the connection is closed permanently (exit status 3).
    """
    if (stream is None) != (consumer is None):
        raise InputError("--stream and --consumer must be used together")
    watched = None if stream is None or consumer is None else Consumer(stream, consumer)

    async def work() -> None:
        async with open_subscription(settings, subject, dialect=dialect) as items:
            api = StreamApi(client_of(items.subscription), settings.connection.api_prefix, settings.timeout)
            if watched is not None:
                await api.lag(watched.stream, watched.name)  # fails before anything is drawn
            with _printer(limit, as_json=as_json) as show:
                await _report(items, subject, api, watched, interval, count, show)

    run_until_stopped(work())


async def _report(
    items: Events,
    subject: str,
    api: StreamApi,
    consumer: Consumer | None,
    interval: float,
    count: int | None,
    show: Show,
) -> None:
    """Count messages, and show a report after each interval."""
    traffic = Traffic()
    receiving = asyncio.create_task(_count(items, traffic))
    begin = last = time.monotonic()
    try:
        while count is None or count > 0:
            await asyncio.wait({receiving}, timeout=interval)
            if receiving.done():
                return receiving.result()  # raises the error that ended it
            with_lag = None if consumer is None else await _with_lag(api.without_retries(), consumer)
            now = time.monotonic()
            show(Report(subject, now - last, now - begin, traffic, with_lag))
            traffic.begin_interval()
            last = now
            count = None if count is None else count - 1
    finally:
        receiving.cancel()
        with suppress(asyncio.CancelledError, DeliveryError):
            await receiving


async def _with_lag(api: StreamApi, consumer: Consumer) -> Consumer:
    """
    Return the consumer with its lag, or with None if the server does not respond at the moment.

    Raises:
        DeliveryError: The server responded with an error, for example because the consumer was deleted.
    """
    try:
        state = await api.consumer_state(consumer.stream, consumer.name)
    except DeliveryError as error:
        if is_final(error):
            raise
        return replace(consumer, lag=None, pause=None)
    return replace(consumer, lag=state.lag, pause=Pause.find(state.config.metadata, time.time()))


async def _count(items: Events, traffic: Traffic) -> None:
    async for item in items:
        traffic.add(item)


@contextmanager
def _printer(limit: int, *, as_json: bool) -> Iterator[Show]:
    """Yield a function that draws a report on a terminal, or else prints it, with ``as_json`` as a line of JSON."""
    output = console()

    def draw(report: Report) -> None:
        rows = max(1, min(limit, output.height - _OTHER_LINES))
        live.update(report_table(report, rows), refresh=True)

    def print_below(report: Report) -> None:
        output.print(report_table(report, limit), "")

    if as_json:
        yield lambda report: write(as_line(report_fields(report, limit)))
    elif not output.is_terminal or output.is_dumb_terminal:
        yield print_below
    else:
        # Messages about the connection are printed above the table.
        stderr_is_drawn = sys.stderr.isatty()
        with Live(console=output, auto_refresh=False, redirect_stdout=False, redirect_stderr=stderr_is_drawn) as live:
            yield draw
