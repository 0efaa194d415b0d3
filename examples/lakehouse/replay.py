"""
Decode the rejected messages again, and append those that are now good to silver.events.

    python examples/lakehouse/replay.py --format delta --warehouse lake

Correct a schema or repair() in schemas.py, and run this program, and then the pipeline, which adds the events to the
other tables. Rejected messages stay in silver.rejects. One is open while silver.events has no event with its stream and
sequence, so no event is appended twice, also if the program is killed.
"""

from __future__ import annotations

import argparse

from lake import Lake, add_arguments
from pipeline import decode, events
from pyspark.sql import DataFrame


def open_rejects(lake: Lake) -> DataFrame:
    rejects, stored = lake.read("silver.rejects"), lake.read("silver.events")
    return decode(rejects.drop("reason").join(stored, ["stream", "sequence"], "left_anti"))


def main() -> None:
    arguments = add_arguments(argparse.ArgumentParser(description=__doc__.split("\n")[1])).parse_args()
    lake = Lake(arguments.format, arguments.warehouse)
    messages = open_rejects(lake)
    counts = messages.groupBy("reason").count().orderBy("reason").collect()
    lake.prepare(events(messages, replayed=True), "silver.events")
    # Read again, because Spark does not accept a DataFrame of a table that got a column since.
    lake.append(events(open_rejects(lake), replayed=True), "silver.events")
    for reason, count in counts:
        print(count, f"rejected: {reason}" if reason else "replayed")


if __name__ == "__main__":
    main()
