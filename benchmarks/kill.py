"""
Test exactly-once delivery while a streaming job and its nats-server are killed repeatedly.

A producer publishes the messages of messages.py to a stream with file storage. A job in its own process (kill_job.py)
copies the stream to Parquet and to a second stream. At random times the whole job (Python, the JVM and all workers) is
killed with SIGKILL and restarted from its checkpoints; at other random times the server is killed and restarted. At the
end every sequence of the stream must be in Parquet exactly once, as the event that was sent, and every event exactly
once in the second stream. The job's password must not be in any file that it wrote, and no consumer of it may remain on
the server. Random numbers are seeded; the timing of processes is not reproducible.

``python -m benchmarks.kill [--kills N] [--seed N]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from nats.aio.client import Client
from pyspark.sql import SparkSession

from ce_nats import DecodeError, Headers, NatsMessage, dedup_id, from_nats_message
from ce_nats._ranges import StreamRange
from ce_nats.aio.publishing._bulk import BulkPublisher
from ce_nats.aio.reading._range_reader import read_range
from ce_nats.arrow._decode import ATTRIBUTES
from ce_nats.spark import explode_cloudevents
from ce_nats.spark.connector._connection import Connection
from ce_nats.testing import NatsServer
from ce_nats.wire.nats import decode_header_block

from .kill_job import COPY, EVENTS, PASSWORD
from .messages import Pairs, messages
from .processes import sessions

MSG_ID = "Nats-Msg-Id"
# Seconds. Longer than any run: after this window, the server would store a resent message twice.
_DUPLICATE_WINDOW = 3600.0
_ROOT = Path(__file__).parents[1]
_SECONDS = 180.0  # timeout of each wait
_POLL_SECONDS = 0.02
# Every fourth kill happens while the job starts, before it reads messages.
_EARLY = 4
_MAX_FAILED_STARTS = 10
# Maximum number of characters to print of a log line, because lines with Spark plans are very long.
_LINE = 400


@dataclass
class Outcome:
    """
    State and result of a run.

    Attributes:
        connection: Connection settings of the server.
        directory: Checkpoints, logs, and the Parquet files in ``rows``.
        sent: Headers and payload of the messages, by the number in their subject.
        kills: Number of kills of the job.
        open_batches: Number of kills during a batch that was planned and not committed.
        server_kills: Number of kills of the server.
        failed_starts: Number of times that the job exited while it started, because the server was down or the machine
            was too busy for Spark.
        refused: Number of checkpoints that Spark would have refused, and that were deleted.
        broken: Set when the producer or the thread that kills the server has failed.
    """

    connection: Connection
    directory: Path
    sent: list[tuple[Pairs, bytes]] = field(default_factory=list)
    kills: int = 0
    open_batches: int = 0
    server_kills: int = 0
    failed_starts: int = 0
    refused: int = 0
    broken: threading.Event = field(default_factory=threading.Event)


# --- The job ---------------------------------------------------------------------------------------------------------


class Job:
    """The job's process and its child processes."""

    def __init__(self, outcome: Outcome, *, drain: bool = False) -> None:
        connection, directory = outcome.connection, outcome.directory
        self._log = directory / f"job-{len(list(directory.glob('job-*')))}.log"
        command = [sys.executable, "-m", "benchmarks.kill_job", "--url", connection.servers[0]]
        command += ["--directory", str(directory), *["--drain"] * drain]
        with self._log.open("wb") as log:
            # In a new session: Spark's Python workers leave the process group of their parent, but not the session.
            self._process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env={**os.environ, PASSWORD: str(connection.password or "")},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def failed_to_start(self) -> bool:
        """Return whether the server was down, or a Python process of Spark did not start within its ten seconds."""
        return any(text in self.log for text in ("cannot connect to nats", "Python worker failed to connect back"))

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    @property
    def log_end(self) -> str:
        """Return the end of the log."""
        return "\n".join(line[:_LINE] for line in self.log.splitlines())[-8000:]

    def wait(self) -> int:
        """Wait until the process exits, and return its exit status."""
        return self._process.wait(_SECONDS)

    def kill(self) -> None:
        """Kill all its processes with SIGKILL, and wait until they have exited."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        while alive := sessions()[self._process.pid]:  # without /proc, workers exit by themselves after the JVM
            for pid in alive:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(_POLL_SECONDS)
        self._process.wait()


# --- Background threads ----------------------------------------------------------------------------------------------


class Background:
    """A thread that works until the block ends, which raises the error of the thread."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def work(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._error = error
            self.outcome.broken.set()


