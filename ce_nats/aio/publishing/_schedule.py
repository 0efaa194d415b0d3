"""Schedules: a stream publishes an event later, or again and again (ADR-51, nats-server 2.12 and 2.14)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from ..._numbers import check_seconds
from ...codec.binding import subject_of
from ...codec.event import EventLike
from ...codec.subject_template import SubjectTemplate
from ...codec.timestamp import Timestamp
from ...subjects import check_subject
from .._util.checks import check_time

SCHEDULE: Final = "Nats-Schedule"
_TARGET: Final = "Nats-Schedule-Target"
_TIME_ZONE: Final = "Nats-Schedule-Time-Zone"
_AT: Final = "@at "
_CRON_FIELDS: Final = 6


@dataclass(frozen=True)
class Schedule:
    """
    When a stream publishes an event, and to which subject: one of :meth:`at`, :meth:`after`, :meth:`every`,
    :meth:`cron`.

        schedule = Schedule.after(timedelta(hours=1), "orders.due")
        await aio.jetstream.publish(js, event, SubjectTemplate("timers.{id}"), schedule=schedule)

    The message that is published first is the schedule. A later one on the same subject replaces it, so each needs
    another subject. The stream must have ``allow_msg_schedules``, and listen on both subjects; its other messages are
    not affected. Consumers without a filter receive the schedule as well.

    Attributes:
        pattern: Value of ``Nats-Schedule``.
        target: Subject to which the stream publishes the event, or a subject template.
        time_zone: Value of ``Nats-Schedule-Time-Zone``; "" for UTC.
    """

    pattern: str
    target: str | SubjectTemplate
    time_zone: str = ""

    @classmethod
    def at(cls, time: datetime, target: str | SubjectTemplate) -> Schedule:
        """
        Publish the event once, at a time; at once if the time has passed.

        Args:
            time: With a time zone.
            target: Subject to publish to, or a subject template.

        Raises:
            ValueError: ``time`` has no time zone.
            TypeError: ``time`` is not a datetime.
        """
        check_time("time", time)
        return cls(f"{_AT}{Timestamp(time)}", target)

    @classmethod
    def after(cls, delay: timedelta, target: str | SubjectTemplate) -> Schedule:
        """
        Publish the event once, after a time that begins with this call, by the clock of this machine.

        Args:
            delay: The time to wait.
            target: Subject to publish to, or a subject template.

        Raises:
            ValueError: The time is later than the year 9999.
        """
        try:
            return cls.at(datetime.now(timezone.utc) + delay, target)
        except OverflowError:
            raise ValueError(f"delay must end before the year 10000, got {delay}") from None

    @classmethod
    def every(cls, interval: timedelta, target: str | SubjectTemplate) -> Schedule:
        """
        Publish the event again and again, at an interval. Needs nats-server 2.14.

        All messages have the same event, with the same id: consumers that drop duplicates handle it once.

        Args:
            interval: At least one second.
            target: Subject to publish to, or a subject template.

        Raises:
            ValueError: ``interval`` is below a second, or above 292 years.
        """
        seconds = interval.total_seconds()
        check_seconds("interval", seconds, 1)
        return cls(f"@every {seconds:f}s", target)

    @classmethod
    def cron(cls, expression: str, target: str | SubjectTemplate, *, time_zone: str = "") -> Schedule:
        """
        Publish the event at the times of a cron expression. Needs nats-server 2.14.

        All messages have the same event, with the same id: consumers that drop duplicates handle it once.

        Args:
            expression: Six fields, seconds first (``0 30 5 * * mon-fri``), or one of ``@hourly``, ``@daily``,
                ``@weekly``, ``@monthly``, ``@yearly``.
            target: Subject to publish to, or a subject template.
            time_zone: Name of a time zone, such as ``Europe/Berlin``; UTC by default.

        Raises:
            ValueError: ``expression`` has neither six fields nor the name of a schedule.
        """
        fields = expression.split()
        if len(fields) != _CRON_FIELDS and not (len(fields) == 1 and expression.startswith("@")):
            raise ValueError(f"a cron expression must have six fields, seconds first, got {expression!r}")
        return cls(expression, target, time_zone)

    @property
    def least_version(self) -> tuple[int, int]:
        """The first version of nats-server that supports it."""
        return (2, 12) if self.pattern.startswith(_AT) else (2, 14)

    def headers(self, event: EventLike) -> list[tuple[str, str]]:
        """
        Return the headers of the schedule of an event.

        Raises:
            EncodeError: ``invalid-subject``, ``missing-attribute``: the target is not the subject of a message.
        """
        target = subject_of(self.target, event)
        check_subject(target)
        zone = [(_TIME_ZONE, self.time_zone)] if self.time_zone else []
        return [(SCHEDULE, self.pattern), (_TARGET, target), *zone]
