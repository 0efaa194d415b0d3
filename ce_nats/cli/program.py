"""The program that commands are added to, and the errors and exit statuses of commands."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any, Final, NoReturn, ParamSpec

import typer

from .. import __version__
from ..errors import CeNatsError, DeliveryError
from .files import InputError
from .terminal import say

BAD_INPUT: Final = 1
USAGE: Final = 2
NOT_DELIVERED: Final = 3
# Exit status after a signal, minus the number of the signal.
_SIGNALLED: Final = 128
_BROKEN_PIPE: Final = 141
# Loggers that are silenced, because commands print these errors in one line, or have handled them.
_QUIET: Final = ("asyncio", "nats")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

P = ParamSpec("P")

app = typer.Typer(name="ce-nats", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


class _Line(logging.Handler):
    """Prints the package's log records in the form of the commands' own messages."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if "permissions violation" not in text:  # the command fails with this error itself
            say(f"ce-nats: {text}")


_LINE: Final = _Line()


class _StoppedError(Exception):
    """A signal asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ce-nats {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """CloudEvents over NATS."""
    for name in _QUIET:
        logging.getLogger(name).addHandler(logging.NullHandler())
    logging.getLogger("ce_nats").addHandler(_LINE)  # once, however often this is called


def complain(error: Exception, where: str = "") -> int:
    """Print an error in one line; returns the exit status for it."""
    text = " ".join(str(error).split()) or type(error).__name__
    at = f"{where}: " if where else ""
    say(f"ce-nats: {at}{text}")
    if isinstance(error, DeliveryError):
        return NOT_DELIVERED
    return BAD_INPUT if isinstance(error, CeNatsError) else USAGE


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command that prints errors in one line, and exits with the status for them."""

    @wraps(command)
    def run_command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            try:
                command(*args, **kwargs)
            finally:
                sys.stdout.flush()  # so that a broken pipe is detected and handled here
        except _StoppedError as stopped:
            raise typer.Exit(_SIGNALLED + stopped.number) from None
        except KeyboardInterrupt:
            raise typer.Exit(_SIGNALLED + signal.SIGINT) from None
        except BrokenPipeError:
            _exit_broken_pipe()
        except (CeNatsError, InputError, ImportError, OSError) as error:
            raise typer.Exit(complain(error)) from None

    return run_command


def _exit_broken_pipe() -> NoReturn:
    # Python flushes standard output again when it exits, and would print an error.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(_BROKEN_PIPE) from None


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine. If SIGINT or SIGTERM cancels it, the command exits with the status of the signal."""
    if (number := asyncio.run(_cancelled_by_signal(work))) is not None:
        raise _StoppedError(number)


def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that SIGINT and SIGTERM end normally, with exit status 0."""
    asyncio.run(_cancelled_by_signal(work))


async def _cancelled_by_signal(work: Coroutine[Any, Any, None]) -> int | None:
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    # Signal handlers are not available on Windows, or outside the main thread.
    with suppress(NotImplementedError, ValueError, RuntimeError):
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
        return received[0]
    return None
