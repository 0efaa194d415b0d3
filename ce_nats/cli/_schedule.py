"""Options of ``pub`` for the schedule of an event."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeAlias

import typer

from ..aio import Schedule
from ..codec.subject_template import subject_of_text
from ..codec.timestamp import Timestamp
from . import _arguments as arguments
from ._arguments import InputError, usage_errors

AtOption = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="With --jetstream, publish later: at a time in RFC 3339.")
]
AfterOption = Annotated[
    str | None, typer.Option("--after", metavar="DURATION", help="With --jetstream, publish later: after 1h30m.")
]
EveryOption = Annotated[
    str | None, typer.Option("--every", metavar="DURATION", help="With --jetstream, publish again and again.")
]
CronOption = Annotated[
    str | None,
    typer.Option("--cron", metavar="EXPRESSION", help="With --jetstream, publish at these times: 0 30 5 * * mon-fri."),
]
TimeZoneOption = Annotated[
    str, typer.Option("--time-zone", metavar="NAME", help="Time zone of --cron; UTC by default.")
]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="SUBJECT",
        help="Subject, or a template, to which the stream publishes the event then.",
        callback=arguments.template_if_given,
    ),
]

Schedules: TypeAlias = Callable[[], Schedule]


def read_schedule(
    at: str | None, after: str | None, every: str | None, cron: str | None, time_zone: str, target: str
) -> Schedules | None:
    """
    Return a function that returns the schedule of an event that is published now; None without a schedule.

    Raises:
        InputError: An option is not valid, is missing, or contradicts another one.
    """
    given = [text for text in (at, after, every, cron) if text is not None]
    if len(given) > 1:
        raise InputError("only one of --at, --after, --every and --cron may be given")
    if bool(given) != bool(target):
        raise InputError("--target must be used with one of --at, --after, --every and --cron")
    if time_zone and cron is None:
        raise InputError("--time-zone must be used with --cron")
    if not given:
        return None
    subject = subject_of_text(target)
    with usage_errors():
        if after is not None:
            create = partial(Schedule.after, arguments.duration("after", after), subject)
            create()  # it may end too late
            return create
        if at is not None:
            schedule = Schedule.at(Timestamp.parse(at), subject)
        elif every is not None:
            schedule = Schedule.every(arguments.duration("every", every), subject)
        else:
            schedule = Schedule.cron(cron or "", subject, time_zone=time_zone)
    return lambda: schedule
