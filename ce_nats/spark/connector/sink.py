"""
Rows into JetStream, or into core NATS: ``df.write.format("nats")`` and ``df.writeStream.format("nats")``.

A row is a message: ``headers`` (array of two strings, or map) and ``data`` (BINARY or STRING), both optional, and
``subject``. Or it is an event: a struct ``event`` as ``from_nats`` gives it and :func:`ce_nats.spark.to_nats` takes it,
which the codec encodes in the worker, and ``subject``; one that cannot be encoded fails the task with its code.

An event, or a message that is one, gets a ``Nats-Msg-Id`` made of its source and id, unless it has one: what a task
that is tried again sends twice is stored once, as long as the stream's duplicate window goes back that far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from ...codec.binding import dedup_id, from_nats_message, to_nats_message
from ...codec.mode import ContentMode
from ...errors import DecodeError, EncodeError, ErrorCode
from ...message import Headers, NatsMessage, check_header
from ...subjects import check_subject
from ..columns.rows import event_of, event_rows
from ..columns.schema import check_event
from ..workers import Shipped
from .connection import Connection, read_boolean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # pyspark 4.0, whose worker only asks whether a writer is an Arrow writer

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter): ...


__all__ = ["SINK_OPTIONS", "NatsStreamWriter", "NatsWriter", "Target"]

SINK_OPTIONS: Final = ("subject", "mode", "acks", "maxPending", "dedup")
_MSG_ID: Final = "Nats-Msg-Id"
_PENDING: Final = 500


@dataclass(frozen=True)
class Target:
    """
    What to do with rows.

    Attributes:
        connection: How to connect.
        subject: Subject of rows without one, or ``""``.
        mode: Content mode of rows that are events.
        acknowledged: JetStream where True, core NATS where False.
        window: Most acknowledgements outstanding.
        dedup: Whether events get a ``Nats-Msg-Id``.
    """

    connection: Connection
    subject: str
    mode: ContentMode
    acknowledged: bool
    window: int
    dedup: bool

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: StructType) -> Target:
        """
        Read the options of the data source, and see that they and the columns make messages.

        Raises:
            ValueError: An option is malformed, or there is no subject.
            TypeError: A column is of no type that messages are made of.
        """
        given = {name.lower(): value for name, value in options.items()}
        subject = given.get("subject", "")
        if subject:
            check_subject(subject)
        _check_columns(schema, has_subject=bool(subject))
        if "mode" in given and "event" not in schema.names:
            raise ValueError("option mode is for rows with an event; these are messages already")
        window = given.get("maxpending", str(_PENDING))
        if not (window.isascii() and window.isdecimal() and int(window) > 0):
            raise ValueError(f"option maxPending is a number from 1, not {window!r}")
        return cls(
            connection=Connection.from_options(options),
            subject=subject,
            mode=_mode(given.get("mode", str(ContentMode.BINARY))),
            acknowledged=read_boolean(given, "acks", default=True),
            window=int(window),
            dedup=read_boolean(given, "dedup", default=True),
        )


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote: messages, and how many of them the stream had already."""

    messages: int
    duplicates: int


class NatsWriter(DataSourceArrowWriter, metaclass=Shipped):
    """Publishes the rows of a table. A task that fails leaves what was acknowledged in the stream."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._target, iterator)


class NatsStreamWriter(DataSourceStreamArrowWriter, metaclass=Shipped):
    """Publishes the rows of micro-batches; a batch that is tried again is sent again."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: what is acknowledged is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: what is stored stays, and is a duplicate when it is sent again."""


def _write(target: Target, batches: Iterator[pa.RecordBatch]) -> Written:
    from ...aio.blocking import Blocking
    from ...aio.bulk import BulkPublisher, PublishResult

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
    The message that a row is.

    Raises:
        EncodeError: ``invalid-subject``, ``invalid-header-name`` or ``invalid-header-value``; as ``to_nats_message``
            for an event.
    """
    subject = row.get("subject") or target.subject
    check_subject(subject)
    if "event" in row:
        event = event_of(row["event"])
        message = to_nats_message(event, subject, mode=target.mode)
        if target.dedup:
            message.headers.append(_MSG_ID, dedup_id(event))
        return message
    data = row.get("data") or b""
    message = NatsMessage(
        subject, data.encode() if isinstance(data, str) else bytes(data), _headers(row.get("headers"))
    )
    for name, value in message.headers.items():
        check_header(name, value)
    if target.dedup and _MSG_ID not in message.headers and (msg_id := _dedup_id(message)):
        message.headers.append(_MSG_ID, msg_id)
    return message


def _headers(given: Sequence[Any] | None) -> Headers:
    """Headers out of what Arrow gives for an array of structs, and for a map: lists of dicts, and of pairs."""
    pairs = [tuple(pair.values()) if isinstance(pair, dict) else pair for pair in given or ()]
    if any(None in pair for pair in pairs):
        raise EncodeError(ErrorCode.INVALID_HEADER_VALUE, "a name or value of a header is NULL")
    return Headers(pairs)


def _dedup_id(message: NatsMessage) -> str | None:
    """None for a message that is not an event: it has nothing that tells it from another."""
    try:
        return dedup_id(from_nats_message(message, parse_data=False))
    except DecodeError:
        return None


def _mode(name: str) -> ContentMode:
    try:
        return ContentMode(name)
    except ValueError:
        raise ValueError(f"option mode is {' or '.join(map(str, ContentMode))}, not {name!r}") from None


def _check_columns(schema: StructType, *, has_subject: bool) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    known = {"subject", "event"} if "event" in types else {"subject", "headers", "data"}
    unknown = types.keys() - known
    if unknown:
        what = "an event has subject beside it" if "event" in types else "a message has subject, headers and data"
        raise ValueError(f"{what}, and no {', '.join(sorted(unknown))}")
    if "event" in types:
        check_event(types["event"])
    if "subject" not in types and not has_subject:
        raise ValueError("there is neither a column nor an option subject")
    if not isinstance(types.get("subject", StringType()), StringType):
        raise TypeError(f"column subject is STRING, not {types['subject'].simpleString()}")
    if not isinstance(types.get("data", BinaryType()), (BinaryType, StringType)):
        raise TypeError(f"column data is BINARY or STRING, not {types['data'].simpleString()}")
    if "headers" in types and not _are_headers(types["headers"]):
        raise TypeError(
            f"column headers is an array of structs of two strings, or a map of strings, not "
            f"{types['headers'].simpleString()}"
        )


def _are_headers(kind: Any) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    return [type(field.dataType) for field in kind.elementType.fields] == [StringType, StringType]
