"""The command ``top``: what is published on a subject, by type and source, as it goes by."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from ..aio import Events, Received
from ..aio._jetstream_api import Lag, StreamApi, is_final
from ..aio._natspy import client_of
from ..capture._message_json import as_line
from ..codec.binary import Dialect
from ..codec.mode import detect_mode
from ..errors import DeliveryError
from . import _arguments as arguments
from ._arguments import InputError
from ._codec import DialectOption, JsonOption
from ._connection import Settings, with_connection
from ._files import write
from ._listening import listening
from ._program import guarded, until_stopped
from ._progress import counted
from ._terminal import console, table
from ._traffic import PatternArgument

# Pairs of type and source that are counted apart within an interval; half of them are kept for the next one.
_MAX_PAIRS: Final = 1000
# Characters of a type and of a source by which pairs are told apart, so that memory has a bound.
_MAX_CHARACTERS: Final = 200
# Lines of a terminal that are not pairs: heading, column names, others, and the line with the cursor.
_OTHER_LINES: Final = 6
_MAX_INTERVAL: Final = 86_400.0

Pair: TypeAlias = tuple[str, str]
Show: TypeAlias = Callable[["Report"], None]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(guarded(with_connection(top)))


@dataclass(slots=True)
class Count:
    """
    Messages and bytes of their payloads.

    Attributes:
        messages: In this interval.
        data_bytes: In this interval.
        total_messages: Since the start.
        total_data_bytes: Since the start.
    """

    messages: int = 0
    data_bytes: int = 0
    total_messages: int = 0
    total_data_bytes: int = 0

    def add(self, size: int) -> None:
        """Count a message."""
        self.messages += 1
        self.data_bytes += size
        self.total_messages += 1
        self.total_data_bytes += size

    def merge(self, other: Count) -> None:
        """Add another count to this one."""
        self.messages += other.messages
        self.data_bytes += other.data_bytes
        self.total_messages += other.total_messages
        self.total_data_bytes += other.total_data_bytes

    def begin_interval(self) -> None:
        """Keep only what is counted since the start."""
        self.messages = self.data_bytes = 0


class Traffic:
    """
    Counts messages by type and source, by mode, and by the code of the error where they are not events.

    At most ``max_pairs`` pairs of type and source are counted apart. Those beyond, and the least frequent half at the
    end of each interval, are summed up in :attr:`others`, so that a new pair finds room in the next interval. Types and
    sources that are equal in their first 200 characters are one.

    Attributes:
        pairs: By type and source.
        others: All other events.
        modes: By content mode.
        errors: By code of the error.
        total: All messages.
    """

    def __init__(self, max_pairs: int = _MAX_PAIRS) -> None:
        self._max_pairs = max_pairs
        self.pairs: dict[Pair, Count] = {}
        self.others = Count()
        self.modes: defaultdict[str, Count] = defaultdict(Count)
        self.errors: defaultdict[str, Count] = defaultdict(Count)
        self.total = Count()

    def add(self, item: Received) -> None:
        """Count a message."""
        size = len(item.message.data)
        self.total.add(size)
        if item.error is not None:
            self.errors[str(item.error.code)].add(size)
            return
        self.modes[str(detect_mode(item.message))].add(size)
        event = item.event
        pair = _short(event.get_type()), _short(event.get_source())
        if (count := self.pairs.get(pair)) is None:
            if len(self.pairs) >= self._max_pairs:
                count = self.others
            else:
                count = self.pairs[pair] = Count()
        count.add(size)

    def ranked(self, limit: int) -> tuple[list[tuple[Pair, Count]], Count]:
        """The most frequent pairs, those of this interval before those of earlier ones, and a count of the others."""
        first = nlargest(limit, self.pairs.items(), key=lambda item: (item[1].messages, item[1].total_messages))
        shown = {pair for pair, _ in first}
        others = Count()
        others.merge(self.others)
        for pair, count in self.pairs.items():
            if pair not in shown:
                others.merge(count)
        return first, others

    def begin_interval(self) -> None:
        """Keep only what is counted since the start, and make room for new pairs."""
        kept, self.others = self.ranked(self._max_pairs // 2)
        self.pairs = dict(kept)
        groups = self.pairs, self.modes, self.errors
        for count in [self.total, self.others, *(count for group in groups for count in group.values())]:
            count.begin_interval()


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


@dataclass(frozen=True)
class Consumer:
    """
    A consumer of JetStream, and how far it is behind.

    Attributes:
        stream: Name of its stream.
        name: Its name.
        lag: What it has before it; None where the server did not say.
    """

    stream: str
    name: str
    lag: Lag | None = None


@dataclass(frozen=True)
class Report:
    """
    What is shown at the end of an interval.

    Attributes:
        subject: What is listened to.
        seconds: Length of the interval.
        total_seconds: Seconds since the start.
        traffic: The counts.
        consumer: The consumer that was asked for, or None.
    """

    subject: str
    seconds: float
    total_seconds: float
    traffic: Traffic
    consumer: Consumer | None


def fields(report: Report, limit: int) -> dict[str, Any]:
    """A report in JSON: each count is an object with the members of :class:`Count`."""
    traffic = report.traffic
    pairs, others = traffic.ranked(limit)
    found = {
        "seconds": round(report.seconds, 3),
        **_members(traffic.total),
        "modes": {mode: _members(count) for mode, count in sorted(traffic.modes.items())},
        "errors": {code: _members(count) for code, count in sorted(traffic.errors.items())},
        "events": [{"type": type_, "source": source, **_members(count)} for (type_, source), count in pairs],
        "others": _members(others),
    }
    if (consumer := report.consumer) is not None:
        lag = dict.fromkeys(Lag._fields) if consumer.lag is None else consumer.lag._asdict()
        found["consumer"] = {"stream": consumer.stream, "name": consumer.name, **lag}
    return found


def _members(count: Count) -> dict[str, int]:
    return {name: getattr(count, name) for name in Count.__slots__}


def drawing(report: Report, limit: int) -> RenderableType:
    """A report for people."""
    traffic = report.traffic
    total = traffic.total
    head = [
        f"{report.subject}: {counted(total.total_messages, 'message')} in {report.total_seconds:.0f} s, "
        f"now {_rate(total.messages, report.seconds)}/s, {_bytes(total.data_bytes, report.seconds)}/s",
    ]
    head += _listed("mode", traffic.modes) + _listed("error", traffic.errors)
    if (consumer := report.consumer) is not None:
        head.append(f"consumer {consumer.name} of stream {consumer.stream}: {_behind(consumer.lag)}")
    parts: list[RenderableType] = [*head]
    pairs, others = traffic.ranked(limit)
    if pairs:
        rows = table("type", "source", "events", "events/s", "bytes/s", "bytes each")
        for column in rows.columns[2:]:
            column.justify = "right"
            column.no_wrap = True
        for (type_, source), count in pairs:
            rows.add_row(type_, source, *_cells(count, report.seconds))
        if others.total_messages:
            rows.add_row("others", "", *_cells(others, report.seconds))
        parts.append(rows)
    return Group(*parts)


def _behind(lag: Lag | None) -> str:
    if lag is None:
        return "unknown"
    return f"{lag.pending:,} pending, {lag.ack_pending:,} not acknowledged, {lag.redelivered:,} redelivered"


def _listed(what: str, counts: Mapping[str, Count]) -> list[str]:
    ranked = sorted(counts.items(), key=lambda item: (-item[1].total_messages, item[0]))
    text = ", ".join(f"{name} {count.total_messages:,}" for name, count in ranked)
    return [f"{what}s: {text}"] if ranked else []


def _cells(count: Count, seconds: float) -> Iterator[str]:
    yield f"{count.total_messages:,}"
    yield _rate(count.messages, seconds)
    yield _bytes(count.data_bytes, seconds)
    yield f"{count.total_data_bytes / count.total_messages:,.0f}"


def _rate(number: int, seconds: float) -> str:
    rate = number / seconds if seconds else 0.0
    return f"{rate:,.0f}" if rate >= 100 or rate == 0 else f"{rate:.1f}"


def _bytes(number: int, seconds: float) -> str:
    rate = number / seconds if seconds else 0.0
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if rate >= size:
            return f"{rate / size:,.1f} {unit}"
    return f"{rate:.0f} B"


def top(
    settings: Settings,
    subject: PatternArgument,
    stream: Annotated[
        str | None, typer.Option("--stream", help="Stream of --consumer.", callback=arguments.name)
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Consumer whose lag is shown, too.", callback=arguments.name),
    ] = None,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.1, max=_MAX_INTERVAL, help="Seconds between two reports."),
    ] = 2.0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many reports.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=_MAX_PAIRS // 2, help="Most rows; the rest is one row, others.")
    ] = 20,
    dialect: DialectOption = Dialect.SPEC,
    as_json: JsonOption = False,
) -> None:
    """
    Show who publishes how much.

    Events by type and source, content modes, sizes of payloads, and codes of what is not an event, from now on. Rates
    are those of the last interval. On a terminal the table is drawn anew, in a pipe each one is printed below the one
    before. It ends after --count reports or with Ctrl-C, with exit status 0; where the connection is lost for good,
    with exit status 3.
    """
    if (stream is None) != (consumer is None):
        raise InputError("--stream and --consumer must be used together")
    watched = None if stream is None or consumer is None else Consumer(stream, consumer)

    async def work() -> None:
        async with listening(settings, subject, dialect=dialect) as items:
            api = StreamApi(client_of(items.subscription), settings.connection.api_prefix, settings.timeout)
            if watched is not None:
                await api.lag(watched.stream, watched.name)  # so that it fails before anything is drawn
            with _shown(limit, as_json=as_json) as show:
                await _report(items, subject, api, watched, interval, count, show)

    until_stopped(work())


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
                return receiving.result()  # the error that ended it
            asked = None if consumer is None else await _with_lag(api.without_retries(), consumer)
            now = time.monotonic()
            show(Report(subject, now - last, now - begin, traffic, asked))
            traffic.begin_interval()
            last = now
            count = None if count is None else count - 1
    finally:
        receiving.cancel()
        with suppress(asyncio.CancelledError, DeliveryError):
            await receiving


async def _with_lag(api: StreamApi, consumer: Consumer) -> Consumer:
    """
    The consumer with its lag, or with None where the server does not answer at the moment.

    Raises:
        DeliveryError: The server refuses to say, because the consumer was deleted for instance.
    """
    try:
        lag = await api.lag(consumer.stream, consumer.name)
    except DeliveryError as error:
        if is_final(error):
            raise
        lag = None
    return replace(consumer, lag=lag)


async def _count(items: Events, traffic: Traffic) -> None:
    async for item in items:
        traffic.add(item)


@contextmanager
def _shown(limit: int, *, as_json: bool) -> Iterator[Show]:
    """A function that shows a report: draws it on a terminal, else prints it, for machines as a line of JSON."""
    paper = console()

    def draw(report: Report) -> None:
        rows = max(1, min(limit, paper.height - _OTHER_LINES))
        live.update(drawing(report, rows), refresh=True)

    def print_below(report: Report) -> None:
        paper.print(drawing(report, limit), "")

    if as_json:
        yield lambda report: write(as_line(fields(report, limit)))
    elif not paper.is_terminal or paper.is_dumb_terminal:
        yield print_below
    else:
        # What is said of the connection meanwhile stands above the table.
        is_same = sys.stderr.isatty()
        with Live(console=paper, auto_refresh=False, redirect_stdout=False, redirect_stderr=is_same) as live:
            yield draw
