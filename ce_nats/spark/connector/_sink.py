"""
Write rows to JetStream or core NATS: ``df.write.format("nats")`` and ``df.writeStream.format("nats")``.

A row is a message: ``headers`` (array of structs of two strings, or map) and ``data`` (BINARY or STRING), both
optional, and ``subject``. An array of headers is sent unchanged. A map fails the task if its ``ce-`` headers are not
those of an event, percent-encoded: a map is usually written by hand. Or a row is an event: ``subject``, and a struct
``event`` as ``from_nats`` returns it and :func:`ce_nats.spark.to_nats` accepts it, which the codec encodes in the
worker. An event that cannot be encoded fails the task with its error code. For events, the option ``subject`` may be a
template.

Events, and messages that contain an event, get a ``Nats-Msg-Id`` of source and id, unless they have one. So messages
that a retried task resends are stored once, within the stream's duplicate window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from ...codec.binding import dedup_id, from_nats_message, to_nats_message
from ...codec.mode import PREFIX, ContentMode
from ...codec.percent import is_encoded
from ...codec.subject_template import SubjectTemplate, subject_of_text
from ...errors import DecodeError, EncodeError, ErrorCode, choice, preview
from ...message import MSG_ID, Headers, NatsMessage, check_header
from ...subjects import check_subject, check_subject_from_message
from .._workers import Shipped
from ..columns._rows import event_of, event_rows
from ..columns._schema import check_event
from ._connection import Connection, read_boolean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # pyspark 4.0, whose worker only checks whether a writer is an Arrow writer

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter): ...


SINK_OPTIONS: Final = ("subject", "contentMode", "acks", "maxPending", "dedup")
_INSTEAD: Final = "write a column event, which is encoded, or an array of headers, which is sent unchanged"
_PENDING: Final = 500


@dataclass(frozen=True)
class Target:
    """
    Destination of rows, and options of publishing.

    Attributes:
        connection: Settings of the connection.
        subject: Subject of rows without one; for rows that are events, also a template; or ``""``.
        content_mode: Content mode of rows that are events.
        acknowledged: True to publish to JetStream, False to publish to core NATS.
        window: Maximum number of unacknowledged messages.
        dedup: True to add a ``Nats-Msg-Id`` to events.
    """

    connection: Connection
    subject: str | SubjectTemplate
    content_mode: ContentMode
    acknowledged: bool
    window: int
    dedup: bool

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: StructType) -> Target:
        """
        Read the options of the data source, and check that the columns can be published.

        Raises:
            ValueError: An option is malformed, a column is unknown, or the subject is missing.
            TypeError: A column has the wrong type.
        """
        connection = Connection.from_options(options)
        given = {name.lower(): value for name, value in options.items()}
        subject = subject_of_text(given.get("subject", ""))
        if isinstance(subject, SubjectTemplate) and "event" not in schema.names:
            raise ValueError("option subject must have no placeholders, because the rows have no column event")
        if isinstance(subject, str) and subject:
            check_subject(subject)
        _check_columns(schema, has_subject=bool(subject))
        if "contentmode" in given and "event" not in schema.names:
            raise ValueError("option contentMode is for rows with a column event, got other rows, which are encoded")
        window = given.get("maxpending", str(_PENDING))
        if not (window.isascii() and window.isdecimal() and int(window) > 0):
            raise ValueError(f"option maxPending must be an integer from 1, got {preview(window)}")
        return cls(
            connection=connection,
            subject=subject,
            content_mode=choice(
                ContentMode, given.get("contentmode", ContentMode.BINARY).lower(), "option contentMode"
            ),
            acknowledged=read_boolean(given, "acks", default=True),
            window=int(window),
            dedup=read_boolean(given, "dedup", default=True),
        )


@dataclass
class Written(WriterCommitMessage):
    """Result of a task: the number of messages, and of those that the stream had already stored."""

    messages: int
    duplicates: int


class NatsWriter(DataSourceArrowWriter, metaclass=Shipped):
    """Publish the rows of a table. If a task fails, the messages that it has published remain in the stream."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._target, iterator)


class NatsStreamWriter(DataSourceStreamArrowWriter, metaclass=Shipped):
    """Publish the rows of micro-batches. If Spark retries a batch, its rows are published again."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: acknowledged messages are already stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: stored messages remain, and are detected as duplicates when they are published again."""


def _write(target: Target, batches: Iterator[pa.RecordBatch]) -> Written:
    from ...aio.publishing._bulk import BulkPublisher
    from ...aio.publishing._pending_acks import PublishResult
    from ._blocking import Blocking

    connection = target.connection
    publisher = BulkPublisher(
        connection.connect,
        acknowledged=target.acknowledged,
        window=target.window,
        ack_timeout=connection.request_timeout,
        retry_timeout=connection.retry_timeout,
        api_prefix=connection.api_prefix,
    )
    sent = PublishResult()
    with Blocking() as blocking:
        try:
            for batch in batches:
                sent += blocking.run(publisher.publish([_message(target, row) for row in _rows(batch)]))
        finally:
            blocking.run(publisher.__aexit__())
    return Written(sent.messages, sent.duplicates)