class Producer(Background):
    """Publishes messages in small groups; unacknowledged messages are resent."""

    def __init__(self, outcome: Outcome, seed: int) -> None:
        super().__init__(outcome)
        self._random = Random(seed)
        self._messages = messages(10**9, seed)

    def work(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        connect = self.outcome.connection.connect
        async with BulkPublisher(connect, ack_timeout=2.0, retry_timeout=60.0) as publisher:
            while not self.stopping.is_set():
                group = list(islice(self._messages, self._random.randrange(1, 20)))
                number = len(self.outcome.sent)
                await publisher.publish(
                    [
                        NatsMessage(f"in.{number + offset}", data, Headers(pairs))
                        for offset, (pairs, data) in enumerate(group)
                    ]
                )
                self.outcome.sent += group
                await asyncio.sleep(self._random.uniform(0, 0.4))


class ServerKiller(Background):
    """
    Kills the server and restarts it, at random intervals of seconds.

    Attributes:
        paused: Lock; the server is not killed while it is held.
    """

    def __init__(self, outcome: Outcome, server: NatsServer, seed: int) -> None:
        super().__init__(outcome)
        self.paused = threading.Lock()
        self._server = server
        self._random = Random(seed)

    def work(self) -> None:
        while not self.stopping.wait(self._random.uniform(2, 8)):
            with self.paused:
                self._server.kill()
                self.outcome.server_kills += 1
                self.stopping.wait(self._random.uniform(0, 0.8))
                self._server.restart()


# --- The run ---------------------------------------------------------------------------------------------------------


@contextmanager
def server_with_password() -> Iterator[tuple[NatsServer, str]]:
    """Run a server with JetStream and one user, "job"; yield the server and the password."""
    password = f"S3cr3t{uuid4().hex}"
    config = f"authorization {{ user: job, password: {password} }}"
    with NatsServer(jetstream=True, config=config, timeout=60) as server:
        yield server, password


def run(server: NatsServer, password: str, directory: Path, *, kills: int, seed: int) -> Outcome:
    """
    Kill a job a number of times, then run it until it has processed the whole stream.

    Args:
        server: An empty server with JetStream: see :func:`server_with_password`.
        password: Password of the user "job" of the server.
        directory: Directory for checkpoints, Parquet and logs.
        kills: Number of kills of the job.
        seed: Seed of the messages, and of the intervals between kills.

    Raises:
        RuntimeError: The job exited by itself after a successful start, or makes no progress.
    """
    outcome = Outcome(Connection((server.url,), user="job", password=password), directory)
    asyncio.run(_make_streams(outcome.connection))
    random = Random(seed)
    with Producer(outcome, seed), ServerKiller(outcome, server, seed) as server_killer:
        while outcome.kills < kills:
            is_early = outcome.kills % _EARLY == _EARLY - 1
            _run_and_kill(outcome, server_killer, random, is_early=is_early)
    while not _drain(outcome):
        _count_failed_start(outcome)
    return outcome


def _drain(outcome: Outcome) -> bool:
    """Run a job until it has processed the whole stream; return False if the start failed."""
    job = Job(outcome, drain=True)
    try:
        if job.wait() == 0:
            return True
        if job.failed_to_start:
            return False
        raise RuntimeError(f"the job failed:\n{job.log_end}")
    finally:
        job.kill()


def _count_failed_start(outcome: Outcome) -> None:
    outcome.failed_starts += 1
    if outcome.failed_starts > _MAX_FAILED_STARTS + outcome.kills:
        raise RuntimeError(f"the job could not start {outcome.failed_starts} times")


def _run_and_kill(outcome: Outcome, server_killer: ServerKiller, random: Random, *, is_early: bool) -> None:
    """Start the job, and kill it after a random time."""
    directory = outcome.directory
    before = _batches(directory, "offsets")
    job = Job(outcome)
    try:
        if not is_early:
            # Wait until both queries have planned a new batch. The server must be up, or the job exits immediately.
            with server_killer.paused:
                _wait(outcome, job, lambda: _all_newer(_batches(directory, "offsets"), before))
        kill_at = time.monotonic() + random.uniform(0, 12 if is_early else 4)
        _wait(outcome, job, lambda: time.monotonic() >= kill_at)
        if not outcome.open_batches and not is_early:  # a run must have at least one such kill
            _wait(outcome, job, lambda: _has_open_batch(directory))
        if job.is_running:
            outcome.kills += 1
            job.kill()
            outcome.open_batches += _has_open_batch(directory)
        elif job.failed_to_start:
            _count_failed_start(outcome)
        else:
            raise RuntimeError(f"the job exited by itself:\n{job.log_end}")
    finally:
        job.kill()
    outcome.refused += sum(discard_if_refused(directory / name) for name in (EVENTS, COPY))


def discard_if_refused(checkpoint: Path) -> bool:
    """
    Delete a checkpoint if its job was killed while Spark wrote the first offsets file; return whether it was deleted.

    Spark refuses such a checkpoint (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY) and asks to delete it. Nothing is lost:
    no message is read before that file is complete.
    """
    offsets = checkpoint / "offsets"
    is_refused = offsets.exists() and any(offsets.iterdir()) and _newest(offsets) < 0
    if is_refused:
        shutil.rmtree(checkpoint)
    return is_refused


def _wait(outcome: Outcome, job: Job, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds or the job exits."""
    end = time.monotonic() + _SECONDS
    while job.is_running and not condition():
        if outcome.broken.is_set() or time.monotonic() > end:
            raise RuntimeError(f"the job makes no progress:\n{job.log_end}")
        time.sleep(_POLL_SECONDS)


def _batches(directory: Path, log: str) -> dict[str, int]:
    """Return the newest batch in a log of each query's checkpoint, -1 before the first."""
    return {name: _newest(directory / name / log) for name in (EVENTS, COPY)}


def _newest(log: Path) -> int:
    return max((int(path.name) for path in log.glob("*") if path.name.isdigit()), default=-1)


def _has_open_batch(directory: Path) -> bool:
    return _batches(directory, "offsets") != _batches(directory, "commits")


def _all_newer(now: dict[str, int], before: dict[str, int]) -> bool:
    return all(now[name] > before[name] for name in now)


async def _make_streams(connection: Connection) -> None:
    nc = Client()
    await connection.connect(nc)
    for name in ("IN", "OUT"):
        subjects = [f"{name.lower()}.*"]
        await nc.jetstream().add_stream(name=name, subjects=subjects, duplicate_window=_DUPLICATE_WINDOW)
    await nc.close()


# --- The result ------------------------------------------------------------------------------------------------------


def result_errors(outcome: Outcome, spark: SparkSession) -> list[str]:
    """Return descriptions of errors in the result of a run; empty if it is correct."""
    stored = asyncio.run(_stored(outcome.connection, "IN"))
    found = [] if len(stored) == len(outcome.sent) else [f"{len(outcome.sent)} were sent, {len(stored)} are in IN"]
    rows = explode_cloudevents(spark.read.parquet(str(outcome.directory / "rows"))).toArrow().to_pylist()
    found += _exactly_once("sequences in Parquet", [row["sequence"] for row in rows], range(1, len(outcome.sent) + 1))
    found += _exactly_once("messages in Parquet", [_number(row["subject"]) for row in rows], range(len(outcome.sent)))
    found += [f"Parquet: {text}" for row in rows for text in _differences(row, outcome.sent[_number(row["subject"])])]
    found += _copy_errors(outcome)
    found += asyncio.run(_left_on_server(outcome.connection))
    secret = str(outcome.connection.password or "").encode()
    paths = (path for path in outcome.directory.rglob("*") if path.is_file())
    return found + [f"the password is in {path}" for path in paths if secret in path.read_bytes()]


async def _left_on_server(connection: Connection) -> list[str]:
    """Return consumers on the server, except those of killed readers, which the server deletes when inactive."""
    nc = Client()
    await connection.connect(nc)
    consumers = await nc.jetstream().consumers_info("IN")
    await nc.close()
    return [
        f"consumer {it.name} was not deleted"
        for it in consumers
        if it.config.durable_name or not it.config.inactive_threshold
    ]


def _copy_errors(outcome: Outcome) -> Iterator[str]:
    copied = asyncio.run(_stored(outcome.connection, "OUT"))
    numbers = [_number(subject) for subject, _, _ in copied]
    ids = [_dedup_id(*message) for message in outcome.sent]
    yield from _exactly_once("messages in OUT", numbers, range(len(ids)))
    for number, (_, pairs, data) in zip(numbers, copied):
        sent_pairs, sent_data = outcome.sent[number]
        expected = [pair for pair in sent_pairs if pair[0] != MSG_ID]
        if ids[number]:
            expected.append((MSG_ID, ids[number]))
        elif pairs and pairs[-1][0] == MSG_ID:  # of the row
            pairs = pairs[:-1]
        if (pairs, data) != (expected, sent_data):
            yield f"OUT: message {number} is {pairs} {data!r}, and was {expected} {sent_data!r}"


def _exactly_once(what: str, found: Any, expected: Any) -> list[str]:
    counts = Counter(found)
    missing = sorted(set(expected) - counts.keys())
    repeated = sorted(number for number, count in counts.items() if count > 1)
    unexpected = sorted(counts.keys() - set(expected))
    parts = {"missing": missing, "more than once": repeated, "never sent": unexpected}
    return [f"{what}: {len(numbers)} {how}: {numbers[:20]}" for how, numbers in parts.items() if numbers]


def _differences(row: dict[str, Any], sent: tuple[Pairs, bytes]) -> Iterator[str]:
    """Yield the differences between a row and the event that was sent."""
    expected: dict[str, Any] = dict.fromkeys((*ATTRIBUTES, "extensions", "data", "error"))
    try:
        event = _event(*sent)
    except DecodeError as error:
        expected["error"] = str(error.code)
    else:
        attributes = event.get_attributes()
        expected.update({name: attributes.get(name) for name in ATTRIBUTES})
        expected["extensions"] = [(name, value) for name, value in attributes.items() if name not in ATTRIBUTES]
        expected["data"] = event.get_data()
    for name, value in expected.items():
        if (given := row[f"ce_{name}"]) != value:
            yield f"message {row['subject']}: {name} is {given!r}, and was {value!r}"


def _event(pairs: Pairs, data: bytes) -> Any:
    return from_nats_message(NatsMessage("", data, Headers(pairs)), parse_data=False)


def _dedup_id(pairs: Pairs, data: bytes) -> str:
    try:
        return dedup_id(_event(pairs, data))
    except DecodeError:
        return ""


def _number(subject: str) -> int:
    return int(subject.rpartition(".")[2])


async def _stored(connection: Connection, stream: str) -> list[tuple[str, Pairs, bytes]]:
    """Return subject, headers and payload of all messages of a stream."""
    nc = Client()
    await connection.connect(nc)
    last = (await nc.jetstream().stream_info(stream)).state.last_seq
    await nc.close()
    found = []
    async for batch in read_range(connection.connect, StreamRange(stream, 1, last)):
        for subject, _, data, block in batch.messages:
            pairs = decode_header_block(block).headers.items() if block else []
            found.append((subject.decode(), list(pairs), data))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, server_with_password() as (server, password):
        outcome = run(server, password, Path(directory), kills=arguments.kills, seed=arguments.seed)
        seconds = time.monotonic() - started
        print(
            f"{outcome.kills} kills of the job ({outcome.open_batches} during a batch), {outcome.server_kills} of "
            f"the server, {outcome.failed_starts} failed starts, {outcome.refused} checkpoints deleted; "
            f"{len(outcome.sent):,} messages; "
            f"{seconds:.0f} s",
            flush=True,
        )
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "2g").getOrCreate()
        wrong = result_errors(outcome, spark)
        spark.stop()
    for text in wrong[:50]:
        print(text)
    sys.exit(f"{len(wrong)} errors, seed {arguments.seed}" if wrong else 0)


if __name__ == "__main__":
    main()
