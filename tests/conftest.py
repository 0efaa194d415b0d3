"""Settings for all tests, and how they are divided among the processes of pytest-xdist where it runs."""

from typing import Any

import pytest
from hypothesis import settings

# Other tests and a busy machine make single examples slow; the number of examples bounds the time.
settings.register_profile("ce_nats", deadline=None)
settings.load_profile("ce_nats")

SPARK = "tests/spark/"
OLD_SPARK = f"{SPARK}test_versions.py"
# What takes longest begins first: all that share the one Spark session, then programs that start a Spark of their own.
LONGEST = (
    SPARK,
    OLD_SPARK,
    "tests/cli/test_demonstration.py",
    "tests/test_readme.py",
    "tests/stan/test_loss.py",
    "tests/test_wheel.py",
)


def scope_of(nodeid: str) -> str:
    """What stays in one process: a file, because its tests share servers, and all that shares the Spark session."""
    file = nodeid.partition("::")[0]
    return SPARK if file.startswith(SPARK) and file != OLD_SPARK else file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        order = {scope: place for place, scope in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(scope_of(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
