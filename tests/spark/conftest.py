"""A real Spark session, shared by all tests of this folder."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from hatch_build import build_jar
from tests.support import forks
from tests.support.spark_rows import MESSAGES, ROWS


@pytest.fixture(scope="session")
def python() -> Iterator[str]:
    with forks.forking(*forks.SPARK) as program:
        yield program


@pytest.fixture(scope="session")
def spark(python: str) -> Iterator[SparkSession]:
    assert build_jar(), "a JDK is needed, 17 or 21"  # tests always run the current Java sources
    os.environ["PYSPARK_PYTHON"] = python  # data sources run in workers, which need the same packages
    session = (
        SparkSession.builder.master("local[2]")
        .appName("ce_nats tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Europe/Berlin")  # results must not depend on it
        .config("spark.log.level", "ERROR")
        .config("spark.connect.grpc.binding.port", "0")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """A binary, an invalid and a structured message."""
    return spark.createDataFrame(ROWS, MESSAGES)


@pytest.fixture(scope="session")
def connect_url(spark: SparkSession) -> str:
    """URL of a Spark Connect server in the JVM of the session: it starts fast, and ends with the session."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    service = getattr(getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    service.start(spark.sparkContext._jsc.sc())
    return f"sc://127.0.0.1:{service.localPort()}"
