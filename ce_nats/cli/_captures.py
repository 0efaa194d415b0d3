"""The commands ``capture`` and ``replay``: write NATS messages to a file, and publish them from a file."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Annotated, Final

import typer
from nats.js import JetStreamContext

from ..aio import PublishResult, flush, replay
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
from ..cesql import Expression
from ..codec.timestamp import Timestamp
from ..errors import CeNatsError, DataLossError, DecodeError, DeliveryError, ErrorCode, at_place
from ..message import StoredMessage, header_pairs
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, open_jetstream, with_connection
from ._files import async_documents, read_messages
from ._filters import FilterOption, passes, read_filter
from ._options import JetStreamOption, JsonOption, SinceOption, UntilOption
from ._program import NOT_DELIVERED, StoppedError, print_error, run, run_until_stopped, with_exit_status
from ._progress import counted, print_summary, progress, stderr_is_terminal, stored_before
from ._subscription import open_subscription

_PIPE: Final = "-"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("capture")(with_exit_status(with_connection(capture)))
    app.command("replay")(with_exit_status(with_connection(replay_capture)))


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
            help="Only messages on this subject; without --stream, only new messages.",
            callback=arguments.pattern,
        ),
    ] = None,
    start: Annotated[int, typer.Option("--start", min=1, help="With --stream, first sequence to capture.")] = 1,
    since: SinceOption = None,
    until: UntilOption = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Without --stream, number of messages to capture.")
    ] = None,
    filter: FilterOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Write messages to Parquet or JSON lines.

    Messages are written unchanged, whether they are events or not; with --filter, except for events that do not pass. A
    capture of a stream continues after the last message in the output, even if the earlier capture was interrupted.
    --since and --until are times at which messages were stored. Without --stream, new messages are captured until
    Ctrl-C (exit status 0), or until the connection is closed permanently (exit status 3); nats-py then does not
    preserve repeated headers and bytes that are not UTF-8.

    If the stream removes messages before they are captured, their sequences are printed, later messages are captured,
    and the exit status is 3.
    """
    if stream is None and subject is None:
        raise InputError("--stream or --subject must be given")
    if stream is None and (since or until):
        raise InputError("--since and --until must be used with --stream")
    now = datetime.now(timezone.utc)
    times = arguments.instant("since", since, now), arguments.instant("until", until, now)
    expression = read_filter(filter)
    sink = _sink(output)
    losses: list[DataLossError] = []
    has_summary = False
    try:
        with sink:
            if stream is not None:
                run(_capture_stream(settings, sink, stream, subject or ">", start, times, expression, losses))
            elif subject is not None:
                if sink.last is not None:
                    check_same_stream(sink.last, "")
                run_until_stopped(_capture_subject(settings, sink, subject, expression, count))
        has_summary = True
    except StoppedError:
        has_summary = True
        raise
    finally:
        if has_summary or sink.captured.messages:
            _print_captured(sink.captured, losses, as_json=as_json, to_stderr=output == _PIPE)
    if losses:
        raise typer.Exit(NOT_DELIVERED)


def _print_captured(captured: CaptureResult, losses: list[DataLossError], *, as_json: bool, to_stderr: bool) -> None:
    counts = {
        "messages": captured.messages,
        "data_bytes": captured.data_bytes,
        "escaped_values": captured.escaped_values,
        "lost": [[loss.first, loss.last] for loss in losses],
    }
    print_summary(counts, f"{counted(captured.messages, 'message')} captured", as_json=as_json, to_stderr=to_stderr)


