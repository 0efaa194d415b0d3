"""
The steps of ``ce-nats demo``.

It starts a nats-server, publishes a few hundred events and invalid messages, receives them, captures the stream to
Parquet, decodes the capture with Spark, and compares the results of the steps. The exit status is 1 if they differ.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nats
from cloudevents.core.v1.event import CloudEvent

from .. import ContentMode, DecodeError, Timestamp, detect_mode, from_nats_message
from ..aio import Received, subscribe
from ..aio import jetstream as ce_jetstream
from ..capture import ParquetParts
from ..codec.attributes import CORE, canonical
from ..message import MSG_ID, StoredMessage
from ..testing import NatsServer
from . import _terminal as terminal

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from pyspark.sql import SparkSession
    from rich.console import Console

STREAM: Final = "DEMO"
WIDTH: Final = 100

# --- Messages to send ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """
    One message to send: an event, or a raw message.

    Attributes:
        subject: NATS subject.
        outcome: Expected result of decoding: a content mode, or an error code.
        event: Event to encode in the mode ``outcome``; None for a raw message.
        headers: Headers of a raw message.
        payload: Payload of a raw message.
    """

    subject: str
    outcome: str
    event: CloudEvent | None = None
    headers: dict[str, str] | None = None
    payload: bytes = b""


_TIME: Final = datetime(2026, 1, 31, 12, 30, tzinfo=timezone.utc)

# Type, further attributes, data; "{n}" is replaced with the number of the event.
_EVENTS: Final[list[tuple[str, dict[str, Any], Any]]] = [
    ("order.placed", {"subject": "orders/{n}"}, {"total": 12.5, "items": ["tea", "Käse"]}),
    ("order.shipped", {"subject": 'Zürich → 東京 😀 "100 %"', "datacontenttype": "application/json"}, ["a", 1, None]),
    (
        "sensor.reading",
        {
            "alarm": True,
            "level": -42,
            "unit": "°C",
            "raw": b"\x00\x01\xff",
            "calibrated": _TIME - timedelta(days=30),
            "dataschema": "https://example.com/schemas/reading#2",
        },
        21.5,
    ),
    ("image.thumbnail", {"datacontenttype": "image/png"}, b"\x89PNG\r\n\x1a\n\x00"),
    ("invoice.issued", {"datacontenttype": "application/xml"}, "<invoice><sum>12.50 €</sum></invoice>"),
    ("note.written", {"datacontenttype": "text/plain; charset=utf-8"}, "two\nlines of plain text"),
    ("user.left", {}, None),
    ("trade.done", {"time": Timestamp("2026-01-31T14:30:00.123456789+02:00"), "traceid": ""}, {"price": "99.90"}),
]

_CE: Final = {"ce-specversion": "1.0", "ce-id": "b{n}", "ce-source": "/broken", "ce-type": "com.example.broken"}
_JSON: Final = "application/cloudevents+json"

# Number of messages, expected error code, headers and payload.
_BROKEN: Final[list[tuple[int, str, dict[str, str] | None, bytes]]] = [
    (7, "invalid-percent-escape", {**_CE, "ce-subject": 'Euro € 100% "q"'}, b""),
    (5, "invalid-utf8", {**_CE, "ce-subject": "%C0%A0"}, b""),
    (6, "missing-attribute", {name: value for name, value in _CE.items() if name != "ce-id"}, b"x"),
    (3, "duplicate-attribute", {**_CE, "CE-Id": "another"}, b""),
    (2, "unsupported-specversion", {**_CE, "ce-specversion": "0.3"}, b""),
    (2, "invalid-timestamp", {**_CE, "ce-time": "yesterday"}, b""),
    (2, "invalid-attribute-name", {**_CE, "ce-my_ext": "1"}, b""),
    (4, "invalid-json", {"Content-Type": _JSON}, b'{"specversion":"1.0","id":'),
    (3, "batch-not-supported", {"Content-Type": "application/cloudevents-batch+json"}, b"[]"),
    (1, "unsupported-format", {"Content-Type": "application/cloudevents+avro"}, b"\x00"),
    (5, "not-a-cloudevent", None, b"not an event"),
]


def samples() -> list[Sample]:
    """All messages to send, with the invalid ones spread among the events."""
    good = list(_good(280))
    broken = [
        Sample("demo.broken", code, headers=_numbered(headers, number), payload=payload)
        for times, code, headers, payload in _BROKEN
        for number in range(times)
    ]
    every = len(good) // len(broken)
    mixed: list[Sample] = []
    for number, sample in enumerate(good):
        mixed.append(sample)
        if number % every == 0 and broken:
            mixed.append(broken.pop())
    return mixed + broken


def _good(count: int) -> Iterator[Sample]:
    for number in range(count):
        kind, further, data = _EVENTS[number % len(_EVENTS)]
        attributes: dict[str, Any] = {"specversion": "1.0", "id": f"event {number}", "source": f"/demo/{number % 3}"}
        attributes |= {"type": f"com.example.{kind}", "time": _TIME + timedelta(milliseconds=number)}
        attributes |= {name: _with_number(value, number) for name, value in further.items()}
        mode = list(ContentMode)[number // len(_EVENTS) % 2]
        yield Sample(f"demo.{kind}", mode.value, CloudEvent(attributes, data))
    # Events as sdk-go, Knative and Argo send them: in JSON, without a header that says so.
    for number in range(40):
        payload = b'{"specversion":"1.0","id":"p%d","source":"/peers","type":"com.example.peer.said","data":1}' % number
        headers = {MSG_ID: f"p{number}"} if number % 2 else None
        yield Sample("demo.peer", "structured", headers=headers, payload=payload)


def _with_number(value: Any, number: int) -> Any:
    return value.replace("{n}", str(number)) if isinstance(value, str) else value


def _numbered(headers: dict[str, str] | None, number: int) -> dict[str, str] | None:
    return headers and {name: _with_number(value, number) for name, value in headers.items()}


# --- The steps -------------------------------------------------------------------------------------------------------


@dataclass
class Findings:
    """
    Results of the steps.

    Attributes:
        received: Messages of the subscription.
        stored: Messages of the stream, by sequence.
        captured: Number of captured messages.
        rows: Rows of Spark, by sequence.
    """

    received: list[Received] = field(default_factory=list)
    stored: dict[int, StoredMessage] = field(default_factory=dict)
    captured: int = 0
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)


async def send_and_capture(url: str, sent: list[Sample], path: Path, findings: Findings) -> None:
    """Publish all samples into a stream, receive them on another connection, and capture the stream."""
    sender, receiver = await nats.connect(url), await nats.connect(url)
    js = sender.jetstream()
    await js.add_stream(name=STREAM, subjects=["demo.>"])
    async with await subscribe(receiver, "demo.>") as received:
        for sample in sent:
            await _send(js, sample)
        for _ in sent:
            findings.received.append(await asyncio.wait_for(received.__anext__(), 5))
    with ParquetParts(path) as file:
        async for batch in ce_jetstream.read_stream(js, STREAM):
            file.write(batch)
            findings.stored |= {message.sequence: message for message in batch}
    findings.captured = file.captured.messages
    await sender.close()
    await receiver.close()


async def _send(js: JetStreamContext, sample: Sample) -> None:
    if sample.event is not None:
        await ce_jetstream.publish(js, sample.event, sample.subject, mode=ContentMode(sample.outcome))
    else:
        await js.publish(sample.subject, sample.payload, headers=sample.headers)


def explode(spark: SparkSession, path: Path, findings: Findings) -> None:
    """Read the capture with Spark, and decode it to columns."""
    from ..spark import explode_cloudevents

    rows = explode_cloudevents(spark.read.parquet(str(path))).collect()
    for row in rows:
        columns = findings.rows[row["sequence"]] = row.asDict(recursive=True)
        if row["ce_time"]:  # a datetime without time zone, in the zone of this machine
            columns["ce_time"] = row["ce_time"].astimezone(timezone.utc)


@contextmanager
def quiet_spark(directory: Path) -> Iterator[SparkSession]:
    """
    A local Spark that writes its files and its log to a directory.

    Raises:
        ImportError: Spark did not start, usually because there is no JDK.
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
    """The content mode of a message, or the error code of decoding it."""
    try:
        from_nats_message(message)
    except DecodeError as error:
        return str(error.code)
    return str(detect_mode(message))


