"""
Plugin for pytest: skips tests that need a later nats-server than the one beside this Python.

Each entry names a version, a test by the start of its node id, and the feature. An entry without a test is an error.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

NEEDS: Final[tuple[tuple[tuple[int, int], str, str], ...]] = ()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    text = subprocess.check_output([Path(sys.executable).with_name("nats-server"), "--version"], text=True)
    found = re.search(r"v(\d+)\.(\d+)", text)
    assert found, text
    version = (int(found[1]), int(found[2]))
    for needed, test, feature in NEEDS:
        matching = [item for item in items if item.nodeid.startswith(test)]
        if not matching:
            raise pytest.UsageError(f"no test begins with {test}")
        if version < needed:
            reason = f"{feature} {'need' if feature.endswith('s') else 'needs'} nats-server {needed[0]}.{needed[1]}"
            for item in matching:
                item.add_marker(pytest.mark.skip(reason=reason))
