"""Each fault of each part of a run is found, in the files and streams of a small run without a server."""

import json
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ce_nats import ContentMode, Timestamp, to_nats_message
from ce_nats.capture import open_capture
from ce_nats.message import StoredMessage
from ce_nats.redelivery import DeadLetter, Reason
from tests.proof.soak import capturing, events, results
from tests.proof.soak.events import HANDLED, Kind
from tests.proof.soak.journal import Run, rows_directory

COUNT = 150
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SENDER, CONSUMER, JOB = "fast", "keyed", "job"
ROLES = {"sender": [SENDER], "consumer": [CONSUMER], "capturing": ["capture"], "job": [JOB]}
REASONS = {Kind.FAILING: Reason.EXHAUSTED, Kind.REJECTED: Reason.REJECTED, Kind.MALFORMED: Reason.UNDECODABLE}
PLANS = [events.plan(1, SENDER, number) for number in range(1, COUNT + 1)]
KEY = next(plan.key for plan in PLANS if sum(it.key == plan.key and it.kind in HANDLED for it in PLANS) > 2)
FIRST, SECOND = [n for n, plan in enumerate(PLANS, 1) if plan.key == KEY and plan.kind in HANDLED][:2]
DEAD = next(n for n, plan in enumerate(PLANS, 1) if plan.kind is Kind.REJECTED)
LANE = [n for n, plan in enumerate(PLANS, 1) if plan.subject == PLANS[FIRST - 1].subject]


@dataclass
class World:
    """What the parts of a run have: changed by a test, then written to files and streams."""

    sent: list = field(default_factory=lambda: [("sent", COUNT)])
    stored: list = field(default_factory=list)
    dead: list = field(default_factory=list)
    handled: list = field(default_factory=list)
    captured: list = field(default_factory=list)
    rows: list = field(default_factory=list)
    copies: list = field(default_factory=list)


@pytest.fixture
def world(complete):
    return World(*(list(getattr(complete, part.name)) for part in fields(World)))


@pytest.fixture(scope="module")
def complete():
    made = World()
    for number, plan in enumerate(PLANS, 1):
        made.sent.append(("acknowledged", number))
        message = stored_message(number, plan)
        made.stored.append(message)
        made.captured.append(message)
        made.copies.append(message._replace(subject=message.subject.replace("in.", "out.job.")))
        is_event = plan.kind is not Kind.MALFORMED
        made.rows.append(
            {
                "sequence": number,
                "subject": message.subject,
                "headers": [{"key": key, "value": value} for key, value in message.headers],
                "data": message.data,
                "ce_id": plan.id if is_event else None,
                "ce_error": None if is_event else "not-a-cloudevent",
            }
        )
        if is_event:
            made.handled.append(("begun", number, nanoseconds(number)))
        if plan.kind in HANDLED:
            made.handled.append(("done", number, plan.digest()))
        else:
            made.dead.append(dead_letter(message, REASONS[plan.kind]))
    return made


def stored_message(number, plan):
    if plan.kind is Kind.MALFORMED:
        headers, data = [("Content-Type", "application/cloudevents+json")], plan.malformed()
    else:
        message = to_nats_message(plan.event(), plan.subject, mode=ContentMode.STRUCTURED)
        headers, data = message.headers.items(), message.data
    return StoredMessage(plan.subject, "", headers, data, "IN", number, Timestamp(START + timedelta(seconds=number)))


def nanoseconds(number):
    return int((START + timedelta(seconds=number)).timestamp()) * 10**9


def dead_letter(message, reason):
    own = DeadLetter(reason, "e", "", message.subject, "IN", CONSUMER, message.sequence, 1)
    return message._replace(subject=f"dead.{CONSUMER}", headers=[*own.headers(), *message.headers])


async def faults(world, directory, monkeypatch):
    """Write files and streams; return the faults that are found, as (place, fault) with their numbers."""
    run = Run(str(directory), [], 1, 1.0)
    for name, lines in {SENDER: world.sent, CONSUMER: world.handled}.items():
        run.journal(name).write_text("".join(" ".join(map(str, line)) + "\n" for line in lines), "utf-8")
    for path in capturing.outputs(run, "capture"):
        with open_capture(path) as file:
            file.write(world.captured)
    log = rows_directory(run, JOB) / "_spark_metadata"
    log.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(world.rows), log.parent / "a.parquet")
    (log / "0").write_text("v1\n" + json.dumps({"path": "file:///a.parquet", "action": "add"}), "utf-8")
    streams = {"IN": world.stored, "DEAD": world.dead, "OUT_job": world.copies}

    async def read_stream(_js, name):
        yield streams[name]

    monkeypatch.setattr(results, "read_stream", read_stream)
    places = await results.Results(run, ROLES).places(None)
    assert len(places) == 9
    return {(place.name, fault): keys for place in places for fault, keys in place.faults.items() if keys}


async def test_complete_run_has_no_faults(world, tmp_path, monkeypatch):
    assert await faults(world, tmp_path, monkeypatch) == {}


def without(items, number):
    return [item for item in items if number_of(item) != number]


def again(items, number):
    return [*items, *(item for item in items if number_of(item) == number)]


