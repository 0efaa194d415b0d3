"""The short version of ``python -m benchmarks.kill``: a streaming job and its server, killed again and again."""

from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from benchmarks.kill import faults, guarded_server, run


def test_everything_is_there_once_although_all_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    seed = Random().randrange(10**6)
    with guarded_server() as (server, password):
        outcome = run(server, password, tmp_path, kills=3, seed=seed)
        found = faults(outcome, spark)
    assert not found, f"seed {seed}: {len(found)} faults, {found[:20]}"
    assert outcome.sent, f"seed {seed}"
    assert outcome.open_batches, f"seed {seed}: no kill fell into a batch"
