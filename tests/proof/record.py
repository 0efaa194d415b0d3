"""Write the result of a long run into docs/proof.md: date, commit, machine, command and figures."""

import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from os import cpu_count
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "proof.md"


def write(section: str, command: str, lines: Sequence[str], page: Path = PAGE) -> None:
    """
    Replace what the page has between `<!-- begin SECTION -->` and `<!-- end SECTION -->`.

    Args:
        section: the name in both comments
        command: the command that makes the record again
        lines: Markdown: the figures
        page: the file
    """
    replace(section, [f"Run {today()} at commit `{commit()}` on {machine()}: `{command}`", "", *lines], page)


def replace(section: str, lines: Sequence[str], page: Path | None = None) -> None:
    """Replace what the page has between the comments of a section, for a record whose parts have several dates."""
    page = PAGE if page is None else page
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- begin {section} -->\n).*?(<!-- end {section} -->)", re.DOTALL)
    body = "\n".join(lines)
    text, count = pattern.subn(lambda found: f"{found[1]}{body}\n{found[2]}", text)
    if count != 1:
        raise ValueError(f"{page} must have one section {section!r}, got {count}")
    page.write_text(text, encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a Markdown table; numbers have thousands separators."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)]


def today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


def commit() -> str:
    """Return the abbreviated commit of the checkout, with a plus sign if files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def machine() -> str:
    """Return cores, processor and Python of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    processor = model or platform.processor() or platform.machine()
    return f"{cpu_count()} cores of {processor}, Python {platform.python_version()}"
