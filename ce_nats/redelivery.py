"""
The policy for deliveries: acknowledge, redeliver later, or dead-letter.

``decide`` is a pure function of the outcome, the number of deliveries, a policy and a random number, so that fixtures
in any language can test it. :class:`DeadLetter` is the content of the headers that describe a dead letter.

A dead letter has the payload and the headers of the original, and additional headers that begin with ``Dead-Letter-``,
a prefix that no CloudEvents attribute has. Headers with instructions for the server are not kept under their names:
``Nats-Rollup`` would purge the dead letters' stream, ``Nats-Expected-Stream`` and ``Nats-Stream-Source`` would make it
refuse the message. Each one is kept in a ``Dead-Letter-Header``, whose value is the name, a space and the value.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ._numbers import (
    MAX_SECONDS,
    check_count,
    check_integer,
    check_number,
    check_optional_seconds,
    check_seconds,
    is_number,
)
from .codec.percent import decode as percent_decode
from .codec.percent import encode as percent_encode
from .errors import CeNatsError, DecodeError, ErrorCode, choice, preview
from .message import MSG_ID

__all__ = [
    "Action",
    "Backoff",
    "Blame",
    "Breaker",
    "BreakerState",
    "DeadLetter",
    "Decision",
    "Outcome",
    "Reason",
    "RetryPolicy",
    "Unavailable",
    "decide",
    "is_server_header",
]

PREFIX: Final = "Dead-Letter-"
KEPT_HEADER: Final = f"{PREFIX}Header"
# Contains a malformed header block, which any client may publish: it cannot be split into headers.
BLOCK_HEADER: Final = f"{PREFIX}Block"
# Another dead-lettering of the same message: of its dead letter.
_AGAIN_HEADER: Final = f"{PREFIX}Again"
_LINE_NAMES: Final = ("Reason", "Error", "Text", "Subject", "Stream", "Consumer", "Sequence", "Deliveries")
# Characters of an exception's text, before escaping.
_MAX_TEXT_CHARACTERS: Final = 300
_NUMBER: Final = re.compile("[0-9]{1,20}")
# Additional deliveries, one message at a time, before the message is considered the one that ends the process.
_MORE_UNFINISHED: Final = 5


class Outcome(str, Enum):
    """Outcome of a delivery."""

    RECEIVED = "received"  # it arrived, and is not processed yet
    DONE = "done"  # the handler returned
    MARKER = "marker"  # a tombstone of a key-value bucket, which has no event
    EXPIRED = "expired"  # its ``expirytime`` is in the past, and the consumer skips such events
    FILTERED = "filtered"  # it does not pass the filter of the consumer
    FAILED = "failed"  # the handler raised; a retry may succeed
    REJECTED = "rejected"  # the handler rejected the event: it can never be processed
    UNDECODABLE = "undecodable"  # it is not a CloudEvent
    RELEASED = "released"  # the handler was cancelled, or never ran

    def __str__(self) -> str:
        return self.value


class Action(str, Enum):
    """Action for a delivery."""

    HANDLE = "handle"
    ACK = "ack"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"

    def __str__(self) -> str:
        return self.value


class Reason(str, Enum):
    """Reason for dead-lettering a message."""

    UNDECODABLE = "undecodable"
    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    PROCESS_ENDED = "process-ended"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Backoff:
    """
    Exponential delays: ``initial * factor ** (deliveries - 1)`` seconds, at most ``maximum``.

    A part of each delay is random, so that messages that failed together, for example because a database was down, are
    not all redelivered at the same time.

    Args:
        initial: Delay after the first delivery, in seconds.
        factor: Factor from each delay to the next, 1 or more.
        maximum: Longest delay, in seconds.
        jitter: Random part of each delay, 0 to 1. With 0.5 a delay is between half of its value and its value, with 1
            between zero and its value; 0 disables jitter.

    Raises:
        ValueError: A delay is not a number of seconds, 0 or more, the factor not a number, 1 or more, or the jitter not
            a number from 0 to 1.
    """

    initial: float = 1.0
    factor: float = 4.0
    maximum: float = 300.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        check_seconds("initial", self.initial)
        check_seconds("maximum", self.maximum)
        check_number("factor", self.factor, 1)
        check_number("jitter", self.jitter, 0, 1)

    def delay(self, deliveries: int, random: float = 0.0) -> float:
        """
        Return the delay in seconds.

        Args:
            deliveries: Number of deliveries so far, 1 or more.
            random: A random number, 0 or more and below 1. With 0 the delay is not reduced.
        """
        try:
            whole = float(min(self.maximum, self.initial * self.factor ** (deliveries - 1)))
        except OverflowError:
            whole = float(self.maximum if self.initial else 0)
        return whole * (1 - self.jitter * random)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    Maximum number of deliveries of a message, and the delays between them.

    Args:
        max_deliveries: Number of deliveries after which a message whose handler fails is dead-lettered, 1 or more.
        backoff: A :class:`Backoff`, or a list of delays in seconds, without jitter; the last delay is used for all
            later deliveries.
        max_unfinished: Number of deliveries without an outcome after which a message is dead-lettered before it is
            handled again, because its handler ends the process; ``max_deliveries`` or more. None means five more than
            ``max_deliveries``.

    Raises:
        ValueError: ``max_deliveries`` is not an integer, 1 or more, or ``max_unfinished`` is below it; the list of
            delays is empty, or a delay is not a number of seconds, 0 or more.
    """

    max_deliveries: int = 8
    backoff: Backoff | Sequence[float] = field(default_factory=Backoff)
    max_unfinished: int | None = None

    def __post_init__(self) -> None:
        check_count("max_deliveries", self.max_deliveries)
        if self.max_unfinished is not None:
            check_integer("max_unfinished", self.max_unfinished)
            if self.max_unfinished < self.max_deliveries:
                raise ValueError(
                    f"max_unfinished must be max_deliveries ({self.max_deliveries}) or more, got {self.max_unfinished}"
                )
        if not isinstance(self.backoff, Backoff):
            if not self.backoff or not all(is_number(delay, 0, MAX_SECONDS) for delay in self.backoff):
                text = f"backoff must be one or more numbers of seconds from 0 to {MAX_SECONDS}"
                raise ValueError(f"{text}, got {preview(self.backoff)}")
            object.__setattr__(self, "backoff", tuple(map(float, self.backoff)))

    @property
    def unfinished_limit(self) -> int:
        """Maximum number of deliveries with which a message is still handled."""
        if self.max_unfinished is not None:
            return self.max_unfinished
        return self.max_deliveries + _MORE_UNFINISHED

    def delay(self, deliveries: int, random: float = 0.0) -> float:
        """
        Return the delay in seconds.

        Args:
            deliveries: Number of deliveries so far, 1 or more.
            random: As for :meth:`Backoff.delay`.
        """
        if isinstance(self.backoff, Backoff):
            return self.backoff.delay(deliveries, random)
        return self.backoff[min(deliveries, len(self.backoff)) - 1]