def outcome_of_row(row: dict[str, Any]) -> str:
    """The content mode or the error code in a row of Spark."""
    return str(row["ce_error"] or row["ce_mode"])


def counts(sent: list[Sample], findings: Findings) -> dict[str, Counter[str]]:
    """The number of messages for each outcome, by step."""
    return {
        "sent": Counter(sample.outcome for sample in sent),
        "received": Counter(outcome_of(item.message) for item in findings.received),
        "captured": Counter(outcome_of(message) for message in findings.stored.values()),
        "Spark": Counter(outcome_of_row(row) for row in findings.rows.values()),
    }


def differences(sent: list[Sample], findings: Findings) -> list[str]:
    """The differences between the steps, one sentence for each."""
    counted = counts(sent, findings)
    found = [
        f"{step} and sent differ: {dict(counter - counted['sent'])} added, {dict(counted['sent'] - counter)} missing"
        for step, counter in counted.items()
        if counter != counted["sent"]
    ]
    if findings.captured != len(sent):
        found.append(f"the capture has {findings.captured} messages, and {len(sent)} were sent")
    for sequence, message in findings.stored.items():
        row = findings.rows.get(sequence, {})
        found += [
            f"message {sequence}: {column} is {value!r} in Python, and {row.get(column)!r} in Spark"
            for column, value in columns_of(message).items()
            if value != row.get(column)
        ]
    return found


