"""
Compare decoding captured messages to columns without Spark: ``ce_nats.arrow``, and the codec row by row.

The messages are those of messages.py. The figure is the CPU time of this process. Each round runs every variant once;
the first round is a warm-up and is not counted. Ratios are computed within a round; the median over rounds is shown.

``python -m benchmarks.arrow [--rounds N] [--messages N] [--markdown]``
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import process_time

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track

from benchmarks import table
from benchmarks.messages import messages
from benchmarks.spark_columns import with_batches, write
from ce_nats import DecodeError, Headers, NatsMessage, from_nats_message
from ce_nats.arrow import explode_capture, explode_cloudevents

COLUMNS = "explode_cloudevents of a table"
Variant = Callable[[], object]


def variants(path: Path, count: int) -> dict[str, Variant]:
    whole = pq.read_table(path)
    given = [NatsMessage("", data, Headers(pairs)) for pairs, data in messages(count)]
    return {
        "reading the file": lambda: consume(pq.ParquetFile(path).iter_batches(10_000)),
        "explode_capture, with reading": lambda: consume(explode_capture(path)),
        COLUMNS: lambda: explode_cloudevents(whole),
        "rows of Arrow through the codec, and back": lambda: consume(with_batches(iter(whole.to_batches(10_000)))),
        "from_nats_message(parse_data=False), no columns": lambda: decode(given),
    }


def consume(batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        pass


def decode(given: list[NatsMessage]) -> None:
    for message in given:
        with suppress(DecodeError):
            from_nats_message(message, parse_data=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown, for docs/speed.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "messages.parquet"
        write(path, options.messages)
        chosen = variants(path, options.messages)
        gc.freeze()  # objects of one variant must not slow down the garbage collection of the others
        rounds = [
            {name: measured(variant) for name, variant in chosen.items()}
            for _ in track(range(options.rounds + 1), console=Console(stderr=True))
        ]
    rows = [
        (
            name,
            f"{median(each[name] for each in rounds[1:]) / options.messages * 1e6:.1f}",
            f"{median(each[name] / each[COLUMNS] for each in rounds[1:]):.1f}",
        )
        for name in chosen
    ]
    titles = ["variant", "CPU µs/message", f"against {COLUMNS}"]
    table.show(titles, rows, f"{options.messages:,} messages, {options.rounds} rounds", markdown=options.markdown)


def measured(variant: Variant) -> float:
    before = process_time()
    variant()
    return process_time() - before


if __name__ == "__main__":
    main()
