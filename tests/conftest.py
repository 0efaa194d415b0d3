"""Settings for all tests, and how they are divided among the processes of pytest-xdist where it runs."""

import pytest
from hypothesis import settings

# Other tests and a busy machine make single examples slow; the number of examples bounds the time.
settings.register_profile("ce_nats", deadline=None)
settings.load_profile("ce_nats")

# What takes longest begins first: all that share the one Spark session, then programs that start a Spark of their own.
LONGEST = ("spark", "tests/test_readme.py", "tests/test_demo.py", "tests/aio/stan/test_loss.py", "tests/test_wheel.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file stays in one process, because its tests share servers; a Spark session is shared by many files."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    if config.getoption("dist", "no") != "no":
        order = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(_group(item), len(order)))


def _group(item: pytest.Item) -> str:
    return "spark" if "spark" in getattr(item, "fixturenames", ()) else item.nodeid.partition("::")[0]
