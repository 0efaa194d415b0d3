"""The command ``check``: the configuration of a stream, of a consumer and of dead letters."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Annotated

import typer

from ..aio.check_up._rules import FEATURES
from ..aio.jetstream import Finding, Level, check
from ..capture._message_json import as_line
from ..errors import visible
from . import _arguments as arguments
from ._arguments import usage_errors
from ._connection import Settings, open_connection, open_jetstream, settings_of, with_connection
from ._files import write
from ._options import JsonOption
from ._program import run, with_exit_status
from ._progress import counted
from ._terminal import print_to_stderr


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(with_exit_status(with_connection(check_stream)))


def check_stream(
    settings: Settings,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.", callback=arguments.name)],
    consumer: Annotated[
        str | None, typer.Option("--consumer", metavar="NAME", help="Consumer of the program.", callback=arguments.name)
    ] = None,
    dead_letters: Annotated[
        str,
        typer.Option(
            "--dead-letters",
            metavar="SUBJECT",
            help="Its subject for dead letters.",
            callback=arguments.subject_if_given,
        ),
    ] = "",
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Least number of replicas that the stream must have.")
    ] = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="Servers must sync each message; needs --monitor or --system.")
    ] = False,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            "--feature",
            metavar="NAME",
            help=f"Feature that the program uses: {', '.join(FEATURES)}; may be repeated.",
            callback=arguments.feature,
        ),
    ] = None,
    read_every: Annotated[
        str | None,
        typer.Option("--read-every", metavar="DURATION", help="Interval of captures, or of other reads: 1h30m."),
    ] = None,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, help="Messages that a program fetches and handles at once.")
    ] = 64,
    monitor: Annotated[
        list[str] | None,
        typer.Option(
            "--monitor", metavar="URL", help="Monitoring URL of a server (server option -m); may be repeated."
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", metavar="NAME", help="Context with a user of the system account, instead of --monitor."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="CODE", help="Finding to omit; may be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Check the configuration of a stream against what a program needs.

    Prints each finding, and what solves it. An error loses or refuses events, or prevents that the program starts; a
    warning does if something fails. Nothing is changed. The exit status is 0 if there are no findings, and 1 otherwise.
    """
    other = None if system is None else settings_of(None, system, settings.timeout)
    found: list[Finding] = []

    interval = None if read_every is None else arguments.duration("read-every", read_every)

    async def look() -> None:
        async with AsyncExitStack() as stack, open_jetstream(settings) as (_, js):
            nc = None if other is None else await stack.enter_async_context(open_connection(other))
            with usage_errors():
                found.extend(
                    await check(
                        js,
                        stream,
                        consumer=consumer,
                        dead_letter=dead_letters or None,
                        replicas=replicas,
                        sync=sync,
                        features=feature or (),
                        read_every=interval,
                        in_flight=in_flight,
                        monitor=monitor or (),
                        system=nc,
                    )
                )

    run(look())
    shown = [finding for finding in found if finding.code not in (ignore or ())]
    for finding in shown:
        if as_json:
            write(as_line(asdict(finding)))
        else:
            write(f"{visible(str(finding))}\n  -> {visible(finding.remedy)}\n".encode())
    if not as_json:
        numbers = [(sum(finding.level is level for finding in shown), level.value) for level in Level]
        text = ", ".join(
            f"{number} unknown" if noun == "unknown" else counted(number, noun) for number, noun in numbers
        )
        print_to_stderr(text if shown else "nothing found")
    if shown:
        raise typer.Exit(1)
