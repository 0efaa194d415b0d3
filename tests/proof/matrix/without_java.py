"""The package on a machine without Java: the matrix runs this file with the installed wheel, and no Java on PATH."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cloudevents.core.v1.event import CloudEvent
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

import ce_nats
import ce_nats.spark

PROGRAM = str(Path(sys.executable).with_name("ce-nats"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_there_is_no_java() -> None:
    assert shutil.which("java") is None
    assert shutil.which("javac") is None
    assert "JAVA_HOME" not in os.environ
    assert Path(ce_nats.__file__).is_relative_to(sys.prefix)


def test_codec_needs_no_java() -> None:
    event = CloudEvent({"source": "/s", "type": "t"}, {"a": 1})
    assert ce_nats.from_nats_message(ce_nats.to_nats_message(event, "a")).get_data() == {"a": 1}


def test_conformance_cases_pass() -> None:
    done = run("conformance")
    assert done.returncode == 0, done.stderr
    assert "percent-encoding" in done.stdout


def test_spark_reports_that_java_is_missing() -> None:
    with pytest.raises(PySparkRuntimeError, match="JAVA_GATEWAY_EXITED"):
        SparkSession.builder.master("local[1]").getOrCreate()


def test_demo_reports_that_java_is_missing() -> None:
    done = run("demo")
    assert "Spark did not start; it needs a JDK, 17 or 21" in done.stdout + done.stderr
    assert "JAVA_HOME is not set" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2  # a missing package or program
