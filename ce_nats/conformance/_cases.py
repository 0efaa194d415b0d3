"""
Load conformance vectors, and convert the spellings of their values.

``spec-fixtures/schema.json`` defines the format. The tests validate the files with it; this module does not.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

# {"result": {...}}, {"error": "a code, or any text"} or {"skipped": "a reason"}
Answer: TypeAlias = Mapping[str, Any]
# {"expected": {...}} or {"error": "a code"}
Outcome: TypeAlias = Mapping[str, Any]

LEVELS: Final = ("MUST", "SHOULD", "MAY", "UNSPECIFIED")
# Files of the folder that are not suites.
NOT_SUITES: Final = frozenset({"schema.json", "requirements.json"})


class FixtureError(Exception):
    """The fixtures are missing or cannot be read."""


@dataclass(frozen=True)
class Case:
    """
    One vector.

    Attributes:
        suite: Name of the suite: the file name without ``.json``.
        id: Name of the case, unique over all suites.
        op: Operation, as ``module.function`` of ce_nats.
        level: One of ``MUST``, ``SHOULD``, ``MAY``, ``UNSPECIFIED``.
        description: A statement, "X does Y".
        requirements: Ids in ``requirements.json``.
        input: Arguments of the operation, as spelled in the file.
        outcomes: Answers that pass, each ``{"expected": ...}`` or ``{"error": code}``; several if the specification
            allows a choice.
        source: Case as in the file.
    """

    suite: str
    id: str
    op: str
    level: str
    description: str
    requirements: tuple[str, ...]
    input: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    source: Mapping[str, Any]


@dataclass(frozen=True)
class Suite:
    """One fixture file."""

    name: str
    description: str
    documents: Mapping[str, Any]
    notes: Mapping[str, Any]
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Requirement:
    """
    One entry of ``requirements.json``.

    Attributes:
        id: Stable id, such as ``NB-3.1.3.2-12``.
        level: Keyword of the specification (``MUST``, ...); ``fact`` if it has none, ``decision`` if the specification
            leaves the behaviour open.
        text: Text of the requirement.
        covered_by: ``vector``, ``test`` or ``not-testable``.
        reason: Path of the test, or reason why the requirement cannot be tested; ``""`` for vectors.
    """

    id: str
    level: str
    text: str
    covered_by: str
    reason: str = ""


def fixture_folder() -> Path:
    """
    Return the folder of the fixtures, in the installed package or in the checkout.

    Raises:
        FixtureError: The fixtures do not exist.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "spec_fixtures", package.parent / "spec-fixtures"):
        if (folder / "schema.json").is_file():
            return folder
    raise FixtureError(f"the conformance fixtures must be in {package}, or in {package.parent / 'spec-fixtures'}")


def load_suites(folder: Path | None = None) -> list[Suite]:
    """
    Load all suites, sorted by name.

    Raises:
        FixtureError: The folder has no suite, a file cannot be read, or a suite has no case.
    """
    folder = fixture_folder() if folder is None else folder
    suites = [_load(path) for path in sorted(folder.glob("*.json")) if path.name not in NOT_SUITES]
    if not suites:
        raise FixtureError(f"folder {folder} must have fixture files, got none")
    return suites


def load_cases(names: Collection[str] = (), folder: Path | None = None) -> list[Case]:
    """
    Return the cases of the named suites, or of all suites if no name is given.

    Raises:
        FixtureError: As for :func:`load_suites`; or a suite does not exist.
    """
    suites = load_suites(folder)
    known = [suite.name for suite in suites]
    if unknown := sorted(set(names) - set(known)):
        raise FixtureError(f"the suite must be one of {', '.join(known)}, got {', '.join(unknown)}")
    return [case for suite in suites if not names or suite.name in names for case in suite.cases]


def load_requirements(folder: Path | None = None) -> dict[str, Requirement]:
    """
    Load all requirements by id, in the order of the file.

    Raises:
        FixtureError: The file cannot be read, or ids are duplicated.
    """
    path = (fixture_folder() if folder is None else folder) / "requirements.json"
    try:
        listed = [Requirement(**line) for line in json.loads(path.read_text(encoding="utf-8"))["requirements"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise FixtureError(f"{path.name} must be a list of requirements: {error!r}") from error
    found = {requirement.id: requirement for requirement in listed}
    if len(found) != len(listed):
        raise FixtureError(f"ids in {path.name} must be unique")
    return found


def _load(path: Path) -> Suite:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        suite = Suite(
            name=content["suite"],
            description=content["description"],
            documents=content["documents"],
            notes=content["notes"],
            cases=tuple(_case(content["suite"], source) for source in content["cases"]),
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise FixtureError(f"{path.name} must be a fixture file: {error!r}") from error
    if suite.name != path.stem or not suite.cases:
        raise FixtureError(f"{path.name} must have the suite name {path.stem} and at least one case")
    return suite


def _case(suite: str, source: Mapping[str, Any]) -> Case:
    outcome = {key: source[key] for key in ("expected", "error") if key in source}
    return Case(
        suite=suite,
        id=source["id"],
        op=source["op"],
        level=source["level"],
        description=source["description"],
        requirements=tuple(source["requirements"]),
        input=source["input"],
        outcomes=tuple(source.get("accept") or [outcome]),
        source=source,
    )


# --- Spellings of values --------------------------------------------------------------------------------------------


def text(spelling: Any) -> str:
    """
    Return the text of a spelling: ``"..."``, ``{"utf16": "D83D DE00"}``, or ``{"repeat": text, "times": n}`` with an
    optional ``prefix`` and ``suffix``.

    Raises:
        ValueError, LookupError, TypeError: The spelling is malformed.
    """
    if isinstance(spelling, str):
        return spelling
    if "utf16" in spelling:
        return bytes.fromhex(spelling["utf16"]).decode("utf-16-be", "surrogatepass")
    repeated = text(spelling["repeat"]) * int(spelling["times"])
    return text(spelling.get("prefix", "")) + repeated + text(spelling.get("suffix", ""))


def octets(spelling: Any) -> bytes:
    """
    Return the bytes of a spelling: ``{"text": text}`` (as UTF-8), ``{"base64": "..."}``, or
    ``{"repeat": bytes, "times": n}`` with an optional ``prefix`` and ``suffix``, both bytes.

    Raises:
        ValueError, LookupError, TypeError: The spelling is malformed.
    """
    if "repeat" in spelling:
        nothing = {"text": ""}
        repeated = octets(spelling["repeat"]) * int(spelling["times"])
        return octets(spelling.get("prefix", nothing)) + repeated + octets(spelling.get("suffix", nothing))
    if "base64" in spelling:
        return b64decode(spelling["base64"], validate=True)
    return text(spelling["text"]).encode("utf-8")


def expand(value: Any) -> Any:
    """
    Return an input with every ``repeat`` expanded, so that other implementations need not support that spelling.

    Values of ``json`` and ``native`` are data, not spellings, and are not changed.
    """
    if isinstance(value, list):
        return [expand(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "repeat" in value:
        return text(value) if isinstance(value["repeat"], str) else spell(octets(value))
    return {key: item if key in ("json", "native") else expand(item) for key, item in value.items()}


def spell(value: bytes) -> dict[str, str]:
    """Return the spelling of bytes: ``text`` if they are UTF-8, else ``base64``."""
    try:
        return {"text": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}