def replay_capture(
    settings: Settings,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="Output of capture, or - for standard input.")],
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            help="Publish to this subject; by default, to the subject of each message.",
            callback=arguments.subject,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="SUBJECT",
            help="Publish to this subject, wildcards allowed, although it looks like a JetStream API request; may be "
            "repeated.",
            callback=arguments.pattern,
        ),
    ] = None,
    new_ids: Annotated[
        bool,
        typer.Option("--new-ids", help="New Nats-Msg-Id for each message, so that streams store it again."),
    ] = False,
    keep_instructions: Annotated[
        bool,
        typer.Option("--keep-instructions", help="Also publish headers that instruct the server."),
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, help="Limit in messages per second.", callback=arguments.finite),
    ] = None,
    jetstream: JetStreamOption = False,
    filter: FilterOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Publish captured messages again.

    Messages are published with the same bytes and headers, in the same order, except for headers that instruct the
    server: Nats-Rollup would delete other messages of the stream, for example. Markers that a server has written are
    not published; with --filter, neither are events that do not pass. A stream does not store messages with a
    Nats-Msg-Id that it received within its duplicate window, unless --new-ids is given. Such duplicates are counted; if
    the stream accepts batches (fast ingest), their number is unknown when some of the messages are duplicates and
    others are not. The number of published messages is also printed if the command is interrupted or fails.
    """
    counts = _ReplayCounts()
    expression = read_filter(filter)

    async def send() -> None:
        messages = _selected(source, expression)
        is_counted = source != _PIPE and expression is None and stderr_is_terminal()
        total = None if not is_counted else await asyncio.to_thread(count_captured, source)
        async with open_jetstream(settings) as (nc, js):
            with progress("replay", total) as advance:

                def on_progress(sent: int) -> None:
                    counts.sent = sent
                    advance(sent)

                def on_end(result: PublishResult) -> None:
                    counts.result = result

                try:
                    await replay(
                        js,
                        messages,
                        acknowledged=jetstream,
                        subject=subject,
                        allowed=allow or (),
                        new_ids=new_ids,
                        keep_instructions=keep_instructions,
                        rate=rate,
                        ack_timeout=settings.timeout,
                        on_progress=on_progress,
                        on_end=on_end,
                    )
                except (asyncio.CancelledError, CeNatsError):
                    if not jetstream:
                        with suppress(DeliveryError):
                            await flush(nc)
                            counts.result = replace(counts.result, messages=counts.sent)
                    raise

    try:
        run(send())
    except (StoppedError, CeNatsError) as error:
        if isinstance(error, StoppedError) or counts.sent:
            print_summary(counts.as_json(), str(counts), as_json=as_json)
        raise
    print_summary(counts.as_json(), str(counts), as_json=as_json)


@dataclass
class _ReplayCounts:
    """
    Numbers of replayed messages.

    Attributes:
        result: Messages that were acknowledged, or, on core NATS, received by the server.
        sent: Messages that were sent, including those that are not acknowledged.
    """

    result: PublishResult = field(default_factory=PublishResult)
    sent: int = 0

    @property
    def unacknowledged(self) -> int:
        return max(0, self.sent - self.result.messages)

    def as_json(self) -> dict[str, int | None]:
        """Return the numbers for ``--json``."""
        return {
            "messages": self.result.messages,
            "duplicates": self.result.duplicates,
            "batched": self.result.batched,
            "unacknowledged": self.unacknowledged,
            "stripped": self.result.stripped,
            "markers": self.result.markers,
        }

    def __str__(self) -> str:
        before = stored_before(self.result.duplicates, self.result.batched)
        rest = f"; {self.unacknowledged} sent and not acknowledged" if self.unacknowledged else ""
        if self.result.stripped:
            rest += f"; {self.result.stripped} without headers that instruct the server (see --keep-instructions)"
        if self.result.markers:
            rest += f"; {counted(self.result.markers, 'marker')} of the server not published"
        return f"{counted(self.result.messages, 'message')} published{before}{rest}"


async def _capture_stream(
    settings: Settings,
    sink: JsonLinesCapture | ParquetParts,
    stream: str,
    subject: str,
    start: int,
    times: tuple[datetime | None, datetime | None],
    expression: Expression | None,
    losses: list[DataLossError],
) -> None:
    def on_loss(error: DataLossError) -> None:
        if error.is_other_stream:
            raise error
        losses.append(error)
        print_error(error)

    last = sink.last
    async with open_jetstream(settings) as (_, js):
        state = await StreamApi.of(js).state(stream)
        if last is not None:
            await _check_same(js, stream, state.last, last)
            start = max(start, last.sequence + 1)
            # Not reported for a subject, because the removed messages may have had other subjects; nor for retentions
            # other than "limits", which remove acknowledged messages.
            if start < state.first and subject == ">" and state.retention == "limits":
                on_loss(DataLossError.gone(stream, start, state.first - 1, state.first))
        before_first = max(start, state.first) - 1
        messages = read_stream(
            js,
            stream,
            subject=subject,
            start=start,
            end=state.last,
            start_time=times[0],
            end_time=times[1],
            on_loss=on_loss,
        )
        with progress(stream, max(0, state.last - before_first)) as advance:
            async with aclosing(messages) as batches:
                async for batch in batches:
                    # In a thread, so that the connection is not blocked while a row group is compressed.
                    wanted = [one for one in batch if passes(expression, one.headers, one.data)]
                    await asyncio.to_thread(sink.write, wanted)
                    advance(batch[-1].sequence - before_first)


async def _check_same(js: JetStreamContext, stream: str, end: int, last: StoredMessage) -> None:
    """
    Check that a capture is of this stream.

    Raises:
        DeliveryError: ``stream-mismatch``: it is of another stream, or of a deleted stream with the same name.
    """
    check_same_stream(last, stream)
    if last.sequence > end:
        ends = f"the capture ends at message {last.sequence}, stream {stream} at {end}"
        raise DeliveryError(ErrorCode.STREAM_MISMATCH, f"{ends}: the stream was deleted and created again")
    async for batch in read_stream(js, stream, start=last.sequence, end=last.sequence):
        messages_after(last, batch)


async def _capture_subject(
    settings: Settings,
    sink: JsonLinesCapture | ParquetParts,
    subject: str,
    expression: Expression | None,
    count: int | None,
) -> None:
    remaining = count
    async with open_subscription(settings, subject, filter=expression) as items:
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


def _selected(source: str, expression: Expression | None) -> AsyncIterator[StoredMessage] | Iterator[StoredMessage]:
    """Return the messages of a capture whose events pass, and those that are not events."""
    if source == _PIPE:
        return (one async for one in _from_stdin() if passes(expression, one.headers, one.data))
    return (one for one in read_messages(source) if passes(expression, one.headers, one.data))


async def _from_stdin() -> AsyncIterator[StoredMessage]:
    async for where, line in async_documents(None):
        try:
            message = from_json_line(line)
        except DecodeError as error:
            raise at_place(error, where) from error
        yield message
