"""
JetStream as a data source of Spark, for tables and streaming queries.

    register(spark)
    spark.read.format("nats").option("url", "nats://localhost:4222").option("stream", "ORDERS").load()

Offsets are stream sequences. A sequence always names the same message, so any worker can read a range, and can read it
again after a failure. No consumer remains on the server, and messages are neither acknowledged nor changed. A row is a
message as stored, whether it is an event or not; the functions of ``ce_nats.spark`` decode rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ..._ranges import OLD_STATE_SECONDS, StreamRange, StreamState
from ...capture._rows import SCHEMA
from ...cesql._messages import MessageFilter
from ...errors import DataLossError, DeliveryError, ErrorCode
from .._workers import Shipped, check_workers, context_of
from ._connection import CONNECTION_OPTIONS, Connection, check_names
from ._limits import Limits, Waiting, estimate
from ._offsets import Offset, advance, changed, check_selection, checked, in_order, ranges, shorter_than, unread
from ._planning import batch_ranges, divide, find_streams, first_offset, loss_policy
from ._read_options import READ_OPTIONS, ReadOptions
from ._sink import SINK_OPTIONS, NatsStreamWriter, NatsWriter, Target
from ._streams import Streams

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.0 and 4.1
        SupportsTriggerAvailableNow = object

# Spark adds these to the options of a sink.
_OPTIONS_OF_SPARK: Final = ("checkpointLocation", "path", "queryName")
# CREATE TABLE adds properties of the table to the options, and each of its OPTIONS with this prefix.
_OPTION_OF_TABLE: Final = "option."
_PROVIDER: Final = "provider"
_TABLE_OPTIONS: Final = (
    "Spark does not pass the OPTIONS of CREATE TABLE to the source: use them in the query, as in SELECT ... FROM name "
    "WITH (url '...', stream '...'), or use CREATE TEMPORARY VIEW name USING nats OPTIONS (...)"
)

# Variables of processes that run streaming readers. Spark sets them in a HashMap that all queries share. If the
# names are new, two queries that start at once damage it, and then no task can be started: OptionalDataException.
_VARIABLES: Final = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}

_ROW: Final = from_arrow_schema(SCHEMA)
_POLL_SECONDS: Final = 0.5


def register(spark: SparkSession) -> None:
    """
    Register ``format("nats")`` in a session.

    Raises:
        ImportError: Workers on this machine run a Python that cannot import ce_nats.
        AnalysisException: The session has another data source with this name.
    """
    check_workers(spark)
    with _variables(spark):
        try:
            spark.dataSource.register(NatsDataSource)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
            _register_as_active(spark)


@contextmanager
def _variables(spark: SparkSession) -> Iterator[None]:
    """Give a data source that is registered meanwhile the variables in ``_VARIABLES``."""
    context = context_of(spark)
    if context is None:  # the server registers it
        yield
        return
    before = context.environment
    context.environment = {**_VARIABLES, **before}
    try:
        yield
    finally:
        context.environment = before


def _register_as_active(spark: SparkSession) -> None:
    """
    Register in a session that is not the active one.

    Spark (4.0 to 4.3) looks up the name in the active session, even if another session registers a data source. So
    registering fails if the active session already has the name.
    """
    active = SparkSession.getActiveSession()
    spark.createDataFrame([], "nothing int")  # makes the session the active one
    try:
        spark.dataSource.register(NatsDataSource)
    finally:
        if active is not None:
            active.createDataFrame([], "nothing int")  # makes the former one active again


class NatsDataSource(DataSource, metaclass=Shipped):
    """
    The data source of ``format("nats")``.

    Rows: ``subject``, ``reply`` (always empty, because a stream does not store it), ``headers`` (array of ``key`` and
    ``value``, in wire order, with repeated names), ``data`` (binary), ``stream``, ``sequence`` (from 1) and
    ``timestamp`` (when the server stored the message, in microseconds).

    Options for reading, with case-insensitive names, besides the connection options of _connection.py:

    - ``url``: ``nats://host:4222``, or several separated by commas.
    - ``stream``: a stream name, or several separated by commas. Instead: ``streamPattern``, a regular expression (RE2)
      for the whole name. A streaming query finds new streams while it runs, and reads them from their beginning.
    - ``subjects``: subject patterns separated by commas; by default all subjects.
    - ``filter``: an expression of CloudEvents SQL. Events that do not pass it are not read; messages that are not
      events are.
    - ``startingOffsets``: ``earliest`` (the default for tables), ``latest`` (the default for streaming queries), a
      first sequence, or ``{"ORDERS": 1, "PAYMENTS": "latest"}``. Instead: ``startingTimestamp``, in RFC 3339 or
      milliseconds since 1970, or JSON as above.
    - ``startingTimestampStrategy``: ``latest`` (the default) starts after the last message if none was stored at or
      after ``startingTimestamp``, ``error`` raises an error.
    - ``endingOffsets``: ``latest`` (the default), a last sequence (inclusive), or JSON as above. Instead:
      ``endingTimestamp``, as ``startingTimestamp`` (exclusive). For tables only.
    - ``minPartitions``: minimum number of partitions; by default one for each 500,000 sequences, and for fewer
      sequences one for each core of the driver's machine, with at least 50,000 sequences each.
    - ``maxMessagesPerPartition``: maximum number of messages in a partition. Deleted messages and messages on other
      subjects count.
    - ``maxMessagesPerTrigger``: maximum number of messages in a micro-batch, in all streams. Deleted messages and
      messages on other subjects count, except those before the first one to read. Before Spark 4.2, a query with the
      trigger ``availableNow`` reads all messages in one micro-batch.
    - ``maxBytesPerTrigger``: maximum number of bytes in a micro-batch, of subjects, headers and payloads. Each stream
      with unread messages advances by one at least. An estimate for streams whose retention is not ``limits``.
    - ``minMessagesPerTrigger``: minimum number of messages in a micro-batch, counted in the same way. Fewer are read
      after ``maxTriggerDelay``, 15 minutes by default. The trigger ``availableNow`` does not wait.
    - ``failOnDataLoss``: with ``true`` (the default), it is an error if a stream no longer has messages that were to be
      read, or was deleted; with ``false``, a warning is logged. Messages that were deleted one by one do not count as
      lost.

    Rows to write have an ``event``, or ``headers`` and ``data`` (see _sink.py), and a ``subject`` unless the option
    ``subject`` is given. Further columns are ignored. Options for writing, besides the connection options:

    - ``subject``: subject of rows without one.
    - ``contentMode``: content mode of rows with an ``event``, ``binary`` (the default) or ``structured``.
    - ``maxPending``: maximum number of unacknowledged messages of a task, 500 by default.
    - ``dedup``: ``true`` (the default) adds a ``Nats-Msg-Id`` of source and id to events without one.
    """

    @classmethod
    def name(cls) -> str:
        return "nats"

    def schema(self) -> StructType:
        # Spark calls this to create a table or a view, and to load a DataFrame without a schema.
        if any(name.lower().startswith(_OPTION_OF_TABLE) for name in self.options):
            raise ValueError(f"a table of format nats must be created without OPTIONS: {_TABLE_OPTIONS}")
        if _PROVIDER not in self.options:
            Connection.from_options(self.options)
        return _ROW

    def reader(self, schema: StructType) -> DataSourceReader:
        return NatsReader(*self._read_options(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return NatsStreamReader(*self._read_options(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> NatsWriter:
        if overwrite:
            raise ValueError("mode must be append, got overwrite: stored messages of a stream cannot be replaced")
        return NatsWriter(self._target(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NatsStreamWriter:  # noqa: N802
        if overwrite:
            raise ValueError("outputMode must be append, got complete: stored messages of a stream cannot be replaced")
        return NatsStreamWriter(self._target(schema))

    def _target(self, schema: StructType) -> Target:
        self._check_options(*SINK_OPTIONS, *_OPTIONS_OF_SPARK)
        return Target.from_options(self.options, schema)

    def _read_options(self, schema: StructType, *, streaming: bool) -> tuple[Connection, ReadOptions]:
        self._check_options(*READ_OPTIONS)
        if schema.simpleString() != _ROW.simpleString():
            raise ValueError(
                f"the schema of format nats must be {_ROW.simpleString()}, got {schema.simpleString()}; leave it out"
            )
        return Connection.from_options(self.options), ReadOptions.from_options(self.options, streaming=streaming)

    def _check_options(self, *further: str) -> None:
        if not self.options:
            raise ValueError(f"option url is missing, as all others. For a table, {_TABLE_OPTIONS}")
        check_names(self.options, (*CONNECTION_OPTIONS, *further))


class NatsReader(DataSourceReader, metaclass=Shipped):
    """
    Read the messages that streams have when the query is planned.

    It does not implement ``pushFilters``: after one query on a DataFrame pushed filters down, Spark 4.3 reuses the plan
    with these filters for the next query on the same DataFrame, which then misses rows. Options select what is read.
    """

    def __init__(self, connection: Connection, read_options: ReadOptions) -> None:
        self._connection = connection
        self._read_options = read_options

    def partitions(self) -> Sequence[InputPartition]:
        streams = Streams(self._connection)
        try:
            names = find_streams(self._read_options, streams.names)
            states = streams.states(names, optional=names if self._read_options.pattern else ())
            found = batch_ranges(self._read_options, states, streams, loss_policy(self._read_options))
        finally:
            streams.close()
        return [InputPartition(part) for part in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._connection, self._read_options, partition)


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=Shipped):
    """
    Read the messages between two offsets (see _offsets.py).

    While a query runs, Spark keeps one reader in a separate Python process, and sends copies to workers. From 4.2 on,
    Spark passes the query's current offset to the reader. Before 4.2 the reader keeps track of it, but loses it at a
    restart of the query: the first batch is then not limited by ``maxMessagesPerTrigger``, and its end offset does not
    contain the streams that are no longer in the options.
    """

    def __init__(self, connection: Connection, read_options: ReadOptions) -> None:
        self._connection = connection
        self._read_options = read_options
        self._streams = Streams(connection)
        self._on_loss = loss_policy(read_options)
        self._waiting = Waiting(read_options.limits)
        self._position: Offset | None = None
        self._target: Offset | None = None
        self._newest: Offset | None = None
        self._has_checked_selection = False
        # Name, creation time and last sequence of streams that are known to be shorter than an offset.
        self._shortened: set[tuple[str, str, int]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return NatsStreamReader, (self._connection, self._read_options)

    def initialOffset(self) -> Offset:  # noqa: N802
        states = self._states(find_streams(self._read_options, self._streams.names), known=())
        self._position = first_offset(self._read_options, states, self._streams)
        return self._position

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

        # Spark supports a single limit, and only passes it to latestOffset().
        limits = self._read_options.limits
        if limits.max_messages is not None:
            return ReadMaxRows(limits.max_messages)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_messages is None else ReadMinRows(limits.min_messages)

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:  # noqa: N802
        # Spark before 4.2 passes no arguments.
        start = checked(start) if start else self._position
        names = self._names(start)
        self._check_selection(start or {})
        known = self._read_options.streams if start is None else start
        states = self._states_from(start or {}, lambda: self._states(names, known=known))
        self._newest = advance({}, states, on_loss=self._on_loss)
        limits = self._limits(limit)
        if start is None:
            start, limits = {}, Limits()
        elif self._is_waiting(start, states, limits):
            return start
        self._position = advance(
            start,
            states,
            selection=self._read_options.selection,
            limits=limits,
            target=self._target,
            skip=self._skip,
            fit=self._fit,
            on_loss=self._on_loss,
        )
        return self._position

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # The position of the query is not known here; latestOffset() detects a stream that never existed.
        pattern = self._read_options.pattern
        streams = pattern.matching(self._streams.names()) if pattern else self._read_options.streams
        self._target = advance({}, self._streams.states(streams, optional=streams), on_loss=self._on_loss)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._newest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._position = in_order({**checked(start), **checked(end)})
        self._check_selection(start)
        streams = changed(start, end)
        if not streams:
            return []
        states = self._states_from(end, lambda: self._states(streams, known=end))
        found = ranges(start, end, states, self._read_options.subjects, self._on_loss)
        return [InputPartition(part) for part in divide(self._read_options, found)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._connection, self._read_options, partition)

    def commit(self, end: Offset) -> None:
        """Do nothing: offsets are in Spark's checkpoint, and the server keeps no state for a query."""

    def stop(self) -> None:
        self._streams.close()

    def _limits(self, limit: ReadLimit | None) -> Limits:
        """Return the limits of a micro-batch: those of the options, or none if Spark requests all messages."""
        limits = self._read_options.limits
        if limit is None:
            return limits
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        if isinstance(limit, ReadAllAvailable):
            return Limits()
        return replace(limits, max_messages=limit.max_rows) if isinstance(limit, ReadMaxRows) else limits

    def _check_selection(self, start: Offset) -> None:
        """
        Check the subjects and the filter once, because only a restart can change them.

        Before Spark 4.2, the first offset is that of :meth:`partitions`; the end of that micro-batch is already in the
        checkpoint then, with the new ones, although a retry may use the former ones.
        """
        if start and not self._has_checked_selection:
            pattern = self._read_options.pattern
            streams = pattern.matching([*start]) if pattern else self._read_options.streams
            check_selection(start, streams, self._read_options.selection, self._on_loss)
            self._has_checked_selection = True

    def _is_waiting(self, start: Offset, states: dict[str, StreamState], limits: Limits) -> bool:
        """Return whether messages wait for further ones. A query that ends at a target reads all messages up to it."""
        if limits.min_messages is None or self._target is not None:
            return False
        return self._waiting.continues(unread(start, states, self._on_loss))

    def _names(self, start: Offset | None) -> list[str]:
        """Return the names of the streams to read. A query that ends at a target does not read new streams."""
        target = self._target
        existing = self._streams.names if target is None else lambda: target
        return find_streams(self._read_options, existing, known=start or ())

    def _states_from(self, offset: Offset, ask: Callable[[], dict[str, StreamState]]) -> dict[str, StreamState]:
        """Return states that are not older than an offset, unless a stream was shortened; see OLD_STATE_SECONDS."""
        end = time.monotonic() + OLD_STATE_SECONDS
        while True:
            states = ask()
            shorter = {(state.name, state.created, state.last) for state in shorter_than(offset, states)}
            if shorter <= self._shortened:
                return states
            if time.monotonic() >= end:
                self._shortened |= shorter
            else:
                time.sleep(_POLL_SECONDS)

    def _states(self, names: Sequence[str], known: Container[str]) -> dict[str, StreamState]:
        """Return states by name, without those of deleted streams."""
        states = self._streams.states(names, optional=names if self._read_options.pattern else known)
        for name in names:
            if name not in states and name in known:
                self._on_loss(DataLossError.deleted(name))
        return states

    def _skip(self, state: StreamState, sequence: int) -> int:
        if not self._read_options.subjects and state.messages == state.last - state.first + 1:
            return sequence
        following = self._streams.next_sequence(state.name, sequence + 1, self._read_options.subjects)
        return state.last if following is None else following - 1

    def _fit(self, state: StreamState, first: int, last: int, size: int) -> tuple[int, int]:
        # A consumer would keep messages in an interest stream, and would take messages of a work queue.
        if state.size <= size or state.retention != "limits":
            return estimate(state, first, last, size)
        wanted = StreamRange(state.name, first, last, state.created, self._read_options.subjects, from_beginning=True)
        return self._streams.fitting(wanted, size)


def _read(
    connection: Connection, read_options: ReadOptions, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    # If there are no partitions, Spark reads a placeholder: None before 4.1, since then a partition without a value.
    if partition is None or partition.value is None:
        return iter(())
    return _record_batches(connection, read_options.filter, partition.value, loss_policy(read_options))


def _record_batches(
    connection: Connection, expression: str | None, wanted: StreamRange, on_loss: Callable[[DataLossError], None]
) -> Iterator[pa.RecordBatch]:
    from ...aio.reading._range_reader import read_range
    from ._batches import passing, record_batch
    from ._blocking import Blocking

    chosen = MessageFilter.of(expression, f"stream {wanted.stream}")
    with Blocking() as blocking:
        batches = read_range(
            connection.connect,
            wanted,
            prefix=connection.api_prefix,
            on_loss=on_loss,
            request_timeout=connection.request_timeout,
            retry_timeout=connection.retry_timeout,
        )
        try:
            for batch in blocking.iterate(batches):
                rows = batch if chosen is None else passing(batch, chosen)
                if rows is not None:
                    yield record_batch(rows)
        except DeliveryError as error:
            if error.code is not ErrorCode.STREAM_NOT_FOUND:
                raise
            on_loss(DataLossError.deleted(wanted.stream))
