"""Workers that run another Python than the program: an early error states what to configure."""

import os
import pickle
import subprocess
import sys
import venv
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path

import cloudevents
import msgspec
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import ce_nats
from ce_nats import ErrorCode
from ce_nats.spark import from_iggy, register
from ce_nats.spark._workers import check_workers, sent
from ce_nats.spark.connector import _source as spark_source
from ce_nats.spark.connector._source import NatsDataSource
from tests.support.needs import needs_arrow_functions

LOAD = """
import pickle, sys
for name in sys.argv[1:]:
    try:
        print(type(pickle.load(open(name, "rb"))).__name__)
    except ImportError as error:
        print(type(error).__name__, error)
"""
OPTIONS = {"url": "nats://127.0.0.1:1", "stream": "S"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of this version without any packages."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, with_pip=False)
    return str(next(path for path in directory.glob("*/python*") if path.stem == "python"))


@pytest.fixture
def with_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SparkSession]:
    """Return a function that creates a session whose workers run another Python, as set by PYSPARK_PYTHON."""

    def session(python: str) -> SparkSession:
        monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
        return spark.newSession()

    return session


def test_this_python_is_accepted(with_python: Callable[[str], SparkSession]) -> None:
    check_workers(with_python(sys.executable))


def test_another_python_that_has_the_package_is_accepted(
    with_python: Callable[[str], SparkSession], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    check_workers(with_python(str(python)))


@pytest.mark.parametrize("make", [register, spark_source.register], ids=["register", "source"])
def test_a_python_without_the_package_is_an_error_before_the_query(
    with_python: Callable[[str], SparkSession], bare: str, make: Callable[[SparkSession], None]
) -> None:
    with pytest.raises(ImportError) as info:
        make(with_python(bare))
    assert str(info.value).startswith(f"Spark's workers run {bare}, which cannot import ce_nats (ModuleNotFoundError: ")
    assert "Set the environment variable PYSPARK_PYTHON" in str(info.value)


@needs_arrow_functions
def test_columns_that_need_a_worker_check_its_python(with_python: Callable[[str], SparkSession], bare: str) -> None:
    with_python(bare)
    with pytest.raises(ImportError, match="PYSPARK_PYTHON"):
        from_iggy(F.lit(b""), F.lit(b""))


def test_a_python_that_does_not_exist(with_python: Callable[[str], SparkSession]) -> None:
    with pytest.raises(ImportError, match=r"'no-such-python' was not found\. Set the environment"):
        check_workers(with_python("no-such-python"))


def test_another_version(with_python: Callable[[str], SparkSession], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 2.7\nexit 1\n")
    python.chmod(0o755)
    own = "{}.{}".format(*sys.version_info)
    with pytest.raises(
        ImportError, match=rf"must run Python {own} as this process does, got Python 2\.7 \({python}\)\. Set"
    ):
        check_workers(with_python(str(python)))


def test_workers_may_get_the_package_from_the_session(
    with_python: Callable[[str], SparkSession], bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, with ``spark.executorEnv.PYTHONPATH``."""
    session = with_python(bare)
    paths = os.pathsep.join({str(Path(module.__file__).parents[1]) for module in (ce_nats, cloudevents, msgspec)})
    monkeypatch.setitem(session.sparkContext.environment, "PYTHONPATH", paths)
    check_workers(session)


@pytest.mark.parametrize("streaming", [False, True], ids=["table", "query"])
def test_the_error_of_a_worker_begins_with_the_reason(
    with_python: Callable[[str], SparkSession], bare: str, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster, on which the driver cannot check the workers."""
    session = with_python(bare)
    # Spark 4.3 does not accept a name that is registered in the session from which this one was made.
    name = f"nats_{'query' if streaming else 'table'}"
    monkeypatch.setattr(NatsDataSource, "name", classmethod(lambda cls: name))
    session.dataSource.register(NatsDataSource)
    with pytest.raises(Exception, match="Spark's worker runs") as info:
        (session.readStream if streaming else session.read).format(name).options(**OPTIONS).load()
    text = str(info.value)
    assert ": ImportError: Spark's worker runs " in text.splitlines()[0]
    assert "Set the environment variable PYSPARK_PYTHON" in text
    assert "Traceback" not in text


def test_the_error_of_unpickling_without_the_package_has_instructions(bare: str, tmp_path: Path) -> None:
    """Readers, writers and functions are unpickled in a worker before it uses other parts of the package."""
    source, sink = NatsDataSource(OPTIONS), NatsDataSource({"url": OPTIONS["url"]})
    schema = StructType().add("subject", "string").add("data", "binary")
    shipped = [
        source.reader(source.schema()),
        source.streamReader(source.schema()),
        sink.writer(schema, overwrite=False),
        sink.streamWriter(schema, overwrite=False),
        sent(partial(attrgetter("name"), ErrorCode.INVALID_UTF8)),
    ]
    # A worker has at least the libraries that come with Spark.
    zips = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, zips))}
    for number, one in enumerate(shipped):
        (tmp_path / str(number)).write_bytes(cloudpickle.dumps(one))
    (tmp_path / "load.py").write_text(LOAD)
    command = ["load.py", *map(str, range(len(shipped)))]
    failed = subprocess.run([bare, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    lines = failed.stdout.splitlines()
    assert len(lines) == len(shipped), failed.stderr
    assert all(line.startswith(f"ImportError Spark's worker runs {bare}, which cannot") for line in lines)
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [*(type(one).__name__ for one in shipped[:-1]), "partial"], done.stderr


def test_classes_are_identical_after_pickling() -> None:
    for pickled in (pickle.dumps(NatsDataSource), cloudpickle.dumps(NatsDataSource)):
        assert pickle.loads(pickled) is NatsDataSource
