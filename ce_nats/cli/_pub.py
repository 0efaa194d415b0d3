"""The command ``pub``: publish events in JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Annotated, Any, Final

import typer
from nats.aio.client import Client

from ..aio import AtomicBatch, ClaimCheck, Publisher, flush, publish
from ..aio._reply_inbox import Replies, ReplyInbox, reports_no_responders
from ..aio.jetstream import DedupId, event_id
from ..aio.link._frame_splitter import RawMessage
from ..aio.publishing._atomic import MAX_EVENTS
from ..codec.binding import dedup_id, subject_of
from ..codec.event import DecodedEvent
from ..codec.mode import ContentMode
from ..codec.subject_template import SubjectTemplate, subject_of_text
from ..errors import CeNatsError, DecodeError, DeliveryError, EncodeError, ErrorCode, Failure, PublishError
from ..extensions.expiry import time_to_live
from ..message import HeadersLike
from . import _arguments as arguments
from ._arguments import InputError
from ._connection import Settings, open_connection, open_jetstream, with_connection
from ._files import async_documents, check_documents, is_document, is_stdin, stdin_is_terminal
from ._input import read_event, read_headers
from ._options import (
    EventArgument,
    FormatOption,
    HeaderOption,
    JetStreamOption,
    JsonOption,
    ModeOption,
    check_format,
    check_headers,
)
from ._program import StoppedError, print_error, run, with_exit_status
from ._progress import print_summary, progress, stored_before, with_progress
from ._schedule import (
    AfterOption,
    AtOption,
    CronOption,
    EveryOption,
    Schedules,
    TargetOption,
    TimeZoneOption,
    read_schedule,
)
from ._schemas import SchemaOption, read_schemas
from ._terminal import print_to_stderr


class _Dedup(str, Enum):
    SOURCE_AND_ID = "source-and-id"
    ID = "id"
    NONE = "none"


# Number of subjects for which listeners are looked for, and of those that are printed.
_MAX_SUBJECTS: Final = 1000
_MAX_PRINTED: Final = 5

_DEDUP: Final[dict[_Dedup, DedupId | None]] = {_Dedup.SOURCE_AND_ID: dedup_id, _Dedup.ID: event_id, _Dedup.NONE: None}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_exit_status(with_connection(pub)))


@dataclass
class _Counts:
    """
    Numbers of events, by outcome.

    Attributes:
        published: Events that a stream has stored; with core NATS, events that the server has received.
        duplicates: Published events that were already in the stream; None if that is unknown.
        batched: Published events that were sent in batches of fast ingest.
        refused: Events that are not valid, and were not sent.
        refused_by_stream: Events that were sent, and refused by a stream.
        unacknowledged: Events that were sent, and not yet acknowledged or refused; they may be stored.
    """

    published: int = 0
    duplicates: int | None = 0
    batched: int = 0
    refused: int = 0
    refused_by_stream: int = 0
    unacknowledged: int = 0

    async def send_each(
        self, documents: AsyncIterator[tuple[str, bytes]], send: Callable[[DecodedEvent], Awaitable[object]]
    ) -> AsyncIterator[None]:
        """Send the events in documents, print the errors of invalid ones, and yield after each event that was sent."""
        async for where, text in documents:
            try:
                await send(read_event(text))
            except (EncodeError, DecodeError) as error:
                self.refused += 1
                print_error(error, where)
            else:
                yield

    def __str__(self) -> str:
        again = stored_before(self.duplicates, self.batched)
        refused = f"; {self.refused_by_stream} refused by the stream" if self.refused_by_stream else ""
        rest = f"; {self.unacknowledged} sent and not acknowledged" if self.unacknowledged else ""
        return f"{self.published} published{again}{refused}{rest}"

    def count_stored(self, publisher: Publisher, sent: int, failures: Sequence[Failure]) -> None:
        """Count the responses of streams to ``sent`` events; ``failures`` are those of a raised PublishError."""
        self.published, self.duplicates = publisher.acknowledged, publisher.duplicates
        self.batched = publisher.batched
        codes = [failure.error.code for failure in (*failures, *publisher.failures)]
        self.refused_by_stream = sum(code is ErrorCode.PUBLISH_REFUSED for code in codes)
        self.unacknowledged = sent - self.published - self.refused_by_stream


def pub(
    settings: Settings,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SUBJECT", help="Subject, or a template such as orders.{type}.", callback=arguments.template
        ),
    ],
    event: EventArgument = None,
    mode: ModeOption = ContentMode.BINARY,
    format: FormatOption = None,  # noqa: A002
    header: HeaderOption = None,
    reply: Annotated[
        str,
        typer.Option("--reply", help="Reply subject; not with --jetstream.", callback=arguments.subject_if_given),
    ] = "",
    jetstream: JetStreamOption = False,
    dedup: Annotated[
        _Dedup, typer.Option("--dedup", help="With --jetstream, attributes that form the Nats-Msg-Id.")
    ] = _Dedup.SOURCE_AND_ID,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="Store all events in a stream, or none (needs allow_atomic).")
    ] = False,
    expiry: Annotated[
        bool,
        typer.Option(
            "--expiry", help="With --jetstream, streams delete events at their expirytime (needs allow_msg_ttl)."
        ),
    ] = False,
    claim_check: Annotated[
        str,
        typer.Option(
            "--claim-check", metavar="BUCKET", help="With --jetstream, object store for data of more than 256 KiB."
        ),
    ] = "",
    at: AtOption = None,
    after: AfterOption = None,
    every: EveryOption = None,
    cron: CronOption = None,
    time_zone: TimeZoneOption = "",
    target: TargetOption = "",
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """
    Publish events in JSON.

    Lines printed by sub --json are accepted as well. Invalid events, and those whose data does not match a --schema,
    are reported on standard error, and skipped. The exit status is 0 if the server received all events, and 1 if some
    were invalid. The number of published events is also printed if the command is interrupted or fails.

    With --atomic, a stream stores all events together, at most 1,000, or none: nothing is sent if one is invalid.

    With --at, --after, --every or --cron, the stream keeps each event on SUBJECT, and publishes it to --target then
    (needs allow_msg_schedules). A subject keeps one event, so SUBJECT must be a template for several: timers.{id}.
    """
    jetstream = jetstream or atomic
    schedules = read_schedule(at, after, every, cron, time_zone, target)
    _check_options(reply, expiry, claim_check, schedules, jetstream)
    check_documents(event)
    to = subject_of_text(subject)
    event_format = check_format(format, mode)
    headers = check_headers(read_headers(header), mode, event_format)
    destination = _Destination(to, headers, schedules)
    schemas = read_schemas(schema)
    counts = _Counts()
    options: dict[str, Any] = {
        "mode": mode,
        "format": event_format,
        "dedup": _DEDUP[dedup],
        "ttl": time_to_live if expiry else None,
        "validate": schemas,
        "ack_timeout": settings.timeout,
    }

    async def to_core() -> None:
        async with open_connection(settings) as nc, aclosing(documents):
            listeners = _Listeners(nc, reply)
            await listeners.open()

            async def send(given: DecodedEvent) -> None:
                checked = given if schemas is None else schemas.checked(given)
                subject = subject_of(to, checked)
                back = listeners.reply_subject(subject)
                await publish(nc, checked, subject, mode=mode, format=event_format, reply=back, headers=headers)

            async def confirm() -> None:
                await flush(nc)
                counts.published += counts.unacknowledged
                counts.unacknowledged = 0
                listeners.report()

            try:
                async for _ in counts.send_each(documents, send):
                    counts.unacknowledged += 1
                await confirm()
            except asyncio.CancelledError:
                with suppress(DeliveryError):
                    await confirm()
                raise

    async def to_streams() -> None:
        async with open_jetstream(settings) as (_, js), aclosing(documents):
            publisher = Publisher(js, **options, claim_check=ClaimCheck(js, claim_check) if claim_check else None)
            sent = 0
            failures: Sequence[Failure] = ()
            try:
                async with publisher:
                    async for _ in counts.send_each(documents, lambda given: destination.publish(publisher, given)):
                        sent += 1
            except PublishError as error:
                failures = error.failures
                raise
            finally:
                counts.count_stored(publisher, sent, failures)

    is_long = not is_document(event) and not (is_stdin(event) and stdin_is_terminal())
    try:
        with progress("pub", None, wanted=is_long) as advance:
            documents = with_progress(async_documents(event), advance)
            if atomic:
                run(_publish_batch(settings, documents, counts, destination, claim_check, options))
            else:
                run(to_streams() if jetstream else to_core())
    except (StoppedError, CeNatsError) as error:
        if isinstance(error, StoppedError) or counts != _Counts():
            print_summary(asdict(counts), str(counts), as_json=as_json)
        raise
    print_summary(asdict(counts), str(counts), as_json=as_json)
    raise typer.Exit(1 if counts.refused else 0)


class _Destination:
    """Where events are published in streams, and when."""

    def __init__(self, subject: str | SubjectTemplate, headers: HeadersLike, schedules: Schedules | None) -> None:
        self._subject = subject
        self._headers = headers
        self._schedules = schedules
        self._scheduled: set[str] = set()

    async def publish(self, publisher: Publisher | AtomicBatch, event: DecodedEvent) -> None:
        """
        Publish an event.

        Raises:
            EncodeError: ``invalid-subject``: an earlier event is scheduled on its subject, and would be replaced.
        """
        if self._schedules is None:
            await publisher.publish(event, self._subject, headers=self._headers)
            return
        subject = subject_of(self._subject, event)
        if subject in self._scheduled:
            text = f"{subject}: it would replace an earlier event; a template such as timers.{{id}} has one for each"
            raise EncodeError(ErrorCode.INVALID_SUBJECT, text)
        await publisher.publish(event, subject, headers=self._headers, schedule=self._schedules())
        self._scheduled.add(subject)


class _Listeners:
    """
    Reports subjects of core NATS without a subscriber.

    The server reports it for a message with a reply subject, which the first event on each subject gets, unless the
    user gives one.
    """

    def __init__(self, nc: Client, reply: str) -> None:
        self._reply = reply
        self._replies = Replies(
            ReplyInbox.of(nc), "pub", self._receive, denied=lambda _: False, fail=lambda _: self._subjects.clear()
        )
        self._subjects: dict[str, int] = {}  # with their numbers, from 1
        self._missing: set[int] = set()

    async def open(self) -> None:
        """Receive what the server reports."""
        if not self._reply:
            await self._replies.open()

    def reply_subject(self, subject: str) -> str:
        """Return the reply subject of an event, or ""."""
        if self._reply:
            return self._reply
        if subject in self._subjects or len(self._subjects) >= _MAX_SUBJECTS:
            return ""
        self._subjects[subject] = number = len(self._subjects) + 1
        return f"{self._replies.prefix}{number}"

    def _receive(self, messages: list[RawMessage]) -> None:
        for inbox, _, data, block in messages:
            if reports_no_responders(data, block or b""):
                self._missing.add(int(inbox.rpartition(b".")[2]))

    def report(self) -> None:
        """Print subjects without a subscriber; called after a flush."""
        missing = [subject for subject, number in self._subjects.items() if number in self._missing]
        for subject in missing[:_MAX_PRINTED]:
            text = "its events are lost; --jetstream publishes to a stream"
            print_to_stderr(f"ce-nats: no subscriber on {subject}: {text}")
        if len(missing) > _MAX_PRINTED:
            print_to_stderr(f"ce-nats: no subscriber on {len(missing) - _MAX_PRINTED} other subjects, either")


class _InvalidEventsError(Exception):
    """Events of an atomic batch are invalid, and their errors were printed."""


async def _publish_batch(
    settings: Settings,
    documents: AsyncGenerator[tuple[str, bytes], None],
    counts: _Counts,
    destination: _Destination,
    bucket: str,
    options: dict[str, Any],
) -> None:
    """
    Publish the events in documents as an atomic batch, and count them.

    Raises:
        EncodeError: ``invalid-batch``: there are too many events, or they are for several streams.
    """
    async with open_jetstream(settings) as (_, js), aclosing(documents):
        batch = AtomicBatch(js, **options, claim_check=ClaimCheck(js, bucket) if bucket else None)
        try:
            async with batch:
                async for where, text in documents:
                    try:
                        await destination.publish(batch, read_event(text))
                    except (EncodeError, DecodeError) as error:
                        if len(batch) >= MAX_EVENTS:
                            raise
                        counts.refused += 1
                        print_error(error, where)
                if counts.refused:
                    raise _InvalidEventsError
                counts.unacknowledged = len(batch)
            counts.published, counts.unacknowledged = len(batch), 0
        except CeNatsError as error:
            counts.refused_by_stream = len(batch) if error.code is ErrorCode.PUBLISH_REFUSED else 0
            counts.unacknowledged = len(batch) if error.code is ErrorCode.TIMEOUT else 0
            raise
        except _InvalidEventsError:
            pass


def _check_options(reply: str, expiry: bool, claim_check: str, schedules: Schedules | None, jetstream: bool) -> None:
    if reply and jetstream:
        raise InputError("--reply must be used without --jetstream and --atomic")
    if expiry and not jetstream:
        raise InputError("--expiry must be used with --jetstream or --atomic")
    if claim_check and not jetstream:
        raise InputError("--claim-check must be used with --jetstream or --atomic")
    if schedules is not None and not jetstream:
        raise InputError("--target must be used with --jetstream or --atomic")
