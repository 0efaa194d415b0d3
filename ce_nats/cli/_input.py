"""Events and messages in the input of commands, with hints for input of another kind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from ..capture._message_json import as_message, read_object
from ..codec.binding import from_nats_message, to_nats_message
from ..codec.event import DecodedEvent, NotDelivered
from ..codec.mode import ContentMode
from ..errors import DecodeError
from ..message import Headers, NatsMessage, StoredMessage
from ..wire.nats import decode_header_block
from ._arguments import InputError
from ._files import documents, is_capture, read_all, read_messages

_VERSION_LINE: Final = b"NATS/1.0\r\n"
_END_OF_BLOCK: Final = b"\r\n\r\n"
_WITH_EVENT: Final = "this looks like output of sub --json, whose member event is the event (jq -c .event)"


def messages(
    argument: str | None, header: list[str] | None
) -> Iterator[tuple[Callable[[], str], Callable[[], NatsMessage]]]:
    """
    Yield for each message a function that returns its place, and one that returns it or raises DecodeError.

    Raises:
        CeNatsError, ImportError: The input is a capture that cannot be read.
        InputError, OSError: As for :func:`~ce_nats.cli._files.documents`.
    """
    if header:
        headers = Headers(read_headers(header))
        payload = read_all(argument)
        yield str, lambda: NatsMessage("", payload, headers)
        return
    if argument is not None and is_capture(argument):
        for number, stored in enumerate(read_messages(argument), 1):
            where = partial(_place, stored.stream, stored.sequence, f"message {number}")
            yield where, partial(_as_message, stored)
        return
    for line, text in documents(argument, whole=_VERSION_LINE):
        yield partial(_place_of_line, line, text), partial(_read_message, text)


class _Line(msgspec.Struct):
    stream: str = ""
    sequence: int = 0


def _place(stream: str, sequence: int, where: str) -> str:
    """Return the place of a captured message: in its stream, if it is from one, or else in the input."""
    return f"message {sequence} of stream {stream}" if stream and sequence else where


def _place_of_line(where: str, text: bytes) -> str:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return where
    return _place(line.stream, line.sequence, where)


def read_headers(given: list[str] | None) -> list[tuple[str, str]]:
    """
    Split headers of the command line into names and values.

    Raises:
        InputError: A header has no colon.
    """
    pairs = []
    for text in given or ():
        name, colon, value = text.partition(":")
        if not colon:
            raise InputError(f"--header must be NAME:VALUE, got {text!r}")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _as_message(stored: StoredMessage) -> NatsMessage:
    return NatsMessage(stored.subject, stored.data, Headers(stored.headers), stored.reply)


def _read_message(text: bytes) -> NatsMessage:
    if not text.startswith(_VERSION_LINE):
        try:
            return as_message(read_object(text))
        except DecodeError as error:
            raise _with_hint(error, _hint_for_message(text)) from error
    block, end, data = text.partition(_END_OF_BLOCK)
    return NatsMessage("", data, decode_header_block(block + end).headers)


def read_event(text: bytes) -> DecodedEvent:
    """
    Decode an event from a JSON document, or from a line of ``sub --json``.

    Raises:
        DecodeError: The document is not an event. If it looks like input of another kind, the error text has a hint.
    """
    try:
        return from_nats_message(NatsMessage(data=text), mode=ContentMode.STRUCTURED)
    except DecodeError as error:
        if (event := _event_of_sub(text)) is not None:
            return from_nats_message(NatsMessage(data=event), mode=ContentMode.STRUCTURED)
        raise _with_hint(error, _hint_for_event(text)) from error


def event_line(event: DecodedEvent) -> bytes:
    """
    Return a decoded event as a line of JSON, in structured mode.

    Raises:
        DecodeError: ``data-not-delivered``.
        EncodeError: ``invalid-data`` for text with unpaired surrogates, which UTF-7 can have.
    """
    if isinstance(event.data, NotDelivered):
        raise event.data.error
    return to_nats_message(event, mode=ContentMode.STRUCTURED).data + b"\n"


class _LineOfSub(msgspec.Struct, forbid_unknown_fields=True):
    subject: str
    event: msgspec.Raw


def _event_of_sub(text: bytes) -> bytes | None:
    try:
        return bytes(msgspec.json.decode(text, type=_LineOfSub).event)
    except (ValueError, RecursionError):
        return None


# --- Hints ----------------------------------------------------------------------------------------------------------


def _with_hint(error: DecodeError, hint: str) -> DecodeError:
    if not hint:
        return error
    return DecodeError(
        error.code,
        f"{error.message}; {hint}",
        attribute=error.attribute,
        header=error.header,
        requirement=error.requirement,
    )


def _hint_for_message(text: bytes) -> str:
    """Return what the input looks like, instead of a message, and how to convert it; ``""`` if that is unknown."""
    fields = _parsed(text)
    if isinstance(fields, dict) and "headers" not in fields:
        if "event" in fields:
            return _WITH_EVENT
        if "specversion" in fields:
            return (
                'this looks like an event, but it must be a message: {"headers":[[NAME,VALUE],...],"data":TEXT}; '
                "encode --json encodes an event as a message"
            )
    return _hint_for_any(text, fields)


def _hint_for_event(text: bytes) -> str:
    """Return what the input looks like, instead of an event, and how to convert it; ``""`` if that is unknown."""
    fields = _parsed(text)
    if isinstance(fields, dict) and "specversion" not in fields and isinstance(fields.get("headers"), list):
        return "this looks like a message, but it must be an event; decode prints the event of a message"
    return _hint_for_any(text, fields)


def _hint_for_any(text: bytes, fields: Any) -> str:
    if isinstance(fields, list):
        return "this looks like an array; give one element per line (jq -c '.[]')"
    if fields is None and _is_file(text):
        return "this is the name of a file; give its content on standard input (< FILE)"
    return ""


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_file(text: bytes) -> bool:
    try:
        return Path(os.fsdecode(text)).is_file()
    except (OSError, ValueError):  # too long for a name; a NUL
        return False