@dataclass(frozen=True, slots=True)
class Decision:
    """
    Decision about a delivery.

    Attributes:
        action: The action.
        delay: Seconds until the message is redelivered, for ``RETRY``; 0 means at once.
        reason: The reason, for ``DEAD_LETTER``.
    """

    action: Action
    delay: float = 0.0
    reason: Reason | None = None


def decide(
    outcome: Outcome, deliveries: int, policy: RetryPolicy, random: float = 0.0, *, failures: int | None = None
) -> Decision:
    """
    Return the action for a delivery.

    The server also counts deliveries of messages that were fetched, but not handled before the process ended or the
    consumer was closed. So a message that was delivered more than ``max_deliveries`` times is still handled, and
    dead-lettered if its handler fails. It is dead-lettered without being handled again only after more than
    ``max_unfinished`` deliveries: its handler ends the process. The caller must know that its handler was called: a
    number of deliveries does not prove it. A released message is redelivered at once, after any
    number of deliveries.

    Args:
        outcome: Outcome of the delivery.
        deliveries: Number of deliveries, including this one; 1 or more.
        policy: Maximum number of deliveries, and the delays between them.
        random: A random number, 0 or more and below 1, for the jitter of a delay; 0 means no jitter.
        failures: Number of times that the handler has failed, this one included, if that is known; other deliveries
            were released. None counts each delivery as a failure.
    """
    if outcome in (Outcome.DONE, Outcome.MARKER, Outcome.EXPIRED, Outcome.FILTERED):
        return Decision(Action.ACK)
    if outcome is Outcome.RELEASED:
        return Decision(Action.RETRY)
    if outcome is Outcome.UNDECODABLE:
        return Decision(Action.DEAD_LETTER, reason=Reason.UNDECODABLE)
    if outcome is Outcome.REJECTED:
        return Decision(Action.DEAD_LETTER, reason=Reason.REJECTED)
    if outcome is Outcome.RECEIVED:
        if deliveries <= policy.unfinished_limit:
            return Decision(Action.HANDLE)
        return Decision(Action.DEAD_LETTER, reason=Reason.PROCESS_ENDED)
    failures = deliveries if failures is None else failures  # the handler failed
    if failures < policy.max_deliveries and (failures == deliveries or deliveries < policy.unfinished_limit):
        return Decision(Action.RETRY, delay=policy.delay(failures, random))
    return Decision(Action.DEAD_LETTER, reason=Reason.EXHAUSTED)


