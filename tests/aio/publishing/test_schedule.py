"""Events that a stream publishes later, or again and again."""

from datetime import datetime, timedelta, timezone

import pytest

from ce_nats import ApiError, DeliveryError, EncodeError, dedup_id, from_nats_message
from ce_nats.aio import AtomicBatch, Publisher, Schedule, connect
from ce_nats.aio import jetstream as ce_js
from ce_nats.aio.jetstream import configure_stream
from ce_nats.codec.subject_template import SubjectTemplate
from ce_nats.testing import NatsServer
from tests.support.caching import available
from tests.support.programs import nats_server
from tests.support.reading import read
from tests.support.tables import each
from tests.support.waiting import until

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
LATER = datetime(2099, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
async def timers(js, subject):
    """A stream with schedules on ``subject.>``."""
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[f"{subject}.>"], storage="memory", allow_msg_schedules=True)
    yield name
    await js.delete_stream(name)


@each(
    ("schedule", "pattern", "version"),
    [
        (Schedule.at(NOON, "a"), "@at 2026-01-01T12:00:00Z", (2, 12)),
        (Schedule.at(NOON.astimezone(timezone(timedelta(hours=2))), "a"), "@at 2026-01-01T14:00:00+02:00", (2, 12)),
        (Schedule.at(NOON + timedelta(microseconds=5), "a"), "@at 2026-01-01T12:00:00.000005Z", (2, 12)),
        (Schedule.every(timedelta(seconds=1), "a"), "@every 1.000000s", (2, 14)),
        (Schedule.every(timedelta(hours=1, milliseconds=5), "a"), "@every 3600.005000s", (2, 14)),
        (Schedule.cron("0 30 5 * * mon-fri", "a"), "0 30 5 * * mon-fri", (2, 14)),
        (Schedule.cron("@daily", "a"), "@daily", (2, 14)),
    ],
)
def test_patterns(schedule, pattern, version, make_event):
    assert (schedule.pattern, schedule.least_version) == (pattern, version)
    assert schedule.headers(make_event()) == [("Nats-Schedule", pattern), ("Nats-Schedule-Target", "a")]


def test_delay_begins_with_the_call():
    before = datetime.now(timezone.utc)
    found = datetime.fromisoformat(Schedule.after(timedelta(hours=1), "a").pattern[4:].replace("Z", "+00:00"))
    assert before <= found - timedelta(hours=1) <= datetime.now(timezone.utc)


def test_headers_of_a_template_and_a_time_zone(make_event):
    schedule = Schedule.cron("0 0 5 * * *", SubjectTemplate("due.{id}"), time_zone="Europe/Berlin")
    assert schedule.headers(make_event(7))[1:] == [
        ("Nats-Schedule-Target", "due.event%207"),
        ("Nats-Schedule-Time-Zone", "Europe/Berlin"),
    ]


@each(
    ("create", "error"),
    [
        (lambda: Schedule.at(datetime(2026, 1, 1), "a"), ValueError),
        (lambda: Schedule.at("2026-01-01T12:00:00Z", "a"), TypeError),
        (lambda: Schedule.after(timedelta.max, "a"), ValueError),
        (lambda: Schedule.every(timedelta(milliseconds=999), "a"), ValueError),
        (lambda: Schedule.every(timedelta.max, "a"), ValueError),
        (lambda: Schedule.cron("30 5 * * *", "a"), ValueError),
        (lambda: Schedule.cron("", "a"), ValueError),
    ],
)
def test_invalid_schedules(create, error):
    with pytest.raises(error):
        create()


async def due(js, timers, subject):
    """Return the messages that the stream has published."""
    messages = await until(lambda: read(js, timers, subject=f"{subject}.due.>"))
    return [(message.subject.removeprefix(f"{subject}.due."), from_nats_message(message)) for message in messages]


@pytest.mark.parametrize("way", ["publish", "publisher", "batches", "atomic"])
async def test_event_is_published_at_its_time(js, subject, timers, make_event, way):
    """The event is unchanged, and its schedule is removed."""
    schedule = Schedule.at(NOON, SubjectTemplate(f"{subject}.due.{{id}}"))
    to = SubjectTemplate(f"{subject}.timers.{{id}}")
    event = make_event(7, {"a": 1})
    if way == "publish":
        await ce_js.publish(js, event, to, schedule=schedule)
    else:
        if way != "publisher":
            await configure_stream(js, timers, **{"allow_batched" if way == "batches" else "allow_atomic": True})
        async with AtomicBatch(js) if way == "atomic" else Publisher(js) as publisher:
            await publisher.publish(event, to, schedule=schedule)
            await publisher.publish(make_event(8), f"{subject}.now")
    ((target, found),) = await due(js, timers, subject)
    assert (target, dedup_id(found), found.get_data()) == ("event%207", dedup_id(event), {"a": 1})
    assert not await read(js, timers, subject=f"{subject}.timers.>")


