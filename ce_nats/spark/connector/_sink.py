"""
Write rows to JetStream or core NATS: ``df.write.format("nats")`` and ``df.writeStream.format("nats")``.

A row is an event or a message; further columns are ignored. An event has ``subject``, and a struct ``event`` as
``cloudevent`` and ``from_nats`` return it and ``to_nats`` accepts it, which the codec encodes in the worker. An event
that cannot be encoded fails the task with its error code. The option ``subject`` may be a template. A message has
``subject``, ``headers`` (array of structs of two strings or binaries, or map) and ``data`` (BINARY or STRING), of which
headers or data may be missing. Headers that instruct the server are not sent, by default, because rows are often copies
of messages. Other headers of an array are sent unchanged. A map fails the task if its ``ce-`` headers are not those of
an event, percent-encoded: a map is usually written by hand.

Events, and messages that contain an event, get a ``Nats-Msg-Id`` of source and id, unless they have one. So messages
that a retried task resends are stored once, within the stream's duplicate window.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...codec.mode import ContentMode
from ...codec.subject_template import SubjectTemplate, subject_of_text
from ...errors import choice, preview
from ...subjects import check_subject
from .._workers import Shipped
from ._connection import Connection, read_boolean
from ._row_columns import RowColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    from ...aio.publishing._bulk import BulkPublisher
    from ._row_frames import RowEncoder
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # pyspark 4.0, whose worker only checks whether a writer is an Arrow writer

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter): ...


_log: Final = logging.getLogger(__name__)

SINK_OPTIONS: Final = ("subject", "contentMode", "acks", "maxPending", "dedup", "keepInstructions")
_PENDING: Final = 500


@dataclass(frozen=True)
class Target:
    """
    Destination of rows, and options of publishing.

    Attributes:
        connection: Settings of the connection.
        columns: Columns of the rows.
        subject: Subject of rows without one; for rows that are events, also a template; or ``""``.
        content_mode: Content mode of rows that are events.
        acknowledged: True to publish to JetStream, False to publish to core NATS.
        window: Maximum number of unacknowledged messages.
        dedup: True to add a ``Nats-Msg-Id`` to events.
        keep_instructions: True to send headers of rows that instruct the server.
    """

    connection: Connection
    columns: RowColumns
    subject: str | SubjectTemplate
    content_mode: ContentMode
    acknowledged: bool
    window: int
    dedup: bool
    keep_instructions: bool

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
            acknowledged=read_boolean(given, "acks", default=True),
            window=int(window),
            dedup=read_boolean(given, "dedup", default=True),
            keep_instructions=read_boolean(given, "keepinstructions", default=False),
        )


@dataclass
class Written(WriterCommitMessage):
    """
    Result of a task: the number of messages, and of those that the stream had already stored, if it is known.

    Attributes:
        stripped: Messages that were sent without headers that instruct the server.
        markers: Rows that were not sent, because a server had written the message.
    """

    messages: int
    duplicates: int | None
    stripped: int = 0
    markers: int = 0


def _report(results: Iterable[WriterCommitMessage | None]) -> None:
    """Log which headers and rows were not sent."""
    written = [result for result in results if isinstance(result, Written)]
    stripped, markers = sum(one.stripped for one in written), sum(one.markers for one in written)
    if stripped or markers:
        _log.warning(
            "sink: %d messages were sent without headers that instruct the server, such as Nats-Rollup (option "
            "keepInstructions sends them), and %d rows were not sent, because a server had written them",
            stripped,
            markers,
        )


class NatsWriter(DataSourceArrowWriter, metaclass=Shipped):
    """Publish the rows of a table. If a task fails, the messages that it has published remain in the stream."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report what was not sent; acknowledged messages are already stored."""
        _report(messages)


class NatsStreamWriter(DataSourceStreamArrowWriter, metaclass=Shipped):
    """Publish the rows of micro-batches. If Spark retries a batch, its rows are published again."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Report what was not sent; acknowledged messages are already stored."""
        _report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: stored messages remain, and are detected as duplicates when they are published again."""


def _write(target: Target, batches: Iterator[pa.RecordBatch]) -> Written:
    from ...aio.publishing._bulk import BulkPublisher
    from ._blocking import Blocking
    from ._row_frames import RowEncoder

    connection = target.connection
    publisher = BulkPublisher(
        connection.connect,
        acknowledged=target.acknowledged,
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
        keep_instructions=target.keep_instructions,
    )
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:  # a partition without rows needs no connection
        return Written(0, 0)
    with Blocking() as blocking:
        return blocking.run(_publish(publisher, encoder, chain([first], filled)))


async def _publish(publisher: BulkPublisher, encoder: RowEncoder, batches: Iterator[pa.RecordBatch]) -> Written:
    from ._blocking import in_thread

    async with publisher:
        rows = encoder.frames(batches, await publisher.reply_prefix())
        async with aclosing(in_thread(rows)) as encoded:
            async for frames in encoded:
                await publisher.send(frames)
        sent = await publisher.drain()
    return Written(sent.messages, sent.duplicates, encoder.stripped, encoder.markers)