# Delays before a handler is called again during an outage: the first one, doubled each time up to the last one.
_FIRST_PROBE: Final = 0.5
_MAX_PROBE: Final = 30.0
# Number of different events that have to fail without a declaration.
_MIN_EVENTS: Final = 10
# Number of failed probes after which another event is the probe: one may fail for its own reason.
_MAX_PROBES: Final = 3


class Unavailable(Exception):  # noqa: N818 - not an error of the event, which is handled again
    """
    Raised by a handler if something that it needs is not available: a database, for instance.

        raise Unavailable("postgres")

    The consumer pauses, and handles the event again: see :class:`ce_nats.aio.PullConsumer`.

    Args:
        name: Name of what is not available, for the log.
        retry_after: Seconds after which it may be available again; None if that is not known.

    Attributes:
        retry_after: As the argument.

    Raises:
        ValueError: ``retry_after`` is not a number of seconds, 0 or more.
    """

    def __init__(self, name: str = "", retry_after: float | None = None) -> None:
        check_optional_seconds("retry_after", retry_after)
        super().__init__(name)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[Unavailable], tuple[str, float | None]]:
        return type(self), (self.args[0], self.retry_after)


class BreakerState(str, Enum):
    """Whether handlers may be called."""

    CLOSED = "closed"  # they may
    OPEN = "open"  # not before a time
    PROBING = "probing"  # one is being called, and the others wait for its outcome

    def __str__(self) -> str:
        return self.value


class Blame(str, Enum):
    """What a failure is attributed to."""

    EVENT = "event"  # the event: it is retried later, or dead-lettered
    OUTAGE = "outage"  # an outage: the same event is handled next
    PROBE = "probe"  # an outage, or the event, which has failed several times: another one is handled next

    def __str__(self) -> str:
        return self.value


