"""Settings for all tests, their markers, and their distribution to the processes of pytest-xdist."""

import asyncio
import gc
import io
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# No deadline for single examples, because they are slow on a busy machine; max_examples limits the time. `make fuzz`
# runs millions of inputs.
settings.register_profile("quick", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("brief", settings.get_profile("quick"), max_examples=10)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2000)
# The same examples for each mutant of `make mutants`, and none that an earlier mutant failed; shrinking takes time.
settings.register_profile(
    "mutants",
    settings.get_profile("quick"),
    max_examples=15,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# For every Spark that tests start: queries run once or twice on few rows, and the optimizing compiler would take up to
# a third of the CPU time.
for _variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_variable, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Otherwise Python before 3.12 makes an event loop when pytest-asyncio 1.3 asks for the current one. It is never closed,
# a warning in some later test.
asyncio.set_event_loop(None)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # the garbage collector need not look at all tests again and again


# Finds sockets, event loops, processes and files that a test has not closed in that test; otherwise a warning of Python
# comes in a later one, or in none.
if os.environ.get("CE_NATS_TEST_GC"):
    from nats.aio.transport import TcpTransport

    def pytest_configure(config: pytest.Config) -> None:
        for warning in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
            config.addinivalue_line("filterwarnings", f"error::{warning}")
        # nats-py forgets the connection to a server that did not send INFO, and connects to the next one.
        connect = TcpTransport.connect

        async def close_and_connect(transport: TcpTransport, *arguments: Any, **options: Any) -> None:
            transport.close()
            await connect(transport, *arguments, **options)

        TcpTransport.connect = close_and_connect  # type: ignore[method-assign]

    @pytest.fixture(autouse=True)
    def collect_garbage(request: pytest.FixtureRequest) -> Iterator[None]:
        yield
        if any(map(request.node.get_closest_marker, ("asyncio", "server", "slow"))):
            gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the stacks of tasks to the failure of a test that hangs; pytest-timeout prints those of threads."""
    report = yield
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        stacks = io.StringIO()
        for task in gc.get_objects():
            if isinstance(task, asyncio.Task) and not task.done():
                task.print_stack(file=stacks)
        report.sections.append(("Stacks of tasks", stacks.getvalue()))
    return report


SPARK = "tests/spark/"
# Other processes do most of the work of these, so a second Spark session costs less than waiting for the shared one.
APART = tuple(f"{SPARK}test_{name}.py" for name in ("versions", "cluster", "kill"))
# Their tests share three servers, which start once.
CLUSTERED = tuple(
    f"tests/aio/scenarios/test_{name}.py"
    for name in ("elections", "cluster", "batches", "atomic_faults", "large_data", "order_per_key")
)
# The slowest run first: tests that share a Spark session, then those that start another Spark.
LONGEST = (
    SPARK,
    "tests/test_docs.py",
    CLUSTERED[0],
    *APART,
    "tests/examples/test_lakehouse.py",
    "tests/examples/test_spark_hourly_counts.py",
    "tests/cli/test_demo_steps.py",
    "tests/stan/test_loss.py",
    "tests/test_wheel.py",
)

# Markers of all tests in a folder. Single files and tests set theirs with pytest.mark.
MARKERS = {
    "aio": ("server",),
    "cli": ("server",),
    "examples": ("server", "slow"),
    "interop": ("server", "interop"),
    "proof": ("long",),
    "spark": ("spark",),
    "spark/connector": ("server",),
    "stan": ("server",),
    "sync": ("server",),
    "testing": ("server",),
}

# Seconds for a test with a marker, with its fixtures. Of several markers the first one counts.
LIMITS = {"long": 1800, "faults": 300, "spark": 300}


def scope_of(nodeid: str) -> str:
    """Return the scope of a test; tests of a scope run in one process: a file, or all that share what starts slowly."""
    file = nodeid.partition("::")[0]
    if file in CLUSTERED:
        return CLUSTERED[0]
    return SPARK if file.startswith(SPARK) and file not in APART else file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for folder, markers in MARKERS.items():
            if item.nodeid.startswith(f"tests/{folder}/"):
                for marker in markers:
                    item.add_marker(marker)
        for marker, seconds in LIMITS.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.timeout(seconds))
        if item.get_closest_marker("long"):
            item.add_marker("slow")
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
