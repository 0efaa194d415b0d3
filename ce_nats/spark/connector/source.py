"""
JetStream as a data source of Spark, for tables and for streaming queries.

    register(spark)
    spark.read.format("nats").option("url", "nats://localhost:4222").option("stream", "ORDERS").load()

A stream's sequence is the offset: it never changes what it stands for, so a range can be read by any worker, and again
after a failure. No consumer is left on the server, nothing is acknowledged, and no message is changed. A row is a
message as it was stored, event or not; ``ce_nats.spark`` decodes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructType, TimestampType

from ...errors import DataLossError
from ...ranges import StreamRange, StreamState, split
from ..workers import Shipped, check_workers
from .connection import CONNECTION_OPTIONS, Connection, check_names
from .offsets import Offset, advance, ranges
from .planning import batch_ranges, first_offset, loss_policy, partitions
from .read_options import READ_OPTIONS, ReadOptions
from .sink import SINK_OPTIONS, NatsStreamWriter, NatsWriter, Target
from .streams import Streams

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.0 and 4.1
        SupportsTriggerAvailableNow = object

__all__ = ["NatsDataSource", "register"]

# Spark puts these among the options of a sink.
_OPTIONS_OF_SPARK: Final = ("checkpointLocation", "path", "queryName")

_HEADER: Final = StructType().add("key", StringType()).add("value", StringType())
# As in ce_nats.capture.
_ROW: Final = (
    StructType()
    .add("subject", StringType())
    .add("reply", StringType())
    .add("headers", ArrayType(_HEADER))
    .add("data", BinaryType())
    .add("stream", StringType())
    .add("sequence", LongType())
    .add("timestamp", TimestampType())
)


def register(spark: SparkSession) -> None:
    """
    Make ``format("nats")`` known to a session.

    Raises:
        ImportError: Workers on this machine run a Python that cannot import ce_nats.
        AnalysisException: The session has another data source of that name.
    """
    check_workers(spark)
    try:
        spark.dataSource.register(NatsDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        _register_as_active(spark)


def _register_as_active(spark: SparkSession) -> None:
    """
    Register in a session that is not the active one.

    Spark (4.0 to 4.3) looks for the name in the active session, which may have it, whichever session it is for.
    """
    active = SparkSession.getActiveSession()
    spark.createDataFrame([], "nothing int")  # makes the session the active one
    try:
        spark.dataSource.register(NatsDataSource)
    finally:
        if active is not None:
            active.createDataFrame([], "nothing int")


class NatsDataSource(DataSource, metaclass=Shipped):
    """
    ``format("nats")``.

    Rows: ``subject``, ``reply`` (always empty: a stream does not keep it), ``headers`` (array of ``key`` and ``value``,
    in wire order, repeats included), ``data`` (binary), ``stream``, ``sequence`` (from 1) and ``timestamp`` (when the
    server stored it, in microseconds).

    Options, in any case; those that say how to connect are in connection.py:

    - ``url``: ``nats://host:4222``, or several with commas between them.
    - ``stream``: name of a stream, or several with commas between them.
    - ``subjects``: patterns with commas between them; by default all subjects.
    - ``startingOffsets``: ``earliest`` (the default for tables), ``latest`` (the default for queries), a first
      sequence, or ``{"ORDERS": 1, "PAYMENTS": "latest"}``. ``startingTimestamp``: RFC 3339 instead.
    - ``endingOffsets``: ``latest``, a last sequence, inclusive, or JSON as above. ``endingTimestamp``: RFC 3339,
      exclusive. For tables only.
    - ``minPartitions``: partitions to cut the sequences into; by default one for each 500,000 of a stream.
    - ``maxMessagesPerTrigger``: most messages in a micro-batch, over all streams. Deleted messages and other subjects
      count, but for those in front of the first one. Before Spark 4.2, a query with the trigger ``availableNow`` reads
      all in one micro-batch.
    - ``failOnDataLoss``: ``true`` (the default) makes it an error when a stream no longer has what was to be read,
      ``false`` a warning in the log. Messages that somebody deleted one by one are not missed.

    Rows to write have ``headers`` and ``data``, or an ``event`` (see sink.py), and ``subject`` unless there is an
    option of that name. Options beside those of connection.py:

    - ``subject``: subject of rows without one.
    - ``mode``: content mode of rows with an ``event``, ``binary`` (the default) or ``structured``.
    - ``acks``: ``true`` (the default) waits until a stream has stored each message, ``false`` publishes to core NATS.
    - ``maxPending``: most acknowledgements that a task waits for at a time, 500 by default.
    - ``dedup``: ``true`` (the default) gives events a ``Nats-Msg-Id`` of source and id where they have none.
    """

    @classmethod
    def name(cls) -> str:
        return "nats"

    def schema(self) -> StructType:
        return _ROW

    def reader(self, schema: StructType) -> DataSourceReader:
        return NatsReader(*self._read_options(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return NatsStreamReader(*self._read_options(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> NatsWriter:
        if overwrite:
            raise ValueError("messages are added to a stream, not put in the place of others: mode is append")
        return NatsWriter(self._target(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NatsStreamWriter:  # noqa: N802
        if overwrite:
            raise ValueError("messages are added to a stream, not put in the place of others: outputMode is append")
        return NatsStreamWriter(self._target(schema))

    def _target(self, schema: StructType) -> Target:
        check_names(self.options, (*CONNECTION_OPTIONS, *SINK_OPTIONS, *_OPTIONS_OF_SPARK))
        return Target.from_options(self.options, schema)

    def _read_options(self, schema: StructType, *, streaming: bool) -> tuple[Connection, ReadOptions]:
        if schema.simpleString() != _ROW.simpleString():
            raise ValueError(f"the rows of nats are {_ROW.simpleString()}, not {schema.simpleString()}")
        check_names(self.options, (*CONNECTION_OPTIONS, *READ_OPTIONS))
        return Connection.from_options(self.options), ReadOptions.from_options(self.options, streaming=streaming)


class NatsReader(DataSourceReader, metaclass=Shipped):
    """
    Reads what streams have when the query is planned.

    It takes no filters of the query from Spark (``pushFilters``): where one query on a DataFrame hands some over, Spark
    4.3 gives the plan that is made with them to the next query on it, too, which then misses rows. What is to be read
    is chosen by options.
    """

    def __init__(self, connection: Connection, read_options: ReadOptions) -> None:
        self._connection = connection
        self._read_options = read_options

    def partitions(self) -> Sequence[InputPartition]:
        streams = Streams(self._connection)
        try:
            states = streams.states(self._read_options.streams)
            found = batch_ranges(self._read_options, states, streams, loss_policy(self._read_options))
        finally:
            streams.close()
        return [InputPartition(part) for part in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._connection, self._read_options, partition)


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, metaclass=Shipped):
    """
    Reads on from offset to offset (see offsets.py).

    Spark keeps one in a process of its own while a query runs, and sends copies to workers. From Spark 4.2 on it tells
    the reader where the query stands; before that the reader remembers, and after a restart of the query it does not
    know until the first batch, which is then not bound by ``maxMessagesPerTrigger``.
    """

    def __init__(self, connection: Connection, read_options: ReadOptions) -> None:
        self._connection = connection
        self._read_options = read_options
        self._streams = Streams(connection)
        self._on_loss = loss_policy(read_options)
        self._position: Offset | None = None
        self._target: Offset | None = None
        self._newest: Offset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return NatsStreamReader, (self._connection, self._read_options)

    def initialOffset(self) -> Offset:  # noqa: N802
        self._position = first_offset(self._read_options, self._states(), self._streams)
        return self._position

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        most = self._read_options.most_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:  # noqa: N802
        # Before Spark 4.2 there are no arguments.
        most = self._read_options.most_per_trigger if limit is None else getattr(limit, "max_rows", None)
        start = start or self._position
        states = self._states()
        self._newest = advance({}, states, on_loss=self._on_loss)
        if start is None:
            start, most = {}, None
        self._position = advance(start, states, most=most, target=self._target, skip=self._skip, on_loss=self._on_loss)
        return self._position

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = advance({}, self._states(), on_loss=self._on_loss)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._newest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._position = end
        if start == end:
            return []
        found = ranges(start, end, self._streams.states(list(end)), self._read_options.subjects, self._on_loss)
        return [InputPartition(part) for part in split(found, partitions(self._read_options, found))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._connection, self._read_options, partition)

    def commit(self, end: Offset) -> None:
        """Nothing to do: what is kept is in Spark's checkpoint."""

    def stop(self) -> None:
        self._streams.close()

    def _states(self) -> dict[str, StreamState]:
        return self._streams.states(self._read_options.streams)

    def _skip(self, state: StreamState, sequence: int) -> int:
        if not self._read_options.subjects and state.messages == state.last - state.first + 1:
            return sequence
        following = self._streams.next_sequence(state.name, sequence + 1, self._read_options.subjects)
        return state.last if following is None else following - 1


def _read(
    connection: Connection, read_options: ReadOptions, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    # Spark makes a partition where there is none: before 4.1 it is None, and else it has no value.
    if partition is None or partition.value is None:
        return iter(())
    return _record_batches(connection, partition.value, loss_policy(read_options))


def _record_batches(
    connection: Connection, wanted: StreamRange, on_loss: Callable[[DataLossError], None]
) -> Iterator[pa.RecordBatch]:
    from ...aio.blocking import Blocking
    from ...aio.ranges import read_range
    from .batches import record_batch

    with Blocking() as blocking:
        batches = read_range(
            connection.connect,
            wanted,
            prefix=connection.api_prefix,
            on_loss=on_loss,
            request_timeout=connection.request_timeout,
            retry_timeout=connection.retry_timeout,
        )
        for batch in blocking.iterate(batches):
            yield record_batch(batch)
