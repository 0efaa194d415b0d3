"""Which modules are mutated, and which tests belong to each."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Final

from .java_source import java_mutants
from .mutate import Mutant, python_mutants

# Relative to ce_nats. Of aio and the connector, the modules whose functions need neither a cluster nor Spark.
MODULES: Final = (
    *("message.py", "subjects.py", "redelivery.py", "_ranges.py"),
    *("codec/**/*.py", "wire/*.py", "capture/*.py", "arrow/*.py", "extensions/*.py"),
    "aio/core/_raw_decoder.py",
    *("aio/_util/*.py", "aio/_errors.py", "aio/_foreign_subjects.py", "aio/_observer.py"),
    *("aio/link/_ending.py", "aio/link/_link.py", "aio/link/_permissions.py"),
    *("aio/_pull_status.py", "aio/consumer/_dead_letters.py", "aio/consumer/_entry.py", "aio/consumer/_isolation.py"),
    *("aio/consumer/_key_order.py", "aio/consumer/_keys.py", "aio/consumer/_ledger.py"),
    *("aio/_reply_inbox.py", "aio/_reply_window.py", "aio/publishing/_atomic_policy.py", "aio/publishing/_batches.py"),
    "aio/publishing/_numbered.py",
    *("aio/publishing/_pending_message.py", "aio/publishing/_prepare.py", "aio/reading/_stored_messages.py"),
    *("spark/connector/_batches.py", "spark/connector/_limits.py", "spark/connector/_offsets.py"),
    *("spark/connector/_pattern.py", "spark/connector/_planning.py", "spark/connector/_positions.py"),
    *("spark/connector/_progress.py", "spark/connector/_read_options.py", "spark/connector/_row_frames.py"),
    "spark/jvm/*.java",
)
# Generated tables, and programs that only print.
EXCLUDED: Final = ("codec/fast/__main__.py",)

FIXTURES: Final = "tests/test_conformance.py::test_ce_nats_passes_all_musts"
# Tests of a module in a file with another path, which run first: those of columns run without Spark.
_COLUMNS: Final = "tests/spark/connector/test_row_frames.py"
OWN: Final = {
    "arrow/_encode.py": _COLUMNS,
    "arrow/_frames.py": _COLUMNS,
    "arrow/_header_lines.py": _COLUMNS,
    "codec/_type_patterns.py": "tests/test_routing.py",
}
# Tests of a package's modules elsewhere, which run last; keys are prefixes of paths.
FURTHER: Final = {
    "message.py": ("tests/codec/test_binding.py", "tests/wire", FIXTURES, "tests/test_hostile.py"),
    "subjects.py": (FIXTURES, "tests/test_hostile.py", "tests/codec/test_subject_template.py", "tests/aio/core"),
    "redelivery.py": (FIXTURES, "tests/test_hostile.py", "tests/aio/consumer/test_settle.py"),
    "codec/": (FIXTURES, "tests/codec", "tests/test_sdk_faults.py", "tests/test_hostile.py"),
    "wire/": (FIXTURES, "tests/wire", "tests/capture", "tests/test_hostile.py"),
    "capture/": (FIXTURES, "tests/test_hostile.py", "tests/cli/test_captures.py"),
    "arrow/": (FIXTURES,),
    "aio/consumer/_dead_letters.py": ("tests/aio/consumer/test_settle.py", "tests/aio/scenarios/test_max_payload.py"),
    "aio/consumer/_isolation.py": ("tests/aio/consumer/test_ledger.py",),
    "aio/consumer/_keys.py": ("tests/aio/consumer/test_ledger.py",),
    "aio/consumer/_key_order.py": ("tests/aio/consumer/test_keyed.py",),
    "aio/publishing/": ("tests/aio/publishing/test_publisher.py",),
    "aio/reading/": ("tests/aio/reading",),
    "aio/_util/": ("tests/aio/core",),
    "aio/_observer.py": ("tests/test_otel.py",),
    "aio/link/": ("tests/aio/test_claim_check.py", "tests/aio/scenarios/test_malformed.py"),
    "aio/_foreign_subjects.py": ("tests/aio/test_jetstream.py",),
    "spark/": (FIXTURES,),
}
# Tests that start those of the codec again, without the fast path; and that compare times, on a busy machine in vain.
DESELECTED: Final = (
    *("--deselect", "tests/codec/test_fast_path.py::test_tests_of_the_codec_pass_without_the_fast_path"),
    *("--deselect", "tests/test_hostile.py::test_time_is_linear"),
)


def modules(root: Path, chosen: str = "") -> list[str]:
    """
    Return the modules that are mutated, as paths relative to the root of the project.

    Args:
        root: Root of the project.
        chosen: A part of the path, for example ``codec/data``.
    """
    package = root / "ce_nats"
    paths = sorted(
        {path for pattern in MODULES for path in package.glob(pattern)} - {package / one for one in EXCLUDED}
    )
    names = [path.relative_to(root).as_posix() for path in paths]
    return [name for name in names if chosen in name]


def mutants(root: Path, module: str) -> list[Mutant]:
    """Return all mutants of a module."""
    make = java_mutants if module.endswith(".java") else python_mutants
    return make(module, (root / module).read_text(encoding="utf-8"))


def stages(root: Path, module: str) -> list[list[str]]:
    """
    Return the files, folders and tests for a module: its own tests, and those that run if none of these fails.

    Raises:
        LookupError: The module has no tests.
    """
    path = PurePath(module).relative_to("ce_nats")
    first = _mirrored(root, path) or _of_package(root, path)
    if not first:
        raise LookupError(f"{module} must have tests")
    further = [test for prefix, tests in FURTHER.items() if path.as_posix().startswith(prefix) for test in tests]
    rest = [test for test in dict.fromkeys([*_of_package(root, path), *further]) if test not in first]
    return [first, rest]


def _mirrored(root: Path, path: PurePath) -> list[str]:
    """Return the test file with the path of a module, or that in its place, if it exists."""
    if own := OWN.get(path.as_posix()):
        return [own]
    folder = PurePath("tests", *(part.strip("_") for part in path.parent.parts))
    test = folder / f"test_{path.stem.strip('_')}.py"
    return [test.as_posix()] if (root / test).exists() else []


def _of_package(root: Path, path: PurePath) -> list[str]:
    """Return the tests of the innermost package; those of aio and the connector are too slow for each module."""
    if path.parts[0] in ("aio", "spark") or len(path.parts) == 1:
        return []
    folder, file = PurePath("tests") / path.parent, PurePath("tests", f"test_{path.parent.name}.py")
    return [place.as_posix() for place in (folder, file) if (root / place).exists()]
