"""The reports of ``top``: counts of messages, as a table and as JSON."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Final, NamedTuple, TypeAlias

from rich.console import Group, RenderableType

from ..aio import Received
from ..aio._jetstream_api import Lag
from ..aio.consumer._outage import Pause
from ..codec.mode import detect_mode
from ..message import StoredMessage
from ._identity import Identity
from ._progress import counted
from ._terminal import table

# Maximum number of pairs of type and source that are counted separately within an interval; half of them are kept for
# the next interval.
MAX_PAIRS: Final = 1000
# Number of leading characters by which types and sources are distinguished, so that memory is bounded.
_MAX_CHARACTERS: Final = 200

Pair: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class Count:
    """
    Number of messages, and bytes of their payloads.

    Attributes:
        messages: Messages in the current interval.
        data_bytes: Bytes in the current interval.
        total_messages: Messages since the start.
        total_data_bytes: Bytes since the start.
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
        """Reset the counts of the interval."""
        self.messages = self.data_bytes = 0


class Traffic:
    """
    Counts of events by type and source and by content mode, and of other messages by error code.

    At most ``max_pairs`` pairs of type and source are counted separately. Additional pairs are summed in
    :attr:`others`; at the end of each interval, so are the less frequent half of the pairs, to make room for new ones.
    Types and sources with the same first 200 characters are counted as equal.

    Attributes:
        pairs: Counts of events, by type and source.
        others: Count of all other events.
        modes: Counts of events, by content mode.
        errors: Counts of messages that are not events, by error code.
        total: Count of all messages.
    """

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
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
        """
        Return the most frequent pairs with their counts, and the sum of all others.

        Pairs are ranked by messages in the current interval, then by messages since the start.
        """
        first = nlargest(limit, self.pairs.items(), key=lambda item: (item[1].messages, item[1].total_messages))
        shown = {pair for pair, _ in first}
        others = Count()
        others.merge(self.others)
        for pair, count in self.pairs.items():
            if pair not in shown:
                others.merge(count)
        return first, others

    def begin_interval(self) -> None:
        """Reset the counts of the interval, and make room for new pairs."""
        kept, self.others = self.ranked(self._max_pairs // 2)
        self.pairs = dict(kept)
        groups = self.pairs, self.modes, self.errors
        for count in [self.total, self.others, *(count for group in groups for count in group.values())]:
            count.begin_interval()


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


class Unsettled(NamedTuple):
    """
    A message that was delivered.

    Attributes:
        message: The message.
        event: The event in it, as far as it can be read.
        is_certain: Whether it is known not to be settled.
    """

    message: StoredMessage
    event: Identity
    is_certain: bool


@dataclass(frozen=True)
class Consumer:
    """
    A JetStream consumer and its lag.

    Attributes:
        stream: Name of the stream.
        name: Name of the consumer.
        lag: Lag of the consumer; None if the server did not respond.
        pause: Pause of its handlers because of an outage, if a client reports one.
        unsettled: Its oldest messages that are delivered and not settled; None if they are not shown.
    """

    stream: str
    name: str
    lag: Lag | None = None
    pause: Pause | None = None
    unsettled: Sequence[Unsettled] | None = None


@dataclass(frozen=True)
class Report:
    """
    The report on an interval.

    Attributes:
        subject: The subscribed subject, or None.
        seconds: Length of the interval in seconds.
        total_seconds: Seconds since the start.
        traffic: Counts of messages.
        consumer: The consumer given on the command line, or None.
    """

    subject: str | None
    seconds: float
    total_seconds: float
    traffic: Traffic
    consumer: Consumer | None


def report_fields(report: Report, limit: int) -> dict[str, Any]:
    """Return a report as JSON values; each count is an object with the members of :class:`Count`."""
    found: dict[str, Any] = {"seconds": round(report.seconds, 3)}
    if report.subject is not None:
        found |= _traffic_fields(report.traffic, limit)
    if (consumer := report.consumer) is not None:
        lag = dict.fromkeys(Lag._fields) if consumer.lag is None else consumer.lag._asdict()
        since = consumer.pause
        pause = None if since is None else {"seconds": _age(since.since), "error": since.error}
        found["consumer"] = {"stream": consumer.stream, "name": consumer.name, **lag, "pause": pause}
        if consumer.unsettled is not None:
            found["consumer"]["unsettled"] = [_unsettled_fields(*one) for one in consumer.unsettled]
    return found


def _unsettled_fields(message: StoredMessage, event: Identity, is_certain: bool) -> dict[str, Any]:
    own = {"sequence": message.sequence, "subject": message.subject, "seconds": _age(message.timestamp.timestamp())}
    return {**own, "event": event.fields(), "is_certain": is_certain}


def _traffic_fields(traffic: Traffic, limit: int) -> dict[str, Any]:
    pairs, others = traffic.ranked(limit)
    return {
        **_members(traffic.total),
        "modes": {mode: _members(count) for mode, count in sorted(traffic.modes.items())},
        "errors": {code: _members(count) for code, count in sorted(traffic.errors.items())},
        "events": [{"type": type_, "source": source, **_members(count)} for (type_, source), count in pairs],
        "others": _members(others),
    }


def _members(count: Count) -> dict[str, int]:
    return {name: getattr(count, name) for name in Count.__slots__}


def report_table(report: Report, limit: int) -> RenderableType:
    """Return a report as text lines and a table."""
    traffic = report.traffic
    total = traffic.total
    head = []
    if report.subject is not None:
        head.append(
            f"{report.subject}: {counted(total.total_messages, 'message')} in {report.total_seconds:.0f} s, "
            f"now {_rate(total.messages, report.seconds)}/s, {_bytes(total.data_bytes, report.seconds)}/s"
        )
    head += _listed("mode", traffic.modes) + _listed("error", traffic.errors)
    if report.consumer is not None:
        head += _consumer_lines(report.consumer)
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


def _consumer_lines(consumer: Consumer) -> Iterator[str]:
    yield f"consumer {consumer.name} of stream {consumer.stream}: {_lag_text(consumer.lag)}"
    if consumer.pause is not None:
        yield f"its handlers pause since {_age(consumer.pause.since)} s: {consumer.pause.error}"
    for message, event, is_certain in consumer.unsettled or ():
        state = "not settled" if is_certain else "perhaps not settled"
        age = _age(message.timestamp.timestamp())
        yield f"{state}: message {message.sequence} on {message.subject}, stored {age} s ago: {event.text()}"


def _age(since: float) -> int:
    """Return the seconds since a time, which is in seconds since 1970."""
    return max(0, round(time.time() - since))


def _lag_text(lag: Lag | None) -> str:
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
