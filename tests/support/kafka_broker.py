"""Run a Kafka broker from Maven's central repository."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ce_nats.testing._server import _free_ports
from tests.support.caching import NotAvailable, cached, download

VERSION = "3.9.1"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>"""
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
"""
CLUSTER = "4L6g3nShT-eMCtK--X86sw"
SECONDS = 120


def libraries() -> Path:
    """
    Return the directory of Kafka's jars.

     Raises:
         NotAvailable: Maven is not installed, or the download failed.
    """
    if shutil.which("mvn") is None:
        raise NotAvailable("mvn must be on PATH, to download Kafka")

    def make(directory: Path) -> None:
        (directory / "pom.xml").write_text(POM)
        download(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"], directory)

    return cached("kafka", [POM], make) / "libs"


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """Run a broker with its data in a directory, and yield its address."""
    port, controller = _free_ports(2)
    settings = directory / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=controller, directory=directory))
    home = os.environ.get("JAVA_HOME")
    java = [f"{home}/bin/java" if home else "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    java += ["-cp", f"{libraries()}/*"]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)],
        check=True,
        capture_output=True,
    )
    with (directory / "kafka.log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        _wait_until_ready(process, port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"Kafka did not start: {process.poll()}")
