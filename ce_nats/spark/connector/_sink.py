"""
Write rows to JetStream: ``df.write.format("nats")`` and ``df.writeStream.format("nats")``.

A row is an event or a message; further columns are ignored. An event has ``subject``, and a struct ``event`` as
``cloudevent`` and ``from_nats`` return it and ``to_nats`` accepts it, which the codec encodes in the worker. The option
``subject`` may be a template. A message has
``subject``, ``headers`` (array of structs of two strings or binaries, or map) and ``data`` (BINARY or STRING), of which
headers or data may be missing. Headers that instruct the server are not sent, by default, because rows are often copies
of messages. Other headers of an array are sent unchanged. A map fails the task if its ``ce-`` headers are not those of
an event, percent-encoded: a map is usually written by hand.

Messages get a ``Nats-Msg-Id``, unless they have one: of source and id if they contain an event, otherwise of the write
and the row. So messages that a retried task resends are stored once, within the stream's duplicate window. A row that
cannot be encoded fails the task with its error code, or is written to a file with the option ``badRowsPath``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...codec.mode import ContentMode
from ...codec.subject_template import SubjectTemplate, subject_of_text
from ...errors import choice, preview
from ...subjects import check_subject
from .._workers import Shipped
from ._bad_rows import BadRows, check_folder
from ._connection import Connection, read_boolean
from ._row_columns import RowColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    from ...aio.publishing._bulk import BulkPublisher
    from ...aio.publishing._tally import PublishResult
    from ._row_frames import RowEncoder
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # pyspark 4.0, whose worker only checks whether a writer is an Arrow writer

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter): ...


_log: Final = logging.getLogger(__name__)

SINK_OPTIONS: Final = ("subject", "contentMode", "maxPending", "dedup", "keepInstructions", "badRowsPath")
_PENDING: Final = 500
# Local properties of the tasks of a micro-batch.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Target:
    """
    Destination of rows, and options of publishing.

    Attributes:
        connection: Settings of the connection.
        columns: Columns of the rows.
        subject: Subject of rows without one; for rows that are events, also a template; or ``""``.
        content_mode: Content mode of rows that are events.
        window: Maximum number of unacknowledged messages.
        dedup: True to add a ``Nats-Msg-Id`` to messages.
        keep_instructions: True to send headers of rows that instruct the server.
        bad_rows: Folder for rows that cannot be encoded, or ``""``.
        write_id: Identifier of a batch write.
    """

    connection: Connection
    columns: RowColumns
    subject: str | SubjectTemplate
    content_mode: ContentMode
    window: int
    dedup: bool
    keep_instructions: bool
    bad_rows: str
    write_id: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: StructType) -> Target:
        """
        Read the options of the data source, and check that the columns can be published.

        Raises:
            ValueError: An option is malformed, or a column is missing.
            TypeError: A column has the wrong type.
        """
        connection = Connection.from_options(options)
        given = {name.lower(): value for name, value in options.items()}
        subject = subject_of_text(given.get("subject", ""))
        columns = RowColumns.of(schema, has_subject=bool(subject))
        if isinstance(subject, SubjectTemplate) and columns.event is None:
            raise ValueError("option subject must have no placeholders, because the rows have no column event")
        if isinstance(subject, str) and subject:
            check_subject(subject)
        if "contentmode" in given and columns.event is None:
            raise ValueError("option contentMode is for rows with a column event, got other rows, which are encoded")
        bad_rows = given.get("badrowspath", "")
        window = given.get("maxpending", str(_PENDING))
        if not (window.isascii() and window.isdecimal() and int(window) > 0):
            raise ValueError(f"option maxPending must be an integer from 1, got {preview(window)}")
        return cls(
            connection=connection,
            columns=columns,
            subject=subject,
            content_mode=choice(
                ContentMode, given.get("contentmode", ContentMode.BINARY).lower(), "option contentMode"
            ),
            window=int(window),
            dedup=read_boolean(given, "dedup", default=True),
            keep_instructions=read_boolean(given, "keepinstructions", default=False),
            bad_rows=check_folder(bad_rows) if bad_rows else "",
        )


@dataclass
class Written(WriterCommitMessage):
    """
    Result of a task, or of several.

    Attributes:
        messages: Messages that were acknowledged.
        duplicates: Those of them that the stream had already stored.
        stripped: Messages that were sent without headers that instruct the server.
        markers: Rows that were not sent, because a server had written the message.
        rejected: Rows that were not sent, because they cannot be encoded.
        reason: Error of the first of them, or ``""``.
    """

    messages: int = 0
    duplicates: int = 0
    stripped: int = 0
    markers: int = 0
    rejected: int = 0
    reason: str = ""

    def add(self, other: Written) -> None:
        """Add the result of another task."""
        for name in ("messages", "duplicates", "stripped", "markers", "rejected"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reason = self.reason or other.reason


def _report(target: Target, results: Iterable[WriterCommitMessage | None]) -> None:
    """Log how many messages were stored, and which rows and headers were not sent."""
    total = Written()
    for result in results:
        if isinstance(result, Written):
            total.add(result)
    stored = total.messages - total.duplicates
    if total.duplicates:
        _log.warning(
            "sink: %d messages were stored, and %d were not, because a stream had their Nats-Msg-Id within its "
            "duplicate window: the same rows were written before, or other rows have the same source and id",
            stored,
            total.duplicates,
        )
    else:
        _log.info("sink: %d messages were stored", stored)
    if total.rejected:
        _log.warning(
            "sink: %d rows could not be encoded, and were written to %s; the first one: %s",
            total.rejected,
            target.bad_rows,
            total.reason,
        )
    if total.stripped or total.markers:
        _log.warning(
            "sink: %d messages were sent without headers that instruct the server, such as Nats-Rollup (option "
            "keepInstructions sends them), and %d rows were not sent, because a server had written them",
            total.stripped,
            total.markers,
        )


class NatsWriter(DataSourceArrowWriter, metaclass=Shipped):
    """Publish the rows of a table. If a task fails, the messages that it has published remain in the stream."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._target, iterator, self._target.write_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report what was written; acknowledged messages are already stored."""
        _report(self._target, messages)