def _rows(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
    columns = [
        event_rows(column) if name == "event" else column.to_pylist()
        for name, column in zip(batch.schema.names, batch.columns)
    ]
    for values in zip(*columns):
        yield dict(zip(batch.schema.names, values))


def _message(target: Target, row: Mapping[str, Any]) -> NatsMessage:
    """
    Return the message of a row.

    Raises:
        EncodeError: ``invalid-subject``, ``forbidden-subject``, ``invalid-header-name`` or ``invalid-header-value``;
            for an event, the errors of ``to_nats_message``.
    """
    subject = row.get("subject") or target.subject
    if isinstance(subject, str):
        # Often the column of captured messages, so the subject is chosen by their senders.
        check_subject_from_message(subject, allowed=[subject])
    if "event" in row:
        event = event_of(row["event"])
        message = to_nats_message(event, subject, mode=target.content_mode)
        if target.dedup:
            message.headers.append(MSG_ID, dedup_id(event))
        return message
    data = row.get("data") or b""
    message = NatsMessage(
        str(subject), data.encode() if isinstance(data, str) else bytes(data), _headers(row.get("headers"))
    )
    for name, value in message.headers.items():
        check_header(name, value)
    if _is_map(row.get("headers")):
        _check_event(message)
    if target.dedup and MSG_ID not in message.headers and (msg_id := _dedup_id(message)):
        message.headers.append(MSG_ID, msg_id)
    return message


def _headers(given: Sequence[Any] | None) -> Headers:
    """Return headers from Arrow's Python values: a list of dicts for an array of structs, a list of pairs for a map."""
    pairs = [tuple(pair.values()) if isinstance(pair, dict) else pair for pair in given or ()]
    if any(None in pair for pair in pairs):
        raise EncodeError(ErrorCode.INVALID_HEADER_VALUE, "header names and values must be strings, got NULL")
    return Headers(pairs)


def _is_map(given: Sequence[Any] | None) -> bool:
    """Return whether the headers of a row are a map, by Arrow's Python values."""
    return any(not isinstance(pair, dict) for pair in given or ())


def _check_event(message: NatsMessage) -> None:
    """
    Check that a message with ``ce-`` headers is an event, encoded as the NATS binding requires.

    Raises:
        EncodeError: It is not, with the code of the error of decoding, or ``invalid-header-value``.
    """
    attributes = [(name, value) for name, value in message.headers.items() if name.lower().startswith(PREFIX)]
    if not attributes:
        return
    for name, value in attributes:
        if not is_encoded(value):
            text = f"header {name} in a map must be percent-encoded, got {preview(value)}; {_INSTEAD}"
            raise EncodeError(ErrorCode.INVALID_HEADER_VALUE, text, header=name)
    try:
        from_nats_message(message, parse_data=False)
    except DecodeError as error:
        text = f"a map with {PREFIX} headers must be that of an event: {error.message}; {_INSTEAD}"
        raise EncodeError(error.code, text, header=error.header, requirement=error.requirement) from error


def _dedup_id(message: NatsMessage) -> str | None:
    """Return the deduplication id of the event in a message, or None if the message is not an event."""
    try:
        return dedup_id(from_nats_message(message, parse_data=False))
    except DecodeError:
        return None


def _check_columns(schema: StructType, *, has_subject: bool) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    known = {"subject", "event"} if "event" in types else {"subject", "headers", "data"}
    unknown = types.keys() - known
    if unknown:
        allowed = "subject and event" if "event" in types else "subject, headers and data, or subject and event"
        raise ValueError(f"columns must be {allowed}, got {', '.join(types)}")
    if "event" in types:
        check_event(types["event"])
    if "subject" not in types and not has_subject:
        raise ValueError("the subject is missing: add a column subject or an option subject")
    if not isinstance(types.get("subject", StringType()), StringType):
        raise TypeError(f"column subject must be STRING, got {types['subject'].simpleString()}")
    if not isinstance(types.get("data", BinaryType()), (BinaryType, StringType)):
        raise TypeError(f"column data must be BINARY or STRING, got {types['data'].simpleString()}")
    if "headers" in types and not _are_headers(types["headers"]):
        raise TypeError(
            f"column headers must be an array of structs of two strings, or a map of strings to strings, got "
            f"{types['headers'].simpleString()}"
        )


def _are_headers(kind: Any) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    return [type(field.dataType) for field in kind.elementType.fields] == [StringType, StringType]
