"""
Run all parts of ce_nats on a cluster for hours, kill them meanwhile, and check that each message arrived.

Two senders publish to a stream with three replicas; consumers handle its events, captures write it to files, jobs of
Spark copy it to Parquet and to other streams. Servers and programs are killed and the network between servers is
interrupted at random. At the end, everything is compared with what was sent.

The exit status is 0 if all promises held, 1 if not, 130 if they held and Ctrl-C has ended the run early.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import nats.errors

from ce_nats import aio
from tests.proof import record
from tests.support.linked_cluster import LinkedCluster

from . import ledger, picture
from .chaos import Chaos
from .journal import DEAD, STREAM, Run, copy_prefix, copy_stream
from .ledger import Place
from .processes import Program
from .results import Results
from .sampling import HEADER, Life, Sampler

SVG = record.ROOT / "docs" / "soak.svg"
# Programs, by the module that they run. The spared ones are never killed, so that their memory is seen for long.
ROLES = {
    "sender": ["ordinary", "fast"],
    "consumer": ["handlers", "keyed", "steady", "batches"],
    "capturing": ["capture"],
    "job": ["job", "steady-job"],
}
SPARED = frozenset({"steady", "steady-job"})
_SAMPLE_SECONDS = 5.0
_POLL_SECONDS = 0.2
# Limit of each step after the chaos.
_DRAIN_SECONDS = 240.0
_SERVER_SECONDS = 120.0
# Longer than any time between a message and its copy.
_DUPLICATE_WINDOW = 1800.0


class Soak:
    """A run: its cluster, its programs and what went wrong."""

    def __init__(self, options: argparse.Namespace, directory: Path, cluster: LinkedCluster) -> None:
        without = {*options.without, *(ROLES["job"] if options.no_spark else ())}
        self.roles = {module: [name for name in names if name not in without] for module, names in ROLES.items()}
        self.run = Run(str(directory), cluster.urls, options.seed, options.rate / len(ROLES["sender"]))
        self.programs = {
            name: Program(self.run, name, module, is_spared=name in SPARED)
            for module, names in self.roles.items()
            for name in names
        }
        self.unfinished: list[str] = []
        self.chaos = Chaos(cluster, list(self.programs.values()), options.seed, self._check_programs)
        self.sampler = Sampler(self._pids, _SAMPLE_SECONDS, directory / "samples.csv")
        self._cluster, self._options = cluster, options
        self._ending = threading.Event()
        self._finished: set[str] = set()

    def end(self, *_: object) -> None:
        """End the chaos early."""
        if self._ending.is_set():
            raise KeyboardInterrupt
        print("ending: all processes finish their work", flush=True)
        self._ending.set()

    @property
    def was_ended(self) -> bool:
        return self._ending.is_set()

    def work(self) -> list[Place]:
        """Run until everything is drained, and return the ledger."""
        self.run.path("logs").mkdir()
        self.run.save()
        asyncio.run(self._make_streams())
        self.sampler.start()
        try:
            for program in self.programs.values():
                program.start()
            try:
                self.chaos.run(time.monotonic() + self._options.duration, self._ending)
                self.chaos.heal()
            except RuntimeError as error:  # the cluster is not ready in time; the ledger may show why
                self.unfinished.append(str(error).partition("Logs of")[0])
            self._drain()
        finally:
            for program in self.programs.values():
                program.stop()
            self.sampler.stop()
            for number, server in enumerate(self._cluster.servers):
                self.run.path(f"logs/server-{number}.log").write_text(server.log, "utf-8")
        return asyncio.run(self._places())

    def _check_programs(self) -> None:
        for program in self.programs.values():
            if program.name not in self._finished and program.check():
                self._finished.add(program.name)

    def _pids(self) -> dict[str, int]:
        pids = {name: program.pid for name, program in self.programs.items()}
        for number, server in enumerate(self._cluster.servers):
            pids[f"server {number}"] = server._processes[-1].pid if server.is_running else None
        return {name: pid for name, pid in pids.items() if pid is not None}

    async def _make_streams(self) -> None:
        options = {"num_replicas": 3, "duplicate_window": _DUPLICATE_WINDOW}
        async with aio.connect(**self.run.options("soak")) as nc:
            js = nc.jetstream(timeout=_SERVER_SECONDS)
            await js.add_stream(name=STREAM, subjects=["in.>"], allow_batched=True, **options)
            await js.add_stream(name=DEAD, subjects=["dead.>"], **options)
            for name in self.roles["job"]:
                await js.add_stream(name=copy_stream(name), subjects=[f"{copy_prefix(name)}.>"], **options)

    def _drain(self) -> None:
        """Let all programs finish: first senders, then consumers, then those that copy the whole stream."""
        self.run.sending_ends.touch()
        self._wait_for("senders", lambda: self._finished.issuperset(self.roles["sender"]))
        asyncio.run(self._drain_consumers())
        self.run.ends.touch()
        self._wait_for("programs", lambda: self._finished.issuperset(self.programs))

    def _wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _DRAIN_SECONDS
        while not condition():
            self._check_programs()
            if time.monotonic() > end:
                self.unfinished.append(f"{what} did not finish, of {', '.join(set(self.programs) - self._finished)}")
                return
            time.sleep(_POLL_SECONDS)

    async def _drain_consumers(self) -> None:
        end = time.monotonic() + _DRAIN_SECONDS
        async with aio.connect(**self.run.options("soak")) as nc:
            js = nc.jetstream(timeout=10)
            remaining = list(self.roles["consumer"])
            while remaining:
                self._check_programs()
                try:
                    info = await js.consumer_info(STREAM, remaining[0])
                except nats.errors.Error:
                    info = None
                if info is not None and info.num_pending == info.num_ack_pending == 0:
                    remaining.pop(0)
                elif time.monotonic() > end:
                    self.unfinished.append(f"consumers did not finish: {', '.join(remaining)}")
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def _places(self) -> list[Place]:
        async with aio.connect(**self.run.options("soak")) as nc:
            return await Results(self.run, self.roles).places(nc.jetstream(timeout=_SERVER_SECONDS))

    def broken(self, places: Sequence[Place]) -> list[str]:
        """Return descriptions of all promises that did not hold."""
        exits = [
            f"{name} exited {program.exits} times by itself"
            for name, program in self.programs.items()
            if program.exits and name not in ROLES["job"]
        ]
        return [*self.unfinished, *exits, *(text for place in places for text in place.broken)]

    def summary(self, places: Sequence[Place], seconds: float) -> list[str]:
        """Return the figures of the run as Markdown."""
        header, rows = ledger.table(places)
        programs = [
            [name, "yes" if program.is_spared else "no", program.kills, program.exits, program.late_starts]
            for name, program in self.programs.items()
        ]
        lives = [Life.of(samples).row(role) for role, samples in self.sampler.samples.items()]
        return [
            f"{places[0].expected:,} messages in {seconds:,.0f} s, seed {self.run.seed}.",
            "",
            *record.table(["disturbance", "number"], sorted(self.chaos.counts.items())),
            "",
            *record.table(header, rows),
            "",
            *record.table(["program", "spared", "kills", "exits with an error", "starts without an answer"], programs),
            "",
            *record.table(HEADER, lives),
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = _options(arguments)
    print(f"seed {options.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="ce-nats-soak-"))
    started = time.monotonic()
    with LinkedCluster(timeout=_SERVER_SECONDS) as cluster:
        soak = Soak(options, directory, cluster)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, soak.end)
        places = soak.work()
    lines = soak.summary(places, time.monotonic() - started)
    broken = soak.broken(places)
    if broken:
        lines += ["", "Promises that did not hold:", "", *(f"- {text}" for text in broken)]
    print("\n".join(lines))
    samples = {role: list(found) for role, found in soak.sampler.samples.items()}
    note = f"{record.today()}, {places[0].expected:,} messages, {sum(soak.chaos.counts.values())} disturbances"
    drawing = picture.draw(samples, note)
    (directory / "soak.svg").write_text(drawing, "utf-8")
    print(f"journals, logs and samples: {directory}")
    if options.record and not soak.was_ended:
        record.write("soak", _command(arguments), lines)  # first, as it looks for changes of the tree
        SVG.write_text(drawing, "utf-8")
    return 1 if broken else 130 if soak.was_ended else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.soak", description=__doc__)
    parser.add_argument("--duration", type=float, default=3600, help="seconds of chaos (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6), help="seed of messages and chaos")
    parser.add_argument("--rate", type=float, default=100, help="messages per second (default: %(default)s)")
    names = [name for roles in ROLES.values() for name in roles]
    parser.add_argument("--without", choices=names, action="append", default=[], help="a program to leave out")
    parser.add_argument("--no-spark", action="store_true", help="leave out the jobs of Spark")
    parser.add_argument("--record", action="store_true", help="write the record into docs/proof.md, and docs/soak.svg")
    return parser.parse_args(arguments)


def _command(arguments: Sequence[str] | None) -> str:
    return " ".join(["python -m tests.proof.soak", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
