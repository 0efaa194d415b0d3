"""
Mutate the modules of ce_nats, run their tests, and print the mutants that survive.

The exit status is 0 if at least the goal of the mutants that are not equivalent was killed, and no entry of
equivalent.yaml is stale; 1 otherwise, 130 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from tests.proof import record

from . import equivalent, run, summary, targets
from .judge import KILLED, SURVIVED, Verdict
from .mutate import Mutant

SEED = 20261123


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = _options(arguments)
    root = record.ROOT
    mutants = _all(root, options)
    modules = {mutant.path for mutant in mutants}
    entries = equivalent.load()
    stale = equivalent.stale(entries.values(), mutants, modules)
    for entry in stale:
        print(f"stale entry of equivalent.yaml: {entry}")
    chosen = sample(mutants, options.count, options.seed)
    if options.duration is not None:
        chosen = in_random_order(chosen, options.seed)
    result = summary.Summary(len(mutants))
    argued: set[equivalent.Key] = set()
    if not options.equivalent:
        argued = {mutant.key for mutant in chosen if equivalent.is_equivalent(mutant, entries)}
    known, pending = _known([mutant for mutant in chosen if mutant.key not in argued], options.again)
    for verdict in known:
        result.add(verdict.mutant, verdict.outcome, verdict.by)
    status = 0
    judged: list[Mutant] = []
    try:
        _judge(root, pending, options, result, judged)
    except KeyboardInterrupt:
        status = 130
    for mutant in until_last(chosen, judged, is_whole=len(judged) == len(pending)):
        if mutant.key in argued:
            result.add(mutant, summary.EQUIVALENT)
    print("\n".join(result.lines()))
    if options.record and not status:
        record.write(options.record, _command(arguments), result.lines())
    passed = result.share() * 100 >= options.goal and not stale
    return status or int(not passed)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutants", description=__doc__)
    parser.add_argument("--module", default="", help="only modules with this part in their path, such as codec/data")
    parser.add_argument("--count", type=int, help="number of mutants, chosen at random (default: all)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the choice (default: %(default)s)")
    parser.add_argument("--duration", type=float, help="seconds after which no further mutant is counted")
    parser.add_argument(
        "--budget",
        type=float,
        default=20.0,
        help="duration of a mutant's tests without it, in seconds; further tests do not run (default: %(default)s)",
    )
    parser.add_argument(
        "--confirm", action="store_true", help="import each survivor anew, and run its module's own tests again"
    )
    parser.add_argument("--processes", type=int, default=2, help="mutants tested at once (default: %(default)s)")
    parser.add_argument(
        "--goal", type=float, default=95.0, help="percentage that must be killed (default: %(default)s)"
    )
    parser.add_argument("--equivalent", action="store_true", help="run the tests of equivalent mutants also")
    parser.add_argument("--json", type=Path, help="write the verdicts to this file")
    parser.add_argument("--again", type=Path, help="take what was killed from this file, and test the others")
    parser.add_argument("--record", nargs="?", const="mutants", help="write this record of docs/proof.md (mutants)")
    return parser.parse_args(arguments)


def _all(root: Path, options: argparse.Namespace) -> list[Mutant]:
    mutants = []
    for module in targets.modules(root, options.module):
        mutants += targets.mutants(root, module)
    if not mutants:
        raise SystemExit(f"no module has {options.module!r} in its path")
    return mutants


def sample(mutants: Sequence[Mutant], count: int | None, seed: int) -> list[Mutant]:
    """
    Choose mutants at random, from each module in proportion to the number that it has, and at least one.

    The same seed chooses the same mutants of a module as long as its text is the same.
    """
    if count is None or count >= len(mutants):
        return list(mutants)
    chosen = []
    for module in dict.fromkeys(mutant.path for mutant in mutants):
        own = [mutant for mutant in mutants if mutant.path == module]
        share = max(1, round(count * len(own) / len(mutants)))
        places = Random(f"{seed} {module}").sample(range(len(own)), min(share, len(own)))
        chosen += [own[place] for place in sorted(places)]
    return chosen


def in_random_order(mutants: Sequence[Mutant], seed: int) -> list[Mutant]:
    """Shuffle mutants, so that those tested by a run that ends early are a random sample of all."""
    return Random(seed).sample(mutants, len(mutants))


def _known(mutants: Sequence[Mutant], file: Path | None) -> tuple[list[Verdict], list[Mutant]]:
    """Return the verdicts of a file for the mutants that were killed, and all other mutants."""
    if file is None:
        return [], list(mutants)
    killed = {tuple(one["key"]): one["by"] for one in json.loads(file.read_text("utf-8")) if one["outcome"] == KILLED}
    known = [Verdict(mutant, KILLED, killed[mutant.key]) for mutant in mutants if mutant.key in killed]
    return known, [mutant for mutant in mutants if mutant.key not in killed]


def until_last(chosen: Sequence[Mutant], judged: Sequence[Mutant], *, is_whole: bool) -> Sequence[Mutant]:
    """Return the chosen mutants up to the last that was judged, all of them after a whole run."""
    return chosen if is_whole else chosen[: max((chosen.index(mutant) + 1 for mutant in judged), default=0)]


def _judge(
    root: Path, mutants: Sequence[Mutant], options: argparse.Namespace, result: summary.Summary, judged: list[Mutant]
) -> None:
    """Add verdicts to the summary and to the file of verdicts, and print the mutants that survive."""
    how = run.Options(options.processes, options.duration, options.budget, options.confirm)
    originals = {path: (root / path).read_text(encoding="utf-8") for path in {mutant.path for mutant in mutants}}
    for number, verdict in enumerate(run.verdicts(root, mutants, how), 1):
        mutant = verdict.mutant
        judged.append(mutant)
        result.add(mutant, verdict.outcome, verdict.by)
        if options.json:
            result.write(options.json)
        if verdict.outcome == SURVIVED:
            by = f" ({verdict.by})" if verdict.by else ""
            diff = mutant.diff(originals[mutant.path])
            print(f"\n{number} of {len(mutants)} survived{by}: {mutant}\n{diff}", flush=True)
        if sys.stderr.isatty():
            print(f"\r{number} of {len(mutants)} ", end="", file=sys.stderr, flush=True)


def _command(arguments: Iterable[str] | None) -> str:
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    return "python -m tests.proof.mutants " + re.sub(r"--(?:record|json)\b(?: (?!-)\S+)? ?", "", given).strip()


if __name__ == "__main__":
    # A shell ignores SIGINT for programs in the background.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
