"""Arguments and options that several commands share, and checks of their values."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer

from ..codec.binary import Dialect
from ..codec.binding import to_nats_message
from ..codec.mode import ContentMode
from . import _arguments as arguments
from ._arguments import InputError, usage_errors
from ._input import read_event

_SAMPLE: Final = b'{"specversion":"1.0","id":"1","source":"/","type":"t","datacontenttype":"text/plain","data":""}'


class EventFormat(str, Enum):
    """Event formats of structured mode."""

    JSON = "json"
    PROTOBUF = "protobuf"


ModeOption = Annotated[ContentMode, typer.Option("--mode", "-m", help="Content mode of the messages.")]
FormatOption = Annotated[
    EventFormat | None, typer.Option("--format", help="Event format of structured mode; json by default.")
]
DialectOption = Annotated[
    Dialect, typer.Option("--dialect", help="How senders encode binary mode: as specified, or as sdk-go.")
]
HeaderOption = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="Message header; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only messages stored since then: RFC 3339, a date, or 2h."),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only messages stored up to then; as --since.")
]
JetStreamOption = Annotated[
    bool, typer.Option("--jetstream", "-J", help="Publish to JetStream, and wait for acknowledgements.")
]
EventArgument = Annotated[
    str | None,
    typer.Argument(metavar="EVENT", help="Event in JSON, or a file of events; by default those on standard input."),
]
MessageArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MESSAGE", help="Message, or a file or capture of messages; by default those on standard input."
    ),
]
PatternArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SUBJECT]", help="Subject, wildcards allowed.", callback=arguments.pattern, show_default=False
    ),
]


def check_format(given: EventFormat | None, mode: ContentMode) -> str | None:
    """
    Return the name of the event format.

    Raises:
        InputError: A format is given, and the mode is binary.
    """
    if given is not None and mode is ContentMode.BINARY:
        raise InputError("--format must be used with --mode structured")
    return None if given is None else given.value


def check_headers(headers: list[tuple[str, str]], mode: ContentMode, event_format: str | None) -> list[tuple[str, str]]:
    """
    Check additional headers by encoding a sample event with them.

    Returns the same headers.

    Raises:
        InputError: A header is not valid, or is reserved for events.
    """
    with usage_errors():
        to_nats_message(read_event(_SAMPLE), mode=mode, format=event_format, headers=headers)
    return headers
