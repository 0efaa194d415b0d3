"""The command of `make fuzz`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from tests.proof import record
from tests.proof.fuzz import corpus, guided
from tests.proof.fuzz.arcs import fewest
from tests.proof.fuzz.engine import Finding, Result, Run, findings_in
from tests.proof.fuzz.target import Target
from tests.proof.fuzz.targets import TARGETS

COMMAND = "python -m tests.proof.fuzz"
_TURN = 5.0  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run targets, print what was run and what was found, and return the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    targets = [TARGETS[name] for name in dict.fromkeys(arguments.target or TARGETS)]
    if arguments.replay:
        return _replay(targets, arguments.replay)
    if arguments.store:
        _store(targets, arguments.corpus)
        return 0
    if arguments.coverage and not guided.is_available():
        parser.error("--coverage needs Atheris: pip install --group fuzz")
    if arguments.coverage and not (arguments.seconds or arguments.inputs):
        parser.error("--coverage must be used with --seconds or --inputs: targets run one after the other")
    share = arguments.seconds / len(targets) if arguments.seconds else None
    limits = {"seed": arguments.seed, "inputs": arguments.inputs, "seconds": share}
    reports = _Reports(arguments.findings)
    results: list[Result]
    if arguments.coverage:
        guided_runs = [guided.GuidedRun(target, arguments.corpus, **limits) for target in targets]
        results, show, section = [run.result for run in guided_runs], guided.summary, "fuzz-coverage"
        is_complete = _run_guided(guided_runs, reports)
    else:
        runs = [Run(target, **limits) for target in targets]
        results, show, section = [run.result for run in runs], summary, "fuzz"
        is_complete = _run(runs, reports)
    reports.add(results)
    lines = [f"{_progress(results)}.", "", *show(results)]
    print("\n".join(lines))
    if not is_complete:
        print("Interrupted: the targets did not get all of their time.")
    elif arguments.record:
        record.write(section, " ".join([COMMAND, *(sys.argv[1:] if argv is None else argv)]), lines)
    return 0 if is_complete and not any(result.findings for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Run decoders with changed inputs, and check promises.")
    parser.add_argument("--target", action="append", choices=TARGETS, help="what to run (repeatable); default: all")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--inputs", type=_positive, help="number of inputs of each target")
    limit.add_argument("--seconds", type=_positive, help="time, divided equally between targets; default: until Ctrl-C")
    parser.add_argument("--seed", type=int, default=1, help="seed of all changes; default: 1")
    parser.add_argument("--coverage", action="store_true", help="prefer inputs that reach new code (Atheris)")
    parser.add_argument(
        "--corpus", type=Path, default=Path("fuzz-corpus"), help="folder for inputs that --coverage found"
    )
    parser.add_argument(
        "--store", action="store_true", help="run nothing; add the inputs of --corpus that reach new code to the tree"
    )
    parser.add_argument("--record", action="store_true", help="write docs/proof.md")
    parser.add_argument(
        "--findings", type=Path, default=Path("fuzz-findings"), help="folder for inputs that break a promise"
    )
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="run only the inputs in these files")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _run(runs: Sequence[Run], reports: _Reports) -> bool:
    """Return False if Ctrl-C ended the runs."""
    try:
        while waiting := [run for run in runs if not run.is_done]:
            for run in waiting:
                run.turn(_TURN)
                reports.add([run.result])
            print(_progress([run.result for run in runs]), file=sys.stderr)
    except KeyboardInterrupt:
        return False
    return True


def _run_guided(runs: Sequence[guided.GuidedRun], reports: _Reports) -> bool:
    """Return False if Ctrl-C ended the runs."""
    try:
        for run in runs:
            run.run()
            reports.add([run.result])
            print(f"{run.result.target}: {_progress([run.result])}", file=sys.stderr)
    except KeyboardInterrupt:
        return False
    return True


def _store(targets: Sequence[Target], folder: Path) -> None:
    """Store those of the inputs in the folder, and of the stored ones, that reach code which no seed does."""
    for target in targets:
        found = [path.read_bytes() for path in sorted((folder / target.name).glob("*"))]
        inputs = fewest(lambda data: list(target.check([data])), target.seeds(), [*corpus.read(target.name), *found])  # noqa: B023
        corpus.write(target.name, inputs)
        print(f"{target.name}: {len(inputs)} inputs, {sum(map(len, inputs)):,} bytes", flush=True)


def _progress(results: Sequence[Result]) -> str:
    inputs, seconds = sum(result.inputs for result in results), sum(result.seconds for result in results)
    return f"{inputs:,} inputs in {seconds:,.0f} s, {sum(len(result.findings) for result in results)} findings"


def summary(results: Sequence[Result]) -> list[str]:
    """Return a table of targets, as Markdown."""
    rows = [
        (result.target, result.inputs, round(result.seconds), result.rate, result.outcomes, len(result.findings))
        for result in results
    ]
    header = ("target", "inputs", "seconds", "inputs/s", "kinds of outcome", "findings")
    return record.table(header, rows)


class _Reports:
    """Findings, each written to files as soon as it is known, with the command that runs its inputs again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: list[Finding] = []

    def add(self, results: Sequence[Result]) -> None:
        for finding in (finding for result in results for finding in result.findings):
            if finding not in self._known:
                self._known.append(finding)
                paths = " ".join(map(str, self._written(finding)))
                print(f"{finding.target}: {finding.error}")
                print(f"  {COMMAND} --target {finding.target} --replay {paths}\n", flush=True)

    def _written(self, finding: Finding) -> Iterator[Path]:
        self._folder.mkdir(parents=True, exist_ok=True)
        for data in finding.inputs:
            path = self._folder / f"{finding.target}-{sha256(data).hexdigest()[:12]}"
            path.write_bytes(data)
            yield path


def _replay(targets: Sequence[Target], paths: Sequence[Path]) -> int:
    inputs = [path.read_bytes() for path in paths]
    findings = [finding for target in targets for finding in findings_in(target, inputs)]
    for finding in findings:
        print(f"{finding.target}: {finding.error}")
    return 1 if findings else 0


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets processes in the background ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
