"""The program that commands are added to, and the errors and exit statuses of commands."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any, Final, NoReturn, ParamSpec

import typer

from .. import __version__
from ..errors import CeNatsError, DecodeError, DeliveryError, EncodeError, ErrorCode
from ._arguments import InputError
from ._help import Group, Program
from ._terminal import print_to_stderr

BAD_INPUT: Final = 1
USAGE: Final = 2
NOT_DELIVERED: Final = 3
# Exit status after a signal, minus the signal number.
_SIGNAL_BASE: Final = 128
_BROKEN_PIPE: Final = 141
# Loggers that are silenced, because the commands print or handle these errors.
_SILENCED_LOGGERS: Final = ("asyncio", "nats")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

P = ParamSpec("P")

# The base class of typer's usage errors, which is not public in all versions of typer.
_ClickError: Final[Any] = typer.BadParameter.__mro__[2]


class _Program(Group):
    """The group of all commands. It prints wrong usage in one line, like other errors."""

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        try:
            status = super().main(args, standalone_mode=False, **extra)
        except InputError as error:
            status = print_error(error)
        except SystemExit as exited:
            if not isinstance(exited.__context__, BrokenPipeError):
                raise
            status = _BROKEN_PIPE  # when printing the help, typer exits with status 1
        except typer.Abort:
            status = _SIGNAL_BASE + signal.SIGINT
        except _ClickError as error:
            status = _print_usage_error(error)
        if standalone_mode:
            sys.exit(status)
        return status


def _print_usage_error(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # not an error: its text is the help
        error.show()
        return USAGE
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context else ""
    return print_error(InputError(error.format_message().rstrip(".") + hint))


app = Program(name="ce-nats", cls=_Program)


class _LineHandler(logging.Handler):
    """Prints log records of the package in the form of the commands' messages."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if "permissions violation" not in text:  # the command itself fails with this error
            print_to_stderr(f"ce-nats: {text}")


_LINE_HANDLER: Final = _LineHandler()


class StoppedError(Exception):
    """The command was stopped by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ce-nats {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """CloudEvents over NATS."""
    if context.obj is not None:
        context.obj()
    for name in _SILENCED_LOGGERS:
        logging.getLogger(name).addHandler(logging.NullHandler())
    logging.getLogger("ce_nats").addHandler(_LINE_HANDLER)  # has no effect if repeated


def print_error(error: Exception, where: str = "") -> int:
    """
    Print an error in one line.

    Returns the exit status for the error.
    """
    code, message = _described(error)
    at = f"{where}: " if where else ""
    print_to_stderr(f"ce-nats: {code}: {at}{' '.join(message.split()) or type(error).__name__}")
    if isinstance(error, DeliveryError):
        return NOT_DELIVERED
    is_input = isinstance(error, (EncodeError, DecodeError)) and error.code is not ErrorCode.INVALID_OPTION
    return BAD_INPUT if is_input else USAGE


def _described(error: Exception) -> tuple[str, str]:
    """Return the code and the text of an error."""
    if isinstance(error, (CeNatsError, InputError)):
        return str(error.code), error.message
    if isinstance(error, ImportError):
        return "missing-package", str(error)
    code = "file-error"
    if isinstance(error, FileNotFoundError):
        code = "file-not-found"
    elif isinstance(error, FileExistsError):
        code = "file-exists"
    if isinstance(error, OSError) and error.filename is not None:
        return code, f"{error.strerror}: {os.fsdecode(error.filename)!r}"
    return code, str(error)


def with_exit_status(command: Callable[P, None]) -> Callable[P, None]:
    """Return a command that prints an error in one line, and exits with the status for it."""

    @wraps(command)
    def run_command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            try:
                command(*args, **kwargs)
            finally:
                sys.stdout.flush()  # so that a broken pipe is detected and handled here
        except StoppedError as stopped:
            raise typer.Exit(_SIGNAL_BASE + stopped.number) from None
        except KeyboardInterrupt:
            raise typer.Exit(_SIGNAL_BASE + signal.SIGINT) from None
        except BrokenPipeError:
            _exit_broken_pipe()
        except (CeNatsError, InputError, ImportError, OSError) as error:
            raise typer.Exit(print_error(error)) from None

    return run_command


def _exit_broken_pipe() -> NoReturn:
    # Python flushes standard output again when it exits, and would print an error.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(_BROKEN_PIPE) from None


def run(work: Coroutine[Any, Any, None]) -> None:
    """
    Run a coroutine, which SIGINT and SIGTERM cancel.

    Raises:
        StoppedError: A signal cancelled it.
    """
    if (number := asyncio.run(_cancelled_by_signal(work))) is not None:
        raise StoppedError(number)


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until it ends, or until SIGINT or SIGTERM cancels it; both are a success."""
    asyncio.run(_cancelled_by_signal(work))


async def _cancelled_by_signal(work: Coroutine[Any, Any, None]) -> int | None:
    """Run a coroutine; return the number of the signal that cancelled it, or None if it ended."""
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
