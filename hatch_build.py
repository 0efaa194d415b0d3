"""
Build hooks, which build ``ce-nats.jar`` and prepare the README for a package index.

``ce_nats/spark/jvm/ce-nats.jar`` decodes Spark columns; it is part of wheels and editable installs.

The sources are compiled with stubs of the Spark classes that they use (``ce_nats/spark/jvm/stubs``), so that an
isolated build requires a JDK, but neither pyspark nor downloads. Without a JDK of version 17 or later, no jar is built;
the codec and the Python engine of the columns do not need it.

``python hatch_build.py`` builds the jar in place if a source is newer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # make and the tests call the functions without hatchling
    BuildHookInterface = MetadataHookInterface = object

ROOT = Path(__file__).parent
SOURCES = "ce_nats/spark/jvm"
JAR = f"{SOURCES}/ce-nats.jar"
RELEASE = 17  # Java version; Spark 4 supports 17 and 21


class JarHook(BuildHookInterface):
    """Adds the jar to wheels, and to the source tree for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if build_jar(root):
            build_data["artifacts"].append(JAR)
        else:
            self.app.display_warning(f"javac {RELEASE} or later was not found; building without {JAR}")


class ReadmeHook(MetadataHookInterface):
    """Sets the long description to README.md with absolute links: a package index cannot resolve relative links."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        text = with_absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, source: str) -> str:
    """Replace relative links and images in Markdown with addresses in the repository ``source``."""
    text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:|#)", rf"\1{source}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^\]]*\]\()(?![a-z]+:|#)", rf"\1{source}/blob/main/", text)


def build_jar(root: Path = ROOT) -> bool:
    """
    Build the jar if it is missing or a source is newer.

    Returns:
        Whether the jar exists; without a JDK it may be missing.

    Raises:
        subprocess.CalledProcessError: The sources do not compile.
    """
    jar, sources = root / JAR, sorted((root / SOURCES).glob("*.java"))
    if jar.exists() and jar.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return True
    javac = _javac()
    if javac is None:
        return jar.exists()
    options = ["-Xlint:all", "-Werror", "--release", str(RELEASE)]
    stubs = ["-implicit:none", "-sourcepath", str(root / SOURCES / "stubs")]
    with tempfile.TemporaryDirectory() as classes:
        subprocess.run([javac, *options, *stubs, "-d", classes, *map(str, sources)], check=True)  # noqa: S603
        _archive(Path(classes), jar)
    return True


def _javac() -> str | None:
    home = os.environ.get("JAVA_HOME")
    javac = (home and shutil.which("javac", path=Path(home) / "bin")) or shutil.which("javac")
    if javac is None:
        return None
    version = subprocess.run([javac, "-version"], capture_output=True, text=True).stdout  # noqa: S603
    number = re.match(r"javac ([0-9]+)", version)
    return javac if number and int(number[1]) >= RELEASE else None


def _archive(classes: Path, jar: Path) -> None:
    """Write the jar without times and with sorted names, so that the same sources yield the same bytes."""
    new = jar.with_suffix(".new")
    with ZipFile(new, "w") as archive:
        for path in sorted(classes.rglob("*.class")):
            archive.writestr(ZipInfo(path.relative_to(classes).as_posix()), path.read_bytes(), ZIP_DEFLATED)
    new.replace(jar)  # atomic, because a Spark session may be reading the old file


if __name__ == "__main__":
    sys.exit(not build_jar())
