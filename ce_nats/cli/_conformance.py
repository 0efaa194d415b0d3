"""The commands ``conformance`` and ``answer``: run conformance cases on any implementation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.progress import track

from .. import __version__
from ..capture._message_json import as_line
from ..conformance import (
    Case,
    Command,
    CommandError,
    FixtureError,
    Requirement,
    Verdict,
    answer_lines,
    load_cases,
    load_requirements,
    run_case,
)
from ..conformance._external import DEFAULT_TIMEOUT
from ..conformance._report import as_json, failures, has_failed_must, requirement_table, suite_table
from ..errors import DecodeError, ErrorCode, preview
from . import _arguments as arguments
from ._arguments import InputError
from ._files import write
from ._program import with_exit_status
from ._terminal import console

_MAX_SECONDS: Final = 86_400.0
# Section of the commands in the help.
_SECTION: Final = "For implementers of other SDKs"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(rich_help_panel=_SECTION)(with_exit_status(conformance))
    app.command(rich_help_panel=_SECTION)(with_exit_status(answer))


def conformance(
    command: Annotated[
        str | None, typer.Option("--exec", metavar="CMD", help="Program to test; by default ce_nats itself.")
    ] = None,
    suites: Annotated[
        list[str] | None, typer.Option("--suite", metavar="NAME", help="Only this suite; may be repeated.")
    ] = None,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print all verdicts as JSON instead of tables.")] = False,
    with_failures: Annotated[
        bool, typer.Option("--failures", "-v", help="List failed cases with expected and actual results.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Time limit for the answer to a case.",
            min=0.01,
            max=_MAX_SECONDS,
            callback=arguments.finite,
        ),
    ] = DEFAULT_TIMEOUT,
) -> None:
    """
    Test an implementation with the conformance fixtures.

    A program given with --exec reads one case per line from standard input and writes one answer per line to standard
    output, all in JSON; "ce-nats answer" is such a program. The exit status is 0 if all cases of level MUST pass, 1 if
    one fails, and 2 if the program cannot be run.
    """
    try:
        cases, requirements = load_cases(suites or ()), load_requirements()
        with _implementation(command, timeout) as run:
            verdicts = [run(case) for case in _with_progress_bar(cases)]
    except (FixtureError, CommandError) as error:
        raise InputError(str(error)) from error
    if as_json_text:
        write(as_line(as_json(verdicts, command or f"ce_nats {__version__}")))
    else:
        _print_tables(verdicts, requirements, with_failures=with_failures)
    raise typer.Exit(1 if has_failed_must(verdicts) else 0)


def answer() -> None:
    """
    Answer conformance cases with ce_nats.

    Reads one case per line from standard input, and writes one answer per line to standard output, all in JSON. Other
    implementations provide such a program for "conformance --exec".
    """
    try:
        for line in answer_lines(sys.stdin.buffer):
            write(f"{line}\n".encode())
    except (ValueError, TypeError, KeyError) as error:
        raise DecodeError(ErrorCode.INVALID_MESSAGE, f"a line must be a case in JSON: {preview(error)}") from error


@contextmanager
def _implementation(command: str | None, timeout: float) -> Iterator[Callable[[Case], Verdict]]:
    if command is None:
        yield run_case
    else:
        with Command(command, timeout=timeout) as program:
            yield program.run


def _with_progress_bar(cases: Sequence[Case]) -> Iterable[Case]:
    """Return the cases, with a progress bar on a terminal."""
    output = console(stderr=True)
    return track(cases, "conformance", console=output, transient=True) if output.is_terminal else cases


def _print_tables(verdicts: Sequence[Verdict], requirements: Mapping[str, Requirement], *, with_failures: bool) -> None:
    output = console()
    output.print(suite_table(verdicts))
    if (table := requirement_table(verdicts, requirements)) is not None:
        output.print(table)
    failed = list(failures(verdicts))
    if with_failures:
        for paragraph in failed:
            output.print(paragraph, soft_wrap=True)
    elif failed:
        output.print(f"{len(failed)} failed; use --failures to list them.")