async def test_event_that_was_published_can_be_scheduled_again(js, subject, timers, make_event):
    """A schedule for another time is not a duplicate, and replaces the earlier one; the same schedule is one."""
    event, timer = make_event(), f"{subject}.timer"
    await ce_js.publish(js, event, f"{subject}.now")
    schedules = [Schedule.at(LATER + timedelta(days=day), f"{subject}.due.a") for day in (0, 1, 1)]
    acks = [await ce_js.publish(js, event, timer, schedule=schedule) for schedule in schedules]
    assert [bool(ack.duplicate) for ack in acks] == [False, False, True]
    (message,) = await read(js, timers, subject=timer)
    assert ("Nats-Schedule", "@at 2099-01-02T00:00:00Z") in message.headers


async def test_event_is_published_again_and_again(js, subject, timers, make_event):
    schedule = Schedule.every(timedelta(seconds=1), f"{subject}.due.a")
    await ce_js.publish(js, make_event(), f"{subject}.t", schedule=schedule)
    assert [event.get_id() for _, event in await due(js, timers, subject)] == [make_event().get_id()]
    assert await read(js, timers, subject=f"{subject}.t")


async def test_cron_expressions_are_accepted(js, subject, timers, make_event):
    for number, (expression, zone) in enumerate([("0 0 5 1 jan *", ""), ("@yearly", ""), ("0 0 5 * * *", "UTC")]):
        schedule = Schedule.cron(expression, f"{subject}.due.a", time_zone=zone)
        await ce_js.publish(js, make_event(), f"{subject}.timer.{number}", schedule=schedule)


@pytest.mark.parametrize(
    ("target", "schedule", "number"),
    [
        ("timer", Schedule.at, 10190),
        ("elsewhere", Schedule.at, 10190),
        ("due.a", lambda time, target: Schedule.cron("0 0 5 * * someday", target), 10189),
        ("due.a", lambda time, target: Schedule.cron("0 0 5 * * *", target, time_zone="Nowhere"), 10223),
    ],
)
async def test_schedules_that_the_stream_refuses(js, subject, timers, make_event, target, schedule, number):
    to = target if target == "elsewhere" else f"{subject}.{target}"
    with pytest.raises(ApiError) as caught:
        await ce_js.publish(js, make_event(), f"{subject}.timer", schedule=schedule(LATER, to))
    assert caught.value.err_code == number


async def test_stream_without_schedules_refuses_them(js, subject, stream, make_event):
    with pytest.raises(ApiError, match=r"message schedules is disabled \(10188\)"):
        await ce_js.publish(js, make_event(), subject, schedule=Schedule.at(LATER, f"dead.{subject}"))


@pytest.mark.parametrize(
    ("target", "headers", "code"),
    [
        ("a.>", None, "invalid-subject"),
        ("", None, "invalid-subject"),
        (SubjectTemplate("a.{subject}"), None, "missing-attribute"),
        ("a", {"Nats-Schedule": "@hourly"}, "reserved-header"),
    ],
)
async def test_schedules_that_are_refused_before_they_are_sent(js, subject, timers, make_event, target, headers, code):
    with pytest.raises(EncodeError) as caught:
        await ce_js.publish(js, make_event(), f"{subject}.t", schedule=Schedule.at(LATER, target), headers=headers)
    assert caught.value.code == code
    assert not await read(js, timers)


@pytest.mark.parametrize("version", ["2.11.11", "2.12.8"])
async def test_server_without_schedules_gets_no_message(make_event, version):
    """Before 2.12 it would store the event at once; 2.12 publishes once only."""
    executable = available(lambda: nats_server(version), f"nats-server {version}")
    with NatsServer(jetstream=True, executable=executable) as server:
        async with connect(server.url) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s.>"], allow_msg_schedules=version > "2.12")
            refused = [Schedule.every(timedelta(seconds=1), "s.due")]
            if version < "2.12":
                refused.append(Schedule.at(NOON, "s.due"))
            else:
                await ce_js.publish(js, make_event(), "s.timer", schedule=Schedule.at(NOON, "s.due"))
            for schedule in refused:
                with pytest.raises(DeliveryError, match=rf"nats-server 2\.1[24] or later, got {version}") as caught:
                    await ce_js.publish(js, make_event(), "s.timer", schedule=schedule)
                assert caught.value.code == "incompatible-config"
            if version < "2.12":
                assert (await js.stream_info("S")).state.last_seq == 0
            else:
                assert [message.subject for message in await until(lambda: read(js, "S", subject="s.due"))] == ["s.due"]
