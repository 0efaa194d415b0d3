"""Read what each part of a run has, and compare it: see ``ledger.py``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from nats.js import JetStreamContext

from ce_nats.aio.jetstream import read_stream
from ce_nats.capture import read_capture
from ce_nats.message import StoredMessage
from ce_nats.redelivery import DeadLetter, Reason

from . import capturing, events, journal
from .consumer import BATCHES, KEYED, stored, table
from .events import HANDLED, Kind
from .journal import DEAD, STREAM, Run
from .ledger import FAULTS, Begun, Done, Key, Place, begun_too_early, compare, reordered
from .sender import FAST

_ONCE = ("lost", "twice", "invented", "changed")
_AT_LEAST_ONCE = ("lost", "invented", "changed")
# An event whose handler always fails may also be delivered too often because its consumer was killed.
_REASONS = {
    Kind.GOOD: (),
    Kind.FLAKY: (),
    Kind.FAILING: (Reason.EXHAUSTED, Reason.PROCESS_ENDED),
    Kind.REJECTED: (Reason.REJECTED,),
    Kind.MALFORMED: (Reason.UNDECODABLE,),
}


class Sent(NamedTuple):
    """A message that was sent, with the digest of its plan."""

    id: str
    kind: Kind
    key: str
    digest: int


class Stored(NamedTuple):
    """
    A message of the stream.

    Attributes:
        sent: The message as it was sent; None if it was never sent.
        digest: Digest of subject without its first token, headers and payload.
    """

    sent: Sent | None
    digest: int


class Results:
    """
    Results of a run that has ended.

    Args:
        run: The run.
        roles: Names of senders, consumers, captures and jobs that were part of it.
    """

    def __init__(self, run: Run, roles: Mapping[str, list[str]]) -> None:
        self._run, self._roles = run, roles
        self._sent: dict[str, Sent] = {}
        self._stored: dict[int, Stored] = {}

    async def places(self, js: JetStreamContext) -> list[Place]:
        """Read and compare everything."""
        places = [self._acknowledged(), *await self._in_stream(js)]
        dead = [message async for batch in read_stream(js, DEAD) for message in batch]
        for name in self._roles["consumer"]:
            letters = [message for message in dead if message.subject == f"dead.{name}"]
            places += [self._handled(name, letters), self._dead_lettered(name, letters)]
            if name in BATCHES:
                places.append(self._in_table(name))
        for name in self._roles["capturing"]:
            places += [self._captured(path) for path in capturing.outputs(self._run, name)]
        for name in self._roles["job"]:
            places += [self._in_parquet(name), *await self._copied(name, js)]
        return places

    def _acknowledged(self) -> Place:
        acknowledged: list[tuple[Key, int]] = []
        for sender in self._roles["sender"]:
            last, numbers = journal.sent_and_acknowledged(self._run.journal(sender))
            plans = (events.plan(self._run.seed, sender, number) for number in range(1, last + 1))
            self._sent |= {it.id: Sent(it.id, it.kind, it.key, it.digest()) for it in plans}
            acknowledged += [(f"{sender}-{number}", 0) for number in numbers]
        place = compare("acknowledged", dict.fromkeys(self._sent, 0), acknowledged, promised=("lost", "invented"))
        del place.faults["changed"]
        return place

    async def _in_stream(self, js: JetStreamContext) -> list[Place]:
        """Compare what the stream has of each sender; only fast ingest keeps the order of messages that are resent."""
        found: dict[str, list[tuple[Key, int]]] = defaultdict(list)
        order: dict[str, list[tuple[str, int]]] = defaultdict(list)
        async for batch in read_stream(js, STREAM):
            for message in batch:
                sender = message.subject.split(".")[1]
                event_id, digest = events.decoded(message.headers, message.data)
                sent = self._sent.get(event_id)
                self._stored[message.sequence] = Stored(sent, _raw(message, "in."))
                found[sender].append((event_id, digest))
                # Messages that are not events are published with nats-py, each one in a task.
                if sent is not None and sent.kind is not Kind.MALFORMED:
                    order[sender].append((message.subject, int(event_id.rpartition("-")[2])))
        places = []
        for sender in sorted({*self._roles["sender"], *found}):
            expected = {key: sent.digest for key, sent in self._sent.items() if key.rpartition("-")[0] == sender}
            promised = FAULTS if sender == FAST else _ONCE
            place = compare(f"stored by {sender}", expected, found[sender], promised=promised)
            place.faults["reordered"] = reordered(order[sender])
            places.append(place)
        return places

    def _handled(self, name: str, letters: list[StoredMessage]) -> Place:
        """Compare handled events: at least once each, and in the order of keys if the consumer keeps it."""
        planned = {sequence: stored.sent for sequence, stored in self._stored.items() if stored.sent}
        decodable = {sequence: plan for sequence, plan in planned.items() if plan.kind is not Kind.MALFORMED}
        expected = self._to_handle()
        done: list[tuple[Key, int]] = []
        steps: list[Begun | Done] = []
        unknown: list[Key] = []
        for word, sequence, value in journal.read(self._run.journal(name)):
            if word == "done":
                done.append((int(sequence), int(value)))
                steps.append(Done(int(sequence)))
            else:
                steps.append(Begun(int(sequence), int(value)))
                if int(sequence) not in decodable:
                    unknown.append(int(sequence))
        place = compare(f"handled by {name}", expected, done, promised=(*_AT_LEAST_ONCE, "reordered"))
        place.faults["invented"] += unknown
        if name in KEYED:
            times: dict[int, int] = {}
            for letter in letters:
                times.setdefault(DeadLetter.split(letter.headers)[0].sequence, _nanoseconds(letter))
            keys = {sequence: plan.key for sequence, plan in decodable.items()}
            place.faults["reordered"] = begun_too_early(keys, steps, times)
        return place

    def _to_handle(self) -> dict[Key, int]:
        """Return digests of the events that handlers must handle, by sequence."""
        return {n: it.sent.digest for n, it in self._stored.items() if it.sent and it.sent.kind in HANDLED}

    def _in_table(self, name: str) -> Place:
        """Compare rows, each of which is stored with others."""
        rows: list[tuple[Key, int]] = [*stored(table(self._run, name))]
        return compare(f"rows of {name}", self._to_handle(), rows, promised=_ONCE)

    def _dead_lettered(self, name: str, letters: list[StoredMessage]) -> Place:
        """Compare dead letters; the digest of one is wrong if its reason is."""
        expected: dict[Key, int] = {
            n: it.digest for n, it in self._stored.items() if it.sent and it.sent.kind not in HANDLED
        }
        found: list[tuple[Key, int]] = []
        for letter in letters:
            own, pairs = DeadLetter.split(letter.headers)
            digest = events.raw_digest(own.subject.removeprefix("in."), pairs, letter.data)
            stored = self._stored.get(own.sequence)
            if stored is not None and stored.sent is not None and own.reason not in _REASONS[stored.sent.kind]:
                digest = -1
            found.append((own.sequence, digest))
        return compare(f"dead-lettered by {name}", expected, found, promised=_ONCE)

    def _captured(self, path: Path) -> Place:
        found = [(message.sequence, _raw(message, "in.")) for message in read_capture(path)]
        place = compare(f"captured as {path.suffix[1:]}", self._digests(), found, promised=FAULTS)
        place.faults["reordered"] = reordered(("", sequence) for sequence, _ in found)
        return place

    def _in_parquet(self, name: str) -> Place:
        found: list[tuple[Key, int]] = []
        for file in committed_files(journal.rows_directory(self._run, name)):
            found += (self._parquet_row(row) for row in pq.ParquetFile(file).read().to_pylist())
        return compare(f"Parquet of {name}", self._digests(), found, promised=_ONCE)

    def _parquet_row(self, row: dict[str, Any]) -> tuple[Key, int]:
        """Return sequence and digest of a row; the digest is wrong if a decoded column is."""
        pairs = [(header["key"], header["value"]) for header in row["headers"]]
        digest = events.raw_digest(row["subject"].removeprefix("in."), pairs, row["data"])
        stored = self._stored.get(row["sequence"])
        if stored is not None and stored.sent is not None:
            is_event = stored.sent.kind is not Kind.MALFORMED
            decoded = row["ce_id"], row["ce_error"] is None
            digest = digest if decoded == (stored.sent.id if is_event else None, is_event) else -1
        return row["sequence"], digest

    async def _copied(self, name: str, js: JetStreamContext) -> list[Place]:
        """Compare copies; the sink cannot recognize a resent message that is not an event, so these may be repeated."""
        prefix = f"{journal.copy_prefix(name)}."
        events_found: list[tuple[Key, int]] = []
        others_found: list[tuple[Key, int]] = []
        async for batch in read_stream(js, journal.copy_stream(name)):
            for message in batch:
                event_id = events.decoded(message.headers, message.data)[0]
                is_other = event_id in self._sent and self._sent[event_id].kind is Kind.MALFORMED
                (others_found if is_other else events_found).append((event_id, _raw(message, prefix)))
        planned = [(it.sent, it.digest) for it in self._stored.values() if it.sent]
        wanted: dict[Key, int] = {plan.id: digest for plan, digest in planned if plan.kind is not Kind.MALFORMED}
        others: dict[Key, int] = {plan.id: digest for plan, digest in planned if plan.kind is Kind.MALFORMED}
        return [
            compare(f"copies of events by {name}", wanted, events_found, promised=_ONCE),
            compare(f"copies of other messages by {name}", others, others_found, promised=_AT_LEAST_ONCE),
        ]

    def _digests(self) -> dict[Key, int]:
        return {sequence: stored.digest for sequence, stored in self._stored.items()}


def committed_files(directory: Path) -> Iterator[Path]:
    """Yield the files that a streaming query has committed; a killed one leaves others."""
    log = directory / "_spark_metadata"
    compacted = [int(path.stem) for path in log.glob("*.compact")]
    first = max(compacted, default=-1)
    names = [f"{first}.compact"] if compacted else []
    names += sorted((path.name for path in log.iterdir() if path.name.isdigit() and int(path.name) > first), key=int)
    for name in names:
        for line in (log / name).read_text("utf-8").splitlines()[1:]:
            entry = json.loads(line)
            assert entry["action"] == "add", entry
            yield directory / Path(entry["path"]).name


def _raw(message: StoredMessage, prefix: str) -> int:
    return events.raw_digest(message.subject.removeprefix(prefix), message.headers, message.data)


def _nanoseconds(message: StoredMessage) -> int:
    """Return the time at which a message was stored, rounded down to microseconds."""
    return int(message.timestamp.timestamp() * 1_000_000) * 1000