class NatsStreamWriter(DataSourceStreamArrowWriter, metaclass=Shipped):
    """Publish the rows of micro-batches. If Spark retries a batch, its rows are published again."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._target, iterator, _batch_id())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Report what was written; acknowledged messages are already stored."""
        _report(self._target, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: stored messages remain, and are detected as duplicates when they are published again."""


def _batch_id() -> str:
    """Return an identifier of the micro-batch of this task, the same when the query repeats it after a restart."""
    task = TaskContext.get()
    found = [task.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID)] if task else []
    return "-".join(name for name in found if name) if all(found) else uuid4().hex


def _write(target: Target, batches: Iterator[pa.RecordBatch], write_id: str) -> Written:
    from ...aio.publishing._bulk import BulkPublisher
    from ._blocking import Blocking
    from ._row_frames import RowEncoder

    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:  # a partition without rows needs no connection
        return Written()
    task = TaskContext.get()
    task_id = f"{write_id}-{task.partitionId() if task else 0}"
    rejected = BadRows(target.bad_rows, task_id)

    connection = target.connection
    publisher = BulkPublisher(
        connection.connect,
        window=target.window,
        ack_timeout=connection.request_timeout,
        retry_timeout=connection.retry_timeout,
        api_prefix=connection.api_prefix,
    )
    encoder = RowEncoder(
        target.columns,
        target.subject,
        target.content_mode,
        dedup=target.dedup,
        row_ids=task_id,
        reject=rejected.add if target.bad_rows else None,
        keep_instructions=target.keep_instructions,
    )
    with rejected, Blocking() as blocking:
        sent = blocking.run(_publish(publisher, encoder, chain([first], filled)))
    return Written(
        sent.messages, sent.duplicates or 0, encoder.stripped, encoder.markers, rejected.count, rejected.first
    )


async def _publish(publisher: BulkPublisher, encoder: RowEncoder, batches: Iterator[pa.RecordBatch]) -> PublishResult:
    from ._blocking import in_thread

    async with publisher:
        rows = encoder.frames(batches, await publisher.reply_prefix(), publisher.max_payload)
        async with aclosing(in_thread(rows)) as encoded:
            async for frames in encoded:
                await publisher.send(frames)
        return await publisher.drain()
