"""
The steps of ``ce-nats demo``.

They start a nats-server, publish a few hundred events and invalid messages, receive them, capture the stream to
Parquet, decode the capture with Spark, and compare the results. The exit status is 1 if the results differ.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nats

from .. import ContentMode, DecodeError, detect_mode, from_nats_message
from ..aio import Received, subscribe
from ..aio import jetstream as ce_jetstream
from ..capture import ParquetParts
from ..codec.attributes import CORE, canonical
from ..message import StoredMessage
from ..testing import NatsServer
from ._demo_samples import Sample, samples
from ._terminal import console

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from pyspark.sql import SparkSession
    from rich.console import Console

STREAM: Final = "DEMO"
_MAX_WIDTH: Final = 100  # of the output, in characters

# --- The steps -------------------------------------------------------------------------------------------------------


@dataclass
class Results:
    """
    Messages and rows of the steps.

    Attributes:
        received: Messages received by the subscription.
        stored: Messages read from the stream, by sequence.
        captured: Number of captured messages.
        rows: Rows decoded by Spark, by sequence.
    """

    received: list[Received] = field(default_factory=list)
    stored: dict[int, StoredMessage] = field(default_factory=dict)
    captured: int = 0
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)


async def send_and_capture(url: str, sent: list[Sample], path: Path, results: Results) -> None:
    """Publish all samples into a stream, receive them on another connection, and capture the stream."""
    sender, receiver = await nats.connect(url), await nats.connect(url)
    js = sender.jetstream()
    await js.add_stream(name=STREAM, subjects=["demo.>"])
    async with await subscribe(receiver, "demo.>") as received:
        for sample in sent:
            await _send(js, sample)
        for _ in sent:
            results.received.append(await asyncio.wait_for(received.__anext__(), 5))
    with ParquetParts(path) as file:
        async for batch in ce_jetstream.read_stream(js, STREAM):
            file.write(batch)
            results.stored |= {message.sequence: message for message in batch}
    results.captured = file.captured.messages
    await sender.close()
    await receiver.close()


async def _send(js: JetStreamContext, sample: Sample) -> None:
    if sample.event is not None:
        await ce_jetstream.publish(js, sample.event, sample.subject, mode=ContentMode(sample.outcome))
    else:
        await js.publish(sample.subject, sample.payload, headers=sample.headers)


def explode(spark: SparkSession, path: Path, results: Results) -> None:
    """Read the capture with Spark, and decode the events to columns."""
    from ..spark import explode_cloudevents

    rows = explode_cloudevents(spark.read.parquet(str(path))).collect()
    for row in rows:
        columns = results.rows[row["sequence"]] = row.asDict(recursive=True)
        if row["ce_time"]:  # a naive datetime in the time zone of this machine
            columns["ce_time"] = row["ce_time"].astimezone(timezone.utc)


@contextmanager
def quiet_spark(directory: Path) -> Iterator[SparkSession]:
    """
    Start a local Spark that writes its files and its log to a directory.

    Raises:
        ImportError: Spark did not start, usually because of a missing JDK.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf().setMaster("local[2]").setAppName("ce_nats demo")
    conf.setAll([("spark.ui.enabled", "false"), ("spark.ui.showConsoleProgress", "false")])
    conf.setAll([("spark.driver.host", "127.0.0.1"), ("spark.driver.bindAddress", "127.0.0.1")])
    conf.setAll([("spark.local.dir", str(directory)), ("spark.sql.warehouse.dir", str(directory / "warehouse"))])
    conf.setAll([("spark.sql.session.timeZone", "UTC"), ("spark.sql.shuffle.partitions", "2")])
    conf.set("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={directory} -XX:-UsePerfData -XX:TieredStopAtLevel=1")
    log = directory / "spark.log"
    with log.open("wb") as output:
        try:
            gateway: Any = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            last = log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise ImportError(f"Spark did not start; it needs a JDK, 17 or 21: {last}") from None
        try:
            spark = SparkSession(SparkContext(gateway=gateway, conf=conf))
            yield spark
            spark.stop()
        finally:
            gateway.shutdown()
            gateway.proc.stdin.close()  # ends the JVM
            gateway.proc.wait(30)


# --- Comparison ------------------------------------------------------------------------------------------------------


def outcome_of(message: Any) -> str:
    """Return the content mode of a message, or the error code of decoding it."""
    try:
        from_nats_message(message)
    except DecodeError as error:
        return str(error.code)
    return str(detect_mode(message))


def outcome_of_row(row: dict[str, Any]) -> str:
    """Return the content mode or the error code in a row of Spark."""
    return str(row["ce_error"] or row["ce_mode"])


def counts(sent: list[Sample], results: Results) -> dict[str, Counter[str]]:
    """Return the number of messages for each outcome, by step."""
    return {
        "sent": Counter(sample.outcome for sample in sent),
        "received": Counter(outcome_of(item.message) for item in results.received),
        "captured": Counter(outcome_of(message) for message in results.stored.values()),
        "Spark": Counter(outcome_of_row(row) for row in results.rows.values()),
    }