def swapped(items):
    """Exchange two messages, which keep their places in the stream."""
    items = list(items)
    one, other = items[LANE[0] - 1], items[LANE[1] - 1]
    items[LANE[0] - 1] = other._replace(sequence=one.sequence, timestamp=one.timestamp)
    items[LANE[1] - 1] = one._replace(sequence=other.sequence, timestamp=other.timestamp)
    return items


def number_of(item):
    if isinstance(item, StoredMessage):
        return item.sequence
    return item["sequence"] if isinstance(item, dict) else item[1]


def with_data(items, number):
    """Change the payload of one message."""
    return [item._replace(data=item.data + b" ") if item.sequence == number else item for item in items]


def unknown(items):
    """Add a message of a number that was never sent."""
    return [*items, stored_message(COUNT + 1, events.plan(1, SENDER, COUNT + 1))]


CAPTURES = ("captured as parquet", "captured as jsonl")
PARQUET, COPIES, HANDLING, LETTERS = (
    "Parquet of job", "copies of events by job", "handled by keyed", "dead-lettered by keyed",
)  # fmt: skip


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        ("sent", lambda items: without(items, FIRST), {("acknowledged", "lost")}),
        ("sent", lambda items: [*items, ("acknowledged", COUNT + 1)], {("acknowledged", "invented")}),
        ("captured", lambda items: without(items, FIRST), {(name, "lost") for name in CAPTURES}),
        ("captured", lambda items: with_data(items, FIRST), {(name, "changed") for name in CAPTURES}),
        ("captured", unknown, {(name, "invented") for name in CAPTURES}),
        ("captured", lambda items: again(items, COUNT), {(name, "twice") for name in CAPTURES}),
        (
            "captured",
            lambda items: [*items[1:], items[0]],
            {(name, "reordered") for name in CAPTURES},
        ),
        ("rows", lambda items: without(items, FIRST), {(PARQUET, "lost")}),
        ("rows", lambda items: again(items, FIRST), {(PARQUET, "twice")}),
        ("rows", lambda items: [*items, {**items[0], "sequence": COUNT + 1}], {(PARQUET, "invented")}),
        ("rows", lambda items: [{**items[0], "data": b"x"}, *items[1:]], {(PARQUET, "changed")}),
        ("rows", lambda items: [{**items[0], "ce_id": "other"}, *items[1:]], {(PARQUET, "changed")}),
        ("copies", lambda items: without(items, FIRST), {(COPIES, "lost")}),
        ("copies", lambda items: again(items, FIRST), {(COPIES, "twice")}),
        ("copies", unknown, {(COPIES, "invented")}),
        ("copies", lambda items: with_data(items, FIRST), {(COPIES, "changed")}),
        ("handled", lambda items: without(items, LANE[-1]), {(HANDLING, "lost")}),
        ("handled", lambda items: again(items, LANE[-1]), {(HANDLING, "twice")}),
        ("handled", lambda items: [*items, ("begun", COUNT + 1, 1)], {(HANDLING, "invented")}),
        ("handled", lambda items: [*items, ("done", DEAD, 1)], {(HANDLING, "invented")}),
        (
            "handled",
            lambda items: [(it[0], it[1], 1) if it[:2] == ("done", FIRST) else it for it in items],
            {(HANDLING, "changed")},
        ),
        (
            "handled",
            lambda items: [("begun", SECOND, 1), *items],
            {(HANDLING, "reordered")},
        ),
        ("dead", lambda items: without(items, DEAD), {(LETTERS, "lost")}),
        ("dead", lambda items: again(items, DEAD), {(LETTERS, "twice")}),
        ("dead", lambda items: with_data(items, DEAD), {(LETTERS, "changed")}),
    ],
)
async def test_each_fault_is_found_in_its_place(world, tmp_path, monkeypatch, part, change, expected):
    setattr(world, part, change(getattr(world, part)))
    found = await faults(world, tmp_path, monkeypatch)
    # A message of a key that is not settled also holds back later ones.
    assert expected <= found.keys() <= expected | {(HANDLING, "reordered")}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda items: without(items, FIRST), "lost"),
        (lambda items: [*items, items[FIRST - 1]._replace(sequence=COUNT + 1)], "twice"),
        (unknown, "invented"),
        (
            lambda items: with_data(items, next(n for n, it in enumerate(PLANS, 1) if it.kind is Kind.MALFORMED)),
            "changed",
        ),
        (swapped, "reordered"),
    ],
)
async def test_each_fault_of_the_stream_is_found(world, tmp_path, monkeypatch, change, fault):
    """All other places are compared with the stream, so they differ from it as well."""
    world.stored = change(world.stored)
    assert ("stored by fast", fault) in await faults(world, tmp_path, monkeypatch)


async def test_wrong_dead_letters_are_found(world, tmp_path, monkeypatch):
    rejected, good = world.stored[DEAD - 1], world.stored[FIRST - 1]
    world.dead = [*without(world.dead, DEAD), dead_letter(rejected, Reason.EXHAUSTED)]
    world.dead.append(dead_letter(good, Reason.REJECTED))
    found = await faults(world, tmp_path, monkeypatch)
    assert found[LETTERS, "invented"] == [FIRST]
    assert found[LETTERS, "changed"] == [DEAD]
