"""Settings for all tests, their markers, and their distribution to the processes of pytest-xdist."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a busy machine makes single examples slow. The number of examples bounds the time.
settings.register_profile("quick", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

SPARK = "tests/spark/"
# These mostly wait for other processes, so an additional Spark session is cheaper than waiting for the shared one.
APART = tuple(f"{SPARK}test_{name}.py" for name in ("versions", "cluster", "kill"))
# The longest tests start first: those that share the Spark session, then those that start their own Spark.
LONGEST = (
    SPARK,
    *APART,
    "tests/cli/test_demonstration.py",
    "tests/examples/test_spark_hourly_counts.py",
    "tests/test_docs.py",
    "tests/stan/test_loss.py",
    "tests/test_wheel.py",
)


# Marker -> prefixes of the names of its tests. "not spark and not server" selects the tests that need only Python.
MARKED = {
    "spark": (SPARK, "tests/cli/test_demonstration.py", "tests/examples/test_spark", "tests/test_docs.py"),
    "server": (
        *("tests/aio/", "tests/cli/", "tests/examples/", "tests/interop/", "tests/spark/connector/"),
        *(f"tests/stan/test_{name}.py" for name in ("loss", "migrate", "protocol", "publish", "subscribe")),
        *("tests/test_docs.py", "tests/test_testing.py"),
    ),
    "interop": ("tests/examples/test_kafka_bridge.py", "tests/interop/"),
    "slow": (
        *("tests/cli/test_demonstration.py", "tests/examples/", "tests/test_docs.py", "tests/test_wheel.py"),
        *(f"{SPARK}test_{name}.py" for name in ("cluster", "kill", "random_messages", "versions")),
    ),
}

# In those folders, and in need of Python alone.
WITHOUT_SERVER = ("tests/aio/test_pending_acks.py",)


def scope_of(nodeid: str) -> str:
    """Return the group of a test that runs in one process: its file, or all tests that share the Spark session."""
    file = nodeid.partition("::")[0]
    return SPARK if file.startswith(SPARK) and file not in APART else file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker, starts in MARKED.items():
            if item.nodeid.startswith(starts) and not (marker == "server" and item.nodeid.startswith(WITHOUT_SERVER)):
                item.add_marker(marker)
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