def differences(sent: list[Sample], results: Results) -> list[str]:
    """Return a sentence for each difference between the steps."""
    counted = counts(sent, results)
    expected = counted["sent"]
    found = [
        f"{step} and sent messages differ: {dict(counter - expected)} added, {dict(expected - counter)} missing"
        for step, counter in counted.items()
        if counter != expected
    ]
    if results.captured != len(sent):
        found.append(f"{len(sent)} messages were sent, {results.captured} were captured")
    for sequence, message in results.stored.items():
        row = results.rows.get(sequence, {})
        found += [
            f"message {sequence}: {column} is {value!r} in Python, {row.get(column)!r} in Spark"
            for column, value in columns_of(message).items()
            if value != row.get(column)
        ]
    return found


def columns_of(message: Any) -> dict[str, Any]:
    """Return the expected Spark columns of a message, decoded in Python; empty for an invalid message."""
    try:
        event = from_nats_message(message, parse_data=False)
    except DecodeError:
        return {}
    attributes = dict(event.get_attributes())
    columns = {f"ce_{name}": attributes.pop(name, None) for name in CORE}
    columns["ce_extensions"] = {name: canonical(value) for name, value in attributes.items()}
    return columns | {"ce_data": event.get_data()}


# --- Output ----------------------------------------------------------------------------------------------------------


def show_before_and_after(output: Console, results: Results) -> None:
    """Print a message as sent on the wire, and the decoded event."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    candidates = (message for message in results.stored.values() if message.subject == "demo.order.shipped")
    message = next(message for message in candidates if str(detect_mode(message)) == "binary")
    wire = Text(f"subject: {message.subject}\n\nNATS/1.0\n", overflow="fold")
    wire.append("".join(f"{name}: {value}\n" for name, value in message.headers))
    wire.append(f"\n{message.data.decode()}")
    output.print(Panel(wire, title="on the wire", title_align="left"))
    table = Table.grid(padding=(0, 2))
    event = from_nats_message(message)
    for name, value in event.get_attributes().items():
        table.add_row(name, Text(str(value)))
    table.add_row("data", Text(repr(event.get_data())))
    output.print(Panel(table, title="decoded", title_align="left"))


def show_columns(output: Console, results: Results) -> None:
    """Print one row of each kind from Spark."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title="decoded by Spark, one row of each kind", title_justify="left", box=box.SIMPLE_HEAD)
    columns = {"ce_type": 15, "ce_id": 9, "ce_subject": 11, "ce_extensions": 13, "ce_mode": 10, "ce_error": 23}
    for name, width in columns.items():
        table.add_column(name, width=width, overflow="ellipsis", no_wrap=True)
    kinds = {(row["ce_type"], row["ce_error"]): row for _, row in sorted(results.rows.items(), reverse=True)}
    for row in sorted(kinds.values(), key=lambda row: (row["ce_error"] or "", row["sequence"])):
        table.add_row(*(Text(_cell(row[name])) for name in columns))
    output.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items())
    return "" if value is None else str(value).removeprefix("com.example.")


def show_counts(output: Console, counted: dict[str, Counter[str]]) -> None:
    """Print the counts as a table, with a row for each outcome and a column for each step."""
    from rich import box
    from rich.table import Table

    table = Table(title="messages by mode or error", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("", width=40)
    for step in counted:
        table.add_column(step, justify="right")
    outcomes = sorted({outcome for counter in counted.values() for outcome in counter}, key=_by_outcome)
    for outcome in outcomes:
        table.add_row(outcome, *(str(counter[outcome]) for counter in counted.values()))
    table.add_section()
    table.add_row("all", *(str(sum(counter.values())) for counter in counted.values()))
    output.print(table)


def _by_outcome(outcome: str) -> tuple[bool, str]:
    return outcome not in list(ContentMode), outcome


def main() -> int:
    """
    Run all steps, and print the results.

    Returns 0 if the results of all steps are equal, else 1.

    Raises:
        ImportError: A required package is not installed.
    """
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise ImportError(f"the demonstration needs {error.name}: pip install 'ce-nats[spark,cli]'") from error
    output = console()
    output.width = min(_MAX_WIDTH, output.width)
    sent, results = samples(), Results()
    with tempfile.TemporaryDirectory(prefix="ce-nats-demo-") as scratch:
        path = Path(scratch, "demo.parquet")
        with NatsServer(jetstream=True) as server:
            output.print(f"nats-server with JetStream on port {server.port}: sending {len(sent)} messages")
            asyncio.run(send_and_capture(server.url, sent, path, results))
        output.print(f"received {len(results.received)}, captured {results.captured}; starting Spark")
        with quiet_spark(Path(scratch)) as spark:
            explode(spark, path, results)
    output.print()
    show_before_and_after(output, results)
    show_columns(output, results)
    show_counts(output, counts(sent, results))
    found = differences(sent, results)
    for difference in found[:10]:
        output.print(difference)
    output.print("NOT ALL STEPS AGREE" if found else "all steps agree: sent = received = captured = decoded by Spark")
    return 1 if found else 0
