"""
Look up known vulnerabilities of what the package and its extras install, and list direct dependencies.

``make audit`` runs pip-audit over the installed versions. pip-audit exits with 0 if it could not look up a package, for
instance because the advisory service is unreachable; here every package that was not checked is a failure.

``python -m tests.proof.audit``
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "ce-nats"
EXTRAS = ("all", "testing")


class Report(NamedTuple):
    """
    Result of pip-audit for the packages that were to be checked.

    Attributes:
        packages: Number of these packages.
        unchecked: Reason by package that was not looked up.
        vulnerable: Known vulnerabilities by package with its version.
    """

    packages: int
    unchecked: dict[str, str]
    vulnerable: dict[str, list[str]]

    @property
    def succeeded(self) -> bool:
        return self.packages > 0 and not self.unchecked and not self.vulnerable

    def lines(self) -> list[str]:
        found = [f"{name}: {', '.join(ids)}" for name, ids in self.vulnerable.items()]
        reasons = [f"{name} was not checked: {reason}" for name, reason in self.unchecked.items()]
        checked = self.packages - len(self.unchecked)
        return [*found, *reasons, f"{checked} of {self.packages} packages were checked, {len(found)} are vulnerable"]


def read_report(text: str, expected: Iterable[str]) -> Report:
    """
    Read the JSON of pip-audit.

    Args:
        text: Output of ``pip-audit --format json``.
        expected: Names of the packages to check; one that is missing in the output was not checked.

    Raises:
        ValueError: The output is not a report.
    """
    try:
        entries = {canonicalize_name(entry["name"]): entry for entry in json.loads(text)["dependencies"]}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"the output of pip-audit must have dependencies, got {text[:200]!r}") from error
    names = sorted({canonicalize_name(name) for name in expected})
    unchecked = {name: reason for name in names if (reason := _unchecked(entries.get(name)))}
    vulnerable = {
        f"{name} {entry['version']}": [found["id"] for found in entry["vulns"]]
        for name, entry in entries.items()
        if entry.get("vulns")
    }
    return Report(len(names), unchecked, vulnerable)


def _unchecked(entry: Mapping[str, Any] | None) -> str | None:
    if entry is None:
        return "missing in the report"
    return entry.get("skip_reason") or (None if "vulns" in entry else "no result")


def installed(name: str) -> list[Requirement]:
    """Return the requirements of an installed package, or none if it is not installed."""
    try:
        return [Requirement(line) for line in distribution(name).requires or ()]
    except PackageNotFoundError:
        return []


def closure(
    start: Requirement, requires: Callable[[str], list[Requirement]] = installed
) -> dict[str, tuple[set[str], int]]:
    """
    Return the packages that a requirement installs, by name: the extras, and the distance from the requirement.

    Args:
        start: A package, and its extras.
        requires: Returns the requirements of a package.
    """
    found: dict[str, tuple[set[str], int]] = {}
    queue = deque([(start, 0)])
    while queue:
        requirement, depth = queue.popleft()
        name = canonicalize_name(requirement.name)
        extras, at = found.setdefault(name, (set(), depth))
        new = {"", *requirement.extras} - extras
        extras |= new
        for child in requires(name) if new else ():
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in new):
                if canonicalize_name(child.name) == name:  # another extra of the package, at the same distance
                    queue.appendleft((child, at))
                else:
                    queue.append((child, at + 1))
    return found


def license_of(name: str) -> str:
    """Return the license of an installed package, as its metadata state it."""
    metadata = distribution(name).metadata
    classifiers = [line for line in metadata.get_all("Classifier") or () if line.startswith("License ::")]
    stated = metadata["License-Expression"] or (classifiers[0].rpartition(" :: ")[2] if classifiers else None)
    text = stated or (metadata["License"] or "").strip().partition("\n")[0]
    return text or "not stated"


def review(packages: Mapping[str, tuple[set[str], int]]) -> list[str]:
    """Return a line for each direct dependency: version, license, and number of packages that it installs."""
    lines = [f"{'direct dependency':24}{'version':12}{'installs':>10}  license"]
    for name, (extras, depth) in sorted(packages.items()):
        if depth == 1:
            count = len(closure(Requirement(f"{name}[{','.join(sorted(extras - {''}))}]"))) - 1
            lines.append(f"{name:24}{distribution(name).version:12}{count:>10}  {license_of(name)}")
    return lines


def pip_audit(pins: Iterable[str]) -> str:
    """Return the output of pip-audit for packages in fixed versions."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "requirements.txt")
        file.write_text("\n".join(pins), encoding="ascii")
        options = ["--requirement", str(file), "--no-deps", "--disable-pip", "--format", "json"]
        command = [sys.executable, "-m", "pip_audit", *options, "--progress-spinner", "off"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"pip-audit printed no report, exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> int:
    packages = closure(Requirement(f"{PACKAGE}[{','.join(EXTRAS)}]"))
    del packages[PACKAGE]
    print("\n".join(review(packages)), end="\n\n")
    report = read_report(pip_audit(f"{name}=={distribution(name).version}" for name in packages), packages)
    print("\n".join(report.lines()))
    return 0 if report.succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
