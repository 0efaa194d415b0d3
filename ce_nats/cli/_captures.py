"""The commands ``capture`` and ``replay``: NATS messages to a file, and from a file to NATS."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime, timezone
from typing import Annotated

import typer
from nats.js import JetStreamContext

from ..aio import PublishResult, replay
from ..aio._jetstream_api import StreamApi
from ..aio.jetstream import read_stream
from ..capture import (
    CaptureResult,
    JsonLinesCapture,
    ParquetParts,
    check_same_stream,
    count_captured,
    from_json_line,
    messages_after,
    open_capture,
)
from ..codec.timestamp import Timestamp
from ..errors import DataLossError, DecodeError, DeliveryError, ErrorCode, at_place
from ..message import StoredMessage, header_pairs
from . import _arguments as arguments
from ._arguments import InputError
from ._codec import JsonOption
from ._connection import Settings, connected, open_connection, with_connection
from ._files import read_messages, stdin_documents
from ._listening import listening
from ._program import NOT_DELIVERED, complain, guarded, run, until_stopped
from ._progress import counted, is_watched, progress, report
from ._traffic import JetStreamOption

_PIPE = "-"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("capture")(guarded(with_connection(capture)))
    app.command("replay")(guarded(with_connection(replay_command)))


def capture(
    settings: Settings,
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="FILE.jsonl, directory DIR.parquet, or - for standard output.")
    ],
    stream: Annotated[
        str | None, typer.Option("--stream", help="Stream to capture, up to its last message.", callback=arguments.name)
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            help="Only messages on this subject; without --stream, new ones only.",
            callback=arguments.pattern,
        ),
    ] = None,
    start: Annotated[int, typer.Option("--start", min=1, help="With --stream, the first sequence to capture.")] = 1,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Without --stream, the number of messages to capture.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """
    Write messages to Parquet or JSON lines.

    Messages are written unchanged, whether they are events or not. A capture of a stream continues where an earlier one
    to the same output ended, whether that was complete or not. Without --stream, new messages are captured until Ctrl-C
    (exit status 0), or until the connection is closed permanently (exit status 3); nats-py then does not preserve
    repeated headers and bytes that are not UTF-8.

    If the stream removes messages before they are captured, their sequences are printed, the messages after them are
    captured, and the exit status is 3.
    """
    if stream is None and subject is None:
        raise InputError("--stream or --subject must be given")
    sink = _sink(output)
    losses: list[DataLossError] = []
    is_done = False
    try:
        with sink:
            if stream is not None:
                run(_capture_stream(settings, sink, stream, subject or ">", start, losses))
            elif subject is not None:
                if sink.last is not None:
                    check_same_stream(sink.last, "")
                until_stopped(_capture_subject(settings, sink, subject, count))
        is_done = True
    finally:
        if is_done or sink.captured.messages:
            _report_captured(sink.captured, losses, as_json=as_json, to_stderr=output == _PIPE)
    if losses:
        raise typer.Exit(NOT_DELIVERED)


def _report_captured(captured: CaptureResult, losses: list[DataLossError], *, as_json: bool, to_stderr: bool) -> None:
    counts = {
        "messages": captured.messages,
        "data_bytes": captured.data_bytes,
        "escaped_values": captured.escaped_values,
        "lost": [[loss.first, loss.last] for loss in losses],
    }
    report(counts, f"{counted(captured.messages, 'message')} captured", as_json=as_json, to_stderr=to_stderr)


def replay_command(
    settings: Settings,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="Output of capture, or - for standard input.")],
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            help="Publish to this subject; by default to that of each message.",
            callback=arguments.subject,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="SUBJECT",
            help="Accept this subject, wildcards allowed, although it looks like a request to JetStream's API; may be "
            "repeated.",
            callback=arguments.pattern,
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="Limit in messages per second.")] = None,
    jetstream: JetStreamOption = False,
    as_json: JsonOption = False,
) -> None:
    """
    Publish captured messages again.

    Messages are published with the same bytes and headers, in the same order. A stream does not store a message again
    whose Nats-Msg-Id it received within its duplicate window; such duplicates are counted.
    """
    result = PublishResult()

    async def send() -> None:
        nonlocal result
        messages = _from_stdin() if source == _PIPE else read_messages(source)
        total = None if source == _PIPE or not is_watched() else await asyncio.to_thread(count_captured, source)
        async with open_connection(settings) as nc:
            with progress("replay", total) as advance:
                result = await replay(
                    nc,
                    messages,
                    acknowledged=jetstream,
                    subject=subject,
                    allowed=allow or (),
                    rate=rate,
                    ack_timeout=settings.timeout,
                    on_progress=advance,
                )

    run(send())
    counts = {"messages": result.messages, "duplicates": result.duplicates}
    again = f", {result.duplicates} of them already stored" if result.duplicates else ""
    report(counts, f"{counted(result.messages, 'message')} published{again}", as_json=as_json)


async def _capture_stream(
    settings: Settings,
    sink: JsonLinesCapture | ParquetParts,
    stream: str,
    subject: str,
    start: int,
    losses: list[DataLossError],
) -> None:
    def on_loss(error: DataLossError) -> None:
        if error.is_other_stream:
            raise error
        losses.append(error)
        complain(error)

    last = sink.last
    async with connected(settings) as (_, js):
        state = await StreamApi.of(js).state(stream)
        if last is not None:
            await _check_same(js, stream, state.last, last)
            start = max(start, last.sequence + 1)
            # With a subject it is not known whether what is gone was to be captured; others than "limits" remove what
            # was acknowledged.
            if start < state.first and subject == ">" and state.retention == "limits":
                on_loss(DataLossError.gone(stream, start, state.first - 1, state.first))
        before = max(start, state.first) - 1
        found = read_stream(js, stream, subject=subject, start=start, end=state.last, on_loss=on_loss)
        with progress(stream, max(0, state.last - before)) as advance:
            async with aclosing(found) as batches:
                async for batch in batches:
                    # In a thread, so that the connection is served while a row group is compressed.
                    await asyncio.to_thread(sink.write, batch)
                    advance(batch[-1].sequence - before)


async def _check_same(js: JetStreamContext, stream: str, end: int, last: StoredMessage) -> None:
    """
    Check that a capture has messages of this stream.

    Raises:
        DeliveryError: ``stream-mismatch``: it has messages of another stream, or of an earlier one of the same name
            that was deleted.
    """
    check_same_stream(last, stream)
    if last.sequence > end:
        ends = f"the capture ends at message {last.sequence}, stream {stream} at {end}"
        raise DeliveryError(ErrorCode.STREAM_MISMATCH, f"{ends}: the stream was deleted and created again")
    async for batch in read_stream(js, stream, start=last.sequence, end=last.sequence):
        messages_after(last, batch)


async def _capture_subject(
    settings: Settings, sink: JsonLinesCapture | ParquetParts, subject: str, count: int | None
) -> None:
    remaining = count
    async with listening(settings, subject) as items:
        async for item in items:
            message = item.message
            now = Timestamp(datetime.now(timezone.utc))
            pairs = header_pairs(message.headers)
            sink.write([StoredMessage(message.subject, message.reply, pairs, message.data, "", 0, now)])
            remaining = None if remaining is None else remaining - 1
            if remaining == 0:
                return


def _sink(output: str) -> JsonLinesCapture | ParquetParts:
    if output == _PIPE:
        return JsonLinesCapture(sys.stdout.buffer)
    try:
        return open_capture(output)
    except ValueError as error:
        raise InputError(str(error)) from error


async def _from_stdin() -> AsyncIterator[StoredMessage]:
    async for where, line in stdin_documents(None):
        try:
            message = from_json_line(line)
        except DecodeError as error:
            raise at_place(error, where) from error
        yield message
