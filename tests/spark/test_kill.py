"""A short version of ``python -m benchmarks.kill``: a streaming job and its server are killed repeatedly."""

from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from benchmarks.kill import discard_if_refused, result_errors, run, server_with_password

pytestmark = pytest.mark.long


def test_each_event_is_stored_once_although_processes_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    seed = Random().randrange(10**6)
    with server_with_password() as (server, password):
        outcome = run(server, password, tmp_path, kills=2, seed=seed)
        found = result_errors(outcome, spark)
    assert not found, f"seed {seed}: {len(found)} result_errors, {found[:20]}"
    assert outcome.sent, f"seed {seed}"
    assert outcome.open_batches, f"seed {seed}: no kill happened during a batch"


def test_a_checkpoint_that_spark_does_not_accept_is_discarded(spark: SparkSession, tmp_path: Path) -> None:
    """Only a checkpoint whose query was killed while it wrote the first offsets file is discarded."""

    def run_query(checkpoint: Path) -> None:
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = numbers.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    killed = tmp_path / "killed"
    run_query(killed)
    assert not discard_if_refused(killed)
    for path in (*(killed / "offsets").iterdir(), *(killed / "commits").iterdir()):
        path.unlink()
    assert not discard_if_refused(killed)
    (killed / "offsets" / f".0.{uuid4()}.tmp").write_text("v1")
    with pytest.raises(StreamingQueryException, match="CHECKPOINT_LOCATION_NOT_EMPTY"):
        run_query(killed)
    assert discard_if_refused(killed)
    run_query(killed)
