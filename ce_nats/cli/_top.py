"""The command ``top``: rates of published events by type and source."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Final, TypeAlias

import typer
from nats.aio.client import Client
from rich.live import Live

from ..aio import Events
from ..aio._jetstream_api import Progress, StreamApi, is_final
from ..aio.consumer._outage import Pause
from ..aio.link._client import client_of
from ..aio.reading._stored_messages import as_message
from ..capture._message_json import as_line
from ..cesql import Expression
from ..codec.binary import Dialect
from ..errors import DeliveryError, ErrorCode
from ..message import StoredMessage
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, open_connection, with_connection
from ._files import write
from ._filters import FilterOption, read_filter
from ._identity import identity_of
from ._options import DialectOption, JsonOption, PatternArgument
from ._program import run_until_stopped, with_exit_status
from ._subscription import open_subscription
from ._terminal import console
from ._top_report import MAX_PAIRS, Consumer, Report, Traffic, Unsettled, report_fields, report_table

# Lines of a terminal that are not pairs: heading, column names, others, and the line with the cursor.
_OTHER_LINES: Final = 6
_MAX_INTERVAL: Final = 86_400.0
# Number of messages that --stuck shows.
_MAX_UNSETTLED: Final = 10

Show: TypeAlias = Callable[[Report], None]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_exit_status(with_connection(top)))


def top(
    settings: Settings,
    subject: PatternArgument = None,
    stream: Annotated[
        str | None, typer.Option("--stream", help="Stream of --consumer.", callback=arguments.name)
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Consumer whose lag is shown.", callback=arguments.name),
    ] = None,
    stuck: Annotated[
        bool, typer.Option("--stuck", help="Show the oldest messages that the consumer has received and not settled.")
    ] = False,
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
    filter: FilterOption = None,
    dialect: DialectOption = Dialect.SPEC,
    as_json: JsonOption = False,
) -> None:
    """
    Show publish rates by type and source, and the lag of a consumer.

    Counts events on a subject by type, source and content mode, the sizes of payloads, and the error codes of messages
    that are not events, from now on; with --filter only events that pass. Rates are those of the last interval. With a
    consumer, its lag is shown, without a subject nothing else. On a terminal, the table is redrawn; in a pipe, each
    report is printed below the previous one.
    The command ends after --count reports or with Ctrl-C (exit status 0), or when the connection is closed permanently
    (exit status 3).
    """
    if (stream is None) != (consumer is None):
        raise InputError("--stream and --consumer must be used together")
    if consumer is None and (stuck or subject is None):
        raise InputError("--stuck needs --stream and --consumer" if stuck else "give a subject, or a consumer, or both")
    if filter is not None and subject is None:
        raise InputError("--filter needs a subject")
    expression = read_filter(filter)
    watched = None if stream is None or consumer is None else Consumer(stream, consumer)

    async def work() -> None:
        async with _open(settings, subject, dialect, expression) as (nc, items):
            api = StreamApi(nc, settings.connection.api_prefix, settings.timeout)
            if watched is not None:
                await api.lag(watched.stream, watched.name)  # fails before anything is drawn
            with _printer(limit, as_json=as_json) as show:
                await _report(items, subject, api, watched, interval, count, show, shows_unsettled=stuck)

    run_until_stopped(work())


@asynccontextmanager
async def _open(
    settings: Settings, subject: str | None, dialect: Dialect, filter: Expression | None
) -> AsyncIterator[tuple[Client, Events | None]]:
    """Connect, and subscribe to the subject, if there is one."""
    if subject is None:
        async with open_connection(settings) as nc:
            yield nc, None
    else:
        async with open_subscription(settings, subject, dialect=dialect, filter=filter) as items:
            yield client_of(items.subscription), items


async def _report(
    items: Events | None,
    subject: str | None,
    api: StreamApi,
    consumer: Consumer | None,
    interval: float,
    count: int | None,
    show: Show,
    *,
    shows_unsettled: bool,
) -> None:
    """Count messages, and show a report after each interval."""
    traffic = Traffic()
    receiving = asyncio.create_task(_count(items, traffic))
    begin = last = time.monotonic()
    try:
        while count is None or count > 0:
            await asyncio.wait({receiving}, timeout=interval)
            if receiving.done():
                receiving.result()  # raises the error that ended it
                return
            with_lag = None
            if consumer is not None:
                with_lag = await _with_lag(api.without_retries(), consumer, shows_unsettled=shows_unsettled)
            now = time.monotonic()
            show(Report(subject, now - last, now - begin, traffic, with_lag))
            traffic.begin_interval()
            last = now
            count = None if count is None else count - 1
    finally:
        receiving.cancel()
        with suppress(asyncio.CancelledError, DeliveryError):
            await receiving


async def _with_lag(api: StreamApi, consumer: Consumer, *, shows_unsettled: bool) -> Consumer:
    """
    Return the consumer with its lag, or with None if the server does not respond at the moment.

    Raises:
        DeliveryError: The server responded with an error, for example because the consumer was deleted.
    """
    try:
        state = await api.consumer_state(consumer.stream, consumer.name)
        unsettled = await _unsettled(api, consumer, state.progress) if shows_unsettled else None
    except DeliveryError as error:
        if is_final(error) or error.code is ErrorCode.CONNECTION_CLOSED:
            raise
        return replace(consumer, lag=None, pause=None, unsettled=None)
    pause = Pause.find(state.config.metadata, time.time())
    return replace(consumer, lag=state.lag, pause=pause, unsettled=unsettled)


async def _unsettled(api: StreamApi, consumer: Consumer, progress: Progress) -> list[Unsettled]:
    """
    Return the oldest messages that are delivered and not settled.

    The server reports the number of messages that are not settled, and the position before the first of them. Any later
    message is known not to be settled only if all of them are.
    """
    found: list[StoredMessage] = []
    following = progress.ack_floor + 1
    while progress.ack_pending and len(found) < _MAX_UNSETTLED:
        sequence = await api.next_sequence(consumer.stream, following, progress.filters)
        if sequence is None or sequence > progress.delivered:
            break
        following = sequence + 1
        if (stored := await api.stored(consumer.stream, {"seq": sequence})) is not None:
            found.append(as_message(stored, consumer.stream))
    are_all = len(found) == progress.ack_pending and len(found) < _MAX_UNSETTLED
    return [
        Unsettled(message, identity_of(message.headers, message.data), number == 0 or are_all)
        for number, message in enumerate(found)
    ]


async def _count(items: Events | None, traffic: Traffic) -> None:
    if items is None:
        await asyncio.Event().wait()  # until it is cancelled
        return
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