def columns_of(message: Any) -> dict[str, Any]:
    """The columns that Spark must give for a message, from the Python codec; empty for an invalid one."""
    try:
        event = from_nats_message(message, parse_data=False)
    except DecodeError:
        return {}
    attributes = dict(event.get_attributes())
    columns = {f"ce_{name}": attributes.pop(name, None) for name in CORE}
    columns["ce_extensions"] = {name: canonical(value) for name, value in attributes.items()}
    return columns | {"ce_data": event.get_data()}


# --- Output ----------------------------------------------------------------------------------------------------------


def show_before_and_after(console: Console, findings: Findings) -> None:
    """Print one message as it is on the wire, and the event in it."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    shipped = (message for message in findings.stored.values() if message.subject == "demo.order.shipped")
    message = next(message for message in shipped if str(detect_mode(message)) == "binary")
    wire = Text(f"subject: {message.subject}\n\nNATS/1.0\n", overflow="fold")
    wire.append("".join(f"{name}: {value}\n" for name, value in message.headers))
    wire.append(f"\n{message.data.decode()}")
    console.print(Panel(wire, title="on the wire", title_align="left"))
    table = Table.grid(padding=(0, 2))
    event = from_nats_message(message)
    for name, value in event.get_attributes().items():
        table.add_row(name, Text(str(value)))
    table.add_row("data", Text(repr(event.get_data())))
    console.print(Panel(table, title="decoded", title_align="left"))


def show_columns(console: Console, findings: Findings) -> None:
    """Print one row of each kind from Spark."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title="decoded by Spark, one row of each kind", title_justify="left", box=box.SIMPLE_HEAD)
    columns = {"ce_type": 15, "ce_id": 9, "ce_subject": 11, "ce_extensions": 13, "ce_mode": 10, "ce_error": 23}
    for name, width in columns.items():
        table.add_column(name, width=width, overflow="ellipsis", no_wrap=True)
    kinds = {(row["ce_type"], row["ce_error"]): row for _, row in sorted(findings.rows.items(), reverse=True)}
    for row in sorted(kinds.values(), key=lambda row: (row["ce_error"] or "", row["sequence"])):
        table.add_row(*(Text(_cell(row[name])) for name in columns))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items())
    return "" if value is None else str(value).removeprefix("com.example.")


def show_counts(console: Console, counted: dict[str, Counter[str]]) -> None:
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
    console.print(table)


def _by_outcome(outcome: str) -> tuple[bool, str]:
    return outcome not in list(ContentMode), outcome


def main() -> int:
    """
    Run the demonstration.

    Returns:
        0 if all steps agree, else 1.

    Raises:
        ImportError: A required package is not installed.
    """
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise ImportError(f"the demonstration needs {error.name}: pip install 'ce-nats[spark,cli]'") from error
    console = terminal.console()
    console.width = min(WIDTH, console.width)
    sent, findings = samples(), Findings()
    with tempfile.TemporaryDirectory(prefix="ce-nats-demo-") as scratch:
        path = Path(scratch, "demo.parquet")
        with NatsServer(jetstream=True) as server:
            console.print(f"nats-server with JetStream on port {server.port}: sending {len(sent)} messages")
            asyncio.run(send_and_capture(server.url, sent, path, findings))
        console.print(f"received {len(findings.received)}, captured {findings.captured}; starting Spark")
        with quiet_spark(Path(scratch)) as spark:
            explode(spark, path, findings)
    console.print()
    show_before_and_after(console, findings)
    show_columns(console, findings)
    show_counts(console, counts(sent, findings))
    wrong = differences(sent, findings)
    for difference in wrong[:10]:
        console.print(difference)
    console.print("NOT ALL STEPS AGREE" if wrong else "all steps agree: sent = received = captured = decoded by Spark")
    return 1 if wrong else 0
