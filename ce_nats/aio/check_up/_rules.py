"""
Judge the configuration of a stream, a consumer and a stream of dead letters: pure functions, without requests.

Configurations are the JSON of the server, which omits empty values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from ...codec.timestamp import Timestamp
from ...errors import DecodeError, preview
from ...subjects import covers, overlap
from .._jetstream_api import Progress, StreamDescription

_SECOND: Final = 10**9
# The shortest time without a sign of life of a program after which the server may redeliver.
_MIN_WAIT: Final = 2.0
# The shortest time for which dead letters should be kept: until an operator looks at them.
_MIN_LETTER_AGE: Final = 24 * 60 * 60
# Part of a limit from which a stream counts as full, and of its messages that it removes next.
_FULL: Final = 0.9
_NEXT: Final = 0.1


class Level(str, Enum):
    """How serious a finding is."""

    ERROR = "error"
    """Events are lost or refused, or the program does not start."""
    WARNING = "warning"
    """Events are lost, repeated or delayed if something fails."""
    UNKNOWN = "unknown"
    """A requirement cannot be checked with the permissions and the connections given."""


@dataclass(frozen=True, slots=True)
class Finding:
    """
    A problem of a configuration.

    Attributes:
        level: How serious it is.
        code: Stable name of the rule, ``one-replica`` for example.
        target: What was checked, ``stream ORDERS`` for example.
        text: The reason.
        remedy: Command, call or setting that solves it.
    """

    level: Level
    code: str
    target: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level.value}: {self.target}: {self.text} ({self.code})"


class Feature(NamedTuple):
    """A feature of streams: its setting, and the first version of nats-server that has it."""

    setting: str
    version: tuple[int, int, int]


FEATURES: Final[Mapping[str, Feature]] = {
    "atomic": Feature("allow_atomic", (2, 12, 1)),
    "batches": Feature("allow_batched", (2, 14, 0)),
    "schedules": Feature("allow_msg_schedules", (2, 12, 0)),
    "ttl": Feature("allow_msg_ttl", (2, 11, 0)),
}


def check_feature(name: str) -> None:
    """
    Check that a text is the name of a feature.

    Raises:
        ValueError: It is not.
    """
    if name not in FEATURES:
        raise ValueError(f"features must be of {', '.join(FEATURES)}, got {preview(name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """
    What a program needs; see :func:`ce_nats.aio.jetstream.check`. Times are in seconds.

    Attributes:
        replicas: Least number of replicas, or None.
        sync: Whether each server that stores the stream must sync each message.
        features: Names in :data:`FEATURES`.
        retry_timeout: Time for which publishers repeat a message.
        read_every: Interval in which everything in the stream is read, or None.
        in_flight: Number of messages that a program handles and fetches at once.
    """

    replicas: int | None = None
    sync: bool = False
    features: tuple[str, ...] = ()
    retry_timeout: float = 35.0
    read_every: float | None = None
    in_flight: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """
    What is known of the servers.

    Attributes:
        version: Version of the connected server.
        is_cluster: Whether it belongs to a cluster.
        max_payload: Maximum size of a message.
        synced: Whether servers sync each message, by their names.
        was_asked: Whether somewhere was asked whether servers sync.
    """

    version: tuple[int, int, int]
    is_cluster: bool
    max_payload: int
    synced: Mapping[str, bool] = field(default_factory=dict)
    was_asked: bool = False


class Stream(StreamDescription):
    """A stream, with what rules ask."""

    __slots__ = ()

    @property
    def target(self) -> str:
        """Name for findings."""
        return f"stream {self.state.name}"

    @property
    def servers(self) -> list[str]:
        """Names of the servers that store it."""
        names = [self.cluster.get("leader"), *(replica.get("name") for replica in self.cluster.get("replicas") or ())]
        return [name for name in names if name]

    @property
    def is_full(self) -> bool:
        """Whether it has (nearly) reached a limit of its messages or bytes."""
        limits = ((self.state.messages, "max_msgs"), (self.state.size, "max_bytes"))
        return any((most := self.number(name)) > 0 and used >= most * _FULL for used, name in limits)

    def number(self, setting: str) -> int:
        """Return a number of its configuration; 0 if it is omitted, and -1 without a limit."""
        return int(self.config.get(setting) or 0)

    def set(self, setting: str, value: object) -> str:
        """Return the command that changes a setting."""
        return f"ce-nats configure {self.state.name} {setting}={value}"


class Consumer(NamedTuple):
    """
    A consumer of a stream.

    Attributes:
        name: Its name.
        progress: Its configuration and progress.
    """

    name: str
    progress: Progress

    @property
    def filters(self) -> list[str]:
        """Subjects that it reads."""
        return self.progress.filters or [">"]

    def set(self, stream: Stream, setting: str, value: object) -> str:
        """Return the command that changes a setting."""
        return f"ce-nats configure {stream.state.name} --consumer {self.name} {setting}={value}"


# --- Streams --------------------------------------------------------------------------------------------------------


def stream_findings(stream: Stream, needs: Needs, servers: Servers) -> Iterator[Finding]:
    """Yield what is wrong with a stream to which events are published."""
    yield from _stored(stream)
    yield from durability_findings(stream, needs, servers)
    yield from _features(stream, needs, servers)
    target, config = stream.target, stream.config
    window = stream.number("duplicate_window") / _SECOND
    if window < needs.retry_timeout:
        text = f"it detects duplicates for {window:g} s, and publishers repeat events for {needs.retry_timeout:g} s"
        remedy = stream.set("duplicate_window", 120 * _SECOND)
        yield Finding(Level.WARNING, "duplicate-window", target, f"{text}: an event can be stored twice", remedy)
    if needs.read_every is not None:
        age = stream.number("max_age") / _SECOND
        if 0 < age < needs.read_every:
            text = f"it deletes messages after {age:g} s, and is read every {needs.read_every:g} s"
            remedy = stream.set("max_age", round(2 * needs.read_every * _SECOND))
            yield Finding(Level.ERROR, "max-age", target, text, remedy)
        if config.get("retention", "limits") != "limits":
            text = "it deletes messages that consumers have acknowledged, before they are read"
            yield Finding(Level.ERROR, "retention", target, text, "a stream with retention=limits that sources it")


def _stored(stream: Stream) -> Iterator[Finding]:
    """Yield why a stream does not store messages, or does not acknowledge them."""
    target, config = stream.target, stream.config
    if config.get("sealed"):
        yield Finding(Level.ERROR, "sealed", target, "it is sealed, and stores nothing", "another stream")
    if config.get("no_ack"):
        text = "it has no_ack: publishers get no acknowledgement"
        yield Finding(Level.ERROR, "no-ack", target, text, stream.set("no_ack", "false"))
    if config.get("discard") == "new" and stream.is_full:
        text = "it is full, or nearly so, and refuses new messages (discard is new)"
        yield Finding(Level.ERROR, "full", target, text, stream.set("max_bytes", 2 * max(1, stream.state.size)))
    if config.get("retention") == "interest" and not stream.consumers:
        text = "it has no consumer, and with the retention interest it drops all messages"
        yield Finding(Level.ERROR, "no-interest", target, text, "PullConsumer(..., create=ConsumerConfig())")


def durability_findings(stream: Stream, needs: Needs, servers: Servers) -> Iterator[Finding]:
    """Yield which failures lose messages that a stream has acknowledged."""
    target, config = stream.target, stream.config
    level = Level.ERROR if needs.replicas is not None or needs.sync else Level.WARNING
    if config.get("storage") == "memory":
        text = "its messages are in memory, and are lost when its servers stop"
        yield Finding(level, "memory-storage", target, text, "another stream, with storage=file")
    if config.get("persist_mode") == "async":
        text = "it acknowledges messages before they are written (persist_mode is async)"
        yield Finding(level, "async-persistence", target, text, "another stream, without persist_mode")
    replicas = stream.number("num_replicas")
    if needs.replicas is not None and replicas < needs.replicas:
        text = f"it must have {needs.replicas} replicas, got {replicas}"
        yield Finding(Level.ERROR, "replicas", target, text, stream.set("num_replicas", needs.replicas))
    elif servers.is_cluster and replicas < 2:
        text = "it has one replica: it stops with its server, and is lost with the disk"
        yield Finding(Level.WARNING, "one-replica", target, text, stream.set("num_replicas", 3))
    elif replicas % 2 == 0 and replicas:
        text = f"with {replicas} replicas it tolerates as many failures as with {replicas - 1}"
        yield Finding(Level.WARNING, "even-replicas", target, text, stream.set("num_replicas", replicas + 1))
    lagging = [
        str(replica.get("name"))
        for replica in stream.cluster.get("replicas") or ()
        if replica.get("offline") or not replica.get("current")
    ]
    if lagging:
        text = f"replicas are not current: {', '.join(lagging)}"
        yield Finding(Level.WARNING, "replica-not-current", target, text, "start these servers, or look at their logs")
    yield from _synced(stream, needs, servers)


def _synced(stream: Stream, needs: Needs, servers: Servers) -> Iterator[Finding]:
    names = stream.servers
    late = [name for name in names if servers.synced.get(name) is False]
    if late and (needs.sync or servers.was_asked):
        level = Level.ERROR if needs.sync else Level.WARNING
        text = f"servers do not sync each message, which a power failure can lose: {', '.join(late)}"
        yield Finding(level, "not-synced", stream.target, text, "jetstream { sync_interval: always } of nats-server")
    unknown = [name for name in names if name not in servers.synced]
    if needs.sync and (unknown or not names):
        text = f"whether servers sync each message is not known: {', '.join(unknown) or 'their names are not known'}"
        yield Finding(Level.UNKNOWN, "sync", stream.target, text, "the monitoring URL of each server, or a system user")


def _features(stream: Stream, needs: Needs, servers: Servers) -> Iterator[Finding]:
    target, config = stream.target, stream.config
    for name in needs.features:
        setting, version = FEATURES[name]
        if servers.version < version:
            wanted, got = (".".join(map(str, number)) for number in (version, servers.version))
            text = f"{setting} needs nats-server {wanted} or later, got {got}"
            yield Finding(Level.ERROR, name, target, text, "a later nats-server")
        elif not config.get(setting):
            yield Finding(Level.ERROR, name, target, f"it must have {setting}", stream.set(setting, "true"))
    if "schedules" in needs.features and config.get("retention") == "interest":
        text = "with the retention interest it drops schedules, unless a consumer listens on their subjects"
        yield Finding(Level.WARNING, "schedule-interest", target, text, "schedules in a stream with another retention")


# --- Consumers ------------------------------------------------------------------------------------------------------


def missing_consumer(stream: str, name: str) -> Finding:
    """Return the finding for a consumer that does not exist."""
    target = f"consumer {name} of stream {stream}"
    return Finding(
        Level.ERROR, "no-consumer", target, "it does not exist", "PullConsumer(..., create=ConsumerConfig())"
    )


def consumer_findings(
    stream: Stream, origins: Sequence[str], consumer: Consumer, needs: Needs, now: datetime
) -> Iterator[Finding]:
    """
    Yield what is wrong with a consumer for :class:`~ce_nats.aio.PullConsumer`.

    ``origins``: Subjects of the messages in the stream; empty if they are not known.
    """
    target, config = f"consumer {consumer.name} of {stream.target}", consumer.progress.config
    if config.get("deliver_subject"):
        yield Finding(Level.ERROR, "push-consumer", target, "it must be a pull consumer", "another consumer")
    if (policy := config.get("ack_policy")) != "explicit":
        text = f"messages must be acknowledged one by one, and its ack_policy is {policy}"
        yield Finding(Level.ERROR, "ack-policy", target, text, "another consumer, with ack_policy=explicit")
    if origins and not any(overlap(one, other) for one in consumer.filters for other in origins):
        text = f"it reads {', '.join(consumer.filters)}, and the subjects of the stream are {', '.join(origins)}"
        remedy = consumer.set(stream, "filter_subject", origins[0])
        if config.get("filter_subjects"):
            remedy = consumer.set(stream, "filter_subjects", f"'[\"{origins[0]}\"]'")
        yield Finding(Level.ERROR, "filter", target, text, remedy)
    if config.get("headers_only"):
        text = "events have no data (headers_only)"
        yield Finding(Level.WARNING, "headers-only", target, text, consumer.set(stream, "headers_only", "false"))
    if config.get("inactive_threshold"):
        text = "the server deletes it, and its position, if no program uses it for a time (inactive_threshold)"
        remedy = consumer.set(stream, "inactive_threshold", 0)
        if not config.get("durable_name"):
            remedy = "another consumer, with a durable_name"
        yield Finding(Level.WARNING, "inactive-threshold", target, text, remedy)
    if config.get("mem_storage") or 0 < int(config.get("num_replicas") or 0) < stream.number("num_replicas"):
        text = "its position is less durable than the stream (mem_storage, num_replicas): events can be handled again"
        is_in_memory = config.get("mem_storage")
        remedy = "another consumer, without mem_storage" if is_in_memory else consumer.set(stream, "num_replicas", 0)
        yield Finding(Level.WARNING, "position", target, text, remedy)
    yield from _redelivery(stream, consumer, target)
    yield from _flow(stream, consumer, needs, target, now)


def _redelivery(stream: Stream, consumer: Consumer, target: str) -> Iterator[Finding]:
    """Yield when the server redelivers messages too early, or not at all."""
    config = consumer.progress.config
    if (most := int(config.get("max_deliver") or 0)) > 0:
        text = (
            f"the server drops messages after {most} deliveries (max_deliver), without a dead letter if a process ends"
        )
        yield Finding(Level.WARNING, "max-deliver", target, text, consumer.set(stream, "max_deliver", -1))
    waits = config.get("backoff") or [config.get("ack_wait") or 30 * _SECOND]
    if (wait := min(waits) / _SECOND) < _MIN_WAIT:
        setting, value = ("backoff", "[]") if config.get("backoff") else ("ack_wait", str(30 * _SECOND))
        text = f"the server redelivers messages after {wait:g} s ({setting}), also if their program only pauses"
        yield Finding(Level.WARNING, "ack-wait", target, text, consumer.set(stream, setting, value))


def _flow(stream: Stream, consumer: Consumer, needs: Needs, target: str, now: datetime) -> Iterator[Finding]:
    """Yield why a consumer delivers few messages, or none, or misses some."""
    most = int(consumer.progress.config.get("max_ack_pending") or 0)
    if 0 < most < needs.in_flight:
        text = f"the program has up to {needs.in_flight} messages in flight, and max_ack_pending is {most}"
        remedy = consumer.set(stream, "max_ack_pending", max(1000, needs.in_flight))
        yield Finding(Level.WARNING, "max-ack-pending", target, text, remedy)
    if 0 < most <= consumer.progress.ack_pending:
        text = (
            f"it delivers nothing until some of {consumer.progress.ack_pending} messages are settled (max_ack_pending)"
        )
        remedy = f"ce-nats top --stream {stream.state.name} --consumer {consumer.name} --stuck"
        yield Finding(Level.WARNING, "in-flight-full", target, text, remedy)
    if (until := _instant(consumer.progress.config.get("pause_until"))) is not None and until > now:
        text = f"it delivers nothing: it is paused until {until}"
        api = f"$JS.API.CONSUMER.PAUSE.{stream.state.name}.{consumer.name}"
        remedy = f"await nc.request('{api}'), or nats consumer resume"
        yield Finding(Level.WARNING, "paused", target, text, remedy)
    yield from _removed_soon(stream, consumer, target)


def _removed_soon(stream: Stream, consumer: Consumer, target: str) -> Iterator[Finding]:
    """Yield that a stream at its limits is about to remove messages that were not handled."""
    state = stream.state
    begin = max(consumer.progress.ack_floor + 1, state.first)
    next_ones = state.first + (state.last - state.first) * _NEXT
    if stream.is_full and stream.config.get("discard", "old") == "old" and begin <= min(next_ones, state.last):
        text = f"its next message, {begin}, is among those that the stream removes next: it is full (discard is old)"
        yield Finding(Level.WARNING, "unread", target, text, stream.set("max_bytes", 2 * max(1, state.size)))


def _instant(text: Any) -> Timestamp | None:
    if not isinstance(text, str):
        return None
    try:
        return Timestamp(text)
    except DecodeError:
        return None


# --- Dead letters ---------------------------------------------------------------------------------------------------


def dead_letter_findings(
    stream: Stream, consumer: Consumer | None, subject: str, letters: Stream | None, servers: Servers
) -> Iterator[Finding]:
    """Yield what is wrong with a subject for dead letters; ``letters`` is the stream that listens, or None."""
    target = f"dead letters on {subject}"
    if letters is None:
        text = "no stream listens: events that cannot be handled stay in their stream, and are delivered again"
        remedy = f"js.add_stream(name='DEAD_{stream.state.name}', subjects=['{subject}'])"
        yield Finding(Level.ERROR, "dead-letter-unstored", target, text, remedy)
        return
    if letters.state.name == stream.state.name:
        is_read = consumer is not None and any(covers(pattern, subject) for pattern in consumer.filters)
        text = "they are in the stream of their events, whose limits and readers they share"
        if is_read:
            text = "the consumer reads them: each one would be dead-lettered again"
        level = Level.ERROR if is_read else Level.WARNING
        yield Finding(level, "dead-letter-stream", target, text, "a subject of another stream")
        return
    yield from _stored(letters)
    if letters.config.get("storage") == "memory" != stream.config.get("storage"):
        text = "its messages are in memory, and those of their events are in files"
        yield Finding(Level.WARNING, "memory-storage", letters.target, text, "another stream, with storage=file")
    if letters.number("num_replicas") < stream.number("num_replicas"):
        text = "dead letters have fewer replicas than their events"
        remedy = letters.set("num_replicas", stream.number("num_replicas"))
        yield Finding(Level.WARNING, "dead-letter-replicas", letters.target, text, remedy)
    if 0 < (age := letters.number("max_age") / _SECOND) < _MIN_LETTER_AGE:
        text = f"it deletes dead letters after {age:g} s"
        remedy = letters.set("max_age", 30 * _MIN_LETTER_AGE * _SECOND)
        yield Finding(Level.WARNING, "dead-letter-age", letters.target, text, remedy)
    if letters.config.get("deny_delete"):
        text = "dead letters cannot be deleted after they were requeued (deny_delete)"
        yield Finding(Level.WARNING, "deny-delete", letters.target, text, "another stream, without deny_delete")
    most = letters.number("max_msg_size")
    if 0 < most < (stream.number("max_msg_size") if stream.number("max_msg_size") > 0 else servers.max_payload):
        text = f"it refuses messages above {most} bytes, and their events may be larger"
        yield Finding(Level.WARNING, "dead-letter-size", letters.target, text, letters.set("max_msg_size", -1))


# --- Permissions ----------------------------------------------------------------------------------------------------


def permission_findings(
    permissions: Mapping[str, Any], publish: Mapping[str, str], subscribe: Mapping[str, str], user: str
) -> Iterator[Finding]:
    """
    Yield subjects that a user needs and lacks.

    ``permissions`` are those of the server's response; the others are subjects with what they are needed for.
    """
    for kind, subjects in (("publish", publish), ("subscribe", subscribe)):
        limits = permissions.get(kind) or {}
        allowed, denied = limits.get("allow"), limits.get("deny") or ()
        for subject, purpose in subjects.items():
            is_allowed = not allowed or any(covers(pattern.split()[0], subject) for pattern in allowed)
            if not is_allowed or any(overlap(pattern.split()[0], subject) for pattern in denied):
                text = f"it lacks permission to {kind} to {subject}, {purpose}"
                remedy = f'permissions {{ {kind}: {{ allow: ["{subject}"] }} }} of nats-server'
                yield Finding(Level.ERROR, "permission", f"user {user}", text, remedy)
