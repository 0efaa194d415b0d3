"""
Clusters of two executors, each in its own process, have the same results as Spark in one process.

The executors run another Python than the tests: it has the same libraries, and an installed copy of ce_nats, so that
this checkout is not on its path. In the standalone cluster, they get it as an archive (docs/spark-workers.md).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep

import nats
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import ce_nats
from ce_nats.spark import explode_cloudevents, from_nats, register
from ce_nats.testing import NatsServer
from tests.support.spark_rows import MESSAGES, ROWS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
EXECUTORS = 2
SECONDS = 300
# The installed copy of ce_nats has precedence over this checkout.
JOB = """
import sys
sys.path.append({root!r})
from tests.spark.test_cluster import main
main(*sys.argv[1:])
"""


# --- The program ----------------------------------------------------------------------------------------------------


def results(spark: SparkSession, url: str, stream: str) -> list[str]:
    """Return results of both engines, SQL, and a write and a read with the data source, as a table and as a query."""
    register(spark)
    messages = spark.createDataFrame(ROWS, MESSAGES).repartition(4, "sequence")
    messages.createOrReplaceTempView("messages")
    sql = "SELECT sequence, ce_nats.from_nats(headers, data) AS event FROM messages"
    found = [
        *(shown(explode_cloudevents(messages, engine=engine)) for engine in ("jvm", "python")),
        shown(spark.sql(f"SELECT *, to_nats(event) AS message FROM ({sql})")),
    ]
    options = {"url": url, "stream": stream, "startingOffsets": "earliest"}
    event = from_nats("headers", "data")
    events = messages.select(F.format_string(f"{stream}.%d", "sequence").alias("subject"), event.alias("event"))
    events = events.where("event.error IS NULL").repartition(4, "subject")
    events.write.format("nats").mode("append").option("url", url).save()
    copies = spark.readStream.format("nats").options(**options).load()
    copies = copies.select(F.concat("subject", F.lit(".copy")).alias("subject"), event.alias("event"))
    writer = copies.writeStream.format("nats").options(url=url, contentMode="structured", dedup="false")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()
    table = spark.read.format("nats").options(url=url, stream=stream, minPartitions=2).load()
    found.append(shown(explode_cloudevents(table).drop("timestamp", "sequence")))
    return found


def shown(frame: DataFrame) -> str:
    return json.dumps(sorted(json.dumps(row.asDict(True), default=str) for row in frame.collect()))


def environments(spark: SparkSession) -> list[list[str]]:
    """Return the working directory, the Python and the path of ce_nats of every executor."""

    def describe(_: object) -> Iterator[list[str]]:
        import ce_nats

        yield [os.getcwd(), sys.executable, ce_nats.__file__]

    # All tasks of a barrier stage run at the same time, so each runs on another executor.
    return spark.sparkContext.parallelize(range(EXECUTORS), EXECUTORS).barrier().mapPartitions(describe).collect()


def main(master: str, url: str, stream: str, output: str) -> None:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR")
    builder = builder.config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"])
    builder = builder.config("spark.executor.memory", "700m").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.sql.session.timeZone", "Europe/Berlin").getOrCreate()
    lines = [json.dumps(environments(spark)), *results(spark, url, stream)]
    Path(output).write_text("\n".join(lines))
    spark.stop()


# --- The clusters ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed Spark, as links in a directory where executors may write."""
    directory = tmp_path_factory.mktemp("spark")
    for path in SPARK.iterdir():
        (directory / path.name).symlink_to(path)
    return directory


@pytest.fixture(scope="module")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with its own copy of ce_nats, and the libraries of this one."""
    directory = tmp_path_factory.mktemp("workers") / "env"
    venv.create(directory)
    (packages,) = directory.glob("lib/*/site-packages")
    (packages / "libraries.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    shutil.copytree(Path(ce_nats.__file__).parent, packages / "ce_nats")
    return directory / "bin" / "python"


@contextmanager
def daemon(home: Path, log: Path, ready: str, *command: object) -> Iterator[str]:
    """Run a process of a standalone cluster; yield the line of its log with the text ``ready``."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *map(str, command)],
            env=environment(home),
            cwd=log.parent,
            stdout=output,
            stderr=output,
        )
    try:
        end = monotonic() + SECONDS
        while not (lines := [line for line in log.read_text("utf-8", "replace").splitlines() if ready in line]):
            assert process.poll() is None, log.read_text("utf-8", "replace")
            assert monotonic() < end, log.read_text("utf-8", "replace")
            sleep(0.05)
        yield lines[0]
    finally:
        process.terminate()
        process.wait(SECONDS)