class Breaker:
    """
    Distinguishes an outage, in which all events fail, from events that fail. No I/O; ``now`` is an argument.

    It opens after a failure that declares an outage, or after ``pause_after`` failures in a row, without a success, of
    at least ten different events. Then one event at once is handled, after pauses of 0.5 to 30 seconds, until a handler
    succeeds: that closes it.

    Args:
        pause_after: Number of failures in a row that open it; None counts only declared ones.

    Attributes:
        state: Whether handlers may be called.
        since: Time at which it opened.
        failures: Number of failures since the last success.
    """

    def __init__(self, pause_after: int | None) -> None:
        self.state = BreakerState.CLOSED
        self.since = 0.0
        self.failures = 0
        self._pause_after = pause_after
        self._events: set[Hashable] = set()  # that have failed, while it is closed
        self._until = 0.0
        self._pause = 0.0
        self._probe: Hashable = None
        self._probes = 0  # failed ones of this event

    def wait(self, now: float) -> float | None:
        """Return the seconds after which a handler may be called: 0 if now; None if another one has to end first."""
        if self.state is BreakerState.PROBING:
            return None
        return max(0.0, self._until - now) if self.state is BreakerState.OPEN else 0.0

    def is_probe(self, event: Hashable) -> bool:
        """Return whether the one handler that is called during an outage has this event."""
        return self.state is BreakerState.PROBING and event == self._probe

    def begin(self, event: Hashable) -> None:
        """Note that a handler is called with an event."""
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.PROBING
            self._probes = self._probes if event == self._probe else 0
            self._probe = event

    def succeed(self) -> bool:
        """Note that a handler has returned; return whether this ends an outage."""
        was_open = self.state is not BreakerState.CLOSED
        self.state = BreakerState.CLOSED
        self.failures = self._probes = 0
        self._pause = 0.0
        self._probe = None
        self._events.clear()
        return was_open

    def fail(self, event: Hashable, now: float, *, is_declared: bool, retry_after: float | None = None) -> Blame:
        """
        Note that a handler has failed, and return what the failure is attributed to.

        Args:
            event: The event.
            now: Time in seconds.
            is_declared: Whether the exception declares an outage.
            retry_after: Seconds after which the dependency may be available; None if that is not known.
        """
        self.failures += 1
        if self.state is BreakerState.CLOSED:
            self._events.add(event)
            if not is_declared and (
                self._pause_after is None
                or self.failures < self._pause_after
                or len(self._events) < min(_MIN_EVENTS, self._pause_after)
            ):
                return Blame.EVENT
            self.since = now
            self._open(now, retry_after)
            return Blame.OUTAGE
        if self.is_probe(event):
            self._probes += 1
            self._open(now, retry_after)
            return Blame.OUTAGE if self._probes < _MAX_PROBES else Blame.PROBE
        if retry_after is not None:  # a handler that was called before it opened
            self._until = max(self._until, now + retry_after)
        return Blame.OUTAGE

    def end(self, event: Hashable) -> None:
        """Note that a handler has ended in another way, which tells nothing: it rejected the event, for instance."""
        if self.is_probe(event):
            self.state = BreakerState.OPEN  # the next one may be called at once

    def _open(self, now: float, retry_after: float | None) -> None:
        self.state = BreakerState.OPEN
        self._pause = min(_MAX_PROBE, 2 * self._pause or _FIRST_PROBE)
        self._until = now + (self._pause if retry_after is None else retry_after)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    Content of the headers that describe a dead letter: the origin of the message, and the reason.

    Attributes:
        reason: Reason for dead-lettering the message.
        error: The code of the error (:class:`~ce_nats.ErrorCode`), or the name of another exception's class; ``""``
            if no exception is known, because the handler never returned.
        text: The error's text, cut to 300 characters, or ``""``.
        subject: Subject of the original.
        stream: Stream of the original.
        consumer: The consumer that dead-lettered it.
        sequence: Sequence of the original in that stream.
        deliveries: Number of deliveries of the original.
        is_complete: False if the dead letter does not have the whole original. Either the stream no longer had it: the
            headers are then as nats-py returns them (without repeats, and without bytes that are not UTF-8), and a
            payload that was not delivered is missing. Or ``is_copied`` is False.
        is_copied: False if a copy of the original together with these headers did not fit into a message. The dead
            letter then has neither headers nor payload of the original.
        time: Time at which the stream stored the original, in RFC 3339, if there is no copy and the stream keeps the
            original; else ``""``.
        later: The same about the dead letter itself, if another consumer has dead-lettered it, once for each time; only
            the attributes without a default. Such a dead letter has payload and headers of the first original.
    """

    reason: Reason
    error: str
    text: str
    subject: str
    stream: str
    consumer: str
    sequence: int
    deliveries: int
    is_complete: bool = True
    is_copied: bool = True
    time: str = ""
    later: tuple[DeadLetter, ...] = ()

    @property
    def is_reference(self) -> bool:
        """Whether the original is only in its stream; ``stream``, ``sequence`` and ``time`` identify it."""
        return not self.is_copied and self.time != ""

    def headers(self) -> list[tuple[str, str]]:
        """Return names and values in printable ASCII; free text is percent-encoded."""
        pairs = [
            ("Reason", str(self.reason)),
            ("Error", percent_encode(_unicode(self.error))),
            ("Text", percent_encode(_unicode(self.text[:_MAX_TEXT_CHARACTERS]))),
            ("Subject", percent_encode(_unicode(self.subject))),
            ("Stream", self.stream),
            ("Consumer", self.consumer),
            ("Sequence", str(self.sequence)),
            ("Deliveries", str(self.deliveries)),
        ]
        if not self.is_complete:
            pairs += [("Original", "gone" if self.is_copied else "not-copied"), ("Time", self.time)]
        again = [(_AGAIN_HEADER, one._line()) for one in self.later]
        return [(PREFIX + name, value) for name, value in pairs if value] + again

    def _line(self) -> str:
        """Return the attributes without a default as the value of one header; some may be empty."""
        values = {name.removeprefix(PREFIX): value for name, value in self.headers()}
        return " ".join(values.get(name, "") for name in _LINE_NAMES)

    @classmethod
    def split(cls, headers: Iterable[tuple[str, str]]) -> tuple[DeadLetter, list[tuple[str, str]]]:
        """
        Split the headers of a dead letter into those that describe it and those of the original.

        Args:
            headers: All headers, in wire order, as ``ce_nats.aio.jetstream.read_stream`` returns them.

        Returns:
            The content of the headers that describe it, and the headers of the original; those with instructions for
            the server are last.

        Raises:
            DecodeError: ``missing-attribute`` or ``invalid-header-value`` if the message is not a dead letter.
        """
        own: dict[str, str] = {}
        later: list[str] = []
        originals: list[tuple[str, str]] = []
        kept: list[tuple[str, str]] = []
        has_own_id = False
        for name, value in headers:
            if name == KEPT_HEADER:
                kept.append((value.partition(" ")[0], value.partition(" ")[2]))
            elif name == _AGAIN_HEADER:
                later.append(value)
            elif name.startswith(PREFIX):
                own.setdefault(name.removeprefix(PREFIX), value)
            elif name == MSG_ID and not has_own_id:
                has_own_id = True
            else:
                originals.append((name, value))
        return cls._read(own, later), originals + kept

    @classmethod
    def _read(cls, own: dict[str, str], later: Iterable[str] = ()) -> DeadLetter:
        try:
            return cls(
                choice(Reason, own["Reason"], f"{PREFIX}Reason"),
                percent_decode(own.get("Error", "")),
                percent_decode(own.get("Text", "")),
                percent_decode(own.get("Subject", "")),
                _stream(own["Stream"]),
                own.get("Consumer", ""),
                _number(own, "Sequence"),
                _number(own, "Deliveries"),
                "Original" not in own,
                own.get("Original") != "not-copied",
                own.get("Time", ""),
                tuple(map(cls._read_line, later)),
            )
        except KeyError as error:
            header = f"{PREFIX}{error.args[0]}"
            raise DecodeError(
                ErrorCode.MISSING_ATTRIBUTE, f"a dead letter must have a header {header}", header=header
            ) from error
        except CeNatsError:
            raise
        except ValueError as error:
            raise DecodeError(ErrorCode.INVALID_HEADER_VALUE, str(error)) from error

    @classmethod
    def _read_line(cls, line: str) -> DeadLetter:
        """Read the result of :meth:`_line`."""
        values = line.split(" ")
        if len(values) != len(_LINE_NAMES):
            raise ValueError(f"{_AGAIN_HEADER} must have {len(_LINE_NAMES)} parts, got {preview(line)}")
        return cls._read(dict(zip(_LINE_NAMES, values)))


def _stream(name: str) -> str:
    if not name:
        raise ValueError(f"{PREFIX}Stream must not be empty")
    return name


def _number(own: dict[str, str], name: str) -> int:
    text = own[name]
    if not _NUMBER.fullmatch(text) or int(text) >= 2**64:
        raise ValueError(f"{PREFIX}{name} must be an integer from 0 to 2**64 - 1, got {preview(text)}")
    return int(text)


def is_server_header(name: str) -> bool:
    """
    Whether a header of the original is kept in a ``Dead-Letter-Header``: it is an instruction for the server, or begins
    with ``Dead-Letter-``.

    ``Nats-Msg-Id`` is kept under its name: of two, the server uses the first, which is that of the dead letter.
    """
    return name.startswith(("Nats-", PREFIX)) and name != MSG_ID


def _unicode(text: str) -> str:
    """Replace unpaired surrogates, which an exception's text may contain and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
