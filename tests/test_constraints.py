"""The versions in ``constraints.txt``, which ``make upgrade`` writes."""

import re
import sys
from importlib import import_module
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.tables import each

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10.13", "3.11.7", "3.12.1", "3.13.0", "3.14.0")
PLATFORMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))

LINES = [
    line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.lstrip().startswith("#")
]


def direct_requirements():
    """All requirements of pyproject.toml: of the package, its extras, the groups, and its build."""
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    package, groups = project["project"], project["dependency-groups"]
    parts = [package["dependencies"], *package["optional-dependencies"].values(), *groups.values()]
    parts.append(project["build-system"]["requires"])
    found = {text for part in parts for text in part if isinstance(text, str)}
    return sorted(text for text in found if Requirement(text).name != "ce-nats")


def environments():
    for python in PYTHONS:
        for platform, system, machine in PLATFORMS:
            yield {
                "python_full_version": python,
                "python_version": python.rpartition(".")[0],
                "sys_platform": platform,
                "platform_system": system,
                "platform_machine": machine,
            }


def test_lines_are_names_and_versions():
    """No address of an index or a file, no option."""
    assert [line for line in LINES if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [^@:]+)?", line)] == []


@each("text", direct_requirements())
def test_each_requirement_has_one_version_for_each_python_and_platform(text):
    requirement = Requirement(text)
    versions = [Requirement(line) for line in LINES]
    versions = [one for one in versions if one.name == canonicalize_name(requirement.name)]
    for environment in environments():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (locked,) = [one for one in versions if one.marker is None or one.marker.evaluate(environment)]
            (version,) = [specifier.version for specifier in locked.specifier]
            assert version in requirement.specifier, (environment, str(locked))