@contextmanager
def standalone(home: Path, directory: Path) -> Iterator[str]:
    """Run a master with two workers; yield the URL of the master."""
    package = "org.apache.spark.deploy"
    options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        master = daemon(
            home, directory / "master.log", "Starting Spark master at", f"{package}.master.Master", *options
        )
        url = stack.enter_context(master).rpartition(" ")[2]
        for number in range(EXECUTORS):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", directory / f"work-{number}")
            command = (f"{package}.worker.Worker", *options, *size, url)
            worker = daemon(home, directory / f"worker-{number}.log", "Successfully registered with master", *command)
            stack.enter_context(worker)
        yield url


def environment(home: Path) -> dict[str, str]:
    """Environment variables without those through which executors would import this checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and "SPARK" not in name}
    options = {name: os.environ[name] for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")}
    return {**kept, **options, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        asyncio.run(add_streams(server.url))
        yield server


STREAMS = ("one", "local", "standalone")


async def add_streams(url: str) -> None:
    async with await nats.connect(url) as nc:
        for name in STREAMS:
            await nc.jetstream().add_stream(name=name, subjects=[f"{name}.>"], storage="memory")


@pytest.fixture(scope="module")
def expected(spark: SparkSession, server: NatsServer) -> list[str]:
    return results(spark, server.url, "one")


def test_local_cluster_with_an_environment_on_every_machine(
    expected: list[str], server: NatsServer, home: Path, worker_python: Path, tmp_path: Path
) -> None:
    output = tmp_path / "results"
    command = [sys.executable, "-m", "tests.spark.test_cluster", "local-cluster[2,1,1024]", server.url, "local", output]
    execute(command, ROOT, {**environment(home), "PYSPARK_PYTHON": str(worker_python)})
    (directories, pythons, packages), found = read(output, "local")
    assert found == expected
    assert len(set(directories)) == EXECUTORS
    assert set(pythons) == {str(worker_python)}
    assert all(Path(package).is_relative_to(worker_python.parents[1]) for package in packages)


def test_standalone_cluster_with_an_environment_as_an_archive(
    expected: list[str], server: NatsServer, home: Path, worker_python: Path, tmp_path: Path
) -> None:
    """The driver, which plans the source in Python processes, has the environment at the same relative path."""
    driver, packed, output = tmp_path / "driver", worker_python.parents[1], tmp_path / "results"
    driver.mkdir()
    (driver / "env").symlink_to(packed)
    shutil.make_archive(str(driver / "env"), "gztar", packed)
    (driver / "job.py").write_text(JOB.format(root=str(ROOT)))
    options = ("spark.archives=env.tar.gz#env", "spark.pyspark.python=./env/bin/python")
    confs = [part for option in options for part in ("--conf", option)]
    with standalone(home, tmp_path) as master:
        command = [home / "bin" / "spark-submit", *confs, "job.py", master, server.url, "standalone", output]
        execute(command, driver, environment(home))
    (directories, pythons, packages), found = read(output, "standalone")
    assert found == expected
    assert len(set(directories)) == EXECUTORS
    for directory, python, package in zip(directories, pythons, packages, strict=True):
        assert Path(python) == Path(directory, "env", "bin", "python")
        assert Path(package).is_relative_to(Path(directory, "env"))


def execute(command: Sequence[object], directory: Path, variables: dict[str, str]) -> None:
    done = subprocess.run(
        list(map(str, command)), cwd=directory, env=variables, capture_output=True, text=True, timeout=2 * SECONDS
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def read(output: Path, stream: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return directories, Pythons and packages of the executors, and the results as if from the stream "one"."""
    found, *lines = output.read_text().splitlines()
    return list(zip(*json.loads(found), strict=True)), [line.replace(stream, "one") for line in lines]


if __name__ == "__main__":
    main(*sys.argv[1:])
