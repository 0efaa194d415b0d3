"""The command of `make fuzz`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tests.proof import record
from tests.proof.fuzz.engine import Finding, Result, Run, findings_in
from tests.proof.fuzz.target import Target
from tests.proof.fuzz.targets import TARGETS

COMMAND = "python -m tests.proof.fuzz"
_TURN = 5.0  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run targets in turns, print what was run and what was found, and return the exit status."""
    arguments = _parser().parse_args(argv)
    targets = [TARGETS[name] for name in dict.fromkeys(arguments.target or TARGETS)]
    if arguments.replay:
        return _replay(targets, arguments.replay)
    share = arguments.seconds / len(targets) if arguments.seconds else None
    runs = [Run(target, arguments.seed, inputs=arguments.inputs, seconds=share) for target in targets]
    is_complete = _run(runs)
    results = [run.result for run in runs]
    for line in summary(results):
        print(line)
    for finding in (finding for result in results for finding in result.findings):
        _report(finding, arguments.findings)
    if not is_complete:
        print("Interrupted: the targets did not get all of their time.")
    elif arguments.record:
        record.write("fuzz", " ".join([COMMAND, *(sys.argv[1:] if argv is None else argv)]), summary(results))
    return 0 if is_complete and not any(result.findings for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Run decoders with changed inputs, and check promises.")
    parser.add_argument("--target", action="append", choices=TARGETS, help="what to run (repeatable); default: all")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--inputs", type=_positive, help="number of inputs of each target")
    limit.add_argument("--seconds", type=_positive, help="time, divided equally between targets; default: until Ctrl-C")
    parser.add_argument("--seed", type=int, default=1, help="seed of all changes; default: 1")
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


def _run(runs: Sequence[Run]) -> bool:
    """Return False if Ctrl-C ended the runs."""
    try:
        while waiting := [run for run in runs if not run.is_done]:
            for run in waiting:
                run.turn(_TURN)
            results = [run.result for run in runs]
            print(_progress(results), file=sys.stderr)
    except KeyboardInterrupt:
        return False
    return True


def _progress(results: Sequence[Result]) -> str:
    inputs, seconds = sum(result.inputs for result in results), sum(result.seconds for result in results)
    return f"{inputs:,} inputs in {seconds:,.0f} s, {sum(len(result.findings) for result in results)} findings"


def summary(results: Sequence[Result]) -> list[str]:
    """Return the total and a table of targets, as Markdown."""
    rows = [
        (result.target, result.inputs, round(result.seconds), result.rate, result.outcomes, len(result.findings))
        for result in results
    ]
    header = ("target", "inputs", "seconds", "inputs/s", "kinds of outcome", "findings")
    return [f"{_progress(results)}.", "", *record.table(header, rows)]


def _report(finding: Finding, folder: Path) -> None:
    """Write inputs to files, and print the command that runs them again."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for data in finding.inputs:
        path = folder / f"{finding.target}-{sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        paths.append(str(path))
    print(f"\n{finding.target}: {finding.error}\n  {COMMAND} --target {finding.target} --replay {' '.join(paths)}")


def _replay(targets: Sequence[Target], paths: Sequence[Path]) -> int:
    inputs = [path.read_bytes() for path in paths]
    findings = [finding for target in targets for finding in findings_in(target, inputs)]
    for finding in findings:
        print(f"{finding.target}: {finding.error}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
