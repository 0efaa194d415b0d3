"""The command ``configure``: change settings of a stream or a consumer."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec
import typer

from ..aio.jetstream import configure_consumer, configure_stream
from ..capture._message_json import as_line
from ..errors import preview
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, open_jetstream, with_connection
from ._files import write
from ._options import JsonOption
from ._program import run, with_exit_status

_SETTING: Final = re.compile(r"([a-z][a-z0-9_]*)=(.*)", re.DOTALL)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_exit_status(with_connection(configure)))


def configure(
    settings: Settings,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.", callback=arguments.name)],
    setting: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Settings, with values in JSON.")],
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Consumer to change instead.", callback=arguments.name),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Change settings of a stream, or of a consumer, and keep all others.

    allow_batched=true switches on fast ingest (nats-server 2.14), allow_atomic=true atomic batches (2.12.1), and
    allow_msg_ttl=true a time to live for each message (2.11). A value that is not JSON is text; durations are
    nanoseconds. Prints the settings as the server has stored them. The exit status is 3 if the server refused or
    ignored a setting.
    """
    wanted = dict(map(_read, setting))

    async def change() -> None:
        async with open_jetstream(settings) as (_, js):
            if consumer is None:
                stored = await configure_stream(js, stream, **wanted)
            else:
                stored = await configure_consumer(js, stream, consumer, **wanted)
        changed = {name: stored.get(name) for name in wanted}
        if as_json:
            write(as_line(changed))
        else:
            for name, value in changed.items():
                write(f"{name}={msgspec.json.encode(value).decode()}\n".encode())

    run(change())


def _read(text: str) -> tuple[str, Any]:
    matched = _SETTING.fullmatch(text)
    if matched is None:
        raise InputError(f"a setting must be NAME=VALUE, got {preview(text)}")
    name, value = matched.groups()
    if name in ("js", "name", "stream"):  # parameters of the functions
        raise InputError(f"{name} is not a setting that can be changed")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return name, value
